"""Slow ranks: busy when the others wait."""

import pytest

from monitor.model.config import KeeperConfig
from monitor.model.eviction import Guard
from monitor.model.observation import Snapshot
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


def test_a_rank_three_times_slower_fires_after_four_windows_and_goes_once_it_cost_15_s() -> None:
    drive = Drive(SimFleet(3, 1, [at(40, slow("rg_1.0", 3.0))])).run(120)
    incident = drive.incident("straggler")
    assert incident.culprits == ("rg_1.0",)
    assert drive.fired[incident.id] == 60.0
    assert drive.evicted() == ["rg_1"]
    assert drive.evicts[0][1].quarantine == ("host-rg_1",)


def test_it_is_not_worth_it_before_it_cost_more_than_an_eviction() -> None:
    config = KeeperConfig(eviction_cost_s=30.0)
    drive = Drive(SimFleet(3, 1, [at(40, slow("rg_1.0", 3.0))]), config).run(120)
    assert drive.holds[0][1].guard is Guard.NOT_WORTH_IT
    assert drive.evicts[0][0] > drive.fired[drive.incident("straggler").id]
    assert drive.incident("straggler").verdict.lost_s > 30.0


@pytest.mark.parametrize("tells_held", [True, False])
def test_within_a_group_the_rank_is_named_whose_peers_wait_inside_collectives(tells_held) -> None:
    fleet = SimFleet(2, 2, [at(40, slow("rg_1.1", 3.0))])
    fleet.tells_held = tells_held
    drive = Drive(fleet).run(100)
    assert drive.incident("straggler").culprits == ("rg_1.1",)


@pytest.mark.integration  # no processes, but 1 s of CPU
@pytest.mark.parametrize(("slow_rank", "where"), [("rg_1.0", "data"), ("rg_1.1", "forward")])
def test_who_only_waits_for_a_slow_peer_is_never_named_not_even_alone(slow_rank, where) -> None:
    """Its windows are slow as well, and may be so before those of the culprit are."""

    def hide(snapshot: Snapshot) -> Snapshot:
        """The culprit is not among the targets."""
        others = tuple(one for one in snapshot.observations if one.rank != slow_rank)
        return replace(snapshot, observations=others)

    script = [at(40, slow_in(slow_rank, where, 1.0))]
    drive = Drive(SimFleet(2, 2, script), alter=hide).run(160)
    assert {rank for one in drive.seen.values() for rank in one.culprits} == set()
    assert drive.evicts == []

    seen = Drive(SimFleet(2, 2, script)).run(160)
    assert seen.incident("straggler").culprits == (slow_rank,)


def test_a_slow_rank_from_the_beginning_needs_persistence_in_a_small_cohort() -> None:
    drive = Drive(SimFleet(3, 1, [at(0, slow("rg_1.0", 3.0))])).run(120)
    incident = drive.incident("straggler")
    assert drive.fired[incident.id] >= 8 * 5


@pytest.mark.parametrize("groups", [2, 3, 6])
def test_milder_slowness_than_the_ratio_is_no_fault(groups) -> None:
    drive = Drive(SimFleet(groups, 1, [at(40, slow("rg_1.0", 1.3))], noise=0.1)).run(200)
    assert not drive.seen


def test_a_process_descheduled_again_and_again_is_no_straggler() -> None:
    script = [at(20 + 7 * n, cpu_stall("rg_1.0", 2.5)) for n in range(40)]
    drive = Drive(SimFleet(3, 1, script)).run(300)
    assert not drive.seen


def test_checkpoints_of_one_group_do_not_make_it_a_straggler() -> None:
    script = [at(20 + 20 * n, pause(["rg_0.0"], "checkpoint", 8.0)) for n in range(10)]
    drive = Drive(SimFleet(3, 1, script)).run(250)
    assert not drive.seen


def test_nobody_is_called_slow_while_a_group_starts() -> None:
    script = [at(30, restart("rg_2", start_s=40.0)), at(31, slow("rg_1.0", 3.0))]
    drive = Drive(SimFleet(3, 1, script)).run(86)
    assert not [i for i in drive.seen.values() if i.kind == "straggler"]


def test_a_rank_that_is_fast_again_keeps_pace_again() -> None:
    script = [at(40, slow("rg_1.0", 3.0)), at(80, slow("rg_1.0", 1.0))]
    drive = Drive(SimFleet(3, 1, script), KeeperConfig(observe=True)).run(200)
    assert drive.incident("straggler").resolution == "keeps pace again"


# -- what it is slow at --------------------------------------------------------------------


def test_the_reason_names_data_loading_and_what_peers_take() -> None:
    drive = Drive(SimFleet(4, 1, [at(40, slow_in("rg_1.0", "data", 0.8))])).run(120)
    verdict = drive.incident("straggler").verdict
    assert verdict.culprits == ("rg_1.0",)
    assert ", in data loading 0.73 s where they take 0" in verdict.reason
    assert verdict.evidence["slow at"] == "data loading"
    assert verdict.evidence["source"].startswith("phases")


def test_forward_and_backward_together_are_compute() -> None:
    drive = Drive(SimFleet(3, 1, [at(40, slow("rg_1.0", 3.0))])).run(120)
    verdict = drive.incident("straggler").verdict
    assert ", in compute 0.83 s where they take 0.3 s" in verdict.reason


def test_a_phase_of_the_users_own_is_named_as_it_is() -> None:
    def renamed(step):
        spent = {"tokenise" if name == "data" else name: s for name, s in step.seconds.items()}
        return replace(
            step, seconds=spent, phase="tokenise" if step.phase == "data" else step.phase
        )

    script = [at(40, slow_in("rg_1.0", "data", 0.8))]
    drive = Drive(SimFleet(3, 1, script), alter=steps(renamed)).run(120)
    assert drive.incident("straggler").verdict.evidence["slow at"] == "'tokenise'"


def test_it_says_whether_slowness_persists() -> None:
    config = KeeperConfig(observe=True)
    drive = Drive(SimFleet(3, 1, [at(40, slow("rg_1.0", 3.0))]), config).run(62)
    assert drive.last.verdicts[0].evidence["course"].endswith("slow in 4 of 5 windows")
    drive.run(60)
    course = drive.last.verdicts[0].evidence["course"]
    assert course.endswith("slow in each of the last 8 windows")


def test_slow_collectives_inside_a_group_are_the_groups_and_no_ranks() -> None:
    drive = Drive(SimFleet(3, 2, [at(40, slow_link("rg_1", 0.5))]), KeeperConfig(observe=True))
    incident = drive.run(140).incident("straggler")
    assert incident.culprits == ("rg_1.0", "rg_1.1")
    assert "its ranks come in time" in incident.verdict.reason
    assert incident.verdict.evidence["slow at"] == "communication inside its group"


def test_a_slow_network_across_groups_is_told_and_nobody_is_accused() -> None:
    script = [at(90, slow_network(0.5)), at(150, slow_network(0.0))]
    drive = Drive(SimFleet(3, 1, script)).run(260)
    incident = drive.incident("straggler")
    assert incident.culprits == ()
    assert "communication across groups takes 0.5" in incident.verdict.reason
    assert drive.fired[incident.id] == 110.0
    assert incident.resolution == "keeps pace again"
    assert not drive.evicts


def test_long_sequences_that_come_up_later_are_no_slow_network() -> None:
    script = [
        line
        for n in range(100)
        for line in (
            at(90 + n, slow(f"rg_{n % 3}.0", 4.0)),
            at(90.9 + n, slow(f"rg_{n % 3}.0", 1.0)),
        )
    ]
    assert not Drive(SimFleet(3, 1, script)).run(200).seen


def checkpoints(rank: str, *spans_s: float) -> list[At]:
    return [at(20 + 40 * n, pause([rank], "checkpoint", s)) for n, s in enumerate(spans_s)]


def test_a_rank_whose_checkpoints_have_become_slow_is_named_beside_its_peers() -> None:
    script = [*checkpoints("rg_0.0", *[2.0] * 8), *checkpoints("rg_1.0", *[2.0] * 4, *[20.0] * 4)]
    drive = Drive(SimFleet(3, 1, script), KeeperConfig(observe=True)).run(330)
    verdict = drive.incident("straggler").verdict
    assert verdict.culprits == ("rg_1.0",)
    assert "slow in checkpoint, 20 s each of the last 3 times where it took 2.0 s before" in (
        verdict.reason
    )
    assert "1 peer takes 2.0 s" in verdict.reason
    assert verdict.evidence["slow at"] == "checkpoint"


def test_when_all_checkpoints_become_slow_it_is_the_storage() -> None:
    spans_s = (*[2.0] * 4, *[20.0] * 4)
    script = [*checkpoints("rg_0.0", *spans_s), *checkpoints("rg_1.0", *spans_s)]
    assert not Drive(SimFleet(3, 1, script)).run(330).seen


def test_one_group_that_saves_for_all_is_no_straggler() -> None:
    assert not Drive(SimFleet(3, 1, checkpoints("rg_0.0", *[20.0] * 8))).run(330).seen


# -- what is no fault ----------------------------------------------------------------------


def test_a_rank_with_twice_the_tokens_may_take_twice_as_long() -> None:
    script = [at(1, tokens(f"rg_{n}.0", 2000 if n == 1 else 1000)) for n in range(4)]
    script += [at(40, slow("rg_1.0", 2.0))]
    assert not Drive(SimFleet(4, 1, script)).run(160).seen


def test_a_rank_with_half_the_tokens_is_not_accused_of_taking_as_long() -> None:
    script = [at(1, tokens(f"rg_{n}.0", 500 if n == 1 else 1000)) for n in range(4)]
    assert not Drive(SimFleet(4, 1, script)).run(120).seen


def test_a_slow_last_stage_in_every_group_is_no_fault() -> None:
    script = [at(0, slow(f"rg_{n}.1", 3.0)) for n in range(3)]
    assert not Drive(SimFleet(3, 2, script)).run(200).seen


@pytest.mark.integration  # no processes, but 1 s of CPU
@pytest.mark.parametrize("groups", [2, 4, 6])
def test_long_sequences_on_a_rank_at_a_time_pass_in_silence(groups) -> None:
    script = [
        line
        for n in range(60)
        for line in (
            at(20 + 3 * n, slow(f"rg_{n % groups}.0", 4.0)),
            at(22 + 3 * n, slow(f"rg_{n % groups}.0", 1.0)),
        )
    ]
    assert not Drive(SimFleet(groups, 1, script, noise=0.2)).run(220).seen
