"""The last hour of a job: how many points are kept, and what is drawn of them."""

from __future__ import annotations

import itertools

import pytest

from lightkeeper.monitor.decide.tempo import EVERY_S, KEPT, TrendBook
from lightkeeper.monitor.model.incident import Milestones, State, Transition
from lightkeeper.monitor.model.run import TrendPoint
from lightkeeper.monitor.show.pages import CHART_WIDTH, sparks
from tests.changed import replace
from tests.monitor.decide.scene import hang
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


def test_the_commits_of_a_minute_fall_to_zero_in_a_hang() -> None:
    pace, commits = sparks(points(0, 30, 60, 60, 60, 90), [])
    assert (pace.most, commits.most, commits.span_s) == (2.0, 120.0, 75.0)
    assert commits.lines == ("48,2.0 96,2.0 144,34.0 192,34.0 240,2.0",)


def test_a_job_that_began_anew_made_no_negative_steps() -> None:
    _, commits = sparks(points(500, 530, 10, 40), [])
    assert commits.lines == ("80,2.0 160,34.0 240,2.0",)


def test_where_nobody_looked_the_line_is_broken() -> None:
    before = points(0, 30, 60)
    after = [
        replace(point, at_s=point.at_s + 600.0, step=(point.step or 0) + 900) for point in before
    ]
    _, commits = sparks([*before, *after], [])
    assert len(commits.lines) == 2
    pace, _ = sparks([*points(0, 30, 60, step_s=None), *after], [])
    assert len(pace.lines) == 1


def test_a_line_of_one_value_is_not_drawn() -> None:
    (pace,) = sparks(points(None, 7, 7), [])
    assert pace.name == "steps a second"


@pytest.mark.parametrize("count", [0, 1, 2])
def test_of_two_points_nothing_is_drawn(count: int) -> None:
    assert sparks(points(*range(count)), []) == ()


def test_incidents_are_marked_where_they_were_and_an_open_one_to_the_end() -> None:
    def incident(first_s: float, ended_s: float | None):
        story = () if ended_s is None else (Transition(ended_s, State.RESOLVED, "over"),)
        state = State.FIRING if ended_s is None else State.RESOLVED
        return replace(hang(), state=state, story=story, milestones=Milestones(first_s))

    incidents = [incident(15.0, 30.0), incident(45.0, None), incident(-50.0, -20.0)]
    spark, _ = sparks(points(0, 30, 60, 90, 120), incidents)
    assert [(mark.x, mark.width) for mark in spark.marks] == [
        (CHART_WIDTH / 4, CHART_WIDTH / 4), (3 * CHART_WIDTH / 4, CHART_WIDTH / 4),
    ]  # fmt: skip
