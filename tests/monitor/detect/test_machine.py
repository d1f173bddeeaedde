"""What machines testify, joined to what the graph says: never alone, never of another's host."""

from __future__ import annotations

import pytest

from lightkeeper.monitor.model.eviction import Guard
from lightkeeper.monitor.model.observation import Snapshot
from lightkeeper.monitor.model.verdict import Confidence
from lightkeeper.worker_server import wire
from lightkeeper.worker_server.wire import Weight
from tests.changed import replace
from tests.monitor.fleet import START_S, Drive, SimFleet, at, ended_by, hang, raises, slow
from tests.monitor.fleet.told import Alter, reports

RESET = "RuntimeError: Read error [127.0.0.1]:25986: Connection reset by peer"
OFF_THE_BUS = wire.Testimony(
    "kernel log", Weight.BROKEN, "xid-79", "GPU 3: Xid 79, fallen off the bus", device="GPU 3"
)
THROTTLED = wire.Testimony(
    "cgroup", Weight.SLOW, "cpu-throttled",
    "cgroup /job is limited to 0.5 cores and was throttled for 48 % of the last 10 s",
)  # fmt: skip
KILLED = wire.Testimony(
    "kernel log", Weight.ENDED, "oom-kill", "OOM killer ended pid 7, cgroup /job"
)
DRAINED = wire.Testimony("Slurm", Weight.LEAVING, "drain", "DRAINING: replace the fan")


def says(row: wire.Testimony, *ranks: str, since: float = 20.0) -> Alter:
    """The machines of these ranks, or of all, testify from this second on."""

    def alter(seen: Snapshot) -> Snapshot:
        for_s = seen.now_s - START_S - since
        if for_s < 0:
            return seen
        row_now = row.later(for_s) if row.weight is Weight.BROKEN else row
        return reports(lambda report: replace(report, machine=(row_now,)), *ranks)(seen)

    return alter


def by_the_cluster(row: wire.Testimony, host: str, since: float = 0.0) -> Alter:
    """Somebody else says it of a host."""
    return lambda seen: (
        replace(seen, cluster={host: (row,)}) if seen.now_s - START_S >= since else seen
    )


def fleet(*script) -> SimFleet:
    made = SimFleet(3, 1, list(script))
    for rank in made.ranks():
        rank.host = f"node-{rank.group}"
    return made


# -- hangs -----------------------------------------------------------------------------------------


def test_a_hang_on_a_broken_gpu_names_it_first_of_all_and_quarantines_the_host_at_once() -> None:
    drive = Drive(fleet(at(20, hang("rg_1.0"))), alter=says(OFF_THE_BUS, "rg_1.0")).run(35)
    verdict = drive.incident("not_entered").verdict
    assert "node-rg_1: GPU 3: Xid 79, fallen off the bus (kernel log, " in verdict.reason
    assert (verdict.blamed, verdict.confidence) == (("node-rg_1",), Confidence.CERTAIN)
    ((_, evict),) = drive.evicts
    assert evict.quarantine == ("node-rg_1",)
    assert evict.reason.startswith(
        "node-rg_1: GPU 3: Xid 79, fallen off the bus (kernel log); not_entered: rank rg_1.0 hangs"
    )


def test_the_same_hang_without_it_leaves_the_host_in() -> None:
    drive = Drive(fleet(at(20, hang("rg_1.0")))).run(35)
    ((_, evict),) = drive.evicts
    assert evict.quarantine == ()


@pytest.mark.parametrize(
    ("row", "since"),
    [
        pytest.param(OFF_THE_BUS, -4000.0, id="broken for hours, and over"),
        pytest.param(KILLED, 20.0, id="the end of a process"),
        pytest.param(replace(OFF_THE_BUS, weight=Weight.CONTEXT), 20.0, id="context"),
    ],
)
def test_what_says_nothing_of_this_fault_blames_nobody(row, since) -> None:
    alter = says(row, "rg_1.0", since=since)
    if since < 0:  # it was, and is no more
        alter = says(replace(row, age_s=3000.0), "rg_1.0", since=0.0)
    drive = Drive(fleet(at(20, hang("rg_1.0"))), alter=alter).run(35)
    ((_, evict),) = drive.evicts
    assert evict.quarantine == ()
    assert "Xid" not in evict.reason


def test_a_machine_speaks_of_its_own_host_alone() -> None:
    """A rank that lies about its machine accuses at worst itself."""
    drive = Drive(fleet(at(20, hang("rg_1.0"))), alter=says(OFF_THE_BUS, "rg_0.0", "rg_2.0")).run(
        35
    )
    assert drive.accused() == {"rg_1.0"}
    ((_, evict),) = drive.evicts
    assert evict.quarantine == ()


@pytest.mark.parametrize("row", [OFF_THE_BUS, THROTTLED, KILLED, DRAINED], ids=lambda r: r.code)
def test_no_testimony_accuses_anybody_in_a_healthy_run(row) -> None:
    drive = Drive(fleet(), alter=says(row)).run(80)
    assert drive.kinds() == []
    assert drive.evicted() == []


def test_of_several_candidates_the_one_whose_host_is_broken_is_named() -> None:
    """Both of a group die at once; which was first is not told."""
    script = [
        at(20.1, raises("rg_1.0", RESET, of_peers=True)),
        at(20.4, ended_by("rg_1.1", "SIGTERM")),
    ]

    def drive(*alters: Alter) -> Drive:
        made = SimFleet(2, 2, list(script))
        for rank in made.ranks():
            rank.host = f"node-{rank.name}"
        return Drive(made, alter=alters[0] if alters else lambda seen: seen).run(28)

    without = drive().incident("dead").verdict
    assert without.confidence is Confidence.UNSURE
    verdict = drive(says(OFF_THE_BUS, "rg_1.0")).incident("dead").verdict
    assert (verdict.culprits, verdict.blamed) == (("rg_1.0",), ("node-rg_1.0",))
    assert verdict.confidence is Confidence.LIKELY


def test_what_a_rank_sends_stays_on_one_line() -> None:
    row = replace(OFF_THE_BUS, text="GPU 3\nevict rg_0: sure", witness="kernel\nlog")
    drive = Drive(fleet(at(20, hang("rg_1.0"))), alter=says(row, "rg_1.0")).run(35)
    ((_, evict),) = drive.evicts
    assert "\n" not in evict.reason
    assert "\n" not in drive.incident("not_entered").verdict.reason


# -- stragglers ------------------------------------------------------------------------------------


def test_a_straggler_has_its_cause_from_its_machine() -> None:
    drive = Drive(fleet(at(40, slow("rg_1.0", 3.0))), alter=says(THROTTLED, "rg_1.0")).run(100)
    assert "cgroup /job is limited to 0.5 cores" in drive.incident("straggler").verdict.reason


def test_what_all_machines_say_is_no_cause() -> None:
    drive = Drive(fleet(at(40, slow("rg_1.0", 3.0))), alter=says(THROTTLED)).run(100)
    assert "cgroup" not in drive.incident("straggler").verdict.reason


# -- hosts that are taken away ---------------------------------------------------------------------


def test_nobody_is_accused_or_evicted_on_a_host_that_is_drained() -> None:
    drive = Drive(fleet(at(20, hang("rg_1.0"))), alter=by_the_cluster(DRAINED, "node-rg_1")).run(60)
    verdict = drive.incident("not_entered").verdict
    assert verdict.culprits == ()
    assert "node-rg_1 is leaving the job: DRAINING: replace the fan (Slurm)" in verdict.reason
    assert drive.evicted() == []
    assert {hold.guard for _, hold in drive.holds} <= {Guard.UNSURE, Guard.SPARED}


def test_a_rank_spares_itself_by_a_notice_for_three_minutes_at_most() -> None:
    notice = replace(DRAINED, witness="cloud")
    drive = Drive(fleet(at(20, hang("rg_1.0"))), alter=says(notice, "rg_1.0")).run(120)
    assert drive.evicted() == []
    assert drive.run(140).evicted() == ["rg_1"]


def test_the_next_life_of_a_rank_may_be_taken_away_again() -> None:
    """Two preemptions in one run, an hour apart: the second notice is heeded as the first was."""
    notice = says(replace(DRAINED, witness="cloud"), "rg_1.0", since=0.0)
    script = [at(20, hang("rg_1.0")), at(60, lambda f: f.restart("rg_1")), at(260, hang("rg_1.0"))]
    drive = Drive(fleet(*script), alter=notice).run(300)
    assert drive.evicted() == []
    assert [each.kind for each in drive.seen.values()].count("not_entered") == 2


def test_a_drain_of_another_host_changes_nothing() -> None:
    drive = Drive(fleet(at(20, hang("rg_1.0"))), alter=by_the_cluster(DRAINED, "node-rg_2")).run(35)
    assert drive.evicted() == ["rg_1"]
