"""Cycles of the wait-for graph: each waits for the other, in another collective.

Theory of operation. Two collectives of a cycle conflict when ranks that have to call both are stuck
in the one and others in the other. A strict majority of those who have to call both says which
comes first. Where they tie, the past of the ranks decides: who calls what it did not call at this
place before is wrong. Failing that, nobody is accused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from monitor.analysis import wording
from monitor.analysis.finding import Confidence, Fault, Finding
from monitor.analysis.graph import Graph, Stuck
from monitor.analysis.habit import Habit
from monitor.analysis.root import Root
from monitor.analysis.witness import Witness

_MOST = 64
"""Collectives of one cycle that are compared with each other."""
_STEPS = 16
"""Calls of a rank before the one it is stuck in that are compared with its past."""


@dataclass(frozen=True, slots=True)
class _Side:
    ranks: tuple[int, ...]
    stuck: Stuck


def cycles(graph: Graph, witness: Witness) -> Iterable[Root]:
    """One finding for each cycle."""
    for nodes in (*graph.roots, *graph.knots):
        if len(nodes) > 1:
            yield _cycle(graph, witness, nodes)


def _cycle(graph: Graph, witness: Witness, nodes: tuple[int, ...]) -> Root:
    sides = _sides(graph, nodes)
    if all(side.stuck.transfer is not None for side in sides):
        return _root(graph, nodes, Fault.POINT_TO_POINT, sides, ())
    collectives = [side for side in sides if side.stuck.transfer is None][:_MOST]
    culprits: set[int] = set()
    for one, other in combinations(collectives, 2):
        culprits.update(_conflict(graph, witness, one, other))
    kind = Fault.ORDER_INVERSION
    if len(collectives) < len(sides) and not culprits:
        culprits.update(_out_of_habit(graph, witness, sides))
        kind = Fault.POINT_TO_POINT if culprits else kind
    return _root(graph, nodes, kind, sides, tuple(sorted(culprits)))


def _out_of_habit(graph: Graph, witness: Witness, sides: Sequence[_Side]) -> tuple[int, ...]:
    """The one side that calls what it never called at this place, all others being as usual.

    A rank in a transfer and one in a collective both have to call neither: nothing to count.
    """
    front = graph.index.front
    first = [[min(front.get(rank, ()), default=None) for rank in side.ranks] for side in sides]
    if any(row is None for rows in first for row in rows):
        return ()
    habits = [witness.of(row for row in rows if row is not None) for rows in first]
    if habits.count(Habit.UNUSUAL) != 1 or habits.count(Habit.USUAL) != len(habits) - 1:
        return ()
    return sides[habits.index(Habit.UNUSUAL)].ranks


def _conflict(graph: Graph, witness: Witness, one: _Side, other: _Side) -> tuple[int, ...]:
    """Who of two sides is wrong; nobody where they do not conflict or nothing decides."""
    first, second = (_members(graph, side) for side in (one, other))
    both = first & second
    sides = [tuple(rank for rank in side.ranks if rank in both) for side in (one, other)]
    if not all(sides):
        return ()
    for mine, theirs in (sides, sides[::-1]):
        if 2 * len(theirs) > len(both):
            return mine
    habits = [
        _habit(graph, witness, ranks, mine.stuck.group, theirs.stuck.group)
        for mine, theirs, ranks in zip((one, other), (other, one), sides, strict=True)
    ]
    if set(habits) == {Habit.USUAL, Habit.UNUSUAL}:
        return sides[habits.index(Habit.UNUSUAL)]
    return ()


def _habit(graph: Graph, witness: Witness, ranks: Sequence[int], own: int, theirs: int) -> Habit:
    """Whether ranks came to where they are stuck as usual, since they last called for the others.

    Who leaves out a call may find itself in a usual one soon after.
    """
    heads = [graph.index.head_row(rank, own) for rank in ranks]
    way = (row for head in heads for row in _way(graph, head, theirs))
    if any(witness.of((row,)) is Habit.UNUSUAL for row in way):
        return Habit.UNUSUAL
    return witness.of(heads)


def _way(graph: Graph, head: int, group: int) -> Iterable[int]:
    """The rows of a rank before one, back to its last call in a group."""
    columns = graph.index.job.columns
    for row in range(head - 1, max(head - _STEPS, 0) - 1, -1):
        if columns["rank"][row] != columns["rank"][head] or columns["group"][row] == group:
            return
        yield row


def _members(graph: Graph, side: _Side) -> set[int]:
    return set(graph.index.groups[side.stuck.group].members.tolist())


def _sides(graph: Graph, nodes: tuple[int, ...]) -> list[_Side]:
    """The ranks of a cycle by what they are stuck in first."""
    own, sides = set(nodes), dict[int, list[int]]()
    for node in nodes:
        rank = graph.rank_of(node)
        if rank is not None:
            into = min(target for target in graph.edges[node] if target in own)
            sides.setdefault(into, []).append(rank)
    found = [_Side(tuple(sorted(r)), graph.stuck_of(into)) for into, r in sides.items()]
    return sorted(found, key=lambda side: side.ranks)


def _root(
    graph: Graph,
    nodes: tuple[int, ...],
    kind: Fault,
    sides: Sequence[_Side],
    culprits: tuple[int, ...],
) -> Root:
    job = graph.index.job
    scene = tuple(dict.fromkeys(side.stuck for side in sides))
    blamed = sorted(sides, key=lambda side: not set(side.ranks) & set(culprits))
    said = [
        f"{wording.ranks(job, side.ranks)} {wording.verb(side.ranks, 'is', 'are')} in "
        f"{wording.collective(graph.index, side.stuck)}{wording.site(graph.index, side.stuck.row)}"
        for side in blamed[:4]
    ]
    who = wording.ranks(job, culprits) if culprits else ""
    reason = f"{wording.joined(said)}, and each waits for the other"
    match kind:
        case Fault.POINT_TO_POINT if culprits:
            reason += f": {who} never called that at this place before."
        case Fault.POINT_TO_POINT:
            reason += ": the sends and receives are in an order that cannot work."
        case _ if culprits:
            reason += f": {who} took them in another order than the others."
        case _:
            reason += ": the records cannot tell whose order is wrong."
    involved = {rank for node in nodes if (rank := graph.rank_of(node)) is not None}
    return Root(
        Finding(
            kind=kind,
            confidence=Confidence.LIKELY if culprits else Confidence.UNSURE,
            reason=reason,
            culprits=culprits,
            between=() if culprits else tuple(sorted(side.ranks for side in sides)),
            victims=tuple(sorted((set(graph.reaching(nodes)) | involved) - set(culprits))),
            group=scene[0].group,
            sequence=scene[0].sequence,
            op=graph.index.op(scene[0].row),
            evidence={
                wording.collective(graph.index, side.stuck): wording.ranks(job, side.ranks)
                + wording.site(graph.index, side.stuck.row)
                for side in sides[:8]
            },
        ),
        scene,
    )
