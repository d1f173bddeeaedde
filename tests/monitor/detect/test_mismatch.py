"""Inconsistent collectives, on flight records that the pipeline asks for."""

from collections.abc import Callable
from typing import Any

import pytest

from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Guard
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.observation import Snapshot
from lightkeeper.monitor.model.verdict import Confidence
from lightkeeper.worker_server.wire import FlightRecord, RingEntry
from tests.changed import replace
from tests.monitor.fleet import Drive, Fault, SimFleet, at, crash, hang, mismatch
from tests.monitor.fleet.plain import PlainJob
from tests.monitor.fleet.told import Alter, unanswered, unregistered, without_records


@pytest.mark.parametrize(
    ("how", "fires_s"), [("op", 26.0), ("size", 26.0), ("abort", 23.0), ("extra", 28.0)]
)
def test_of_two_members_the_one_that_left_its_habit_goes_and_no_host_is_blamed(
    how, fires_s
) -> None:
    drive = Drive(SimFleet(2, 2, [at(20, mismatch("rg_1.1", how))])).run(36)
    incident = drive.incident("mismatch")
    assert incident.culprits == ("rg_1.1",)
    assert incident.signature == "mismatch:intra:all_reduce"
    assert drive.fired[incident.id] == fires_s
    assert drive.kinds() == ["mismatch"]
    assert [(evict.group, evict.quarantine) for _, evict in drive.evicts] == [("rg_1", ())]


def test_of_four_members_the_minority_is_wrong() -> None:
    drive = Drive(SimFleet(2, 4, [at(20, mismatch("rg_0.0", "size"))])).run(36)
    incident = drive.incident("mismatch")
    assert incident.culprits == ("rg_0.0",)
    assert incident.verdict.reason.startswith(
        "rank rg_0.0 calls all_reduce of 2000 float32 at train.py:42 where ranks rg_0.1, rg_0.2 "
        "and rg_0.3 call all_reduce of 1000 float32 at train.py:42"
    )


def records(change: Callable[[FlightRecord], dict[str, Any]], *ranks: str) -> Alter:
    """The flight records of these ranks, or of all, changed so; no others come."""

    def alter(snapshot: Snapshot) -> Snapshot:
        changed = {
            rank: replace(record, **change(record))
            for rank, record in snapshot.records.items()
            if isinstance(record, FlightRecord) and (not ranks or rank in ranks)
        }
        return replace(snapshot, records=changed)

    return alter


def across_groups(record: FlightRecord) -> dict[str, Any]:
    """Each rank all-reduces a shard of its own with its counterparts in the other groups."""
    shape = (10 + record.identity.group_rank,)
    shard = RingEntry("torchft", 1, "all_reduce", (shape,), enter_age_s=0.0)
    return {"ring": (*record.ring, shard)}


def test_ranks_of_one_group_may_differ_in_what_they_send_to_other_groups() -> None:
    drive = Drive(SimFleet(2, 2, [at(20, crash("rg_1.1"))]), alter=records(across_groups)).run(36)
    assert {incident.kind for incident in drive.seen.values()} == {"dead"}


def test_a_group_that_dies_and_claims_a_huge_world_costs_no_memory() -> None:
    def claim(snapshot: Snapshot) -> Snapshot:
        seen = []
        for each in snapshot.observations:
            who = replace(each.identity, world_size=1 << 40 if each.rank > "rg_1" else 2)
            seen.append(replace(each, identity=who, outcome=replace(each.outcome, identity=who)))
        unlisted = records(lambda _: {"members": {}})(snapshot)
        return replace(unlisted, observations=tuple(seen))

    drive = Drive(SimFleet(2, 2, [at(20, crash("rg_1.1"))]), alter=claim).run(36)
    assert {incident.kind for incident in drive.seen.values()} == {"dead"}


def test_the_same_mismatch_again_is_a_program_bug_and_its_group_is_kept_out() -> None:
    script = [at(20, mismatch("rg_1.1")), at(90, mismatch("rg_0.1"))]
    drive = Drive(SimFleet(2, 2, script)).run(120)
    assert drive.evicted() == ["rg_1", "rg_0"]
    assert drive.evicts[1][1].keep_out == ("rg_0",)
    assert "a fault of the program" in drive.evicts[1][1].reason


def test_of_two_members_without_a_past_nobody_is_accused_and_both_are_named() -> None:
    """Only the last call is left of their records, and other groups have none."""
    forgotten = records(lambda record: {"ring": record.ring[-1:]}, "rg_1.0", "rg_1.1")
    drive = Drive(SimFleet(2, 2, [at(20, mismatch("rg_1.1"))]), alter=forgotten).run(36)
    incident = drive.incident("mismatch")
    assert incident.verdict.confidence is Confidence.UNSURE
    assert incident.candidates == ("rg_1.0", "rg_1.1")
    assert "cannot tell which of them is wrong" in incident.verdict.reason
    assert not drive.evicts
    assert [hold.guard for _, hold in drive.holds] == [Guard.UNSURE]


def test_without_flight_records_nobody_is_accused() -> None:
    script = [at(20, mismatch("rg_1.1"))]
    assert not Drive(SimFleet(2, 2, script), alter=without_records).run(36).seen


def test_a_healthy_fleet_is_asked_for_flight_records_by_samples_only() -> None:
    drive = Drive(SimFleet(2, 2, noise=0.3), KeeperConfig()).run(200)
    asked = [r.wants_records for r in drive.results if r.wants_records]
    assert asked == [("rg_1.0", "rg_1.1"), ("rg_0.0", "rg_0.1")] * 7


def test_an_extra_call_of_which_no_past_is_known_is_told_and_accuses_nobody() -> None:
    forgotten = records(lambda record: {"ring": record.ring[-1:]}, "rg_1.0", "rg_1.1")
    drive = Drive(SimFleet(2, 2, [at(20, mismatch("rg_1.1", "extra"))]), alter=forgotten).run(36)
    incident = drive.incident("mismatch")
    assert incident.candidates == ("rg_1.0", "rg_1.1")
    assert "cannot tell whether the call is extra or was skipped" in incident.verdict.reason
    assert not drive.evicts


@pytest.mark.parametrize(
    ("alter", "accused"),
    [
        (unanswered("job.3"), {"job.1"}),
        (unregistered("job.3"), {"job.1"}),
        (unanswered("job.2", "job.3"), set()),
    ],
    ids=["one does not answer", "one is not registered", "two of five do not answer"],
)
def test_those_that_are_seen_decide_and_who_cannot_be_seen_is_not_accused(alter, accused) -> None:
    """Two of five are no majority."""
    job = PlainJob(5, (20, lambda job: job.call(1, "all_gather", site="train.py:30")))
    drive = Drive(job, alter=alter).run(60)
    assert drive.accused() == accused
    assert drive.kinds() == ["mismatch"]


def test_records_are_asked_of_the_group_alone() -> None:
    config = KeeperConfig(observe=True, sample_s=0)
    drive = Drive(SimFleet(3, 2, [at(20, mismatch("rg_1.1"))]), config).run(30)
    asked = next(result.wants_records for result in drive.results if result.wants_records)
    assert asked == ("rg_1.0", "rg_1.1")


# -- mismatches that hang nothing ------------------------------------------------------------

OFTEN = KeeperConfig(sample_s=5)
"""The ring of these fleets holds 40 calls, some 6 s."""


def test_the_same_bytes_as_another_type_are_found_within_a_sample_and_evict_nobody() -> None:
    drive = Drive(SimFleet(2, 2, [at(40, mismatch("rg_1.1", "dtype"))]), OFTEN).run(70)
    (incident,) = drive.seen.values()
    assert (incident.kind, incident.culprits) == ("mismatch", ("rg_1.1",))
    assert 40 < drive.fired[incident.id] <= 48
    assert drive.evicts == []
    assert {hold.guard for _, hold in drive.holds} == {Guard.SPARED}
    assert incident.resolution == "not seen any more"


def test_records_that_turn_over_in_less_than_a_sample_are_read_before_that(monkeypatch) -> None:
    """FSDP2 calls a dozen collectives a step."""
    monkeypatch.setattr(
        "lightkeeper.monitor.detect.history.RING_CALLS", 64
    )  # as many as theirs: 10 s
    calm = Drive(SimFleet(2, 2, noise=0.3), KeeperConfig()).run(100)
    asked = [r.wants_records for r in calm.results if r.wants_records]
    assert 8 <= asked.count(("rg_1.0", "rg_1.1")) <= 10  # never more often than every 10 s

    fault = at(43, mismatch("rg_1.1", "dtype"))
    drive = Drive(SimFleet(2, 2, [fault]), KeeperConfig()).run(70)
    assert drive.incident("mismatch").culprits == ("rg_1.1",)
    assert drive.evicts == []


def spoils_the_sum(rank: str) -> Fault:
    """Integers for floats: every part is finite, and the sum of the group is not."""

    def do(fleet: SimFleet) -> None:
        mismatch(rank, "dtype")(fleet)
        for member in fleet.groups[fleet.rank(rank).group]:
            fleet._spoil(member, "group")

    return do


def test_the_records_of_a_group_whose_sum_is_not_finite_are_read_at_once() -> None:
    drive = Drive(SimFleet(2, 2, [at(40, spoils_the_sum("rg_1.1"))])).run(60)
    incident = drive.incident("mismatch")
    assert incident.culprits == ("rg_1.1",)
    assert drive.fired[incident.id] <= 45.0
    assert drive.evicts == []


@pytest.mark.parametrize("wrong", [True, False])
def test_a_sample_of_which_one_record_took_4_s_is_judged_and_in_health_accuses_nobody(
    wrong: bool,
) -> None:
    """As on a starved host; in health it lacks the calls since it was requested."""
    rank, waits = RankName("rg_1.1"), []
    fleet = SimFleet(2, 2, [at(40, mismatch(rank, "dtype"))] * wrong)

    def late(shot: Snapshot) -> Snapshot:
        if rank in shot.records and not waits:
            waits.append((shot.now_s, shot.records[rank]))
        records = {name: record for name, record in shot.records.items() if name != rank}
        if not waits or shot.now_s < waits[0][0] + 4:
            return replace(shot, records=records)
        at_s, early = waits.pop()
        records[rank] = fleet._record(rank) if wrong else early
        return replace(shot, records=records, records_asked_s={rank: at_s})

    drive = Drive(fleet, OFTEN, alter=late).run(80)
    assert [incident.culprits for incident in drive.seen.values()] == [(rank,)] * wrong
    assert len(drive.fired) == wrong


def test_a_silent_mismatch_explains_no_hang_of_its_group() -> None:
    script = [at(40, mismatch("rg_1.1", "dtype")), at(46, hang("rg_1.0"))]
    drive = Drive(SimFleet(2, 2, script), OFTEN).run(70)
    assert {incident.kind for incident in drive.seen.values()} == {"mismatch", "not_entered"}
    assert drive.evicted() == ["rg_1"]


@pytest.mark.parametrize("began_s", [23, 24])
def test_a_sample_says_nothing_about_a_call_in_which_a_rank_still_waits(began_s) -> None:
    """Its peer may write a checkpoint, for which the rank waits at a new place."""
    drive = Drive(SimFleet(2, 2, [at(began_s, mismatch("rg_1.1", "extra"))]), OFTEN).run(40)
    signatures = [incident.signature for incident in drive.seen.values()]
    assert signatures == ["mismatch:intra:all_reduce"]


def test_sampling_can_be_switched_off() -> None:
    config = KeeperConfig(sample_s=0)
    drive = Drive(SimFleet(2, 2, [at(40, mismatch("rg_1.1", "dtype"))]), config).run(80)
    assert drive.seen == {}
    assert all(not result.wants_records for result in drive.results)


def test_a_record_from_before_a_death_is_read_again() -> None:
    drive = Drive(SimFleet(2, 2, [at(33, mismatch("rg_1.1", "abort"))])).run(60)
    incident = drive.incident("mismatch")
    assert incident.culprits == ("rg_1.1",)
