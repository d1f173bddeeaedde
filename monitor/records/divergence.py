"""Calls that differ from those of peers, or from the ranks' own past.

Theory of operation. All members of a group make the same calls in the same order, and each step
repeats the calls of the step before. So two things show who is wrong: the majority of a group and,
on a tie, what a rank called at this place before. Each function that returns divergences or roots
says what it looks for and why that accuses somebody.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from itertools import islice, pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lightkeeper.monitor.model.units import grouped
from lightkeeper.monitor.model.wording import listed, plural
from lightkeeper.monitor.records import findings as wording
from lightkeeper.monitor.records.findings import Fault, Finding, at_scene, evidence_of
from lightkeeper.monitor.records.job import NONE, Backend, Job
from lightkeeper.monitor.records.signature import (
    REDUCING,
    ROOTED,
    Signature,
    differs_silently,
    odd_whole,
    signature_of,
)
from lightkeeper.monitor.records.waits import (
    NEVER,
    Bools,
    Graph,
    Index,
    Ints,
    StuckCollective,
    by_stream,
    lasting,
)

_LONGEST: Final = 64
"""Calls of context that are compared. More add nothing, fewer confuse loops with steps."""


class Habit(Enum):
    """How usual a call is at its place in the program."""

    USUAL = "usual"
    UNUSUAL = "unusual"
    UNKNOWN = "unknown"


def the_only(habits: Sequence[Habit], odd: Habit) -> int | None:
    """The place of the only habit that is `odd`, if all others are the contrary."""
    contrary = Habit.UNUSUAL if odd is Habit.USUAL else Habit.USUAL
    alone = habits.count(odd) == 1 and habits.count(contrary) == len(habits) - 1
    return habits.index(odd) if alone else None


def habit(calls: Sequence[Hashable]) -> Habit:
    """How usual the last call is: it may be what followed the calls before it in earlier steps.

    Training repeats itself. A rank's calls so far are compared with its own past: the longest
    stretch of calls up to here that occurred before shows what came next then. Two calls are the
    same if their group, signature and call site are. A past in which all calls are the same shows
    nothing.
    """
    before, now = calls[:-1], calls[-1]
    best, followers = 0, set[Hashable]()
    for end, length in enumerate(_common_suffixes(before), 1):
        if length > best:
            best, followers = length, {before[end]}
        elif length == best and length:
            followers.add(before[end])
    if len(set(before[len(before) - best :])) < 2:
        return Habit.UNKNOWN
    return Habit.USUAL if now in followers else Habit.UNUSUAL


def _common_suffixes(before: Sequence[Hashable]) -> list[int]:
    """For each end from 1 on, except the last: length of the common suffix with all of `before`.

    The Z function of the reversed calls: linear, even if they are all the same.
    """
    calls, same = before[::-1], [0] * len(before)
    left = right = 0
    for at in range(1, len(calls)):
        length = min(right - at, same[at - left]) if at < right else 0
        while at + length < len(calls) and calls[length] == calls[at + length]:
            length += 1
        if at + length > right:
            left, right = at, at + length
        same[at] = length
    return [min(length, _LONGEST) for length in same[:0:-1]]


_PAST: Final = 4000
"""Calls of a rank that show what it usually does: twice torch's own buffer."""


@dataclass(frozen=True, slots=True)
class Calls:
    """What each rank gave to each sequence of a group; sorted by (group, sequence, rank).

    Signatures are compared as numbers, for all entries at once. The parts of a coalesced operation
    share a sequence, so what a rank gave there is the sum of their numbers.
    """

    group: NDArray[Any]
    sequence: NDArray[Any]
    rank: NDArray[Any]
    given: NDArray[np.uint64]
    row: NDArray[Any]
    site: NDArray[Any]
    place: Mapping[int, tuple[int, int]]
    """Group -> where its calls begin and end."""
    signatures: tuple[Signature, ...]
    by_row: NDArray[np.int64]
    """Row -> index into `signatures`; -1 for transfers."""
    in_past: NDArray[np.int64]
    """The same for comparing a rank with its own past, part of which a ring has overwritten."""

    def called(self, row: int) -> Signature:
        """What was called in a row; not for transfers."""
        return self.signatures[int(self.by_row[row])]

    def of(self, group: int, rank: int, first: int = 0, last: int = NEVER) -> Ints:
        """Places of a rank's calls with sequences from first to last."""
        here = self.between(group, first, last)
        return np.asarray(here.start + np.flatnonzero(self.rank[here] == rank), np.int64)

    def between(self, group: int, first: int, last: int) -> slice:
        """Places of a group's calls with sequences from first to last."""
        begin, end = self.place[group]
        sequences = self.sequence[begin:end]
        low, high = sequences.searchsorted(first), sequences.searchsorted(last, side="right")
        return slice(begin + int(low), begin + int(high))

    def common(self, group: int, ranks: Sequence[int], first: int, last: int) -> dict[int, int]:
        """Sequence -> what the ranks gave, if all that called it agree; from first to last."""
        here = self.between(group, first, last)
        theirs = np.isin(self.rank[here], ranks)
        calls = (self.sequence[here][theirs].tolist(), self.given[here][theirs].tolist())
        given: dict[int, set[int]] = {}
        for sequence, signature in zip(*calls, strict=True):
            given.setdefault(sequence, set()).add(signature)
        return {sequence: each.pop() for sequence, each in given.items() if len(each) == 1}


def _begins(group: NDArray[Any], sequence: NDArray[Any]) -> Bools:
    """By place: whether a (group, sequence) begins there."""
    begins = np.ones(len(group), dtype=np.bool_)
    begins[1:] = (np.diff(group) != 0) | (np.diff(sequence) != 0)
    return begins


def _signatures(job: Job) -> tuple[list[Signature], NDArray[np.int64]]:
    """The distinct signatures, and by row an index into them; -1 for transfers."""
    sizes = np.array([len(group.members) for group in job.groups], dtype=np.int64)
    columns = job.columns
    width = int(sizes.max(initial=0)) + 1
    keys = columns["payload"].astype(np.int64) * width + sizes[columns["group"]]
    distinct, inverse = np.unique(keys, return_inverse=True)
    numbers: dict[Signature, int] = {}
    by_key = []
    for key in distinct.tolist():
        signature = signature_of(job.payloads[key // width], key % width)
        by_key.append(numbers.setdefault(signature, len(numbers)))
    by_row = np.array(by_key, dtype=np.int64)[inverse.reshape(-1)]
    by_row[columns["p2p"]] = -1
    return list(numbers), by_row


def _as_all_tell(signatures: list[Signature], by_row: Ints, rows: Ints, begins: Bools) -> Ints:
    """Ignore root and reduce op, in place, unless all members' records have them.

    Only rings have them, and a ring keeps fewer calls than torch's record. Ranks make different
    numbers of calls, so one ring may have overwritten what a peer's still has; that must not count
    as a difference. `rows` are sorted by group and sequence; `begins` marks the first row of each
    sequence. Returns the numbers for comparing a rank's calls with its earlier ones.
    """
    named = np.array(
        [(signature.reduce_op, signature.root) != (None, None) for signature in signatures],
        np.bool_,
    )
    unnamed = ~named & np.array(
        [signature.op in REDUCING | ROOTED for signature in signatures], np.bool_
    )
    if not (named.any() and unnamed.any()):
        return by_row
    numbers = {signature: number for number, signature in enumerate(signatures)}
    plain = [replace(signature, reduce_op=None, root=None) for signature in signatures]
    plain_of = np.array(
        [numbers.setdefault(signature, len(numbers)) for signature in plain] + [-1], np.int64
    )
    signatures[:] = numbers
    starts = np.flatnonzero(begins)
    mixed = np.logical_and(
        *(np.logical_or.reduceat(which[by_row[rows]], starts) for which in (named, unnamed))
    )
    in_past = plain_of[by_row]
    mixed_rows = rows[np.repeat(mixed, np.diff(starts, append=len(rows)))]
    by_row[mixed_rows] = in_past[mixed_rows]
    return in_past


def index_calls(job: Job) -> Calls:
    signatures, by_row = _signatures(job)
    rows = np.flatnonzero(by_row >= 0)
    columns = job.columns
    group, sequence, rank = (columns[name][rows] for name in ("group", "seq", "rank"))
    order = np.lexsort((rank, sequence, group))
    rows, group, sequence, rank = rows[order], group[order], sequence[order], rank[order]
    begins = _begins(group, sequence)
    in_past = _as_all_tell(signatures, by_row, rows, begins)
    new = begins.copy()
    new[1:] |= np.diff(rank) != 0
    starts = np.flatnonzero(new)
    # any odd multiplier mixes well enough; sums wrap around on purpose
    mixed = (by_row[rows].astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    given = np.add.reduceat(mixed, starts) if len(starts) else mixed
    group = group[starts]
    edges = np.flatnonzero(np.diff(group, prepend=-1, append=-1))
    place = {int(group[a]): (int(a), int(b)) for a, b in pairwise(edges)}
    first = rows[starts]
    return Calls(
        group=group,
        sequence=sequence[starts],
        rank=rank[starts],
        given=given,
        row=first,
        site=columns["site"][first],
        place=place,
        signatures=tuple(signatures),
        by_row=by_row,
        in_past=in_past,
    )


_WITNESSES: Final = 8
"""Ranks of one side whose past is checked: they run the same program."""
_LOOKS: Final = 1 << 18, 16
"""Past calls that are read in all: a base (0.1 s), plus this many per entry of the job.
Lower: thousands of ties in one job stay open. Higher: thousands of odd groups take minutes."""


class RankPasts:
    """The past of a job's ranks, looked up once for each call."""

    def __init__(self, job: Job, calls: Calls) -> None:
        self._job = job
        self._calls = calls
        self._known: dict[tuple[int, bool], Habit] = {}
        self._left = _LOOKS[0] + _LOOKS[1] * len(job)

    def of(self, rows: Iterable[int], *, recent: bool = False) -> Habit:
        """How usual the calls in these rows are at their place; UNKNOWN if the rows differ.
        `recent`: by the calls that the ring still has alone, with root, reduce op and site.
        """
        habits = {self._one(row, recent) for row in islice(rows, _WITNESSES)} - {Habit.UNKNOWN}
        return habits.pop() if len(habits) == 1 else Habit.UNKNOWN

    def alike(self, rows: Iterable[int]) -> bool:
        """True if the calls in these rows differ in root or reduce op at most."""
        return len({int(self._calls.in_past[row]) for row in rows}) == 1

    def _one(self, row: int, recent: bool) -> Habit:
        rank = int(self._job.columns["rank"][row])
        if self._job.ranks[rank].only_active:
            return Habit.UNKNOWN  # completed calls were left out: there is no past
        if (row, recent) not in self._known:
            before = self._before(row, recent) if self._left > 0 else []
            self._left -= len(before)
            self._known[row, recent] = habit(before) if before else Habit.UNKNOWN
        return self._known[row, recent]

    def _before(self, row: int, recent: bool) -> list[Hashable]:
        """Calls of a row's rank up to and including the row, in any group, oldest first."""
        columns, calls = self._job.columns, self._calls
        rank, numbers = columns["rank"], calls.by_row if recent else calls.in_past
        begin = max(int(np.searchsorted(rank, rank[row])), row - _PAST)
        if recent:
            begin += int(np.flatnonzero(columns["site"][begin : row + 1] == NONE).max(initial=-1))
            begin += 1
        rows = slice(begin, row + 1)
        group, site, peer = (columns[name][rows] for name in ("group", "site", "peer"))
        if self._job.ranks[int(rank[row])].backend is Backend.RING and (site == NONE).any():
            site = np.full(len(site), NONE)  # unknown for calls that the ring has overwritten
        signature = np.where(numbers[rows] >= 0, numbers[rows], columns["payload"][rows])
        return list(zip(*(c.tolist() for c in (signature, group, site, peer)), strict=True))


_WINDOW: Final = 32
"""Sequences compared after a divergence to distinguish a slip from a wrong size."""
_BEFORE: Final = 256
"""Sequences before a divergence that show what usually follows."""
_PER_GROUP: Final = 64
"""Diverging sequences examined in one group: after a slip, all differ."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first sequence of a group at which these ranks differ from their peers."""

    kind: Fault
    group: int
    sequence: int
    sides: tuple[tuple[int, ...], ...]
    """Ranks by what they gave, the largest side first."""
    rows: tuple[int, ...]
    """An entry of each side."""
    said: tuple[str, ...]
    """What each side gave, for people."""
    culprits: tuple[int, ...]
    """Empty on a tie."""
    live: bool
    """True if somebody is still inside."""

    @property
    def involved(self) -> frozenset[int]:
        """The ranks of all sides."""
        return frozenset(rank for side in self.sides for rank in side)

    @property
    def passing(self) -> bool:
        """True if all continue as before: what follows is not its consequence."""
        return self.kind is Fault.SILENT_MISMATCH

    @property
    def slipped(self) -> bool:
        """True if the culprits' calls are their peers', moved by one."""
        return self.kind in (Fault.SKIPPED, Fault.EXTRA)

    def explains(self, group: int, sequence: int) -> bool:
        """True if a hang in this collective follows from it."""
        lasting = self.live or self.slipped
        return lasting and group == self.group and sequence >= self.sequence


def divergences(index: Index, calls: Calls, pasts: RankPasts) -> tuple[Divergence, ...]:
    """All divergences, by group and sequence; one for each set of ranks that differs.

    All members must give the same signature to the same sequence of a group (ALGORITHMS.md section
    4). If a strict majority of the group agrees, the rest are the culprits; otherwise nobody is
    accused, unless the ranks' past shows which side calls something new. If a culprit's calls match
    the others' when moved by one, it skipped or added a collective, and the size or op that differs
    is only the consequence.
    """
    distinct: list[Divergence] = []
    earlier_of: dict[int, list[Divergence]] = {}
    for begin, end in _differing(calls):
        earlier = earlier_of.setdefault(int(calls.group[begin]), [])
        if len(earlier) > _PER_GROUP:
            continue
        divergence = _judge(index, calls, pasts, slice(begin, end))
        if not any(_repeats(divergence, before) for before in earlier):
            distinct.append(divergence)
        earlier.append(divergence)
    return tuple(distinct)


def _repeats(divergence: Divergence, before: Divergence) -> bool:
    """True if all ranks that differ in a divergence differed before.

    After a tie everything may be its consequence, except ranks that differ where its sides agree.
    """
    if divergence.culprits and not before.culprits and not before.passing:
        agreeing = set(divergence.sides[0])
        return sum(bool(agreeing & set(side)) for side in before.sides) < 2
    if divergence.culprits:
        return set(divergence.culprits) <= set(before.culprits)
    return divergence.sides == before.sides or not before.passing


def _differing(calls: Calls) -> Iterable[tuple[int, int]]:
    """Ranges of calls of one (group, sequence) that are not all the same."""
    if not len(calls.group):
        return
    starts = np.flatnonzero(_begins(calls.group, calls.sequence))
    ends = np.append(starts[1:], len(calls.group))
    low = np.minimum.reduceat(calls.given, starts)
    high = np.maximum.reduceat(calls.given, starts)
    for at in np.flatnonzero(low != high).tolist():
        yield int(starts[at]), int(ends[at])


_Side = list[tuple[int, int]]
"""(rank, row) of each rank that gave the same."""


def _judge(index: Index, calls: Calls, pasts: RankPasts, here: slice) -> Divergence:
    ranks, rows, given = (each[here].tolist() for each in (calls.rank, calls.row, calls.given))
    by_given = grouped(zip(given, zip(ranks, rows, strict=True), strict=True))
    group, sequence = int(calls.group[here][0]), int(calls.sequence[here][0])
    size = max(len(ranks), len(index.job.groups[group].members))
    sides, decided = _right_first(by_given.values(), size, pasts)
    ranks_of = [tuple(rank for rank, _ in side) for side in sides]
    culprits = sorted(rank for ranks in ranks_of[1:] for rank in ranks) if decided else []
    shown = [calls.called(side[0][1]) for side in sides]
    kind = Fault.MISMATCH
    if all(differs_silently(signature, shown[0]) for signature in shown[1:]):
        kind = Fault.SILENT_MISMATCH
    elif decided:
        kind = _slip(calls, group, sequence, ranks_of[0], culprits)
    return Divergence(
        kind=kind,
        group=group,
        sequence=sequence,
        sides=tuple(ranks_of),
        rows=tuple(side[0][1] for side in sides),
        said=tuple(str(signature) for signature in shown),
        culprits=tuple(culprits),
        live=bool(index.live[calls.row[here]].any()),
    )


def _right_first(sides: Iterable[_Side], size: int, pasts: RankPasts) -> tuple[list[_Side], bool]:
    """The sides, the largest first, and whether it is right; or the only usual one, if all tie."""
    ordered = sorted(sides, key=lambda side: (-len(side), side))
    if 2 * len(ordered[0]) > size:
        return ordered, True
    usual = the_only([pasts.of(row for _, row in side) for side in ordered], Habit.USUAL)
    if usual is None and pasts.alike(row for side in ordered for _, row in side):
        # what only rings record differs, and the older part of the past lacks it
        recent = [pasts.of((row for _, row in side), recent=True) for side in ordered]
        usual = the_only(recent, Habit.USUAL)
    if usual is not None:
        ordered.insert(0, ordered.pop(usual))
    return ordered, usual is not None


def _slip(
    calls: Calls, group: int, sequence: int, right: Sequence[int], culprits: Sequence[int]
) -> Fault:
    """The fault by which the culprits' calls from here on are their peers', moved by one call."""
    last = sequence + _WINDOW
    theirs = calls.common(group, right, sequence - _BEFORE, last + 1)
    kinds = set()
    for rank in culprits:
        own = calls.of(group, rank, sequence, last + 1)
        mine = dict(zip(calls.sequence[own].tolist(), calls.given[own].tolist(), strict=True))
        in_place = _fit(mine, theirs, sequence + 1, last, 0)
        skipped = _fit(mine, theirs, sequence, last, 1)
        extra = _fit(mine, theirs, sequence + 1, last, -1)
        if not (in_place or skipped or extra):
            kinds.add(_kind_at_the_end(mine[sequence], theirs, sequence))
        elif in_place or skipped == extra:
            kinds.add(Fault.MISMATCH)
        else:
            kinds.add(Fault.SKIPPED if skipped > extra else Fault.EXTRA)
    return kinds.pop() if len(kinds) == 1 else Fault.MISMATCH


def _fit(mine: Mapping[int, int], theirs: Mapping[int, int], first: int, last: int, by: int) -> int:
    """How many calls agree when moved by `by`, of those that both have; 0 if any does not."""
    pairs = [
        (mine[s], theirs[s + by]) for s in range(first, last) if s in mine and s + by in theirs
    ]
    return len(pairs) if all(a == b for a, b in pairs) else 0


def _kind_at_the_end(given: int, theirs: Mapping[int, int], sequence: int) -> Fault:
    """The fault if nobody called anything afterwards, by what usually comes next."""
    repeated, following = given == theirs.get(sequence - 1), _following(theirs, sequence)
    if given in following:
        return Fault.MISMATCH if repeated else Fault.SKIPPED
    return Fault.EXTRA if repeated and following else Fault.MISMATCH


def _following(theirs: Mapping[int, int], sequence: int) -> set[int]:
    """What followed the same two calls earlier: the program's likely next calls."""
    pair = (theirs.get(sequence - 1), theirs.get(sequence))
    return {
        theirs[s + 1]
        for s in theirs
        if s < sequence and (theirs.get(s - 1), theirs[s]) == pair and s + 1 in theirs
    } - {theirs[sequence]}


def mismatch_finding(graph: Graph, calls: Calls, divergence: Divergence) -> Finding:
    index, job, sides = graph.index, graph.index.job, divergence.sides
    op = index.op(divergence.rows[0])
    what = f"collective {divergence.sequence} of {job.groups[divergence.group].label}"
    given = [
        (side, text + wording.spot(index, row))
        for side, text, row in islice(zip(sides, divergence.said, divergence.rows, strict=True), 8)
    ]
    said = [
        f"{wording.ranks_listed(job, side)} {plural(side, 'calls', 'call')} {text}"
        for side, text in given[:4]
    ]
    if divergence.culprits:
        said = [f"{listed(said[1:])} where {said[0]}"]
    nodes = [
        graph.front_node(number)
        for number in graph.collectives.get(divergence.group, ())
        if divergence.explains(divergence.group, graph.stuck[number].sequence)
    ]
    waiting = divergence.involved | set(graph.reaching(nodes))
    return Finding(
        kind=divergence.kind,
        reason=f"{listed(said)}, in {what}: {_end(divergence)}{_parted(index, calls, divergence)}",
        culprits=divergence.culprits,
        between=() if divergence.culprits else tuple(sorted(sides)),
        victims=tuple(sorted(waiting - set(divergence.culprits))) if divergence.culprits else (),
        group=divergence.group,
        sequence=divergence.sequence,
        op=op,
        evidence={wording.ranks_listed(job, side): text for side, text in given},
        live=divergence.live,
    )


def _end(divergence: Divergence) -> str:
    does = plural(divergence.culprits, "it does", "they do")
    match divergence.kind:
        case _ if not divergence.culprits:
            return "the records cannot tell which of them is wrong."
        case Fault.SKIPPED | Fault.EXTRA:
            later = divergence.kind is Fault.SKIPPED
            end = f"from there on {does} what the others do one call "
            end += "later, so one was left out." if later else "sooner: one call too many."
            silent = " Sizes agree, so nothing hangs: the numbers of different places mix."
            return end if divergence.live else end + silent
        case Fault.SILENT_MISMATCH:
            return "nothing hangs, but the numbers are wrong."
        case _ if divergence.live:
            return "nobody gets out."
        case _:
            return "nobody is inside any more."


def _parted(index: Index, calls: Calls, divergence: Divergence) -> str:
    """Where lines differ for the first time, before the calls do: ` Their lines part at ...`.

    Empty where lines never agreed: they may be those of roles.
    """
    if divergence.kind is not Fault.MISMATCH or not divergence.culprits:
        return ""
    pair = divergence.culprits[0], divergence.sides[0][0]
    own, theirs = (_places(calls, divergence.group, rank) for rank in pair)
    both = sorted(s for s in own.keys() & theirs.keys() if s < divergence.sequence)
    before = [s for s in both[-_BEFORE:] if NONE not in (own[s][0], theirs[s][0])]
    at = next((n for n, s in enumerate(before) if own[s][0] != theirs[s][0]), 0)
    if at < _SHIFT_LEAST:
        return ""
    sides = (
        wording.ranks_listed(index.job, (rank,)) + wording.spot(index, places[before[at]][1])
        for rank, places in zip(pair, (own, theirs), strict=True)
    )
    return f" Their lines part in collective {before[at]}: {', '.join(sides)}."


_FEW: Final = 16
"""Ranks that may have slipped together; a larger minority is not compared."""

_Places = dict[int, tuple[int, int]]
"""Sequence -> (site, row) of one rank."""


def with_hanging(
    graph: Graph, calls: Calls, divergences: Iterable[Divergence]
) -> tuple[Divergence, ...]:
    """`divergences`, then those found in what hangs, in groups without any: slips, wholes."""
    divergent = list(divergences)
    for look in (_slip_by_site, _whole):
        groups = {divergence.group for divergence in divergent}
        stuck = (s for s in graph.stuck if s.transfer is None and s.group not in groups)
        divergent += [
            divergence for s in stuck if (divergence := look(graph, calls, s)) is not None
        ]
    return tuple(divergent)


def _slip_by_site(graph: Graph, calls: Calls, stuck: StuckCollective) -> Divergence | None:
    """A slip that leads to this hang.

    If all calls of a group have one signature, the job hangs much after the slip, when one side has
    no partner left and is exactly one call ahead. From the slip on, the minority's call sites are
    the majority's, moved by one call. Roles have lines of their own, so sites are compared only in
    a group that hangs like this, and only a perfect fit counts.
    """
    size = len(graph.index.job.groups[stuck.group].members)
    behind, ahead = stuck.absent, stuck.joined
    if not behind or stuck.silent:
        return None
    at = graph.index.groups[stuck.group]
    if (at.enqueued[np.isin(at.members, behind)] != stuck.sequence - 1).any():
        return None
    few, many, by = (behind, ahead, 1) if len(behind) < len(ahead) else (ahead, behind, -1)
    if 2 * len(many) <= size or len(few) > _FEW:
        return None
    right = max((_places(calls, stuck.group, rank) for rank in many[:_FEW]), key=len)
    slips = {_moved(_places(calls, stuck.group, rank), right, (by,), least=0) for rank in few}
    begin, moved_by = slips.pop()
    if slips or not moved_by:
        return None
    here = calls.between(stuck.group, begin, begin)
    alike = calls.rank[here][calls.site[here] == right[begin][0]]
    if 2 * int(np.isin(alike, many).sum()) <= size:
        return None
    rows = right[begin][1], _places(calls, stuck.group, few[0])[begin][1]
    return _moved_calls(calls, (stuck.group, begin), (many, few), rows, by)


def _moved_calls(
    calls: Calls,
    place: tuple[int, int],
    sides: tuple[tuple[int, ...], tuple[int, ...]],
    rows: tuple[int, int],
    by: int,
) -> Divergence:
    """A slip of the second side, shown by lines; place: group and sequence; `by` as in `_moved`."""
    said = tuple(str(calls.called(row)) for row in rows)
    kind = Fault.SKIPPED if by > 0 else Fault.EXTRA
    return Divergence(kind, *place, sides, rows, said, culprits=sides[1], live=True)


def _places(calls: Calls, group: int, rank: int) -> _Places:
    own = calls.of(group, rank)
    values = zip(calls.site[own].tolist(), calls.row[own].tolist(), strict=True)
    return dict(zip(calls.sequence[own].tolist(), values, strict=True))


_SHIFT_LEAST: Final = 6
"""Calls that have to fit, before a silent slip and after it. Lower: lines of one role look like a
slip. Higher: it is found later."""
_SHIFT_GROUPS: Final = 64
_SHIFT_RANKS: Final = 64


def silent_slips(
    index: Index, calls: Calls, pasts: RankPasts, differing: Collection[int]
) -> tuple[Divergence, ...]:
    """Slips that hang nothing: signatures agree everywhere, and from one call on the lines of some
    ranks are their peers' lines moved by one call.

    A rank that leaves out one of several equal calls gets its peers' numbers of another place: the
    values mix, until the job ends. `differing`: groups with a divergence, which are left out.
    """
    starts = np.flatnonzero(_begins(calls.group, calls.sequence))
    if not len(starts):
        return ()
    sites = [reduce.reduceat(calls.site, starts) for reduce in (np.minimum, np.maximum)]
    odd = calls.group[starts][(sites[0] != sites[1]) & (sites[0] != NONE)]
    groups, counts = np.unique(odd, return_counts=True)
    chosen = groups[counts >= _SHIFT_LEAST].tolist()
    chosen = [g for g in chosen if g not in differing and g not in index.retired][:_SHIFT_GROUPS]
    slips = (_silent_slip(index, calls, pasts, group) for group in chosen)
    return tuple(slip for slip in slips if slip is not None)


def _silent_slip(index: Index, calls: Calls, pasts: RankPasts, group: int) -> Divergence | None:
    begin, end = calls.place[group]
    ranks = np.unique(calls.rank[begin:end]).tolist()[:_SHIFT_RANKS]
    places = {rank: _places(calls, group, rank) for rank in ranks}
    first = ranks[0]
    same, moved = [first], dict[int, list[int]]()
    starts: set[int] = set()
    for rank in ranks[1:]:
        start, by = _moved(places[rank], places[first], (1, -1), _SHIFT_LEAST)
        if by:
            moved.setdefault(by, []).append(rank)
            starts.add(start)
        elif not start:
            same.append(rank)
        else:
            return None  # lines differ in another way: roles
    if len(moved) != 1 or len(starts) != 1:
        return None
    (by, few), many = next(iter(moved.items())), same
    sequence = starts.pop()
    if len(few) > len(many):
        few, many, by = many, few, -by
    rows = places[many[0]][sequence][1], places[few[0]][sequence][1]
    clear = 2 * len(many) > max(len(ranks), len(index.job.groups[group].members))
    if not clear:
        habits = [pasts.of((row,)) for row in rows]
        clear = set(habits) == {Habit.USUAL, Habit.UNUSUAL}
        if habits[0] is Habit.UNUSUAL:
            few, many, by, rows = many, few, -by, rows[::-1]
    slip = _moved_calls(calls, (group, sequence), (tuple(many), tuple(few)), rows, by)
    return replace(slip, culprits=slip.culprits if clear else (), live=False)


def _moved(own: _Places, theirs: _Places, ways: tuple[int, ...], least: int) -> tuple[int, int]:
    """Where one rank's lines begin to be another's, moved by one call, and by which way: 1 if it
    left one out, -1 if it made one more. (0, 0): all lines agree; (1, 0): they differ otherwise, or
    fewer than `least` calls fit before it or after it.
    """
    both = sorted(s for s in own.keys() & theirs.keys() if NONE not in (own[s][0], theirs[s][0]))
    at = next((n for n, s in enumerate(both) if own[s][0] != theirs[s][0]), None)
    if at is None:
        return 0, 0
    if at < least:
        return 1, 0
    begin = both[at]
    for by in ways:
        first = begin if by > 0 else begin + 1  # the extra call itself has no partner
        pairs = [(own[s][0], theirs[s + by][0]) for s in own if s >= first and s + by in theirs]
        enough = len(pairs) >= least and (not least or len(set(pairs)) > 1)
        if pairs and enough and all(a == b != NONE for a, b in pairs):
            return begin, by
    return 1, 0


_WHOLE = frozenset({"all_to_all", "gather", "scatter"})


def _whole(graph: Graph, calls: Calls, stuck: StuckCollective) -> Divergence | None:
    """A collective that does not add up, or has two roots; whose number is wrong is unknown.

    Members of an all_to_all or a gather may give different amounts. Only hanging collectives are
    checked: NCCL records only the first tensor of an all_to_all of lists, and that one completes.
    """
    if stuck.absent or stuck.silent or graph.index.op(stuck.row) not in _WHOLE:
        return None
    job = graph.index.job
    here = calls.between(stuck.group, stuck.sequence, stuck.sequence)
    rows = dict(zip(calls.rank[here].tolist(), calls.row[here].tolist(), strict=True))
    payloads = {rank: job.payloads[int(job.columns["payload"][row])] for rank, row in rows.items()}
    sides = odd_whole(payloads, len(job.groups[stuck.group].members))
    if not sides:
        return None
    return Divergence(
        kind=Fault.MISMATCH,
        group=stuck.group,
        sequence=stuck.sequence,
        sides=tuple((rank,) for rank in sides),
        rows=tuple(rows[rank] for rank in sides),
        said=tuple(map(str, sides.values())),
        culprits=(),
        live=True,
    )


_VOTERS = 3
"""Common members needed for a majority against one."""
_CANDIDATES = 4
"""Calls of one group that are compared with one of another: more is a slip, not an order."""
_ORDERS_LOOKED_AT = 100_000, 16
"""Pairs of a rank's call and group that are examined: at least (0.5 s), or for each queue."""


def orders(graph: Graph, pasts: RankPasts) -> Iterable[Finding]:
    """One finding for each set of ranks with another order.

    The wait-for graph has a cycle only once both sides have reached it. If another fault holds up
    all ranks earlier, the inversion is visible in what their CPUs have queued. Pairs of unfinished
    collectives of two groups are compared; a strict majority of the ranks that have to call both
    shows which comes first. A rank for which this order is usual is not accused, nor is any in a
    job that may still be running.
    """
    reported = set[tuple[int, ...]]()
    for inversion in _inversions(graph):
        rows, wrong, _, _ = inversion
        if wrong not in reported and pasts.of(rows[:1]) is not Habit.USUAL:
            reported.add(wrong)
            yield _order_finding(graph, inversion)


_Inversion = tuple[tuple[int, int], tuple[int, ...], tuple[int, ...], StuckCollective]
"""An entry of each of two collectives, of a rank that is wrong and in its order; who is wrong; who
called them the other way round; the first one."""


def _inversions(graph: Graph) -> Iterable[_Inversion]:
    job, number = graph.index.job, graph.index.job.columns["seq"]
    queues = by_stream(job, np.flatnonzero(graph.index.live & ~job.columns["p2p"]))
    calls = _by_call(number, queues)
    of_rank = grouped(queues)
    members = [frozenset(group.members) for group in job.groups]
    shared = cache(lambda first, second: len(members[first] & members[second]))
    budget = max(_ORDERS_LOOKED_AT[0], _ORDERS_LOOKED_AT[1] * len(queues))
    for stuck in graph.stuck:
        if stuck.transfer is not None or not lasting(graph, stuck):
            continue
        budget -= sum(len(of_rank[rank]) for rank in stuck.joined if rank in of_rank)
        if budget < 0:
            return  # no program has thousands of groups that are all unfinished
        joined = set(stuck.joined)
        here = calls[stuck.group, stuck.sequence]
        called = {rank: row for rank, row in here.items() if rank in joined}
        nexts: dict[int, set[int]] = {}
        for rank, row in called.items():
            for group in of_rank[rank]:
                if group != stuck.group and shared(stuck.group, group) >= _VOTERS:
                    after = queues[rank, group][np.searchsorted(queues[rank, group], row) :][:1]
                    nexts.setdefault(group, set()).update(number[after].tolist())
        for group, sequences in sorted(nexts.items()):
            for sequence in sorted(sequences)[:_CANDIDATES]:
                rows = {r: row for r, row in calls[group, sequence].items() if r in called}
                yield from _judge_order(stuck, called, rows, shared(stuck.group, group))


def _by_call(
    sequences: Ints, queues: Mapping[tuple[int, int], Ints]
) -> dict[tuple[int, int], dict[int, int]]:
    """(group, sequence) -> rank -> row of its first call."""
    calls: dict[tuple[int, int], dict[int, int]] = {}
    for (rank, group), rows in queues.items():
        for row, sequence in zip(rows.tolist(), sequences[rows].tolist(), strict=True):
            calls.setdefault((group, sequence), {}).setdefault(rank, row)
    return calls


def _judge_order(
    stuck: StuckCollective, called: Mapping[int, int], rows: Mapping[int, int], voters: int
) -> Iterable[_Inversion]:
    """Which ranks are outvoted on which of two collectives comes first."""
    before = tuple(sorted(rank for rank, row in rows.items() if row < called[rank]))
    after = tuple(sorted(rows.keys() - set(before)))
    if before and after and 2 * max(len(before), len(after)) > voters:
        wrong, others = sorted((before, after), key=len)
        pair = sorted((rows[wrong[0]], called[wrong[0]]))
        yield (pair[0], pair[1]), wrong, others, stuck


def _order_finding(graph: Graph, inversion: _Inversion) -> Finding:
    rows, ranks, peers, stuck = inversion
    job = graph.index.job
    first, second = (wording.call(graph.index, row) for row in rows)
    wrong, others = wording.ranks_listed(job, ranks), wording.ranks_listed(job, peers)
    return at_scene(
        graph,
        Fault.ORDER_INVERSION,
        f"{wrong} called {first} before {second}, and {others} called them the other way "
        f"round: {plural(ranks, 'it takes', 'they take')} another order.",
        (stuck,),
        culprits=ranks,
        row=rows[0],
        evidence={f"{wrong}, in this order": f"{first}; {second}"}
        | evidence_of(graph, (), (stuck,)),
    )
