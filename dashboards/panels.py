"""The kinds of panel that the dashboards use, each with unit, description and query; and what all
dashboards share: variables, annotations, links to each other and to the monitor.

A thin layer over grafana-foundation-sdk (pinned: a preview that may change), so that a dashboard
reads as a list of questions and answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict, Unpack

from grafana_foundation_sdk.builders import (
    bargauge,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from lightkeeper.dashboards.selectors import (
    GREEN,
    MONITOR,
    MONITOR_URL,
    NO_DATA,
    RED,
    RUNBOOKS,
    Values,
    grown,
)

DATASOURCE: Final = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
_NEVER_SHOWN: Final = ("Time", "__name__", "job", "instance")

Levels = Mapping[float, str]
"""Colour from this value on."""
Links = Mapping[str, str]
"""Title and address of what a click offers."""


class PanelShape(TypedDict, total=False):
    """Options of any panel, besides those of its kind."""

    unit: str
    width: int
    """In units of which a row has 24."""
    height: int
    """In units of 38 pixels."""
    empty: str
    """Text when there is nothing to show."""
    links: Links


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression and the name of its series."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class ColumnStyle:
    """How a table column looks; its name is the label's, or `Value #A` for query A."""

    name: str
    title: str = ""
    unit: str = ""
    levels: Levels = field(default_factory=dict)
    base: str = "text"
    values: Values = field(default_factory=dict)
    links: Links = field(default_factory=dict)
    width: int = 0
    decimals: int | None = None

    def properties(self) -> list[model.DynamicConfigValue]:
        """Grafana's override of this column."""
        coloured = {"type": "color-text"} if self.levels or self.values else None
        said = {
            "unit": self.unit,
            "decimals": self.decimals,
            "mappings": _names(self.values) if self.values else None,
            "thresholds": _thresholds(self.base, self.levels).build() if self.levels else None,
            "custom.cellOptions": coloured,
            "links": [_link(title, url) for title, url in self.links.items()],
            "custom.width": self.width or None,
        }
        return [
            model.DynamicConfigValue(name, value)
            for name, value in said.items()
            if value not in (None, "", [])
        ]


class _Plain:
    """Plain JSON where the SDK wants a builder: its data links have keys of other links."""

    def __init__(self, value: object) -> None:
        self._value = value

    def build(self) -> Any:
        return self._value


def _panel(panel: Any, title: str, says: str, shape: PanelShape, *queries: Any) -> Any:
    """Set what every panel has."""
    panel = (
        panel.title(title)
        .description(says)
        .unit(shape.get("unit", "none"))
        .datasource(DATASOURCE)
        .span(shape.get("width", 12))
        .height(shape.get("height", 8))
        .no_value(shape.get("empty", NO_DATA))
    )
    for query in queries:
        panel = panel.with_target(query)
    if links := shape.get("links"):
        panel = panel.data_links([_Plain(_link(name, url)) for name, url in links.items()])
    return panel


def _target(
    query: Query, number: int = 0, *, instant: bool = False, shape: PromQueryFormat | None = None
) -> prometheus.Dataquery:
    made = (
        prometheus.Dataquery()
        .expr(query.expr)
        .legend_format(query.legend or "__auto")
        .ref_id(chr(ord("A") + number))
        .datasource(DATASOURCE)
    )
    if shape is not None:
        made = made.format(shape)
    return made.instant() if instant else made.range()


def _thresholds(base: str, levels: Levels) -> dashboard.ThresholdsConfig:
    """`base` below the first level."""
    steps = [model.Threshold(None, base)]
    steps += [model.Threshold(value, colour) for value, colour in sorted(levels.items())]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)


def _names(values: Values) -> list[Any]:
    return [
        model.ValueMap(
            {
                value: model.ValueMappingResult(text=text, color=colour, index=index)
                for index, (value, (text, colour)) in enumerate(values.items())
            }
        )
    ]


def _link(title: str, url: str) -> dict[str, Any]:
    """What a click on a value offers; the monitor's pages open in a new tab."""
    return {"title": title, "url": url, "targetBlank": url.startswith("${monitor_url}")}


def _last() -> common_builder.ReduceDataOptions:
    return common_builder.ReduceDataOptions().calcs(["lastNotNull"])


def tile(
    title: str,
    expr: str,
    *,
    says: str,
    base: str = GREEN,
    levels: Levels | None = None,
    values: Values | None = None,
    decimals: int | None = None,
    **shape: Unpack[PanelShape],
) -> stat.Panel:
    """One number now, on a background that shows how bad it is."""
    asked = _target(Query(expr), instant=True)  # over a range, a stopped series would look fine
    panel: stat.Panel = (
        _panel(stat.Panel(), title, says, shape, asked)
        .thresholds(_thresholds(base, levels or {}))
        .color_mode(common.BigValueColorMode.BACKGROUND)
        .graph_mode(common.BigValueGraphMode.NONE)
        .reduce_options(_last())
    )
    if values is not None:
        panel = panel.mappings(_names(values))
    return panel if decimals is None else panel.decimals(decimals)


def curves(
    title: str,
    *queries: Query,
    says: str,
    stacked: bool = False,
    bars: bool = False,
    colours: Mapping[str, str] | None = None,
    floor: float | None = 0,
    coarse: str = "",
    **shape: Unpack[PanelShape],
) -> timeseries.Panel:
    """Values over time; `colours` fixes the colour of a series by its name, `coarse` is the
    shortest time between two points.
    """
    asked = [_target(query, number) for number, query in enumerate(queries)]
    panel: timeseries.Panel = (
        _panel(timeseries.Panel(), title, says, shape, *asked)
        .line_width(1)
        .fill_opacity(70 if bars else 25 if stacked else 0)
        .show_points(common.VisibilityMode.NEVER)
        .draw_style(common.GraphDrawStyle.BARS if bars else common.GraphDrawStyle.LINE)
        .tooltip(
            common_builder.VizTooltipOptions()
            .mode(common.TooltipDisplayMode.MULTI)
            .sort(common.SortOrder.DESCENDING)
        )
    )
    if floor is not None:
        panel = panel.min(floor)
    if coarse:
        panel = panel.interval(coarse)
    if stacked or bars:
        mode = common_builder.StackingConfig().mode(common.StackingMode.NORMAL)
        panel = panel.stacking(mode)
    for series, colour in (colours or {}).items():
        fixed = model.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": colour})
        panel = panel.override_by_name(series, [fixed])
    return panel


def ranking(
    title: str,
    query: Query,
    *,
    says: str,
    base: str,
    levels: Levels | None = None,
    **shape: Unpack[PanelShape],
) -> bargauge.Panel:
    """Current values as bars."""
    panel: bargauge.Panel = (
        _panel(bargauge.Panel(), title, says, shape, _target(query, instant=True))
        .thresholds(_thresholds(base, levels or {}))
        .orientation(common.VizOrientation.HORIZONTAL)
        .display_mode(common.BarGaugeDisplayMode.BASIC)
        .reduce_options(_last())
        .min(0)
    )
    return panel


def states(
    title: str, query: Query, *, says: str, values: Values, **shape: Unpack[PanelShape]
) -> statetimeline.Panel:
    """One band per series, coloured by its value."""
    panel: statetimeline.Panel = (
        _panel(statetimeline.Panel(), title, says, shape, _target(query))
        .mappings(_names(values))
        .merge_values(True)
        .show_value(common.VisibilityMode.NEVER)
        .row_height(0.8)
    )
    return panel


def rows(
    title: str,
    queries: Sequence[str],
    columns: Sequence[ColumnStyle],
    *,
    says: str,
    hidden: Sequence[str] = (),
    sort: str = "",
    **shape: Unpack[PanelShape],
) -> table.Panel:
    """One line for each set of labels, with the value of each query; columns in this order."""
    asked = [
        _target(Query(expr), number, instant=True, shape=PromQueryFormat.TABLE)
        for number, expr in enumerate(queries)
    ]
    panel: table.Panel = _panel(table.Panel(), title, says, shape, *asked)
    if len(queries) > 1:
        panel = panel.with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
    panel = panel.with_transformation(
        model.DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": dict.fromkeys((*_NEVER_SHOWN, *hidden), True),
                "indexByName": {column.name: index for index, column in enumerate(columns)},
                "renameByName": {column.name: column.title for column in columns if column.title},
            },
        )
    )
    for column in columns:
        if properties := column.properties():
            panel = panel.override_by_name(column.title or column.name, properties)
    if sort:
        by = common_builder.TableSortByFieldState().display_name(sort).desc(True)
        panel = panel.sort_by([by])
    return panel


def heat(
    title: str,
    query: Query,
    *,
    says: str,
    value: str,
    buckets: bool = False,
    bounds: tuple[float, float] | None = None,
    **shape: Unpack[PanelShape],
) -> heatmap.Panel:
    """A row for each series (`buckets`: for each `le` of a histogram), coloured by its value.

    `value` says what a cell measures; `bounds` are the values of the first and the last colour.
    """
    unit = shape.get("unit", "none")
    cells: PanelShape = {**shape, "unit": "none" if buckets else unit}
    asked = _target(
        query, shape=PromQueryFormat.HEATMAP if buckets else PromQueryFormat.TIME_SERIES
    )
    colour = (
        heatmap.HeatmapColorOptions()
        .mode(heatmap_model.HeatmapColorMode.SCHEME)
        .scheme("Blues" if buckets else "YlOrRd")
        .steps(64)
        .reverse(False)
        .fill("dark-red")
        .exponent(0.5)
    )
    if bounds is not None:
        colour = colour.min(bounds[0]).max(bounds[1])
    panel: heatmap.Panel = (
        _panel(heatmap.Panel(), title, says, cells, asked)
        .calculate(False)
        .color(colour)
        .cell_gap(1)
        .rows_frame(heatmap.RowsHeatmapOptions().value(value))
        .y_axis(heatmap.YAxisConfig().unit(unit if buckets else "none"))
    )
    return panel


# -- one dashboard of such panels ---------------------------------------------------------------

_TAG: Final = "lightkeeper"
_SHOWN_AT_FIRST: Final = "40"
_KEPT: Final = "${__url_time_range}&${job:queryparam}&${instance:queryparam}"
"""Kept in links to other dashboards."""
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
    """With variables for host and rank; it shows metrics that the ranks export themselves."""
    height: int = 0
    """Every panel's; 0: each has its own."""

    def builder(self) -> dashboard.Dashboard:
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
    """A link to another dashboard, keeping time, job and monitor."""
    return {title: f"/d/{uid}?{_KEPT}&var-monitor_url=${{monitor_url}}"}


def rank_links(*, series: bool) -> dict[str, str]:
    """Pages of the rank of a series or table row; the monitor proxies them."""
    group, rank = (_label(name, series=series) for name in ("replica_group", "rank"))
    pages = {
        title: "${monitor_url}" + path.format(f"{group}.{rank}")
        for title, path in _RANK_PAGES.items()
    }
    chosen = f"var-group={group}&var-rank={rank}&var-monitor_url=${{monitor_url}}"
    return {**pages, "Dashboard of the rank": f"/d/lightkeeper-rank?{_KEPT}&{chosen}"}


def group_links(*, series: bool) -> dict[str, str]:
    """Pages of the replica group of a series or table row."""
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
            ("run", "Run", f"label_values({own}}}, run)", "Starts of the job, by time (UTC)."),
            ("host", "Host", f'label_values({own}, run=~"$run"}}, host)', "Hosts of these groups."),
            (
                "rank",
                "Rank",
                f'label_values({own}, run=~"$run", host=~"$host"}}, rank)',
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
            .all_value(".*" if name == "run" else ".+")
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
        .default_value(MONITOR_URL)
        .current(model.VariableOption(text=MONITOR_URL, value=MONITOR_URL))
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
    board = board.link(others)
    about = "The monitor's own page: the fleet now, incidents, buttons"
    for title, url, icon, tooltip in (
        ("Monitor's page", "${monitor_url}", "external link", about),
        ("Runbooks", RUNBOOKS, "doc", "What to do about each alert"),
    ):
        link = dashboard.DashboardLink(title).type(model.DashboardLinkType.LINK)
        board = board.link(link.url(url).icon(icon).tooltip(tooltip).target_blank(True))
    return board


def _annotations(board: dashboard.Dashboard) -> dashboard.Dashboard:
    evicted = grown(f"lightkeeper_evictions_total{{{MONITOR}}}", by="kind, outcome", within="1m")
    return board.annotation(
        dashboard.AnnotationQuery()
        .name("Evictions")
        .datasource(DATASOURCE)
        .enable(True)
        .icon_color(RED)
        .expr(f"{evicted} > 0")
        .title_format("evicted for {{kind}}: {{outcome}}")
    )
