"""The past of a job's pace: what is kept of it, and what is drawn."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from lightkeeper.monitor.decide.tempo import Tempo, TrendBook
from lightkeeper.monitor.model.incident import State
from lightkeeper.monitor.model.run import RESOLUTIONS, TrendPoint
from lightkeeper.monitor.model.verdict import RankHealth
from lightkeeper.monitor.show.chart_svg import pace_chart, phase_chart, run_chart, tempo_chart
from lightkeeper.monitor.show.web.pages import Context, PagePlace, fleet_page
from lightkeeper.worker_server.wire import StepRow
from tests.changed import replace
from tests.monitor.decide.scene import hang
from tests.page.parts import html_of
from tests.page.views import NOW_S, crowd

TEMPOS = {"a.0": Tempo(1.25, 0.9)}


def points(count: int, step_s: float | None = 0.5) -> list[TrendPoint]:
    return [TrendPoint(10.0 * at, step_s) for at in range(count)]


def told(book: TrendBook, ticks: range, **more) -> list[tuple[str, TrendPoint]]:
    """What the store gets while these ticks pass, a second and a commit each."""
    views = (crowd(1, 1, tick=tick, **more) for tick in ticks)
    return [point for view in views for point in book.push(view.snapshot, view.tempos)]


def test_an_hour_is_kept_finely_a_week_coarsely_and_no_more() -> None:
    book = TrendBook()
    alive = SimpleNamespace(alive=True)
    for second in range(0, 30 * 3600, 10):
        seen = SimpleNamespace(process=alive, step=SimpleNamespace(made=second))
        book.push(SimpleNamespace(now_s=NOW_S + second, reports={"a.0": seen}), TEMPOS)
    kept = book.points()
    assert {name: len(points) for name, points in kept.items()} == {
        "1h": 360, "24h": 288, "7d": 61,
    }  # fmt: skip
    for name, (every_s, _) in RESOLUTIONS.items():
        assert {b.at_s - a.at_s for a, b in itertools.pairwise(kept[name])} == {every_s}
        assert {point.rate for point in kept[name]} == {1.0}
    assert kept["1h"][-1].step_s == 1.25


def test_a_job_that_stands_is_a_zero_and_a_monitor_that_was_away_a_gap() -> None:
    book = TrendBook()
    told(book, range(0, 31, 5))
    for second in range(35, 61, 5):  # no commit
        view = crowd(1, 1, tick=30)
        book.push(replace(view.snapshot, now_s=NOW_S + second), {})
    told(book, range(300, 331, 5))
    rates = {point.at_s - NOW_S: point.rate for point in book.points()["1h"]}
    assert rates == {0: 1.0, 10: 1.0, 20: 1.0, 30: 0.0, 40: 0.0, 50: 0.0, 60: None, 300: 1.0,
                     310: 1.0, 320: 1.0}  # fmt: skip
    (coarse,) = [point for point in book.points()["24h"] if point.at_s <= NOW_S]
    assert (coarse.rate, coarse.low) == (0.5, 0.0)


def test_a_monitor_that_starts_again_goes_on_with_what_the_store_has() -> None:
    before, after = TrendBook(), TrendBook()
    stored = dict.fromkeys(told(before, range(0, 200, 5)))
    latest = {(name, point.at_s): (name, point) for name, point in stored}
    after.take_over(latest.values())
    assert after.points() == before.points()
    after.take_over([("1h", TrendPoint(0.0, None, 9.9, 9.9)), ("odd", TrendPoint(0.0, None))])
    assert after.points() == before.points()


def test_where_nobody_reports_a_step_nothing_is_known_and_no_zero() -> None:
    book = TrendBook()
    points = told(book, range(0, 25, 5), sick={"rg_0.0": RankHealth.UNREACHABLE})
    assert {(point.rate, point.low) for _, point in points} == {(None, None)}
    assert pace_chart(book.points(), (), NOW_S + 25) is None


def test_the_chart_has_gaps_zeros_and_the_incident_from_its_fault_on() -> None:
    rates = {0: 2.0, 30: 0.0, 90: 1.0}  # a column is 30 s wide; of the third nothing is known
    trend = {"1h": [TrendPoint(NOW_S + at, None, rate, rate) for at, rate in rates.items()]}
    fault = hang(state=State.FIRING, resolution=None)
    fault = replace(
        fault,
        verdict=replace(fault.verdict, since_s=NOW_S + 30),
        milestones=replace(fault.milestones, first_seen_s=NOW_S + 36, firing_s=NOW_S + 42),
    )
    chart = pace_chart(trend, [fault], NOW_S + 100)
    assert chart is not None
    assert chart.columns == 120
    assert list(chart.hits[-4:]) == [
        "2 steps a second", "0 steps a second", "not seen", "1 steps a second",
    ]  # fmt: skip
    assert (chart.paths["still"].count("M"), chart.paths["gap"].count("M")) == (1, 117)
    ((incident, x, _, title),) = chart.marks
    assert incident.began_s == NOW_S + 30
    assert x == 117.33
    assert title.startswith(f"{incident.severity}: ")
    assert title.endswith("so far")


def test_the_strip_shows_the_slow_one_of_three_and_of_a_thousand() -> None:
    for count in (3, 1024):
        tempos = {f"rg_0.{n}": Tempo(1.0, 0.5) for n in range(count)}
        tempos["rg_0.2"] = Tempo(1.0, 0.9)
        chart = tempo_chart(tempos)
        assert chart is not None
        assert chart.columns <= 120
        assert chart.paths["slow"].count("M") == 1
        assert chart.says == "rg_0.2 works longest: 0.9 s a step, the median 0.5 s"
    assert tempo_chart({"rg_0.0": Tempo(1.0, 0.5)}) is None


def test_the_steps_of_a_rank_are_bars_of_their_phases() -> None:
    rows = [StepRow(n, n, 1, 0.0, 1.0, {"forward": 0.2, "backward": 0.4}) for n in range(3)]
    rows.append(StepRow(3, 3, 0, 0.0, 2.0, {"forward": 0.2, "communication": 1.0}))
    drawing = phase_chart(rows)
    assert drawing is not None
    assert [name for _, name in drawing.legend] == ["backward", "communication", "forward"]
    assert drawing.most == 1.2
    assert drawing.hits[-1] == ("step 3, not committed: communication 1 s, forward 0.2 s")
    many = [StepRow(0, 0, 1, 0.0, 1.0, {f"phase{n}": 1.0 + n for n in range(30)})]
    drawing = phase_chart(many)
    assert drawing is not None
    assert len(drawing.legend) == 8
    assert drawing.legend[-1] == ("p7", "others")
    assert phase_chart([]) is None


def test_the_pace_of_a_run_is_drawn_as_bars_and_blank_where_nothing_moved() -> None:
    slow, still, fast = (points(20, step_s) for step_s in (2.0, None, 0.5))
    every = [replace(p, at_s=10.0 * at) for at, p in enumerate([*slow, *still, *fast])]
    chart = run_chart(every)
    assert chart is not None
    assert (chart.paths["low"].count("M"), chart.most) == (40, 2.0)
    assert chart.paths["low"].startswith("M0 100V75h1V100z")


def test_a_path_of_all_columns_reaches_the_page_whole() -> None:
    hour = [TrendPoint(NOW_S + 100 - 10.0 * n, None, 2.0 + n % 7, 1.0 + n % 5) for n in range(360)]
    chart = pace_chart({"1h": hour}, (), NOW_S + 100)
    assert chart is not None
    assert len(chart.paths["mean"]) > 2000
    view = crowd(2, 1, trend={"1h": hour})
    page = html_of(fleet_page(Context(view, PagePlace("fleet"))))
    assert all(f'd="{path}"' in page for path in chart.paths.values() if path)


@pytest.mark.parametrize("given", [[], points(1), points(3, None)])
def test_of_less_than_two_paces_nothing_is_drawn(given: list[TrendPoint]) -> None:
    assert run_chart(given) is None
