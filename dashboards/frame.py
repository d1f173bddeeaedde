"""What all dashboards share: variables, annotations, links to each other and to the monitor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import dashboard as model

from dashboards.panels import DATASOURCE
from dashboards.selectors import BLUE, MONITOR, RED, grown

_TAG: Final = "lightkeeper"
_MONITOR_URL: Final = "http://127.0.0.1:8470"
"""What the variable `monitor_url` holds at first; `push --monitor-url` puts yours there."""
_SHOWN_AT_FIRST: Final = "40"
_KEPT: Final = "${__url_time_range}&${job:queryparam}&${instance:queryparam}"
"""What a link to another dashboard carries along."""
_RANK_PAGES: Final = {
    "Page of the rank": "/ranks/{}",
    "Stacks now": "/v1/ranks/{}/stacks",
    "Flight record": "/v1/ranks/{}/flight_recorder",
    "State": "/v1/ranks/{}/state",
}


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard: its questions are its rows."""

    uid: str
    title: str
    about: str
    rows: Sequence[tuple[str, Sequence[Any]]]
    of_ranks: bool = False
    """With variables for host and rank; what it shows comes from the ranks' own pages."""
    height: int = 0
    """Of every panel; 0: each says its own."""

    def builder(self) -> dashboard.Dashboard:
        """The dashboard, not yet rendered."""
        board = (
            dashboard.Dashboard(self.title)
            .uid(self.uid)
            .description(self.about)
            .tags([_TAG])
            .readonly()
            .tooltip(model.DashboardCursorSync.CROSSHAIR)
            .time("now-1h", "now")
            .refresh("10s")
        )
        board = _annotations(_links(_variables(board, of_ranks=self.of_ranks)))
        for question, panels in self.rows:
            board = board.with_row(dashboard.Row(question))
            for panel in panels:
                board = board.with_panel(panel.height(self.height) if self.height else panel)
        return board


def more(title: str, uid: str) -> dict[str, str]:
    """A link to another dashboard, with its time, job and monitor."""
    return {title: f"/d/{uid}?{_KEPT}&var-monitor_url=${{monitor_url}}"}


def rank_links(*, series: bool) -> dict[str, str]:
    """Pages of the rank of a series, or of a table's row; the monitor passes them through."""
    group, rank = (_label(name, series=series) for name in ("replica_group", "rank"))
    pages = {
        title: "${monitor_url}" + path.format(f"{group}.{rank}")
        for title, path in _RANK_PAGES.items()
    }
    chosen = f"var-group={group}&var-rank={rank}&var-monitor_url=${{monitor_url}}"
    return {**pages, "Dashboard of the rank": f"/d/lightkeeper-rank?{_KEPT}&{chosen}"}


def group_links(*, series: bool) -> dict[str, str]:
    """The same of a replica group."""
    group = _label("replica_group", series=series)
    chosen = f"var-group={group}&var-monitor_url=${{monitor_url}}"
    return {
        "Page of the group": "${monitor_url}/groups/" + group,
        "Dashboard of its ranks": f"/d/lightkeeper-rank?{_KEPT}&{chosen}",
    }


def _label(name: str, *, series: bool) -> str:
    return f"${{__field.labels.{name}}}" if series else f'${{__data.fields["{name}"]}}'


def _variables(board: dashboard.Dashboard, *, of_ranks: bool) -> dashboard.Dashboard:
    own = 'lightkeeper_rank_info{job_id=~"$job", replica_group=~"$group"'
    choices = [
        ("job", "Job", "label_values(lightkeeper_job_info, job_id)", "Training jobs."),
        (
            "instance",
            "Monitor",
            'label_values(lightkeeper_job_info{job_id=~"$job"}, instance)',
            "Monitors of the job. Two that watch one job: choose the active one.",
        ),
        (
            "group",
            "Group",
            f"label_values(lightkeeper_group_state{{{MONITOR}}}, replica_group)",
            "Replica groups of the job.",
        ),
    ]
    if of_ranks:
        choices += [
            ("host", "Host", f"label_values({own}}}, host)", "Hosts of these groups."),
            (
                "rank",
                "Rank",
                f'label_values({own}, host=~"$host"}}, rank)',
                "Number of a rank within its group.",
            ),
        ]
    board = board.with_variable(
        dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
    )
    for name, label, query, about in choices:
        board = board.with_variable(
            dashboard.QueryVariable(name)
            .label(label)
            .description(about)
            .query(query)
            .datasource(DATASOURCE)
            .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(model.VariableSort.NATURAL_ASC)
            .multi(True)
            .include_all(True)
            .all_value(".+")
            .current(model.VariableOption(text="All", value="$__all"))
        )
    return board.with_variable(
        dashboard.CustomVariable("topn")
        .label("Show at most")
        .description("Groups or ranks with a line of their own; the worst come first.")
        .values(f"{_SHOWN_AT_FIRST},10,20,100")
        .current(model.VariableOption(text=_SHOWN_AT_FIRST, value=_SHOWN_AT_FIRST))
    ).with_variable(
        dashboard.TextBoxVariable("monitor_url")
        .label("Monitor's URL")
        .description("Where your browser reaches the monitor: links to ranks go through it.")
        .default_value(_MONITOR_URL)
        .current(model.VariableOption(text=_MONITOR_URL, value=_MONITOR_URL))
    )


def _links(board: dashboard.Dashboard) -> dashboard.Dashboard:
    others = (
        dashboard.DashboardLink("Lightkeeper")
        .type(model.DashboardLinkType.DASHBOARDS)
        .tags([_TAG])
        .keep_time(True)
        .include_vars(True)
        .as_dropdown(False)
    )
    monitor = (
        dashboard.DashboardLink("Monitor's page")
        .type(model.DashboardLinkType.LINK)
        .url("${monitor_url}")
        .icon("external link")
        .tooltip("The monitor's own page: the fleet now, incidents, buttons")
        .target_blank(True)
    )
    return board.link(others).link(monitor)


def _annotations(board: dashboard.Dashboard) -> dashboard.Dashboard:
    evicted = grown(f"lightkeeper_evictions_total{{{MONITOR}}}", by="kind, outcome", within="1m")
    changed = f"changes(lightkeeper_quorum_id{{{MONITOR}}}[1m]) > 0"
    for name, shown_at_first, colour, expr, title in (
        ("Evictions", True, RED, f"{evicted} > 0", "evicted for {{kind}}: {{outcome}}"),
        # many, while groups come and go
        ("Quorum changes", False, BLUE, changed, "quorum changed"),
    ):
        board = board.annotation(
            dashboard.AnnotationQuery()
            .name(name)
            .datasource(DATASOURCE)
            .enable(shown_at_first)
            .icon_color(colour)
            .expr(expr)
            .title_format(title)
        )
    return board
