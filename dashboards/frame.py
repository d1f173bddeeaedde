"""What all dashboards share: variables, annotations, links to each other and to the monitor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import dashboard as model

from dashboards.colours import BLUE, RED
from dashboards.panels import DATASOURCE
from dashboards.selectors import MONITOR, grown

TAG: Final = "lightkeeper"
MONITOR_URL: Final = "http://127.0.0.1:8470"
"""What the variable `monitor_url` holds at first; `push --monitor-url` puts yours there."""
SHOWN_AT_FIRST: Final = 40

RANK_PAGES: Final = {
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
    refresh: str = "10s"
    folded: frozenset[str] = frozenset()
    """Rows that are closed until somebody opens them."""

    def builder(self) -> dashboard.Dashboard:
        """The dashboard, not yet rendered."""
        board = (
            dashboard.Dashboard(self.title)
            .uid(self.uid)
            .description(self.about)
            .tags([TAG])
            .readonly()
            .tooltip(model.DashboardCursorSync.CROSSHAIR)
            .time("now-1h", "now")
            .refresh(self.refresh)
        )
        board = _annotations(_links(_variables(board, of_ranks=self.of_ranks)))
        for question, panels in self.rows:
            row = dashboard.Row(question)
            if question in self.folded:
                row = row.collapsed(True)
                for panel in panels:
                    row = row.with_panel(panel)
                board = board.with_row(row)
                continue
            board = board.with_row(row)
            for panel in panels:
                board = board.with_panel(panel)
        return board


def rank_links(*, series: bool) -> dict[str, str]:
    """Pages of the rank of a series, or of a table's row; the monitor passes them through."""
    label = "${{__field.labels.{}}}" if series else '${{__data.fields["{}"]}}'
    rank = f"{label.format('replica_group')}.{label.format('rank')}"
    pages = {title: "${monitor_url}" + path.format(rank) for title, path in RANK_PAGES.items()}
    pages["Dashboard of the rank"] = (
        f"/d/lightkeeper-rank?${{__url_time_range}}&${{job:queryparam}}&${{instance:queryparam}}"
        f"&var-group={label.format('replica_group')}&var-rank={label.format('rank')}"
        "&var-monitor_url=${monitor_url}"
    )
    return pages


def group_links(*, series: bool) -> dict[str, str]:
    """The same of a replica group."""
    group = "${__field.labels.replica_group}" if series else '${__data.fields["replica_group"]}'
    return {
        "Page of the group": "${monitor_url}/groups/" + group,
        "Dashboard of its ranks": "/d/lightkeeper-rank?${__url_time_range}&${job:queryparam}"
        "&${instance:queryparam}&var-group=" + group + "&var-monitor_url=${monitor_url}",
    }


def _choice(name: str, label: str, query: str, about: str) -> dashboard.QueryVariable:
    return (
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


def _variables(board: dashboard.Dashboard, *, of_ranks: bool) -> dashboard.Dashboard:
    own = 'lightkeeper_rank_info{job_id=~"$job", replica_group=~"$group"'
    found = [
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
        found += [
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
    for one in found:
        board = board.with_variable(_choice(*one))
    return board.with_variable(_how_many()).with_variable(
        dashboard.TextBoxVariable("monitor_url")
        .label("Monitor's URL")
        .description("Where your browser reaches the monitor: links to ranks go through it.")
        .default_value(MONITOR_URL)
        .current(model.VariableOption(text=MONITOR_URL, value=MONITOR_URL))
    )


def _how_many() -> dashboard.CustomVariable:
    first = str(SHOWN_AT_FIRST)
    return (
        dashboard.CustomVariable("topn")
        .label("Show at most")
        .description("Groups or ranks with a line of their own; the worst come first.")
        .values(f"{first},10,20,100")
        .current(model.VariableOption(text=first, value=first))
    )


def _links(board: dashboard.Dashboard) -> dashboard.Dashboard:
    others = (
        dashboard.DashboardLink("Lightkeeper")
        .type(model.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
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
    evicted = grown(f"lightkeeper_evictions_total{{{MONITOR}}}", by="kind, outcome", within="1m")
    changes = _annotation(
        "Quorum changes",
        BLUE,
        f"changes(lightkeeper_quorum_id{{{MONITOR}}}[1m]) > 0",
        "quorum changed",
    ).enable(False)  # many, while groups come and go
    return board.annotation(
        _annotation("Evictions", RED, f"{evicted} > 0", "evicted for {{kind}}: {{outcome}}")
    ).annotation(changes)
