"""Ranks that call two collectives in another order than most, wherever they are stuck.

Theory of operation. A cycle in the wait-for graph shows an order inversion only once both sides
have come to it. But a CPU runs ahead, and its record keeps the order in which it called: where
another fault holds up everybody before, the inversion stands in the queues. Asked are pairs of
unfinished collectives of two groups; a strict majority of all who have to call both says which
comes first. Two groups with less than three members in common have no majority. A rank whose past
shows that this order is its own is left alone, and so is a job that may still be running.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from monitor.analysis import streams, wording
from monitor.analysis.behind import lasting
from monitor.analysis.finding import Confidence, Fault, Finding
from monitor.analysis.graph import Graph, Stuck
from monitor.analysis.habit import Habit
from monitor.analysis.root import Root, evidence_of
from monitor.analysis.streams import Ints
from monitor.analysis.witness import Witness
from monitor.flight_recorder.job import Job

_VOTERS = 3
"""Members in common without which there is no majority against one."""
_CANDIDATES = 4
"""Calls of one group that are compared with one of another: beyond, it is no order but a slip."""
_LOOKS = 100_000, 16
"""Of a rank from an unfinished call to its others: at least (half a second), or for each call."""


@dataclass(frozen=True, slots=True)
class _Queue:
    """Unfinished collectives of one rank in one group, in the order in which it called them."""

    rows: Ints
    sequences: Ints

    def after(self, row: int) -> int | None:
        """The sequence of the first one after a row."""
        at = int(np.searchsorted(self.rows, row))
        return int(self.sequences[at]) if at < len(self.rows) else None

    def row_of(self, sequence: int) -> int | None:
        """The row of a sequence."""
        at = int(np.searchsorted(self.sequences, sequence))
        found = at < len(self.rows) and self.sequences[at] == sequence
        return int(self.rows[at]) if found else None


@dataclass(frozen=True, slots=True)
class Inversion:
    """Two collectives, and who called them in which order."""

    rows: tuple[int, int]
    """An entry of each, of a rank that is wrong, in its order."""
    wrong: tuple[int, ...]
    others: tuple[int, ...]
    scene: tuple[Stuck, ...]


def orders(graph: Graph, witness: Witness) -> Iterable[Root]:
    """One finding for each set of ranks that takes another order."""
    told = set[tuple[int, ...]]()
    for one in _inversions(graph):
        if one.wrong not in told and witness.of(one.rows[:1]) is not Habit.USUAL:
            told.add(one.wrong)
            yield _root(graph, one)


def _inversions(graph: Graph) -> Iterable[Inversion]:
    queues = _queues(graph)
    of_rank: dict[int, list[int]] = {}
    for rank, group in queues:
        of_rank.setdefault(rank, []).append(group)
    shared = _Shared(graph.index.job)
    left = max(_LOOKS[0], _LOOKS[1] * len(queues))
    for stuck in graph.stuck:
        if stuck.transfer is not None or not lasting(graph, stuck):
            continue
        left -= sum(len(of_rank[rank]) for rank in stuck.joined if rank in of_rank)
        if left < 0:
            return  # thousands of groups, all unfinished, are no program's
        called = _rows(queues, stuck.joined, stuck.group, stuck.sequence)
        nexts: dict[int, set[int]] = {}
        for rank, row in called.items():
            for group in of_rank[rank]:
                if group != stuck.group and shared.of(stuck.group, group) >= _VOTERS:
                    after = queues[rank, group].after(row)
                    nexts.setdefault(group, set()).update(() if after is None else (after,))
        for group, sequences in sorted(nexts.items()):
            for sequence in sorted(sequences)[:_CANDIDATES]:
                rows = _rows(queues, called, group, sequence)
                yield from _judge(stuck, called, rows, shared.of(stuck.group, group))


def _queues(graph: Graph) -> dict[tuple[int, int], _Queue]:
    job = graph.index.job
    rows = np.flatnonzero(graph.index.live & ~job.columns["p2p"])
    if not len(rows):
        return {}
    keys = streams.pairs(job, rows)
    order = np.argsort(keys, kind="stable")
    keys, rows = keys[order], rows[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return {
        divmod(int(key), len(job.groups)): _Queue(some, job.columns["seq"][some])
        for key, some in zip(keys[starts], np.split(rows, starts[1:]), strict=True)
    }


class _Shared:
    """How many members two groups have in common, counted once."""

    def __init__(self, job: Job) -> None:
        self._members = [frozenset(group.members) for group in job.groups]
        self._known: dict[tuple[int, int], int] = {}

    def of(self, one: int, other: int) -> int:
        if (one, other) not in self._known:
            self._known[one, other] = len(self._members[one] & self._members[other])
        return self._known[one, other]


def _rows(
    queues: Mapping[tuple[int, int], _Queue], called: Iterable[int], group: int, sequence: int
) -> dict[int, int]:
    """Where each rank called another collective."""
    found = {}
    for rank in called:
        queue = queues.get((rank, group))
        row = None if queue is None else queue.row_of(sequence)
        if row is not None:
            found[rank] = row
    return found


def _judge(
    stuck: Stuck, called: Mapping[int, int], rows: Mapping[int, int], voters: int
) -> Iterable[Inversion]:
    """Who is outvoted on which of two collectives comes first."""
    before = tuple(sorted(rank for rank, row in rows.items() if row < called[rank]))
    after = tuple(sorted(rows.keys() - set(before)))
    if before and after and 2 * max(len(before), len(after)) > voters:
        wrong, others = sorted((before, after), key=len)
        pair = sorted((rows[wrong[0]], called[wrong[0]]))
        yield Inversion((pair[0], pair[1]), wrong, others, (stuck,))


def _root(graph: Graph, one: Inversion) -> Root:
    index, job = graph.index, graph.index.job
    columns = job.columns
    first, second = (
        f"{index.op(row)} {columns['seq'][row]} of {job.groups[int(columns['group'][row])].label}"
        + wording.site(index, row)
        for row in one.rows
    )
    wrong, others = wording.ranks(job, one.wrong), wording.ranks(job, one.others)
    return Root(
        Finding(
            kind=Fault.ORDER_INVERSION,
            confidence=Confidence.LIKELY,
            reason=(
                f"{wrong} called {first} before {second}, and {others} called them the other way "
                f"round: {wording.verb(one.wrong, 'it takes', 'they take')} another order."
            ),
            culprits=one.wrong,
            group=int(columns["group"][one.rows[0]]),
            sequence=int(columns["seq"][one.rows[0]]),
            op=index.op(one.rows[0]),
            evidence={
                f"{wrong}, in this order": f"{first}; {second}",
                **evidence_of(graph, (), one.scene),
            },
        ),
        one.scene,
    )
