"""The wait-for graph of an incident, or of flight records, as a tree and as sentences. Pure.

A rank that waits stands below the one it waits for. templates/graph.html draws it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from lightkeeper.monitor.model.units import clean, counted
from lightkeeper.monitor.model.wait_map import TOLD, WaitEdge, WaitMap, WaitNode
from lightkeeper.monitor.model.wording import seconds

WITNESSES: Final = {
    "collective": "in a collective",
    "transfer": "in a send or receive",
    "group": "makes a process group",
    "across": "across groups",
    "records": "by flight records",
    "socket": "no answer from its host",
    TOLD: "seen before, or by flight records",
}
"""`detect.graph.By` in words."""
_NODES, _EDGES, _CHARS = 24, 96, 200
"""Ours have fewer. A bundle of somebody else's may hold any graph."""


@dataclass(frozen=True, slots=True)
class GraphDrawing:
    nodes: Sequence[WaitNode]
    order: Sequence[int]
    """Nodes from top to bottom."""
    branches: Sequence[WaitEdge]  # they make the tree
    others: Sequence[WaitEdge]
    title: str
    sentences: tuple[str, ...]
    """The picture in words."""


def draw_graph(waits: WaitMap | None) -> GraphDrawing | None:
    """None: there is nothing to draw."""
    if waits is None or not waits.nodes:
        return None
    nodes, every = waits.nodes[:_NODES], {*range(len(waits.nodes[:_NODES]))}
    edges = [edge for edge in waits.edges if {edge.waiter, edge.holder} <= every][:_EDGES]
    parents = _parents(nodes, edges)
    order, branches = list(_ordered(nodes, parents)), list(parents.values())
    waiting = {edge.waiter for edge in edges}
    alone = (clean(nodes[node].says, _CHARS) for node in order if node not in waiting)
    others = [edge for edge in edges if edge not in branches]
    title = f"Who waits for whom: {counted(waits.ranks, 'rank')}"
    sentences = (*alone, *(wait_sentence(edge, nodes) for edge in edges))
    return GraphDrawing(nodes, order, branches, others, title, sentences)


def _parents(nodes: Sequence[WaitNode], edges: Iterable[WaitEdge]) -> dict[int, WaitEdge]:
    """Node -> the wait by which it stands in the tree: the shortest that leads to the suspects."""
    nearer = [edge for edge in edges if nodes[edge.holder].depth < nodes[edge.waiter].depth]
    nearer.sort(key=lambda edge: (edge.waiter, nodes[edge.holder].depth, -edge.holder))
    return {edge.waiter: edge for edge in nearer}


def _ordered(nodes: Sequence[WaitNode], parents: dict[int, WaitEdge]) -> Iterator[int]:
    """From top to bottom; suspects on which nothing hangs first, so that no tree is cut."""
    holders = {edge.holder for edge in parents.values()}
    roots = (node for node in range(len(nodes)) if node not in parents)
    waiting = sorted(roots, key=lambda node: (node in holders, node), reverse=True)
    while waiting:
        node = waiting.pop()
        yield node
        waiting += (child for child in [*parents][::-1] if parents[child].holder == node)


def wait_label(edge: WaitEdge) -> str:
    """`in a collective, 12 s`, `across groups, 8.0 s to 12 s`."""
    waited = dict.fromkeys(seconds(s) for s in (edge.least_s, edge.most_s) if s is not None)
    return WITNESSES.get(edge.by, clean(edge.by, _CHARS)) + (
        f", {' to '.join(waited)}" if waited else ""
    )


def wait_sentence(edge: WaitEdge, nodes: Sequence[WaitNode]) -> str:
    waiter, holder = (clean(nodes[node].name, _CHARS) for node in (edge.waiter, edge.holder))
    verb = "waits" if nodes[edge.waiter].count == 1 else "wait"
    return f"{waiter} {verb} for {holder}: {wait_label(edge)}"
