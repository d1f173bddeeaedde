"""A monitor that is itself sick accuses nobody, and finds what is there when it is well again."""

from collections import Counter
from collections.abc import Mapping

import pytest

from lightkeeper.monitor.detect.self_health import MOST, Condition, Health, SelfHealth, scaled
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Guard
from lightkeeper.monitor.model.names import GroupName, Host, RankName, RunId
from lightkeeper.monitor.model.observation import (
    Failure,
    Observation,
    Snapshot,
    Unreachable,
    Vitals,
)
from lightkeeper.monitor.model.run import Run
from tests.changed import replace
from tests.monitor.fleet import START_S, At, Drive, SimFleet, at, hang, late, silent
from tests.monitor.fleet.told import Alter, observed


def tick(n: int = 0, lateness_s: float = 0.0, **vitals) -> Snapshot:
    fleet = SimFleet(5, 2)
    return replace(
        fleet.snapshot(), tick=n, now_s=START_S + n, lateness_s=lateness_s, vitals=Vitals(**vitals)
    )


def lose(seen: Snapshot, ranks: list[str]) -> Snapshot:
    gone = Unreachable(Failure.TIMEOUT, "no answer")
    return observed(
        lambda observation: (
            replace(observation, outcome=gone) if observation.rank in ranks else observation
        )
    )(seen)


def after_good_ticks() -> SelfHealth:
    """All ranks have answered once."""
    itself = SelfHealth(KeeperConfig())
    itself.push(tick(-1))
    return itself


def with_vitals(alter):
    """What a pipeline is shown, with the monitor's own vitals in it."""

    def show(seen: Snapshot) -> Snapshot:
        return replace(seen, vitals=alter(seen.now_s - START_S, seen.now_s))

    return show


# -- the score -----------------------------------------------------------------------------------

ALL = [f"rg_{g}.{i}" for g in range(5) for i in range(2)]
EVIDENCE = [
    ("well", tick(), Condition.WELL, 1, False),
    ("late at the limit", tick(lateness_s=2.0), Condition.WELL, 1, False),
    ("late", tick(lateness_s=2.1), Condition.LATE, 2, True),
    ("paused", tick(lateness_s=30.0), Condition.LATE, 4, True),
    ("two silent hosts", lose(tick(), ["rg_0.0", "rg_1.0"]), Condition.WELL, 1, False),
    ("30 % silent", lose(tick(), ["rg_0.0", "rg_1.0", "rg_2.0"]), Condition.CUT_OFF, 2, True),
    ("all silent", lose(tick(), ALL), Condition.CUT_OFF, 4, True),
    ("starved", tick(starved=0.6), Condition.STARVED, 2, False),
    ("disk full", tick(disk="disk is full"), Condition.CANNOT_WRITE, 1, True),
]


@pytest.mark.parametrize(
    ("seen", "state", "scale", "holds"), [c[1:] for c in EVIDENCE], ids=[c[0] for c in EVIDENCE]
)
def test_each_evidence_has_its_state_its_weight_and_its_hold(seen, state, scale, holds) -> None:
    health = after_good_ticks().push(seen)
    assert (health.state, health.scale, health.hold is not None) == (state, scale, holds)


def test_names_that_never_answered_are_no_sign_that_the_monitor_is_cut_off() -> None:
    """A fifth of such names, registered by one client, switched every eviction off."""
    never = lose(tick(), ["rg_0.0", "rg_1.0", "rg_2.0"])
    assert SelfHealth(KeeperConfig()).push(never) == Health()
    cut_off = SelfHealth(KeeperConfig()).push(lose(tick(), ALL))
    assert cut_off.state is Condition.CUT_OFF  # a monitor that begins without a network


def test_silent_targets_of_one_host_are_that_hosts_sickness() -> None:
    seen = replace(tick(), observations=tick().observations[:6])  # three groups of two
    assert SelfHealth(KeeperConfig()).push(lose(seen, ["rg_0.0", "rg_0.1"])) == Health()


def test_targets_that_answer_nonsense_are_heard_and_are_the_sick_ones() -> None:
    seen = lose(tick(), ALL)
    nonsense = Unreachable(Failure.GARBAGE, "no JSON")
    observations = tuple(
        replace(observation, outcome=nonsense) for observation in seen.observations
    )
    assert SelfHealth(KeeperConfig()).push(replace(seen, observations=observations)) == Health()


def test_the_score_rises_with_bad_ticks_is_bounded_and_decays_with_clean_ones() -> None:
    own = SelfHealth(KeeperConfig())
    scores = [own.push(tick(n, 5.0)).score for n in range(12)]
    assert scores[:4] == [1, 2, 3, 4]
    assert max(scores) == MOST
    healths = [own.push(tick(20 + n)) for n in range(MOST + 1)]
    assert [health.score for health in healths] == [6, 5, 4, 3, 2, 1, 0, 0]
    assert [str(health.state) for health in healths] == ["recovering"] * 6 + ["well"] * 2
    assert [health.hold is None for health in healths] == [False] * 6 + [True] * 2


def test_a_silence_that_lasts_still_holds_and_scales_no_more() -> None:
    own = after_good_ticks()
    seen = [own.push(lose(tick(n), ["rg_0.0", "rg_1.0", "rg_2.0"])) for n in range(60)]
    assert seen[20].scale == 1 + MOST
    assert (seen[-1].scale, seen[-1].state) == (1.0, Condition.CUT_OFF)
    assert seen[-1].hold is not None


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_a_clock_that_jumps_is_said_once(jump_s: float) -> None:
    own = SelfHealth(KeeperConfig())
    states = []
    for n in range(6):
        wall_s = START_S + n + (jump_s if n >= 3 else 0.0)
        states.append(str(own.push(tick(n, wall_s=wall_s)).state))
    assert states == ["well", "well", "well", "clock_jumped", "well", "well"]


def test_thresholds_scale_within_their_ranges() -> None:
    config = KeeperConfig(stall_floor_s=5.0, silent_s=80_000.0)
    assert scaled(config, 1.0) is config
    changed = scaled(config, 4.0)
    assert (changed.stall_floor_s, changed.stall_factor) == (20.0, 40.0)
    assert changed.silent_s == 86_400.0
    assert changed.min_replicas == config.min_replicas


# -- on the fleet: nobody is accused by it, and real faults are found afterwards -----------------


def lost(ranks: list[str], for_s: float) -> list[At]:
    return [at(15, silent(rank, for_s)) for rank in ranks]


def jumps(jump_s: float) -> Alter:
    return with_vitals(lambda at_s, now_s: Vitals(wall_s=now_s + (jump_s if at_s >= 15 else 0)))


@pytest.mark.parametrize(
    ("script", "alter", "conditions", "ticks"),
    [
        pytest.param([at(15, late(30.0))], None, {"late": 1}, 45, id="pauses for 30 s"),
        pytest.param([at(15, late(6.0, ticks=10))], None, {"late": 10}, 95, id="pauses often"),
        pytest.param(lost(ALL[::3], 0.9), None, {"cut_off": 1}, 45, id="loses some targets"),
        pytest.param(lost(ALL[1:7], 0.9), None, {"cut_off": 1}, 45, id="loses many targets"),
        pytest.param(lost(ALL, 0.9), None, {"cut_off": 1}, 45, id="loses all targets"),
        pytest.param(lost(ALL[:4], 60.0), None, {"cut_off": 60}, 95, id="is blind for a minute"),
        pytest.param([], jumps(3600.0), {"clock_jumped": 1}, 45, id="whose clock jumps ahead"),
        pytest.param([], jumps(-3600.0), {"clock_jumped": 1}, 45, id="whose clock jumps back"),
    ],
)
def test_by_a_sick_monitor_nobody_is_accused_and_a_hang_is_found_once_it_is_well(
    script, alter, conditions, ticks
) -> None:
    drive = Drive(SimFleet(3, 2, script), alter=alter or (lambda seen: seen)).run(ticks)
    assert not drive.fired, [drive.seen[key].verdict.reason for key in drive.fired]
    states = Counter(str(result.health.state) for result in drive.results)
    assert {state: states[state] for state in conditions} == conditions
    assert drive.last.health.state is Condition.WELL

    hang_s = drive.last.now_s - START_S + 1
    drive.fleet.script = [at(hang_s, hang("rg_1.0"))]
    drive.run(20)
    assert drive.incident("not_entered").culprits == ("rg_1.0",)
    assert drive.evicted() == ["rg_1"]
    assert drive.evicts[0][0] - hang_s < 10


def test_a_full_disk_holds_evictions_and_hides_no_fault() -> None:
    alter = with_vitals(lambda at_s, _: Vitals(disk="disk is full" if 20 <= at_s < 60 else None))
    drive = Drive(SimFleet(3, 2, [at(30, hang("rg_1.0"))]), alter=alter).run(100)
    incident = drive.incident("not_entered")
    assert drive.fired[incident.id] < 40
    assert [hold.guard for _, hold in drive.holds] == [Guard.SELF_DOUBT]
    assert [(at_s, evict.group) for at_s, evict in drive.evicts] == [(60.0, "rg_1")]


def test_a_starved_monitor_finds_a_hang_later_and_still_evicts() -> None:
    alter = with_vitals(lambda _, __: Vitals(starved=0.9))
    drive = Drive(SimFleet(3, 2, [at(30, hang("rg_1.0"))]), alter=alter).run(60)
    assert drive.evicted() == ["rg_1"]
    assert 37 + 4 < drive.evicts[0][0] < 37 + 8


def test_a_hang_during_a_pause_of_the_monitor_is_named_right_after_it() -> None:
    drive = Drive(SimFleet(3, 2, [at(30, late(30.0)), at(35, hang("rg_1.0"))])).run(80)
    assert drive.incident("not_entered").culprits == ("rg_1.0",)
    assert drive.evicted() == ["rg_1"]


def test_a_lost_host_of_a_small_fleet_does_not_stop_the_keeper() -> None:
    script = [at(20, silent(f"rg_2.{i}", 1e9)) for i in range(2)] + [at(60, hang("rg_1.0"))]
    drive = Drive(SimFleet(4, 2, script)).run(100)
    assert "rg_1" in drive.evicted()


def test_a_late_tick_delays_no_more_than_its_score() -> None:
    fleet = SimFleet(3, 1, [at(30, hang("rg_1.0")), at(36.5, late(30.0))])
    drive = Drive(fleet).run(60)
    assert drive.evicted() == ["rg_1"]
    assert {h.guard for _, h in drive.holds} <= {Guard.SELF_DOUBT}
    assert RankName("rg_1.0") in drive.incident("not_entered").culprits


# -- who registers many names has one voice ------------------------------------------------------


def brought(by: Mapping[str, str], *more: Observation, ours: str = "10.0.0.0") -> Snapshot:
    """A fleet of one rank a group and host; `by`: host -> its address (default: its own)."""
    seen = SimFleet(4, 1).snapshot()
    observations = [
        replace(o, bringer=by.get(o.identity.host, f"10.0.0.{n}"))
        for n, o in enumerate(seen.observations)
    ]
    run = Run(RunId("r"), "job", START_S, bringer=ours)
    return replace(seen, observations=(*observations, *more), run=run)


def strangers(like: Snapshot, number: int, *, silent: bool) -> list[Observation]:
    """Names from first address, each on a host of its own, as it says."""
    first = like.observations[0]
    made = []
    for n in range(number):
        who = replace(first.identity, group=GroupName(f"x{n}"), host=Host(f"x{n}"))
        outcome = Unreachable(Failure.REFUSED, "closed") if silent else first.outcome
        made.append(replace(first, identity=who, outcome=outcome, bringer="10.9.9.9"))
    return made


def judged(*ticks: Snapshot) -> Health:
    itself = SelfHealth(KeeperConfig())
    return [itself.push(replace(s, tick=n, now_s=START_S + n)) for n, s in enumerate(ticks)][-1]


@pytest.mark.parametrize("by", [{}, dict.fromkeys((f"host-rg_{n}" for n in range(4)), "10.0.0.0")],
                         ids=["hosts of their own", "all through one address"])  # fmt: skip
@pytest.mark.parametrize("number", [0, 4, 100])
def test_names_that_one_client_brings_neither_make_nor_break_the_doubt(number, by) -> None:
    """Four of them that had answered once and then closed switched every eviction off."""
    fleet = brought(by)
    alive, closed = (strangers(fleet, number, silent=silent) for silent in (False, True))
    before = brought(by, *alive)
    assert judged(before, brought(by, *closed)) == Health()
    half = [str(o.rank) for o in fleet.observations[2:]]
    for others in (alive, closed):
        assert judged(before, lose(brought(by, *others), half)).state is Condition.CUT_OFF


def test_a_hung_group_is_evicted_although_as_many_names_of_one_client_fell_silent() -> None:
    """Two hosts of two ranks each, and four names of a client that answered and then closed."""

    def joined(seen: Snapshot) -> Snapshot:
        closed = seen.now_s - START_S >= 25
        ours = [replace(o, bringer=f"10.0.0.{o.identity.host[-1]}") for o in seen.observations]
        theirs = strangers(seen, 4, silent=closed)
        return replace(seen, observations=tuple(sorted([*ours, *theirs], key=lambda o: o.rank)))

    drive = Drive(SimFleet(2, 2, [at(30, hang("rg_1.1"))]), alter=joined).run(60)
    assert drive.evicted() == ["rg_1"]
