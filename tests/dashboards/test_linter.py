"""The rules of Grafana's dashboard linter, on the committed JSON, offline.

https://github.com/grafana/dashboard-linter (docs/index.md names the rules). Where one does not
fit, `dashboards/grafana/.lint` says why, in the linter's own format, and the last test checks that
each exclusion is still needed.
"""

import re
import shutil
import subprocess
from collections import Counter

import pytest
import yaml

from tests.dashboards.boards import (
    INTERVALS,
    PATHS,
    ROOT,
    filled,
    load,
    panels,
    selectors,
    targets,
    variables,
)

each_board = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)

EXCLUDED = yaml.safe_load((ROOT / "dashboards" / "grafana" / ".lint").read_text())["exclusions"]
RESETS = {"rate", "irate", "increase"}


@each_board
def test_template_datasource(path):
    (source,) = [one for one in variables(load(path)).values() if one["type"] == "datasource"]
    assert (source["name"], source["label"], source["query"]) == (
        "datasource", "Data source", "prometheus",
    )  # fmt: skip


@each_board
def test_template_job_and_instance_but_for_what_is_excluded(path):
    found = variables(load(path))
    for name, label in (("job", "Job"), ("instance", "Monitor"), ("group", "Group")):
        one = found[name]
        assert (one["type"], one["label"], one["multi"], one["includeAll"], one["allValue"]) == (
            "query", label, True, True, ".+",
        )  # fmt: skip
        assert one["datasource"]["uid"] == "${datasource}"


@each_board
def test_template_on_time_change_reload(path):
    queries = [one for one in variables(load(path)).values() if one["type"] == "query"]
    assert {one["name"]: one["refresh"] for one in queries} == {one["name"]: 2 for one in queries}


@each_board
def test_panel_datasource(path):
    for panel in panels(load(path)):
        sources = [panel["datasource"], *(one["datasource"] for one in panel["targets"])]
        assert {(one["type"], one["uid"]) for one in sources} == {("prometheus", "${datasource}")}


@each_board
def test_panel_title_description(path):
    found = panels(load(path))
    assert [one["title"] for one in found if len(one.get("description", "")) < 40] == []
    assert Counter(one["title"] for one in found).most_common(1)[0][1] == 1


@each_board
def test_panel_units(path):
    for panel in panels(load(path)):
        defaults = panel["fieldConfig"]["defaults"]
        unit = defaults["unit"]
        assert unit in {"none", "s", "bytes", "percentunit"} or unit.startswith("suffix:")
        assert defaults["noValue"], panel["title"]


@each_board
def test_panel_no_targets(path):
    assert [one["title"] for one in panels(load(path)) if not one["targets"]] == []


@each_board
def test_target_rate_interval(path):
    # `increase` may be over the whole shown time: the number that a tile shows
    for title, expr in targets(load(path)):
        for function, length in re.findall(r"(\w+)\([^()\[]*\[([^\]]+)\]", filled(expr)):
            if function in RESETS - {"increase"}:
                assert length == INTERVALS["$__rate_interval"], title
            if function == "increase":
                assert length in {INTERVALS["$__rate_interval"], INTERVALS["$__range"]}, title


@each_board
def test_required_matchers(path):
    # stands for target-job and target-instance: every series is of the chosen job
    for title, expr in targets(load(path)):
        found = selectors(expr)
        assert found, title
        for metric, matchers in found:
            of_rank = 'job_id=~"$job"' in matchers
            assert of_rank or 'instance=~"$instance"' in matchers, (title, metric)


@each_board
def test_counter_agg(path):
    # a counter is read by its growth; the two that are sums of processes that live now are named
    bare = {"lightkeeper_group_heals_total"}
    for title, expr in targets(load(path)):
        for metric, _ in selectors(expr):
            if not metric.endswith("_total") or metric in bare:
                continue
            grows = rf"(?:rate|increase)\({metric}\{{[^}}]*\}}\["
            assert re.search(grows, expr), (title, metric)


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
def test_uneditable(path):
    assert load(path)["editable"] is False


@each_board
def test_target_promql(path, tmp_path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (apt-get install prometheus)")
    board = load(path)
    asked = [expr for _, expr in targets(board)]
    asked += [one["expr"] for one in board["annotations"]["list"]]
    asked += [
        one["query"].removeprefix("label_values(").rpartition(",")[0]
        for one in variables(board).values()
        if one["type"] == "query"
    ]
    records = [
        {"record": f"panel:{number}", "expr": filled(expr, topn="40")}
        for number, expr in enumerate(asked)
    ]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": records}]}))

    done = subprocess.run(
        [promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(records)} rules found" in done.stdout


def test_what_is_excluded_is_really_needed():
    boards = [load(path) for path in PATHS]
    assert all("job_id" in variables(board)["job"]["query"] for board in boards)
    chosen = [matchers for board in boards for _, expr in targets(board)
              for _, matchers in selectors(expr)]  # fmt: skip
    assert not any('job=~"$job"' in re.split(r",\s*", one) for one in chosen)
    assert any("instance=~" not in one for one in chosen)
    assert "lightkeeper_group_heals_total" in str(boards)
    assert set(EXCLUDED) == {
        "template-job-rule", "template-instance-rule", "target-job-rule", "target-instance-rule",
        "target-counter-agg-rule",
    }  # fmt: skip
    assert all(len(one["reason"]) > 40 for one in EXCLUDED.values())
