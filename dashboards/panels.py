"""The few kinds of panel that the dashboards use, each with unit, description and query.

A thin layer over grafana-foundation-sdk (pinned: a preview that may change under us), so that
a dashboard reads as a list of questions and answers. Tables and heat maps: `grids`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from grafana_foundation_sdk.builders import (
    bargauge,
    dashboard,
    prometheus,
    stat,
    statetimeline,
    timeseries,
)
from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.colours import GREEN, Values

DATASOURCE: Final = common.DataSourceRef(type_val="prometheus", uid="${datasource}")

Levels = Mapping[float, str]
"""Colour from this value on."""
Links = Mapping[str, str]
"""Title and address of what a click offers."""


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression and how its series are called."""

    expr: str
    legend: str = ""


class _Plain:
    """JSON as it is, where the SDK asks for a builder: its data links carry keys of others."""

    def __init__(self, value: object) -> None:
        self._value = value

    def build(self) -> Any:
        return self._value


def target(
    query: Query, number: int, *, instant: bool, shape: PromQueryFormat | None = None
) -> Any:
    """One query of a panel."""
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


def thresholds(base: str, levels: Levels) -> dashboard.ThresholdsConfig:
    """`base` below the first level."""
    steps = [model.Threshold(None, base)]
    steps += [model.Threshold(value, colour) for value, colour in sorted(levels.items())]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)


def names(values: Values) -> list[Any]:
    """What values are called, and their colours."""
    return [
        model.ValueMap(
            {
                value: model.ValueMappingResult(text=text, color=colour, index=index)
                for index, (value, (text, colour)) in enumerate(values.items())
            }
        )
    ]


def link(title: str, url: str) -> dict[str, Any]:
    """What a click on a value offers; pages of the monitor in a tab of their own."""
    return {"title": title, "url": url, "targetBlank": url.startswith("${monitor_url}")}


def common_of(
    panel: Any,
    title: str,
    says: str,
    *,
    unit: str,
    width: int,
    height: int,
    empty: str = "no data",
    links: Links | None = None,
) -> Any:
    """What every panel has."""
    panel = (
        panel.title(title)
        .description(says)
        .unit(unit)
        .datasource(DATASOURCE)
        .span(width)
        .height(height)
        .no_value(empty)
    )
    if links:
        panel = panel.data_links([_Plain(link(name, url)) for name, url in links.items()])
    return panel


def tile(
    title: str,
    query: Query,
    *,
    says: str,
    unit: str = "none",
    base: str = GREEN,
    levels: Levels | None = None,
    values: Values | None = None,
    decimals: int | None = None,
    width: int = 3,
    height: int = 5,
    empty: str = "no data",
    links: Links | None = None,
) -> stat.Panel:
    """One number now, on a background that says how bad it is."""
    panel: stat.Panel = common_of(
        stat.Panel(), title, says,
        unit=unit, width=width, height=height, empty=empty, links=links,
    )  # fmt: skip
    panel = (
        panel.with_target(target(query, 0, instant=True))
        .thresholds(thresholds(base, levels or {}))
        .color_mode(common.BigValueColorMode.BACKGROUND)
        .graph_mode(common.BigValueGraphMode.NONE)
        .reduce_options(common_builder.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    if values is not None:
        panel = panel.mappings(names(values))
    return panel if decimals is None else panel.decimals(decimals)


def lines(
    title: str,
    *queries: Query,
    says: str,
    unit: str = "none",
    stacked: bool = False,
    bars: bool = False,
    colours: Mapping[str, str] | None = None,
    levels: Levels | None = None,
    width: int = 12,
    height: int = 8,
    floor: float | None = 0,
    coarse: str = "",
    empty: str = "no data",
    links: Links | None = None,
) -> timeseries.Panel:
    """Values over time; `colours` fixes the colour of a series by its name, `coarse` is the
    shortest time between two points.
    """
    panel: timeseries.Panel = common_of(
        timeseries.Panel(), title, says,
        unit=unit, width=width, height=height, empty=empty, links=links,
    )  # fmt: skip
    for number, query in enumerate(queries):
        panel = panel.with_target(target(query, number, instant=False))
    panel = (
        panel.line_width(1)
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
    if levels:
        style = common_builder.GraphThresholdsStyleConfig()
        dashed = style.mode(common.GraphThresholdsStyleMode.DASHED)
        panel = panel.thresholds(thresholds("transparent", levels)).thresholds_style(dashed)
    for series, colour in (colours or {}).items():
        fixed = model.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": colour})
        panel = panel.override_by_name(series, [fixed])
    return panel


def ranking(
    title: str,
    query: Query,
    *,
    says: str,
    unit: str,
    base: str,
    levels: Levels,
    width: int = 12,
    height: int = 8,
    empty: str = "none",
    links: Links | None = None,
) -> bargauge.Panel:
    """The largest values now, as bars."""
    panel: bargauge.Panel = common_of(
        bargauge.Panel(), title, says,
        unit=unit, width=width, height=height, empty=empty, links=links,
    )  # fmt: skip
    return (
        panel.with_target(target(query, 0, instant=True))
        .thresholds(thresholds(base, levels))
        .orientation(common.VizOrientation.HORIZONTAL)
        .display_mode(common.BarGaugeDisplayMode.BASIC)
        .reduce_options(common_builder.ReduceDataOptions().calcs(["lastNotNull"]))
        .min(0)
    )


def states(
    title: str,
    query: Query,
    *,
    says: str,
    values: Values,
    width: int = 12,
    height: int = 8,
    empty: str = "no data",
    links: Links | None = None,
) -> statetimeline.Panel:
    """One band a series, coloured by what its value means."""
    panel: statetimeline.Panel = common_of(
        statetimeline.Panel(), title, says,
        unit="none", width=width, height=height, empty=empty, links=links,
    )  # fmt: skip
    return (
        panel.with_target(target(query, 0, instant=False))
        .mappings(names(values))
        .merge_values(True)
        .show_value(common.VisibilityMode.NEVER)
        .row_height(0.8)
    )
