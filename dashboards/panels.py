"""The kinds of panel that the dashboards use: unit, description, query, colours and selectors.

A thin layer over grafana-foundation-sdk (pinned: a preview that may change under us), so that
a dashboard reads as a list of questions and answers.
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

# -- which series a panel means: PromQL over the variables of a dashboard; kept to Prometheus 2.42 --


MONITOR: Final = 'instance=~"$instance"'
"""Of the metrics that a monitor exports; `$instance` holds the monitors of `$job`."""
GROUP: Final = MONITOR + ', replica_group=~"$group"'
"""Of those that it exports for each group or rank."""
RANK: Final = 'job_id=~"$job", replica_group=~"$group", rank=~"$rank"'
"""Of the metrics that a rank exports itself."""
_BY_OWN: Final = "on (job_id, replica_group, rank)"

ZERO: Final = f"0 * count(lightkeeper_self_health_scale{{{MONITOR}}})"
"""No event so far, while a monitor is there to see one: `vector(0)` would be a green 0 for ever
after it died.
"""
KEEPER: Final = (
    f"4 * (lightkeeper_lighthouse_up{{{MONITOR}}} == bool 0) > 0 "
    f"or 3 * (lightkeeper_self_health_scale{{{MONITOR}}} > bool 1) > 0 "
    f"or 2 * lightkeeper_paused{{{MONITOR}}} > 0 or lightkeeper_observe_mode{{{MONITOR}}}"
)
"""Of each monitor the worst that keeps it from acting, in the numbers of `colours.KEEPER_STATE`."""


def worst(expr: str, on: str, by: str) -> str:
    """`expr` of the `$topn` for which `by`, a plain selector, was largest within the shown time.

    Chosen once for the whole range (`@ end()`): a bare `topk` chooses anew at each step and draws
    everyone that was ever among them.
    """
    return f"({expr}) and on ({on}) topk($topn, max_over_time({by}[$__range] @ end()))"


def on_host(expr: str) -> str:
    """Of the ranks on the chosen hosts; `expr` keeps the labels of a rank's own metrics."""
    return f'({expr}) and {_BY_OWN} lightkeeper_rank_info{{{RANK}, host=~"$host"}}'


def shown(expr: str, keep: str = "") -> str:
    """A series for each chosen rank, of at most `$topn` ranks, those that are gone too.

    One for all processes that a rank had, one after the other: each has a port of its own, and
    thus other labels. `keep`: labels that are to stay besides.
    """
    info = f'lightkeeper_rank_info{{{RANK}, host=~"$host"}}'
    some = f"max by (job_id, replica_group, rank) (max_over_time({info}[$__range] @ end()))"
    labels = ", ".join(("job_id, replica_group, rank", *([keep] if keep else [])))
    return f"max by ({labels}) ({expr}) and {_BY_OWN} topk($topn, {some})"


def grown(counter: str, by: str = "", within: str = "$__rate_interval") -> str:
    """By how much counters grew, those included that came to be within the time.

    A counter with labels is born at its first event, with 1: `increase` alone never sees that
    one, which for evictions is most of them. Born is who had no sample in the five minutes
    before the time: a missed scrape is no birth, and must not count all that ever was once more.
    """
    before = f"last_over_time({counter}[5m] offset {within})"
    total = f"(increase({counter}[{within}]) and {before}) or ({counter} unless {before})"
    return f"sum by ({by}) ({total})" if by else f"sum({total})"


# -- One colour and one sign for each state, the same as on the monitor's page --------------------
# The signs differ in shape: whoever cannot tell the colours apart reads the same.


GREEN, YELLOW, ORANGE, RED = "green", "yellow", "orange", "red"
DARK_RED, BLUE, PURPLE, GREY = "dark-red", "blue", "purple", "text"

Values = Mapping[str, tuple[str, str]]
"""What a value stands for: text and colour."""

HEALTH: Final[Mapping[str, str]] = {
    "healthy": GREEN,
    "waiting": YELLOW,
    "starting": BLUE,
    "stalled": RED,
    "unreachable": PURPLE,
    "dead": DARK_RED,
    "evicting": ORANGE,
    "late": "light-yellow",
    "slow": "dark-orange",
    "corrupt": "semi-dark-red",
    "traced": "dark-purple",
}
"""In the order of `lightkeeper_group_state`: 0 healthy ... 10 traced."""
_SIGNS: Final = ("●", "◐", "○", "▲", "◇", "✕", "▼", "◔", "◆", "✖", "◉")
GROUP_STATE: Final[Values] = {
    str(code): (f"{sign} {state}", colour)
    for code, (sign, (state, colour)) in enumerate(zip(_SIGNS, HEALTH.items(), strict=True))
}
INCIDENT_STATE: Final[Values] = {
    "1": ("◐ pending", YELLOW),
    "2": ("▲ firing", RED),
    "3": ("▼ evicting", ORANGE),
    "4": ("● resolved", GREEN),
}
SELF_HEALTH: Final[Mapping[str, tuple[str, str]]] = {
    "well": ("● well", GREEN),
    "recovering": ("◐ recovering", YELLOW),
    "starved": ("○ starved", ORANGE),
    "late": ("▷ late", ORANGE),
    "clock_jumped": ("◇ clock jumped", ORANGE),
    "cannot_write": ("■ cannot write", RED),
    "cut_off": ("✕ cut off", DARK_RED),
}
"""Of the monitor itself, by the label of `lightkeeper_self_health`; worst last."""
KEEPER_STATE: Final[Values] = {
    "0": ("● acts", GREEN),
    "1": ("◐ observes", BLUE),
    "2": ("■ paused", ORANGE),
    "3": ("◇ doubts itself", ORANGE),
    "4": ("▲ no Lighthouse", RED),
    "5": ("✕ not seen", RED),
}
SEVERITY: Final[Mapping[str, str]] = {"critical": RED, "warning": ORANGE, "info": BLUE}
UP: Final[Values] = {"0": ("✕ down", RED), "1": ("● up", GREEN)}
MEMBER: Final[Values] = {"0": ("✕ out", RED), "1": ("● in", GREEN)}


# -- the panels -----------------------------------------------------------------------------------

DATASOURCE: Final = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
_NEVER_SHOWN: Final = ("Time", "__name__", "job", "instance")

Levels = Mapping[float, str]
"""Colour from this value on."""
Links = Mapping[str, str]
"""Title and address of what a click offers."""


class Shape(TypedDict, total=False):
    """What any panel may be given besides what its kind takes."""

    unit: str
    width: int
    """Of 24 units."""
    height: int
    """In units of 38 pixels."""
    empty: str
    """What it says when there is nothing to show."""
    links: Links


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression and how its series are called."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """How one column of a table looks; its name is the label's, or `Value #A` for query A."""

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
        """What Grafana's override of this column says."""
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
    """JSON as it is, where the SDK asks for a builder: its data links carry keys of others."""

    def __init__(self, value: object) -> None:
        self._value = value

    def build(self) -> Any:
        return self._value


def _panel(panel: Any, title: str, says: str, shape: Shape, *queries: Any) -> Any:
    """What every panel has."""
    panel = (
        panel.title(title)
        .description(says)
        .unit(shape.get("unit", "none"))
        .datasource(DATASOURCE)
        .span(shape.get("width", 12))
        .height(shape.get("height", 8))
        .no_value(shape.get("empty", "no data"))
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
    """What a click on a value offers; pages of the monitor in a tab of their own."""
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
    **shape: Unpack[Shape],
) -> stat.Panel:
    """One number now, on a background that says how bad it is."""
    asked = _target(Query(expr), instant=True)  # over a range, one that stopped would look well
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


def lines(
    title: str,
    *queries: Query,
    says: str,
    stacked: bool = False,
    bars: bool = False,
    colours: Mapping[str, str] | None = None,
    floor: float | None = 0,
    coarse: str = "",
    **shape: Unpack[Shape],
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
    **shape: Unpack[Shape],
) -> bargauge.Panel:
    """The values now, as bars."""
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
    title: str, query: Query, *, says: str, values: Values, **shape: Unpack[Shape]
) -> statetimeline.Panel:
    """One band a series, coloured by what its value means."""
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
    columns: Sequence[Column],
    *,
    says: str,
    hidden: Sequence[str] = (),
    sort: str = "",
    **shape: Unpack[Shape],
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
    **shape: Unpack[Shape],
) -> heatmap.Panel:
    """A row for each series (`buckets`: for each `le` of a histogram), coloured by its value.

    `value` says what a cell measures; `bounds` are the values of the first and the last colour.
    """
    unit = shape.get("unit", "none")
    cells: Shape = {**shape, "unit": "none" if buckets else unit}
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
