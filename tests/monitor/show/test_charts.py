"""The last hour of a job: how many points are kept, and what is drawn of them."""

from __future__ import annotations

import itertools

import pytest

from lightkeeper.monitor.decide.tempo import EVERY_S, KEPT, TrendBook
from lightkeeper.monitor.model.run import TrendPoint
from lightkeeper.monitor.show.web.pages import pace_line
from tests.changed import replace
from tests.page.views import NOW_S, crowd


def points(count: int, step_s: float | None = 0.5) -> list[TrendPoint]:
    return [TrendPoint(10.0 * at, step_s) for at in range(count)]


def test_one_point_is_kept_for_each_interval_and_an_hour_of_them() -> None:
    book, kept = TrendBook(), ()
    for tick in range(0, 4000, 5):  # a second each
        view = crowd(1, 1, tick=tick)
        kept = book.push(view.snapshot.now_s, view.tempos)
    assert len(kept) == KEPT
    assert {b.at_s - a.at_s for a, b in itertools.pairwise(kept)} == {EVERY_S}
    assert kept[-1] == TrendPoint(NOW_S + 3990, 1.25)


def test_where_nobody_reports_a_step_nothing_is_known_and_no_zero() -> None:
    assert TrendBook().push(NOW_S, {}) == (TrendPoint(NOW_S, None),)


def test_the_pace_is_drawn_as_bars_and_blank_where_nothing_moved() -> None:
    slow, still, fast = (points(4, step_s) for step_s in (2.0, None, 0.5))
    every = [replace(p, at_s=10.0 * at) for at, p in enumerate([*slow, *still, *fast])]
    line = pace_line(every)
    assert line is not None
    assert (line.bars, line.most, line.span_s) == ("▃▃▃▃    ████", 2.0, 110.0)


def test_an_hour_fits_into_one_line() -> None:
    line = pace_line(points(KEPT))
    assert line is not None
    assert line.bars == "█" * 60


@pytest.mark.parametrize("given", [[], points(1), points(3, None)])
def test_of_less_than_two_paces_nothing_is_drawn(given: list[TrendPoint]) -> None:
    assert pace_line(given) is None
