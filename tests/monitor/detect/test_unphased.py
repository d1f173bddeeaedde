"""Ranks that only attached, or whose steps a framework tells: heads point, records decide."""

import pytest
from msgspec import structs

from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.observation import Observation, Snapshot
from lightkeeper.monitor.model.verdict import Confidence
from lightkeeper.worker_server.wire import Doing
from tests.changed import replace
from tests.monitor.fleet import (
    Drive,
    SimFleet,
    at,
    cpu_stall,
    crash,
    gil,
    hang,
    mismatch,
    pause,
    shut_out,
    stands,
    stop,
)
from tests.monitor.fleet.plain import PlainJob
from tests.monitor.fleet.told import reports, without_records

DAY_S = 86_400.0


def attached(groups: int, size: int, *script, across: bool = True) -> SimFleet:
    """Ranks that attached and never report a step."""
    return SimFleet(groups, size, script, source=None, across=across)


@pytest.mark.parametrize(
    ("groups", "size", "culprit", "phase"),
    [
        (2, 2, "rg_1.1", "data"),
        (2, 2, "rg_1.1", "forward"),
        (2, 2, "rg_1.1", "backward"),
        (2, 2, "rg_0.0", "forward"),
        (1, 4, "rg_0.2", "forward"),
    ],
    ids=["data", "forward", "backward", "rank zero", "a plain job of one group"],
)
def test_a_hang_of_a_rank_that_only_attached_fires_32_s_after_it_on_its_groups_records(
    groups, size, culprit, phase
) -> None:
    fleet = attached(groups, size, at(20, hang(culprit, phase)), across=groups > 1)
    drive = Drive(fleet).run(55)
    incident = drive.incident("not_entered")
    assert incident.culprits == (culprit,)
    assert drive.fired[incident.id] <= 52.0
    evidence = incident.verdict.evidence
    assert evidence["source"] == "flight records, found by heads at 1 s polls"
    assert evidence["threshold"] == "30 s where no phase is declared"
    others = {rank.name for rank in fleet.ranks()} - {culprit}
    assert set(incident.verdict.victims) == others


def test_a_group_of_one_rank_is_missed_in_torchfts_own_group() -> None:
    drive = Drive(attached(3, 1, at(20, hang("rg_1.0")))).run(60)
    incident = drive.incident("not_entered")
    assert incident.culprits == ("rg_1.0",)
    assert incident.verdict.confidence is Confidence.LIKELY
    assert incident.verdict.evidence["source"] == "heads at 1 s polls"
    assert "hangs outside of any collective for" in incident.verdict.reason


def test_a_rank_that_has_not_asked_for_the_quorum_is_missed_there() -> None:
    script = [at(20, pause(["rg_1.0"], "other", DAY_S))]
    drive = Drive(SimFleet(3, 1, script, source="torchft")).run(60)
    incident = drive.incident("not_entered")
    assert incident.culprits == ("rg_1.0",)
    assert incident.verdict.victims == ("rg_0.0", "rg_2.0")


def test_where_no_wait_can_be_seen_nobody_is_accused() -> None:
    script = [at(20, hang("rg_1.0"))]
    assert not Drive(SimFleet(3, 1, script, source="torchft")).run(60).seen


def test_a_frameworks_phases_accuse_nobody_but_heads_and_records_do() -> None:
    script = [at(20, hang("rg_1.1", "backward"))]
    drive = Drive(SimFleet(2, 2, script, source="lightning")).run(60)
    incident = drive.incident("not_entered")
    assert incident.culprits == ("rg_1.1",)
    assert "flight records" in incident.verdict.evidence["source"]


@pytest.mark.parametrize(
    ("fault", "source"),
    [(stop, None), (gil, None), (stop, "lightning")],
    ids=["SIGSTOP", "GIL held", "whoever tells its steps"],
)
def test_a_process_that_cannot_run_is_named_by_the_operating_system(fault, source) -> None:
    fleet = SimFleet(2, 2, [at(20, fault("rg_1.1"))], source=source, across=True)
    incident = Drive(fleet).run(40).incident("not_entered")
    assert incident.culprits == ("rg_1.1",)
    assert incident.verdict.evidence["source"] == "the operating system's view of the process"


@pytest.mark.parametrize(
    ("fault", "kind"), [(mismatch("rg_1.1"), "mismatch"), (crash("rg_1.1"), "dead")]
)
def test_a_mismatch_or_a_death_needs_no_steps(fault, kind) -> None:
    drive = Drive(attached(2, 2, at(20, fault))).run(45)
    assert drive.incident(kind).culprits == ("rg_1.1",)


def test_without_records_it_is_told_later_and_nobody_is_evicted() -> None:
    drive = Drive(attached(2, 2, at(20, hang("rg_1.1"))), alter=without_records).run(120)
    incident = drive.incident("not_entered")
    assert drive.fired[incident.id] == 112.0
    assert incident.verdict.confidence is Confidence.UNSURE
    assert not drive.evicts


def test_healthy_ranks_that_only_attached_pass_in_silence() -> None:
    names = [f"rg_{group}.{rank}" for group in range(2) for rank in range(2)]
    script = [
        at(20, cpu_stall("rg_0.1", 3.0)),
        at(30, pause(names, "evaluation", 40.0)),
        at(80, pause(["rg_0.0", "rg_0.1"], "checkpoint", 25.0)),
    ]
    assert not Drive(attached(2, 2, *script)).run(130).seen


def test_a_pause_that_came_before_is_excused_without_phases_too() -> None:
    config = KeeperConfig(observe=True)
    script = [at(20 + 80 * n, pause(["rg_1.0"], "other", 40.0)) for n in range(3)]
    drive = Drive(attached(3, 1, *script), config).run(240)
    assert list(drive.fired.values()) == [52.0]


hidden = reports(lambda report: replace(report, heads=()))
"""Heads that show nothing: all collectives are C++'s own."""


def ddp(size: int, *script) -> SimFleet:
    """A job of one group whose collectives are all C++'s own, and whose optimizer counts steps."""
    return SimFleet(1, size, script, source="optimizer", across=False)


def test_a_peer_in_ddps_backward_is_said_to_stand_too_though_nothing_shows_that_it_waits() -> None:
    drive = Drive(ddp(2, at(20, stop("rg_0.1"))), alter=hidden).run(40)
    incident = drive.incident("not_entered")
    assert incident.culprits == ("rg_0.1",)
    assert "nobody is seen waiting for it, but rg_0.0 stands still as well" in (
        incident.verdict.reason
    )


@pytest.mark.parametrize("culprit", ["rg_0.0", "rg_0.2"])
def test_a_hang_that_no_head_shows_is_found_in_the_records_of_a_group_that_stands_still(
    culprit,
) -> None:
    drive = Drive(ddp(4, at(20, hang(culprit, "data"))), alter=hidden).run(60)
    incident = drive.incident("not_entered")
    assert incident.culprits == (culprit,)
    assert incident.verdict.victims == tuple(f"rg_0.{n}" for n in range(4) if culprit[-1] != f"{n}")
    evidence = incident.verdict.evidence
    assert evidence["source"] == "flight records, read because all of the group stood still"
    assert evidence["threshold"] == "30 s where no phase is declared"
    assert drive.fired[incident.id] <= 53.0


@pytest.mark.parametrize("alter", [lambda snapshot: snapshot, hidden], ids=["heads", "none"])
def test_different_calls_that_only_stacks_show_are_a_mismatch(alter) -> None:
    """DTensor calls from C++: no head moves, and no rank is alone."""

    def parts(job: PlainJob) -> None:
        for number in range(3):
            job.call(number, *(["all_gather"] if number == 0 else []), site=f"train.py:{number}")
            job.stand(number, "step", number, Doing.COLLECTIVE, "full_tensor")

    drive = Drive(PlainJob(3, (20, parts)), alter=alter).run(60)
    incident = drive.incident("mismatch")
    assert incident.culprits == ("job.0",)
    assert drive.accused() == {"job.0"}
    assert drive.fired[incident.id] <= 35.0


def test_who_is_missing_where_only_the_stacks_of_the_others_show_that_they_wait() -> None:
    def locks(job: PlainJob) -> None:
        job.stand(1, "flush", 22, Doing.LOCK, "acquire")
        for number in (0, 2):
            job.call(number)
            job.stand(number, "step", 7, Doing.COLLECTIVE, "full_tensor")

    drive = Drive(PlainJob(3, (20, locks)), alter=hidden).run(60)
    assert drive.accused() == {"job.1"}
    assert "flush (train.py:22)" in drive.incident("not_entered").verdict.reason


def test_a_long_save_of_all_that_stacks_show_is_no_fault() -> None:
    def saves(job: PlainJob) -> None:
        for number in range(3):
            job.stand(number, "save", 7, Doing.COLLECTIVE, "gather")

    assert not Drive(PlainJob(3, (20, saves)), alter=hidden).run(45).accused()


def test_a_group_is_read_whole_though_only_one_record_is_read_in_a_tick() -> None:
    """The first is due again before the last was read."""

    def few(snapshot: Snapshot) -> Snapshot:
        return replace(hidden(snapshot), records=dict(sorted(snapshot.records.items())[:1]))

    drive = Drive(ddp(12, at(20, hang("rg_0.11", "data"))), alter=few).run(70)
    assert drive.incident("not_entered").culprits == ("rg_0.11",)


def blind(snapshot: Snapshot) -> Snapshot:
    return without_records(hidden(snapshot))


EVERYBODY = [f"rg_0.{rank}" for rank in range(4)]


def test_who_calls_what_is_new_is_not_alone_in_it_while_the_others_are_kept() -> None:
    def save(job: PlainJob) -> None:
        for call in range(72):
            job.call(call % 3, size=8 + 8 * (call // 3 % 2), done=True)
        job.call(0, "barrier", site="train.py:31")
        job.stand(1, "save", 30, Doing.LOCK)
        job.stand(2, "save", 30, Doing.LOCK)

    assert Drive(PlainJob(3, (20.0, save))).run(60).accused() == {"job.1", "job.2"}


@pytest.mark.parametrize(
    ("fleet", "alter"),
    [
        pytest.param(
            attached(2, 2, at(20, hang("rg_1.1"))), hidden, id="a hang, and heads show nothing"
        ),
        pytest.param(
            ddp(4, at(20, hang("rg_0.2", "data"))), blind, id="a group that stands, and no records"
        ),
        pytest.param(
            ddp(4, at(20, pause(EVERYBODY, "other", 90.0)),
                at(130, pause(EVERYBODY[:1], "other", 20.0))),
            hidden, id="a pause of all",
        ),
    ],
)  # fmt: skip
def test_where_nothing_shows_who_is_missing_nobody_is_accused(fleet, alter) -> None:
    assert not Drive(fleet, alter=alter).run(160).seen


def test_a_pause_of_one_that_came_before_is_excused_though_no_head_shows_who_waits() -> None:
    script = [at(20 + 80 * n, pause(["rg_0.1"], "other", 40.0)) for n in range(3)]
    drive = Drive(ddp(4, *script), KeeperConfig(observe=True), alter=hidden).run(240)
    assert len(drive.fired) == 1


def asks_for_the_quorum(snapshot: Snapshot) -> Snapshot:
    """Who is in no quorum waits for TorchFT by gRPC, which no head shows, and knows the old one."""
    members = {member.replica_id for member in snapshot.lighthouse.members}

    def change(seen: Observation) -> Observation:
        report = seen.report
        if report is None or report.step is None or report.step.replica_id in members:
            return seen
        heads = tuple(
            structs.replace(h, held=0, enqueued=h.completed, unfinished=0) for h in report.heads
        )
        step = replace(report.step, quorum_id=1)
        return replace(seen, outcome=replace(report, heads=heads, step=step))

    return replace(snapshot, observations=tuple(change(seen) for seen in snapshot.observations))


def test_a_group_that_the_quorum_left_out_is_not_missed_in_it() -> None:
    script = [at(20, shut_out("rg_1")), at(60, hang("rg_2.0"))]
    fleet = SimFleet(3, 1, script, source="torchft", across=True)
    drive = Drive(fleet, alter=asks_for_the_quorum).run(110)
    assert {i.culprits for i in drive.seen.values() if i.kind == "not_entered"} == {("rg_2.0",)}
    assert drive.evicted() == ["rg_2"]


def test_who_hangs_in_a_quorum_without_another_hung_group_does_not_wait_for_that_one() -> None:
    """TorchFT's own join timeout has left rg_1 out; it beats, and stands where it stood."""
    script = [at(20, stands("rg_1.0", "fetch", 14)), at(28, shut_out("rg_1")),
              at(60, stands("rg_2.0", "train", 67))]  # fmt: skip
    drive = Drive(SimFleet(3, 1, script, source="torchft", across=True)).run(75)
    first = next(drive.seen[key] for key in drive.fired)
    assert (first.culprits, first.verdict.victims) == (("rg_2.0",), ("rg_0.0",))
