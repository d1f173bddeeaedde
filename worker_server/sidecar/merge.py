"""The ring and torch's own record, merged into one answer that says what came from where.

Theory of operation. A torch entry belongs to a ring entry if the operations are of one family,
sizes and dtype agree, the process groups are not known to differ, and it was created while the
rank was inside the ring's entry. If several ring entries match (launched with async_op=True and
not yet waited for), the one entered last is taken, because torch creates its entry at once.
A call has one torch entry, or one for each tensor of a list's reduce_scatter (on gloo it is an
all_reduce for each member); any further one belongs to another call. What cannot be placed in
time, because the wall clock jumped, stays unmatched; nothing is guessed.

Pure functions. Torch's record comes over a socket from a library that changes: entries that are
not understood are passed on and take no part.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Final

from lightkeeper.worker_server.sidecar import recorders
from lightkeeper.worker_server.wire import ACROSS, RingEntry, Shapes

# Converts this host's wall-clock stamps to monotonic time; None if ambiguous.
#
# Torch stamps its record with the wall clock, the ring with the monotonic one. The sidecar reads
# both, one right after the other, every second of its life. NTP slews both alike, see
# clock_gettime(2), so their offset changes only when the wall clock is set: a stamp from before
# that is ambiguous and has no answer.

_JUMP_NS = 2_000_000
_TRIES = 3


@dataclass(frozen=True, slots=True)
class ClockPairs:
    """The last reading of both clocks: it turns wall-clock stamps into monotonic ones."""

    offset_ns: int | None = None
    """Wall clock minus monotonic clock; None: never read."""
    valid_from: int | None = None
    """Wall clock: earlier stamps are ambiguous."""

    def read(self) -> ClockPairs:
        """Adds a reading of both clocks, as close together as possible."""
        pairs = []
        for _ in range(_TRIES):
            before = time.monotonic_ns()
            wall = time.time_ns()
            after = time.monotonic_ns()
            pairs.append((after - before, (before + after) // 2, wall))
        _, monotonic, wall = min(pairs)
        return self.add(monotonic, wall)

    def add(self, monotonic_ns: int, wall_ns: int) -> ClockPairs:
        """Adds this reading, the latest so far."""
        offset, was, valid_from = wall_ns - monotonic_ns, self.offset_ns, self.valid_from
        if was is not None and abs(offset - was) > _JUMP_NS:
            valid_from = monotonic_ns + max(offset, was)
        return ClockPairs(offset, valid_from)

    @property
    def since_ns(self) -> int:
        """Monotonic time from which on every stamp can be placed."""
        return 0 if self.valid_from is None else self.valid_from - (self.offset_ns or 0)

    def monotonic_ns(self, wall_ns: int) -> int | None:
        """The monotonic time of a stamp; None if the clock was set since, or was never read."""
        if self.offset_ns is None or (self.valid_from is not None and wall_ns < self.valid_from):
            return None
        return wall_ns - self.offset_ns


_NS = 1e-9
_REACH: Final = 128
"""How many open entries are compared with one of torch's."""
_ALSO: Final[Mapping[str, frozenset[str]]] = {
    "reducescatter": frozenset({"reducescatter", "allreduce"}),
    "barrier": frozenset({"barrier", "allreducebarrier", "allreduce"}),
    "isend": frozenset({"send"}),
    "irecv": frozenset({"recv"}),
}
"""Kinds for which torch's entry may have another kind; all others match their own."""
_COPY: Final = re.compile(r"#\d+$")


@dataclass(frozen=True, slots=True)
class Merged:
    """Both records, and how their entries match."""

    ring: tuple[RingEntry, ...]
    torch: Mapping[str, Any] | None
    torch_only: tuple[int, ...] = ()
    entries: tuple[tuple[Any, recorders.TorchEntry | None], ...] = ()
    """Torch's, raw and parsed; None: not understood."""


@dataclass(frozen=True, slots=True)
class _Call:
    """An entry of the ring, prepared for matching."""

    at: int
    enter_ns: float
    exit_ns: float
    group: str
    kinds: frozenset[str]
    counts: frozenset[int]
    dtype: str | None
    room: int
    """How many torch entries it may have."""
    own: list[int] = field(default_factory=list)


class _Calls:
    """The ring's entries, searchable by time."""

    def __init__(self, calls: Iterable[_Call]) -> None:
        self._calls = sorted(calls, key=lambda call: call.enter_ns)
        self._enters = [call.enter_ns for call in self._calls]
        self._homes: dict[int, str] = {}

    def owner(self, entry: recorders.TorchEntry, moment_ns: int) -> _Call | None:
        """The call in which torch created this entry: of all that fit, the last one entered."""
        counts = _counts(entry.input_sizes, entry.output_sizes)
        kind, dtype = recorders.kind_of(entry.call), entry.dtype
        last = bisect_right(self._enters, moment_ns)
        for call in reversed(self._calls[max(0, last - _REACH) : last]):
            if (
                moment_ns <= call.exit_ns
                and len(call.own) < call.room
                and (counts & call.counts if counts else not call.counts)
                and kind in call.kinds
                and (call.dtype is None or dtype is None or call.dtype == dtype)
                and self._same_group(entry, call)
            ):
                return call
        return None

    def _same_group(self, entry: recorders.TorchEntry, call: _Call) -> bool:
        """True if the groups may be the same: by torch's names, else by earlier matches."""
        names, pg_id = entry.names, entry.pg_id
        if call.group in names:
            return True
        if recorders.WORLD in names:
            return call.group == "default"
        if names:
            across = call.group.startswith(ACROSS)
            return across and any(name.startswith(ACROSS) for name in names)
        # TorchFT's are nameless
        return pg_id is None or self._homes.setdefault(pg_id, call.group) == call.group


def merge(
    ring: tuple[RingEntry, ...],
    torch: Mapping[str, Any] | None,
    now_ns: int,
    clock: ClockPairs,
    recorder: str | None = None,
) -> Merged:
    """Match the two records; `now_ns` is the monotonic time that the ring's ages count from.

    `recorder`: name of the recorder; ring entries already matched by another are left out.
    """
    merged = Merged(ring, torch, (), tuple(recorders.torch_entries(torch)))
    calls = [_call(at, entry, now_ns) for at, entry in enumerate(ring) if not entry.torch_ids]
    # without its first entry, the ring may have lost earlier ones
    whole = bool(ring) and ring[0].id == 1
    oldest_s = max((entry.enter_age_s for entry in ring), default=0.0)
    reach = now_ns - oldest_s / _NS if ring and not whole else 0.0
    # a call too old for its own torch entry to be placed must not get another's
    book = _Calls(call for call in calls if call.enter_ns >= clock.since_ns)
    alone: list[int] = []
    for number, entry in recorders.by_record_id(merged.entries):
        stamp = entry.time_created_ns
        moment_ns = None if stamp is None else clock.monotonic_ns(stamp)
        if moment_ns is None or not entry.profiling_name:
            continue
        call = book.owner(entry, moment_ns)
        if call is not None:
            call.own.append(number)
        elif moment_ns >= reach:
            alone.append(number)
    entries = list(ring)
    for call in calls:
        if call.own:
            entries[call.at] = replace(
                entries[call.at], torch_ids=tuple(call.own), recorder=recorder
            )
    return replace(merged, ring=tuple(entries), torch_only=tuple(alone))


def last_age_s(merged: Merged, now_ns: int, clock: ClockPairs) -> float | None:
    """Age of torch's newest entry; None if there is none or its stamp cannot be placed."""
    stamps = [
        (number, entry.time_created_ns)
        for number, entry in recorders.by_record_id(merged.entries)
        if entry.time_created_ns
    ]
    moment = clock.monotonic_ns(max(stamps)[1]) if stamps else None
    return None if moment is None else max(0.0, (now_ns - moment) * _NS)


def _call(at: int, entry: RingEntry, now_ns: int) -> _Call:
    kind = recorders.kind_of(entry.op)
    one_by_one = (prod(shape) for shapes in (entry.sizes_in, entry.sizes_out) for shape in shapes)
    return _Call(
        at=at,
        enter_ns=now_ns - entry.enter_age_s / _NS,
        exit_ns=now_ns if entry.exit_age_s is None else now_ns - entry.exit_age_s / _NS,
        group=_COPY.sub("", entry.group),
        kinds=_ALSO.get(kind) or frozenset((kind,)),
        counts=_counts(entry.sizes_in, entry.sizes_out).union(one_by_one),
        dtype=entry.dtype,
        room=len(entry.sizes_in) if entry.op == "reduce_scatter" else 1,
    )


def _counts(*lists: Shapes | None) -> frozenset[int]:
    """Total elements of each list's tensors."""
    return frozenset(sum(map(prod, shapes)) for shapes in lists if shapes)


# -- the requested part ------------------------------------------------------------------------


def unfinished(merged: Merged) -> Merged:
    """Only collectives that the rank has not left, by both records together.

    A torch entry is left if the ring says so, even while gloo says "scheduled". A ring entry that
    was launched and never waited for is over once torch retired it.
    """
    over = {number for number, entry in recorders.by_record_id(merged.entries) if entry.over}
    left_ids: set[int | None] = set()
    ring = []
    for entry in merged.ring:
        own = entry.torch_ids
        if entry.exit_age_s is not None or (entry.is_async and own and over.issuperset(own)):
            left_ids.update(own)
        else:
            ring.append(entry)
    return _keep(merged, ring, lambda entry: not entry.over and entry.record_id not in left_ids)


def open_in(merged: Merged) -> Merged:
    """What is not over by another recorder than the ring's main one."""
    return _keep(merged, merged.ring, lambda entry: not entry.over)


def _keep(
    merged: Merged, ring: Iterable[RingEntry], wanted: Callable[[recorders.TorchEntry], bool]
) -> Merged:
    """Keeps torch's entries that are wanted or not understood."""
    kept = tuple((raw, entry) for raw, entry in merged.entries if entry is None or wanted(entry))
    numbers = {entry.record_id for _, entry in kept if entry is not None}
    torch = merged.torch
    if torch is not None and merged.entries:
        torch = {**torch, "entries": [raw for raw, _ in kept]}
    alone = tuple(number for number in merged.torch_only if number in numbers)
    return Merged(tuple(ring), torch, alone, kept)
