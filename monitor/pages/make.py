"""Any page of ours, and its whole HTML. Pure."""

from __future__ import annotations

from monitor.pages.context import GROUPS, HOSTS, RANKS, Context
from monitor.pages.fleet import fleet_page
from monitor.pages.frame import Frame
from monitor.pages.group import group_page, host_page
from monitor.pages.rank import rank_page
from monitor.pages.tree import Node, to_html
from monitor.reports.document import document


def make(context: Context) -> Frame:
    """The page of this place, at this moment."""
    match context.place.kind:
        case kind if kind == GROUPS:
            return group_page(context)
        case kind if kind == HOSTS:
            return host_page(context)
        case kind if kind == RANKS:
            return rank_page(context)
        case _:
            return fleet_page(context)


def whole(frame: Frame, path: str, tag: str, tick_s: float) -> str:
    """The HTML that reads without a script; `tag` names this state for who follows."""
    return document(
        frame.title,
        *(to_html(_filled(part, frame)) for part in frame.parts),
        script="/static/page.js",
        here="/" if path.startswith("/?") else path,
        notice='<div id="away" role="status"></div>' + "".join(to_html(p) for p in frame.head),
        data={"place": path, "tag": tag, "tick": f"{tick_s:g}"},
    )


def _filled(node: Node, frame: Frame) -> Node:
    """With the items in the list that waits for them."""
    if "data-items" in node.attributes:
        return Node(node.name, tuple(frame.items.values()), node.attributes)
    inside = tuple(_filled(one, frame) if isinstance(one, Node) else one for one in node.inside)
    return Node(node.name, inside, node.attributes)
