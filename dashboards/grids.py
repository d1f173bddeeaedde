"""Panels with rows: tables with links, and heat maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.builders import heatmap, table
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.colours import Values
from dashboards.panels import Levels, Links, Query, common_of, link, names, target, thresholds

_NEVER_SHOWN: Final = ("Time", "__name__", "job", "instance")


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
        said: list[tuple[str, Any]] = []
        if self.unit:
            said.append(("unit", self.unit))
        if self.decimals is not None:
            said.append(("decimals", self.decimals))
        if self.values:
            said.append(("mappings", names(self.values)))
        if self.levels:
            said.append(("thresholds", thresholds(self.base, self.levels).build()))
        if self.levels or self.values:
            said.append(("custom.cellOptions", {"type": "color-text"}))
        if self.links:
            said.append(("links", [link(title, url) for title, url in self.links.items()]))
        if self.width:
            said.append(("custom.width", self.width))
        return [model.DynamicConfigValue(name, value) for name, value in said]


def rows(
    title: str,
    queries: Sequence[Query],
    columns: Sequence[Column],
    *,
    says: str,
    hidden: Sequence[str] = (),
    sort: str = "",
    width: int = 12,
    height: int = 8,
    empty: str = "none",
) -> table.Panel:
    """One line for each set of labels, with the value of each query; columns in this order."""
    panel: table.Panel = common_of(
        table.Panel(), title, says, unit="none", width=width, height=height, empty=empty
    )
    for number, query in enumerate(queries):
        panel = panel.with_target(target(query, number, instant=True, shape=PromQueryFormat.TABLE))
    if len(queries) > 1:
        panel = panel.with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
    panel = panel.with_transformation(
        model.DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": dict.fromkeys((*_NEVER_SHOWN, *hidden), True),
                "indexByName": {one.name: index for index, one in enumerate(columns)},
                "renameByName": {one.name: one.title for one in columns if one.title},
            },
        )
    )
    for one in columns:
        properties = one.properties()
        if properties:
            panel = panel.override_by_name(one.title or one.name, properties)
    if sort:
        by = common_builder.TableSortByFieldState().display_name(sort).desc(True)
        panel = panel.sort_by([by])
    return panel


def heat(
    title: str,
    query: Query,
    *,
    says: str,
    unit: str,
    buckets: bool = False,
    scheme: str = "YlOrRd",
    bounds: Mapping[str, float] | None = None,
    value: str = "Value",
    width: int = 24,
    height: int = 12,
    empty: str = "no data",
    links: Links | None = None,
) -> heatmap.Panel:
    """A row for each series (`buckets`: for each `le` of a histogram), coloured by its value."""
    panel: heatmap.Panel = common_of(
        heatmap.Panel(), title, says,
        unit="none" if buckets else unit, width=width, height=height, empty=empty, links=links,
    )  # fmt: skip
    shape = PromQueryFormat.HEATMAP if buckets else PromQueryFormat.TIME_SERIES
    colour = (
        heatmap.HeatmapColorOptions()
        .mode(heatmap_model.HeatmapColorMode.SCHEME)
        .scheme(scheme)
        .steps(64)
        .reverse(False)
        .fill("dark-red")
        .exponent(0.5)
    )
    for edge, at in (bounds or {}).items():
        colour = getattr(colour, edge)(at)
    return (
        panel.with_target(target(query, 0, instant=False, shape=shape))
        .calculate(False)
        .color(colour)
        .cell_gap(1)
        .rows_frame(heatmap.RowsHeatmapOptions().value(value))
        .y_axis(heatmap.YAxisConfig().unit(unit if buckets else "none"))
    )
