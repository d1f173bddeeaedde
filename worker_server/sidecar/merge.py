"""The ring and torch's own record, merged into one answer that says what came from where.

Theory of operation. An entry of torch's belongs to an entry of the ring when the operations are
of one family, sizes and dtype agree, the process groups are not known to differ, and it was
created while the rank was inside the ring's entry. Of several such entries (launched with
async_op=True and not yet waited for) the one that was entered last is meant, for torch makes its
entry at once. A call has one of torch's, or one for each tensor of a list's reduce_scatter (on
gloo it is an all_reduce for each member): a further one is somebody else's. What cannot be
placed, because the wall clock jumped, stays unmatched; nothing is matched by guess.

Pure functions. Torch's record comes over a socket from a library that changes: an entry of it
that is odd is passed on and takes no part.
"""

from __future__ import annotations

import bisect
import re
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Final

from worker_server.wire import ACROSS, RingEntry

# Which monotonic moment a wall-clock stamp of this host means; None when nobody can tell.
#
# Torch stamps its record with the wall clock, the ring with the monotonic one. The sidecar reads
# both, one right after the other, every second of its life: what the wall clock gained or lost
# between two readings is slewing when it is little, and a jump when it is more. Slewing is
# followed; a stamp from before a jump is ambiguous and has no answer.

_JUMP_NS = 2_000_000
_SLEW = 0.001
"""Twice what the kernel slews at most (500 ppm)."""
_WORTH_NS = 2_000
"""A change that is worth a sample: a clock that drifts by 10 ppm gives one a second."""
_SAMPLES = 4096
_TRIES = 3


@dataclass(slots=True)
class ClockPairs:
    """Readings of both clocks."""

    _samples: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    """Monotonic moment, wall clock minus monotonic clock."""
    _valid_from: int | None = None
    """Wall clock: older stamps are ambiguous, or older than the samples reach."""
    _last: tuple[int, int] | None = None

    def read(self) -> None:
        """Read both clocks, as close together as can be."""
        pairs = []
        for _ in range(_TRIES):
            before = time.monotonic_ns()
            wall = time.time_ns()
            after = time.monotonic_ns()
            pairs.append((after - before, (before + after) // 2, wall))
        _, monotonic, wall = min(pairs)
        self.add(monotonic, wall)

    def add(self, monotonic_ns: int, wall_ns: int) -> None:
        """One reading; later than all before."""
        offset = wall_ns - monotonic_ns
        if self._last is not None:
            then, was = self._last
            if abs(offset - was) > _JUMP_NS + _SLEW * (monotonic_ns - then):
                self._samples.clear()
                self._valid_from = monotonic_ns + max(offset, was)
        self._last = monotonic_ns, offset
        if self._samples and abs(offset - self._samples[-1][1]) < _WORTH_NS:
            return
        if len(self._samples) == self._samples.maxlen:
            moment, known = self._samples[1]
            self._valid_from = moment + known
        self._samples.append((monotonic_ns, offset))

    def frozen(self) -> Pairing:
        """What is known by now."""
        return Pairing(tuple(self._samples), self._valid_from)


@dataclass(frozen=True, slots=True)
class Pairing:
    """Turns wall-clock stamps into monotonic ones."""

    samples: tuple[tuple[int, int], ...]
    valid_from: int | None = None

    @property
    def since_ns(self) -> int:
        """Monotonic moment from which on every stamp can be placed."""
        if self.valid_from is None or not self.samples:
            return 0
        return self.valid_from - self.samples[0][1]

    def monotonic_ns(self, wall_ns: int) -> int | None:
        """The moment of a stamp; None when the clock jumped since, or was never read."""
        if not self.samples or (self.valid_from is not None and wall_ns < self.valid_from):
            return None
        samples = self.samples
        at = bisect.bisect_right(samples, wall_ns, key=sum)
        if at == 0 or at == len(samples):
            return wall_ns - samples[max(0, at - 1)][1]
        (then, offset), (later, next_offset) = samples[at - 1], samples[at]
        share = (wall_ns - then - offset) / (later + next_offset - then - offset)
        return wall_ns - offset - int(share * (next_offset - offset))


_NS = 1e-9
_REACH: Final = 64
"""Entries of one size that may be open at once and are looked at for one of torch's."""
_NO_SIZE: Final = -1
_WORLD: Final = "default_pg"

_REDUCES: Final = frozenset({"all_reduce", "allreduce", "sparse_all_reduce"})
_GATHERS: Final = frozenset(
    {"all_gather", "allgather", "_all_gather_base", "all_gather_base", "_allgather_base",
     "all_gather_into_tensor", "all_gather_single", "all_gather_into_tensor_coalesced",
     "allgather_into_tensor_coalesced", "all_gather_single_coalesced", "allgather_coalesced"}
)  # fmt: skip
_SCATTERS: Final = _REDUCES | {
    "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_base", "reduce_scatter_tensor",
    "reduce_scatter_single", "reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced",
}  # fmt: skip
_EXCHANGES: Final = frozenset({"all_to_all", "alltoall", "alltoall_base", "all_to_all_single"})
_FAMILIES: Final[Mapping[str, frozenset[str]]] = {
    "all_reduce": _REDUCES,
    "all_reduce_coalesced": _REDUCES | {"allreduce_coalesced", "all_reduce_coalesced"},
    "broadcast": frozenset({"broadcast", "_broadcast_oop"}),
    "reduce": frozenset({"reduce", "_reduce_oop"}),
    **dict.fromkeys(
        ("all_gather", "all_gather_into_tensor", "all_gather_single", "all_gather_coalesced",
         "all_gather_into_tensor_coalesced"), _GATHERS,
    ),
    **dict.fromkeys(
        ("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single",
         "reduce_scatter_tensor_coalesced"), _SCATTERS,
    ),
    **dict.fromkeys(("all_to_all", "all_to_all_single"), _EXCHANGES),
    "barrier": frozenset({"barrier", "all_reduce_barrier", "all_reduce", "allreduce"}),
    "isend": frozenset({"send"}),
    "irecv": frozenset({"recv"}),
}  # fmt: skip
"""What torch may call these; any other call goes by its own name."""
_DTYPES: Final[Mapping[str, str]] = {
    "float": "float32", "double": "float64", "half": "float16", "int": "int32", "long": "int64",
    "short": "int16", "char": "int8", "byte": "uint8",
}  # fmt: skip
_COPY: Final = re.compile(r"#\d+$")

SOURCES: Final[Mapping[str, str]] = {
    "ring": (
        "the rank's own ring in shared memory: what Python called through torch.distributed, its "
        "functional collectives and TorchFT, with call sites, roots, errors and times of the host; "
        "it cannot see what C++ starts by itself (DDP's reducer), nor calls by a name that was "
        "imported before the attach, and with NCCL an exit means that the host went on, not that "
        "the GPU is done"
    ),
    "torch": (
        "torch's own Flight Recorder (fr_trace_json: gloo's), untouched: what the backend was "
        "given, by whomever; with NCCL states and times are real; on gloo `state` is always "
        "'scheduled', `retired` also "
        "comes after a failure, and there are no roots, no point-to-point and no members; "
        "Baby process groups of TorchFT's have no entries, their backend runs in another process"
    ),
    "recorders": (
        "the Flight Recorders of other backends, by the question that torch's control plane was "
        "asked (fr_trace_json?backend=NAME, dump_nccl_trace_json, torchcomms_fr_trace_json), "
        "untouched: "
        "`record`, or `error` where it could not be read; `only` is its torch_only"
    ),
    "torch_ids": (
        "record_ids of torch's that were created while the rank was inside this entry, of the same "
        "kind, group, sizes and dtype; of `recorder`, where the entry names one"
    ),
    "torch_only": (
        "record_ids of torch's that no entry of the ring explains (C++ by itself, or calls that "
        "the ring cannot see); left out are those older than the ring reaches and those whose wall-"
        "clock stamp cannot be placed because the clock was set since"
    ),
    "cursor": (
        "RING.TORCH.MOMENT: as ?since= it gives what was entered or left after this answer, and "
        "what is unfinished; one that this rank cannot have given (newer than all there is) gives "
        "everything; it means nothing to another incarnation"
    ),
}


@dataclass(frozen=True, slots=True)
class Merged:
    """Both records, and what is known of their kinship."""

    ring: tuple[RingEntry, ...]
    torch: Mapping[str, Any] | None
    torch_only: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Call:
    """An entry of the ring, ready to be compared."""

    at: int
    enter_ns: float
    exit_ns: float
    group: str
    families: frozenset[str]
    counts: frozenset[int]
    dtype: str | None
    room: int
    """Entries of torch's that it may have."""
    own: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Row:
    """An entry of torch's, ready to be compared."""

    moment_ns: int
    kind: str
    counts: frozenset[int]
    dtype: str | None
    names: tuple[str, ...]
    pg_id: int | None


class _Calls:
    """The ring's entries, to be found by size and time."""

    def __init__(self, calls: Iterable[_Call]) -> None:
        self._by_count: dict[int, tuple[list[float], list[_Call]]] = {}
        self._homes: dict[int, str] = {}
        for call in sorted(calls, key=lambda call: call.enter_ns):
            for count in call.counts or (_NO_SIZE,):
                enters, listed = self._by_count.setdefault(count, ([], []))
                enters.append(call.enter_ns)
                listed.append(call)

    def owner(self, row: _Row) -> _Call | None:
        """The call in which torch made this entry."""
        owners = [self._owner(row, count) for count in row.counts or (_NO_SIZE,)]
        known = [call for call in owners if call is not None]
        return max(known, key=lambda call: call.enter_ns, default=None)

    def _owner(self, row: _Row, count: int) -> _Call | None:
        enters, calls = self._by_count.get(count, ((), ()))
        moment = row.moment_ns
        last = bisect_right(enters, moment)
        for call in reversed(calls[max(0, last - _REACH) : last]):
            if (
                moment <= call.exit_ns
                and len(call.own) < call.room
                and row.kind in call.families
                and (call.dtype is None or row.dtype is None or call.dtype == row.dtype)
                and self._same_group(row, call)
            ):
                return call
        return None

    def _same_group(self, row: _Row, call: _Call) -> bool:
        """Whether the two may be one group: by torch's names, else by what was matched before."""
        if call.group in row.names:
            return True
        if _WORLD in row.names:
            return call.group == "default"
        if row.names:
            across = call.group.startswith(ACROSS)
            return across and any(name.startswith(ACROSS) for name in row.names)
        # TorchFT's are nameless
        return row.pg_id is None or self._homes.setdefault(row.pg_id, call.group) == call.group


def merge(
    ring: tuple[RingEntry, ...],
    torch: Mapping[str, Any] | None,
    now_ns: int,
    clock: Pairing,
    recorder: str | None = None,
) -> Merged:
    """Match the two records; `now_ns` is the monotonic moment that the ring's ages count from.

    `recorder`: the name of one of several, which has what no other has had before.
    """
    rows = rows_of(torch)
    if not rows:
        return Merged(ring, torch, ())
    calls = [_call(at, entry, now_ns) for at, entry in enumerate(ring) if not entry.torch_ids]
    # without its first entry nobody knows what the ring has forgotten
    whole = bool(ring) and ring[0].id == 1
    oldest_s = max((entry.enter_age_s for entry in ring), default=0.0)
    reach = now_ns - oldest_s / _NS if ring and not whole else 0.0
    # whose own entry cannot be placed must not be given another's
    book = _Calls(call for call in calls if call.enter_ns >= clock.since_ns)
    alone: list[int] = []
    for data in rows:
        row = _read(data, clock)
        if row is None:
            continue
        call = book.owner(row)
        if call is not None:
            call.own.append(data["record_id"])
        elif row.moment_ns >= reach:
            alone.append(data["record_id"])
    entries = list(ring)
    for call in calls:
        if call.own:
            entries[call.at] = replace(
                entries[call.at], torch_ids=tuple(call.own), recorder=recorder
            )
    return Merged(tuple(entries), torch, tuple(alone))


def last_age_s(torch: Mapping[str, Any] | None, now_ns: int, clock: Pairing) -> float | None:
    """Age of torch's youngest entry; None when there is none or its stamp cannot be placed."""
    stamps = [(row["record_id"], row.get("time_created_ns")) for row in rows_of(torch)]
    _, last = max((one for one in stamps if type(one[1]) is int), default=(0, None))
    moment = None if last is None else clock.monotonic_ns(last)
    return None if moment is None else max(0.0, (now_ns - moment) * _NS)


def rows_of(torch: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Torch's entries that have a number, in the order in which they were made."""
    entries = torch.get("entries") if isinstance(torch, Mapping) else None
    return [row for row in entries if _has_number(row)] if isinstance(entries, list | tuple) else []


def _has_number(row: Any) -> bool:
    return isinstance(row, Mapping) and type(row.get("record_id")) is int


def _call(at: int, entry: RingEntry, now_ns: int) -> _Call:
    return _Call(
        at=at,
        enter_ns=now_ns - entry.enter_age_s / _NS,
        exit_ns=now_ns if entry.exit_age_s is None else now_ns - entry.exit_age_s / _NS,
        group=_COPY.sub("", entry.group),
        families=_FAMILIES.get(entry.op) or frozenset((entry.op,)),
        counts=_counts(entry.sizes_in, entry.sizes_out) | _each(entry.sizes_in, entry.sizes_out),
        dtype=entry.dtype,
        room=len(entry.sizes_in) if entry.op == "reduce_scatter" else 1,
    )


def _counts(*lists: Iterable[tuple[int, ...]]) -> frozenset[int]:
    """Elements of all tensors of a list together."""
    return frozenset(sum(map(prod, shapes)) for shapes in lists if shapes)


def _each(*lists: Iterable[tuple[int, ...]]) -> frozenset[int]:
    return frozenset(prod(shape) for shapes in lists for shape in shapes)


def _read(data: Mapping[str, Any], clock: Pairing) -> _Row | None:
    """An entry of torch's; None when it is odd, or when its moment cannot be known."""
    created, name = data.get("time_created_ns"), data.get("profiling_name")
    sizes_in, sizes_out = _shapes(data.get("input_sizes")), _shapes(data.get("output_sizes"))
    if type(created) is not int or not isinstance(name, str):
        return None
    moment = clock.monotonic_ns(created)
    if moment is None or sizes_in is None or sizes_out is None:
        return None
    named, pg_id = data.get("process_group"), data.get("pg_id")
    names = named if isinstance(named, list | tuple) else ()
    return _Row(
        moment_ns=moment,
        kind=name.rpartition(":")[2].partition(" ")[0].lower(),
        counts=_counts(sizes_in, sizes_out),
        dtype=_dtype(data.get("input_dtypes") or data.get("output_dtypes")),
        names=tuple(name for name in names if isinstance(name, str) and name),
        pg_id=pg_id if type(pg_id) is int else None,
    )


def _dtype(dtypes: Any) -> str | None:
    if not isinstance(dtypes, list | tuple) or not dtypes or not isinstance(dtypes[0], str):
        return None
    name = dtypes[0].rpartition(".")[2].lower()
    return _DTYPES.get(name, name)


def _shapes(sizes: Any) -> tuple[tuple[int, ...], ...] | None:
    """Sizes as torch writes them; None when they are something else."""
    if not isinstance(sizes, list | tuple):
        return () if sizes is None else None
    for shape in sizes:
        if not isinstance(shape, list | tuple) or not all(type(size) is int for size in shape):
            return None
    return tuple(tuple(shape) for shape in sizes)


# -- which of it is wanted ---------------------------------------------------------------------


def unfinished(merged: Merged) -> Merged:
    """Only what the rank has not come out of, by both records together.

    An entry of torch's that the ring knows to be left is left, although gloo says "scheduled"; an
    entry of the ring that was launched and never waited for is over when torch retired it.
    """
    rows = {row["record_id"]: row for row in rows_of(merged.torch)}
    over = {number for number, row in rows.items() if is_over(row)}
    left: set[int] = set()
    ring = []
    for entry in merged.ring:
        own = entry.torch_ids
        if entry.exit_age_s is not None or (entry.is_async and own and over.issuperset(own)):
            left.update(own)
        else:
            ring.append(entry)
    gone = over | left
    kept = _keep(merged, tuple(ring), lambda number: number not in gone)
    if kept.torch is None or not isinstance(kept.torch.get("entries"), list):
        return kept
    nameless = [row for row in kept.torch["entries"] if _has_number(row) or not is_over(row)]
    return replace(kept, torch={**kept.torch, "entries": nameless})


def chosen(
    merged: Merged, clock: Pairing, *, only_active: bool = False, since: Cursor | None = None
) -> Merged:
    """Of another recorder what is asked for: its entries have moments, and no number in the cursor.

    What was made or found completed since, and what is not over.
    """
    rows = {row["record_id"]: row for row in rows_of(merged.torch)}
    since_ms = None if since is None else since.moment_ms

    def wanted(number: int) -> bool:
        row = rows[number]
        if not is_over(row):
            return True
        stamps = (row.get("time_created_ns"), row.get("time_discovered_completed_ns"))
        moments = [clock.monotonic_ns(one) for one in stamps if type(one) is int and one > 0]
        late = since_ms is None or any(one is None or one >= since_ms * 1e6 for one in moments)
        return late and not only_active

    return _keep(merged, merged.ring, wanted)


def is_over(row: Any) -> bool:
    """Whether torch knows an entry of its own to be over."""
    return isinstance(row, Mapping) and (
        row.get("retired") is True or row.get("state") == "completed"
    )


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a reader has read."""

    ring: int
    torch: int = -1
    moment_ms: int | None = None
    """On the monotonic clock of the host."""

    def __str__(self) -> str:
        text = f"{self.ring}.{self.torch}"
        return text if self.moment_ms is None else f"{text}.{self.moment_ms}"


_CURSOR: Final = re.compile(r"(\d{1,18})(?:\.(-1|\d{1,18})(?:\.(\d{1,18}))?)?", re.ASCII)


def parse_cursor(text: str) -> Cursor:
    """What a reader gave back: `RING`, `RING.TORCH` or `RING.TORCH.MOMENT`.

    Raises:
        ValueError: something else.
    """
    match = _CURSOR.fullmatch(text)
    if match is None:
        raise ValueError(
            f"since={text[:40]!r} is no cursor: give the `cursor` of an earlier answer, or the "
            "`id` of an entry"
        )
    ring, torch, moment = match.groups()
    return Cursor(
        int(ring), -1 if torch is None else int(torch), None if moment is None else int(moment)
    )


def select(
    merged: Merged, now_ns: int, *, only_active: bool = False, since: Cursor | None = None
) -> tuple[Merged, Cursor]:
    """What a reader asked for, and the cursor behind all that there is."""
    if since is not None and not _possible(since, merged, now_ns):
        since = None
    cursor = cursor_of(merged, now_ns, since)
    if since is not None:
        merged = newer(merged, since, now_ns)
    return (unfinished(merged) if only_active else merged), cursor


def cursor_of(merged: Merged, now_ns: int, before: Cursor | None = None) -> Cursor:
    """The cursor that stands behind everything in `merged`; never before `before`."""
    ring = max((entry.id or 0 for entry in merged.ring), default=0)
    torch = max((row["record_id"] for row in rows_of(merged.torch)), default=-1)
    if before is not None:
        ring, torch = max(ring, before.ring), max(torch, before.torch)
    return Cursor(ring, torch, now_ns // 1_000_000)


def newer(merged: Merged, cursor: Cursor, now_ns: int) -> Merged:
    """What was entered or left after the cursor, and what is unfinished.

    A cursor without a moment does not know what was left since: of older entries only what is
    unfinished now comes again.
    """
    since_s = None if cursor.moment_ms is None else now_ns * _NS - cursor.moment_ms * 1e-3
    ring = tuple(
        entry
        for entry in merged.ring
        if (entry.id or 0) > cursor.ring
        or entry.exit_age_s is None
        or (since_s is not None and entry.exit_age_s <= since_s)
    )
    wanted = {number for entry in ring for number in entry.torch_ids}
    return _keep(merged, ring, lambda number: number > cursor.torch or number in wanted)


def _possible(cursor: Cursor, merged: Merged, now_ns: int) -> bool:
    """Whether this rank can have given it; one from the future was given by another incarnation."""
    last = cursor_of(merged, now_ns)
    torch_known = merged.torch is not None
    return (
        cursor.ring <= last.ring
        and (cursor.torch <= last.torch or not torch_known)
        and (cursor.moment_ms is None or cursor.moment_ms <= now_ns // 1_000_000)
    )


def _keep(merged: Merged, ring: tuple[RingEntry, ...], wanted: Callable[[int], bool]) -> Merged:
    torch = merged.torch
    rows = torch.get("entries") if isinstance(torch, Mapping) else None
    if torch is not None and isinstance(rows, list | tuple):
        torch = {
            **torch,
            "entries": [row for row in rows if not _has_number(row) or wanted(row["record_id"])],
        }
    return Merged(ring, torch, tuple(number for number in merged.torch_only if wanted(number)))
