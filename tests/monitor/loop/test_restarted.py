"""Monitors one after the other over one store: what the next one knows of groups that are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lightkeeper.monitor.act.targets import Registry
from lightkeeper.monitor.act.testimonies import read_fact
from lightkeeper.monitor.decide.pipeline import Pipeline
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Eviction, Guard
from lightkeeper.monitor.model.incident import Incident
from lightkeeper.monitor.model.names import Host
from lightkeeper.monitor.model.observation import Failure, Observation, Snapshot, Unreachable
from lightkeeper.monitor.store.store import Store
from lightkeeper.worker_server import wire
from tests.changed import replace
from tests.monitor.fleet import (
    At,
    Drive,
    Fault,
    SimFleet,
    at,
    crash,
    leaves,
    restart,
    silent,
    unregister,
)

LEASE_S = 15.0
AWAY = Unreachable(Failure.TIMEOUT, "no answer")
RUNS = ("end runs", "its pod runs and its node is ready")
DONE = ("end exit Completed", "container train, Completed, exit code 0")


def said(fact: str, detail: str) -> wire.Testimony:
    made = read_fact("Kubernetes", fact, detail, 0.0)
    assert made is not None
    return made


@dataclass
class Monitors:
    """One monitor after the other beside a fleet; what they leave is in a store on disk."""

    fleet: SimFleet
    path: Path
    config: KeeperConfig = field(default_factory=KeeperConfig)
    schedulers: bool = True
    says: dict[str, wire.Testimony] = field(default_factory=dict)
    """Rank -> what its scheduler says once it is missing."""

    def __post_init__(self) -> None:
        self._start()

    def now_s(self) -> float:
        """As the clock of the registry."""
        return self.fleet.now_s

    def _start(self) -> None:
        self.store = Store(self.path)
        before = self.store.remembered()
        self.registry = Registry(self, self.store)  # type: ignore[arg-type]
        self.registry.restore(before.targets, next(iter(before.runs), None))
        pipeline = Pipeline(self.config, before.incidents, before.evictions)
        self.drive = Drive(self.fleet, self.config, pipeline=pipeline, alter=self._see)
        self.missing: set[str] = set()

    def _see(self, seen: Snapshot) -> Snapshot:
        self.registry.expire()
        there = {each.rank: each for each in seen.observations if each.report is not None}
        for each in there.values():
            if each.report.process.alive:
                self.registry.register(wire.Registration(each.identity, each.url, LEASE_S))
        polled = tuple(self._asked(there))
        reports = {each.rank: each.report for each in polled if each.report is not None}
        self.registry.heard(reports)
        observations, run = self.registry.current(polled)
        self.missing |= {each.rank for each in observations}
        self.missing -= reports.keys()
        ends = {rank: self.says[rank] for rank in self.missing & self.says.keys()}
        return replace(
            seen, observations=observations, run=run, schedulers=self.schedulers, ends=ends,
            evictions=tuple(map(self._by_scheduler, seen.evictions)),
        )  # fmt: skip

    @staticmethod
    def _by_scheduler(eviction: Eviction) -> Eviction:
        """All that these tests evict are lost."""
        host = Host(f"node-{eviction.group}")
        return replace(eviction, lost={host: True}, gone_s=None, unseen_s=eviction.gone_s)

    def _asked(self, there: dict[str, Observation]) -> Iterator[Observation]:
        for target in self.registry.targets():
            seen = there.get(target.rank)
            same = seen is not None and seen.identity.incarnation == target.identity.incarnation
            yield seen if same else Observation(target.identity, target.url, AWAY, 0.0)

    def run(self, ticks: int) -> Monitors:
        for _ in range(ticks):
            result = self.drive.step()
            self.store.save_incidents(result.changed)
            for eviction in self.fleet.evictions.values():
                self.store.save_decision(self._by_scheduler(eviction))
        return self

    def restart(self, away_s: float = 3.0) -> Monitors:
        """Killed, and started again after a while in which nobody watched."""
        self.store.close()
        self.fleet.run_to(self.fleet.now_s + away_s)
        self._start()
        return self

    def incidents(self) -> list[Incident]:
        """All that fired, by all monitors."""
        self.store.flush()
        rows = self.store.remembered().incidents
        return [row for row in rows if row.milestones.firing_s is not None]

    def kinds(self) -> list[str]:
        return sorted(str(incident.kind) for incident in self.incidents())


@pytest.fixture
def monitors(tmp_path: Path) -> Iterator[Callable[..., Monitors]]:
    made: list[Monitors] = []

    def make(*script: At, groups: int = 3, **more: object) -> Monitors:
        fleet = SimFleet(groups, 1, list(script))
        for rank in fleet.ranks():
            rank.host = f"node-{rank.group}"
        made.append(Monitors(fleet, tmp_path / "m.db", **more))
        return made[-1]

    yield make
    for each in made:
        with closing(each.store):
            pass


def lost(at_s: float = 20.0, for_s: float = 300.0) -> list[At]:
    """A host with one group is out of reach."""
    return [at(at_s, crash("rg_1.0")), at(at_s, silent("rg_1.0", for_s))]


def both(*faults: Fault) -> Fault:
    def do(fleet: SimFleet) -> None:
        for fault in faults:
            fault(fleet)

    return do


@pytest.mark.parametrize("at_tick", [21, 25, 30])
def test_a_group_lost_just_before_the_restart_is_brought_back_once(monitors, at_tick) -> None:
    """Nobody had said so before the restart."""
    seen = monitors(*lost(for_s=70.0), says={"rg_1.0": said(*RUNS)})
    seen.run(at_tick).restart().run(85)
    ((_, evict),) = seen.drive.evicts
    assert (evict.group, evict.lost) == ("rg_1", {"node-rg_1": True})
    began_s = at_tick - 1 + 3
    assert began_s + 30 <= seen.drive.evicts[0][0] <= began_s + 33
    (incident,) = seen.incidents()
    assert (incident.kind, incident.culprits) == ("dead", ("rg_1.0",))
    assert incident.milestones.rejoined_s is not None


def test_a_lost_host_that_the_last_monitor_told_needs_no_scheduler_that_can_be_asked(
    monitors,
) -> None:
    seen = monitors(*lost()).run(40)
    ((_, hold),) = seen.drive.holds
    assert hold.guard is Guard.ALREADY_GONE
    (before,) = seen.incidents()
    seen.restart().run(36)
    assert [incident.id for incident in seen.incidents()] == [before.id]
    assert seen.drive.evicted() == ["rg_1"]


def test_a_group_that_is_gone_and_not_back_is_told_where_nobody_can_bring_it_back(monitors) -> None:
    seen = monitors(*lost(), schedulers=False).run(25).restart().run(110)
    (incident,) = seen.incidents()
    assert (incident.kind, incident.culprits) == ("absent", ())
    assert incident.open
    assert "was there before this monitor began, and has not answered" in incident.verdict.reason
    assert "rg_1" in incident.remedy
    assert not seen.drive.evicts


def test_a_group_whose_death_was_told_is_missing_after_the_restart_too(monitors) -> None:
    """Its container took its WorkerServer along."""
    script = [at(20, crash("rg_1.0")), at(25, silent("rg_1.0", 300.0))]
    seen = monitors(*script, says={"rg_1.0": said("end exit Error", "exit code 1")})
    seen.run(30).restart().run(110)
    assert seen.kinds() == ["absent", "dead"]
    assert not seen.drive.evicts


def test_a_group_that_comes_back_in_time_is_not_told(monitors) -> None:
    script = [*lost(for_s=15.0), at(30, restart("rg_1"))]
    seen = monitors(*script, says={"rg_1.0": said(*RUNS)}).run(25).restart().run(150)
    assert seen.kinds() == []


def test_observe_mode_says_what_it_would_do(monitors) -> None:
    config = KeeperConfig(observe=True)
    seen = monitors(*lost(), says={"rg_1.0": said(*RUNS)}, config=config)
    seen.run(25).restart().run(45)
    (hold,) = [hold for _, hold in seen.drive.holds if hold.guard is Guard.OBSERVE]
    assert hold.would is not None
    assert hold.would.lost == {"node-rg_1": True}
    assert not seen.drive.evicts


def test_what_was_brought_back_before_the_restart_counts(monitors) -> None:
    config = KeeperConfig(budget_lost=1)
    script = [*lost(for_s=45.0), at(110, crash("rg_1.0")), at(110, silent("rg_1.0", 300.0))]
    seen = monitors(*script, says={"rg_1.0": said(*RUNS)}, config=config).run(100)
    assert seen.drive.evicted() == ["rg_1"]
    seen.run(14).restart().run(45)
    assert not seen.drive.evicts
    assert Guard.BUDGET in {hold.guard for _, hold in seen.drive.holds}


# -- nobody is accused -----------------------------------------------------------------------------


def test_a_group_that_had_done_its_work_is_not_missed(monitors) -> None:
    """The last monitor heard its end, and its WorkerServer is gone since."""
    script = [at(20, leaves("rg_1.0")), at(22, silent("rg_1.0", 300.0))]
    seen = monitors(*script, says={"rg_1.0": said(*RUNS)}).run(25).restart().run(110)
    assert seen.kinds() == []


@pytest.mark.parametrize(("says", "kinds"), [(DONE, []), (None, ["absent"])])
def test_a_group_that_ended_while_nobody_watched_is_not_accused(monitors, says, kinds) -> None:
    """By its scheduler it had done its work; without one a person may close the incident."""
    script = [at(22, both(leaves("rg_1.0"), silent("rg_1.0", 300.0)))]
    seen = monitors(*script, says={} if says is None else {"rg_1.0": said(*says)})
    seen.run(20).restart(10.0).run(110)
    assert seen.kinds() == kinds
    assert seen.drive.accused() == set()
    assert not seen.drive.evicts


def test_nobody_of_yesterdays_run_is_missed(monitors) -> None:
    """It ended as a whole in the night; today's job has one group less."""
    groups = ("rg_0", "rg_1", "rg_2")
    night = [fault for group in groups for fault in (crash(f"{group}.0"), unregister(group))]
    seen = monitors(at(30, both(*night)), says={"rg_2.0": said(*RUNS)}).run(20)
    fleet = seen.fleet
    today = {name: fleet.groups[name] for name in groups[:2]}

    def begin(fleet: SimFleet) -> None:
        fleet.groups = today
        for name in today:
            fleet.restart(name)

    fleet.script.append(at(4_010, begin))
    seen.restart(4_000.0).run(130)
    assert seen.drive.last.rank_health.keys() == {"rg_0.0", "rg_1.0"}
    assert seen.kinds() == []
    assert seen.drive.holds == []


def test_nobody_is_missed_before_anybody_of_his_time_is_heard(monitors) -> None:
    """Is it the monitor that hears nobody?"""
    fault = both(*(silent(f"rg_{n}.0", 300.0) for n in range(3)))
    seen = monitors(at(22, fault)).run(20).restart().run(120)
    assert seen.kinds() == ["unseen"]
