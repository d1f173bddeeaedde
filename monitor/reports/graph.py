"""The wait-for graph as SVG: culprits on the left, and behind them everybody who waits.

An arrow from A to B says that A waits for B. Arrows that lead nearer to a root are drawn, and
those that leave a root: they close the circle of a deadlock. The others repeat what is there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from monitor.analysis.finding import Analysis
from monitor.flight_recorder.job import Job
from monitor.reports.markup import drawing, element, escaped, fitted, words
from monitor.reports.standing import Crowd, Role, crowds
from monitor.reports.text import idle, stuck_in
from monitor.reports.wording import group_label, rank_list, rank_word

_MOST = 24
_WIDE, _HIGH = 262.0, 58.0
_GAP_X, _GAP_Y, _EDGE = 84.0, 16.0, 10.0


def graph(job: Job, analysis: Analysis) -> str:
    """The drawing; empty when nobody waits."""
    every = crowds(job, analysis, _MOST)
    edges = _edges(every)
    drawn = _taking_part(every, edges)
    if not any(every[index].waits for index in drawn):
        return ""
    layers = _layers(every, drawn, edges)
    gap = _GAP_X if max(layers.values()) < 3 else _GAP_X / 2
    places = _places(layers, edges, gap)
    shown = [(a, b) for a, b in edges if _leads_home(a, b, layers)]
    bows = any(places[a][0] == places[b][0] for a, b in shown)
    width = max(x for x, _ in places.values()) + _WIDE + _EDGE + (bows and 60)
    height = max(y for _, y in places.values()) + _HIGH + _EDGE
    label = f"wait-for graph: {len(drawn)} crowds of ranks, {len(shown)} arrows"
    arrow = element(
        "marker",
        '<path d="M0,0 L8,4 L0,8 z"/>',
        id="tip",
        viewBox="0 0 8 8",
        refX="7",
        refY="4",
        markerWidth="8",
        markerHeight="8",
        orient="auto",
    )
    return drawing(
        width,
        height,
        label,
        element("defs", arrow),
        *(_line(places[a], places[b]) for a, b in shown),
        *(_box(job, every[index], places[index]) for index in drawn),
    )


def _edges(every: Sequence[Crowd]) -> list[tuple[int, int]]:
    home = {rank: index for index, one in enumerate(every) for rank in one.ranks}
    return [
        (index, to)
        for index, one in enumerate(every)
        for to in sorted({home[rank] for rank in one.waits_for if rank in home} - {index})
    ]


def _taking_part(every: Sequence[Crowd], edges: Iterable[tuple[int, int]]) -> list[int]:
    touched = {end for edge in edges for end in edge}
    accused = (Role.CULPRIT, Role.SUSPECT)
    return [i for i, one in enumerate(every) if i in touched or one.waits or one.role in accused]


def _layers(
    every: Sequence[Crowd], drawn: Sequence[int], edges: Sequence[tuple[int, int]]
) -> dict[int, int]:
    """Steps to the nearest root: one accused, or one that waits for nobody drawn."""
    waiters: dict[int, list[int]] = defaultdict(list)
    for a, b in edges:
        waiters[b].append(a)
    waiting = {a for a, _ in edges}
    roots = [i for i in drawn if every[i].role in (Role.CULPRIT, Role.SUSPECT) or i not in waiting]
    layers: dict[int, int] = {}
    for start in (roots, *([one] for one in drawn)):  # the rest: cycles that nobody is accused of
        front = [one for one in start if one not in layers]
        layers.update(dict.fromkeys(front, 0))
        while front:
            behind = dict.fromkeys(w for one in front for w in waiters[one] if w not in layers)
            layers.update((one, layers[front[0]] + 1) for one in behind)
            front = list(behind)
    return layers


def _leads_home(a: int, b: int, layers: Mapping[int, int]) -> bool:
    return layers[a] > layers[b] or layers[a] == 0


def _places(
    layers: Mapping[int, int], edges: Sequence[tuple[int, int]], gap: float
) -> dict[int, tuple[float, float]]:
    """Left upper corners: a column for each layer, a crowd near those for which it waits."""
    columns: dict[int, list[int]] = defaultdict(list)
    for one in sorted(layers):
        columns[layers[one]].append(one)
    targets: dict[int, list[int]] = defaultdict(list)
    for a, b in edges:
        if layers[a] > layers[b]:
            targets[a].append(b)
    tallest = max(len(column) for column in columns.values())
    places: dict[int, tuple[float, float]] = {}
    for layer in sorted(columns):
        column = columns[layer]
        column.sort(key=lambda one: (_middle(places, targets[one]), one))
        top = _EDGE + (tallest - len(column)) * (_HIGH + _GAP_Y) / 2
        for row, one in enumerate(column):
            places[one] = (_EDGE + layer * (_WIDE + gap), top + row * (_HIGH + _GAP_Y))
    return places


def _middle(places: Mapping[int, tuple[float, float]], of: Sequence[int]) -> float:
    known = [places[one][1] for one in of if one in places]
    return sum(known) / len(known) if known else 0.0


def _line(at: tuple[float, float], to: tuple[float, float]) -> str:
    """From the waiting crowd's box to the one it waits for."""
    (x0, y0), (x1, y1) = at, to
    y0, y1 = y0 + _HIGH / 2, y1 + _HIGH / 2
    if x0 == x1:  # both are roots: round the right side, down and up apart
        down = y1 > y0
        y0, y1 = (y0 + 12, y1 - 12) if down else (y0 - 6, y1 + 6)
        x0 = x1 = x0 + _WIDE
        bow = x0 + (56 if down else 30)
    elif x0 < x1:  # away from a root, below the arrow that comes
        y0, y1 = y0 + 16, y1 + 16
        x0 += _WIDE
        bow = (x0 + x1) / 2
    else:
        x1 += _WIDE
        bow = (x0 + x1) / 2
    path = f"M{x0:.0f},{y0:.0f} C{bow:.0f},{y0:.0f} {bow:.0f},{y1:.0f} {x1:.0f},{y1:.0f}"
    return element("path", d=path, class_="edge", marker_end="url(#tip)")


def _box(job: Job, crowd: Crowd, at: tuple[float, float]) -> str:
    x, y = at
    title = f"{rank_word(job, crowd.ranks)}: {crowd.role}"
    stuck = [stuck_in(job, crowd, wait) for wait in crowd.waits]
    first, second = (fitted(line, _WIDE - 20) for line in _lines(job, crowd))
    who = rank_word(job, crowd.ranks, 5)
    return element(
        "g",
        words("title", "; ".join([title, *stuck])),
        element("rect", x=x, y=y, width=_WIDE, height=_HIGH, rx=8),
        words("text", fitted(who, _WIDE - 80, 14), x=x + 12, y=y + 19, class_="who"),
        words("text", first, x=x + 12, y=y + 35),
        words("text", second, x=x + 12, y=y + 50),
        words("text", crowd.role, x=x + _WIDE - 10, y=y + 18, text_anchor="end", class_="role"),
        class_=f"node {escaped(crowd.role)}",
    )


def _lines(job: Job, crowd: Crowd) -> tuple[str, str]:
    """What a crowd is stuck in, in two short lines."""
    if not crowd.waits:
        return idle(crowd), ""
    wait = crowd.waits[0]
    group = job.groups[wait.group]
    if crowd.groups > 1:
        like = group.desc or f"groups of {len(group.members)}"
        return f"{wait.op} in {crowd.groups} groups", like
    members = rank_list(job, group.members)
    if len(members) > 12:
        members = f"{len(group.members):,} ranks"
    of = f" of {members}" if group.members else ""
    return f"{wait.op} {wait.sequence}{of}", group.desc or group_label(group)
