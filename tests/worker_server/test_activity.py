"""What a rank uses of cores and bytes, as the kernel counts it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from lightkeeper.worker_server.sidecar.process import Activity, Counts, counts
from tests.worker_server.ranks import eventually


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def seen():
    """A process of two threads: one works, one waits for a core for 0.3 s in each second."""
    clock = Clock()

    def count(pid):
        now_s = clock()
        threads = {"1": (0.9 * now_s, 0.01 * now_s), "2": (0.1 * now_s, 0.3 * now_s)}
        return Counts(threads, 1000, {"1": int(20 * now_s), "2": int(3 * now_s)})

    activity = Activity(1, clock, count)

    def at(now_s, trains="1"):
        clock.now_s, activity.trains = now_s, trains
        return activity.rates()

    return at


def told(cores, starved, bytes_s, wakes_s=None):
    return {"cores": cores, "starved": starved, "bytes_s": bytes_s, "wakes_s": wakes_s}


def test_rates_are_of_the_last_seconds_and_starved_is_the_thread_that_waited_most(seen):
    assert [seen(at) for at in (0.0, 0.1, 3.0)] == [{}] * 3
    for at in (5.0, 7.5, 60.0, 65.0):
        assert seen(at) == pytest.approx(told(1.0, 0.3, 0.0, 20.0))


def test_the_thread_that_trains_is_the_one_whose_waking_counts(seen):
    seen(0.0)
    assert [seen(5.0, thread)["wakes_s"] for thread in "129"] == [20.0, 3.0, None]


def test_it_may_be_asked_as_often_as_one_likes(seen):
    for n in range(10_000):
        rates = seen(n / 100)
        assert rates == ({} if n < 550 and not rates else pytest.approx(told(1, 0.3, 0, 20)))


def test_a_thread_that_came_or_went_meanwhile_counts_for_nothing():
    clock = Clock()
    looks = iter(
        [
            Counts({"1": (1.0, 50.0), "2": (1.0, 9.0)}, 100, {}),
            Counts({"2": (2.0, 9.5), "3": (1.0, 70.0)}, 600, {}),
            Counts({}, None, {}),
        ]
    )
    activity = Activity(1, clock, lambda pid: next(looks))
    rates = []
    for clock.now_s in (0.0, 5.0, 10.0):
        rates.append(activity.rates())
    assert rates == [{}, pytest.approx(told(0.2, 0.1, 100.0)), {}]


def test_where_bytes_are_not_told_the_rest_is():
    clock = Clock()
    activity = Activity(1, clock, lambda pid: Counts({"1": (clock(), 0.0)}, None, {}))
    activity.rates()
    clock.now_s = 5.0
    assert activity.rates() == told(1.0, 0.0, None)


def test_of_a_process_that_is_gone_nothing_is_known():
    assert counts(2**22 + 1) == ({}, None, {})


def test_what_we_write_ourselves_is_counted(tmp_path):
    before = counts(os.getpid())
    (tmp_path / "file").write_bytes(bytes(100_000))
    assert counts(os.getpid()).bytes - before.bytes >= 100_000


@pytest.mark.integration
def test_two_processes_on_one_core_wait_for_it_in_turn():
    core = {min(os.sched_getaffinity(0))}
    spin = "import os, sys\nos.sched_setaffinity(0, eval(sys.argv[1]))\nwhile True: pass"
    busy = [subprocess.Popen([sys.executable, "-c", spin, str(core)]) for _ in range(2)]
    try:
        activity = Activity(busy[0].pid, time.monotonic)
        starved = eventually(lambda: activity.rates().get("starved"), "a share", within_s=30)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert 0.2 < starved <= 1.0


def test_what_the_child_of_a_child_uses_counts():
    """`subprocess.run(..., shell=True)`: the shell waits as the rank does."""
    command = ["sh", "-c", '"$0" -c "while True: pass"; true', sys.executable]
    with subprocess.Popen(command, start_new_session=True) as shell:
        try:
            eventually(
                lambda: sum(ran_s for ran_s, _ in counts(shell.pid).threads.values()) > 0.2,
                "time on a core",
            )
        finally:
            os.killpg(shell.pid, signal.SIGKILL)


_ECHO = """
import socket, sys
ours = socket.socket(fileno=int(sys.argv[1]))
while data := ours.recv(1):
    ours.send(data)
"""


@pytest.mark.parametrize(("bytes_sent", "wakes"), [(20, True), (0, False)])
def test_a_main_thread_that_reads_a_socket_wakes_as_long_as_bytes_come(bytes_sent, wakes):
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", _ECHO, str(theirs.fileno())]
    with theirs, ours, subprocess.Popen(command, pass_fds=[theirs.fileno()]) as reader:
        looks = []
        for n in (1, bytes_sent):
            for _ in range(n):
                ours.send(b"1")
                assert ours.recv(1) == b"1"
            looks.append(counts(reader.pid).wakes[str(reader.pid)])
        reader.kill()
    assert (looks[1] - looks[0] >= 10) == wakes
