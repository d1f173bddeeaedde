"""The part of the wait-for graph that a verdict rests on, as a person is shown it. Pure.

The suspects and all that wait for them, directly or not. Of more than a few ranks those that do the
same at the same distance become one node: by group and host, by group, or over all groups.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import product
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
from lightkeeper.monitor.model.names import RankName, group_of
from lightkeeper.monitor.model.units import clean, grouped, natural
from lightkeeper.monitor.model.verdict import RankStanding, Verdict
from lightkeeper.monitor.model.wait_map import TOLD, WaitEdge, WaitMap, WaitNode, WaitPart

_NODES, _EDGES = 10, 48
"""More do not fit a page; folding ends there or at its coarsest."""
_OWN, _APART = 6, 6
"""So many ranks each have a node of their own, and so many suspects of more ranks."""
_DEPTH: Final = 5
"""Longer chains of waits end in one node."""
_NAMED, _CHARS = 3, 90
_Pair = tuple[RankName, RankName]


def wait_map(history: History, graph: WaitGraph, verdict: Verdict) -> WaitMap | None:
    """None: nothing stands still because of it, or nobody is seen to wait for anybody."""
    if not verdict.stops:
        return None
    depth = dict.fromkeys(_origins(history, graph, verdict), 0)
    paths = list(graph.paths_to(depth))
    for waiter, holder in paths:
        depth[waiter] = min(_DEPTH, depth[holder] + 1)
    unseen = [rank for rank in verdict.victims if rank not in depth]  # they ended, or records tell
    depth |= dict.fromkeys(unseen, 1)
    shown = {*verdict.victims, *(rank for rank, far in depth.items() if not far)}
    ranks = sorted((r for r in depth if r in shown and r in history.tracks), key=natural)
    does = {rank: _does(history, graph, verdict, rank) for rank in ranks}
    folded = _folded(history, verdict, depth, does)
    nodes = sorted(folded, key=lambda ranks: (ranks[0] not in verdict.suspects, depth[ranks[0]]))
    recalled = [(waiter, suspect) for waiter in unseen for suspect in verdict.suspects[:_APART]]
    edges = _edges(history, graph, nodes, paths, recalled)
    made = tuple(_node(history, verdict, depth, does, ranks) for ranks in nodes)
    shows = edges or len({node.does for node in made}) > 1
    return WaitMap(history.now_s, made, edges) if shows else None


def _origins(history: History, graph: WaitGraph, verdict: Verdict) -> Sequence[RankName]:
    """Where waits end: the suspects; without any those that it gives evidence of, or a circle."""
    named = verdict.suspects or [r for r in history.tracks if r in verdict.evidence]
    circles = (rank for circle in graph.circles for rank in circle if rank in verdict.victims)
    return tuple(named or circles)


def _folded(
    history: History, verdict: Verdict, depth: Mapping[RankName, int], does: Mapping[RankName, str]
) -> list[list[RankName]]:
    """The ranks in nodes: as fine as there is room for."""
    apart = {*verdict.suspects[:_APART]}
    keys: dict[RankName, tuple[Hashable, ...]] = {}
    for rank, said in does.items():
        host, sick = history.tracks[rank].identity.host, rank in verdict.suspects
        keys[rank] = ((depth[rank], sick), said, group_of(rank), host, rank)
    for level in range(5 if len(does) <= _OWN else 4, 0, -1):
        alike = grouped((r if r in apart else key[:level], r) for r, key in keys.items())
        if level == 1 or len(alike) <= _NODES:
            return list(alike.values())
    return []


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
    history: History, graph: WaitGraph, nodes: Sequence[Sequence[RankName]],
    paths: Sequence[_Pair], recalled: Sequence[_Pair],
) -> tuple[WaitEdge, ...]:  # fmt: skip
    """Between nodes: waits that a witness names, those by lanes and groups, the `recalled`."""
    place = {rank: node for node, ranks in enumerate(nodes) for rank in ranks}
    pairs: dict[tuple[int, int], str] = {}
    for wait in graph.waits:
        holders = {place.get(rank, -1) for rank in wait.holders}
        for pair in product({place.get(rank, -1) for rank in wait.waiters}, holders):
            pairs.setdefault(pair, wait.by)
    for some, by in ((paths, By.ACROSS), (recalled, TOLD)):
        for waiting, rank in some:
            pairs.setdefault((place.get(waiting, -1), place.get(rank, -1)), by)
    stood_s = [[history.tracks[rank].stall_s for rank in ranks] for ranks in nodes]
    edges = sorted((p, str(by)) for p, by in pairs.items() if p[0] != p[1] and min(p) >= 0)
    return tuple(
        WaitEdge(w, h, by, *(() if by == TOLD else (min(stood_s[w]), max(stood_s[w]))))
        for (w, h), by in edges[:_EDGES]
    )


def _node(
    history: History, verdict: Verdict, depth: Mapping[RankName, int],
    does: Mapping[RankName, str], ranks: Sequence[RankName],
) -> WaitNode:  # fmt: skip
    first, said = ranks[0], {does[rank] for rank in ranks}
    part = WaitPart.CANDIDATE if first in verdict.candidates else WaitPart.WAITS
    part = WaitPart.CULPRIT if first in verdict.culprits else part
    groups = {group_of(rank) for rank in ranks}
    hosts = {history.tracks[rank].identity.host for rank in ranks}
    some, some_groups, some_hosts = (
        tuple(clean(name, 80) for name in sorted(names, key=natural)[:_NAMED])
        for names in (ranks, groups, hosts)
    )
    says = said.pop() if len(said) == 1 else ""
    about = some_groups, len(groups), some_hosts, len(hosts)
    return WaitNode(part, some, len(ranks), depth[first], says, *about)
