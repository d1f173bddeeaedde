"""The strips as SVG: a row for each rank (or ranks alike), a cell for each collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from monitor.analysis.finding import Analysis
from monitor.flight_recorder.job import Job, State
from monitor.reports.markup import drawing, element, fitted, words
from monitor.reports.progress import site, state_word, what
from monitor.reports.standing import UNFINISHED, Role
from monitor.reports.strips import Cell, Strip, strips
from monitor.reports.text import moment
from monitor.reports.wording import clean, group_label, rank_word

_MOST = 48
_HUES = 6
_LABEL, _CELL, _ROW, _TAIL = 190.0, 28.0, 24.0, 230.0
_SHORT: Mapping[str, str] = {
    "all_reduce": "AR",
    "all_gather": "AG",
    "reduce_scatter": "RS",
    "all_to_all": "A2A",
    "broadcast": "BC",
    "barrier": "BA",
    "reduce": "RD",
    "gather": "GA",
    "scatter": "SC",
    "send": "S",
    "recv": "R",
    "coalesced": "CO",
}


def timeline(job: Job, analysis: Analysis) -> str:
    """The drawing with its legend; empty without a rank."""
    rows = strips(job, analysis, _MOST)[: _MOST + 12]
    if not rows:
        return ""
    hues = _hues(rows)
    wide = 1 + max((cell.column for row in rows for cell in row.cells), default=0)
    width = _LABEL + wide * _CELL + _TAIL
    parts = (_row(job, analysis, hues, row, index * _ROW) for index, row in enumerate(rows))
    label = f"last collectives of {len(rows)} kinds of ranks"
    svg = drawing(width, len(rows) * _ROW + 2, label, *chain.from_iterable(parts))
    return svg + _legend(hues, rows)


def _hues(rows: Sequence[Strip]) -> dict[str, int]:
    """A colour for each purpose of groups, the most frequent first; the rest share the last."""
    count: dict[str, int] = {}
    for row in rows:
        for cell in row.cells:
            count[cell.purpose] = count.get(cell.purpose, 0) + 1
    ordered = sorted(count, key=lambda name: (-count[name], name))
    return {name: min(index, _HUES - 1) for index, name in enumerate(ordered)}


def _row(
    job: Job, analysis: Analysis, hues: Mapping[str, int], row: Strip, top: float
) -> list[str]:
    name = rank_word(job, row.ranks, 4)
    parts = [
        element(
            "text",
            words("title", f"{rank_word(job, row.ranks)}: {row.role}"),
            words("tspan", fitted(name, _LABEL - 12)),
            x=0,
            y=top + 16,
            class_=f"who {row.role}",
        )
    ]
    alone = len(row.ranks) == 1
    parts += [_cell(job, hues, cell, top, alone=alone) for cell in row.cells]
    end = _LABEL + (1 + max((cell.column for cell in row.cells), default=-1)) * _CELL
    parts.append(words("text", _tail(job, analysis, row), x=end + 6, y=top + 16, class_="tail"))
    return parts


def _cell(job: Job, hues: Mapping[str, int], cell: Cell, top: float, *, alone: bool) -> str:
    row = cell.row
    x = _LABEL + cell.column * _CELL
    label = _SHORT.get(cell.op, cell.op[:3].upper())
    if alone and int(job.columns["peer"][row]) >= 0:
        label = fitted(f"{label}{int(job.columns['peer'][row])}", _CELL, 10.5)
    hue = hues.get(cell.purpose, _HUES - 1)
    return element(
        "g",
        words("title", _told(job, row)),
        element("rect", x=x + 1, y=top + 2, width=_CELL - 2, height=_ROW - 5, rx=3),
        element("rect", x=x + 3, y=top + _ROW - 7, width=_CELL - 6, height=3, class_=f"hue{hue}"),
        words("text", label, x=x + _CELL / 2, y=top + 14, text_anchor="middle"),
        class_=f"cell {_tone(job, row)}{' marked' if cell.marked else ''}",
    )


def _tone(job: Job, row: int) -> str:
    match State(int(job.columns["state"][row])):
        case State.COMPLETED:
            return "done"
        case State.FAILED:
            return "failed"
        case State.UNKNOWN | State.SCHEDULED | State.STARTED:
            return "open"


def _told(job: Job, row: int) -> str:
    """All that a record says of one entry, in one line."""
    columns = job.columns
    group = job.groups[columns["group"][row]]
    lines = [
        f"{what(job, row)}, number {int(columns['seq'][row])} of {group_label(group)}",
        state_word(job, row),
    ]
    if int(columns["created_ns"][row]) > 0:
        lines.append(f"enqueued {moment(int(columns['created_ns'][row]))}")
    if int(columns["completed_ns"][row]) > 0:
        lines.append(f"found completed {moment(int(columns['completed_ns'][row]))}")
    if site(job, row):
        lines.append(f"called at {site(job, row)}")
    return "; ".join(lines)


def _tail(job: Job, analysis: Analysis, row: Strip) -> str:
    """What stands behind a row's last cell."""
    if row.role is Role.SILENT or row.ranks[0] not in job.ranks:
        return "no record"
    parts = [f"+{row.later:,}"] if row.later else []
    since = [wait.since_ns for wait in analysis.waits if wait.rank == row.ranks[0]]
    if not row.cells and not row.later:
        parts.append("no entries in its record")
    elif since:
        at = moment(min(since))
        word = "stuck" if analysis.findings else "unfinished"
        parts.append(word if at == "-" else f"{word} since {at}")
    elif any(cell.state in UNFINISHED for cell in row.cells):
        parts.append("unfinished")
    elif all(cell.state is State.COMPLETED for cell in row.cells):
        parts.append("nothing unfinished")
    return ", ".join(parts + ([] if row.same else ["others differ"]))


def _legend(hues: Mapping[str, int], rows: Sequence[Strip]) -> str:
    used = {cell.op for row in rows for cell in row.cells}
    short = ", ".join(f"{_SHORT[op]} {op}" for op in sorted(used & set(_SHORT)))
    swatches = []
    for hue in range(_HUES):
        names = [clean(name, 60) for name, index in hues.items() if index == hue]
        if names:
            more = f" and {len(names) - 1} more kinds" if len(names) > 1 else ""
            swatch = element("i", class_=f"hue{hue}")
            swatches.append(element("li", swatch, words("span", names[0] + more)))
    return element("p", words("span", short), class_="meta") + element(
        "ul",
        element("li", element("i", class_="done"), "completed"),
        element("li", element("i", class_="open"), "unfinished"),
        element("li", element("i", class_="failed"), "failed"),
        element("li", element("i", class_="marked"), "a verdict points at it"),
        *swatches,
        class_="legend",
    )
