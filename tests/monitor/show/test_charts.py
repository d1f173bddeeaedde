"""The last hour of a job: how many points are kept, and what is drawn of them."""

from __future__ import annotations

import itertools

import pytest

from lightkeeper.monitor.decide.tempo import EVERY_S, KEPT, TrendBook
from lightkeeper.monitor.model.run import TrendPoint
from lightkeeper.monitor.show.pages import pace_line
from tests.changed import replace
from tests.page.views import NOW_S, crowd


def points(*steps: int | None, step_s: float | None = 0.5) -> list[TrendPoint]:
    return [TrendPoint(15.0 * at, step, step_s) for at, step in enumerate(steps)]


def test_one_point_is_kept_for_each_interval_and_an_hour_of_them() -> None:
    book, kept = TrendBook(), ()
    for tick in range(0, 4000, 5):  # a second each
        view = crowd(1, 1, tick=tick)
        kept = book.push(view.snapshot, view.tempos)
    assert len(kept) == KEPT
    assert {b.at_s - a.at_s for a, b in itertools.pairwise(kept)} == {EVERY_S}
    assert kept[-1] == TrendPoint(NOW_S + 3990, 4990, 1.25)


def test_where_nobody_reports_a_step_nothing_is_known_and_no_zero() -> None:
    empty = crowd(0, 1)
    assert TrendBook().push(empty.snapshot, {}) == (TrendPoint(NOW_S + 100, None, None),)


def test_the_pace_is_drawn_as_bars_and_blank_where_nothing_moved() -> None:
    slow, still, fast = (points(*range(4), step_s=step_s) for step_s in (2.0, None, 0.5))
    every = [replace(p, at_s=10.0 * at) for at, p in enumerate([*slow, *still, *fast])]
    line = pace_line(every)
    assert line is not None
    assert (line.bars, line.most, line.span_s) == ("▃▃▃▃    ████", 2.0, 110.0)


def test_an_hour_fits_into_one_line() -> None:
    line = pace_line([TrendPoint(10.0 * at, at, 0.5) for at in range(KEPT)])
    assert line is not None
    assert line.bars == "█" * 60


@pytest.mark.parametrize("given", [[], points(1), points(1, 2, 3, step_s=None)])
def test_of_less_than_two_paces_nothing_is_drawn(given: list[TrendPoint]) -> None:
    assert pace_line(given) is None
