"""Another policy between two ticks: from the next one on, and nothing that was seen is lost."""

from __future__ import annotations

from lightkeeper.monitor.decide.rules import Policy, PolicyAction
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Guard
from lightkeeper.monitor.model.observation import Pause
from lightkeeper.monitor.model.verdict import Kind, Severity
from tests.monitor.fleet import START_S, Drive, SimFleet, at, hang
from tests.monitor.shared_hosts import HostFleet

PAGES = Policy({**Policy().actions, **{(Kind.NOT_ENTERED, s): PolicyAction.PAGE for s in Severity}})


def driven(ticks: int, config: KeeperConfig, fleet: SimFleet | None = None) -> Drive:
    return Drive(fleet or SimFleet(3, 1, [at(20, hang("rg_1.0"))]), config).run(ticks)


def test_a_threshold_holds_from_the_next_tick_on() -> None:
    drive = driven(24, KeeperConfig(stall_floor_s=1000.0))
    drive.pipeline.reconfigure(KeeperConfig(), Policy())
    drive.run(10)
    assert drive.evicts[0][0] == 27.0  # as if it had always held: what was seen has stayed


def test_from_observing_to_acting_what_was_held_back_is_done() -> None:
    drive = driven(40, KeeperConfig(observe=True))
    assert [hold.guard for _, hold in drive.holds] == [Guard.OBSERVE]
    drive.pipeline.reconfigure(KeeperConfig(), Policy())
    drive.run(1)
    assert drive.evicted() == ["rg_1"]


def test_an_action_changes_what_is_done_about_a_fault_that_fires_already() -> None:
    drive = driven(26, KeeperConfig(observe=True))
    drive.pipeline.reconfigure(KeeperConfig(), PAGES)
    drive.run(10)
    assert drive.evicts == []
    assert drive.holds[-1][1].guard is Guard.POLICY


def test_a_pause_holds_until_it_is_over() -> None:
    fleet = HostFleet(3, 1, [at(20, hang("rg_1.0"))])
    fleet.pause = Pause("rack 7", "alice", START_S, START_S + 60)
    drive = driven(90, KeeperConfig(), fleet)
    assert [(at_s, hold.guard, hold.reason) for at_s, hold in drive.holds] == [
        (27.0, Guard.PAUSED, "paused by alice (rack 7): would evict rg_1")
    ]
    assert drive.holds[0][1].release == (
        "The pause ends at 1970-01-12T13:47:40Z. To end it now: lightkeeper resume. "
        "To evict it yourself: lightkeeper evict rg_1"
    )
    assert drive.evicts[0][0] == 60.0


def test_the_lighthouses_flag_is_remembered_while_its_page_does_not_name_it() -> None:
    fleet = HostFleet(3, 1, [at(20, hang("rg_1.0"))], lighthouse_min=3)
    drive = driven(10, KeeperConfig(), fleet)
    fleet.lighthouse_min = None
    drive.run(30)
    assert drive.last.learned.min_replicas == 3
    assert drive.holds[-1][1].reason == (
        "2 healthy groups would remain, at least 3 must (the Lighthouse's own --min_replicas)"
    )


def test_what_an_eviction_costs_is_learned_from_those_that_were() -> None:
    drive = driven(80, KeeperConfig())
    (marks,) = [incident.milestones for incident in drive.last.incidents]
    stall_s = marks.survivor_commit_s - marks.evict_asked_s
    away_s = marks.rejoined_s - marks.evict_asked_s
    learned = drive.last.learned
    assert learned.eviction_cost_s == stall_s + (away_s - stall_s) / 3
    assert learned.cost_evictions == 1


def test_a_group_that_hangs_again_where_it_was_is_kept_out_and_the_others_train_on() -> None:
    fleet = HostFleet(3, 1, [at(20, hang("rg_1.0")), at(80, hang("rg_1.0"))])
    drive = driven(160, KeeperConfig(), fleet)
    assert drive.evicted() == ["rg_1", "rg_1"]
    first, again = (evict for _, evict in drive.evicts)
    assert (first.keep_out, again.keep_out) == ((), ("rg_1",))
    assert not again.quarantine
    assert fleet.rank("rg_0.0").commits > 200
    assert "the same as once before: starting it again does not fix it" in again.reason
