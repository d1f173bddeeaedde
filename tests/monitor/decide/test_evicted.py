"""When a group counts as evicted: out of the quorum and its processes gone, and not before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lightkeeper.monitor.decide.pipeline import Pipeline
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Accused, Eviction
from lightkeeper.monitor.model.incident import State
from lightkeeper.monitor.model.names import GroupName, IncidentId
from lightkeeper.monitor.model.observation import LighthouseAway, Snapshot
from lightkeeper.monitor.model.verdict import Kind
from tests.changed import replace
from tests.monitor.fleet import START_S, Drive, SimFleet, at, crash, hang, lighthouse_down, stop
from tests.monitor.journal.tape import Tape


def told(change: Callable[[Eviction], Eviction]) -> Callable[[Snapshot], Snapshot]:
    """What the evictor says, changed before the monitor hears it."""
    return lambda seen: replace(
        seen, evictions=tuple(change(eviction) for eviction in seen.evictions)
    )


def hung(alter: Callable[[Snapshot], Snapshot] = lambda seen: seen, **options) -> Drive:
    return Drive(SimFleet(3, 1, [at(20, hang("rg_1.0"))], **options), alter=alter)


def states(drive: Drive) -> list[str]:
    (incident,) = (
        candidate for candidate in drive.seen.values() if candidate.kind == "not_entered"
    )
    return [line.to for line in incident.story]


def test_it_is_resolved_when_both_are_seen() -> None:
    drive = hung().run(45)
    incident = drive.incident("not_entered")
    assert incident.state is State.RESOLVED
    assert (incident.resolution or "").startswith("evicted: left the quorum")
    assert states(drive).count("left_quorum") == 1


def test_gone_and_still_in_the_quorum_is_not_evicted() -> None:
    fleet = SimFleet(3, 1, [at(20, hang("rg_1.0"))], relaunch=False)
    fleet._leave = lambda group: None  # type: ignore[method-assign]
    drive = Drive(fleet).run(120)
    assert drive.fleet.evictions
    assert all(eviction.gone_s is not None for eviction in drive.fleet.evictions.values())
    assert drive.incident("not_entered").state is State.EVICTING


def test_left_and_its_process_alive_is_not_evicted_and_fails_at_its_deadline() -> None:
    """A stopped process: its heartbeat is dead, and it keeps its devices."""
    fleet = SimFleet(3, 1, [at(20, stop("rg_1.0"))])
    fleet.evictor_works = False
    drive = Drive(
        fleet, alter=told(lambda eviction: replace(eviction, left_quorum_s=eviction.asked_s + 5))
    ).run(60)
    incident = drive.incident("not_entered")
    assert incident.state is State.EVICTING
    assert incident.milestones.left_quorum_s is not None  # that much is seen, and said
    drive.run(60)
    assert "the eviction failed: nothing happened within its deadline" in [
        line.reason for line in drive.incident("not_entered").story
    ]


def test_a_host_out_of_sight_counts_with_its_heartbeat_dead_and_is_recorded_so() -> None:
    def unseen(eviction: Eviction) -> Eviction:
        return replace(eviction, gone_s=None, unseen_s=eviction.gone_s)

    incident = hung(told(unseen)).run(45).incident("not_entered")
    assert incident.state is State.RESOLVED
    assert (incident.resolution or "").endswith("after it was asked, host out of sight")


@pytest.mark.integration  # no processes, but 1 s of CPU
def test_without_a_new_quorum_it_stays_open_for_ten_minutes_and_holds_nobody_up() -> None:
    script = [at(20, hang("rg_1.0")), at(21, lighthouse_down(2000)), at(24, stop("rg_2.0"))]
    config = KeeperConfig(breaker_share=0.7)
    fleet = SimFleet(4, 1, script, relaunch=False)

    def unanswered(seen: Snapshot) -> Snapshot:
        return told(lambda eviction: replace(eviction, left_quorum_s=None))(seen)

    drive = Drive(fleet, config, alter=unanswered).run(100)
    assert sorted(drive.evicted()) == ["rg_1", "rg_2"]
    (first_s, _), (second_s, _) = drive.evicts
    assert second_s - first_s <= 3
    assert {
        incident.state for incident in drive.seen.values() if incident.kind == "not_entered"
    } == {State.EVICTING}
    drive.run(600)
    assert {
        incident.resolution for incident in drive.seen.values() if incident.kind == "not_entered"
    } == {"evicted: all its processes are gone; no quorum was formed since"}


def test_while_the_lighthouse_is_away_it_waits_for_its_word_though_the_deadline_passes() -> None:
    drive = hung(relaunch=False).run(28)
    away = LighthouseAway("connection refused")
    drive.alter = lambda seen: told(lambda eviction: replace(eviction, left_quorum_s=None))(
        replace(seen, lighthouse=away)
    )
    drive.run(150)
    assert drive.incident("not_entered").state is State.EVICTING
    drive.alter = lambda seen: seen
    drive.run(3)
    incident = drive.incident("not_entered")
    assert incident.state is State.RESOLVED
    assert (incident.milestones.left_quorum_s or 0.0) > START_S


def put_out_by_hand(seen: Snapshot) -> Snapshot:
    """A person evicted rg_1 at 20 s."""
    asked_s = seen.now_s if seen.tick < 20 else seen.now_s - (seen.tick - 20)
    eviction = Eviction(IncidentId("by_hand-1"), GroupName("rg_1"), None, asked_s, author="ann")
    return replace(seen, evictions=(*seen.evictions, eviction)) if seen.tick >= 20 else seen


def test_a_group_that_a_person_put_out_is_not_accused_of_its_death() -> None:
    fleet = SimFleet(3, 1, [at(21, crash("rg_1.0"))], relaunch=False)
    seen = Drive(fleet, alter=put_out_by_hand).run(60).seen
    assert {incident.kind for incident in seen.values()} == {Kind.BY_HAND}
    again = SimFleet(3, 1, [at(21, crash("rg_1.0"))], relaunch=False)
    assert {incident.kind for incident in Drive(again).run(60).seen.values()} == {Kind.DEAD}


def test_nor_by_a_monitor_that_begins_after_that() -> None:
    fleet = SimFleet(3, 1, [at(21, crash("rg_1.0"))], relaunch=False)
    Drive(fleet, alter=put_out_by_hand).run(22)
    who = fleet.rank("rg_1.0").identity
    put_out = Eviction(
        IncidentId("by_hand-1"), GroupName("rg_1"), None, fleet.now_s - 2, author="ann",
        accused=(Accused(who.rank, who.incarnation),),
    )  # fmt: skip
    after = Pipeline(KeeperConfig(), evictions=(put_out,))
    assert not Drive(fleet, pipeline=after).run(40).fired


@pytest.mark.integration  # no processes, but 1 s of CPU
def test_a_group_that_was_put_out_and_stays_out_is_not_accused_of_being_dead() -> None:
    drive = Drive(SimFleet(3, 1, [at(20, hang("rg_1.0"))], relaunch=False)).run(700)
    assert [drive.seen[key].kind for key in drive.fired] == ["not_entered"]


def test_a_verdict_that_was_acted_on_stands_and_a_replay_says_the_same() -> None:
    """Our SIGKILL on its way shows a stopped process running: no cause of what was before."""
    drive = Drive(SimFleet(3, 1, [at(20, stop("rg_1.0"))]))
    drive.fleet.evictor_works = False
    drive.pipeline = tape = Tape(drive.pipeline, drive.config)  # type: ignore[assignment]
    while not drive.evicts:
        drive.step()
    decided_on = drive.incident("not_entered")
    assert "is stopped by a signal (state T)" in decided_on.verdict.reason
    rank = drive.fleet.rank("rg_1.0")
    rank.stopped, rank.gil_since_s = False, drive.fleet.now_s - 60
    drive.run(5)
    incident = drive.incident("not_entered")
    assert incident.state is State.EVICTING
    assert incident.last_seen_s > decided_on.last_seen_s
    names = ("reason", "brief", "evidence", "confidence", "since_s", "signature")
    assert [getattr(incident.verdict, name) for name in names] == [
        getattr(decided_on.verdict, name) for name in names
    ]
    assert incident.culprits == decided_on.culprits
    tape.check(all_files=True)
