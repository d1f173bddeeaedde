"""State corrupt: who had the first NaN, whose weights are the odd ones, whose loss jumps."""

from __future__ import annotations

import random

import pytest

from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Guard
from lightkeeper.monitor.model.incident import State
from lightkeeper.monitor.model.observation import Failure, Unreachable
from lightkeeper.monitor.model.verdict import Confidence
from lightkeeper.worker_server.wire import Spoilt
from tests.changed import replace
from tests.monitor.fleet import (
    Drive,
    SimFleet,
    at,
    crash,
    flip,
    hang,
    heal,
    loss,
    nan,
    restart,
    silent,
    unregister,
)
from tests.monitor.fleet.told import reports, steps


def fleet(groups=3, world_size=1, script=(), *, every=0, votes=True, **how):
    made = SimFleet(groups, world_size, script, **how)
    made.losses, made.fingerprint_every, made.votes = True, every, votes
    return made


def run(groups=3, world_size=1, script=(), *, ticks=45, alter=None, config=None, **how):
    drive = Drive(fleet(groups, world_size, script, **how), config)
    if alter is not None:
        drive.alter = alter
    return drive.run(ticks)


def held(drive):
    return {decision.guard for _, decision in drive.holds}


# -- not finite ------------------------------------------------------------------------------


def test_a_rank_whose_gradient_stays_nan_is_named_and_evicted_within_three_seconds():
    drive = run(script=[at(20, nan("rg_1.0"))])
    incident = drive.incident("state_corrupt")
    assert incident.culprits == ("rg_1.0",)
    assert "every other group was finite in that step" in incident.verdict.reason
    assert 20 < drive.fired[incident.id] <= 23
    [(at_s, evict)] = drive.evicts
    assert (evict.group, evict.quarantine) == ("rg_1", ("host-rg_1",))
    assert at_s <= 24
    assert incident.state is State.RESOLVED
    assert drive.fleet.rank("rg_0.0").commits > 100


def test_of_a_group_the_rank_that_saw_it_in_its_own_numbers_is_named():
    drive = run(2, 2, [at(20, nan("rg_1.1"))])
    assert drive.incident("state_corrupt").culprits == ("rg_1.1",)
    assert drive.evicted() == ["rg_1"]


def test_where_only_the_sum_of_the_group_is_looked_at_the_whole_group_is_named():
    def only_the_sum(step):
        return step if step.spoilt is None else replace(
            step, spoilt=replace(step.spoilt, where="group"))  # fmt: skip

    drive = run(2, 2, [at(20, nan("rg_1.1"))], alter=steps(only_the_sum))
    assert drive.incident("state_corrupt").culprits == ("rg_1.0", "rg_1.1")
    assert "in the sum of its group" in drive.incident("state_corrupt").verdict.reason


def test_who_was_named_when_its_group_is_evicted_stays_so_when_only_its_neighbour_is_left():
    gone = steps(lambda step: replace(step, loss=None, spoilt=None), "rg_1.1")
    drive = Drive(
        fleet(2, 2, [at(20, nan("rg_1.1"))]),
        alter=lambda seen: gone(seen) if drive.evicts else seen,
    )
    drive.fleet.evict = lambda decision: None  # it takes its time to go
    while not drive.evicts:
        drive.step()
    drive.run(3)
    assert drive.incident("state_corrupt").culprits == ("rg_1.1",)


def test_a_nan_that_came_once_and_was_voted_down_is_told_and_evicts_nobody():
    drive = run(script=[at(20, nan("rg_1.0", attempts=1))])
    incident = drive.incident("state_corrupt")
    assert incident.culprits == ("rg_1.0",)
    assert drive.evicts == []
    assert held(drive) == {Guard.SPARED}
    assert incident.resolution == "its numbers are in order again"


def test_without_a_vote_the_first_is_named_and_nobody_evicted_for_all_are_nan_by_then():
    drive = run(script=[at(20, nan("rg_1.0"))], votes=False)
    incident = drive.incident("state_corrupt")
    assert incident.culprits == ("rg_1.0",)
    assert incident.verdict.victims == ("rg_0.0", "rg_2.0")
    assert incident.verdict.spare.startswith("no group is finite by now")
    assert drive.evicts == []


mute = steps(lambda step: replace(step, loss=None, spoilt=None), "rg_0.0")


@pytest.mark.parametrize(
    ("script", "alter", "candidates", "says"),
    [
        pytest.param(
            [at(20, nan("rg_0.0")), at(20, nan("rg_1.0"))], None, ("rg_0.0", "rg_1.0"),
            "rg_0 and rg_1 were so in the same step", id="two groups in one step",
        ),
        pytest.param(
            [at(20, nan(f"rg_{n}.0")) for n in range(3)], None, ("rg_0.0", "rg_1.0", "rg_2.0"),
            "bad data, a learning rate or the program", id="all groups in one step",
        ),
        pytest.param(
            [at(15, silent("rg_0.0", 60)), at(20, nan("rg_1.0"))], None, ("rg_1.0",),
            "rg_0 cannot be seen to have been finite then", id="another cannot be seen",
        ),
        pytest.param(
            [at(20, nan("rg_1.0"))], mute, ("rg_1.0",),
            "rg_0 cannot be seen to have been finite then", id="another says nothing",
        ),
    ],
)  # fmt: skip
def test_where_it_cannot_be_told_who_was_first_nobody_is_evicted(script, alter, candidates, says):
    drive = run(script=script, alter=alter)
    incident = drive.incident("state_corrupt")
    assert incident.verdict.confidence is Confidence.UNSURE
    assert incident.candidates == candidates
    assert says in incident.verdict.reason
    assert drive.evicts == []
    assert Guard.UNSURE in held(drive)


def test_without_a_word_of_the_loops_a_watch_on_gradients_names_the_first():
    seen = {"loss": None, "loss_finite": True, "gradients_watched": True}
    watched = steps(lambda step: replace(step, **seen))
    drive = run(script=[at(20, nan("rg_1.0"))], alter=watched)
    incident = drive.incident("state_corrupt")
    assert incident.culprits == ("rg_1.0",)
    assert incident.verdict.confidence is not Confidence.UNSURE


def stages_without_a_loss(report):
    """Group rank 0 has no loss, and says NaN in every step: all its life, in every group."""
    step = report.step
    if step is None or report.identity.group_rank:
        return report
    spoilt = Spoilt(step.step - step.commits, "local", 1.0, step.attempt, step.attempt)
    return replace(report, step=replace(step, loss=None, loss_finite=False, spoilt=spoilt))


@pytest.mark.parametrize("groups", [2, 3])
def test_a_stage_that_reports_no_loss_as_nan_accuses_nobody_whoever_restarts(groups):
    drive = run(groups, 2, [at(20, restart("rg_1"))], alter=reports(stages_without_a_loss))
    assert "state_corrupt" not in drive.kinds()
    assert drive.evicts == []


def test_the_same_again_after_an_eviction_is_the_programs_fault():
    drive = run(script=[at(20, nan("rg_1.0")), at(70, nan("rg_2.0"))], ticks=100)
    assert drive.evicted() == ["rg_1"]
    assert Guard.CRASH_LOOP in held(drive)


def test_a_nan_that_concerns_a_person_only_does_not_hold_up_the_eviction_of_a_hung_group():
    drive = run(4, 1, [at(20, nan("rg_0.0")), at(20, nan("rg_1.0")), at(30, hang("rg_3.0"))])
    assert drive.evicted() == ["rg_3"]


# -- unequal replicas ------------------------------------------------------------------------


def test_the_odd_one_of_three_is_named_at_the_second_fingerprint_and_evicted():
    drive = run(script=[at(20, flip("rg_1.0"))], every=10)
    incident = drive.incident("state_corrupt")
    assert incident.culprits == ("rg_1.0",)
    assert incident.verdict.confidence is Confidence.CERTAIN
    assert drive.evicted() == ["rg_1"]
    assert drive.fired[incident.id] <= 30  # two fingerprints, 3 to 4 s apart, and two sweeps
    assert drive.last.incidents[0].milestones.rejoined_s is not None
    assert not drive.last.verdicts


@pytest.mark.parametrize(
    ("groups", "script", "says"),
    [
        pytest.param(2, [at(20, flip("rg_1.0"))], "no majority was equal", id="one of two"),
        pytest.param(
            3, [at(20.0, flip("rg_1.0")), at(20.1, heal("rg_2", "rg_1"))],
            "a heal came between", id="a group that healed from it gives it no second voice",
        ),
        pytest.param(3, [at(0, flip("rg_1.0"))], "replicas_equal=False", id="never were equal"),
        pytest.param(
            3, [at(20, flip("rg_1.0")), at(20, flip("rg_2.0"))],
            "no majority was equal", id="three that all differ",
        ),
    ],
)  # fmt: skip
def test_where_nobody_is_outvoted_they_are_told_and_nobody_is_evicted(groups, script, says):
    drive = run(groups, 1, script, every=10, ticks=50)
    incident = drive.incident("state_corrupt")
    assert incident.verdict.confidence is Confidence.UNSURE
    assert says in incident.verdict.reason
    assert {"rg_0.0", "rg_1.0"} <= {*incident.candidates}
    assert drive.evicts == []


@pytest.mark.parametrize(
    ("groups", "size", "script", "culprit"),
    [
        pytest.param(2, 2, [at(20, flip("rg_1.1"))], "rg_1.1", id="a shard within a group"),
        pytest.param(
            3, 1, [at(20.0, heal("rg_2", "rg_1")), at(20.1, flip("rg_2.0"))], "rg_2.0",
            id="a bad heal, by those who did not heal",
        ),
    ],
)  # fmt: skip
def test_who_is_outvoted_is_named_and_evicted(groups, size, script, culprit):
    drive = run(groups, size, script, every=10, ticks=50)
    assert drive.incident("state_corrupt").culprits == (culprit,)
    assert drive.evicted() == [culprit.partition(".")[0]]


def test_a_heal_from_a_healthy_group_mends_it_before_it_is_confirmed():
    script = [at(20.0, flip("rg_1.0")), at(22.0, heal("rg_1", "rg_0"))]
    assert not run(script=script, every=10).fired


def test_equal_flaws_in_most_groups_are_not_outvoted_but_told():
    script = [at(20, flip("rg_1.0", flaw=5)), at(20, flip("rg_2.0", flaw=5))]
    drive = run(script=script, every=10)
    # two independent memories with the same wrong bit: the majority is believed, as it must be
    assert drive.incident("state_corrupt").culprits == ("rg_0.0",)


@pytest.mark.parametrize("leave", [crash("rg_1.0"), restart("rg_1"), unregister("rg_1")],
                         ids=["it dies", "it restarts", "it is gone"])  # fmt: skip
def test_a_tie_stays_one_when_one_of_the_two_sides_loses_a_voice(leave):
    """rg_0 and rg_1 against rg_2 and rg_3; with rg_1 gone rg_0 stands alone, and is no odd one."""
    script = [at(20, flip(f"rg_{n}.0", flaw=5)) for n in (2, 3)]
    drive = run(4, script=[*script, at(40, leave)], every=5, ticks=100)
    corrupt = [i for i in drive.seen.values() if i.kind == "state_corrupt"]
    assert {i.verdict.confidence for i in corrupt} == {Confidence.UNSURE}
    assert "rg_0" not in drive.evicted()


def test_after_a_restart_of_a_group_fingerprints_agree_and_nobody_is_named():
    drive = run(script=[at(20, restart("rg_1")), at(40, restart("rg_0"))], every=5, ticks=80)
    assert "state_corrupt" not in drive.kinds()


def test_a_group_whose_target_is_lost_still_counts_against_a_majority():
    script = [at(18, unregister("rg_0")), at(20, flip("rg_1.0"))]
    drive = run(script=script, every=10)
    assert drive.evicts == []


# -- a loss that jumps -----------------------------------------------------------------------


def test_a_loss_that_jumps_in_one_group_is_told_and_evicts_nobody():
    drive = run(script=[at(40, loss(["rg_1.0"], 5.0))], noise=0.05, ticks=60)
    incident = drive.incident("state_corrupt")
    assert incident.culprits == ("rg_1.0",)
    assert held(drive) == {Guard.SPARED}
    assert drive.evicts == []


def test_a_loss_that_jumps_in_all_groups_accuses_nobody():
    ranks = [f"rg_{n}.0" for n in range(3)]
    assert not run(script=[at(40, loss(ranks, 5.0))], noise=0.05, ticks=60).fired


@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_a_loss_that_trembles_is_no_jump(noise):
    assert not run(noise=noise, ticks=120).fired


# -- what is late, lost or in another order ----------------------------------------------------


class Disorder:
    """Drops and delays observations, each for itself."""

    def __init__(self, seed, drop=0.2, late=0.3):
        self.random = random.Random(seed)
        self.drop, self.late = drop, late
        self.before = {}

    def __call__(self, snapshot):
        seen = [self.disturbed(observation) for observation in snapshot.observations]
        self.random.shuffle(seen)
        return replace(snapshot, observations=tuple(seen))

    def disturbed(self, seen):
        before = self.before.get(seen.rank, seen)
        self.before[seen.rank] = seen
        dice = self.random.random()
        if dice < self.drop:
            return replace(seen, outcome=Unreachable(Failure.TIMEOUT, "lost"))
        late = dice < self.drop + self.late and before.identity == seen.identity
        return before if late else seen


SCRIPTS = {
    "nothing": ([], set()),
    "nan": ([at(20, nan("rg_1.0"))], {"rg_1"}),
    "nan once": ([at(20, nan("rg_1.0", attempts=1))], set()),
    "nan twice apart": (
        [at(20, nan("rg_1.0", attempts=1)), at(23, nan("rg_2.0", attempts=1))], set(),
    ),
    "nan in two": ([at(20, nan("rg_1.0")), at(20, nan("rg_2.0"))], set()),
    "flip": ([at(20, flip("rg_1.0"))], {"rg_1"}),
    "flip then heal of another": (
        [at(20.0, flip("rg_1.0")), at(20.1, heal("rg_2", "rg_1"))], set(),
    ),
    "two flips": ([at(20, flip("rg_1.0")), at(20, flip("rg_2.0"))], set()),
    "restarts": ([at(20, restart("rg_1")), at(30, restart("rg_2"))], set()),
}  # fmt: skip


@pytest.mark.integration  # no processes, but 1 s of CPU
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("votes", [True, False], ids=["votes", "no votes"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_what_is_late_lost_or_shuffled_adds_no_eviction(name, votes, seed):
    script, guilty = SCRIPTS[name]
    drive = run(script=list(script), votes=votes, every=5, alter=Disorder(seed), ticks=36)
    corrupt = [i for i in drive.seen.values() if i.kind == "state_corrupt"]
    assert {i.groups[0] for i in corrupt if i.milestones.evict_asked_s is not None} <= guilty


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_order_of_the_observations_changes_nothing(name):
    script, _ = SCRIPTS[name]
    plain = run(script=list(script), every=5, ticks=36)
    mixed = run(script=list(script), every=5, ticks=36, alter=Disorder(1, drop=0, late=0))
    assert plain.evicts == mixed.evicts
    assert plain.fired == mixed.fired


def test_a_healthy_fleet_with_fingerprints_and_losses_is_passed_in_silence():
    assert not run(3, 2, noise=0.2, every=3, ticks=90).fired


def test_how_many_attempts_it_takes_is_an_option():
    config = KeeperConfig(spoilt_attempts=1)
    drive = run(script=[at(20, nan("rg_1.0", attempts=8))], config=config)
    assert drive.evicted() == ["rg_1"]


def test_a_group_that_is_back_is_not_accused_of_the_weights_of_its_former_life():
    drive = run(3, 2, [at(40, flip("rg_1.1"))], every=30, ticks=120)
    assert [drive.seen[key].groups for key in drive.fired] == [("rg_1",)]
    assert not held(drive)
