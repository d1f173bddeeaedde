"""The Fleet dashboard: is it moving, who holds it back, what did the keeper do?

Every panel over the whole fleet aggregates (min, median, max, top 10, count by state); single
groups and ranks appear only behind the variables. PromQL is kept to Prometheus 2.42.
"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import dashboard as model

from dashboards import holding_back, keeper, moving
from dashboards.panels import BLUE, DATASOURCE, GRAFANA, RED
from dashboards.selectors import MONITOR

UID: Final = "lightkeeper-fleet"


def fleet() -> dashboard.Dashboard:
    """The dashboard, not yet rendered."""
    board = (
        dashboard.Dashboard("Lightkeeper: fleet")
        .uid(UID)
        .description("A TorchFT job: is it moving, who holds it back, what did the keeper do?")
        .tags(["lightkeeper"])
        .readonly()
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("10s")
    )
    board = _variables(board)
    board = _annotations(board)
    for add in (moving.add, holding_back.add, keeper.add, keeper.add_itself):
        board = add(board)
    return board


def _query_variable(name: str, label: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(DATASOURCE)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(model.VariableOption(text="All", value="$__all"))
    )


def _variables(board: dashboard.Dashboard) -> dashboard.Dashboard:
    url = "http://127.0.0.1:8470"
    return (
        board.with_variable(
            dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
        )
        .with_variable(
            _query_variable("monitor", "Monitor", "label_values(lightkeeper_build_info, instance)")
        )
        .with_variable(
            _query_variable("job_id", "Job", "label_values(lightkeeper_rank_alive, job_id)")
        )
        .with_variable(
            _query_variable(
                "replica_group",
                "Replica group",
                f"label_values(lightkeeper_group_step{{{MONITOR}}}, replica_group)",
            )
        )
        .with_variable(
            dashboard.TextBoxVariable("monitor_url")
            .label("Monitor's URL for links")
            .default_value(url)
            .current(model.VariableOption(text=url, value=url))
        )
        .link(
            dashboard.DashboardLink("Monitor")
            .type(model.DashboardLinkType.LINK)
            .url("${monitor_url}")
            .tooltip("The monitor's own page")
            .target_blank(True)
        )
    )


def _annotation(name: str, colour: str, expr: str, title: str) -> dashboard.AnnotationQuery:
    return (
        dashboard.AnnotationQuery()
        .name(name)
        .datasource(DATASOURCE)
        .enable(True)
        .icon_color(colour)
        .expr(expr)
        .title_format(title)
    )


def _annotations(board: dashboard.Dashboard) -> dashboard.Dashboard:
    return (
        board.annotation(
            _annotation(
                "Evictions",
                RED,
                f"sum by (kind) (increase(lightkeeper_evictions_total{{{MONITOR}}}[1m])) > 0",
                "eviction: {{kind}}",
            )
        )
        .annotation(
            _annotation(
                "Quorum changes",
                BLUE,
                f"changes(lightkeeper_quorum_id{{{MONITOR}}}[1m]) > 0",
                "quorum changed",
            )
        )
        .annotation(_records())
    )


def _records() -> dashboard.AnnotationQuery:
    """What the monitor wrote into Grafana itself (`--grafana`): regions with words and links."""
    tagged = dashboard.AnnotationTarget().limit(100).match_any(False).type("tags")
    return (
        dashboard.AnnotationQuery()
        .name("Incidents, evictions and holds")
        .datasource(GRAFANA)
        .enable(True)
        .icon_color(RED)
        .target(tagged.tags(["lightkeeper"]))  # type: ignore[arg-type]  # the SDK expects a panel's
    )
