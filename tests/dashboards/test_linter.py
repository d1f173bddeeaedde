"""Those rules of Grafana's dashboard linter that find wrong queries, on the committed JSON.

https://github.com/grafana/dashboard-linter (docs/index.md names the rules). Where another of its
rules does not fit, `dashboards/grafana/.lint` says why, in the linter's own format.
"""

import re
import shutil
import subprocess

import pytest
import yaml

from tests.dashboards.boards import (
    INTERVALS,
    PATHS,
    expressions,
    filled,
    load,
    panels,
    selectors,
    targets,
)

each_board = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


@each_board
def test_panel_title_description(path):
    shown = panels(load(path))
    assert [panel["title"] for panel in shown if len(panel.get("description", "")) < 40] == []


@each_board
def test_panel_units(path):
    for panel in panels(load(path)):
        defaults = panel["fieldConfig"]["defaults"]
        unit = defaults["unit"]
        units = {"none", "short", "s", "bytes", "percentunit"}
        assert unit in units or unit.startswith("suffix:")
        assert defaults["noValue"], panel["title"]


@each_board
def test_target_rate_interval(path):
    # `increase` may be over the whole shown time; what is said of now is of minutes that no time
    # picker changes
    for panel in panels(load(path)):
        for target in panel["targets"]:
            allowed = {INTERVALS["__rate_interval"]}
            if target["instant"]:
                allowed = {"5m", "1h", "1d"}
            expr = filled(target["expr"])
            for function, length in re.findall(r"(\w+)\([^()\[]*\[([^\]]+)\]", expr):
                if function in {"rate", "irate"}:
                    assert length in allowed, panel["title"]
                if function == "increase":
                    assert length in {*allowed, INTERVALS["__range"]}, panel["title"]


@each_board
def test_required_matchers(path):
    # stands for target-job and target-instance: every series is of the chosen job, but for those
    # tables that have a row for each job
    for title, expr in targets(load(path)):
        if title in {"Jobs", "Alerts"}:
            assert "$job" not in expr, title
            continue
        chosen = selectors(expr)
        assert chosen, title
        for metric, matchers in chosen:
            assert 'cluster="$cluster", namespace="$namespace"' in matchers
            of_rank = 'job_id="$job"' in matchers
            assert of_rank or 'instance=~"$instance"' in matchers, (title, metric)


@each_board
def test_counter_agg(path):
    # a counter is read by its growth, or against itself a while ago
    for title, expr in targets(load(path)):
        for metric, _ in selectors(expr):
            if not metric.endswith("_total"):
                continue
            grows = rf"(?:rate|increase)\({metric}\{{[^}}]*\}}\["
            against = rf"last_over_time\({metric}\{{[^}}]*\}}\[5m\] offset "
            ever = rf"max\({metric}\{{[^}}]*\}}\) > 0"
            assert re.search(f"{grows}|{against}|{ever}", expr), (title, metric)


@each_board
def test_histogram(path):
    # quantiles of buckets summed with `le` kept; buckets nowhere else but in heat maps
    for panel in panels(load(path)):
        for target in panel["targets"]:
            expr = target["expr"]
            if "_bucket{" not in expr:
                continue
            assert re.search(r"sum by \(le\b", expr), panel["title"]
            assert "histogram_quantile(" in expr or target["format"] == "heatmap", panel["title"]


@each_board
def test_target_promql(path, tmp_path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (apt-get install prometheus)")
    asked = [expr for _, expr in expressions(load(path))]
    records = [
        {"record": f"panel:{number}", "expr": filled(expr)} for number, expr in enumerate(asked)
    ]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": records}]}))

    done = subprocess.run(
        [promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(records)} rules found" in done.stdout
