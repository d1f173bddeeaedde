"""What one tick promises, whatever happens in it."""

import math
from dataclasses import replace

from lightkeeper.monitor.decide.pipeline import Pipeline
from lightkeeper.monitor.detect.detectors import DETECTORS, Detector
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.observation import LighthouseAway, Snapshot
from lightkeeper.monitor.model.verdict import Kind, RankHealth
from tests.monitor.fleet import Drive, SimFleet, at, hang, restart


def crashing(kind: Kind, after_ticks: int = 0) -> tuple[Detector, ...]:
    """The real detectors, of which one crashes."""
    ticks = 0

    def look(history, graph):
        nonlocal ticks
        ticks += 1
        if ticks > after_ticks:
            raise ZeroDivisionError("a bug")
        return real.look(history, graph)

    real = next(detector for detector in DETECTORS if detector.kind is kind)
    return tuple(replace(d, look=look) if d is real else d for d in DETECTORS)


def test_a_crashed_detector_is_named_and_the_others_go_on() -> None:
    config = KeeperConfig()
    pipeline = Pipeline(config, detectors=crashing(Kind.DEAD))
    fleet = SimFleet(3, 1, [at(20, hang("rg_1.0"))])
    drive = Drive(fleet, config, pipeline=pipeline, may_crash=True).run(40)
    assert drive.evicted() == ["rg_1"]
    assert drive.last.detector_failures == {"dead": "ZeroDivisionError: a bug"}


def test_a_crashed_detector_means_unknown_its_incident_neither_ends_nor_acts() -> None:
    config = KeeperConfig()
    pipeline = Pipeline(config, detectors=crashing(Kind.NOT_ENTERED, after_ticks=27))
    fleet = SimFleet(3, 1, [at(20, hang("rg_1.0"))])
    drive = Drive(fleet, config, pipeline=pipeline, may_crash=True).run(60)
    states = [i.state for i in drive.last.incidents if i.kind is Kind.NOT_ENTERED]
    assert states == ["pending"]
    assert not drive.evicts


def test_an_empty_fleet_is_well() -> None:
    away = LighthouseAway("none configured")
    result = Pipeline(KeeperConfig()).tick(Snapshot(1.0, 1, 0.0, (), away))
    assert (result.verdicts, result.rank_health, result.detector_failures) == ((), {}, {})


def test_a_hold_is_said_once_while_it_stays_the_same() -> None:
    config = KeeperConfig(observe=True)
    drive = Drive(SimFleet(3, 1, [at(20, hang("rg_1.0"))]), config).run(100)
    assert len(drive.holds) == 1


def test_an_incident_is_reported_as_changed_only_when_its_story_goes_on() -> None:
    config = KeeperConfig(observe=True)
    drive = Drive(SimFleet(3, 1, [at(20, hang("rg_1.0"))]), config).run(100)
    assert sum(len(result.changed) for result in drive.results) == 2  # pending, firing


def test_a_look_is_asked_for_when_a_hang_is_due_and_soon_after_it_was_first_seen() -> None:
    drive = Drive(SimFleet(3, 1, [at(20, hang("rg_1.0"))])).run(40)
    first = next(n for n, result in enumerate(drive.results) if result.changed)
    before, seen, settled = drive.results[first - 1 : first + 2]
    assert before.now_s < before.look_again_s <= seen.now_s + 0.1
    assert 0 < seen.look_again_s - seen.now_s < 0.5
    assert [incident.state for incident in settled.changed] == ["firing"]
    assert all(result.look_again_s == math.inf for result in drive.results[: first - 5])


def test_a_decision_that_nobody_takes_up_is_made_again() -> None:
    config = KeeperConfig(eviction_ack_s=10.0, cool_down_s=0.0)
    drive = Drive(SimFleet(3, 1, [at(20, hang("rg_1.0"))]), config)
    drive.fleet.evict = lambda decision: None
    drive.run(45)
    assert [at_s for at_s, _ in drive.evicts] == [27.0, 38.0]


def test_the_same_snapshots_give_the_same_results() -> None:
    def results():
        fleet = SimFleet(2, 2, [at(20, hang("rg_1.1"))], noise=0.3, seed=5)
        return Drive(fleet).run(60).results

    assert results() == results()


def test_a_restarted_rank_is_starting_until_its_third_commit() -> None:
    drive = Drive(SimFleet(3, 1, [at(20, restart("rg_1"))]))
    seen = [result.rank_health["rg_1.0"] for result in drive.run(40).results]
    assert seen[25] is RankHealth.STARTING
    assert seen[-1] is RankHealth.HEALTHY
