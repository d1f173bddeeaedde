"""Whose stacks are given, how they are marked, and how often the rank is stopped for them."""

from __future__ import annotations

import os
import threading
import time

import pytest

from tests.waiting import wait_for
from tests.worker_server.test_black_box import Bench
from worker_server import wire
from worker_server.frames import stacks_text
from worker_server.page import layout
from worker_server.sidecar.hang import HangWatch
from worker_server.sidecar.stacks import Stacks, StacksError

NOTE = 'Thread 7: "MainThread"\n    main (train.py:7)\n'


@pytest.fixture
def bench(page, tmp_path):
    return Bench(tmp_path / "a.page")


def test_the_beats_text_names_threads_and_calls_newest_first():
    def inner(ready, over):
        ready.set()
        over.wait(10)

    ready, over = threading.Event(), threading.Event()
    thread = threading.Thread(target=inner, args=(ready, over), name="loader")
    thread.start()
    ready.wait(10)
    try:
        taken = []
        beat = threading.Thread(target=lambda: taken.append(stacks_text()), name="beat")
        beat.start()
        beat.join()
    finally:
        over.set()
        thread.join()
    text = taken[0]
    assert text.startswith(f'Thread {threading.main_thread().native_id}: "MainThread"\n')
    loader = text[text.index(f'Thread {thread.native_id}: "loader"') :].splitlines()
    called = [line.split(" (")[0].rsplit(".", 1)[-1].strip() for line in loader[1:7]]
    assert called[:3] == ["wait", "wait", "inner"]
    assert "(tests/worker_server/test_stacks.py:" in text
    assert '"beat"' not in text


def test_a_recursion_without_end_does_not_crowd_out_the_others():
    def deep(n, ready, over):
        if n:
            deep(n - 1, ready, over)
        else:
            ready.set()
            over.wait(10)

    ready, over = threading.Event(), threading.Event()
    thread = threading.Thread(target=deep, args=(500, ready, over))
    thread.start()
    ready.wait(10)
    try:
        text = stacks_text()
    finally:
        over.set()
        thread.join()
    assert text.count("deep (") < 50
    assert "    ... older calls\n" in text


def test_where_py_spy_cannot_look_the_ranks_own_stacks_are_given_with_the_reason(page, bench):
    bench.stacks.error = "py-spy failed: Permission denied"
    page.write_note(layout.NOTE_STACKS, NOTE)
    lines = bench.box.stacks(native=True).splitlines()
    assert lines[0] == "# py-spy failed: Permission denied."
    assert "s ago" in lines[1]
    assert "no native frames" in lines[2]
    assert lines[3:] == NOTE.splitlines()


def test_without_either_the_answer_says_what_is_missing_and_what_there_is_instead(bench):
    bench.stacks.error = "py-spy is not installed"
    with pytest.raises(StacksError, match=r"not installed\. Nor did the rank.*/v1/state has"):
        bench.box.stacks()


def test_after_death_all_that_was_kept_is_given_newest_first(page, bench, tmp_path):
    bench.box.stacks()
    page.write_note(layout.NOTE_STACKS, NOTE)
    crash = tmp_path / "a.crash"
    crash.write_text("Fatal Python error: Aborted\n")
    os.utime(crash, (time.time() + 60,) * 2)  # else within the file clock's grain of the note
    bench.process.dead = True
    heads = [line for line in bench.box.stacks().splitlines() if line.startswith("#")]
    assert [head.split(",")[0] for head in heads] == [
        "# by faulthandler", "# by the rank's own beat", "# by py-spy",
    ]  # fmt: skip
    assert all("before the rank died" in head for head in heads)


def test_a_dead_rank_of_which_nothing_is_known_is_gone(bench):
    bench.process.dead = True
    with pytest.raises(LookupError, match="no stacks were taken before it died"):
        bench.box.stacks()


def test_a_rank_that_stops_is_looked_at_once_without_pausing_it(bench):
    bench.box.tick()
    bench.process.state = "T"
    bench.box.tick()
    bench.box.tick()
    assert bench.stacks.calls == [(False, False)]
    bench.process.dead = True
    assert "by py-spy" in bench.box.stacks()


def test_a_rank_that_somebody_traces_is_not_attached_to(bench):
    bench.process.tracer = wire.Tracer(9, "gdb")
    bench.box.stacks()
    assert bench.stacks.calls == [(False, False)]


def test_who_traces_a_single_thread_is_looked_for_while_the_rank_hangs(bench):
    strace = bench.process.threads_tracer = wire.Tracer(9, "strace")
    bench.box.tick()
    assert bench.box.state().process.tracer is None
    bench.process.state = "T"
    bench.box.tick()
    assert bench.box.state().process.tracer == strace


class FakePySpy:
    """A program that counts its runs and takes a moment."""

    def __init__(self, folder, exit_code=0, pause="0.2"):
        self.runs = folder / "runs"
        self.tool = folder / "py-spy"
        self.tool.write_text(
            f'#!/bin/sh\necho "$@" >> {self.runs}\nsleep {pause}\necho stacks\nexit {exit_code}\n'
        )
        self.tool.chmod(0o755)

    def __call__(self):
        return str(self.tool)

    @property
    def count(self):
        return len(self.runs.read_text().splitlines())


def test_an_answer_younger_than_a_second_is_given_again_and_says_so(tmp_path):
    now = [100.0]
    tool = FakePySpy(tmp_path, pause="0")
    stacks = Stacks(7, tool, lambda: now[0])
    assert not stacks.take(pause=True).again
    now[0] += 0.9
    assert stacks.take(pause=True).again
    assert tool.count == 1
    assert not stacks.take(pause=True, native=True).again  # another question
    now[0] += 0.2
    assert not stacks.take(pause=True).again
    assert tool.count == 3


@pytest.mark.parametrize("exit_code", [0, 1], ids=["well", "failing"])
def test_requests_at_the_same_time_share_one_run(tmp_path, exit_code):
    tool = FakePySpy(tmp_path, exit_code)
    stacks = Stacks(7, tool)
    answers = []

    def ask():
        try:
            answers.append(stacks.take(pause=True).text)
        except StacksError:
            answers.append("error")

    threads = [threading.Thread(target=ask) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [("error" if exit_code else "stacks\n")] * 5
    assert tool.count == 1


def step(phase="forward", age_s=6.0, progress=4):
    return wire.StepState(1, 1, progress, phase, age_s, 0)


def process(state="S", beat_s=0.5):
    return wire.Process(True, state, interpreter_age_s=beat_s)


INSIDE = (wire.GroupHead("default", 2, 5, 4, "all_reduce", 6.0),)


@pytest.mark.parametrize(
    ("seen", "begins"),
    [
        ((process(), step(), ()), True),
        ((process(), step(age_s=4.0), ()), False),
        ((process(), step("checkpoint"), ()), False),
        ((process(), step("init"), ()), False),
        ((process(), None, ()), False),
        ((process(), None, INSIDE), True),
        ((process("T"), None, ()), True),
        ((process(beat_s=3.5), None, ()), True),
    ],
    ids=["phase", "young", "long phase", "start", "no steps", "collective", "stopped", "deaf"],
)
def test_a_hang_is(seen, begins):
    assert HangWatch().begins(*seen, 100.0) is begins


def test_a_hang_is_told_once_and_the_next_not_within_a_minute():
    watch = HangWatch()
    assert watch.begins(process(), step(), (), 100.0)
    assert not watch.begins(process(), step(age_s=100), (), 200.0)
    assert watch.begins(process(), step(progress=5), (), 201.0)
    assert not watch.begins(process(), step(progress=6), (), 230.0)
    assert watch.begins(process(), step(progress=6), (), 261.0)


def test_a_py_spy_that_cannot_even_be_killed_holds_nobody_for_ever():
    over, started = threading.Event(), []

    def hang(command, **_):
        started.append(command)
        over.wait(30)
        raise OSError("at last")

    stacks = Stacks(
        7, find=lambda: "py-spy", clock=iter(range(99)).__next__, limit_s=-0.9, run=hang
    )
    with pytest.raises(StacksError, match="took more than"):
        stacks.take(pause=True)
    with pytest.raises(StacksError, match="hangs in the kernel"):
        stacks.take(pause=True)
    assert len(started) == 1
    over.set()
    wait_for(lambda: not stacks._stuck.is_alive(), within_s=10, what="it comes back")
    with pytest.raises(StacksError, match="does not start: at last"):
        stacks.take(pause=True)
