"""The part of the wait-for graph that a verdict rests on, as a person is shown it. Pure.

The suspects and all that wait for them, directly or not. A few ranks are nodes of their own. Of
more, those that do the same at the same distance become one: first by group and host, then by
group, then over all groups. Suspects stay apart while they are few.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final

from lightkeeper.monitor.detect.graph import SELF_HELD, By, WaitGraph
from lightkeeper.monitor.detect.history import History
from lightkeeper.monitor.detect.wording import (
    hangs_briefly,
    ranks_named,
    waits_in,
    what_they_do,
    why_it_died,
)
from lightkeeper.monitor.model.grouping import grouped
from lightkeeper.monitor.model.names import RankName, group_of
from lightkeeper.monitor.model.units import clean, natural
from lightkeeper.monitor.model.verdict import RankStanding, Verdict
from lightkeeper.monitor.model.wait_map import (
    CANDIDATE,
    CULPRIT,
    TOLD,
    WAITS,
    WaitEdge,
    WaitMap,
    WaitNode,
)

_NODES: Final = 10
"""More do not fit a page; folding ends there or at its coarsest."""
_OWN: Final = 6
"""So many ranks each have a node of their own."""
_EDGES: Final = 48
_DEPTH: Final = 5
"""Longer chains of waits end in one node."""
_APART: Final = 6
"""Suspects that are never folded."""
_NAMED: Final = 3
_CHARS: Final = 90


def wait_map(history: History, graph: WaitGraph, verdict: Verdict) -> WaitMap | None:
    """None: nothing stands still because of it, or nobody is seen to wait for anybody."""
    depth = dict.fromkeys(_origins(history, graph, verdict), 0)
    if not verdict.stops:
        return None
    paths = list(graph.paths_to(depth))
    for waiter, holder in paths:
        depth[waiter] = min(_DEPTH, depth[holder] + 1)
    unseen = [rank for rank in verdict.victims if rank not in depth]  # they ended, or records tell
    depth |= dict.fromkeys(unseen, 1)
    shown = {*verdict.victims, *(rank for rank, far in depth.items() if not far)}
    ranks = sorted((r for r in depth if r in shown and r in history.tracks), key=natural)
    folded = _folded(history, graph, verdict, {rank: depth[rank] for rank in ranks})
    nodes = sorted(folded, key=lambda ranks: (ranks[0] not in verdict.suspects, depth[ranks[0]]))
    edges = _edges(history, graph, nodes, paths, _told(verdict, unseen))
    made = tuple(_node(history, graph, verdict, ranks, depth[ranks[0]]) for ranks in nodes)
    differ = len({node.does for node in made}) > 1
    return WaitMap(history.now_s, made, edges) if edges or differ else None


def _told(verdict: Verdict, unseen: Sequence[RankName]) -> Sequence[tuple[RankName, RankName]]:
    """Waits that the verdict knows from before, or from records."""
    return [(waiter, suspect) for waiter in unseen for suspect in verdict.suspects[:_APART]]


def _origins(history: History, graph: WaitGraph, verdict: Verdict) -> Sequence[RankName]:
    """Where waits end: the suspects; without any those that it gives evidence of, or a circle."""
    named = verdict.suspects or [r for r in history.tracks if r in verdict.evidence]
    circles = (rank for circle in graph.circles for rank in circle if rank in verdict.victims)
    return tuple(named or circles)


def _folded(
    history: History, graph: WaitGraph, verdict: Verdict, depth: Mapping[RankName, int]
) -> list[list[RankName]]:
    """The ranks in nodes: as fine as there is room for."""
    apart = {*verdict.suspects[:_APART]}
    does = {rank: _does(history, graph, verdict, rank) for rank in depth}

    def own(rank: RankName) -> Hashable:
        return rank

    def alike(rank: RankName) -> Hashable:
        return depth[rank], rank in verdict.suspects, does[rank]

    def in_group(rank: RankName) -> Hashable:
        return alike(rank), group_of(rank)

    def on_host(rank: RankName) -> Hashable:
        return in_group(rank), history.tracks[rank].identity.host

    def far(rank: RankName) -> Hashable:
        return depth[rank], rank in verdict.suspects

    levels: Sequence[Callable[[RankName], Hashable]] = (own, on_host, in_group, alike, far)
    nodes: list[list[RankName]] = []
    for level in levels[len(depth) > _OWN :]:
        nodes = list(grouped((r if r in apart else (level(r),), r) for r in depth).values())
        if len(nodes) <= _NODES:
            break
    return nodes


def _does(history: History, graph: WaitGraph, verdict: Verdict, rank: RankName) -> str:
    track, standing = history.tracks[rank], graph.standing.get(rank)
    if standing is RankStanding.DEAD:
        return clean(why_it_died(track) or "its process has ended", _CHARS)
    if rank in verdict.suspects and standing in SELF_HELD:
        brief = hangs_briefly([track], graph.standing)
        return clean(brief.removeprefix(f"{ranks_named([rank])} "), _CHARS)
    waits = waits_in(history, (rank,)).strip()
    return clean(waits or what_they_do([track])[0].removeprefix(f"{rank} "), _CHARS)


def _edges(
    history: History,
    graph: WaitGraph,
    nodes: Sequence[Sequence[RankName]],
    paths: Sequence[tuple[RankName, RankName]],
    told: Sequence[tuple[RankName, RankName]],
) -> tuple[WaitEdge, ...]:
    """Between nodes: waits that a witness names, those by lanes and groups, those only `told`."""
    place = {rank: node for node, ranks in enumerate(nodes) for rank in ranks}
    pairs = _named(graph, place)
    for some, by in ((paths, By.ACROSS), (told, TOLD)):
        for waiting, rank in some:
            if waiting in place and rank in place:
                pairs.setdefault((place[waiting], place[rank]), by)
    stood_s = [[history.tracks[rank].stall_s for rank in ranks] for ranks in nodes]
    edges = sorted((pair, str(by)) for pair, by in pairs.items() if pair[0] != pair[1])
    return tuple(
        WaitEdge(w, h, by, *(() if by == TOLD else (min(stood_s[w]), max(stood_s[w]))))
        for (w, h), by in edges[:_EDGES]
    )


def _named(graph: WaitGraph, place: Mapping[RankName, int]) -> dict[tuple[int, int], str]:
    """Waiter and holder, both nodes -> the witness."""
    pairs: dict[tuple[int, int], str] = {}
    for wait in graph.waits:
        holders = dict.fromkeys(place[rank] for rank in wait.holders if rank in place)
        for waiter in dict.fromkeys(place[rank] for rank in wait.waiters if rank in place):
            for holder in holders:
                pairs.setdefault((waiter, holder), wait.by)
    return pairs


def _node(
    history: History, graph: WaitGraph, verdict: Verdict, ranks: Sequence[RankName], depth: int
) -> WaitNode:
    part = CANDIDATE if ranks[0] in verdict.candidates else WAITS
    does = {_does(history, graph, verdict, rank) for rank in ranks}
    groups = sorted({group_of(rank) for rank in ranks}, key=natural)
    hosts = sorted({history.tracks[rank].identity.host for rank in ranks}, key=natural)
    return WaitNode(
        part=CULPRIT if ranks[0] in verdict.culprits else part,
        ranks=tuple(clean(rank, 80) for rank in ranks[:_NAMED]),
        count=len(ranks),
        depth=depth,
        does=does.pop() if len(does) == 1 else "",
        groups=tuple(clean(group, 80) for group in groups[:_NAMED]),
        group_count=len(groups),
        hosts=tuple(clean(host, 80) for host in hosts[:_NAMED]),
        host_count=len(hosts),
    )
