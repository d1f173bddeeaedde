"""Collectives that nobody is missing from: the GPU of a rank is behind, or nobody can tell whose.

Theory of operation. With NCCL an entry stays unfinished until the GPU completed it. A rank whose
peers completed what it has unfinished, or began what it has not begun, is behind by itself (see
`lost`). If all are equal, it is the group and not a rank. A running job looks the same in places,
so what may be a moment's delay is told only when it is known to last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from monitor.analysis import skew, wording
from monitor.analysis.finding import Confidence, Fault, Finding
from monitor.analysis.graph import Graph, Stuck
from monitor.analysis.lost import stopped_short
from monitor.analysis.root import Root, evidence_of, victims_of
from monitor.flight_recorder.job import Backend, State

_LONG_NS: Final = 10_000_000_000
"""A collective that all are in and that is known to last so long is stuck. Lower: a slow one is
called stuck. Higher: a stuck one is said later; nobody is accused of it anyway."""


def inside(graph: Graph) -> Iterable[Root]:
    """Collectives that nobody is missing from, and that some or all do not get out of."""
    for nodes in graph.roots:
        if len(nodes) > 1 or graph.rank_of(nodes[0]) is not None:
            continue
        one = graph.stuck_of(nodes[0])
        if graph.unbegun.intersection(one.front):
            continue
        if one.transfer is not None:
            if lasting(graph, one):
                yield _transfer(graph, one)
        elif not one.done:
            yield from _all_in(graph, one)
        elif len(one.front) == 1 and len(one.done) > 1 and lasting(graph, one):
            yield _stuck_inside(graph, one, timed_out=False)
    yield from _behind(graph)


def _behind(graph: Graph) -> Iterable[Root]:
    """Ranks whose GPU did not finish what it finished on their peers, or did not come to it."""
    waited = {graph.rank_of(nodes[0]) for nodes in graph.roots if len(nodes) == 1}
    accused = {
        rank: one
        for rank, unfinished in sorted(graph.lost.items())
        if rank in waited
        for one in (_where_lost(graph, rank),)
        if _really_behind(graph, one, rank, unfinished)
    }
    if accused and 2 * len(accused) < len(graph.index.job.ranks):
        yield _gpu_behind(graph, list(accused), list(accused.values()), graph.lost)
    late = {
        rank: one
        for one in graph.stuck
        for rank in one.front
        if rank in graph.unbegun and rank not in graph.lost
        if (rank in waited or len(one.front) > 1) and lasting(graph, one)
    }
    if late:
        ranks = sorted(late)
        yield _gpu_behind(graph, ranks, [late[rank] for rank in ranks], None)


def _where_lost(graph: Graph, rank: int) -> Stuck:
    """The first collective that the rank does not finish and peers did, in its own order."""
    index = graph.index
    over = [one for one in graph.stuck if rank in one.inside and one.done and not one.transfer]
    return min(over, key=lambda one: index.head_row(rank, one.group))


def _really_behind(graph: Graph, one: Stuck, rank: int, unfinished: int) -> bool:
    """Whether it cannot be that this rank was merely dumped before its peers."""
    if skew.old(graph, (one,), _LONG_NS):
        return True
    partial = graph.index.job.ranks[rank].only_active
    return unfinished > 1 and (partial or stopped_short(graph.index, rank))


def _gpu_behind(
    graph: Graph, ranks: list[int], at: list[Stuck], trailing: Mapping[int, int] | None
) -> Root:
    index, job = graph.index, graph.index.job
    scene = _waiting_for(graph, ranks)
    who = wording.ranks(job, ranks)
    what = wording.joined(list(dict.fromkeys(wording.collective(index, one) for one in at))[:3])
    gpus = f"the {wording.verb(ranks, 'GPU', 'GPUs')} of {who}"
    if trailing is None:
        has = wording.verb(ranks, "has", "have")
        reason = f"{gpus} {has} not begun {what}, which those of peers have"
    else:
        reason = f"{gpus} stopped in {what}, which those of all peers finished"
    if scene:
        reason += (
            f": {wording.waiting(index, scene[0], f'in {wording.collective(index, scene[0])}')}"
        )
    evidence = {
        f"rank {job.name(rank)}": f"first unfinished: {wording.collective(index, one)}"
        + (f"; {trailing[rank]} unfinished that peers finished" if trailing else "")
        for rank, one in zip(ranks, at, strict=True)
    }
    first = at[0]
    return Root(
        Finding(
            kind=Fault.GPU_BEHIND,
            confidence=Confidence.LIKELY,
            reason=f"{reason}.",
            culprits=tuple(ranks),
            victims=victims_of(graph, graph.nodes_of(ranks), ranks),
            group=first.group,
            sequence=first.sequence,
            op=index.op(first.row),
            evidence=evidence | evidence_of(graph, (), scene),
        ),
        (*dict.fromkeys((*at, *scene)),),
    )


def _waiting_for(graph: Graph, ranks: Iterable[int]) -> tuple[Stuck, ...]:
    some = set(ranks)
    return tuple(
        one for one in graph.stuck if one.front and some.intersection((*one.absent, *one.held))
    )


def _all_in(graph: Graph, one: Stuck) -> Iterable[Root]:
    failed = [rank for rank in one.front if _state(graph, one, rank) is State.FAILED]
    if failed or lasting(graph, one):
        yield _stuck_inside(graph, one, timed_out=len(failed) == len(one.front))


def lasting(graph: Graph, one: Stuck) -> bool:
    """Whether a collective that all are in is known to last long.

    So it is too when only unfinished entries were written: because something was stuck.
    """
    ranks = graph.index.job.ranks.values()
    if skew.old(graph, (one,), _LONG_NS):
        return True
    return any(info.only_active and info.backend is Backend.NCCL for info in ranks)


def _state(graph: Graph, one: Stuck, rank: int) -> State:
    return State(int(graph.index.job.columns["state"][graph.index.head_row(rank, one.group)]))


def _stuck_inside(graph: Graph, one: Stuck, *, timed_out: bool) -> Root:
    what = wording.collective(graph.index, one)
    ended = "all of them did" if timed_out else "none gets out"
    reason = (
        f"{wording.waiting(graph.index, one, f'in {what}')}, nobody is missing, and {ended}: a GPU "
        "or the network between them; the records cannot tell whose."
    )
    return _nobodys(
        graph,
        one,
        kind=Fault.TIMED_OUT if timed_out else Fault.STUCK_INSIDE,
        members=one.front,
        between=tuple((rank,) for rank in one.front) + ((one.done,) if one.done else ()),
        reason=reason,
    )


def _transfer(graph: Graph, one: Stuck) -> Root:
    what = wording.collective(graph.index, one)
    reason = (
        f"{wording.waiting(graph.index, one, f'in {what}')}: both are there and it does not end; "
        "the records cannot tell whose fault."
    )
    between = tuple((rank,) for rank in one.inside)
    return _nobodys(
        graph, one, kind=Fault.POINT_TO_POINT, members=one.inside, between=between, reason=reason
    )


def _nobodys(
    graph: Graph,
    one: Stuck,
    *,
    kind: Fault,
    members: tuple[int, ...],
    between: tuple[tuple[int, ...], ...],
    reason: str,
) -> Root:
    """A standstill of which the records do not tell whose fault it is."""
    return Root(
        Finding(
            kind=kind,
            confidence=Confidence.UNSURE,
            reason=reason,
            between=between,
            victims=victims_of(graph, (graph.front_node(graph.stuck.index(one)),), members),
            group=one.group,
            sequence=one.sequence,
            op=graph.index.op(one.row),
            evidence=evidence_of(graph, (), (one,)),
        ),
        (one,),
    )
