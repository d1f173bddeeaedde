"""The few kinds of panel that the dashboards use, each with unit, description and query.

A thin layer over grafana-foundation-sdk (pinned: a preview that may change under us), so that
`fleet` reads as a list of questions and answers.
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
    table,
    timeseries,
)
from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE: Final = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
GRAFANA: Final = common.DataSourceRef(type_val="grafana", uid="-- Grafana --")
"""Its own database, which every Grafana has under this name."""
GREEN, ORANGE, RED, BLUE, GREY = "green", "orange", "red", "blue", "text"

Levels = Mapping[float, str]
"""Colour from this value on; below the least it is the colour of `None` in `_thresholds`."""


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression and how its series are called."""

    expr: str
    legend: str = ""


def _target(query: Query, number: int, *, instant: bool, as_table: bool = False) -> Any:
    target = (
        prometheus.Dataquery()
        .expr(query.expr)
        .legend_format(query.legend or "__auto")
        .ref_id(chr(ord("A") + number))
        .datasource(DATASOURCE)
    )
    if as_table:
        target = target.format(PromQueryFormat.TABLE)
    return target.instant() if instant else target.range()


def _thresholds(base: str, levels: Levels) -> dashboard.ThresholdsConfig:
    steps = [model.Threshold(None, base)]
    steps += [model.Threshold(value, colour) for value, colour in sorted(levels.items())]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)


def _names(values: Mapping[str, tuple[str, str]]) -> list[Any]:
    return [
        model.ValueMap(
            {
                value: model.ValueMappingResult(text=text, color=colour, index=index)
                for index, (value, (text, colour)) in enumerate(values.items())
            }
        )
    ]


def _common(panel: Any, title: str, says: str, *, unit: str, width: int, height: int) -> Any:
    return (
        panel.title(title)
        .description(says)
        .unit(unit)
        .datasource(DATASOURCE)
        .span(width)
        .height(height)
    )


def tile(
    title: str,
    query: Query,
    *,
    says: str,
    unit: str = "short",
    base: str = GREEN,
    levels: Levels | None = None,
    values: Mapping[str, tuple[str, str]] | None = None,
    decimals: int | None = None,
    width: int = 3,
) -> stat.Panel:
    """One number now, on a background that says how bad it is."""
    panel: stat.Panel = _common(stat.Panel(), title, says, unit=unit, width=width, height=4)
    panel = (
        panel.with_target(_target(query, 0, instant=True))
        .thresholds(_thresholds(base, levels or {}))
        .color_mode(common.BigValueColorMode.BACKGROUND)
        .graph_mode(common.BigValueGraphMode.NONE)
        .reduce_options(common_builder.ReduceDataOptions().calcs(["lastNotNull"]))
        .no_value("no data")
    )
    if values is not None:
        panel = panel.mappings(_names(values))
    return panel if decimals is None else panel.decimals(decimals)


def lines(
    title: str,
    *queries: Query,
    says: str,
    unit: str = "short",
    stacked: bool = False,
    bars: bool = False,
    colours: Mapping[str, str] | None = None,
    width: int = 12,
    height: int = 8,
) -> timeseries.Panel:
    """Values over time; `colours` fixes the colour of a series by its name."""
    panel: timeseries.Panel = _common(
        timeseries.Panel(), title, says, unit=unit, width=width, height=height
    )
    for number, query in enumerate(queries):
        panel = panel.with_target(_target(query, number, instant=False))
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
        .min(0)
    )
    if stacked or bars:
        mode = common_builder.StackingConfig().mode(common.StackingMode.NORMAL)
        panel = panel.stacking(mode)
    for series, colour in (colours or {}).items():
        fixed = model.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": colour})
        panel = panel.override_by_name(series, [fixed])
    return panel


def ranking(
    title: str, query: Query, *, says: str, unit: str, base: str, levels: Levels, width: int = 12
) -> bargauge.Panel:
    """The largest values now, as bars."""
    panel: bargauge.Panel = _common(bargauge.Panel(), title, says, unit=unit, width=width, height=8)
    return (
        panel.with_target(_target(query, 0, instant=True))
        .thresholds(_thresholds(base, levels))
        .orientation(common.VizOrientation.HORIZONTAL)
        .display_mode(common.BarGaugeDisplayMode.BASIC)
        .reduce_options(common_builder.ReduceDataOptions().calcs(["lastNotNull"]))
        .min(0)
        .no_value("none")
    )


def states(
    title: str, query: Query, *, says: str, values: Mapping[str, tuple[str, str]], width: int = 12
) -> statetimeline.Panel:
    """One band a series, coloured by what its value means."""
    panel: statetimeline.Panel = _common(
        statetimeline.Panel(), title, says, unit="none", width=width, height=8
    )
    return (
        panel.with_target(_target(query, 0, instant=False))
        .mappings(_names(values))
        .merge_values(True)
        .show_value(common.VisibilityMode.NEVER)
        .row_height(0.8)
    )


def suspects(
    title: str, query: Query, *, says: str, unit: str, links: Mapping[str, str], width: int = 12
) -> table.Panel:
    """Ranks in order of a value, each with links to its debug pages."""
    panel: table.Panel = _common(table.Panel(), title, says, unit=unit, width=width, height=8)
    pages = [{"title": name, "url": url, "targetBlank": True} for name, url in links.items()]
    hidden = {"Time": True, "__name__": True, "instance": True, "job": True}
    return (
        panel.with_target(_target(query, 0, instant=True, as_table=True))
        .with_transformation(
            model.DataTransformerConfig(
                id_val="organize",
                options={"excludeByName": hidden, "renameByName": {"Value": "times the median"}},
            )
        )
        .override_by_name("rank", [model.DynamicConfigValue("links", pages)])
        .no_value("none")
    )
