"""Simple drawings of a panel's data: tiles, SVG lines, bands, heat maps, bars, tables. Pure."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any, Final

from dashboards.asking import Series, Times
from dashboards.wording import FILL, colour_of, shown, text_of

_WIDE, _TALL = 600.0, 200.0
_PALETTE: Final = ("#73bf69", "#f2cc0c", "#5794f2", "#ff780a", "#b877d9", "#8ab8ff", "#e02f44",
                   "#96d98d", "#ffa6b0", "#37872d")  # fmt: skip
_STYLE: Final = """
:root{color-scheme:light dark;--bg:#f4f5f5;--card:#fff;--ink:#24292e;--dim:#6c6f75;--edge:#d8d9da}
@media (prefers-color-scheme:dark){:root{--bg:#111217;--card:#181b1f;--ink:#ccccdc;--dim:#8e8e9c;
--edge:#2c2f36}}
body{margin:8px;background:var(--bg);color:var(--ink);font:13px/1.4 system-ui,sans-serif}
h1{font-size:16px;margin:4px 0}.note{color:var(--dim);margin:0 0 8px}
main{display:grid;grid-template-columns:repeat(24,1fr);grid-auto-rows:30px;gap:8px}
h2{font-size:14px;margin:0;line-height:30px}
section{background:var(--card);border:1px solid var(--edge);border-radius:3px;padding:6px 8px;
min-width:0;overflow:hidden;display:flex;flex-direction:column;box-sizing:border-box}
h3{font-size:12px;margin:0 0 4px;font-weight:600;white-space:nowrap;overflow:hidden;
text-overflow:ellipsis;flex:none}
.empty{color:var(--dim);margin:auto;text-align:center}
.tile{flex:1;display:grid;place-items:center;font-size:26px;font-weight:600;color:#fff;
border-radius:3px;text-align:center;overflow:hidden}
.tile.plain{color:var(--ink)}
svg{flex:1;min-height:0;width:100%;display:block}
.names{flex:none;max-height:36px;overflow:auto;color:var(--dim);font-size:11px}
.names i{display:inline-block;width:9px;height:9px;border-radius:2px;margin:0 3px 0 8px}
.axis{flex:none;display:flex;justify-content:space-between;color:var(--dim);font-size:11px}
.scroll{overflow:auto;flex:1}table{border-collapse:collapse;width:100%;font-size:12px}
th,td{text-align:left;padding:2px 8px 2px 0;border-bottom:1px solid var(--edge);white-space:nowrap}
th{color:var(--dim);font-weight:500}
.bar{display:grid;grid-template-columns:minmax(60px,30%) 1fr auto;gap:6px;align-items:center}
.bar span{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.bar b{display:block;height:12px;border-radius:2px}
.band{display:grid;grid-template-columns:minmax(50px,12%) 1fr;gap:6px;align-items:center;
font-size:11px;flex:1;min-height:7px;max-height:26px}
.band span{overflow:hidden;text-overflow:ellipsis;white-space:nowrap;line-height:1}
.band svg{height:90%}
@media (max-width:700px){main{display:block}main>*{margin-bottom:8px}section{height:var(--tall)}}
"""


def document(title: str, note: str, body: str) -> str:
    """A page of panels."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)} (a sketch)</title><style>{_STYLE}</style>"
        f'<h1>{escape(title)}</h1><p class="note">{escape(note)}</p><main>{body}</main></html>\n'
    )


def _all(answers: list[list[Series]]) -> list[Series]:
    return [one for answer in answers for one in answer if one.points]


def tile(panel: dict[str, Any], answers: list[list[Series]], _: Times) -> str:
    """The last value on the colour of its threshold."""
    found = _all(answers)
    if not found:
        return '<p class="empty">no data</p>'
    field = panel["fieldConfig"]["defaults"]
    value = found[0].points[-1][1]
    colour = colour_of(value, field)
    kind = "tile" if colour else "tile plain"
    style = f' style="background:{colour}"' if colour else ""
    return f'<div class="{kind}"{style}>{escape(text_of(value, field))}</div>'


def lines(panel: dict[str, Any], answers: list[list[Series]], times: Times) -> str:
    """Lines, areas or bars over time, with the scale and the names."""
    custom = panel["fieldConfig"]["defaults"].get("custom", {})
    stacked = custom.get("stacking", {}).get("mode") == "normal"
    named = [(one, _series_colour(panel, one.name, n)) for n, one in enumerate(_all(answers))]
    below: dict[float, float] = {}
    paths = []
    tops = [_top(one, below, stacked=stacked) for one, _ in named]
    most = max((value for top in tops for _, _, value in top), default=1.0)
    least = min(0.0, *(value for top in tops for _, _, value in top)) if tops else 0.0
    if panel["fieldConfig"]["defaults"].get("min") is None and tops:
        least = min(value for top in tops for _, _, value in top)
    span = most - least or 1.0
    for (_, colour), top in zip(named, tops, strict=True):
        for piece in _pieces(top, 1.5 * times.step_s):
            high = [(_x(t, times), _TALL * (1 - (value - least) / span)) for t, _, value in piece]
            low = [(_x(t, times), _TALL * (1 - (foot - least) / span)) for t, foot, _ in piece]
            if stacked:
                outline = _path([*high, *reversed(low)])
                paths.append(f'<polygon points="{outline}" fill="{colour}" opacity=".55"/>')
            paths.append(
                f'<polyline points="{_path(high)}" fill="none" stroke="{colour}" '
                'stroke-width="1.5" vector-effect="non-scaling-stroke"/>'
            )
    field = panel["fieldConfig"]["defaults"]
    scale = f"{text_of(least, field)} to {text_of(most, field)}"
    names = "".join(
        f'<i style="background:{colour}"></i>{escape(one.name)}' for one, colour in named
    )
    return (
        f'<div class="axis"><span>{escape(scale)}</span></div>'
        f'<svg viewBox="0 0 {_WIDE:.0f} {_TALL:.0f}" preserveAspectRatio="none">'
        f'{"".join(paths)}</svg><div class="names">{names}</div>'
    )


def _top(
    one: Series, below: dict[float, float], *, stacked: bool
) -> list[tuple[float, float, float]]:
    """(time, from, to) of each point."""
    found = []
    for at, value in one.points:
        low = below.get(at, 0.0) if stacked else 0.0
        found.append((at, low, low + value))
        if stacked:
            below[at] = low + value
    return found


def _pieces(
    top: list[tuple[float, float, float]], gap_s: float
) -> list[list[tuple[float, float, float]]]:
    """Without a line over what is not there."""
    found: list[list[tuple[float, float, float]]] = []
    for point in top:
        if not found or point[0] - found[-1][-1][0] > gap_s:
            found.append([])
        found[-1].append(point)
    return found


def _path(points: list[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _x(at: float, times: Times) -> float:
    return _WIDE * (at - times.start_s) / (times.end_s - times.start_s)


def _series_colour(panel: dict[str, Any], name: str, number: int) -> str:
    for one in panel["fieldConfig"]["overrides"]:
        if one["matcher"]["options"] == name:
            for said in one["properties"]:
                if said["id"] == "color":
                    return FILL.get(said["value"]["fixedColor"]) or "#888"
    return _PALETTE[number % len(_PALETTE)]


def bands(panel: dict[str, Any], answers: list[list[Series]], times: Times) -> str:
    """A band for each series, coloured by what its values mean."""
    field = panel["fieldConfig"]["defaults"]
    heat = panel["type"] == "heatmap"
    every = _all(answers)
    if every and "le" in every[0].labels:
        every = _apart(every)
    top = max((value for one in every for _, value in one.points), default=1.0) or 1.0
    rows = []
    for one in every:
        wide = _WIDE * times.step_s / (times.end_s - times.start_s)
        cells = "".join(
            f'<rect x="{_x(at, times) - wide:.1f}" width="{wide + 0.6:.2f}" height="10" '
            f'fill="{_cell(panel, value, top) if heat else colour_of(value, field) or "#888"}"/>'
            for at, value in one.points
        )
        rows.append(
            f'<div class="band"><span>{escape(one.name)}</span>'
            f'<svg viewBox="0 0 {_WIDE:.0f} 10" preserveAspectRatio="none">{cells}</svg></div>'
        )
    return f'<div class="scroll" style="display:flex;flex-direction:column">{"".join(rows)}</div>'


def _apart(cumulative: list[Series]) -> list[Series]:
    """Buckets of their own, the largest first, as Grafana's heat map shows a histogram."""
    by_bound = sorted(cumulative, key=lambda one: float(one.labels["le"]))
    found, below = [], dict[float, float]()
    for one in by_bound:
        now = dict(one.points)
        points = [(at, max(0.0, value - below.get(at, 0.0))) for at, value in one.points]
        found.append(Series(one.labels, points, one.name))
        below = now
    return found[::-1]


def _cell(panel: dict[str, Any], value: float, top: float) -> str:
    colour = panel["options"]["color"]
    low, high = colour.get("min", 0.0), colour.get("max", top)
    share = min(1.0, max(0.0, (value - low) / ((high - low) or 1.0)))
    return f"hsl({50 - 50 * share:.0f} 90% {85 - 45 * share:.0f}%)" if value else "transparent"


def bars(panel: dict[str, Any], answers: list[list[Series]], _: Times) -> str:
    """The last values as bars."""
    field = panel["fieldConfig"]["defaults"]
    found = sorted(_all(answers), key=lambda one: -one.points[-1][1])
    top = max((one.points[-1][1] for one in found), default=0.0) or 1.0
    made = [
        f'<div class="bar"><span>{escape(one.name)}</span><b style="background:'
        f"{colour_of(one.points[-1][1], field) or '#888'};width:"
        f'{max(1.0, 100 * one.points[-1][1] / top):.0f}%"></b>'
        f"<em>{escape(text_of(one.points[-1][1], field))}</em></div>"
        for one in found
    ]
    return f'<div class="scroll">{"".join(made)}</div>'


def rows(panel: dict[str, Any], answers: list[list[Series]], _: Times) -> str:
    """Lines of labels and values, put together by labels as Grafana's `merge` does."""
    many = len(answers) > 1
    merged: list[dict[str, Any]] = []
    for number, answer in enumerate(answers):
        column = f"Value #{chr(ord('A') + number)}" if many else "Value"
        for one in answer:
            value = one.points[-1][1] if one.points else float("nan")
            mine = [row for row in merged if all(row.get(k) == v for k, v in one.labels.items())]
            if not mine:
                merged.append({**one.labels, column: value})
            for row in mine:
                row[column] = value
    columns = shown(panel, merged)
    head = "".join(f"<th>{escape(title)}</th>" for _name, title, _field in columns)
    for by in panel["options"].get("sortBy", []):
        key = next((name for name, title, _field in columns if title == by["displayName"]), "")
        merged.sort(key=lambda row, key=key: -float(row.get(key, 0)))  # type: ignore[misc]
    body = "".join(f"<tr>{_line(row, columns)}</tr>" for row in merged)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _line(row: dict[str, Any], columns: list[tuple[str, str, dict[str, Any]]]) -> str:
    cells = []
    for name, _title, field in columns:
        value = row.get(name, "")
        colour = colour_of(value, field) if field["coloured"] else ""
        text = escape(text_of(value, field))
        cells.append(f'<td style="color:{colour or "inherit"}">{text}</td>')
    return "".join(cells)


DRAWN: Final[dict[str, Callable[[dict[str, Any], list[list[Series]], Times], str]]] = {
    "stat": tile,
    "timeseries": lines,
    "bargauge": bars,
    "state-timeline": bands,
    "heatmap": bands,
    "table": rows,
}
