"""Who waits for whom: the wait-for graph over ranks and the collectives in which they are stuck.

Theory of operation. A rank points at every collective or transfer in which one of its streams is
stuck; that points at the members that hold it up. Members that did not enqueue it hold it up in
any case. Members that did, but are stuck in something earlier (their GPU has not come so far),
hold up only ranks for which it is the front: for the others their own front is reason enough.
Strongly connected components that nothing leaves are the roots; who reaches a root is its victim.
(Closed form: FT-HSDP's analyser, arXiv 2602.00277; Mycroft, SOSP'25.)

The collectives are nodes of their own, so that a thousand ranks in one make a thousand edges and
not a million.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from monitor.analysis.index import Index, Transfers
from monitor.analysis.lost import lost, unbegun


@dataclass(frozen=True, slots=True)
class Stuck:
    """A collective that somebody is stuck in, or the head of a stream of transfers."""

    group: int
    sequence: int
    row: int
    """Of the lowest rank inside."""
    front: tuple[int, ...]
    """Ranks that are stuck in it before anything else; all ranks sorted."""
    later: tuple[int, ...]
    """Ranks for which it is the head of a stream, but not their front."""
    absent: tuple[int, ...]
    """Members that did not enqueue it."""
    held: tuple[int, ...]
    """Members that enqueued it and are stuck in something earlier."""
    silent: tuple[int, ...]
    """Members without a record."""
    done: tuple[int, ...]
    """Members that are through with it."""
    transfer: Transfers | None = None

    @property
    def joined(self) -> tuple[int, ...]:
        """Members known to have enqueued it."""
        return tuple(sorted({*self.front, *self.later, *self.held, *self.done}))

    @property
    def inside(self) -> tuple[int, ...]:
        """Members for which it is the head of a stream."""
        return tuple(sorted({*self.front, *self.later}))


@dataclass(frozen=True, slots=True)
class Graph:
    """The stuck collectives, what points where, and the components that nothing leaves."""

    index: Index
    stuck: tuple[Stuck, ...]
    edges: tuple[tuple[int, ...], ...]
    """By node; nodes are ranks by place in `ranks`, then of each stuck its front and its later."""
    ranks: tuple[int, ...]
    roots: tuple[tuple[int, ...], ...]
    """Nodes of each component that no edge leaves; ranks that nobody waits for are left out."""
    knots: tuple[tuple[int, ...], ...]
    """Nodes of other cycles of collectives in which ranks are stuck first: deadlocked too, for
    each collective needs all of its members."""
    unbegun: frozenset[int]
    """Ranks whose GPU has not come to where they are stuck, and peers' have: held up by nobody."""
    lost: Mapping[int, int]
    """Ranks with unfinished collectives that peers completed -> how many. What they are stuck in
    is over, so nothing holds them up but themselves."""

    def rank_of(self, node: int) -> int | None:
        """The rank of a node; None when it is a collective."""
        return self.ranks[node] if node < len(self.ranks) else None

    def stuck_of(self, node: int) -> Stuck:
        """The collective of a node that is one."""
        return self.stuck[(node - len(self.ranks)) // 2]

    def front_node(self, number: int) -> int:
        """The node of the collective `stuck[number]`, for those stuck in it first."""
        return len(self.ranks) + 2 * number

    def reaching(self, nodes: Iterable[int]) -> tuple[int, ...]:
        """Ranks that wait, directly or not, for one of the nodes, those themselves included."""
        back: dict[int, list[int]] = {}
        for node, targets in enumerate(self.edges):
            for target in targets:
                back.setdefault(target, []).append(node)
        seen = set(nodes)
        todo = list(seen)
        while todo:
            new = [node for node in back.get(todo.pop(), ()) if node not in seen]
            seen.update(new)
            todo += new
        return tuple(sorted(self.ranks[node] for node in seen if node < len(self.ranks)))

    def nodes_of(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """The nodes of ranks."""
        place = {rank: node for node, rank in enumerate(self.ranks)}
        return tuple(place[rank] for rank in ranks if rank in place)


def build(index: Index) -> Graph:
    """The wait-for graph of a job."""
    stuck = tuple(_stuck_all(index))
    involved = {rank for one in stuck for rank in (*one.absent, *one.held, *one.silent)}
    ranks = tuple(sorted({*index.job.expected, *index.job.ranks, *index.heads, *involved}))
    place = {rank: node for node, rank in enumerate(ranks)}
    edges: list[list[int]] = [[] for _ in range(len(ranks) + 2 * len(stuck))]
    behind, late = lost(index), unbegun(index)
    alone = late.union(behind)
    for number, one in enumerate(stuck):
        front = len(ranks) + 2 * number
        for rank in set(one.front) - alone:
            edges[place[rank]].append(front)
        for rank in set(one.later) - alone:
            edges[place[rank]].append(front + 1)
        edges[front] = [place[r] for r in (*one.absent, *one.held, *one.silent)]
        edges[front + 1] = [place[r] for r in (*one.absent, *one.silent)] if one.later else []
    # a later head that nobody holds up says nothing: its ranks have their front to explain it
    empty = {n for n in range(len(ranks) + 1, len(edges), 2) if not edges[n]}
    empty |= {n for n in range(len(ranks), len(edges), 2) if not stuck[(n - len(ranks)) // 2].front}
    kept = [tuple(t for t in targets if t not in empty) for targets in edges]
    waited = {target for targets in kept for target in targets}
    found = components(kept)
    leaving = {
        number
        for number, nodes in enumerate(found)
        if any(target not in nodes for node in nodes for target in kept[node])
    }
    roots = [
        nodes
        for number, nodes in enumerate(found)
        if number not in leaving and (len(nodes) > 1 or next(iter(nodes)) in waited)
    ]
    first = [
        node for n, one in enumerate(stuck) if one.transfer is None for node in (_at(ranks, n),)
    ]
    knots = _knots(kept, len(ranks), set(first), set().union(*roots))
    return Graph(index, stuck, tuple(kept), ranks, _sorted(roots), _sorted(knots), late, behind)


def _at(ranks: Sequence[int], number: int) -> int:
    return len(ranks) + 2 * number


def _sorted(found: Iterable[frozenset[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(sorted(tuple(sorted(nodes)) for nodes in found))


def _knots(
    edges: Sequence[Sequence[int]], ranks: int, fronts: set[int], known: set[int]
) -> list[frozenset[int]]:
    """Cycles through fronts of collectives alone, but for those already known."""
    only = [
        [t for t in targets if node in fronts or (node < ranks and t in fronts)]
        for node, targets in enumerate(edges)
    ]
    return [nodes for nodes in components(only) if len(nodes) > 1 and not nodes & known]


def _stuck_all(index: Index) -> Iterable[Stuck]:
    collectives: dict[tuple[int, int], list[int]] = {}
    transfers: dict[Transfers, list[int]] = {}
    for row in (row for rows in index.heads.values() for row in rows):
        place = index.place(row)
        if isinstance(place, Transfers):
            transfers.setdefault(place, []).append(row)
        elif place is not None:
            collectives.setdefault(place, []).append(row)
    for (group, sequence), rows in sorted(collectives.items()):
        yield _collective(index, group, sequence, rows)
    for stream in sorted(transfers, key=lambda s: (s.group, s.source, s.target)):
        yield _transfer(index, stream, transfers[stream])


def _split(index: Index, rows: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    ranks = {int(index.job.columns["rank"][row]): row for row in rows}
    front = tuple(sorted(r for r, row in ranks.items() if row in index.front[r]))
    return front, tuple(sorted(set(ranks) - set(front)))


def _collective(index: Index, group: int, sequence: int, rows: list[int]) -> Stuck:
    front, later = _split(index, rows)
    at = index.groups[group]
    gone = np.isin(at.members, _gone(index, group, front + later))
    enqueued = at.read & (at.enqueued >= sequence)
    behind = enqueued & ((at.head < sequence) | ((at.head == sequence) & ~at.front))
    return Stuck(
        group=group,
        sequence=sequence,
        row=min(rows),
        front=front,
        later=later,
        absent=_of(at.members[at.read & ~enqueued & ~gone]),
        held=_of(at.members[behind]),
        silent=tuple(sorted({*_of(at.members[~at.read]), *_unseen(index, group)})),
        done=_of(at.members[enqueued & (at.head > sequence)]),
    )


def _unseen(index: Index, group: int) -> tuple[int, ...]:
    """Ranks without a record, which may be members of a group whose members were only inferred."""
    known = index.job.groups[group]
    return index.job.silent if known.inferred or not known.members else ()


def _gone(index: Index, group: int, inside: Sequence[int]) -> list[int]:
    """Members that left this generation of the group for a newer one."""
    if group not in index.retired:
        return []
    return [rank for rank in index.job.ranks if rank not in inside]


def _of(ranks: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[int, ...]:
    return tuple(sorted(ranks.tolist()))


def _transfer(index: Index, stream: Transfers, rows: list[int]) -> Stuck:
    """The head of the transfers from one rank to another.

    Whether the other side has posted its part is told by any unfinished part of it: sequence
    numbers of transfers need not agree between ranks, and a finished send may be buffered.
    """
    front, later = _split(index, rows)
    columns = index.job.columns
    inside = {int(columns["rank"][row]) for row in rows}
    other = {stream.source, stream.target} - inside
    read = {rank for rank in other if rank in index.job.ranks}
    first = rows[0]
    return Stuck(
        group=stream.group,
        sequence=int(columns["seq"][first]),
        row=min(rows),
        front=front,
        later=later,
        absent=tuple(sorted(read)),
        held=tuple(rank for rank in later if len(inside) == 2),
        silent=tuple(sorted(other - read)),
        done=(),
        transfer=stream,
    )


def components(edges: Sequence[Sequence[int]]) -> list[frozenset[int]]:
    """Strongly connected components (Tarjan's, without recursion)."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    path: list[int] = []
    open_nodes: set[int] = set()
    found: list[frozenset[int]] = []
    for start in range(len(edges)):
        todo = [] if start in number else [(start, iter(edges[start]))]
        while todo:
            node, targets = todo[-1]
            if node not in number:
                number[node] = low[node] = len(number)
                path.append(node)
                open_nodes.add(node)
            for target in targets:
                if target not in number:
                    todo.append((target, iter(edges[target])))
                    break
                if target in open_nodes:
                    low[node] = min(low[node], low[target])
            else:
                todo.pop()
                if todo:
                    low[todo[-1][0]] = min(low[todo[-1][0]], low[node])
                if low[node] == number[node]:
                    found.append(_cut(path, open_nodes, node))
    return found


def _cut(path: list[int], open_nodes: set[int], node: int) -> frozenset[int]:
    component = set()
    while node not in component:
        component.add(path.pop())
    open_nodes -= component
    return frozenset(component)
