import json
import re
import shutil
import subprocess
from collections import Counter

import pytest

from lightkeeper.dashboards.selectors import (
    CAUSES,
    EVICTION,
    GREY,
    GROUP_STATE,
    HEALTH,
    JOB_STATE,
    SELF_HEALTH,
)
from lightkeeper.monitor.detect.self_health import Condition
from lightkeeper.monitor.model.eviction import EvictionState, Guard
from lightkeeper.monitor.model.verdict import Kind
from lightkeeper.monitor.show.metrics import JOB_STATES, STATES
from lightkeeper.monitor.show.wording import LOOKS
from tests.dashboards.boards import PATHS, ROOT, expressions, load, panels, targets, variables
from tests.dashboards.contract import EXPORTED
from tests.dashboards.promql import metrics
from tests.dashboards.render import render
from tests.metrics_doc.catalogue import every

PROMETHEUS = ROOT / "dashboards" / "prometheus"
WALL_ROWS = 24
"""Units of 38 pixels: 912 of the 1,080 of a wall screen; menu, controls and variables have 168."""

each_board = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def test_there_are_six_dashboards_with_uids_of_their_own():
    assert {path.stem: load(path)["uid"] for path in PATHS} == {
        name: f"lightkeeper-{name}"
        for name in ("fleet", "groups", "incidents", "keeper", "rank", "stragglers")
    }


def test_the_committed_files_are_what_the_python_says():
    assert render(write=False) == []


@each_board
def test_the_dashboard_follows_grafanas_schema(path):
    jsonschema = pytest.importorskip("jsonschema", reason="a development extra")
    schema = ROOT.parent / "shared" / "data" / "grafana" / "dashboard.schema.json"
    if not schema.exists():
        pytest.skip(f"{schema} is not here")
    board = load(path)
    for annotation in board["annotations"]["list"]:
        # Grafana reads these of Prometheus annotations; its published schema has lost them.
        del annotation["expr"], annotation["titleFormat"], annotation["step"]

    errors = jsonschema.Draft7Validator(load(schema)).iter_errors(board)

    assert [f"{list(error.path)}: {error.message}" for error in errors] == []


@each_board
def test_every_metric_of_a_panel_is_exported(path):
    named = {where: metrics(expr) for where, expr in expressions(load(path))}

    assert {where: names - EXPORTED for where, names in named.items() if names - EXPORTED} == {}
    assert {where for where, names in named.items() if not names} == set()


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
def test_ids_and_places_of_panels_do_not_collide(path):
    board = load(path)
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

    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)


@each_board
def test_panels_fill_their_rows(path):
    # a gap is where two widths do not add up
    lines = {}
    for panel in panels(load(path)):
        spot = panel["gridPos"]
        lines.setdefault(spot["y"], []).append(spot["w"])
    assert {y: sum(widths) for y, widths in lines.items()} == dict.fromkeys(lines, 24)


def test_fleet_fits_a_wall_without_scrolling():
    (board,) = [load(path) for path in PATHS if path.stem == "fleet"]
    lowest = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    assert lowest <= WALL_ROWS


def test_no_panel_stands_twice_and_no_query_is_asked_on_two_dashboards():
    boards = [load(path) for path in PATHS]
    titles = Counter(panel["title"] for board in boards for panel in panels(board))
    asked = Counter(expr for board in boards for expr in {expr for _, expr in targets(board)})
    assert [title for title, times in titles.items() if times > 1] == []
    assert [expr for expr, times in asked.items() if times > 1] == []


@each_board
def test_every_variable_in_use_is_declared_and_carried_from_board_to_board(path):
    board = load(path)
    used = set(re.findall(r"\$\{?([a-z]\w*)", path.read_text()))
    assert used <= set(variables(board))

    (others,) = [link for link in board["links"] if link["type"] == "dashboards"]
    assert (others["tags"], others["keepTime"], others["includeVars"]) == (
        ["lightkeeper"],
        True,
        True,
    )
    assert "lightkeeper" in board["tags"]
    assert board["graphTooltip"] == 1


@each_board
def test_links_go_to_pages_of_the_monitor_or_to_a_dashboard_of_ours(path):
    ours = re.compile(
        r"\$\{monitor_url\}/(ranks|groups|hosts|incidents)/\$\{__[^}]+\}(\.\$\{__[^}]+\})?"
        r"|\$\{monitor_url\}/v1/ranks/\$\{__[^}]+\}\.\$\{__[^}]+\}/(stacks|flight_recorder|state)"
        r"|/d/(" + "|".join(load(other)["uid"] for other in PATHS) + r")\?\S+"
        r"|\$\{(node|gpu)_dashboard\}\$\{__value.text\}"
    )
    for panel in panels(load(path)):
        field = panel["fieldConfig"]
        links = list(field["defaults"].get("links", []))
        for override in field["overrides"]:
            links += [link for entry in override["properties"] if entry["id"] == "links"
                      for link in entry["value"]]  # fmt: skip
        for link in links:
            assert ours.fullmatch(link["url"]), (panel["title"], link)
            assert link["targetBlank"] == link["url"].startswith("${monitor_url}")


@each_board
def test_of_two_jobs_one_is_chosen(path):
    chosen = variables(load(path))
    for name in ("cluster", "namespace", "job"):
        assert (chosen[name]["multi"], chosen[name]["includeAll"]) == (False, False)
    assert "allValue" not in chosen["instance"]
    assert (
        '{cluster="$cluster", namespace="$namespace", job_id="$job"}'
        in (chosen["instance"]["query"])
    )


@each_board
def test_a_dashboard_has_no_variable_that_does_nothing(path):
    board = load(path)
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps([board["panels"], board["annotations"]])))
    asked = {"datasource", "cluster", "namespace", "job", "instance", "monitor_url"}
    assert set(variables(board)) - used - asked == set()


@each_board
def test_curves_and_bands_have_a_legend(path):
    for panel in panels(load(path)):
        if panel["type"] in {"timeseries", "state-timeline"}:
            assert panel["options"]["legend"]["showLegend"], panel["title"]
            crowd = "{{replica_group}}" in panel["targets"][0]["legendFormat"]
            at = panel["options"]["legend"]["placement"]
            assert at == ("right" if crowd and panel["type"] == "timeseries" else "bottom")
            custom = panel["fieldConfig"]["defaults"]["custom"]
            counts = custom.get("drawStyle") != "line" or custom["stacking"]["mode"] == "normal"
            several = len(panel["targets"]) > 1 or "{{" in panel["targets"][0]["legendFormat"]
            calcs = {*panel["options"]["legend"].get("calcs", [])}
            assert ({"mean", "max"} <= calcs) == (several and not counts), panel["title"]


@each_board
def test_what_is_not_known_is_grey(path):
    for panel in panels(load(path)):
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert steps[0] == {"value": None, "color": GREY}, panel["title"]
        if panel["type"] == "stat":
            *_, last = panel["fieldConfig"]["defaults"]["mappings"]
            assert last["options"]["match"] == "null+nan"
            assert last["options"]["result"]["color"] == GREY, panel["title"]


@each_board
def test_empty_cells_do_not_speak_for_the_panel(path):
    for panel in panels(load(path)):
        for override in panel["fieldConfig"]["overrides"] if panel["type"] == "table" else ():
            said = {entry["id"]: entry["value"] for entry in override["properties"]}
            assert said["noValue"] == "-", (panel["title"], override["matcher"]["options"])


@each_board
def test_counts_are_of_the_time_between_two_bars_and_that_is_a_minute_at_least(path):
    for panel in panels(load(path)):
        if panel["fieldConfig"]["defaults"]["custom"].get("drawStyle") == "bars":
            assert panel["interval"] == "1m", panel["title"]
            for target in panel["targets"]:
                assert "offset $__interval" in target["expr"], panel["title"]
                assert "increase(" not in target["expr"], panel["title"]


@each_board
def test_no_colours_are_turned_round_in_the_dark_theme(path):
    for panel in panels(load(path)):
        if panel["type"] == "heatmap":
            colour = panel["options"]["color"]
            assert colour["mode"] == "opacity" or colour["scheme"] == "Turbo", panel["title"]


def test_every_colour_is_one_that_grafana_knows():
    hues = ("red", "orange", "yellow", "green", "blue", "purple")
    shades = ("", "dark-", "semi-dark-", "light-", "super-light-")
    palette = {f"{shade}{hue}" for hue in hues for shade in shades} | {GREY}
    for path in PATHS:
        colours = re.findall(r'"(?:color|fixedColor|fill|iconColor)": "([^"]+)"', path.read_text())
        assert set(colours) - palette == set()


def test_every_cause_of_lost_time_has_a_colour_of_its_own():
    causes = {"training", "cause not known yet", *map(str, Kind), "recovering", "starting",
            "checkpoint", "evaluation", "compile", "failed_commit", "unexplained"}  # fmt: skip
    assert set(CAUSES) == causes
    assert Counter(CAUSES.values()).most_common(1)[0][1] == 1


def test_states_have_one_colour_and_a_shape_of_their_own():
    shown = [text for text, _ in GROUP_STATE.values()]
    assert [text.split()[1] for text in shown] == list(HEALTH)
    assert Counter(text.split()[0] for text in shown).most_common(1)[0][1] == 1
    assert Counter(colour for _, colour in HEALTH.values()).most_common(1)[0][1] == 1


def test_numbers_names_and_signs_of_states_are_those_of_the_monitor():
    assert {state: code for code, state in enumerate(HEALTH)} == STATES
    assert {*JOB_STATE} == {*map(str, JOB_STATES.values()), "12"}
    for state in ("training", "late", "stalling", "pausing", "ended"):
        assert state in JOB_STATE[str(JOB_STATES[state])][0]
    signs = {text.split()[1]: text.split()[0] for text, _ in GROUP_STATE.values()}
    assert signs == {state: LOOKS[state].glyph for state in signs}
    assert set(SELF_HEALTH) == {str(condition) for condition in Condition}
    assert set(EVICTION) == {*map(str, EvictionState), Guard.WATCH_ONLY, Guard.ALREADY_GONE}


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


@each_board
def test_a_zero_is_said_only_while_a_monitor_is_seen(path):
    # `or vector(0)` stays green after the monitor has died; the one that says so may use vector
    made_up = [title for title, expr in targets(load(path)) if "vector(" in expr]
    assert made_up == (["The keeper"] if path.stem == "fleet" else [])


KEEPERS = frozenset(
    name
    for entry in every()
    if "without a Lighthouse" in entry.absent or "Lighthouse answers" in entry.absent
    for name in entry.names
) | {"lightkeeper_evictions_total", "lightkeeper_holds_total"}
"""What a monitor without a Lighthouse does not export."""


@each_board
def test_without_a_lighthouse_no_panel_is_empty_or_zero(path):
    """A panel about quorums or evictions says that there is none; a table lacks the column."""
    dumb = [
        title
        for title, expr in targets(load(path))
        if metrics(expr) <= KEEPERS | {"lightkeeper_groups", "lightkeeper_group_state"}
        and metrics(expr) & KEEPERS
        and "unless on" not in expr
    ]
    assert dumb == (["Groups, worst first"] if path.stem == "groups" else [])
