"""The wait-for graph of an incident, or of flight records, as boxes and lines for one SVG. Pure.

Whoever waits stands below whom it waits for, further to the right: a tree that is as narrow as a
phone. Waits beside the tree are lines at the right edge. templates/graph.html has the markup,
and each wait is a sentence, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from lightkeeper.monitor.model.units import counted
from lightkeeper.monitor.model.wait_map import TOLD, WaitEdge, WaitMap, WaitNode
from lightkeeper.monitor.model.wording import seconds

_WIDTH, _HEIGHT = 286, 58
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
    """All of it, in one sentence."""


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
    box_width: int
    box_height: int
    boxes: tuple[GraphBox, ...]
    lines: tuple[GraphLine, ...]
    title: str
    sentences: tuple[str, ...]
    """The same in words."""


def draw_graph(waits: WaitMap | None, *, linked: bool = True) -> GraphDrawing | None:
    """None: there is nothing to draw. `linked`: boxes lead to pages of this monitor."""
    if waits is None or not waits.nodes:
        return None
    total = counted(waits.ranks, "rank")
    nodes, known = waits.nodes, range(len(waits.nodes))
    edges = [edge for edge in waits.edges if {edge.waiter, edge.holder} <= {*known}]
    parents = _parents(nodes, edges)
    order = list(_ordered(nodes, parents))
    row = {node: number for number, node in enumerate(order)}
    boxes = tuple(_box(nodes[node], row[node], linked=linked) for node in order)
    at = dict(zip(order, boxes, strict=True))
    branches, waiting = list(parents.values()), {edge.waiter for edge in edges}
    others = [edge for edge in edges if edge not in branches]
    right = max(box.x for box in boxes) + _WIDTH
    lines = [_branch(at[e.waiter], at[e.holder], e, nodes) for e in branches]
    lines += [_detour(at[e.waiter], at[e.holder], e, nodes, right) for e in others]
    alone = [box.title for node, box in at.items() if node not in waiting]
    return GraphDrawing(
        width=right + _MARGIN + (_SIDE if others else 0),
        height=boxes[-1].y + _HEIGHT + _MARGIN,
        box_width=_WIDTH,
        box_height=_HEIGHT,
        boxes=boxes,
        lines=tuple(lines),
        title=f"Who waits for whom: {total}",
        sentences=(*alone, *(_sentence(edge, nodes) for edge in edges)),
    )


def _parents(nodes: Sequence[WaitNode], edges: Sequence[WaitEdge]) -> dict[int, WaitEdge]:
    nearest = ((node, _parent(nodes, node, edges)) for node in range(len(nodes)))
    return {node: edge for node, edge in nearest if edge is not None}


def _parent(nodes: Sequence[WaitNode], node: int, edges: Iterable[WaitEdge]) -> WaitEdge | None:
    """The wait by which it stands in the tree: one that leads nearer to the suspects."""
    nearer = (e for e in edges if e.waiter == node and nodes[e.holder].depth < nodes[node].depth)
    return min(nearer, key=lambda edge: (-nodes[edge.holder].depth, edge.holder), default=None)


def _ordered(nodes: Sequence[WaitNode], parents: dict[int, WaitEdge]) -> Iterator[int]:
    """From top to bottom; suspects on which nothing hangs first, so that no tree is cut."""
    holders = {edge.holder for edge in parents.values()}
    roots = (node for node in range(len(nodes)) if node not in parents)
    waiting = sorted(roots, key=lambda node: (node in holders, node), reverse=True)
    while waiting:
        node = waiting.pop()
        yield node
        waiting += (
            child for child in sorted(parents, reverse=True) if parents[child].holder == node
        )


def _box(node: WaitNode, row: int, *, linked: bool) -> GraphBox:
    name, where, single = _name(node), _where(node), node.count == 1
    kind = "ranks" if single else "groups" if node.group_count == 1 else ""
    target = (node.ranks if single else node.groups)[:1]
    return GraphBox(
        x=_MARGIN + _INDENT * max(0, min(node.depth, 5)),
        y=_MARGIN + row * (_HEIGHT + _GAP),
        part=node.part,
        name=_cut(name, _CHARS - 10),
        does=_cut(node.does, _CHARS),
        where=_cut(where, _CHARS + 2),
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


def _branch(
    waiter: GraphBox, holder: GraphBox, edge: WaitEdge, nodes: Sequence[WaitNode]
) -> GraphLine:
    """From the waiter's left edge to below the holder."""
    x, middle, bottom = holder.x + _SPINE, waiter.y + _HEIGHT // 2, holder.y + _HEIGHT
    path = f"M{waiter.x} {middle}H{x}V{bottom + 2}m-4 7l4-7l4 7"
    return GraphLine(path, _label(edge), waiter.x + 2, waiter.y - 6, _sentence(edge, nodes))


def _detour(
    waiter: GraphBox, holder: GraphBox, edge: WaitEdge, nodes: Sequence[WaitNode], right: int
) -> GraphLine:
    """From right edge to right edge."""
    start, end = waiter.y + _HEIGHT // 2 + 8, holder.y + _HEIGHT // 2 - 8
    way = f"C{right + _SIDE} {start} {right + _SIDE} {end}"
    path = f"M{waiter.x + _WIDTH} {start}{way} {holder.x + _WIDTH + 2} {end}m7-4l-7 4l7 4"
    return GraphLine(path, "", 0, 0, _sentence(edge, nodes))


def _label(edge: WaitEdge) -> str:
    """`in a collective, 12 s`."""
    by = WITNESSES.get(edge.by, edge.by)
    if edge.least_s is None or edge.most_s is None:
        return by
    least, most = seconds(edge.least_s), seconds(edge.most_s)
    return f"{by}, {most if least == most else f'{least} to {most}'}"


def _sentence(edge: WaitEdge, nodes: Sequence[WaitNode]) -> str:
    waiter, holder = nodes[edge.waiter], nodes[edge.holder]
    verb = "waits" if waiter.count == 1 else "wait"
    return f"{_name(waiter)} {verb} for {_name(holder)}: {_label(edge)}"


def _cut(text: str, at_most: int) -> str:
    return text if len(text) <= at_most else f"{text[: at_most - 1]}\N{HORIZONTAL ELLIPSIS}"
