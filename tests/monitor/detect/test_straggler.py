"""Slow ranks: busy when the others wait."""

import pytest

from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Guard
from lightkeeper.monitor.model.observation import Snapshot
from tests.changed import replace
from tests.monitor.fleet import (
    At,
    Drive,
    SimFleet,
    at,
    cpu_stall,
    pause,
    restart,
    slow,
    slow_in,
    slow_link,
    slow_network,
    tokens,
)
from tests.monitor.fleet.told import steps

WATCHING = KeeperConfig(observe=True)
SLOW = at(40, slow("rg_1.0", 3.0))


def test_a_rank_three_times_slower_fires_after_four_windows_and_goes_once_it_cost_15_s() -> None:
    drive = Drive(SimFleet(3, 1, [SLOW])).run(70)
    incident = drive.incident("straggler")
    assert incident.culprits == ("rg_1.0",)
    assert ", in compute 0.83 s where they take 0.3 s" in incident.verdict.reason
    assert drive.fired[incident.id] == 60.0
    assert drive.evicted() == ["rg_1"]
    assert drive.evicts[0][1].quarantine == ("host-rg_1",)


def test_it_is_not_worth_it_before_it_cost_more_than_an_eviction() -> None:
    drive = Drive(SimFleet(3, 1, [SLOW]), KeeperConfig(eviction_cost_s=30.0)).run(100)
    assert drive.holds[0][1].guard is Guard.NOT_WORTH_IT
    assert drive.evicts[0][0] > drive.fired[drive.incident("straggler").id]
    assert drive.incident("straggler").verdict.lost_s > 30.0


def test_within_a_group_the_rank_is_named_whose_peers_wait_inside_collectives() -> None:
    fleet = SimFleet(2, 2, [at(40, slow("rg_1.1", 3.0))])
    assert Drive(fleet).run(75).incident("straggler").culprits == ("rg_1.1",)


@pytest.mark.integration  # no processes, but 1 s of CPU
@pytest.mark.parametrize(("slow_rank", "where"), [("rg_1.0", "data"), ("rg_1.1", "forward")])
def test_who_only_waits_for_a_slow_peer_is_never_named_not_even_alone(slow_rank, where) -> None:
    """Its windows are slow as well, and may be so before those of the culprit are."""

    def hide(snapshot: Snapshot) -> Snapshot:
        """The culprit is not among the targets."""
        others = tuple(seen for seen in snapshot.observations if seen.rank != slow_rank)
        return replace(snapshot, observations=others)

    script = [at(40, slow_in(slow_rank, where, 1.0))]
    drive = Drive(SimFleet(2, 2, script), alter=hide).run(160)
    assert {rank for incident in drive.seen.values() for rank in incident.culprits} == set()
    assert drive.evicts == []

    seen = Drive(SimFleet(2, 2, script)).run(160)
    assert seen.incident("straggler").culprits == (slow_rank,)


def test_a_slow_rank_from_the_beginning_needs_persistence_in_a_small_cohort() -> None:
    drive = Drive(SimFleet(3, 1, [at(0, slow("rg_1.0", 3.0))])).run(90)
    assert drive.fired[drive.incident("straggler").id] >= 8 * 5


def test_it_says_whether_slowness_persists_and_when_it_is_over() -> None:
    drive = Drive(SimFleet(3, 1, [SLOW, at(105, slow("rg_1.0", 1.0))]), WATCHING).run(62)
    assert drive.last.verdicts[0].evidence["course"].endswith("slow in 4 of 5 windows")
    course = drive.run(43).last.verdicts[0].evidence["course"]
    assert course.endswith("slow in each of the last 8 windows")
    assert drive.run(50).incident("straggler").resolution == "keeps pace again"


# -- what it is slow at --------------------------------------------------------------------


def renamed(step):
    spent = {"tokenise" if name == "data" else name: s for name, s in step.seconds.items()}
    return replace(step, seconds=spent, phase="tokenise" if step.phase == "data" else step.phase)


@pytest.mark.parametrize(
    ("alter", "kind"),
    [(steps(lambda step: step), "data loading"), (steps(renamed), "'tokenise'")],
    ids=["a phase that all know", "one of the user's own"],
)
def test_the_reason_names_the_phase_and_what_peers_take(alter, kind) -> None:
    script = [at(40, slow_in("rg_1.0", "data", 0.8))]
    verdict = Drive(SimFleet(3, 1, script), WATCHING, alter=alter).run(75).last.verdicts[0]
    assert verdict.culprits == ("rg_1.0",)
    assert f", in {kind} 0.73 s where they take 0 s;" in verdict.reason
    assert verdict.evidence["slow at"] == kind
    assert verdict.evidence["source"].startswith("phases")


def test_slow_collectives_inside_a_group_are_the_groups_and_no_ranks() -> None:
    drive = Drive(SimFleet(3, 2, [at(40, slow_link("rg_1", 0.5))]), WATCHING)
    incident = drive.run(100).incident("straggler")
    assert incident.culprits == ("rg_1.0", "rg_1.1")
    assert "its ranks arrive on time" in incident.verdict.reason
    assert incident.verdict.evidence["slow at"] == "communication inside its group"


def test_a_slow_network_across_groups_is_told_and_nobody_is_accused() -> None:
    script = [at(90, slow_network(0.5)), at(120, slow_network(0.0))]
    drive = Drive(SimFleet(3, 1, script)).run(190)
    incident = drive.incident("straggler")
    assert incident.culprits == ()
    assert "communication across groups takes 0.5" in incident.verdict.reason
    assert drive.fired[incident.id] == 110.0
    assert incident.resolution == "keeps pace again"
    assert not drive.evicts


def checkpoints(rank: str, *spans_s: float) -> list[At]:
    return [at(20 + 30 * n, pause([rank], "checkpoint", s)) for n, s in enumerate(spans_s)]


LATER_SLOW = (*[2.0] * 4, *[20.0] * 4)


def test_a_rank_whose_checkpoints_have_become_slow_is_named_beside_its_peers() -> None:
    script = [*checkpoints("rg_0.0", *[2.0] * 8), *checkpoints("rg_1.0", *LATER_SLOW)]
    drive = Drive(SimFleet(3, 1, script), WATCHING).run(260)
    verdict = drive.incident("straggler").verdict
    assert verdict.culprits == ("rg_1.0",)
    assert "slow in checkpoint, 20 s each of the last 3 times where it took 2.0 s before" in (
        verdict.reason
    )
    assert "1 peer takes 2.0 s" in verdict.reason
    assert verdict.evidence["slow at"] == "checkpoint"


# -- what is no fault ----------------------------------------------------------------------


def long_sequences(groups: int, count: int, begin_s: float, every_s: float, for_s: float):
    """Batches that take four times as long, now on one group and now on another."""
    return [
        line
        for n in range(count)
        for line in (
            at(begin_s + every_s * n, slow(f"rg_{n % groups}.0", 4.0)),
            at(begin_s + every_s * n + for_s, slow(f"rg_{n % groups}.0", 1.0)),
        )
    ]


def unequal_tokens(first: int) -> list[At]:
    return [at(1, tokens(f"rg_{n}.0", first if n == 1 else 1000)) for n in range(4)]


@pytest.mark.parametrize(
    ("groups", "size", "noise", "ticks", "script"),
    [
        pytest.param(2, 1, 0.1, 160, [at(40, slow("rg_1.0", 1.3))], id="milder, of two"),
        pytest.param(6, 1, 0.1, 120, [at(40, slow("rg_1.0", 1.3))], id="milder, of six"),
        pytest.param(
            3, 1, 0.0, 140, [at(20 + 7 * n, cpu_stall("rg_1.0", 2.5)) for n in range(17)],
            id="descheduled again and again",
        ),
        pytest.param(
            3, 1, 0.0, 150,
            [at(20 + 20 * n, pause(["rg_0.0"], "checkpoint", 8.0)) for n in range(6)],
            id="checkpoints of one group",
        ),
        pytest.param(
            3, 1, 0.0, 180, long_sequences(3, 80, 90.0, 1.0, 0.9), id="long sequences come up later"
        ),
        pytest.param(
            2, 1, 0.2, 140, long_sequences(2, 35, 20.0, 3.0, 2.0), id="long sequences, of two"
        ),
        pytest.param(
            6, 1, 0.2, 100, long_sequences(6, 25, 20.0, 3.0, 2.0), id="long sequences, of six"
        ),
        pytest.param(
            3, 1, 0.0, 260,
            [*checkpoints("rg_0.0", *LATER_SLOW), *checkpoints("rg_1.0", *LATER_SLOW)],
            id="all checkpoints become slow: the storage",
        ),
        pytest.param(3, 1, 0.0, 170, checkpoints("rg_0.0", *[20.0] * 5), id="one saves for all"),
        pytest.param(
            4, 1, 0.0, 110, [*unequal_tokens(2000), at(40, slow("rg_1.0", 2.0))], id="more tokens"
        ),
        pytest.param(4, 1, 0.0, 80, unequal_tokens(500), id="fewer tokens, as long"),
        pytest.param(
            3, 2, 0.0, 140, [at(0, slow(f"rg_{n}.1", 3.0)) for n in range(3)],
            id="a slow last stage in every group",
        ),
    ],
)  # fmt: skip
def test_nobody_is_called_slow_for(groups, size, noise, ticks, script) -> None:
    assert not Drive(SimFleet(groups, size, script, noise=noise)).run(ticks).seen


def test_nobody_is_called_slow_while_a_group_starts() -> None:
    script = [at(30, restart("rg_2", start_s=40.0)), at(31, slow("rg_1.0", 3.0))]
    drive = Drive(SimFleet(3, 1, script)).run(86)
    assert not [i for i in drive.seen.values() if i.kind == "straggler"]
