"""The flight record as a table, for people with curl: oldest first, at most 120 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from worker_server.sidecar.merge import is_over, rows_of
from worker_server.wire import FlightRecord, RingEntry

_WIDTH: Final = 120
_SITE: Final = 16
"""Columns that a call site gets at least."""
_NS: Final = 1e-9
_COLUMNS: Final = (
    ("age", 8), ("group", 14), ("seq", 7), ("op", 20), ("sizes", 16), ("dtype", 8), ("root", 4),
    ("step", 7), ("state", 13), ("took", 8), ("from", 5),
)  # fmt: skip
"""The widest that each may get; the call site takes what is left of the line."""
_RIGHT: Final = frozenset({"age", "seq", "root", "step", "took"})


@dataclass(frozen=True, slots=True)
class _Line:
    """One collective; `order` sorts by when it was entered."""

    order: float
    cells: tuple[str, ...]
    unfinished: str | None = None
    error: str | None = None


def render(record: FlightRecord) -> str:
    """The record as text: who, then the collectives, then what is unfinished."""
    lines = [_ring_line(entry) for entry in record.ring]
    for view in record.views():
        lines += _torch_lines(view, _torch_ages(view))
    lines.sort(key=lambda line: -line.order)
    titles = (*(title for title, _ in _COLUMNS), "call site")
    table = [titles, *(line.cells for line in lines)] if lines else []
    widths = [
        min(limit, max((len(cells[n]) for cells in table), default=0))
        for n, (_, limit) in enumerate(_COLUMNS)
    ]
    body = [_row(titles, widths)] if lines else ["no collectives"]
    for line in lines:
        body.append(_row(line.cells, widths))
        if line.error is not None:
            body.append(_cut(f"      {line.error}", _WIDTH))
    return "\n".join([*_header(record), *body, _footer(lines), ""])


def _header(record: FlightRecord) -> Iterable[str]:
    who = record.identity
    health = "alive" if record.alive else "dead"
    yield f"rank {who.rank} of job {who.job} on {who.host}, pid {who.pid}, {health}"
    torch = "torch's own record: "
    if record.torch is not None and record.torch_age_s is not None:
        torch += f"taken {_duration(record.torch_age_s)} ago"
    elif record.torch is None:
        torch += "none"
    if record.torch_error:
        torch += f" ({record.torch_error})"
    yield _cut(torch, _WIDTH)
    for name, one in record.recorders.items():
        taken = "none" if one.age_s is None else f"taken {_duration(one.age_s)} ago"
        yield _cut(f"{name}: {taken}" + (f" ({one.error})" if one.error else ""), _WIDTH)
    if record.dropped:
        yield f"the ring has overwritten {record.dropped} older entries"


def _footer(lines: list[_Line]) -> str:
    open_ones = [line.unfinished for line in lines if line.unfinished is not None]
    if not open_ones:
        return "unfinished: nothing"
    shown = "; ".join(open_ones[-3:])
    more = f" and {len(open_ones) - 3} more" if len(open_ones) > 3 else ""
    return _cut(f"unfinished: {shown}{more}", 2 * _WIDTH)


def _row(cells: tuple[str, ...], widths: list[int]) -> str:
    parts = []
    for (title, _), width, cell in zip(_COLUMNS, widths, cells, strict=False):
        text = _cut(cell, width)
        parts.append(text.rjust(width) if title in _RIGHT else text.ljust(width))
    left = " ".join(parts)
    room = max(_SITE, _WIDTH - len(left) - 1)
    site = cells[-1]
    return f"{left} {site if len(site) <= room else '~' + site[-(room - 1) :]}".rstrip()


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "~"


# -- lines of the ring ---------------------------------------------------------------------------


def _ring_line(entry: RingEntry) -> _Line:
    state, unfinished = _ring_state(entry)
    took = "" if entry.exit_age_s is None else _duration(entry.enter_age_s - entry.exit_age_s)
    group = entry.group if entry.quorum is None else f"{entry.group} q{entry.quorum}"
    return _Line(
        order=entry.enter_age_s,
        cells=(
            _duration(entry.enter_age_s),
            group,
            str(entry.seq),
            entry.op,
            _sizes(entry.sizes_in or entry.sizes_out),
            entry.dtype or "",
            "" if entry.root is None else str(entry.root),
            "" if entry.step is None else str(entry.step),
            state,
            took,
            "both" if entry.torch_ids else "ring",
            entry.site or "",
        ),
        unfinished=unfinished,
        error=entry.error,
    )


def _ring_state(entry: RingEntry) -> tuple[str, str | None]:
    if entry.error is not None:
        return "failed", None
    if entry.exit_age_s is not None:
        return "done", None
    inside = _duration(entry.enter_age_s)
    what = f"{entry.op} {entry.seq} of {entry.group}"
    where = f" at {entry.site}" if entry.site else ""
    if entry.is_async:
        return f"open {inside}", f"{what}, launched {inside} ago{where} and not waited for"
    return f"in {inside}", f"{what}, inside for {inside}{where}"


# -- lines of torch's ----------------------------------------------------------------------------


def _torch_ages(record: FlightRecord) -> Mapping[int, float]:
    """Age of each of torch's entries: its stamps are wall clock, so by way of a matched one.

    The youngest entry that both records know ties the clocks together; without one, the age of
    torch's youngest entry does, and where nobody knows that, it is taken to be as old as its
    record, which is the least that it can be.
    """
    stamps = {row["record_id"]: row.get("time_created_ns") for row in rows_of(record.torch)}
    known = {number: stamp for number, stamp in stamps.items() if type(stamp) is int}
    if not known:
        return {}
    ties = [
        (number, entry.enter_age_s)
        for entry in record.ring
        for number in entry.torch_ids[:1]
        if number in known
    ]
    last_age_s = record.torch_age_s if record.torch_last_age_s is None else record.torch_last_age_s
    at, age_s = ties[-1] if ties else (max(known), last_age_s or 0.0)
    return {number: max(0.0, age_s + (known[at] - stamp) * _NS) for number, stamp in known.items()}


def _torch_lines(record: FlightRecord, ages: Mapping[int, float]) -> list[_Line]:
    matched = {number for entry in record.ring for number in entry.torch_ids}
    oldest = max((entry.enter_age_s for entry in record.ring), default=float("inf"))
    alone = set(record.torch_only)
    lines = []
    for row in rows_of(record.torch):
        number = row["record_id"]
        age_s = ages.get(number)
        if number in matched or (number not in alone and (age_s is None or age_s > oldest)):
            continue  # told by the ring's line, or older than the ring reaches
        lines.append(_torch_line(row, age_s))
    return lines


def _torch_line(row: Mapping[str, Any], age_s: float | None) -> _Line:
    group, op = _group_of(row), str(row.get("profiling_name", "?")).rpartition(":")[2]
    age = "?" if age_s is None else _duration(age_s)
    over = is_over(row)
    seq = row.get("collective_seq_id")
    took = row.get("duration_ms")
    dtypes = row.get("input_dtypes") or row.get("output_dtypes")
    return _Line(
        order=float("inf") if age_s is None else age_s,
        cells=(
            age,
            group,
            str(seq) if type(seq) is int else "?",
            op,
            _torch_sizes(row),
            str(dtypes[0]).lower() if isinstance(dtypes, list | tuple) and dtypes else "",
            "",
            "",
            "retired" if over else f"open {age}",
            _duration(took / 1e3) if isinstance(took, int | float) else "",
            "torch",
            "",
        ),
        unfinished=None if over else f"{op} {seq} of {group}, seen by torch alone, {age} ago",
    )


def _torch_sizes(row: Mapping[str, Any]) -> str:
    sizes = row.get("input_sizes") or row.get("output_sizes") or ()
    try:
        return _sizes(tuple(tuple(shape) for shape in sizes))
    except TypeError:
        return "?"


def _group_of(row: Mapping[str, Any]) -> str:
    named = row.get("process_group")
    names = [str(name) for name in named if name] if isinstance(named, list | tuple) else []
    if "default_pg" in names:
        return "default"
    return names[-1] if names else f"pg {row.get('pg_id', '?')}"


# -- words -----------------------------------------------------------------------------------


def _sizes(sizes: tuple[tuple[Any, ...], ...]) -> str:
    """`2x3`, or `4 +2` for (4) and two more."""
    if not sizes:
        return ""
    first = "x".join(map(str, sizes[0])) or "scalar"
    return first if len(sizes) == 1 else f"{first} +{len(sizes) - 1}"


def _duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.0f} min"
