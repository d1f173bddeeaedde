"""What a person reads with curl: each answer as text (`?format=text`).

At 3 am the answer must come first: which rank it is, what is unfinished, then a table with the
newest row first, cut to twenty rows (`rows=0`: all). Everything else is facts and tables by the
names that the fields have in JSON; a unit takes the place of a name's ending.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import singledispatch
from textwrap import wrap
from typing import Any, Final

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.plain_text import escaped
from lightkeeper.worker_server.sidecar import recorders

_WIDTH: Final = 120
_SITE: Final = 32
"""Maximum width of a call site."""
_CALL: Final = 18
"""Maximum width of the other columns of collectives."""
_NAME: Final = 12
_NS: Final = 1e-9
_TORCH: Final = "torch's own record"
_UNFINISHED: Final = 3
_Row = Mapping[str, Any]
_CALLS: Final = "age_s group seq op sizes dtype root step state took_s from call_site"
_CONNECTION: Final = "peer local use trouble for_s queued retries rate rtt_s busy"
_TESTIMONY: Final = "witness weight age_s for_s count text"
_STATE: Final[Mapping[str, str]] = {
    "ending": "sentence",
    "step": "step phase phase_age_s commits last_commit_age_s commit_failures local_steps "
    "quorum_id participants replica_id healing loss loss_finite tokens seconds tags",
    "witness": "frame call doing thread same_s",
    "forming": "call nth ranks age_s site store",
    "process": "state threads rss_bytes cores interpreter_age_s",
    "unhooked": "",
}
"""What is shown of a state: its parts, and their fields. A part's first field goes without name."""
_STATE_TABLES: Final[Mapping[str, str]] = {
    "heads": "name size enqueued unfinished op inside age_s",
    "transfers": "group peer tag sends posted unfinished held age_s",
    "connections": _CONNECTION,
    "machine": _TESTIMONY,
    "trackers": "",
}


@singledispatch
def answer_text(answer: object, rows: int) -> str:
    """The answer of an endpoint as text.

    Args:
        answer: otherwise sent as JSON.
        rows: maximum rows of a table, 0: all.
    """
    raise NotImplementedError(type(answer).__name__)


def _page(head: Iterable[str | None], *tables: Iterable[str]) -> str:
    """An empty line is between two tables."""
    lines = list(filter(None, head))
    for number, table in enumerate(tables):
        lines += ["", *table] if number else table
    return "\n".join([*(escaped(line, "\t") for line in lines), ""])


def _who(answer: Any, process: str = "") -> str:
    who = answer.identity
    process = process or ("alive" if answer.alive else "dead")
    return f"rank {who.rank} of job {who.job} on {who.host}, pid {who.pid}, {process}"


# -- facts and tables ------------------------------------------------------------------------------


def _cell(name: str, value: Any) -> str:
    """A value as text, in the unit that its name ends in."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_cell(name, part)}" for key, part in value.items())
    if isinstance(value, tuple):
        return ", ".join(_cell(name, part) for part in value)
    if value is None or isinstance(value, bool):
        return {None: "", True: "yes", False: "no"}[value]
    if isinstance(value, int | float) and name.endswith(("_s", "seconds")):
        return _duration(value)
    if name.endswith("_bytes"):
        return f"{value / 2**30:.1f} GiB"
    return f"{value:.6g}" if isinstance(value, float) else escaped(str(value))


def _fields(of: object, names: str) -> dict[str, Any]:
    return {name: getattr(of, name, None) for name in names.split()}


def _facts(part: str, value: Any, names: str) -> list[str]:
    """`part  first; name value; name value`, in as many lines as it needs."""
    fields = _fields(value, names) if names else {part: value}
    words = [
        f"{name.removesuffix('_s')} {cell}" if place else cell
        for place, (name, field) in enumerate(fields.items())
        if (cell := _cell(name, field))
    ]
    return wrap("; ".join(words), _WIDTH, initial_indent=f"{part:<{_NAME}} ",
                subsequent_indent=" " * (_NAME + 1))  # fmt: skip


def _table(
    of: Iterable[Any], most: int, none: str, names: str = "", widest: int = _WIDTH
) -> list[str]:
    """The first `most` rows, and how many others there are; text is left-aligned.

    Columns are as wide as needed, up to `widest` but for the last one.
    """
    rows = [_fields(row, names) if names else row for row in of]
    shown = rows[: most or None]
    if not shown:
        return [none]
    columns, heads = [], list(dict.fromkeys(name for row in shown for name in row))
    for name in heads:
        most_chars = _WIDTH if name == heads[-1] else widest
        cells = [_cut(_cell(name, row.get(name)), most_chars) for row in shown]
        cells.insert(0, name.removesuffix("_s").replace("call_site", "call site"))
        width = max(map(len, cells))
        text = all(isinstance(row.get(name), str | None) for row in shown)
        columns.append([cell.ljust(width) if text else cell.rjust(width) for cell in cells])
    table = [" ".join(line).rstrip() for line in zip(*columns, strict=True)]
    hidden = len(rows) - len(shown)
    return [*table, f"and {hidden:,} more: &rows=0"] if hidden else table


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "~"


def _duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


# -- state, steps, last words, host -------------------------------------------------


@answer_text.register
def _(answer: wire.StateReport, rows: int) -> str:
    lines = [_who(answer, _life(answer.process))]
    for part, names in _STATE.items():
        value = getattr(answer, part)
        if value and (part != "process" or value.alive):
            lines += _facts(part, value, names)
    for part, names in _STATE_TABLES.items():
        if value := getattr(answer, part):
            lines += [part, *_table(sorted(value, key=_interest), rows, "", names)]
    return _page(lines)


def _interest(row: Any) -> tuple[float, float]:
    """What is unfinished or lasts longest first, then the newest."""
    return -getattr(row, "unfinished", getattr(row, "for_s", 0)), getattr(row, "age_s", 0.0)


def _life(process: wire.Process) -> str:
    """`alive (S)`, `dead for 12.0 s: SIGKILL`."""
    if process.alive:
        letter = "" if process.state is None else f" ({process.state})"
        traced = "" if process.tracer is None else f", traced by {process.tracer.name}"
        return f"alive{letter}{traced}"
    how = process.exit_signal or (
        None if process.exit_code is None else f"exit code {process.exit_code}"
    )
    for_s = "" if process.dead_age_s is None else f" for {_duration(process.dead_age_s)}"
    return f"dead{for_s}" + (f": {how}" if how else "")


@answer_text.register
def _(answer: wire.StepLog, rows: int) -> str:
    steps = [
        {
            **_fields(row, "attempt step"), "committed": bool(row.committed),
            **_fields(row, "end_age_s duration_s"),
            **{f"{phase}_s": row.seconds[phase] for phase in sorted(row.seconds)},
        }
        for row in reversed(answer.rows)
    ]  # fmt: skip
    return _page([_who(answer)], _table(steps, rows, "no step is over yet"))


@answer_text.register
def _(answer: wire.NetworkReport, rows: int) -> str:
    alive = "" if answer.alive else f"dead; looked at {_duration(answer.age_s)} ago"
    head = [
        _who(answer, alive),
        f"addresses    {', '.join(answer.addresses) or 'loopback only'}",
        answer.error and f"the kernel cannot be asked: {answer.error}",
    ]
    links = _table(answer.interfaces, rows, "no interfaces", "name up changes errors")
    return _page(head, _table(answer.connections, rows, "no connections", _CONNECTION), links)


@answer_text.register
def _(answer: wire.MachineReport, rows: int) -> str:
    head = [f"host {answer.host}, {_duration(answer.age_s)} ago", answer.error]
    states = [{"witness": name, "cannot read": why} for name, why in answer.witnesses.items()]
    said = _table(answer.testimonies, rows, "nothing is said", _TESTIMONY)
    return _page(head, said, _table(states, rows, "no witnesses"))


@answer_text.register
def _(answer: wire.LastWords, rows: int) -> str:
    parts: list[list[str]] = [[_who(answer, _life(answer.process)), answer.ended]]
    for name in ("exception", "crash", "error_file", "stderr"):
        if (trace := getattr(answer, name)) is not None:
            text = trace.text.rstrip().splitlines()
            shown = text[-rows:]  # 0: all
            cut = f", the last {len(shown)} of {len(text)} lines (&rows=0: all)"
            parts.append([f"{name} ({trace.source}){cut if shown != text else ''}:", *shown])
    if answer.stderr_error is not None:
        parts.append([f"stderr: {answer.stderr_error}"])
    return _page((), *parts)


@answer_text.register
def _(answer: wire.HostReport, rows: int) -> str:
    names = "step phase phase_age_s last_commit_age_s"
    table = [
        {
            "rank": entry.rank,
            **_fields(entry.report and entry.report.step, names),
            "process": _life(entry.report.process) if entry.report else entry.error,
            "url": entry.url,
        }
        for entry in answer.entries
    ]
    return _page([f"host {answer.host}"], _table(table, rows, "no rank"))


# -- flight record ---------------------------------------------------------------------------------


@answer_text.register
def _(record: wire.FlightRecord, rows: int) -> str:
    """Rank, what is unfinished, then the collectives."""
    calls = [_ring_call(entry) for entry in record.ring]
    for view in record.views():
        calls += _torch_calls(view)
    calls.sort(key=lambda call: float("inf") if call["age_s"] is None else call["age_s"])
    head = [_who(record)]
    for name, part in record.parts:
        taken = "none" if part.age_s is None else f"taken {_duration(part.age_s)} ago"
        why = f" ({part.error})" if part.error else ""
        head.append(_cut(f"{name or _TORCH}: {taken}{why}", _WIDTH))
    if record.dropped:
        head.append(f"the ring has overwritten {record.dropped} older entries")
    table = _table(calls, rows, "no collectives", widest=_CALL)
    return _page([*head, _unfinished(calls)], table)


def _unfinished(calls: Sequence[_Row]) -> str:
    """The newest unfinished ones."""
    words = []
    for call in calls:
        if call["state"] in ("inside", "open"):
            root = "" if call["root"] is None else f", root {call['root']}"
            site = f" at {call['call_site']}" if call["call_site"] else ""
            age = _cell("age_s", call["age_s"]) or "?"
            what = f"{call['op']} {call['seq']} of {call['group']}{root}"
            words.append(f"{what}, {call['state']} for {age}{site}")
    more = f" and {len(words) - _UNFINISHED} more" if len(words) > _UNFINISHED else ""
    return _cut(f"unfinished: {'; '.join(words[:_UNFINISHED]) or 'nothing'}{more}", 2 * _WIDTH)


def _ring_call(entry: wire.RingEntry) -> _Row:
    """`open`: asynchronous, and not waited for yet."""
    took_s = None if entry.exit_age_s is None else entry.enter_age_s - entry.exit_age_s
    ended = "failed" if entry.error is not None else None if took_s is None else "done"
    site = entry.site or ""
    site = site if len(site) <= _SITE else f"~{site[1 - _SITE :]}"
    return _fields(entry, _CALLS) | {
        "age_s": entry.enter_age_s,
        "group": entry.group if entry.quorum is None else f"{entry.group} q{entry.quorum}",
        "sizes": _sizes(entry.sizes_in or entry.sizes_out),
        "state": ended or ("open" if entry.is_async else "inside"),
        "took_s": took_s,
        "from": "both" if entry.torch_ids else "ring",
        "call_site": " ".join(filter(None, (site, entry.error))),
    }


def _torch_ages(
    record: wire.FlightRecord, entries: dict[int, recorders.TorchEntry]
) -> Mapping[int, float]:
    """Age of each torch entry, by way of a matched one, because its stamps are wall clock.

    The newest entry in both records ties the clocks together; without one, the age of torch's
    newest entry does. If that is not known, it is taken to be as old as its record, the least
    that it can be.
    """
    stamps = {n: entry.time_created_ns for n, entry in entries.items() if entry.time_created_ns}
    if not stamps:
        return {}
    ties = [
        (stamps[number], call.enter_age_s)
        for call in record.ring
        for number in call.torch_ids[:1]
        if number in stamps
    ]
    last_age_s = record.torch_age_s if record.torch_last_age_s is None else record.torch_last_age_s
    at_ns, age_s = ties[-1] if ties else (stamps[max(stamps)], last_age_s or 0.0)
    return {number: max(0.0, age_s + (at_ns - stamp) * _NS) for number, stamp in stamps.items()}


def _torch_calls(record: wire.FlightRecord) -> Iterator[_Row]:
    entries = dict(recorders.by_record_id(recorders.torch_entries(record.torch)))
    ages = _torch_ages(record, entries)
    for number in filter(entries.__contains__, record.torch_only):
        entry, names = entries[number], entries[number].names
        group = names[-1] if names else f"pg {entry.pg_id}"
        yield _fields(entry, _CALLS) | {
            "age_s": ages.get(number),
            "group": "default" if recorders.WORLD in names else group,
            "seq": entry.collective_seq_id,
            "op": entry.call,
            "sizes": _sizes(entry.input_sizes or entry.output_sizes or ()),
            "state": "retired" if entry.over else "open",
            "took_s": None if entry.duration_ms is None else entry.duration_ms / 1e3,
            "from": "torch",
        }


def _sizes(sizes: tuple[tuple[Any, ...], ...]) -> str:
    """`2x3`, or `4 +2` for (4) and two more."""
    if not sizes:
        return ""
    first = "x".join(map(str, sizes[0])) or "scalar"
    return first if len(sizes) == 1 else f"{first} +{len(sizes) - 1}"
