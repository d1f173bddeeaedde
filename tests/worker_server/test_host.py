"""All ranks of a host in one answer, from their pages; and the port that one sidecar has."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.rank.page.reader import PageReader
from lightkeeper.worker_server.rank.page.writer import PageWriter
from lightkeeper.worker_server.run_dir import RankFiles, start_ticks
from lightkeeper.worker_server.sidecar.host import HostView, have_port, share
from lightkeeper.worker_server.sidecar.serve import listening_socket
from tests.worker_server.boxes import IDENTITY, PROCESS

ELSEWHERE = {
    "url": "http://10.0.0.7:9", "sidecar_pid": 2**22 - 1, "sidecar_ticks": 1, "pid_namespace": 1,
}  # fmt: skip
OWN = wire.StateReport(IDENTITY, PROCESS, None)


class Host:
    """A run directory with pages of this very process, or of another."""

    def __init__(self, folder):
        self.folder = folder
        self.pages = []
        self.view = HostView(folder, IDENTITY, lambda: OWN)

    def add(self, group="rg_1", group_rank=1, *, job="job", pid=None, incarnation=None):
        pid = pid or os.getpid()
        who = wire.Identity(job, wire.GroupName(group), group_rank, 8, wire.Host("node7"), pid,
                            incarnation or f"{group_rank}{group}".encode().hex())  # fmt: skip
        files = RankFiles.of(self.folder, who.rank, who.incarnation)
        self.pages.append(PageWriter.create(files.page, who, start_ticks(pid) or 1))
        return files

    def publish(self, files, url="http://127.0.0.1:9", pid=None):
        pid = pid or os.getpid()
        ticks = start_ticks(pid) or 1
        files.write_endpoint({"url": url, "sidecar_pid": pid, "sidecar_ticks": ticks})

    def entries(self):
        report = wire.parse_host(json.loads(json.dumps(wire.to_json(self.view.report()))))
        assert report.host == "node7"
        return report.entries


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


@pytest.fixture
def other():
    """A process that lives as long as the test wants."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait(10)
    process.stdin.close()


def test_a_rank_that_ended_before_anybody_looked_has_ended_as_its_own_sidecar_says(host, other):
    other.kill()
    other.wait(10)
    files = host.add("rg_2", 1, pid=other.pid)
    (late,) = host.entries()
    assert (late.report.process.exit_code, late.report.process.dead_age_s) == (None, None)
    ended = wire.Process(alive=False, dead_age_s=2.0, exit_code=0)
    ending = wire.Ending("Exited with code 0.")
    report = wire.StateReport(PageReader(files.page).identity, ended, None, ending=ending)
    share(files.seen, report, time.monotonic() - 60.0)
    (late,) = host.entries()
    assert (late.report.process.alive, late.report.process.exit_code) == (False, 0)
    assert 62.0 <= late.report.process.dead_age_s < 600.0


def test_of_a_dead_rank_its_own_sidecar_knows_more_than_one_that_looked_seldom(host, other):
    files = host.add("rg_2", 1, pid=other.pid)
    (alive,) = host.entries()
    assert (alive.report.process.alive, alive.report.process.handles_sigterm) == (True, False)
    other.kill()
    other.wait(10)
    ended = wire.Process(alive=False, dead_age_s=2.0, exit_code=0, handles_sigterm=True)
    ending = wire.Ending("Exited with code 0.")
    report = wire.StateReport(PageReader(files.page).identity, ended, None, ending=ending)
    share(files.seen, report, time.monotonic())
    (dead,) = host.entries()
    assert (dead.report.process.exit_code, dead.report.process.handles_sigterm) == (0, True)


def test_what_the_sidecar_of_a_neighbour_knows_of_its_rank_is_told_for_it(host, other):
    alive, dead = host.add("rg_2", 0), host.add("rg_2", 1, pid=other.pid)
    other.kill()
    other.wait(10)
    frame = wire.Frame("Deadlock.log_step", "train.py", 66)
    witness = wire.Witness(frame, wire.Doing.LOCK, 3, 7.0, 1.0)
    ending = wire.Ending("Exited with code 1.", "KeyError: 3", frame)
    heads = (wire.GroupHead("nccl:default_pg", 2, 7, 1, "", 1.0, started=7, read_age_s=0.5),)
    for files, report in (
        (alive, wire.StateReport(PageReader(alive.page).identity, PROCESS, None, (), witness)),
        (dead, wire.StateReport(
            PageReader(dead.page).identity, PROCESS, None, heads, witness, ending,
        )),
    ):  # fmt: skip
        share(files.seen, report, time.monotonic() - 60.0)
    reports = [entry.report for entry in host.entries()]
    assert all(60.0 <= report.witness.age_s - 1.0 < 600.0 for report in reports)
    assert [report.witness.frame for report in reports] == [frame, frame]
    assert [report.ending for report in reports] == [None, ending]
    assert [head.inside for head in reports[1].heads] == [7]  # as it was at its end
    report = wire.StateReport(PageReader(alive.page).identity, PROCESS, None, heads)
    assert share(alive.seen, report, time.monotonic() - 5.0)
    (head,) = host.entries()[0].report.heads
    assert (head.name, head.inside, head.started) == ("nccl:default_pg", 7, 7)
    assert (5.5 <= head.read_age_s < 65.0, 6.0 <= head.age_s < 65.0) == (True, True)
    assert share(alive.seen, report, time.monotonic() - 31.0)
    assert host.entries()[0].report.heads == ()  # they may be of another hour
    alive.seen.write_text('{"report": {"schema": 1}}')
    dead.seen.write_text("half")
    assert all(entry.report.witness is entry.report.ending is None for entry in host.entries())


def test_every_rank_of_the_run_directory_is_there_in_order(host):
    for rank in (2, 0, 1):
        host.publish(host.add("rg_2", rank), f"http://127.0.0.1:{rank}")
    host.add("rg_10", 0)
    entries = host.entries()
    assert [entry.rank for entry in entries] == ["rg_10.0", "rg_2.0", "rg_2.1", "rg_2.2"]
    assert [entry.url for entry in entries] == [None, *(f"http://127.0.0.1:{n}" for n in range(3))]
    assert all(entry.report.process.alive for entry in entries)


def test_a_neighbour_goes_by_its_managers_name_unless_its_own_sidecar_was_refused_it(host):
    files = host.add("rg_2", 0)
    host.pages[0].write_text(layout.W_REPLICA, "my_2:6c1d3f0e-7f3c-4f6e-8a5e-0a4b8a3a0001")
    (entry,) = host.entries()
    assert (entry.rank, entry.report.identity.launched_as) == ("my_2.0", "rg_2")
    files.write_endpoint({"refused": "my_2"})
    (entry,) = host.entries()
    assert entry.report.identity.rank == entry.rank == "rg_2.0"


def test_the_own_rank_is_told_as_its_own_state_tells_it(host):
    host.add("rg_1", 0, pid=2**22 - 1, incarnation=IDENTITY.incarnation)
    (entry,) = host.entries()
    assert entry.report == OWN


def test_a_neighbour_that_dies_is_told_dead_and_leaves_with_its_page(host, other):
    files = host.add(pid=other.pid)
    (entry,) = host.entries()
    assert entry.report.process.alive
    other.kill()
    other.wait(10)
    (entry,) = host.entries()
    assert not entry.report.process.alive
    files.remove()
    assert host.entries() == ()


def test_a_rank_that_was_dead_before_anybody_looked_is_told_dead(host):
    host.add(pid=2**22 - 1)
    (entry,) = host.entries()
    assert (entry.report.process.alive, entry.url) == (False, None)


def test_a_sidecar_that_is_gone_has_no_url(host):
    host.publish(host.add(), pid=2**22 - 1)
    (entry,) = host.entries()
    assert entry.url is None
    assert entry.report.process.alive


def test_a_rank_in_another_container_is_not_told_dead_because_it_cannot_be_seen(host):
    files = host.add(pid=2**22 - 1)
    files.write_endpoint(ELSEWHERE)
    host.pages[-1].beat()
    (entry,) = host.entries()
    assert entry.report.process.alive
    assert entry.url == ELSEWHERE["url"]


def test_whether_a_deaf_rank_in_another_container_lives_is_left_to_its_own_sidecar(host):
    files = host.add(pid=2**22 - 1)
    files.write_endpoint(ELSEWHERE)
    host.pages[-1]._words[layout.W_BEAT] = 1
    (entry,) = host.entries()
    assert (entry.report, entry.url) == (None, ELSEWHERE["url"])
    assert "another PID namespace" in entry.error


@pytest.mark.parametrize("spoil", ["empty", "noise", "cut"])
def test_a_page_that_cannot_be_read_spoils_its_own_entry_only(host, spoil):
    host.add("rg_1", 0)
    bad = host.add("rg_1", 1)
    blob = bad.page.read_bytes()
    bad.page.unlink()
    bad.page.write_bytes(
        {"empty": b"", "noise": b"\xff" * len(blob), "cut": blob[: len(blob) // 2]}[spoil]
    )
    good, spoiled = host.entries()
    assert good.report is not None
    assert (spoiled.rank, spoiled.report) == ("rg_1.1", None)
    assert spoiled.error


def test_a_page_that_is_cut_while_it_is_read_spoils_its_own_entry_only(host):
    host.add("rg_1", 0)
    bad = host.add("rg_1", 1)
    assert all(entry.report for entry in host.entries())
    os.truncate(bad.page, 4096)
    good, spoiled = host.entries()  # reading on would be a SIGBUS
    assert good.report is not None
    assert "has 4096 bytes" in spoiled.error


def test_a_page_with_an_impossible_pid_spoils_its_own_entry_only(host):
    host.add("rg_1", 0)
    host.add("rg_1", 1, pid=2**40)
    good, _ = host.entries()
    assert good.report is not None


def test_a_page_of_no_name_has_an_entry_too(host):
    (host.folder / "nonsense.page").write_bytes(b"x")
    (entry,) = host.entries()
    assert entry.rank == "nonsense.0"
    assert entry.error


def test_ranks_of_another_job_are_not_told(host):
    host.add(job="other")
    assert host.entries() == ()


def test_both_incarnations_of_a_rank_are_told(host):
    host.add(incarnation="aa")
    host.add(incarnation="bb")
    assert [entry.report.identity.incarnation for entry in host.entries()] == ["aa", "bb"]


def test_ranks_that_come_and_go_leave_no_open_files(host):
    def files():
        return len(os.listdir("/proc/self/fd"))

    host.entries()
    before = files()
    for n in range(20):
        made = host.add(incarnation=f"a{n}")
        assert len(host.entries()) == 1
        made.remove()
        host.pages.clear()
    host.entries()
    gc.collect()
    assert files() <= before + 1


def test_the_port_is_taken_over_when_its_holder_leaves():
    holder = listening_socket("127.0.0.1", 0)
    port = holder.getsockname()[1]
    served, got = [], threading.Event()

    def serve(listener):
        served.append(listener)
        got.set()

    waits = threading.Thread(
        target=have_port, args=(lambda: listening_socket("127.0.0.1", port), serve, 0.02)
    )
    waits.start()
    try:
        assert not got.wait(0.2)
        holder.close()
        assert got.wait(10)
    finally:
        holder.close()
        waits.join(10)
        for listener in served:
            listener.close()


def test_a_port_that_may_not_be_had_is_tried_again(caplog):
    tries = []

    def listen():
        tries.append(1)
        if len(tries) < 4:
            raise PermissionError(13, "Permission denied")
        return listening_socket("127.0.0.1", 0)

    served = []
    caplog.set_level("WARNING", "lightkeeper.worker_server.sidecar")
    have_port(listen, served.append, retry_s=0.01)
    served[0].close()
    assert [record.message for record in caplog.records] == ["the host's port: Permission denied"]
