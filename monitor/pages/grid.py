"""All ranks at one glance: a cell for each replica group or host, or a card where there are few.

A cell's ranks are runs of equal states, one glyph a rank; sick ranks are links of their own, as
many as a page bears. Nothing in a cell changes while its ranks stay as they are. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Final

from monitor.pages.context import Context
from monitor.pages.ranks import line
from monitor.pages.states import EVICTING, LOOKS, ORDER, SICK, UNKNOWN, chip, worst
from monitor.pages.table import nothing, section
from monitor.pages.tree import Node, el
from monitor.pages.wording import NONE, natural, path_of, span, whole
from monitor.reports.wording import counted
from monitor.snapshot import Observation
from monitor.view import GroupView, groups_of

CARDS: Final = 48
"""Most ranks that are shown one by one."""
LINKS: Final = 240
"""Most sick ranks with links of their own."""
_GLYPHS: Final = 32
"""Most equal ranks that are drawn one by one."""


@dataclass(frozen=True, slots=True)
class _Crowd:
    """A replica group, or a host."""

    name: str
    ranks: Sequence[Observation]
    group: GroupView | None = None


def items(context: Context) -> dict[str, Node]:
    """Every cell or card, by the name of what it shows, in natural order."""
    by_host = context.place.by_host
    crowds = sorted(
        _by_host(context) if by_host else _by_group(context), key=lambda one: natural(one.name)
    )
    if len(context.states) <= CARDS:
        return {one.name: _card(context, one) for one in crowds}
    linked = _linked(context)
    return {one.name: _cell(context, one, linked) for one in crowds}


def grid(context: Context, legend: Node) -> Node:
    """The section around the items, which are put into it where the page is written."""
    by_host = context.place.by_host
    small = len(context.states) <= CARDS
    switch = el(
        "p",
        "Grouped by ",
        _choice("replica group", "/", here=not by_host), " or ",
        _choice("host", "/?by=host", here=by_host), ".",
        class_="switch",
    )  # fmt: skip
    finding = el("div", id="filter", class_="script", data_own=True)
    return section(
        "fleet",
        "Hosts" if by_host else "Replica groups",
        el("div", legend, finding, switch, class_="tools"),
        None if context.states else nothing(
            "No rank is left: what ran here has ended." if context.view.departures else
            "No rank has registered yet. Start ranks with LIGHTKEEPER_MONITOR set to this "
            "monitor's address."
        ),
        el("ul", id="grid", class_="cards" if small else "cells", data_items=True),
    )  # fmt: skip


def _choice(name: str, path: str, *, here: bool) -> Node:
    return el("a", name, href=path, aria_current="true" if here else None)


def _by_group(context: Context) -> Iterator[_Crowd]:
    ranks: dict[str, list[Observation]] = {}
    for seen in context.view.snapshot.observations:
        ranks.setdefault(seen.identity.group, []).append(seen)
    for group in groups_of(context.view):
        found = sorted(ranks.get(group.group, ()), key=lambda one: one.identity.group_rank)
        yield _Crowd(group.group, found, group)


def _by_host(context: Context) -> Iterator[_Crowd]:
    ranks: dict[str, list[Observation]] = {}
    for seen in context.view.snapshot.observations:
        ranks.setdefault(seen.identity.host, []).append(seen)
    for host, found in ranks.items():
        found.sort(key=lambda one: (natural(one.identity.group), one.identity.group_rank))
        yield _Crowd(host, found)


def _linked(context: Context) -> frozenset[str]:
    """The sick ranks that get links, worst first."""
    sick = [rank for rank, state in context.states.items() if state in SICK]
    sick.sort(key=lambda rank: (ORDER[context.states[rank]], rank))
    return frozenset(sick[:LINKS])


def _cell(context: Context, crowd: _Crowd, linked: frozenset[str]) -> Node:
    states = tuple(context.states[one.rank] for one in crowd.ranks)
    links = tuple(one.rank if one.rank in linked else "" for one in crowd.ranks) if linked else ()
    path = path_of("hosts" if crowd.group is None else "groups", crowd.name)
    marks = (_shown(context, crowd, states), *_flags(context, crowd))
    return _drawn(crowd.name, path, states, links, marks)


@lru_cache(maxsize=4096)
def _drawn(
    name: str, path: str, states: Sequence[str], links: Sequence[str], marks: Sequence[str]
) -> Node:
    """By far the most cells are in one tick what they were in the last: they are drawn once."""
    shown, *flags = marks
    label = f"{name}, {_told(states) or shown}" + "".join(f", {flag}" for flag in flags)
    return el(
        "li",
        el("a", name, href=path, aria_label=label, class_="who"),
        *_runs(states, links or ("",) * len(states)),
        *(el("span", flag, class_="flag", aria_hidden="true") for flag in flags),
        class_=f"s-{shown}",
        data_key=name,
        data_has=" ".join(sorted(set(states) or {shown})),
    )


def _shown(context: Context, crowd: _Crowd, states: Sequence[str]) -> str:
    evicting = crowd.group is not None and crowd.name in context.view.evicting
    return EVICTING if evicting else worst(states) if states else UNKNOWN


def _told(states: Sequence[str]) -> str:
    """`8 ranks: 7 healthy, 1 stalled`."""
    counts = Counter(states)
    parts = [f"{counts[state]} {state}" for state in reversed(LOOKS) if counts[state]]
    return f"{counted(len(states), 'rank')}: {', '.join(parts)}" if parts else ""


def _flags(context: Context, crowd: _Crowd) -> list[str]:
    found = []
    if crowd.group is not None and crowd.group.in_quorum is False:
        found.append("not in the quorum")
    if _held_out(context, crowd):
        found.append("quarantined")
    return found


def _held_out(context: Context, crowd: _Crowd) -> bool:
    if crowd.group is None:
        return any(entry.name == crowd.name for entry in context.view.quarantine)
    return any(entry.name == crowd.name for entry in context.view.quarantine_groups)


def _runs(states: Sequence[str], links: Sequence[str]) -> Iterator[Node]:
    for (state, rank), run in groupby(zip(states, links, strict=True)):
        glyph = LOOKS[state].glyph
        if rank:
            yield el("a", glyph, href=path_of("ranks", rank), class_=f"g s-{state}",
                     aria_label=f"{rank} {state}")  # fmt: skip
            continue
        count = sum(1 for _ in run)
        text = glyph * count if count <= _GLYPHS else f"{glyph}\N{MULTIPLICATION SIGN}{count:,}"
        yield el("span", text, class_=f"g s-{state}", aria_hidden="true")


def _card(context: Context, crowd: _Crowd) -> Node:
    states = [context.states[one.rank] for one in crowd.ranks]
    shown = _shown(context, crowd, states)
    kind = "hosts" if crowd.group is None else "groups"
    return el(
        "li",
        el("h3", el("a", crowd.name, href=path_of(kind, crowd.name), class_="who"), chip(shown)),
        el("p", *_whereabouts(context, crowd), class_="meta"),
        _numbers(crowd.group) if crowd.group is not None else None,
        *(line(context, one) for one in crowd.ranks),
        class_=f"card s-{shown}",
        data_key=crowd.name,
        data_has=" ".join(sorted(set(states) or {shown})),
    )


def _whereabouts(context: Context, crowd: _Crowd) -> Iterator[Node | str]:
    """Of a group its hosts and its heartbeat, of a host its groups."""
    kind = "hosts" if crowd.group is not None else "groups"
    names: list[str]
    if crowd.group is not None:
        names = sorted({one.identity.host for one in crowd.ranks}, key=natural)
        yield "on " if names else "no rank has registered"
    else:
        names = sorted({one.identity.group for one in crowd.ranks}, key=natural)
        yield "runs "
    for number, name in enumerate(names[:4]):
        yield ", " if number else ""
        yield el("a", name, href=path_of(kind, name))
    if len(names) > 4:
        yield f" and {len(names) - 4} more"
    if crowd.group is not None and crowd.group.launched_as is not None:
        yield f" · its launcher calls it {crowd.group.launched_as}"
    if crowd.group is not None and crowd.group.heartbeat_age_s is not None:
        yield " "
        yield f"· heartbeat {span(crowd.group.heartbeat_age_s)} ago"
    if _held_out(context, crowd):
        yield " "
        yield "· quarantined"


def _numbers(group: GroupView) -> Node:
    quorum = NONE if group.in_quorum is None else "yes" if group.in_quorum else "no"
    told = (("step", whole(group.step)), ("commits", whole(group.commits)), ("in quorum", quorum))
    inside = (el("div", el("dt", name), el("dd", value), data_key=name) for name, value in told)
    return el("dl", *inside, class_="numbers")
