"""Every watched rank-second is effective, or lost for a cause: on the simulated fleet, with faults.

The fleet steps in 0.3 to 0.4 s, each commit counts; four groups of one rank.
"""

from __future__ import annotations

import random

import pytest

from lightkeeper.monitor.decide.pipeline import TickResult
from lightkeeper.monitor.decide.rank_seconds import RankSeconds, Spent, UsualPace
from lightkeeper.monitor.model.observation import Snapshot
from tests.changed import replace
from tests.deep import DEEP
from tests.monitor.fleet import (
    Drive,
    SimFleet,
    at,
    crash,
    fail_commits,
    hang,
    pause,
    restart,
    silent,
    slow,
    unregister,
)


class Watch:
    """A fleet, its pipeline and the book; what was spent after each tick."""

    def __init__(self, fleet: SimFleet, book: RankSeconds | None = None) -> None:
        self.fleet, self.book = fleet, book or RankSeconds()
        self.drive = Drive(fleet, alter=self._see)
        self.snapshot: Snapshot | None = None
        self.after: list[Spent] = []
        self.ranks: list[int] = []

    def _see(self, snapshot: Snapshot) -> Snapshot:
        self.snapshot = snapshot
        return snapshot

    def run(self, ticks: int) -> Watch:
        for _ in range(ticks):
            result = self.drive.step()
            assert self.snapshot is not None
            self.after.append(self.book.push(self.snapshot, result))
            self.ranks.append(len(self.snapshot.observations))
        return self

    @property
    def last(self) -> Spent:
        return self.after[-1]

    @property
    def total_s(self) -> float:
        return self.last.effective_s + sum(self.last.ineffective_s.values())

    def lost_s(self, cause: str) -> float:
        return self.last.ineffective_s.get(cause, 0.0)


def fleet(*script, groups: int = 4, world: int = 1, **more) -> SimFleet:
    return SimFleet(groups, world, list(script), **more)


def test_a_healthy_fleet_is_effective_but_for_its_first_steps():
    seen = Watch(fleet(noise=0.1)).run(120)
    assert set(seen.last.ineffective_s) == {"starting"}
    assert seen.lost_s("starting") < 4 * 2.0
    assert seen.last.effective_s > 0.94 * 4 * 118


def test_effective_and_lost_add_up_to_the_rank_seconds_watched():
    # at most the open attempt of each rank, and a minute without a cause, are not booked yet
    seen = Watch(fleet(at(60, hang("rg_1.0")))).run(130)
    assert seen.total_s == pytest.approx(4 * 129, abs=4 * 1.0)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        pytest.param(hang("rg_1.0"), "not_entered", id="hang"),
        pytest.param(crash("rg_1.0"), "dead", id="crash"),
    ],
)
def test_what_a_fault_costs_goes_to_its_kind_from_before_it_fired(fault, kind):
    seen = Watch(fleet(at(60, fault), world=2)).run(120)
    fired_s = seen.drive.incident(kind).milestones.firing_s
    assert fired_s is not None
    # everybody stood from the fault to the survivors' next commit, not only from the firing on
    survived_s = seen.drive.incident(kind).milestones.survivor_commit_s
    assert survived_s is not None
    stood_s = survived_s - seen.fleet.now_s + 119 - 60
    assert seen.lost_s(kind) >= 0.9 * 8 * (stood_s - 1.0)
    assert seen.lost_s("unexplained") == 0
    # then its own two ranks alone come back
    assert 0 < seen.lost_s("recovering") < 2 * 30
    # and all of it was lost to that incident
    incident = seen.drive.incident(kind)
    cost = seen.lost_s(kind) + seen.lost_s("recovering")
    assert seen.last.lost_to == {incident.id: pytest.approx(cost)}


def test_the_costs_of_the_latest_thousand_incidents_are_kept():
    seen = Watch(fleet(at(60, hang("rg_1.0")))).run(59)
    seen.book.lost_to = {f"older-{n}": 1.0 for n in range(1000)}
    seen.run(20)
    assert len(seen.last.lost_to) == 1000
    assert seen.last.lost_to[seen.drive.incident("not_entered").id] > 0
    assert "older-0" not in seen.last.lost_to


def test_a_loss_without_a_cause_waits_a_minute_and_is_then_unexplained():
    # one rank is three times as slow for a while: too short for a straggler
    seen = Watch(fleet(at(60, slow("rg_1.0", 1.8)), at(66, slow("rg_1.0", 1.0)))).run(100)
    assert seen.drive.fired == {}
    assert seen.lost_s("unexplained") == 0
    seen.run(40)
    assert 4 * 1.5 < seen.lost_s("unexplained") < 4 * 6


def test_a_slow_rank_costs_the_whole_fleet_what_it_is_slower_by():
    seen = Watch(fleet(at(60, slow("rg_1.0", 3.0)), noise=0.02)).run(82)
    (incident,) = seen.drive.fired
    assert seen.drive.seen[incident].kind == "straggler"
    # a step takes 0.8 s instead of 0.35 s: of the 21 s since then 11.8 are lost, of each rank
    assert seen.lost_s("straggler") == pytest.approx(4 * 11.8, rel=0.1)


def test_a_declared_pause_has_its_own_name_for_those_who_wait_for_it_too():
    seen = Watch(fleet(at(60, pause(["rg_1.0"], "checkpoint", 20.0)))).run(160)
    assert seen.lost_s("checkpoint") == pytest.approx(4 * 20, rel=0.05)
    assert seen.lost_s("unexplained") == 0


def test_failed_commits_are_named():
    seen = Watch(fleet(at(60, fail_commits(["rg_1"], 10.0)))).run(70)
    lost = {cause for cause, s in seen.last.ineffective_s.items() if s > 1.0}
    assert lost & {"failed_commit", "replica_lag"}


def test_a_restart_that_nobody_asked_for_is_a_start():
    seen = Watch(fleet(at(60, restart("rg_1")))).run(120)
    assert seen.drive.evicts == []
    assert 5 < seen.lost_s("starting") < 12 + 4 * 2


def test_a_rank_that_an_eviction_took_costs_until_it_is_back():
    gone = fleet(at(60, crash("rg_1.0")), relaunch=False)
    seen = Watch(gone).run(90)
    before = seen.lost_s("recovering")
    for rank in list(gone.groups.pop("rg_1")):
        gone.heartbeat_s.pop(rank.replica_id, None)
    seen.run(20)
    assert seen.ranks[-1] == 3
    assert seen.lost_s("recovering") + seen.lost_s("dead") - before >= 18


def test_who_leaves_without_a_fault_has_finished():
    seen = Watch(fleet(at(60, unregister("rg_1")))).run(120)
    assert seen.ranks[-1] == 3
    assert seen.lost_s("recovering") == 0
    assert seen.total_s == pytest.approx(4 * 60 + 3 * 59, abs=8)


def test_a_late_tick_is_settled_by_what_the_ranks_committed_meanwhile():
    late = fleet()
    late.late_ticks = [0.0] * 40 + [20.0]
    seen = Watch(late).run(80)
    assert seen.last.effective_s == pytest.approx(4 * (79 + 20), abs=4 * 2)


def test_what_nobody_watched_is_counted_for_nobody():
    late = fleet()
    late.late_ticks = [0.0] * 40 + [300.0]
    seen = Watch(late).run(80)
    assert seen.total_s == pytest.approx(4 * 79, abs=4 * 3)


def test_a_monitor_that_starts_anew_begins_with_nothing():
    job = fleet()
    Watch(job).run(60)
    seen = Watch(job)
    seen.drive.pipeline  # noqa: B018 - a new one: nothing is remembered
    seen.run(1)
    assert seen.total_s == 0
    seen.run(59)
    assert seen.total_s == pytest.approx(4 * 59, abs=4)
    assert seen.lost_s("starting") == 0


def test_who_does_not_answer_is_settled_by_its_own_counter_later():
    seen = Watch(fleet(at(60, silent("rg_1.0", 15.0)))).run(120)
    assert seen.total_s == pytest.approx(4 * 119, abs=4)
    assert sum(s for cause, s in seen.last.ineffective_s.items() if cause != "starting") < 2


def test_both_counters_only_grow():
    script = [at(40, slow("rg_2.0", 2.5)), at(80, crash("rg_1.0")), at(120, hang("rg_0.0"))]
    seen = Watch(fleet(*script, noise=0.1, seed=3)).run(180)
    for before, after in zip(seen.after, seen.after[1:], strict=False):
        assert after.effective_s >= before.effective_s
        for cause, seconds in before.ineffective_s.items():
            assert after.ineffective_s[cause] >= seconds


@pytest.mark.parametrize("seed", range(2 * DEEP))
def test_whatever_happens_no_second_is_counted_twice_and_none_is_missing_in_the_end(seed):
    chance = random.Random(seed)
    faults = [
        crash,
        hang,
        lambda rank: slow(rank, 2.5),
        lambda rank: silent(rank, 12.0),
        lambda rank: pause([rank], "checkpoint", 8.0),
        lambda rank: restart(rank.partition(".")[0]),
        lambda rank: fail_commits([rank.partition(".")[0]], 8.0),
    ]
    script = [
        at(at_s, chance.choice(faults)(f"rg_{chance.randrange(4)}.0")) for at_s in (30, 55, 80)
    ]
    seen = Watch(fleet(*script, noise=0.1, seed=seed)).run(90)
    assert seen.total_s <= 4 * 89 + 1e-6
    seen.run(80)
    # what waits: the open attempt of each rank, and the last minute's losses without a cause
    waits_s = sum(seen.book._untold.values())
    assert 4 * 169 - 4 * 2 <= seen.total_s + waits_s <= 4 * 169 + 1e-6


def test_a_tick_that_nobody_judged_loses_nothing():
    job, book = fleet(), RankSeconds()
    drive = Drive(job)
    for _ in range(20):
        result = drive.step()
        assert isinstance(result, TickResult)
    for _ in range(30):
        seen = job.snapshot()
        spent = book.push(seen, TickResult(seen.now_s))
    assert spent.effective_s == pytest.approx(4 * 29, abs=4)


def test_ranks_that_report_no_steps_are_left_out():
    job = fleet(source=None)
    seen = Watch(job).run(30)
    assert seen.total_s == 0


def test_the_same_rank_twice_as_another_process_starts_a_new_account():
    job = fleet()
    seen = Watch(job).run(30)
    assert seen.snapshot is not None
    first = seen.snapshot.observations[0]
    report = first.report
    assert report is not None
    assert report.step is not None
    other = replace(report.identity, incarnation="another")
    fewer = replace(report, identity=other, step=replace(report.step, commits=1))
    changed = replace(
        seen.snapshot,
        now_s=seen.snapshot.now_s + 1,
        observations=(replace(first, outcome=fewer), *seen.snapshot.observations[1:]),
    )
    before = seen.total_s
    after = seen.book.push(changed, TickResult(changed.now_s))
    assert after.ineffective_s["starting"] - seen.last.ineffective_s.get("starting", 0) >= 1
    assert after.effective_s + sum(after.ineffective_s.values()) - before <= 4 * 1.5


# -- the usual pace --------------------------------------------------------------------------------


def test_the_usual_pace_is_known_after_three_samples_and_takes_half_an_hour_to_change():
    usual = UsualPace()
    for second in range(2):
        usual.push(second, [0.4, 0.5, 0.6])
    assert usual.commit_s is None
    for second in range(2, 3600):
        usual.push(second, [0.4, 0.5, 0.6])
    assert usual.commit_s == 0.5
    changed = next(
        second
        for second in range(1, 7200)
        if usual.push(3600 + second, [1.0]) or usual.commit_s == 1.0
    )
    assert 1500 < changed < 2100
