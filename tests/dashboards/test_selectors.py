"""What the pieces of PromQL that all dashboards use make of odd series; promtool reckons."""

import shutil
import subprocess

import pytest
import yaml

from lightkeeper.dashboards.selectors import (
    KEEPER_STATE,
    ZERO,
    events,
    grown,
    keeper_state,
    worst_first,
)
from tests.dashboards.boards import filled

COUNTER = 'c_total{instance=~"$instance"}'
SPAN = "20s"


def evaluate(tmp_path, expr, at, expected, **series):
    samples = [] if expected is None else [{"labels": '{kind="hang"}', "value": expected}]
    promtool(tmp_path, expr, at, samples, **series)


def promtool(tmp_path, expr, at, samples, **series):
    """promtool's word on `expr` at a moment; samples are 5 s apart."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (apt-get install prometheus)")
    labels = '{instance="m", kind="hang"}'
    times = {"__interval": SPAN, "__range": SPAN}
    test = {
        "interval": "5s",
        "input_series": [
            {"series": name if "{" in name else f"{name}{labels}", "values": values}
            for name, values in series.items()
        ],
        "promql_expr_test": [
            {"expr": filled(expr, **times), "eval_time": at, "exp_samples": samples}
        ],
    }
    file = tmp_path / "test.yml"
    file.write_text(
        yaml.safe_dump({"rule_files": [], "evaluation_interval": "5s", "tests": [test]})
    )
    done = subprocess.run(
        [program, "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("values", "at", "counted"),
    [
        pytest.param("_x10 1x40", "55s", 1, id="its-first-event-is-counted"),
        pytest.param("_x10 1x40", "2m", 0, id="and-not-for-ever"),
        pytest.param("7x10 _x2 7x40", "1m5s", 0, id="a-missed-scrape-is-no-event"),
        pytest.param("7x10 stale _x1 7x40", "1m5s", 0, id="nor-is-a-failed-one"),
        pytest.param("_x40", "2m", None, id="nothing-is-not-zero"),
    ],
)
def test_growth_counts_births_and_no_gaps(tmp_path, values, at, counted):
    evaluate(tmp_path, grown(COUNTER, by="kind"), at, counted, c_total=values)


@pytest.mark.parametrize(
    ("values", "at", "counted"),
    [
        pytest.param("_x10 1x40", "1m", 1, id="its-first-event-is-counted"),
        pytest.param("_x10 1x40", "1m20s", 0, id="and-in-one-bar-only"),
        pytest.param("3x10 5x40", "1m", 2, id="whole-numbers-whatever-the-scrapes"),
        pytest.param("7x10 _x2 7x40", "1m5s", 0, id="a-missed-scrape-is-no-event"),
        pytest.param("7x10 2x40", "1m", 2, id="after-a-restart-it-counts-from-zero"),
        pytest.param("_x40", "2m", None, id="nothing-is-not-zero"),
    ],
)
def test_an_event_is_in_one_bar(tmp_path, values, at, counted):
    evaluate(tmp_path, events(COUNTER, by="kind"), at, counted, c_total=values)


def test_the_worst_are_first_by_the_label_by_which_prometheus_sorts(tmp_path):
    state = 's{instance=~"$instance"}'
    series = {f's{{instance="m", g="{group}"}}': f"{worst}x2 0x40" for group, worst in
              (("a", 3), ("b", 11), ("c", 0))}  # fmt: skip
    expected = [
        {"labels": f'{{_order="{order}", g="{group}"}}', "value": 0}
        for group, order in (("b", 9988), ("a", 9996))
    ]
    most = f"max_over_time({state}[$__range] @ end())"
    expr = worst_first(state, "g", most).replace("$topn", "2")

    promtool(tmp_path, expr, "20s", expected, **series)


@pytest.mark.parametrize(
    ("monitor", "expected"), [("1x40", 0), ("1x10 stale", None)], ids=["seen", "gone"]
)
def test_no_event_is_zero_only_while_the_monitor_is_seen(tmp_path, monitor, expected):
    count = grown(COUNTER, by="kind")
    expr = f"label_replace({count} or {ZERO}, 'kind', 'hang', '', '')"
    evaluate(tmp_path, expr, "2m", expected, lightkeeper_self_health_scale=monitor)


WELL = {
    "lighthouse_up": 1, "self_health_scale": 1, "paused": 0, "observe_mode": 0, "monitor_active": 1,
}  # fmt: skip

ALONE = dict.fromkeys(("lighthouse_up", "paused", "observe_mode"))


@pytest.mark.parametrize(
    ("differs", "said"),
    [
        pytest.param({}, "● acts", id="acts"),
        pytest.param(ALONE, "○ no Lighthouse", id="without-a-lighthouse"),
        pytest.param({**ALONE, "self_health_scale": 2}, "◇ doubts itself", id="alone-and-doubts"),
        pytest.param({"observe_mode": 1}, "◐ observes", id="observes"),
        pytest.param({"observe_mode": 1, "paused": 1}, "■ paused", id="paused"),
        pytest.param({"self_health_scale": 2}, "◇ doubts itself", id="doubts"),
        pytest.param({"paused": 1, "self_health_scale": 2}, "■ paused", id="a-person-ends-it"),
        pytest.param({"monitor_active": 0, "paused": 1}, "○ stands by", id="another-acts"),
        pytest.param(
            {"self_health_scale": 2, "lighthouse_up": 0}, "▲ Lighthouse away", id="lighthouse-away"
        ),
        pytest.param(dict.fromkeys(WELL), "✕ not seen", id="gone"),
    ],
)
def test_the_keeper_says_the_worst_that_keeps_it_from_acting(tmp_path, differs, said):
    series = {
        f"lightkeeper_{name}": f"{value}x40"
        for name, value in {**WELL, **differs}.items()
        if value is not None
    }
    (code,) = [int(code) for code, (text, _) in KEEPER_STATE.items() if text == said]
    expr = f"label_replace(max({keeper_state()}) or vector(7), 'kind', 'hang', '', '')"

    evaluate(tmp_path, expr, "1m", code, **series)
