"""How fast ranks go, for people, and how many tokens a group has trained on."""

from __future__ import annotations

import pytest

from lightkeeper.monitor.decide.tempo import Tempo, TempoBook
from lightkeeper.monitor.model.names import GroupName, RankName
from lightkeeper.monitor.model.observation import Failure, Observation, Unreachable
from tests.changed import replace
from tests.monitor.samples import seen, snapshot

RANK = RankName("rg_0.0")


def steps(book: TempoBook, *looks: tuple[float, int]) -> list[Tempo | None]:
    """What the book tells of one rank, seen at these seconds with these steps."""
    return [
        book.push(snapshot(seen("rg_0", step=step), now_s=1000.0 + at_s)).get(RANK)
        for at_s, step in looks
    ]


def trained(ticks: int) -> tuple[tuple[float, int], ...]:
    """Two steps a second."""
    return tuple((tick, 2 * tick + 2) for tick in range(ticks))


def test_the_tempo_is_the_mean_over_the_window() -> None:
    usual = Tempo(0.5, pytest.approx(0.1), pytest.approx(0.05))
    assert steps(TempoBook(), *trained(6)) == [None, *[usual] * 5]


def test_a_rank_that_stands_has_no_tempo_after_the_window() -> None:
    tempos = steps(TempoBook(), (0, 2), (1, 3), (2, 4), (10, 4), (18, 4))
    assert [tempo is not None for tempo in tempos] == [False, True, True, True, False]


@pytest.mark.parametrize("stood_s", [7, 30])
def test_after_a_standstill_no_pace_is_told_until_there_is_a_clean_one(stood_s: int) -> None:
    still = [(tick, 12) for tick in range(6, stood_s)]
    *_, first, again = steps(TempoBook(), *trained(6), *still, (5 + stood_s, 15), (6 + stood_s, 17))
    assert first is None
    assert again is not None
    assert again.step_s == pytest.approx(0.5)


def test_a_rank_that_gets_slow_has_its_new_pace_after_two_steps() -> None:
    tempos = steps(TempoBook(), *trained(6), (13, 13), (21, 14), (29, 15))[6:]
    assert [tempo and tempo.step_s for tempo in tempos] == [None, 8.0, 8.0]


def test_the_first_step_of_a_process_which_may_heal_or_wait_shows_no_pace() -> None:
    *_, first, second = steps(TempoBook(), (0, 1), (9, 2), (10, 4))
    assert first is None
    assert second is not None
    assert second.step_s == pytest.approx(0.5)


def test_a_restarted_rank_starts_a_new_tempo() -> None:
    book = TempoBook()
    steps(book, (0, 500))
    assert book.push(snapshot(seen("rg_0", step=1, incarnation="two"), now_s=1001.0)) == {}


# -- tokens: never fewer than before, whoever restarts or does not answer --------------------------


def told(number: int, tokens: int, incarnation: str = "one") -> Observation:
    rank = seen("rg_0", number, incarnation=incarnation)
    assert rank.report is not None
    assert rank.report.step is not None
    step = replace(rank.report.step, tokens=tokens)
    return replace(rank, outcome=replace(rank.report, step=step))


AWAY = replace(told(1, 0), outcome=Unreachable(Failure.TIMEOUT, "late"))


@pytest.mark.parametrize(
    ("looks", "counted"),
    [
        pytest.param(
            [(told(0, 500), told(1, 700)), (told(0, 600), told(1, 750))], [0, 150],
            id="what every rank adds from the first look on",
        ),
        pytest.param(
            [(told(0, 500), told(1, 700)), (told(0, 600), AWAY), (told(0, 700), told(1, 900))],
            [0, 100, 400], id="a rank that does not answer takes nothing away",
        ),
        pytest.param(
            [(told(0, 500),), (told(0, 40, "two"),)], [0, 40], id="a restarted rank, from nought"
        ),
        pytest.param(
            [(told(0, 0),), (told(0, 10),), ()], [None, 0, None],
            id="no counter for who reports none, nor for a group that is gone",
        ),
    ],
)  # fmt: skip
def test_the_tokens_of_a_group(
    looks: list[tuple[Observation, ...]], counted: list[int | None]
) -> None:
    book = TempoBook()
    totals = []
    for look in looks:
        book.push(snapshot(*look))
        totals.append(book.tokens.get(GroupName("rg_0")))
    assert totals == counted
