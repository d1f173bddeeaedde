"""A group that costs the fleet quorum after quorum is named; joiners and victims never are."""

import pytest

from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Guard
from lightkeeper.monitor.model.incident import State
from lightkeeper.monitor.model.observation import Snapshot
from lightkeeper.monitor.model.verdict import Confidence, Severity
from lightkeeper.worker_server.wire import Doing, StepState
from tests.changed import replace
from tests.monitor.fleet import (
    At,
    Drive,
    SimFleet,
    at,
    crash,
    fail_commits,
    hang,
    lighthouse_away,
    lighthouse_down,
    nan,
    pause,
    restart,
    shut_out,
    stands,
)
from tests.monitor.fleet.told import process, reports, steps

WATCHING = KeeperConfig(observe=True)


def lags(drive: Drive) -> list[tuple[str, ...]]:
    return [drive.seen[key].groups for key in drive.fired if drive.seen[key].kind == "replica_lag"]


# -- heals in a loop, failed commits -------------------------------------------------------------


def test_a_group_whose_commits_fail_while_others_commit_heals_in_a_loop_until_it_keeps_up() -> None:
    drive = Drive(SimFleet(3, 2, [at(30, fail_commits(["rg_1"], 20))]), WATCHING).run(50)
    incident = drive.incident("replica_lag")
    assert incident.groups == ("rg_1",)
    assert incident.culprits == ("rg_1.0", "rg_1.1")
    assert 33 <= drive.fired[incident.id] <= 37
    assert "heals in a loop" in incident.verdict.reason
    assert incident.severity is Severity.WARNING
    assert drive.run(90).kinds() == ["replica_lag"]
    incident = drive.incident("replica_lag")
    assert (incident.state, incident.resolution) == (State.RESOLVED, "keeps up again")


def test_a_loop_that_its_own_ranks_show_is_evicted_once_it_has_cost_enough() -> None:
    drive = Drive(SimFleet(3, 2, [at(30, fail_commits(["rg_1"], 15))])).run(80)
    assert drive.evicted() == ["rg_1"]
    assert 38 <= drive.evicts[0][0] <= 45
    assert drive.evicts[0][1].quarantine == ()
    incident = drive.incident("replica_lag")
    assert incident.verdict.confidence is Confidence.CERTAIN
    assert incident.state is State.RESOLVED
    assert incident.milestones.rejoined_s is not None


def test_without_an_error_of_its_own_it_is_told_and_left_in() -> None:
    drive = Drive(SimFleet(3, 2, [at(30, fail_commits(["rg_1"], errored=[]))])).run(70)
    assert lags(drive) == [("rg_1",)]
    assert not drive.evicts
    assert {hold.guard for _, hold in drive.holds} == {Guard.SPARED}


@pytest.mark.integration  # no processes, but 1 s of CPU
@pytest.mark.parametrize("errored", [["rg_0", "rg_1", "rg_2"], []], ids=["all err", "none errs"])
def test_when_no_commit_goes_through_and_all_look_alike_nobody_is_accused(errored) -> None:
    script = [at(30, fail_commits(["rg_0", "rg_1", "rg_2"], 60, errored=errored))]
    drive = Drive(SimFleet(3, 2, script)).run(60)
    incident = drive.incident("replica_lag")
    assert (incident.culprits, incident.groups) == ((), ())
    assert incident.severity is Severity.CRITICAL
    assert "none goes through anywhere; cannot tell the cause" in incident.verdict.reason
    assert not drive.evicts
    drive.run(140)
    incident = drive.incident("replica_lag")
    assert (incident.state, incident.resolution) == (State.RESOLVED, "commits go through")


def test_a_job_whose_votes_all_fail_by_errors_from_the_first_on_is_reported() -> None:
    script = [at(0, fail_commits(["rg_0", "rg_1", "rg_2"]))]
    drive = Drive(SimFleet(3, 1, script)).run(60)
    assert "none goes through anywhere" in drive.incident("replica_lag").verdict.reason
    assert not drive.accused()


def test_of_all_that_fail_the_only_one_with_an_error_is_named() -> None:
    script = [at(30, fail_commits(["rg_0", "rg_1", "rg_2"], 60, errored=["rg_1"]))]
    drive = Drive(SimFleet(3, 2, script)).run(60)
    incident = drive.incident("replica_lag")
    assert (incident.groups, incident.verdict.confidence) == (("rg_1",), Confidence.LIKELY)
    assert incident.verdict.victims == ("rg_0.0", "rg_0.1", "rg_2.0", "rg_2.1")
    assert incident.severity is Severity.CRITICAL
    assert not drive.evicts


def test_two_of_three_that_fail_are_no_minority() -> None:
    drive = Drive(SimFleet(3, 1, [at(30, fail_commits(["rg_0", "rg_1"], 60))])).run(60)
    assert lags(drive) == [()]
    assert not drive.evicts


# -- in and out of the quorum --------------------------------------------------------------------


def crashes(group: str, count: int) -> list[At]:
    return [
        line
        for n in range(count)
        for line in (at(30 + 30 * n, crash(f"{group}.0")), at(35 + 30 * n, restart(group)))
    ]


@pytest.mark.parametrize(
    "script",
    [[at(30 + 25 * n, restart("rg_1")) for n in range(5)], crashes("rg_1", 6)],
    ids=["it restarts", "it crashes"],
)
def test_a_group_that_comes_again_and_again_flaps(script) -> None:
    drive = Drive(SimFleet(3, 1, script)).run(200)
    incident = drive.incident("replica_lag")
    assert incident.groups == ("rg_1",)
    assert "the quorum flaps: rg_1 came into it again 4 times" in incident.story[0].reason
    assert not drive.evicts


def test_two_groups_that_flap_alike_accuse_nobody() -> None:
    script = [at(30 + 25 * n, restart(f"rg_{g}")) for n in range(5) for g in (0, 1)]
    assert lags(Drive(SimFleet(4, 1, script)).run(170)) == [()]


def test_a_quorum_id_that_grows_for_nobody_is_told_and_accuses_nobody() -> None:
    def restless(seen):
        ticks = max(0, seen.tick - 30)
        view = seen.lighthouse
        return replace(seen, lighthouse=replace(view, quorum_id=view.quorum_id + ticks))

    drive = Drive(SimFleet(3, 1), alter=restless).run(60)
    incident = drive.incident("replica_lag")
    assert (incident.culprits, incident.severity) == ((), Severity.WARNING)
    assert "no group is seen to come or go" in incident.verdict.reason
    assert not drive.evicts


# -- beats, and takes no part --------------------------------------------------------------------


def test_a_group_that_beats_and_takes_no_part_is_named_after_two_timeouts() -> None:
    drive = Drive(SimFleet(3, 1, [at(30, shut_out("rg_1"))])).run(170)
    incident = drive.incident("replica_lag")
    assert incident.groups == ("rg_1",)
    assert 150 <= drive.fired[incident.id] <= 153
    assert "sends heartbeats and is in no quorum" in incident.verdict.reason
    assert not drive.evicts
    assert drive.kinds() == ["replica_lag"]


@pytest.mark.parametrize(
    ("doing", "bytes_s", "evicted"),
    [(Doing.LOCK, 2e3, ["rg_1"]), (Doing.LOCK, 5e6, []), (Doing.SLEEP, 2e3, [])],
)
def test_a_group_that_hangs_is_evicted_though_the_others_train_without_it(doing, bytes_s, evicted):
    moves = reports(process(bytes_s=bytes_s, cores=0.01), "rg_1.0")
    script = [at(30, shut_out("rg_1")), at(30, stands("rg_1.0", "save", 40, doing))]
    fleet = SimFleet(3, 1, script, source="torchft", across=True)
    drive = Drive(fleet, alter=moves).run(200)
    assert drive.evicted() == evicted
    assert "in save (train.py:40)" in drive.incident("replica_lag").verdict.reason


# -- never: joiners, healers, victims, the evicted -----------------------------------------------


@pytest.mark.integration  # no processes, but 1 s of CPU
@pytest.mark.parametrize("every_s", [10, 20, 40])
def test_groups_that_join_one_after_another_are_none(every_s: int) -> None:
    names = [f"rg_{g}" for g in range(8)]
    script = [at(1, restart(name, 10 + every_s * n)) for n, name in enumerate(names[1:])]
    assert not Drive(SimFleet(names, 1, script)).run(60 + 8 * every_s).fired


def no_quorum(seen: Snapshot) -> Snapshot:
    """DiLoCo asks for a quorum once in many steps: before, all take local steps."""
    return replace(seen, lighthouse=replace(seen.lighthouse, quorum_id=0, members=()))


def renumbered(step: StepState) -> StepState:
    """A loop that numbers its steps in batches: every step runs ahead of its commits."""
    return replace(step, committed_step=8 * (step.committed_step or 0))


EVERY = ["rg_0", "rg_1", "rg_2"]
NO_LAG = {
    "three restarts": (1, 160, [at(30 + 35 * n, restart("rg_1")) for n in range(3)]),
    "a long evaluation": (
        2, 190,
        [at(30, pause(["rg_1.0", "rg_1.1"], "evaluation", 300.0)), at(32, shut_out("rg_1", 320.0))],
    ),
    "a long start": (1, 190, [at(30, restart("rg_1", 200.0)), at(30, shut_out("rg_1", 250.0))]),
    "a quorum that commits nothing": (
        1, 190, [at(30, shut_out("rg_1")), at(30, lighthouse_down(300))],
    ),
    "a job that starts and is hit, short of min_replica_size": (
        1, 150,
        [
            at(1, fail_commits(EVERY, 60, errored=[])), at(1, restart("rg_2", 58.0)),
            at(100, hang("rg_1.0")), at(112, fail_commits(["rg_0", "rg_2"], 8, errored=[])),
        ],
    ),
    "five evictions": (1, 260, [at(30 + 40 * n, hang("rg_1.0")) for n in range(5)]),
    "commits that fail for a hang": (
        1, 80, [at(30, hang("rg_1.0")), at(33, fail_commits(["rg_0", "rg_2"], 60))],
    ),
    "victims that crash while they wait for a hang": (
        1, 230,
        [at(30, hang("rg_1.0"))]
        + [at(60 + 30 * n, restart(f"rg_{g}")) for n in range(5) for g in (0, 2)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", NO_LAG)
def test_nobody_lags_for(why) -> None:
    size, ticks, script = NO_LAG[why]
    observe = why.startswith(("commits", "victims"))
    config = KeeperConfig(observe=observe, budget_per_hour=20, crash_loop_after=100)
    drive = Drive(SimFleet(3, size, script), config).run(ticks)
    assert not lags(drive)
    assert (len(drive.evicts) >= 5) is (why == "five evictions")


@pytest.mark.parametrize(
    ("alter", "script"),
    [
        (no_quorum, []),
        (steps(renumbered), []),
        (lambda seen: seen, [at(30 + 15 * n, lighthouse_away(8.0)) for n in range(6)]),
    ],
    ids=["no quorum yet", "steps that count otherwise", "a Lighthouse that cannot be seen"],
)
def test_what_the_counters_do_not_mean_adds_nothing(alter, script) -> None:
    assert not Drive(SimFleet(3, 1, script), alter=alter).run(160).fired


@pytest.mark.parametrize("who", [["rg_1.0"], ["rg_0.0", "rg_1.0", "rg_2.0"]])
def test_commits_that_numbers_vote_down_are_corrupt_state_and_no_lag(who) -> None:
    fleet = SimFleet(3, 1, [at(30, nan(rank)) for rank in who])
    fleet.losses = True
    drive = Drive(fleet, WATCHING).run(100)
    assert set(drive.kinds()) == {"state_corrupt"}


def test_a_restarted_monitor_counts_from_zero() -> None:
    fleet = SimFleet(3, 2, [at(30, fail_commits(["rg_1"]))])
    drive = Drive(fleet, WATCHING).run(33)
    again = Drive(fleet, WATCHING).run(3)
    assert not again.fired
    assert not drive.fired
