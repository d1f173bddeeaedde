"""The wait-for graph of an incident, or of flight records, as boxes and lines for one SVG. Pure.

A rank that waits stands below the one it waits for, to the right: a tree as narrow as a phone.
Other waits are lines at the right edge. Each is a sentence, too (templates/graph.html).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from lightkeeper.monitor.model.units import clean, counted
from lightkeeper.monitor.model.wait_map import TOLD, WaitEdge, WaitMap, WaitNode
from lightkeeper.monitor.model.wording import seconds

BOX_WIDTH, BOX_HEIGHT = 286, 58
_INDENT, _GAP, _SPINE = 36, 26, 16
_SIDE: Final = 34
"""Room at the right edge for waits that are not on the tree."""
_MARGIN: Final = 3
_CHARS: Final = 44
"""Of a box's line at its font size; the whole text is under the pointer."""

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


@dataclass(frozen=True, slots=True)
class GraphBox:
    x: int
    y: int
    part: str
    name: str
    does: str
    where: str
    kind: str
    """The page that it leads to, `ranks` or `groups`; empty: none."""
    target: str
    title: str


@dataclass(frozen=True, slots=True)
class GraphLine:
    path: str
    """From who waits to whom it waits for."""
    label: str
    x: int
    y: int
    title: str


@dataclass(frozen=True, slots=True)
class GraphDrawing:
    width: int
    height: int
    boxes: tuple[GraphBox, ...]
    lines: tuple[GraphLine, ...]
    title: str
    sentences: tuple[str, ...]
    """The same in words."""


def draw_graph(waits: WaitMap | None, *, linked: bool = True) -> GraphDrawing | None:
    """None: there is nothing to draw. `linked`: boxes lead to pages of this monitor."""
    if waits is None or not waits.nodes:
        return None
    nodes, count = waits.nodes, len(waits.nodes)
    edges = [edge for edge in waits.edges if {edge.waiter, edge.holder} <= {*range(count)}]
    parents = _parents(nodes, edges)
    order = list(_ordered(nodes, parents))
    row = {node: number for number, node in enumerate(order)}
    boxes = tuple(_box(nodes[node], row[node], linked=linked) for node in order)
    at = dict(zip(order, boxes, strict=True))
    branches, waiting = list(parents.values()), {edge.waiter for edge in edges}
    others = [edge for edge in edges if edge not in branches]
    right = max(box.x for box in boxes) + BOX_WIDTH
    lines = [_branch(at[e.waiter], at[e.holder], _label(e), _sentence(e, nodes)) for e in branches]
    lines += [_detour(at[e.waiter], at[e.holder], right, _sentence(e, nodes)) for e in others]
    alone = [box.title for node, box in at.items() if node not in waiting]
    return GraphDrawing(
        width=right + _MARGIN + (_SIDE if others else 0),
        height=boxes[-1].y + BOX_HEIGHT + _MARGIN,
        boxes=boxes,
        lines=tuple(lines),
        title=f"Who waits for whom: {counted(waits.ranks, 'rank')}",
        sentences=(*alone, *(_sentence(edge, nodes) for edge in edges)),
    )


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


def _box(node: WaitNode, row: int, *, linked: bool) -> GraphBox:
    name, where, single = _name(node), _where(node), node.count == 1
    kind = "ranks" if single else "groups" if node.group_count == 1 else ""
    target = (node.ranks if single else node.groups)[:1]
    return GraphBox(
        x=_MARGIN + _INDENT * max(0, min(node.depth, 5)),
        y=_MARGIN + row * (BOX_HEIGHT + _GAP),
        part=node.part,
        name=clean(name, _CHARS - 10),
        does=clean(node.does, _CHARS),
        where=clean(where, _CHARS + 2),
        kind=kind if linked and target else "",
        target=target[0] if target else "",
        title=f"{name}{f' {node.does}' if node.does else ''}{f', {where}' if where else ''}",
    )


def _name(node: WaitNode) -> str:
    if node.count == 1:
        return node.ranks[0] if node.ranks else "a rank"
    if node.group_count == 1:
        return f"{counted(node.count, 'rank')} of {node.groups[0]}"
    of = f" of {counted(node.group_count, 'group')}" if node.group_count else ""
    return f"{counted(node.count, 'rank')}{of}"


def _where(node: WaitNode) -> str:
    named = "" if node.count == 1 else ", ".join(node.ranks)
    if not node.hosts:
        return named
    hosts = node.hosts[0] if node.host_count == 1 else counted(node.host_count, "host")
    more = " ..." if node.groups and node.count > len(node.ranks) else ""
    return f"on {hosts}{named and f': {named}'}{more}"


def _branch(waiter: GraphBox, holder: GraphBox, label: str, title: str) -> GraphLine:
    """From the waiter's left edge to below the holder."""
    x, middle, bottom = holder.x + _SPINE, waiter.y + BOX_HEIGHT // 2, holder.y + BOX_HEIGHT
    path = f"M{waiter.x} {middle}H{x}V{bottom + 2}m-4 7l4-7l4 7"
    return GraphLine(path, label, waiter.x + 2, waiter.y - 6, title)


def _detour(waiter: GraphBox, holder: GraphBox, right: int, title: str) -> GraphLine:
    """From right edge to right edge."""
    start, end = waiter.y + BOX_HEIGHT // 2 + 8, holder.y + BOX_HEIGHT // 2 - 8
    way = f"C{right + _SIDE} {start} {right + _SIDE} {end}"
    path = f"M{waiter.x + BOX_WIDTH} {start}{way} {holder.x + BOX_WIDTH + 2} {end}m7-4l-7 4l7 4"
    return GraphLine(path, "", 0, 0, title)


def _label(edge: WaitEdge) -> str:
    """`in a collective, 12 s`, `across groups, 8.0 s to 12 s`."""
    waited = dict.fromkeys(seconds(s) for s in (edge.least_s, edge.most_s) if s is not None)
    return WITNESSES.get(edge.by, edge.by) + (f", {' to '.join(waited)}" if waited else "")


def _sentence(edge: WaitEdge, nodes: Sequence[WaitNode]) -> str:
    waiter, holder = nodes[edge.waiter], nodes[edge.holder]
    verb = "waits" if waiter.count == 1 else "wait"
    return f"{_name(waiter)} {verb} for {_name(holder)}: {_label(edge)}"
