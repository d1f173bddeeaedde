"""Ranks without a record, and when that makes them the culprits.

Theory of operation. A rank that cannot write its record is often the one that is dead or stopped,
but a record may also be lost. So the silent are accused only where nothing that did speak explains
the wait, and only when they are few. Of several, those are accused for which alone a collective
waits.
"""

from __future__ import annotations

from collections.abc import Iterable

from monitor.analysis import wording
from monitor.analysis.finding import Confidence, Fault, Finding
from monitor.analysis.graph import Graph, Stuck
from monitor.analysis.index import SYNCHRONISING
from monitor.analysis.root import Root
from monitor.flight_recorder.job import Backend

_FEW = 4
"""Accused are at most one in so many. Lower: a job of which half the records were lost accuses
them. Higher: a host that died is called unknown."""


def _over(graph: Graph, one: Stuck) -> bool:
    """Whether somebody got out of it, and nobody does before all are in: the silent were, too.

    What gloo ended by an error looks completed (see `lost`).
    """
    ranks = graph.index.job.ranks
    through = any(ranks[rank].backend is Backend.NCCL for rank in one.done)
    return through and graph.index.op(one.row) in SYNCHRONISING


def _member(graph: Graph, one: Stuck, rank: int) -> bool:
    """Whether a rank without a record is known to be in what others wait in.

    Where members are not recorded, so it is when all whose record was read are.
    """
    job = graph.index.job
    members = job.groups[one.group].members
    return rank in members or (len(members) > 1 and set(members) >= job.ranks.keys())


def silent(graph: Graph) -> Iterable[Root]:
    """At most one finding: the silent ranks that others wait for."""
    waiting = [
        one for one in graph.stuck if one.silent and not one.absent and not _over(graph, one)
    ]
    alone = {one.silent[0] for one in waiting if len(one.silent) == 1}
    unclear = {r for one in waiting if not alone & set(one.silent) for r in one.silent}
    accused = tuple(sorted(alone | unclear))
    if not accused:
        return
    job = graph.index.job
    scene = tuple(one for one in waiting if set(accused) & set(one.silent))
    members = set(accused) <= {r for one in scene for r in one.silent if _member(graph, one, r)}
    few = not unclear and (len(accused) == 1 or _FEW * len(accused) <= len(job.expected))
    sure, first = few and members, scene[0]
    reason = f"{wording.ranks(job, accused)} left no record, and "
    if sure:
        reason += wording.verb(accused, "it is the only one", "they are the only ones") + " missing"
    elif few:
        reason += f"nothing tells whether the others wait for {wording.verb(accused, 'it', 'them')}"
    else:
        reason += "too many are missing to tell which of them holds up the rest"
    what = wording.collective(graph.index, first)
    reason += f": {wording.waiting(graph.index, first, f'in {what}')}."
    yield Root(
        Finding(
            kind=Fault.SILENT,
            confidence=Confidence.LIKELY if sure else Confidence.UNSURE,
            reason=reason,
            culprits=accused if sure else (),
            between=() if sure else tuple((rank,) for rank in accused),
            victims=tuple(
                rank
                for rank in graph.reaching(graph.nodes_of(accused))
                if rank not in accused and rank in job.ranks
            ),
            group=first.group,
            sequence=first.sequence,
            op=graph.index.op(first.row),
            evidence={
                wording.collective(graph.index, one): "without a record: "
                + wording.ranks(job, one.silent)
                for one in scene[:4]
            },
        ),
        scene,
    )
