"""What must hold for every fault script."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightkeeper.monitor.decide.pipeline import Pipeline
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Eviction
from lightkeeper.monitor.model.names import GroupName, RankName, ReplicaId
from lightkeeper.monitor.model.observation import Failure, Observation, Snapshot, Unreachable
from lightkeeper.worker_server.wire import Identity
from tests.changed import replace
from tests.deep import DEEP, EXPLORES
from tests.monitor.fleet import (
    At,
    Drive,
    Fault,
    SimFleet,
    SimRank,
    at,
    cpu_stall,
    crash,
    gil,
    hang,
    jam,
    late,
    lighthouse_away,
    lighthouse_restart,
    mismatch,
    pause,
    recover,
    restart,
    silent,
    slow,
    slow_in,
    stop,
)

pytestmark = pytest.mark.integration  # many seconds

SOAK = settings(max_examples=5 * DEEP if EXPLORES else 3, deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large,
                                       HealthCheck.large_base_example])  # fmt: skip
SHAPES = [(3, 1), (2, 2), (4, 1), (2, 3)]
TELLING = [{}, {"source": "torchft", "across": True}, {"source": None, "across": True}]
"""Phases; steps by TorchFT's Manager; nothing but heads."""


def ranks_of(groups: int, size: int) -> list[str]:
    return [f"rg_{group}.{rank}" for group in range(groups) for rank in range(size)]


FAULTS = {
    "hang": hang, "gil": gil, "stop": stop, "crash": crash, "mismatch": mismatch,
    "extra": lambda rank: mismatch(rank, "extra"), "abort": lambda rank: mismatch(rank, "abort"),
    "slow": lambda rank: slow(rank, 3.0), "data": lambda rank: slow_in(rank, "data", 0.8),
}  # fmt: skip
ALL = {**FAULTS, "jam": lambda rank: jam(rank.partition(".")[0])}
"""Also those that accuse nobody for certain, and so lead to no eviction."""


def rest(ranks: list[str], phase: str, for_s: float) -> Fault:
    """A pause, if the ranks have none before them: nobody saves twice without a step between."""

    def do(fleet: SimFleet) -> None:
        idle = [fleet.rank(name) for name in ranks]
        pause([r.name for r in idle if not r.pauses and r.place != "pause"], phase, for_s)(fleet)

    return do


@st.composite
def nuisances(draw, groups: int, size: int, until_s: int) -> list[At]:
    """What a healthy fleet and a healthy monitor go through."""
    names = ranks_of(groups, size)
    script: list[At] = []
    for start_s in range(10, until_s, 12):
        at_s = start_s + draw(st.floats(0, 6))
        name = draw(st.sampled_from(names))
        script.append(
            at(
                at_s,
                draw(
                    st.sampled_from(
                        [
                            cpu_stall(name, draw(st.floats(0.1, 3.0))),
                            rest(names, "evaluation", draw(st.floats(1, 30))),
                            rest(names, "other", draw(st.floats(1, 30))),
                            rest([name], "other", draw(st.floats(0.5, 25))),
                            rest([n for n in names if n.startswith("rg_0")], "checkpoint", 20.0),
                            silent(name, draw(st.floats(1, 20))),
                            late(draw(st.floats(0.5, 10)), draw(st.integers(1, 3))),
                            lighthouse_away(draw(st.floats(1, 5))),
                        ]
                    )
                ),
            )
        )
    return script


@st.composite
def sick_fleets(draw):
    groups, size = draw(st.sampled_from(SHAPES))
    names = ranks_of(groups, size)
    script = draw(nuisances(groups, size, 150))
    sick: set[str] = set()
    for _ in range(draw(st.integers(1, 4))):
        name = draw(st.sampled_from(names))
        kind = draw(st.sampled_from(sorted(ALL)))
        at_s = draw(st.floats(15, 120))
        script.append(at(at_s, ALL[kind](name)))
        sick.add(name.partition(".")[0])
        if draw(st.booleans()):
            script.append(at(at_s + draw(st.floats(1, 30)), recover(name)))
        if draw(st.integers(0, 3)) == 0:
            script.append(at(at_s + draw(st.floats(1, 30)), restart(name.partition(".")[0])))
    if draw(st.integers(0, 3)) == 0:
        script.append(at(draw(st.floats(15, 120)), lighthouse_restart(draw(st.floats(0, 15)))))
    return groups, size, script, sick


def awaits_quorum(rank: SimRank) -> bool:
    """Whether the rank stands ready for the next quorum: the sick group may be all it waits for."""
    return rank.place == "cross" and not rank.stopped


@SOAK
@given(sick_fleets(), st.integers(1, 3), st.integers(0, 3))
def test_no_fault_script_evicts_below_min_replicas_over_budget_or_a_sound_group(
    case, min_replicas, budget
) -> None:
    groups, size, script, sick = case
    config = KeeperConfig(min_replicas=min_replicas, budget_per_hour=budget)
    fleet = SimFleet(groups, size, script, noise=0.2, seed=1)
    drive = Drive(fleet, config)
    for _ in range(180):
        result = drive.step()
        going = [decision.group for decision in result.decisions if isinstance(decision, Eviction)]
        assert len(going) <= 1
        for group in going:
            left = [
                name
                for name, ranks in fleet.groups.items()
                if name != group and all(rank.alive for rank in ranks)
                if name in fleet.quorum or all(awaits_quorum(rank) for rank in ranks)
            ]
            assert len(left) >= min_replicas
    assert len(drive.evicts) <= budget
    assert set(drive.evicted()) <= sick
    assert not any(result.detector_failures for result in drive.results)


@SOAK
@given(sick_fleets(), st.randoms(use_true_random=False), st.floats(0.02, 0.4),
       st.sampled_from(TELLING))  # fmt: skip
def test_dropping_reports_never_adds_an_eviction_of_a_sound_group(
    case, dice, share, telling
) -> None:
    groups, size, script, sick = case

    def dropped(snapshot: Snapshot) -> Snapshot:
        lost = Unreachable(Failure.TIMEOUT, "dropped")
        return replace(
            snapshot,
            observations=tuple(
                replace(seen, outcome=lost) if dice.random() < share else seen
                for seen in snapshot.observations
            ),
        )

    fleet = SimFleet(groups, size, script, seed=1, **telling)
    drive = Drive(fleet, alter=dropped).run(150)
    assert set(drive.evicted()) <= sick


@SOAK
@given(sick_fleets(), st.randoms(use_true_random=False), st.floats(0.02, 0.4),
       st.sampled_from(TELLING))  # fmt: skip
def test_reports_that_come_a_tick_late_never_add_an_eviction_of_a_sound_group(
    case, dice, share, telling
) -> None:
    groups, size, script, sick = case
    before: dict[RankName, Observation] = {}

    def delayed(snapshot: Snapshot) -> Snapshot:
        seen = []
        for observation in snapshot.observations:
            old = before.get(observation.rank)
            same = old is not None and old.identity.incarnation == observation.identity.incarnation
            seen.append(old if old is not None and same and dice.random() < share else observation)
            before[observation.rank] = observation
        return replace(snapshot, observations=tuple(seen))

    fleet = SimFleet(groups, size, script, seed=1, **telling)
    drive = Drive(fleet, alter=delayed).run(150)
    assert set(drive.evicted()) <= sick


def renamed(snapshot: Snapshot, groups: dict[str, str], order: list[int]) -> Snapshot:
    """The same tick, its groups under other names and its ranks in another order."""

    def replica(name: str) -> ReplicaId:
        group, _, uuid = name.partition(":")
        return ReplicaId(f"{groups[group]}:{uuid}")

    def identity(old: Identity) -> Identity:
        return replace(old, group=GroupName(groups[old.group]), group_rank=order[old.group_rank])

    def seen(observation: Observation) -> Observation:
        who, report = identity(observation.identity), observation.report
        if report is None:
            return replace(observation, identity=who)
        if report.step is None:
            return replace(observation, identity=who, outcome=replace(report, identity=who))
        step = replace(report.step, replica_id=replica(report.step.replica_id))
        return replace(observation, identity=who, outcome=replace(report, identity=who, step=step))

    observations = sorted(
        map(seen, snapshot.observations), key=lambda observation: observation.rank
    )
    records = {
        identity(record.identity).rank: replace(record, identity=identity(record.identity))
        for record in snapshot.records.values()
    }
    view = snapshot.lighthouse
    return replace(
        snapshot,
        observations=tuple(observations),
        records=records,
        lighthouse=replace(
            view,
            members=tuple(replace(m, replica_id=replica(m.replica_id)) for m in view.members),
            heartbeat_ages_s={replica(k): age for k, age in view.heartbeat_ages_s.items()},
        ),
    )


@SOAK
@given(
    st.sampled_from([(3, 1), (3, 2), (2, 4)]),
    st.sampled_from(sorted(ALL)),
    st.permutations(range(4)),
    st.permutations(range(4)),
    st.sampled_from(TELLING),
)
def test_renaming_groups_and_ranks_never_changes_a_verdict(
    shape, kind, new, order, telling
) -> None:
    groups, size = shape
    named = [n for n in new if n < groups]
    mapping = {f"rg_{old}": f"rg_{other}" for old, other in enumerate(named)}
    places = [n for n in order if n < size]
    script = [at(40, ALL[kind](f"rg_1.{size - 1}"))]
    fleet = SimFleet(groups, size, script, noise=0.2, **telling)
    everyone = [rank.name for rank in fleet.ranks()]
    snapshots = [fleet.snapshot(everyone if n > 40 and n % 4 == 0 else ()) for n in range(80)]
    plain, moved = Pipeline(KeeperConfig()), Pipeline(KeeperConfig())

    def other_name(rank: str) -> str:
        group, _, number = rank.partition(".")
        return f"{mapping[group]}.{places[int(number)]}"

    said = 0
    for snapshot in snapshots:
        before = plain.tick(snapshot)
        after = moved.tick(renamed(snapshot, mapping, places))
        expected = {
            (
                v.kind,
                tuple(sorted(map(other_name, v.culprits))),
                v.confidence,
                v.lost_s,
                tuple(sorted(map(other_name, v.victims))),
            )
            for v in before.verdicts
        }
        verdicts = {(v.kind, v.culprits, v.confidence, v.lost_s, v.victims) for v in after.verdicts}
        assert verdicts == expected
        assert {other_name(r): h for r, h in before.rank_health.items()} == after.rank_health
        said += len(after.verdicts)
    without_effect = size == 1 and kind in ("mismatch", "extra", "abort", "jam")  # needs a peer
    assert (said > 0) is not without_effect or telling


@pytest.mark.parametrize(("groups", "size"), [(4, 1), (2, 3)])
@settings(SOAK, max_examples=DEEP if EXPLORES else 2)  # the first one is the simplest
@given(st.data())
def test_a_healthy_fleet_has_no_incident_in_so_many_ticks(groups, size, data) -> None:
    ticks = 1000 if EXPLORES else 150
    script = data.draw(nuisances(groups, size, ticks))
    drive = Drive(SimFleet(groups, size, script, noise=0.3, seed=2)).run(ticks)
    assert {i.id: i.verdict.reason for i in drive.seen.values()} == {}


def test_the_fault_scripts_above_do_lead_to_evictions() -> None:
    """Otherwise the properties above would hold for a monitor that never acts."""
    for kind, fault in FAULTS.items():
        at_s = 40 if kind in ("slow", "data") else 20
        drive = Drive(SimFleet(2, 3, [at(at_s, fault(RankName("rg_1.1")))]))
        while not drive.evicts and drive.fleet.tick < 120:
            drive.step()
        drive.run(5)
        assert drive.evicted() == ["rg_1"], kind
