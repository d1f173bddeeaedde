"""Incidents over ticks and over restarts of the monitor."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightkeeper.monitor.decide.pipeline import Pipeline
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import EvictionState, Guard
from lightkeeper.monitor.model.incident import State, incident_from_json, incident_to_json
from lightkeeper.monitor.model.verdict import Kind
from tests.changed import replace
from tests.monitor.fleet import Drive, SimFleet, at, crash, hang, mismatch, slow


def restarted(drive: Drive, *, evictions=True) -> Drive:
    """The same fleet under a monitor that knows only what its store kept, through JSON."""
    kept = [incident_from_json(json.loads(json.dumps(incident_to_json(i))))
            for i in drive.last.incidents]  # fmt: skip
    past = tuple(drive.fleet.evictions.values()) if evictions else ()
    return Drive(drive.fleet, drive.config, pipeline=Pipeline(drive.config, kept, past))


@pytest.mark.parametrize(
    "script",
    [
        pytest.param([at(20, hang("rg_1.1"))], id="hang"),
        pytest.param([at(20, crash("rg_1.1"))], id="death"),
        pytest.param([at(20, mismatch("rg_1.1"))], id="mismatch"),
        pytest.param([at(40, slow("rg_1.1", 3.0))], id="straggler"),
    ],
)
def test_an_incident_survives_json_whole(script) -> None:
    drive = Drive(SimFleet(2, 2, script)).run(int(script[0].at_s) + 40)
    assert drive.fired
    for incident in drive.seen.values():
        assert incident_from_json(json.loads(json.dumps(incident_to_json(incident)))) == incident


def test_json_that_is_no_incident_names_the_key() -> None:
    drive = Drive(SimFleet(2, 2, [at(20, hang("rg_1.1"))])).run(30)
    data = incident_to_json(drive.incident("not_entered"))
    with pytest.raises(ValueError, match="missing required field `culprits`"):
        incident_from_json({key: value for key, value in data.items() if key != "culprits"})
    with pytest.raises(ValueError, match="Invalid enum value 'lost'"):
        incident_from_json(data | {"state": "lost"})


@given(st.dictionaries(st.text(max_size=9), st.none() | st.integers() | st.text()) | st.none())
def test_any_other_json_raises_only_a_value_error(data) -> None:
    with pytest.raises(ValueError, match=r"Expected|missing"):
        incident_from_json(data)


@pytest.mark.parametrize(
    ("at_s", "state"), [(27, State.PENDING), (30, State.FIRING)], ids=["pending", "firing"]
)
def test_a_restarted_monitor_continues_the_same_incident(at_s, state) -> None:
    before = Drive(SimFleet(3, 1, [at(20, hang("rg_1.0"))]), KeeperConfig(observe=True)).run(at_s)
    assert [i.state for i in before.last.incidents] == [state]
    after = restarted(before).run(20)
    assert [i.id for i in after.last.incidents] == [i.id for i in before.last.incidents]
    assert after.last.incidents[0].state is State.FIRING


def under_eviction() -> Drive:
    drive = Drive(SimFleet(3, 1, [at(20, hang("rg_1.0"))]))
    drive.fleet.evictor_works = False
    drive.run(30)
    assert drive.incident("not_entered").state is State.EVICTING
    return drive


def test_an_eviction_cut_short_by_a_restart_is_asked_again_for_the_same_incident() -> None:
    before = under_eviction()
    after = restarted(before)
    after.fleet.evictions.clear()
    after.fleet.evictor_works = True
    after.run(40)
    assert [evict.incident_id for _, evict in after.evicts] == list(before.seen)
    assert after.incident("not_entered").state is State.RESOLVED
    assert len(after.last.incidents) == 1


def test_to_ask_again_after_restarts_is_the_same_eviction_in_budget_and_cool_down() -> None:
    drive = Drive(SimFleet(3, 1, [at(20, hang("rg_1.0"))]), KeeperConfig(budget_per_hour=1))
    fleet, evict = drive.fleet, drive.fleet.evict
    fleet.evictor_works = False
    drive.run(30)
    (decided_s,) = [eviction.asked_s for eviction in fleet.evictions.values()]

    def go_on(decision) -> None:
        evict(decision)
        for key, eviction in fleet.evictions.items():
            fleet.evictions[key] = replace(eviction, decided_s=decided_s, attempt=2)

    fleet.evict = go_on
    for _ in range(3):
        drive = restarted(drive)
        drive.fleet.evictions.clear()
        drive.run(15)
        assert [evict.group for _, evict in drive.evicts] == ["rg_1"]
        assert len(drive.pipeline._past) == 1
    drive.fleet.evictor_works = True
    drive.run(40)
    assert drive.incident("not_entered").state is State.RESOLVED
    assert len(drive.pipeline._past) == 1


def test_an_earlier_abandoned_eviction_does_not_explain_one_cut_short_by_a_restart() -> None:
    before = under_eviction()
    ((key, eviction),) = before.fleet.evictions.items()
    earlier = replace(
        eviction,
        asked_s=eviction.asked_s - 5,
        failed="abandoned: not seen",
        ended_s=eviction.asked_s,
        state=EvictionState.ABANDONED,
    )
    before.fleet.evictions = {"earlier": earlier, key: eviction}
    after = restarted(before)
    after.fleet.evictions = {"earlier": earlier}
    after.fleet.evictor_works = True
    after.step()
    (incident,) = after.last.incidents
    assert incident.state is State.FIRING
    assert incident.story[-1].reason.startswith("the eviction was cut short by a restart")


def test_a_decision_that_nobody_took_up_counts_once_when_it_is_decided_again() -> None:
    drive = Drive(SimFleet(3, 1, [at(20, hang("rg_1.0"))]), KeeperConfig(budget_per_hour=1))
    drive.fleet.evict = lambda decision: None  # the disk does not take it
    drive.run(60)
    assert len(drive.evicts) >= 3
    assert drive.pipeline._past == []


def test_a_standby_goes_on_where_the_active_one_was() -> None:
    fleet = SimFleet(3, 1, [at(20, hang("rg_1.0"))])
    active = Drive(fleet, KeeperConfig(budget_per_hour=1))
    standby = Pipeline(active.config)
    standby.go_on((), ())
    fleet.evictor_works = False
    for _ in range(30):
        active.step()
        standby.tick(fleet.snapshot())
        standby.go_on(active.last.incidents, tuple(fleet.evictions.values()))
    (incident,) = active.last.incidents
    assert incident.state is State.EVICTING
    standby.go_on(active.last.incidents, tuple(fleet.evictions.values()))
    fleet.evictions.clear()  # its evictor died with it
    fleet.run_to(fleet.now_s + 1.0)
    first = standby.tick(fleet.snapshot())
    assert [decision.incident_id for decision in first.decisions] == [incident.id]
    assert [(later.id, later.state) for later in first.incidents] == [(incident.id, State.FIRING)]
    assert len(standby._past) == 1


def test_an_eviction_that_took_effect_while_the_monitor_was_away_is_finished() -> None:
    before = under_eviction()
    before.fleet.evictions.clear()
    before.fleet.restart("rg_1")
    after = restarted(before).run(40)
    assert not after.evicts
    (incident,) = after.last.incidents
    assert incident.state is State.RESOLVED
    assert incident.resolution.startswith("evicted: left the quorum")
    assert incident.milestones.rejoined_s is not None


@pytest.mark.parametrize("stored", [State.EVICTING, State.FIRING], ids=str)
def test_a_kill_that_struck_just_before_the_restart_is_no_second_fault(stored) -> None:
    # The eviction is on disk before it is carried out; the incident may lag behind it.
    script = [at(20, hang("rg_1.0")), at(30.5, crash("rg_1.0"))]
    before = Drive(SimFleet(3, 1, script))
    before.fleet.evictor_works = False
    before.run(30)
    assert before.incident("not_entered").state is State.EVICTING
    for key, progress in before.fleet.evictions.items():
        before.fleet.evictions[key] = replace(
            progress, failed="interrupted by a restart", state=EvictionState.FAILED
        )
    after = restarted(before)
    if stored is State.FIRING:
        (lagging,) = before.results[-3].incidents
        assert lagging.state is State.FIRING
        after.pipeline = Pipeline(before.config, [lagging], [*before.fleet.evictions.values()])
    after.run(12)
    after.fleet.restart("rg_1")
    (incident,) = after.run(20).last.incidents
    assert not after.evicts
    assert incident.kind is Kind.NOT_ENTERED
    assert incident.state is State.RESOLVED
    assert incident.resolution == "evicted: left the quorum 9.0 s after it was asked"
    assert incident.milestones.rejoined_s is not None


def test_a_failed_eviction_fires_again_and_is_asked_again_after_the_cool_down() -> None:
    drive = Drive(SimFleet(3, 1, [at(20, hang("rg_1.0"))]), KeeperConfig(eviction_deadline_s=10.0))
    drive.fleet.evictor_works = False
    drive.run(70)
    assert [at_s for at_s, _ in drive.evicts] == [27.0, 47.0, 67.0]
    assert [h.guard for _, h in drive.holds] == [Guard.COOL_DOWN, Guard.COOL_DOWN]


def test_an_evicted_group_is_not_accused_again_before_it_commits() -> None:
    drive = Drive(SimFleet(3, 1, [at(20, hang("rg_1.0")), at(35.5, crash("rg_1.0"))])).run(60)
    assert len(drive.seen) == 1


def test_a_fault_after_the_return_is_a_new_incident() -> None:
    drive = Drive(SimFleet(3, 1, [at(20, hang("rg_1.0")), at(60, hang("rg_1.0"))])).run(90)
    assert len(drive.fired) == 2
    assert drive.evicted() == ["rg_1", "rg_1"]


def test_resolved_incidents_are_forgotten_after_an_hour() -> None:
    config = KeeperConfig(keep_resolved_s=60.0)
    drive = Drive(SimFleet(3, 1, [at(20, hang("rg_1.0"))]), config).run(120)
    assert drive.fired
    assert drive.last.incidents == ()
