"""The kinds of panel that the dashboards use, each with unit, description and query; and what all
dashboards share: variables, annotations, links to each other and to the monitor.

They make Grafana's JSON (schema version 39, of Grafana 10; later ones read it), so that a dashboard
reads as a list of questions and answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypedDict, Unpack

from lightkeeper.dashboards.selectors import GREY, NO_DATA, OF_JOB, PLACE, RUNBOOKS, Values, mon

Json = dict[str, Any]
Levels = Mapping[float, str]
"""Colour from this value on; grey below the first, and where nothing is known."""
Links = Mapping[str, str]
"""Title and address of what a click offers."""
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_NEVER_SHOWN: Final = {"Time", "__name__", "_order", "job", "instance", "cluster", "namespace"}


class PanelShape(TypedDict, total=False):
    """Options of any panel, besides those of its kind."""

    unit: str
    decimals: int
    width: int
    """In units of which a row has 24."""
    height: int
    """In units of 38 pixels."""
    empty: str
    """Text when there is nothing to show."""
    links: Links


class Query(NamedTuple):
    """One PromQL expression and the name of its series."""

    expr: str
    legend: str = "__auto"


@dataclass(frozen=True, slots=True)
class Cells:
    """A column of a table: a label, called like it if no other is said, or the value of a query;
    without a title it is not shown.
    """

    title: str
    width: int = 0
    label: str = ""
    expr: str = ""
    unit: str = ""
    levels: Levels = field(default_factory=dict)
    values: Values = field(default_factory=dict)
    prefix: str = ""
    """Of every value that is not in `values`: a text that alarms."""
    links: Links = field(default_factory=dict)
    decimals: int | None = None
    gauge: bool = False
    """True: a bar as long as the value."""

    def override(self) -> Json:
        cell: Json = {"type": "gauge", "mode": "basic"} if self.gauge else {"type": "color-text"}
        named = self.values or self.prefix
        said = {
            "unit": self.unit,
            "decimals": self.decimals,
            "noValue": "-",  # else an empty cell has the text of the empty panel
            "min": 0 if self.gauge else None,
            "mappings": _named(self.values, prefix=self.prefix),
            "thresholds": _thresholds(self.levels) if self.levels else None,
            "custom.cellOptions": cell if self.levels or named or self.gauge else None,
            "custom.align": "left" if named else None,
            "custom.width": self.width or None,
            "links": _links(self.links),
        }
        listed = [{"id": key, "value": v} for key, v in said.items() if v not in (None, "", [])]
        return {"matcher": {"id": "byName", "options": self.title}, "properties": listed}


def _thresholds(levels: Levels) -> Json:
    steps: list[Json] = [{"value": None, "color": GREY}]
    steps += [{"value": value, "color": colour} for value, colour in sorted(levels.items())]
    return {"mode": "absolute", "steps": steps}


def _named(values: Values, *, empty: str = "", prefix: str = "") -> list[Json]:
    """Names and colours of values; what is missing is grey."""
    named = {
        value: {"text": text, "color": colour, "index": index}
        for index, (value, (text, colour)) in enumerate(values.items())
    }
    made: list[Json] = [{"type": "value", "options": named}] if named else []
    for kind, match, text, colour in (
        ("special", {"match": "null+nan"}, empty, GREY),
        ("regex", {"pattern": "(.+)"}, prefix and f"{prefix}$1", "orange"),
    ):
        result = {"text": text, "color": colour, "index": len(named)}
        made += [{"type": kind, "options": {**match, "result": result}}] if text else []
    return made


def _links(links: Links) -> list[Json]:
    """What a click offers; the monitor's pages open in a new tab."""
    return [
        {"title": title, "url": url, "targetBlank": url.startswith("${monitor_url}")}
        for title, url in links.items()
    ]


def _panel(
    kind: str, title: str, says: str, queries: Iterable[Query], shape: PanelShape,
    *, instant: bool = False, form: str = "time_series", options: Json,
    custom: Json | None = None, **defaults: Any,
) -> Json:  # fmt: skip
    """What every panel has; `defaults` of its fields, `custom` those of its kind alone."""
    targets = [
        {
            "expr": query.expr, "legendFormat": query.legend, "refId": chr(ord("A") + number),
            "datasource": DATASOURCE, "instant": instant, "range": not instant, "format": form,
        }
        for number, query in enumerate(queries)
    ]  # fmt: skip
    fields = {
        "unit": shape.get("unit", "none"), "noValue": shape.get("empty", NO_DATA),
        "links": _links(shape.get("links", {})), "custom": custom or {},
        "thresholds": _thresholds({}),
        **{name: value for name, value in defaults.items() if value is not None},
    }  # fmt: skip
    if "decimals" in shape:
        fields["decimals"] = shape["decimals"]
    return {
        "type": kind, "title": title, "description": says, "datasource": DATASOURCE,
        "targets": targets, "options": options, "transformations": [],
        "fieldConfig": {"defaults": fields, "overrides": []},
        "gridPos": {"w": shape.get("width", 12), "h": shape.get("height", 8)},
    }  # fmt: skip


def tile(
    title: str, *queries: Query, says: str, levels: Levels | None = None,
    values: Values | None = None, text: str = "auto", **shape: Unpack[PanelShape],
) -> Json:  # fmt: skip
    """One number now, or a few, on a background that shows how bad it is; `text`: what is written
    (`value`, `name` of the series, `value_and_name`).
    """
    return _panel(
        "stat", title, says, queries, shape,
        instant=True,  # over a range, a stopped series would look fine
        options={
            "colorMode": "background", "graphMode": "none", "justifyMode": "center",
            "textMode": text, "orientation": "vertical", "text": {"titleSize": 14, "valueSize": 26},
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        },
        mappings=_named(values or {}, empty=shape.get("empty", NO_DATA)),
        thresholds=_thresholds(levels or {}), color={"mode": "thresholds"},
    )  # fmt: skip


def curves(
    title: str, *queries: Query, says: str, stacked: bool = False, bars: bool = False,
    many: bool = False, colours: Mapping[str, str] | None = None, floor: float | None = 0,
    coarse: str = "", **shape: Unpack[PanelShape],
) -> Json:  # fmt: skip
    """Values over time, or counts as `bars`; `many`: of groups or ranks, whose names stand at the
    right; `colours`: by name of the series; `coarse`: the shortest time between two points.
    """
    panel = _panel(
        "timeseries", title, says, queries, shape,
        options={"legend": _legend(queries, bars or stacked, many),
                 "tooltip": {"mode": "multi", "sort": "desc"}},
        custom={
            "drawStyle": "bars" if bars else "line", "lineWidth": 1, "showPoints": "never",
            "fillOpacity": 70 if bars else 25 if stacked else 0,
            "stacking": {"mode": "normal" if stacked or bars else "none", "group": "A"},
            **({} if floor is None or "unit" in shape else {"axisSoftMax": 1}),
        },
        color={"mode": "palette-classic"}, min=floor,
    )  # fmt: skip
    if coarse or bars:
        panel["interval"] = coarse or "1m"
    panel["fieldConfig"]["overrides"] = [
        {
            "matcher": {"id": "byName", "options": series},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
        }
        for series, colour in (colours or {}).items()
    ]
    return panel


def _legend(queries: Sequence[Query], counts: bool, many: bool) -> Json:
    """Mean and max of several curves; of counts they would leave out the times without any."""
    several = len(queries) > 1 or "{{" in queries[0].legend
    calcs = ["lastNotNull"] * many + ["mean", "max"] * (several and not counts)
    legend: Json = {"showLegend": True, "displayMode": "list", "placement": "bottom"}
    if many:
        legend |= {"displayMode": "table", "placement": "right", "width": 190 if counts else 260,
                   "sortBy": "Last *", "sortDesc": True}  # fmt: skip
    return {**legend, "calcs": calcs}


def states(
    title: str, query: Query, *, says: str, values: Values, **shape: Unpack[PanelShape]
) -> Json:
    """One band per series, coloured by its value."""
    return _panel(
        "state-timeline", title, says, [query], shape,
        options={
            "showValue": "never", "mergeValues": True, "rowHeight": 0.8, "perPage": 100,
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "single"},
        },
        custom={"fillOpacity": 80, "lineWidth": 0}, mappings=_named(values),
        color={"mode": "thresholds"},
    )  # fmt: skip


def rows(
    title: str, *columns: Cells, says: str, sort: str = "", hidden: Sequence[str] = (),
    **shape: Unpack[PanelShape],
) -> Json:  # fmt: skip
    """One line for each set of labels, with the value of each query; columns in this order, sorted
    by the one named, the largest first.
    """
    queries = [Query(column.expr) for column in columns if column.expr]
    values = iter([f"Value #{chr(ord('A') + n)}" for n in range(len(queries))])
    several = len(queries) > 1
    names = [
        (next(values) if several else "Value") if column.expr else column.label or column.title
        for column in columns
    ]
    shown = {name: column for name, column in zip(names, columns, strict=True) if column.title}
    organized = {
        "excludeByName": dict.fromkeys(sorted({*_NEVER_SHOWN, *hidden, *names} - {*shown}), True),
        "indexByName": {name: index for index, name in enumerate(shown)},
        "renameByName": {n: column.title for n, column in shown.items() if column.title != n},
    }
    panel = _panel(
        "table", title, says, queries, shape, instant=True, form="table",
        options={"cellHeight": "sm", "showHeader": True,
                 "sortBy": [{"displayName": sort, "desc": True}] if sort else []},
        custom={"align": "auto", "minWidth": 50}, color={"mode": "thresholds"},
    )  # fmt: skip
    merged = [{"id": "merge", "options": {}}] if several else []
    panel["transformations"] = [*merged, {"id": "organize", "options": organized}]
    panel["fieldConfig"]["overrides"] = [column.override() for column in shown.values()]
    return panel


def heat(
    title: str, query: Query, *, says: str, value: str, buckets: bool = False,
    bounds: tuple[float, float] = (0, 1), **shape: Unpack[PanelShape],
) -> Json:  # fmt: skip
    """A row for each series, the first on top, coloured by its value: `bounds` are those of the
    first and the last colour; or (`buckets`) a row for each `le` of a histogram.

    `value` says what a cell measures. Neither way of colouring is turned round in the dark theme.
    """
    unit = shape.get("unit", "none")
    cells: PanelShape = {**shape, "unit": "none" if buckets else unit}
    colour: Json = {"mode": "scheme", "scheme": "Turbo", "steps": 64,
                    "min": bounds[0], "max": bounds[1]}  # fmt: skip
    if buckets:
        colour = {"mode": "opacity", "fill": "blue", "exponent": 0.5, "steps": 64}
    return _panel(
        "heatmap", title, says, [query], cells, form="heatmap" if buckets else "time_series",
        options={
            "calculate": False, "color": colour, "cellGap": 1, "showValue": "never",
            "rowsFrame": {"layout": "auto", "value": value}, "legend": {"show": True},
            "yAxis": {"axisPlacement": "left", "unit": unit if buckets else "none",
                      "reverse": not buckets},
            "tooltip": {"mode": "single", "yHistogram": False},
        },
    )  # fmt: skip


# -- one dashboard of such panels ---------------------------------------------------------------

_TAG: Final = "lightkeeper"
_SHOWN: Final = ("40", "10", "20", "100")
"""How many groups or ranks a panel may show, the first unless somebody chooses."""
_KEPT: Final = "${__url_time_range}&${cluster:queryparam}&${namespace:queryparam}&${job:queryparam}"
"""Kept in links to other dashboards."""
_RANK_PAGES: Final = {
    "Page of the rank": "/ranks/{}", "Stacks now": "/v1/ranks/{}/stacks",
    "Flight record": "/v1/ranks/{}/flight_recorder", "State": "/v1/ranks/{}/state",
}  # fmt: skip
INFO: Final = f"lightkeeper_job_info{{{OF_JOB}}}"
_OWN: Final = f'lightkeeper_rank_info{{{OF_JOB}, replica_group=~"$group"'
_YOURS: Final = "A label of yours; empty without it."
_CHOICES: Final = (
    ("cluster", "Cluster", "label_values(lightkeeper_job_info, cluster)", _YOURS),
    ("namespace", "Namespace", 'label_values(lightkeeper_job_info{cluster="$cluster"}, namespace)',
     _YOURS),
    ("job", "Job", f"label_values(lightkeeper_job_info{{{PLACE}}}, job_id)", "The job shown."),
    ("instance", "Monitor", f"label_values({INFO}, instance)", "Monitors of the job."),
    ("monitor_url", "Monitor's URL", f"label_values({INFO}, url)", "Its --public-url."),
    ("group", "Group", f"label_values({mon('group_state')}, replica_group)", "Of the job."),
    ("run", "Run", f"label_values({_OWN}}}, run)", "Starts of the job, by time (UTC)."),
    ("host", "Host", f'label_values({_OWN}, run=~"$run"}}, host)', "Hosts of these groups."),
    ("rank", "Rank", f'label_values({_OWN}, run=~"$run", host=~"$host"}}, rank)',
     "Number of a rank within its group."),
)  # fmt: skip
"""Name, label, query and what it is; a dashboard has those that it uses."""
_SINGLE: Final = ("cluster", "namespace", "job", "monitor_url")
"""Of these one is chosen: of two jobs at once, the lucky one would hide the other."""
_ALL: Final = {"group": ".+", "host": ".+", "rank": ".+", "run": ".*"}
"""What "All" stands for, besides for what there is: of a thousand groups the list is too long, and
ranks that no monitor lists to Prometheus have no run."""
HOST_DASHBOARDS: Final = {
    "node_dashboard": ("Dashboard of nodes", "/d/rYdddlPWk?var-nodename="),
    "gpu_dashboard": ("Dashboard of GPUs", "/d/Oxed_c6Wz?var-Hostname="),
}
"""Addresses to which a host's name is added: those of grafana.com's 1860 and 12239. Hidden
variables, to be changed in the dashboard's settings."""


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard: its questions are its rows."""

    name: str
    about: str
    rows: Mapping[str, Sequence[Json]]

    def to_json(self) -> Json:
        panels, annotations = list(_placed(self.rows)), list(_annotations())
        used = json.dumps([panels, annotations])
        links = [
            {"type": kind, "title": title, "url": url, "icon": icon, "tooltip": tooltip,
             "tags": [] if url else [_TAG], "keepTime": not url, "includeVars": not url,
             "targetBlank": bool(url), "asDropdown": False}
            for kind, title, url, icon, tooltip in (
                ("dashboards", "Lightkeeper", "", "", ""),
                ("link", "Monitor's page", "${monitor_url}", "external link", "The job now"),
                ("link", "Runbooks", RUNBOOKS, "doc", "What to do about each alert"),
            )
        ]  # fmt: skip
        return {
            "uid": f"{_TAG}-{self.name}", "title": f"Lightkeeper: {self.name}", "tags": [_TAG],
            "description": self.about, "editable": False, "graphTooltip": 1, "refresh": "10s",
            "schemaVersion": 39, "time": {"from": "now-1h", "to": "now"}, "timezone": "browser",
            "links": links, "panels": panels, "annotations": {"list": annotations},
            "templating": {"list": list(_variables(used))},
        }  # fmt: skip


def _placed(questions: Mapping[str, Sequence[Json]]) -> Iterator[Json]:
    """Panels from left to right, below each other where a row is full."""
    top = number = 0
    for question, panels in questions.items():
        spot = {"x": 0, "y": top, "w": 24, "h": 1}
        yield {"type": "row", "title": question, "id": (number := number + 1), "gridPos": spot,
               "collapsed": False, "panels": []}  # fmt: skip
        top, left, high = top + 1, 0, 0
        for panel in panels:
            spot = panel["gridPos"]
            if left + spot["w"] > 24:
                top, left, high = top + high, 0, 0
            place = {**spot, "x": left, "y": top}
            yield {**panel, "id": (number := number + 1), "gridPos": place}
            left, high = left + spot["w"], max(high, spot["h"])
        top += high


def _variables(used: str) -> Iterator[Json]:
    """Those that occur in `used`, and those on which they depend."""
    names, before = {"job", "instance", "monitor_url"}, set[str]()
    while names != before:
        before = set(names)
        texts = [used, *(query for name, _, query, _ in _CHOICES if name in names)]
        names |= set(re.findall(r"\$\{?(\w+)", " ".join(texts)))
    first = {"text": "", "value": ""}
    yield {"type": "datasource", "name": "datasource", "label": "Data source",
           "query": "prometheus", "current": first, "hide": 0, "refresh": 1}  # fmt: skip
    for name, label, query, about in _CHOICES:
        if name in names:
            single = name in _SINGLE
            yield {
                "type": "query", "name": name, "label": label, "description": about,
                "query": query, "datasource": DATASOURCE, "refresh": 2, "sort": 7, "regex": "",
                "multi": not single, "includeAll": not single,
                "hide": 2 if name == "monitor_url" else 0,
                "current": first if single else {"text": "All", "value": "$__all"},
                **({"allValue": _ALL[name]} if name in _ALL else {}),
            }  # fmt: skip
    if "topn" in names:
        options = [{"text": n, "value": n, "selected": n == _SHOWN[0]} for n in _SHOWN]
        yield {"type": "custom", "name": "topn", "label": "Show at most", "query": ",".join(_SHOWN),
               "description": "Groups or ranks with a line of their own; the worst come first.",
               "options": options, "current": options[0], "hide": 0}  # fmt: skip
    for name, (label, url) in HOST_DASHBOARDS.items():
        if name in names:
            yield {"type": "textbox", "name": name, "label": label, "query": url, "hide": 2,
                   "current": {"text": url, "value": url}}  # fmt: skip


def _annotations() -> Iterator[Json]:
    """Marks on all curves; what lasts is a region."""
    seen = mon("incident_first_seen_timestamp_seconds", 'state=~"firing|evicting"')
    evicted = mon("evictions_total")
    before = f"last_over_time({evicted}[5m] offset 30s)"
    for name, colour, title, expr in (
        ("Incidents", "red", "{{kind}}: {{replica_group}}",
         f"max by (incident, kind, replica_group) ({seen})"),
        ("Evictions", "orange", "evicted for {{kind}}: {{outcome}}",
         f"{evicted} - {before} > 0 or {evicted} unless {before}"),
        ("Pauses", "blue", "evictions are paused", f"max({mon('paused')}) > 0"),
        ("Runs", "green", "the job started: {{run}}",
         f"{INFO} unless on (run) last_over_time({INFO}[5m] offset 30s)"),
    ):  # fmt: skip
        yield {"name": name, "datasource": DATASOURCE, "enable": True, "iconColor": colour,
               "expr": expr, "step": "30s", "titleFormat": title}  # fmt: skip


def more(title: str, uid: str) -> dict[str, str]:
    """A link to another dashboard, keeping time and job."""
    return {title: f"/d/{uid}?{_KEPT}"}


def rank_links(*, series: bool = False) -> dict[str, str]:
    """Pages of the rank of a table row or series; the monitor proxies them."""
    group, rank = _label("replica_group", series=series), _label("rank", series=series)
    name = f"{group}.{rank}"
    pages = {title: "${monitor_url}" + path.format(name) for title, path in _RANK_PAGES.items()}
    own = f"/d/lightkeeper-rank?{_KEPT}&var-group={group}&var-rank={rank}"
    return {**pages, "Dashboard of the rank": own}


def group_links(*, series: bool = False) -> dict[str, str]:
    """Pages of the replica group of a table row or series."""
    group = _label("replica_group", series=series)
    return {
        "Page of the group": "${monitor_url}/groups/" + group,
        "Dashboard of its ranks": f"/d/lightkeeper-rank?{_KEPT}&var-group={group}",
    }


def host_links() -> dict[str, str]:
    """Pages of the host in a table's column."""
    host = "${__value.text}"
    return {
        "Page of the host": "${monitor_url}/hosts/" + host,
        **{title: f"${{{name}}}{host}" for name, (title, _) in HOST_DASHBOARDS.items()},
    }


def _label(name: str, *, series: bool) -> str:
    return f"${{__field.labels.{name}}}" if series else f'${{__data.fields["{name}"]}}'
