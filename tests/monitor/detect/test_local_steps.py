"""LocalSGD and DiLoCo: groups train alone and vote once in many steps. Two clocks, of steps and of
commits.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lightkeeper.monitor.decide.headline import Headline, JobState, headline_of
from lightkeeper.monitor.decide.rank_seconds import RankSeconds
from lightkeeper.monitor.detect.pace import PaceMeter, Sample
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.incident import Incident, Training
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.observation import Snapshot
from lightkeeper.monitor.model.verdict import RankHealth
from lightkeeper.worker_server.wire import StepState
from tests.changed import replace
from tests.monitor.fleet import (
    Drive,
    SimFleet,
    at,
    jam,
    jam_across,
    recover,
    restart,
    shut_out,
    slow,
    slow_network,
    stands,
    trains_alone,
)
from tests.monitor.fleet.rank import START_S
from tests.page.views import Simulated

WATCH = KeeperConfig(observe=True)
QUICK = 1 / 3
"""Of the fleet's usual 0.3 s: a step takes 0.1 s, and a round of 60 takes 6 s."""
SLOW = 5 / 3
"""A step takes 0.5 s, and a round 30 s."""
LOCKED = stands("rg_1.0", "log_step", 45)


def rounds(*script, pace: float = QUICK, every: int = 60, groups: int = 3, size: int = 1):
    """A DiLoCo job of which nobody but TorchFT and the optimizer report."""
    fleet = SimFleet(groups, size, script, source="torchft", vote_every=every, pace=pace)
    fleet.tells_waits = True
    return fleet


def headlines(fleet: SimFleet, ticks: int) -> Iterator[tuple[float, Headline]]:
    simulated, books = Simulated(fleet, WATCH), RankSeconds()
    for _ in range(ticks):
        view = simulated.tick()
        view = replace(view, spent=books.push(view.snapshot, view.result))
        yield fleet.now_s - START_S, headline_of(view)


def named(drive: Drive, rank: str = "rg_1.0") -> tuple[float, Incident]:
    """When the only incident fired, and it."""
    incident = drive.incident("not_entered")
    assert drive.kinds() == ["not_entered"]
    assert incident.suspects == (rank,)
    return drive.fired[incident.id], incident


# -- healthy rounds ------------------------------------------------------------------------------


@pytest.mark.parametrize("pace", [QUICK, SLOW], ids=["rounds of 6 s", "rounds of 30 s"])
def test_healthy_rounds_train_from_the_first_local_step_on(pace: float) -> None:
    states = [said.state for at_s, said in headlines(rounds(pace=pace), 150) if at_s >= 1]
    assert set(states) == {JobState.TRAINING}


def test_a_step_takes_as_long_as_a_local_one() -> None:
    *_, (_, last) = headlines(rounds(), 60)
    assert last.step_s == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize("pace", [QUICK, SLOW], ids=["rounds of 6 s", "rounds of 30 s"])
def test_in_healthy_rounds_every_rank_is_healthy_and_nobody_is_suspected(pace: float) -> None:
    drive = Drive(rounds(pace=pace)).run(120)
    assert not drive.seen
    assert {h for result in drive.results[5:] for h in result.rank_health.values()} == {
        RankHealth.HEALTHY
    }


def test_votes_that_take_long_are_no_standstill() -> None:
    """A slow network between the groups is what DiLoCo is for."""
    fleet = rounds(at(0, slow_network(20.0)), pace=SLOW)
    said = list(headlines(fleet, 260))
    assert not {s.state for _, s in said} & {JobState.STALLING, JobState.STOPPED}
    known_s = 210  # how long a round usually takes
    assert {s.state for at_s, s in said if at_s > known_s} == {JobState.TRAINING}


def no_quorum(seen: Snapshot) -> Snapshot:
    """Before their first vote no group is in a quorum."""
    return replace(seen, lighthouse=replace(seen.lighthouse, quorum_id=0, members=()))


def test_groups_before_their_first_vote_do_not_stay_out_of_the_quorum() -> None:
    drive = Drive(rounds(pace=SLOW, every=5000), alter=no_quorum).run(300)
    assert not drive.seen
    assert {track.commits for track in drive.fleet.ranks()} == {0}


def test_a_group_that_trains_alone_while_the_others_vote_does_not_stay_out() -> None:
    """It came later, and its own first vote is ten minutes away."""
    script = [at(30, restart("rg_1", 3.0)), at(35, trains_alone("rg_1.0", 6000))]
    drive = Drive(rounds(*script), WATCH).run(330)
    assert not drive.seen


def test_a_group_that_asks_for_a_quorum_in_vain_stays_out() -> None:
    """Its local steps are over."""
    drive = Drive(rounds(at(30, shut_out("rg_1")), pace=QUICK), WATCH).run(200)
    assert drive.kinds() == ["replica_lag"]
    assert drive.incident("replica_lag").groups == ("rg_1",)


def test_a_group_that_starts_late_holds_nobody_up() -> None:
    """The others made their local steps, and wait for it in their first vote."""
    script = [at(0, jam_across(115.0)), at(1, restart("rg_2", 100.0))]
    drive = Drive(rounds(*script), WATCH).run(150)
    assert not drive.fired


def test_a_collective_that_takes_long_in_a_local_step_is_a_lesson_in_the_same_round() -> None:
    script = [at(20, jam("rg_1", 14.0)), at(60, jam("rg_1", 25.0))]
    drive = Drive(rounds(*script, every=6000, size=2), WATCH).run(100)
    assert not drive.fired
    first = Drive(rounds(*script[1:], every=6000, size=2), WATCH).run(100)
    assert first.kinds() == ["deadlock"]


# -- a rank that stands --------------------------------------------------------------------------


@pytest.mark.parametrize("pace", [QUICK, SLOW], ids=["rounds of 6 s", "rounds of 30 s"])
@pytest.mark.parametrize("in_round", [0, 2], ids=["first round", "third round"])
def test_a_lock_in_a_local_step_is_named_before_the_waiters_give_up(
    pace: float, in_round: int
) -> None:
    """TorchFT's own timeout is 60 s."""
    round_s = 18 * pace
    struck_s = (in_round + 0.5) * round_s
    drive = Drive(rounds(at(struck_s, LOCKED), pace=pace), WATCH).run(int(struck_s) + 60)
    fired_s, incident = named(drive)
    waited_s = fired_s - (in_round + 1) * round_s
    assert waited_s <= 13
    assert incident.verdict.victims == ("rg_0.0", "rg_2.0")
    assert "log_step (train.py:45), waiting for a lock" in incident.verdict.reason
    step = "0.1" if pace == QUICK else "0.5"
    assert f"a step takes {step} s" in incident.verdict.reason


def test_in_the_first_round_a_group_that_waits_shows_who_holds_it_while_another_still_steps() -> (
    None
):
    script = [at(3, LOCKED), at(0, slow("rg_2.0", 10.0))]
    fired_s, incident = named(Drive(rounds(*script), WATCH).run(40))
    assert fired_s <= 15
    assert incident.verdict.victims == ("rg_0.0",)


def test_while_a_rank_stands_its_incident_is_open_and_the_job_does_not_train() -> None:
    drive = Drive(rounds(at(15, LOCKED)), WATCH).run(180)
    _, incident = named(drive)
    assert incident.open
    assert incident.training is Training.STANDS


def test_when_it_goes_on_the_incident_is_over_and_the_job_trains() -> None:
    drive = Drive(rounds(at(15, LOCKED), at(60, recover("rg_1.0"))), WATCH).run(90)
    _, incident = named(drive)
    assert incident.resolution == "recovered by itself"
    assert drive.seen[incident.id].training is Training.TRAINS


def test_the_job_trains_until_the_others_have_ended_their_round() -> None:
    said = list(headlines(rounds(at(70, LOCKED), pace=SLOW), 130))
    trains = [at_s for at_s, s in said if s.trains and at_s > 70]
    assert 90 <= max(trains) <= 96  # the others end their round at 90 s
    stopped = next(s for at_s, s in said if at_s > 105)
    assert str(stopped).startswith("Not training: rank rg_1.0 hangs in log_step (train.py:45)")


def test_the_job_stands_as_soon_as_the_round_of_the_others_is_over() -> None:
    drive = Drive(rounds(at(70, LOCKED), pace=SLOW), WATCH).run(103)
    assert named(drive)[1].training is Training.STANDS


def test_a_slow_rank_in_local_steps_is_a_straggler() -> None:
    drive = Drive(rounds(at(20, slow("rg_1.0", 2.0))), WATCH).run(240)
    assert drive.kinds() == ["straggler"]
    assert drive.accused() == {"rg_1.0"}


# -- paces ---------------------------------------------------------------------------------------


def alone(rank: str, at_s: int, waits_s: float) -> Sample:
    """A rank that makes a step a second, votes with every tenth, and waits then."""
    votes = at_s // 10
    step = StepState(
        votes, votes, at_s, "other", 0.0, votes, local_steps=at_s - votes, source="torchft",
        seconds={"other": float(at_s)},
    )  # fmt: skip
    return Sample(RankName(rank), "one", step, waited_s=votes * waits_s)


def test_a_pace_is_that_of_whole_rounds() -> None:
    """A window begins 2 s before a vote: half of them are a wait, and a tenth of a round."""
    meter = PaceMeter(KeeperConfig())
    for at_s in range(8, 30):
        meter.push(at_s, [alone("rg_0.0", at_s, 0.2), alone("rg_1.0", at_s, 1.0)])
    (window,) = meter.windows
    busy_s = {rank: round(pace.busy_s, 3) for rank, pace in window.paces.items()}
    assert busy_s == {"rg_0.0": 0.98, "rg_1.0": 0.9}
    assert (window.start_s, window.end_s) == (8, 20)
