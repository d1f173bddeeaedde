"""A virtual day of a large fleet: everything that goes wrong is told right, whatever is skipped."""

import random

import pytest

from experiments.weeks.faults import CAUSES, NOBODY, OFTEN, SHOWS, WORTHY, Fault, timeline
from experiments.weeks.weeks import Weeks, told
from tests.deep import only_explored
from tests.fuzz import wire
from tests.fuzz.games import explore

DAY_S = 86_400.0


def fault(at_s: float, shows: str, group: int = 1, rank: int = 3, **more) -> Fault:
    return Fault(at_s, shows, "faulty GPU", group, rank, **more)


def one_of_each(groups: int, size: int, every_s: float = 3000.0) -> list[Fault]:
    chance = random.Random(7)
    slow = {"straggler": (2.0, 1500.0), "slow link": (4.0, 300.0), "slow network": (4.0, 300.0)}
    shows = sorted(set().union(*SHOWS.values(), OFTEN) - {"planned", "nothing"})
    amounts = {planned.shows: planned.amount for planned in timeline(3, 28, 16_384, groups, size)}
    return [
        fault(
            600 + every_s * n, show, n % groups, chance.randrange(size),
            amount=slow.get(show, (amounts.get(show, 0.0), 0))[0],
            lasts_s=slow.get(show, (0, 0.0))[1],
        )
        for n, show in enumerate(shows)
    ]  # fmt: skip


def test_meta_tells_of_419_interruptions_and_each_cause_shows_somehow() -> None:
    assert sum(CAUSES.values()) == 419
    assert SHOWS.keys() == CAUSES.keys()
    faults = [
        planned for planned in timeline(1, 54, 16_384, 6, 16) if not planned.cause.startswith("-")
    ]
    assert 380 < len(faults) < 460


@pytest.mark.integration  # no processes, but 15 s of CPU
def test_in_a_day_with_one_of_everything_each_culprit_is_named_and_nobody_else() -> None:
    weeks = Weeks(sample=27, size=9, days=1.0, seed=3, script=one_of_each(3, 9))
    account = weeks.run()
    assert {happened.fault.shows for happened in account.happened} > WORTHY | NOBODY - {"nothing"}
    report = told(weeks, 1.0)
    assert (account.wrong, account.wrong_evictions, report["missed"]) == ([], [], [])
    assert account.crashed == []
    assert all(
        happened.evicted_s for happened in account.happened if happened.fault.shows in WORTHY
    )
    assert not report["stood_longer_than_the_timeout"]
    lost = report["goodput"]
    assert lost["no keeper"] < lost["lightkeeper"] <= lost["oracle"]


@pytest.mark.integration  # no processes, but 1 s of CPU
def test_a_host_that_goes_while_all_are_in_a_collective_across_groups_is_named() -> None:
    script = [
        fault(600, "slow network", amount=6.0, lasts_s=400.0),  # nearly all of the step
        fault(700, "host gone", 0, 0),
    ]
    account = Weeks(sample=18, size=9, days=1200 / DAY_S, seed=3, script=script).run()
    assert (account.right, account.wrong) == (1, [])


@only_explored  # make test: the day above, of which much is skipped
@pytest.mark.integration  # no processes, but 8 s of CPU
def test_hours_that_are_skipped_change_no_verdict() -> None:
    script = [
        fault(700, "hang", 0, 1), fault(1300, "checkpoint", amount=40.0), fault(1700, "crash", 1),
        fault(2200, "jam", 2),
    ]  # fmt: skip
    told_so = [
        Weeks(sample=12, size=4, days=2700 / DAY_S, seed=5, skip=skip, script=script).run()
        for skip in (True, False)
    ]
    skipped, whole = told_so
    assert skipped.sequence == whole.sequence
    assert skipped.right == whole.right >= 3
    assert skipped.ticks < whole.ticks / 2


@pytest.mark.integration  # no processes, but 3 s of CPU
def test_odd_answers_of_one_host_stop_nobody_and_a_hang_beside_them_is_named() -> None:
    assert explore(wire.play, 21, 60.0, games=2) == []
