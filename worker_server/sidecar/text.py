"""What a person reads with curl: each answer as text (`?format=text`), at most 120 columns.

At 3 am the answer must come first: which rank it is, what is unfinished, then a table with the
newest row first, cut to twenty rows (`rows=0`: all).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, Final, TypeVar

from lightkeeper.worker_server.plain_text import escaped
from lightkeeper.worker_server.sidecar.recorders import WORLD, TorchEntry, numbered, read
from lightkeeper.worker_server.wire import (
    FlightRecord,
    Forming,
    GroupHead,
    HostEntry,
    HostReport,
    Identity,
    LastWords,
    Process,
    RingEntry,
    StateReport,
    StepLog,
    StepState,
    TransferHead,
    Witness,
)

_WIDTH: Final = 120
_SITE: Final = 16
"""Minimum width of a call site."""
_TRANSFERS: Final = 8
"""Rows of a state: those that hold the rank first, then the unfinished, then the newest."""
_NS: Final = 1e-9
_COLUMNS: Final = {
    "age": 8, "group": 14, "seq": 7, "op": 20, "sizes": 16, "dtype": 8, "root": 4, "step": 7,
    "state": 13, "took": 8, "from": 5,
}  # fmt: skip
"""Columns of collectives and their maximum widths; the call site gets the rest."""
_LEFT: Final = frozenset(
    {"group", "op", "sizes", "dtype", "state", "from", "rank", "counter", "attempt"}
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Line:
    """One collective; `order`: seconds since it was entered."""

    order: float
    cells: tuple[str, ...]
    site: str = ""
    unfinished: str | None = None
    error: str | None = None


_TITLE: Final = _Line(0.0, (), "call site")


@singledispatch
def render(answer: object, rows: int) -> str:
    """The answer of an endpoint as text.

    Args:
        answer: otherwise sent as JSON.
        rows: maximum rows of a table, 0: all.
    """
    raise NotImplementedError(type(answer).__name__)


def _who(who: Identity, process: str) -> str:
    return escaped(f"rank {who.rank} of job {who.job} on {who.host}, pid {who.pid}, {process}")


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    """One line per fact, names left; a repeated name is written once."""
    lines, before = [], None
    for name, fact in facts:
        lines.append(_cut(f"{'' if name == before else name:<12} {fact}".rstrip(), _WIDTH))
        before = name
    return "\n".join([*lines, ""])


def _first(rows: Sequence[T], most: int, what: str = "older") -> tuple[Sequence[T], list[str]]:
    """The first `most` rows, and a line with the number of the others."""
    shown = rows[: most or None]
    hidden = len(rows) - len(shown)
    return shown, [f"and {hidden:,} {what}: &rows=0"] if hidden else []


def _table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], most: Sequence[int] = (), gap: str = "  "
) -> list[str]:
    """Columns as wide as needed, up to `most`; those of `_LEFT` are left-aligned."""
    lines = [[escaped(cell) for cell in row] for row in (titles, *rows)]
    limits = most or [_WIDTH] * len(titles)
    widths = [min(limit, max(len(line[n]) for line in lines)) for n, limit in enumerate(limits)]
    return [
        gap.join(
            _cut(cell, width).ljust(width) if title in _LEFT else _cut(cell, width).rjust(width)
            for title, cell, width in zip(titles, line, widths, strict=False)
        )
        for line in lines
    ]


def _listed(table: list[str], none: str, more: list[str]) -> list[str]:
    return [*([line.rstrip() for line in table] if table[1:] else [none]), *more, ""]


# -- state -----------------------------------------------------------------------------------------


@render.register
def _(answer: StateReport, rows: int) -> str:
    del rows
    return f"{_who(answer.identity, _life(answer.process))}\n{_facts(_state(answer))}"


def _life(process: Process) -> str:
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


def _state(report: StateReport) -> Iterator[tuple[str, str]]:
    if report.ending is not None:
        yield "ended", report.ending.sentence
    if report.step is not None:
        yield from _step(report.step)
    if report.witness is not None:
        yield "stands at" if report.process.alive else "stood at", _stands(report.witness)
    if report.forming is not None:
        yield "creates", _forming(report.forming)
    for head in report.heads:
        yield "collectives", _head(head)
    by_interest = sorted(report.transfers, key=lambda row: (-row.held, -row.unfinished, row.age_s))
    for row in by_interest[:_TRANSFERS]:
        yield "transfers", _transfer(row)
    if len(by_interest) > _TRANSFERS:
        yield "transfers", f"and {len(by_interest) - _TRANSFERS} more"
    process = report.process
    if process.alive:
        yield "process", ", ".join(_uses(process))
    if report.unhooked:
        yield "does not see", f"{', '.join(report.unhooked)}: not in this version of TorchFT"


def _step(step: StepState) -> Iterator[tuple[str, str]]:
    ago = "" if step.last_commit_age_s is None else f", {_duration(step.last_commit_age_s)} ago"
    yield "step", f"{step.step}, in {step.phase} for {_duration(step.phase_age_s)}"
    failed = f"; {step.commit_failures} attempts failed" if step.commit_failures else ""
    alone = f"; {step.local_steps} local steps" if step.local_steps else ""
    yield "commits", f"{step.commits}{ago}{failed}{alone}"
    if step.quorum_id is not None:
        healing = ", heals" if step.healing else ""
        groups = "" if step.participants is None else f", groups: {step.participants}"
        yield "quorum", f"{step.quorum_id}{groups}{healing}, as {step.replica_id}"
    if step.loss is not None or not step.loss_finite:
        yield (
            "loss",
            f"{step.loss:.6g}" if step.loss_finite and step.loss is not None else "not finite",
        )
    if step.tokens:
        yield "tokens", f"{step.tokens:,}"
    if step.seconds:
        longest = sorted(step.seconds.items(), key=lambda phase: -phase[1])
        yield "spent", ", ".join(f"{name} {_duration(spent_s)}" for name, spent_s in longest)
    if step.tags:
        yield "says it does", ", ".join(step.tags)


def _stands(witness: Witness) -> str:
    frame = witness.frame
    place = f"{frame.file}:{frame.line} in {frame.function}"
    calls = "" if witness.call is None else f", calls {witness.call}"
    thread = "" if witness.thread is None else f", in thread {witness.thread}"
    return f"{place}{calls} ({witness.doing}){thread} for {_duration(witness.same_s)}"


def _head(head: GroupHead) -> str:
    state = f"inside of {head.op}" if head.inside else f"last {head.op}"
    unfinished = f", {head.unfinished} not complete" if head.unfinished else ""
    group = f"{head.name} ({head.size} ranks): {head.enqueued}"
    return f"{group}, {state} {_duration(head.age_s)} ago{unfinished}"


def _transfer(row: TransferHead) -> str:
    peer = "any rank" if row.peer < 0 else f"rank {row.peer}"
    what = f"{'sends to' if row.sends else 'receives from'} {peer} in {row.group}"
    tag = f", tag {row.tag}" if row.tag else ""
    unfinished = f", {row.unfinished} not complete" if row.unfinished else ""
    state = f"inside of {row.held}" if row.held else "last"
    return f"{what}{tag}: {row.posted}, {state} {_duration(row.age_s)} ago{unfinished}"


def _forming(forming: Forming) -> str:
    nth = f" (number {forming.nth})" if forming.nth else ""
    ranks = f" of ranks {', '.join(map(str, forming.ranks))}" if forming.ranks else ""
    store = f", by {forming.store}" if forming.store else ""
    site = f" at {forming.site}" if forming.site else ""
    return f"{forming.call}{nth}{ranks} for {_duration(forming.age_s)}{site}{store}"


def _uses(process: Process) -> Iterator[str]:
    if process.threads is not None:
        yield f"{process.threads} threads"
    if process.rss_bytes is not None:
        yield f"{process.rss_bytes / 2**30:.1f} GiB"
    if process.cores is not None:
        yield f"{process.cores:.1f} cores"
    if process.interpreter_age_s is not None:
        yield f"its interpreter ran {_duration(process.interpreter_age_s)} ago"


# -- steps, last words, host, wait counters --------------------------------------------------------


@render.register
def _(answer: StepLog, rows: int) -> str:
    newest, more = _first(answer.rows[::-1], rows)
    phases = sorted({name for row in newest for name in row.seconds})
    table = _table(
        ["attempt", "step", "committed", "ended", "took", *phases],
        [
            (
                str(row.attempt), str(row.step), "yes" if row.committed else "no",
                f"{_duration(row.end_age_s)} ago", _duration(row.duration_s),
                *(_duration(row.seconds[name]) if name in row.seconds else "-" for name in phases),
            )
            for row in newest
        ],
    )  # fmt: skip
    head = _who(answer.identity, "alive" if answer.alive else "dead")
    return "\n".join([head, *_listed(table, "no step is over yet", more)])


@render.register
def _(answer: LastWords, rows: int) -> str:
    lines = [_who(answer.identity, _life(answer.process)), escaped(answer.ended)]
    for name, trace in (
        ("exception", answer.exception), ("fatal error", answer.crash),
        ("torchelastic's error file", answer.error_file), ("stderr", answer.stderr),
    ):  # fmt: skip
        if trace is None:
            continue
        text = trace.text.rstrip().splitlines()
        shown = text[-rows:]  # 0: all
        cut = ""
        if len(shown) < len(text):
            cut = f", the last {len(shown)} of {len(text)} lines (&rows=0: all)"
        lines += ["", escaped(f"{name} ({trace.source}){cut}:"), *shown]
    if answer.stderr_error is not None:
        lines += ["", escaped(f"stderr: {answer.stderr_error}")]
    return "\n".join([*lines, ""])


@render.register
def _(answer: HostReport, rows: int) -> str:
    shown, more = _first(answer.entries, rows, "more")
    table = _table(
        ["rank", "step", "phase", "for", "last commit", "process", "WorkerServer"],
        [(entry.rank, *_of_host(entry), entry.url or "-") for entry in shown],
    )
    return "\n".join([escaped(f"host {answer.host}"), *_listed(table, "no rank", more)])


def _of_host(entry: HostEntry) -> tuple[str, ...]:
    if entry.report is None:
        return ("-", "-", "-", "-", entry.error or "unknown")
    step, process = entry.report.step, _life(entry.report.process)
    if step is None:
        return ("-", "-", "-", "-", process)
    committed = (
        "-" if step.last_commit_age_s is None else f"{_duration(step.last_commit_age_s)} ago"
    )
    return (str(step.step), step.phase, _duration(step.phase_age_s), committed, process)


@render.register(dict)
def _(answer: Mapping[str, Any], rows: int) -> str:
    """Torch's wait counters, the largest total time first."""
    counters = {name: cells for name, cells in answer.items() if isinstance(cells, Mapping)}
    names = sorted(counters, key=lambda name: -_number(counters[name].get("total_time_us")))
    columns = sorted({key for cells in counters.values() for key in cells})
    shown, more = _first(names, rows, "more")
    table = _table(
        ["counter", *columns],
        [(name, *(str(counters[name].get(key, "-")) for key in columns)) for name in shown],
    )
    return "\n".join(_listed(table, "no counters", more))


def _number(cell: object) -> float:
    return float(cell) if isinstance(cell, int | float) else 0.0


# -- flight record ---------------------------------------------------------------------------------


@render.register
def _(record: FlightRecord, rows: int) -> str:
    """Rank, what is unfinished, then the collectives."""
    lines = [_ring_line(entry) for entry in record.ring]
    for view in record.views():
        lines += _torch_lines(view)
    lines.sort(key=lambda line: line.order)
    newest, more = _first(lines, rows)
    table = _table(list(_COLUMNS), [line.cells for line in newest], list(_COLUMNS.values()), " ")
    body = []
    for left, line in zip(table, (_TITLE, *newest), strict=True):
        body.append(f"{left} {_end(line.site, max(_SITE, _WIDTH - len(left) - 1))}")
        if line.error is not None:
            body.append(_cut(f"      {line.error}", _WIDTH))
    listed = _listed(body, "no collectives", more)
    return "\n".join([*_header(record), _unfinished(lines), *listed])


def _header(record: FlightRecord) -> Iterable[str]:
    yield _who(record.identity, "alive" if record.alive else "dead")
    torch = "torch's own record: "
    if record.torch is not None and record.torch_age_s is not None:
        torch += f"taken {_duration(record.torch_age_s)} ago"
    elif record.torch is None:
        torch += "none"
    if record.torch_error:
        torch += f" ({record.torch_error})"
    yield _cut(torch, _WIDTH)
    for name, other in record.recorders.items():
        taken = "none" if other.age_s is None else f"taken {_duration(other.age_s)} ago"
        yield _cut(f"{name}: {taken}" + (f" ({other.error})" if other.error else ""), _WIDTH)
    if record.dropped:
        yield f"the ring has overwritten {record.dropped} older entries"


def _unfinished(lines: list[_Line]) -> str:
    """The newest unfinished ones."""
    open_ones = [line.unfinished for line in lines if line.unfinished is not None]
    if not open_ones:
        return "unfinished: nothing"
    shown = "; ".join(open_ones[:3])
    more = f" and {len(open_ones) - 3} more" if len(open_ones) > 3 else ""
    return _cut(f"unfinished: {shown}{more}", 2 * _WIDTH)


def _cut(text: str, width: int) -> str:
    text = escaped(text)
    return text if len(text) <= width else text[: width - 1] + "~"


def _end(text: str, width: int) -> str:
    text = escaped(text)
    return text if len(text) <= width else "~" + text[-(width - 1) :]


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
        ),
        site=entry.site or "",
        unfinished=unfinished,
        error=entry.error,
    )


def _ring_state(entry: RingEntry) -> tuple[str, str | None]:
    if entry.error is not None:
        return "failed", None
    if entry.exit_age_s is not None:
        return "done", None
    inside = _duration(entry.enter_age_s)
    peer = ""
    if entry.tag is not None and entry.root is not None:
        peer = f" {'to' if 'send' in entry.op else 'from'} rank {entry.root}"
    what = f"{entry.op} {entry.seq}{peer} of {entry.group}"
    where = f" at {entry.site}" if entry.site else ""
    if entry.is_async:
        return f"open {inside}", f"{what}, launched {inside} ago{where} and not waited for"
    return f"in {inside}", f"{what}, inside for {inside}{where}"


# -- lines of torch's ----------------------------------------------------------------------------


def _torch_ages(record: FlightRecord, entries: dict[int, TorchEntry]) -> Mapping[int, float]:
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


def _torch_lines(record: FlightRecord) -> Iterator[_Line]:
    entries = dict(numbered(read(record.torch)))
    ages = _torch_ages(record, entries)
    matched = {number for entry in record.ring for number in entry.torch_ids}
    oldest = max((entry.enter_age_s for entry in record.ring), default=float("inf"))
    alone = set(record.torch_only)
    for number, entry in entries.items():
        age_s = ages.get(number)
        if number in matched or (number not in alone and (age_s is None or age_s > oldest)):
            continue  # in the ring's line, or older than the ring
        yield _torch_line(entry, age_s)


def _torch_line(entry: TorchEntry, age_s: float | None) -> _Line:
    names = entry.names
    group = "default" if WORLD in names else names[-1] if names else f"pg {entry.pg_id}"
    age = "?" if age_s is None else _duration(age_s)
    seq, took_ms = entry.collective_seq_id, entry.duration_ms
    return _Line(
        order=float("inf") if age_s is None else age_s,
        cells=(
            age,
            group,
            "?" if seq is None else str(seq),
            entry.call,
            _sizes(entry.input_sizes or entry.output_sizes or ()),
            entry.dtype or "",
            "",
            "",
            "retired" if entry.over else f"open {age}",
            "" if took_ms is None else _duration(took_ms / 1e3),
            "torch",
        ),
        unfinished=(
            None if entry.over else f"{entry.call} {seq} of {group}, seen by torch alone, {age} ago"
        ),
    )


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
