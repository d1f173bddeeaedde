"""A finding with the collectives at which it shows, and what all of them have to say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from monitor.analysis import wording
from monitor.analysis.finding import Finding
from monitor.analysis.graph import Graph, Stuck


@dataclass(frozen=True, slots=True)
class Root:
    """A finding, and what it rests on."""

    finding: Finding
    scene: tuple[Stuck, ...]
    """The collectives at which it shows."""


def evidence_of(graph: Graph, ranks: Iterable[int], scene: tuple[Stuck, ...]) -> dict[str, str]:
    """Who is where in the collectives of a scene, and how far these ranks got in the first."""
    index, job = graph.index, graph.index.job
    evidence: dict[str, str] = {}
    for one in scene[:4]:
        inside = f"inside: {wording.ranks(job, one.inside)}"
        if one.absent:
            inside += f"; not come: {wording.ranks(job, one.absent)}"
        if one.held:
            inside += f"; stuck before it: {wording.ranks(job, one.held)}"
        if one.silent:
            inside += f"; without a record: {wording.ranks(job, one.silent)}"
        evidence[wording.collective(index, one)] = inside
    sites = {index.site(one.row) for one in scene[:1]} - {None}
    for site in sites:
        evidence["called at"] = str(site)
    for rank in list(ranks)[:4]:
        for one in scene[:1]:
            if one.transfer is None:
                at = index.groups[one.group]
                last = int(at.enqueued[at.members == rank].max(initial=0))
                evidence[f"rank {job.name(rank)}"] = (
                    f"enqueued up to {last} in {job.groups[one.group].label}"
                )
    return evidence


def victims_of(graph: Graph, nodes: Iterable[int], culprits: Iterable[int]) -> tuple[int, ...]:
    """Ranks that wait, directly or not, for these nodes of the graph."""
    own = set(culprits)
    return tuple(rank for rank in graph.reaching(nodes) if rank not in own)
