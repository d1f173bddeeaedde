import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dashboards import render
from tests.dashboards.contract import EXPORTED
from tests.dashboards.promql import metrics

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "dashboards" / "prometheus"
BOARDS = sorted((ROOT / "dashboards" / "grafana").glob("*.json"))

each_board = pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)


def load(path):
    return json.loads(path.read_text())


def panels(board):
    return [panel for panel in render.panels_of(board) if panel["type"] != "row"]


def from_prometheus(board):
    """Annotations that are no records of the monitor's own."""
    return [one for one in board["annotations"]["list"] if one["datasource"]["type"] != "grafana"]


def expressions(board):
    for panel in panels(board):
        for target in panel["targets"]:
            yield f"panel {panel['title']}", target["expr"]
    for annotation in from_prometheus(board):
        yield f"annotation {annotation['name']}", annotation["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            inside = re.fullmatch(r"label_values\((.*), \w+\)", variable["query"])
            yield f"variable {variable['name']}", inside[1]


def rules(path):
    """(what it is called, expression) of each rule; every expression is on one line."""
    pairs = re.findall(r"- (?:record|alert): (\S+)\n\s+expr: (.+)\n", path.read_text())
    assert len(pairs) == path.read_text().count("expr:")
    return pairs


def test_there_is_a_fleet_dashboard():
    assert [path.stem for path in BOARDS] == ["fleet"]


@pytest.mark.filterwarnings("ignore:Prefer using dashboardv2:DeprecationWarning")
def test_the_committed_json_is_what_the_python_says():
    pytest.importorskip("grafana_foundation_sdk", reason="a development extra")

    assert render.differing() == []


@each_board
def test_the_dashboard_follows_grafanas_schema(path):
    jsonschema = pytest.importorskip("jsonschema", reason="a development extra")
    schema = ROOT.parent / "shared" / "data" / "grafana" / "dashboard.schema.json"
    if not schema.exists():
        pytest.skip(f"{schema} is not here")
    board = load(path)
    for annotation in from_prometheus(board):
        # Grafana reads these of Prometheus annotations; its published schema has lost them.
        del annotation["expr"], annotation["titleFormat"]

    errors = jsonschema.Draft7Validator(load(schema)).iter_errors(board)

    assert [f"{list(error.path)}: {error.message}" for error in errors] == []


def test_what_the_monitor_writes_into_grafana_is_shown_by_its_tag():
    (one,) = [
        one
        for one in load(BOARDS[0])["annotations"]["list"]
        if one["datasource"] == {"type": "grafana", "uid": "-- Grafana --"}
    ]
    assert (one["target"]["type"], one["target"]["tags"]) == ("tags", ["lightkeeper"])


@each_board
def test_every_metric_of_a_panel_is_exported(path):
    named = {where: metrics(expr) for where, expr in expressions(load(path))}

    assert {where: names - EXPORTED for where, names in named.items() if names - EXPORTED} == {}
    assert {where for where, names in named.items() if not names} == set()


def test_every_metric_of_a_rule_or_alert_is_exported_or_recorded():
    recorded = rules(PROMETHEUS / "rules.yml")
    alerts = rules(PROMETHEUS / "alerts.yml")
    known = EXPORTED | {name for name, _ in recorded}

    unknown = {name: metrics(expr) - known for name, expr in [*recorded, *alerts]}
    assert {name: names for name, names in unknown.items() if names} == {}


@pytest.mark.parametrize(
    ("expr", "named"),
    [
        pytest.param("sum by (kind) (rate(a_total[5m])) > 0", {"a_total"}, id="label-list"),
        pytest.param('up{job="x", b=~"c"} == 0 or vector(0)', {"up"}, id="matchers"),
        pytest.param("topk(10, a / scalar(quantile(0.5, b)))", {"a", "b"}, id="two"),
        pytest.param("time() - max(a:b:rate1m{x='y'})", {"a:b:rate1m"}, id="recorded"),
        pytest.param("rate(a[$__rate_interval]) * 1e3", {"a"}, id="grafana-interval"),
    ],
)
def test_names_of_metrics_are_found_in_promql(expr, named):
    assert metrics(expr) == named


@each_board
def test_every_panel_says_what_it_means_and_in_which_unit(path):
    silent = [
        panel["title"]
        for panel in panels(load(path))
        if len(panel.get("description", "")) < 30 or not panel["fieldConfig"]["defaults"]["unit"]
    ]

    assert silent == []


@each_board
def test_ids_and_places_of_panels_do_not_collide(path):
    board = load(path)
    every = list(render.panels_of(board))
    taken = set()
    for panel in panels(board):
        spot = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(spot["x"], spot["x"] + spot["w"])
            for y in range(spot["y"], spot["y"] + spot["h"])
        }
        assert not cells & taken, panel["title"]
        assert spot["x"] + spot["w"] <= 24, panel["title"]
        taken |= cells

    assert len({panel["id"] for panel in every}) == len(every)


@each_board
def test_every_variable_in_use_is_declared_and_every_query_goes_to_the_chosen_source(path):
    text = path.read_text()
    board = load(path)
    declared = {variable["name"] for variable in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", text))

    assert used <= declared
    sources = {panel["datasource"]["uid"] for panel in panels(board)}
    assert sources == {"${datasource}"}


@each_board
def test_a_panel_over_the_whole_fleet_aggregates(path):
    # A line per rank of 10,000 is no panel: tens of MB, and nobody can read it.
    raw = [
        (where, expr)
        for where, expr in expressions(load(path))
        if where.startswith("panel")
        and any(name.startswith("lightkeeper_rank_") for name in metrics(expr))
        and not re.match(r"(time\(\) - )?(sum|min|max|avg|quantile|topk|count)\b", expr)
    ]

    assert raw == []


@pytest.mark.parametrize("kind", ["config prometheus.example.yml", "rules rules.yml alerts.yml"])
def test_promtool_accepts_what_prometheus_loads(kind):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")

    done = subprocess.run(
        [promtool, "check", *kind.split()],
        cwd=PROMETHEUS, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_commented_lines_of_the_example_are_ready_to_use():
    import yaml

    text = (PROMETHEUS / "prometheus.example.yml").read_text()
    uncommented = re.sub(r"(?m)^    # (authorization:|tls_config:|  \w+: \S+$)", r"    \1", text)
    ranks = yaml.safe_load(uncommented)["scrape_configs"][1]

    assert ranks["authorization"] == {
        "type": "Bearer", "credentials_file": "/etc/lightkeeper/token",
    }  # fmt: skip
    assert ranks["tls_config"] == {"ca_file": "/etc/lightkeeper/ca.pem"}
    assert "authorization" not in yaml.safe_load(text)["scrape_configs"][1]
