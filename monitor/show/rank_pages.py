"""The pages of one group, one host and one rank: who is there, and what concerns it. Pure.

Words and markup are in templates/crowd.html (groups and hosts), rank.html and ui.html.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from monitor.model.eviction import QuarantineEntry
from monitor.model.incident import Incident
from monitor.model.names import Host, RankName, group_of
from monitor.model.observation import Observation
from monitor.model.quarantine import HostRecord
from monitor.show.pages import Context, Page, made_of
from monitor.show.states import EVICTING, LOOKS, UNKNOWN, worst
from monitor.show.wording import natural

_LATEST: Final = 4
_OPEN: Final = 40
_EVENTS: Final = 60
_MOST: Final = 512
"""Rows of one table."""


def listed_incidents(found: Iterable[Incident]) -> list[Incident]:
    """The open ones, then the latest of the others."""
    every = list(found)
    closed = [one for one in every if not one.open][:_LATEST]
    return [*[one for one in every if one.open][:_OPEN], *closed]


def group_page(context: Context) -> Page:
    """One replica group."""
    name, view = context.place.name, context.view
    ranks = context.fleet.by_group.get(name, ())
    group = next((one for one in view.groups if one.group == name), None)
    incidents = [
        one
        for one in view.incidents
        if name in one.groups or any(group_of(rank) == name for rank in one.verdict.victims)
    ]
    return _page(
        context, "group", ranks, incidents, view.quarantine_groups,
        known=group is not None or bool(incidents),
        state=EVICTING if name in view.evicting else None,
        group=group,
        elsewhere={one.identity.host for one in ranks},
        others=sum(one.group != name and one.in_quorum is not False for one in view.groups),
    )  # fmt: skip


def host_page(context: Context) -> Page:
    """One host."""
    name, view = context.place.name, context.view
    ranks = context.fleet.by_host.get(name, ())
    record = view.hosts.get(Host(name))
    groups = {one.identity.group for one in ranks}
    return _page(
        context, "host", ranks,
        [one for one in view.incidents if name in one.hosts or groups.intersection(one.groups)],
        view.quarantine,
        known=record is not None,
        state=None,
        record=record or HostRecord(Host(name)),
        elsewhere=groups,
    )  # fmt: skip


def _page(
    context: Context,
    kind: str,
    ranks: Sequence[Observation],
    incidents: Sequence[Incident],
    entries: Sequence[QuarantineEntry],
    *,
    known: bool,
    state: str | None,
    elsewhere: Iterable[str],
    **values: Any,
) -> Page:
    """`elsewhere`: the hosts of a group, or the groups on a host."""
    name = context.place.name
    entry = next((one for one in entries if one.name == name), None)
    return made_of(
        context, "crowd.html", f"{kind} {name}",
        found=known or bool(ranks or entry or context.history),
        kind=kind,
        state=state or worst(context.fleet.states[one.rank] for one in ranks),
        entry=entry,
        ranks=ranks[:_MOST],
        rank_count=len(ranks),
        incidents=incidents[:_OPEN],
        history=context.history[:_EVENTS],
        elsewhere=sorted(elsewhere, key=natural),
        **values,
    )  # fmt: skip


_LETTERS: Final = {
    "R": "running", "S": "sleeping", "D": "in the kernel, cannot be interrupted",
    "T": "stopped by a signal", "t": "stopped by a tracer", "Z": "ended, not reaped", "I": "idle",
}  # fmt: skip


def rank_page(context: Context) -> Page:
    """One rank: what it does, how it keeps pace, where it stands in its collectives."""
    name, view = context.place.name, context.view
    seen = view.by_rank.get(RankName(name))
    step = None if seen is None else seen.step
    spent = {} if step is None else {phase: s for phase, s in step.seconds.items() if s > 0}
    incidents = [
        one for one in view.incidents if name in one.culprits or name in one.verdict.victims
    ]
    state = UNKNOWN if seen is None else context.fleet.states[seen.rank]
    return made_of(
        context, "rank.html", f"rank {name}",
        found=seen is not None or bool(incidents),
        state=state,
        meaning=LOOKS[state].meaning,
        seen=seen,
        report=None if seen is None else seen.report,
        letters=_LETTERS,
        phases=sorted(spent.items(), key=lambda one: -one[1]),
        spent_s=sum(spent.values()),
        incidents=incidents[:_OPEN],
    )  # fmt: skip
