"""Observe mode: the fleet goes on as if nobody looked, and the record is full."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lightkeeper.monitor.decide.pipeline import Pipeline
from lightkeeper.monitor.decide.rules import Policy, PolicyAction
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Eviction, Guard
from lightkeeper.monitor.model.verdict import Kind, Severity
from tests.monitor.fleet import START_S, At, Drive, SimFleet, at, crash, hang, slow
from tests.monitor.shared_hosts import HostFleet

SCRIPT = [at(20, hang("rg_1.0")), at(40, slow("rg_2.0", 3.0)), at(90, crash("rg_3.0"))]
OBSERVE = KeeperConfig(observe=True)


def course(fleet: SimFleet, ticks: int) -> list[str]:
    """All that can be seen of a fleet, tick by tick."""
    return [repr(fleet.snapshot()) for _ in range(ticks)]


@pytest.mark.integration  # no processes, but 1 s of CPU
@pytest.mark.parametrize("seed", range(3))
def test_a_fleet_under_observe_mode_goes_on_byte_by_byte_as_without_a_monitor(seed) -> None:
    alone = course(SimFleet(4, 2, list(SCRIPT), noise=0.2, seed=seed), 150)
    seen: list[str] = []

    def noted(snapshot):
        plain = replace(snapshot, records={}, steps={})  # what the monitor asked for, beside it
        seen.append(repr(plain))
        return snapshot

    drive = Drive(SimFleet(4, 2, list(SCRIPT), noise=0.2, seed=seed), OBSERVE, alter=noted)
    drive.run(150)
    assert seen == alone
    assert any(hold.would for _, hold in drive.holds)


def observed(drive: Drive) -> list[tuple[float, str]]:
    return [(at_s, hold.would.group) for at_s, hold in drive.holds if hold.would]


def test_it_is_said_once_however_long_nobody_acts() -> None:
    drive = Drive(SimFleet(3, 1, [at(20, hang("rg_1.0"))]), OBSERVE).run(200)
    assert observed(drive) == [(27.0, "rg_1")]


def two_faults(**options) -> Drive:
    """A hang, mended by hand at 60 s, and another one elsewhere at 70 s."""
    script: list[At] = [
        at(20, hang("rg_1.0")), at(60, lambda fleet: fleet.restart("rg_1")),
        at(70, hang("rg_2.0")),
    ]  # fmt: skip
    return Drive(SimFleet(4, 1, script), KeeperConfig(observe=True, **options)).run(100)


def test_the_budget_of_what_would_have_been_is_used_up_as_it_would_have_been() -> None:
    assert observed(two_faults()) == [(27.0, "rg_1"), (80.0, "rg_2")]
    drive = two_faults(budget_per_hour=1)
    assert observed(drive) == [(27.0, "rg_1")]
    assert drive.holds[-1][1].guard is Guard.BUDGET
    assert drive.last.learned.evictions == {"rg_1": 1}
    drive = two_faults(cool_down_s=55.0)
    assert observed(drive) == [(27.0, "rg_1"), (82.0, "rg_2")]


def test_a_restarted_monitor_knows_what_it_would_have_done() -> None:
    fleet = SimFleet(3, 1, [at(20, hang("rg_1.0"))])
    before = Drive(fleet, OBSERVE).run(40)
    assert [incident.observed for incident in before.last.incidents] == [{"rg_1": START_S + 27}]
    after = Drive(fleet, OBSERVE, pipeline=Pipeline(OBSERVE, before.last.incidents))
    after.run(40)
    assert observed(after) == []
    assert after.last.learned.evictions == {"rg_1": 1}


def test_a_kind_that_is_only_observed_uses_up_nobody_elses_budget() -> None:
    actions = {
        **Policy().actions,
        **{(Kind.NOT_ENTERED, s): PolicyAction.OBSERVE for s in Severity},
    }
    config = KeeperConfig(budget_per_hour=1)
    fleet = HostFleet(4, 2, [])
    fleet.script = [at(20, hang("rg_1.0")), at(60, fleet.lose("host1")), at(61, crash("rg_3.1"))]
    drive = Drive(fleet, config, pipeline=Pipeline(config, policy=Policy(actions))).run(40)
    assert observed(drive) == [(27.0, "rg_1")]
    assert drive.evicts == []
    fleet.restart("rg_1")
    drive.run(60)
    assert all(isinstance(evict, Eviction) for _, evict in drive.evicts)
    assert drive.evicted()[:1] == ["rg_3"]
