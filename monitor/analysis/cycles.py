"""Cycles of the wait-for graph: each waits for the other, in another collective.

Theory of operation. Ranks of a cycle that are stuck in the same collective and waited for in the
same ones cannot be told apart: they make a side. A side that resolves the cycle when it is taken
out may be at fault; the smallest such one is, by majority. Two of one size tie, unless a cohort
decides: other groups of the same role show whether a side is ahead of its place in the program.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from monitor.analysis import wording
from monitor.analysis.finding import Confidence, Fault, Finding
from monitor.analysis.graph import Graph, Stuck, components
from monitor.analysis.roots import Root

_SIDES = 64
"""More sides than so many are no inversion but a ring of transfers; they are not searched."""


@dataclass(frozen=True, slots=True)
class _Side:
    ranks: tuple[int, ...]
    stuck: Stuck


def cycles(graph: Graph) -> Iterable[Root]:
    """One finding for each cycle."""
    for nodes in (*graph.roots, *graph.knots):
        if len(nodes) > 1:
            yield _cycle(graph, nodes)


def _cycle(graph: Graph, nodes: tuple[int, ...]) -> Root:
    sides = _sides(graph, nodes)
    scene = tuple(dict.fromkeys(side.stuck for side in sides))
    if all(one.transfer is not None for one in scene):
        return _root(graph, nodes, Fault.POINT_TO_POINT, sides, (), scene)
    breaking = [side for side in sides if _resolves(graph, nodes, side)]
    breaking.sort(key=lambda side: (len(side.ranks), side.ranks))
    if not breaking or len(sides) > _SIDES:
        return _root(graph, nodes, Fault.ORDER_INVERSION, sides, (), scene)
    tied = [side for side in breaking if len(side.ranks) == len(breaking[0].ranks)]
    if len(tied) == 1 and _outvoted(graph, tied[0], sides):
        return _root(graph, nodes, Fault.ORDER_INVERSION, sides, tied[0].ranks, scene)
    if len(tied) == 2:
        for side, other in (tied, reversed(tied)):
            ahead = _ahead_of_cohort(graph, side.stuck)
            if ahead is not None:
                kind = Fault.SKIPPED if ahead else Fault.EXTRA
                return _root(graph, nodes, kind, sides, (side if ahead else other).ranks, scene)
    return _root(graph, nodes, Fault.ORDER_INVERSION, sides, (), scene)


def _outvoted(graph: Graph, side: _Side, sides: list[_Side]) -> bool:
    """Whether most of those who have to call both are seen to do it the other way."""
    groups = [graph.index.job.groups[one.stuck.group].members for one in sides]
    both = set(groups[0]).intersection(*groups[1:])
    others = {rank for one in sides if one is not side for rank in one.ranks}
    return 2 * len(others & both) > len(both)


def _sides(graph: Graph, nodes: tuple[int, ...]) -> list[_Side]:
    collectives = [node for node in nodes if graph.rank_of(node) is None]
    waited: dict[int, list[int]] = {}
    for node in collectives:
        for target in graph.edges[node]:
            waited.setdefault(target, []).append(node)
    sides: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for node in nodes:
        rank = graph.rank_of(node)
        if rank is None:
            continue
        into = min(target for target in graph.edges[node] if target in nodes)
        sides.setdefault((into, tuple(waited.get(node, ()))), []).append(rank)
    found = [_Side(tuple(sorted(r)), graph.stuck_of(into)) for (into, _), r in sides.items()]
    return sorted(found, key=lambda side: side.ranks)


def _resolves(graph: Graph, nodes: tuple[int, ...], side: _Side) -> bool:
    out = set(graph.nodes_of(side.ranks))
    kept = [node for node in nodes if node not in out]
    place = {node: number for number, node in enumerate(kept)}
    edges = [[place[t] for t in graph.edges[node] if t in place] for node in kept]
    return all(len(component) == 1 for component in components(edges))


def _ahead_of_cohort(graph: Graph, one: Stuck) -> bool | None:
    """Whether no other group of the same role has come so far; None when there is none."""
    index = graph.index
    group = index.job.groups[one.group]
    if not group.desc or one.transfer is not None or not one.absent:
        return None
    progress = [
        int(at.enqueued.max())
        for number, at in index.groups.items()
        if number != one.group
        and index.job.groups[number].desc == group.desc
        and len(at.members) == len(group.members)
        and not set(at.members.tolist()) & set(group.members)
    ]
    if not progress:
        return None
    return bool(np.median(progress) < one.sequence)


def _root(
    graph: Graph,
    nodes: tuple[int, ...],
    kind: Fault,
    sides: list[_Side],
    culprits: tuple[int, ...],
    scene: tuple[Stuck, ...],
) -> Root:
    job = graph.index.job
    said = [
        f"{wording.ranks(job, side.ranks)} {wording.verb(side.ranks, 'is', 'are')} in "
        f"{wording.collective(graph.index, side.stuck)}"
        for side in sides[:4]
    ]
    reason = f"{wording.joined(said)}, and each waits for the other: "
    match kind:
        case Fault.SKIPPED:
            end = f"{wording.ranks(job, culprits)} left a call out, for others do not come so far."
        case Fault.EXTRA:
            end = (
                f"{wording.ranks(job, culprits)} made a call too many, for others have come so far."
            )
        case Fault.POINT_TO_POINT:
            end = "the sends and receives are in an order that cannot work."
        case _ if culprits:
            end = f"{wording.ranks(job, culprits)} took them in another order than the others."
        case _:
            end = "the records cannot tell whose order is wrong."
    involved = {rank for node in nodes if (rank := graph.rank_of(node)) is not None}
    return Root(
        Finding(
            kind=kind,
            confidence=Confidence.LIKELY if culprits else Confidence.UNSURE,
            reason=reason + end,
            culprits=culprits,
            between=() if culprits else tuple(sorted(side.ranks for side in sides)),
            victims=tuple(sorted((set(graph.reaching(nodes)) | involved) - set(culprits))),
            group=scene[0].group,
            sequence=scene[0].sequence,
            op=graph.index.op(scene[0].row),
            evidence={
                wording.collective(graph.index, side.stuck): wording.ranks(job, side.ranks)
                + (f" at {site}" if (site := graph.index.site(side.stuck.row)) else "")
                for side in sides[:8]
            },
        ),
        scene,
    )
