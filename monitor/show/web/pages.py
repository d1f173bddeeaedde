"""The pages of the whole fleet, and of one group, host or rank. Pure.

The fleet's page says first whether the job trains, who holds it up and what was done. It shows all
ranks: a cell for each replica group or host, or a card where there are few. A cell's ranks are
drawn as runs of equal states, one glyph a rank; sick ranks are links, as many as a page bears. A
cell changes only when its ranks do, so in a tick of a large fleet few cells are drawn again
(templates/fleet.html).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any, Final

from lightkeeper.monitor.decide.headline import SICK, Headline, JobState, headline_of
from lightkeeper.monitor.decide.view import GroupView, View, trouble_of
from lightkeeper.monitor.decide.view_json import effective_to_json, learned_to_json, runs_to_json
from lightkeeper.monitor.model.eviction import QuarantineEntry, QuarantineEvent
from lightkeeper.monitor.model.incident import Incident
from lightkeeper.monitor.model.names import GroupName, Host, RankName, group_of
from lightkeeper.monitor.model.observation import LighthouseAway, LighthouseView, Observation
from lightkeeper.monitor.model.quarantine import HostRecord
from lightkeeper.monitor.model.units import counted, grouped, natural, plain
from lightkeeper.monitor.model.wording import Face, title_of
from lightkeeper.monitor.show.chart_svg import pace_chart, run_chart, tempo_chart
from lightkeeper.monitor.show.templating import Page, macro, render
from lightkeeper.monitor.show.wording import EVICTING, LOOKS, ORDER, UNKNOWN, states_of, worst

# -- what pages are made from ----------------------------------------------------------------------

FLEET: Final = "fleet"
GROUPS: Final = "groups"
HOSTS: Final = "hosts"
RANKS: Final = "ranks"


@dataclass(frozen=True, slots=True)
class PagePlace:
    kind: str
    name: str = ""
    by_host: bool = False
    """True if the fleet's grid is grouped by host."""
    span: str = "1h"
    """How far the fleet's chart looks back, of `RESOLUTIONS`."""


@dataclass(frozen=True)  # no slots: a cached property needs `__dict__`
class Context:
    """One page of a view, and what is derived from that, each computed once."""

    view: View
    place: PagePlace
    guarded: bool = False
    """True if pages of ranks need the token; a link does not carry it."""
    why_not: str | None = None
    """Why nothing can be changed from here; None: it can, with the token."""
    history: tuple[QuarantineEvent, ...] = ()
    """What happened to this page's group or host, newest first."""
    tick_s: float = 1.0

    @cached_property
    def headline(self) -> Headline:
        return headline_of(self.view)

    @cached_property
    def states(self) -> Mapping[RankName, str]:
        late = self.headline.state in (JobState.LATE, JobState.STALLING, JobState.STOPPED)
        return states_of(self.view, late=late)

    @cached_property
    def by_group(self) -> Mapping[str, list[Observation]]:
        """The ranks of each replica group, by number."""
        return self._ranks_by(lambda seen: seen.identity.group)

    @cached_property
    def by_host(self) -> Mapping[str, list[Observation]]:
        """The ranks on each host, by group and number."""
        return self._ranks_by(lambda seen: seen.identity.host)

    def _ranks_by(self, name: Callable[[Observation], str]) -> Mapping[str, list[Observation]]:
        by_name = grouped((name(seen), seen) for seen in self.view.snapshot.observations)
        for ranks in by_name.values():
            ranks.sort(key=lambda seen: (natural(seen.identity.group), seen.identity.group_rank))
        return by_name

    @cached_property
    def faces(self) -> tuple[tuple[Incident, Face], ...]:
        """Open incidents in words, in the order of `View.opened`."""
        return tuple((incident, self.view.face(incident)) for incident in self.view.opened)


SOURCES: Final = ("state", "steps", "flight_recorder", "stacks", "last_words", "network")
"""Pages of the rank itself."""


def made_of(
    context: Context, template: str, page_title: str, *, exists: bool = True, **values: Any
) -> Page:
    """`exists`: whether the thing is known; if not, the page says so."""
    html = render(
        template, context=context, view=context.view, states=context.states,
        title=page_title, every_s=max(_LEAST_S, context.tick_s),
        now_s=context.view.snapshot.now_s, name=context.place.name, headline=context.headline,
        away=isinstance(context.view.snapshot.lighthouse, LighthouseAway),
        exists=exists, title_of=title_of, trouble_of=trouble_of, SOURCES=SOURCES, **values,
    )  # fmt: skip
    return Page(html, 200 if exists else 404)


_LEAST_S: Final = 2.0
"""An open page is asked for again no sooner."""


# -- the page of the whole fleet ------------------------------------------------------------------

CARDS: Final = 48
"""Most ranks that are shown as cards."""
LINKS: Final = 240
"""Most sick ranks with links of their own in the grid."""
CELLS: Final = 2500
"""Most cells of a grid; beyond, the healthy are only counted."""
_GLYPHS: Final = 32
"""Most equal ranks with a glyph each."""
_ATTENTION: Final = 25
"""Most ranks in the table of those that need attention."""


def fleet_page(context: Context) -> Page:
    view, headline = context.view, context.headline
    counts = Counter(context.states.values())
    cells, folded = _cells(context)
    lighthouse = view.snapshot.lighthouse
    sick, blamed = _sick(context)
    others = [(i, face) for i, face in context.faces if i.id != headline.incident]
    listed = grouped((incident.open, incident) for incident in view.incidents)
    return made_of(
        context, "fleet.html", _tab(context),
        quorum=lighthouse if isinstance(lighthouse, LighthouseView) else None,
        groups=len(context.by_group),
        counts=counts,
        faces=others[:_FACES],
        more_faces=max(0, len(others) - _FACES),
        warnings=[text for text in view.warnings if text not in headline.says],
        sick=sick[:_ATTENTION],
        sick_count=len(sick),
        blamed=blamed,
        lead=next((f for i, f in context.faces if i.id == headline.incident), None),
        incidents=[*listed.get(True, ())[:_OPEN], *listed.get(False, ())[:_LATEST]],
        pace=pace_chart(view.trend, view.incidents, view.snapshot.now_s, context.place.span),
        tempo=tempo_chart(view.tempos),
        legend=[(state, counts[state]) for state in reversed(LOOKS)
                if counts[state] or state == "healthy"],
        cards=len(context.states) <= CARDS,
        cells=cells,
        folded=folded,
        policy=_policy(view),
        severities=_SEVERITIES,
    )  # fmt: skip


def _tab(context: Context) -> str:
    """The headline without what changes every second."""
    headline = context.headline
    lead = next((i for i, _ in context.faces if i.id == headline.incident), None)
    if lead is not None:
        return f"{headline.label} {title_of(lead)}"
    ticks = headline.state in (JobState.LATE, JobState.PAUSING, JobState.STALLING)
    return headline.label.rstrip(":") if ticks else str(headline)


_FACES: Final = 5
"""Open incidents shown in full beside the headline's."""


# Who needs attention: the sick ranks, worst first, and why. By their own health: a sick rank that
# is being evicted stays here until it is gone.


def _sick(context: Context) -> tuple[list[Observation], dict[RankName, Face]]:
    """Sick ranks, and the incident of each rank that an open one blames."""
    view, healths = context.view, context.view.result.rank_health
    blamed = {rank: face for i, face in reversed(context.faces) for rank in i.culprits}

    def age_s(seen: Observation) -> float:
        dead_s = None if seen.report is None else seen.report.process.dead_age_s
        return dead_s if dead_s is not None else 0.0 if seen.step is None else seen.step.phase_age_s

    sick = [seen for seen in view.snapshot.observations if healths.get(seen.rank) in SICK]
    sick.sort(
        key=lambda seen: (
            seen.rank not in blamed, ORDER[healths[seen.rank]], -age_s(seen), seen.rank
        )
    )  # fmt: skip
    return sick, blamed


# The grid.


@dataclass(frozen=True, slots=True)
class _Crowd:
    name: str
    ranks: Sequence[Observation]
    group: GroupView | None
    states: tuple[str, ...]
    """One for each rank."""
    shown: str
    """The state of the whole."""
    held_out: bool
    """True if it is in quarantine."""

    @property
    def flags(self) -> list[str]:
        away = self.group is not None and self.group.in_quorum is False
        return ["not in the quorum"] * away + ["quarantined"] * self.held_out


def _cells(context: Context) -> tuple[list[str], int]:
    """Cells or cards, in the natural order of their names; and how many are left out."""
    every = shown = list(_crowds(context))
    if len(every) > CELLS:  # those with more to show than health, worst first
        odd = [crowd for crowd in every if set(crowd.states) != {"healthy"} or crowd.flags]
        shown = sorted(odd, key=lambda crowd: (ORDER[crowd.shown], natural(crowd.name)))[:CELLS]
    crowds = sorted(shown, key=lambda crowd: natural(crowd.name))
    states = context.states
    if len(states) <= CARDS:
        return [_card(context, crowd) for crowd in crowds], 0
    sick = [rank for rank, state in states.items() if state in SICK]
    sick.sort(key=lambda rank: (ORDER[states[rank]], rank))
    linked = frozenset(sick[:LINKS])
    return [_cell(crowd, linked) for crowd in crowds], len(every) - len(crowds)


def _crowds(context: Context) -> Iterator[_Crowd]:
    view, states, by_host = context.view, context.states, context.place.by_host
    entries = view.quarantine if by_host else view.quarantine_groups
    held_out = {entry.name for entry in entries}
    groups = {} if by_host else {group.group: group for group in view.groups}
    ranks = context.by_host if by_host else context.by_group
    for name in ranks if by_host else groups:
        members = ranks.get(name, ())
        has = tuple(states[seen.rank] for seen in members)
        group = groups.get(GroupName(name))
        evicting = group is not None and group.group in view.evicting
        shown = EVICTING if evicting else worst(has)
        yield _Crowd(name, members, group, has, shown, name in held_out)


def _cell(crowd: _Crowd, linked: frozenset[str]) -> str:
    links = tuple(seen.rank if seen.rank in linked else "" for seen in crowd.ranks)
    kind = HOSTS if crowd.group is None else GROUPS
    return _drawn(kind, crowd.name, crowd.states, links, crowd.shown, *crowd.flags)


@lru_cache(maxsize=1 << 15)
def _drawn(
    kind: str, name: str, states: Sequence[str], links: Sequence[str], shown: str, *flags: str
) -> str:
    """Cached: most cells do not change from one tick to the next."""
    counts = Counter(states)
    parts = [f"{counts[state]} {state}" for state in reversed(LOOKS) if counts[state]]
    summary = f"{counted(len(states), 'rank')}: {', '.join(parts)}" if parts else shown
    runs = []  # state, rank and glyphs: a sick rank with a link, or a run of equal ranks
    for (state, rank), run in groupby(zip(states, links, strict=True)):
        glyph, count = LOOKS[state].glyph, 1 if rank else sum(1 for _ in run)
        many = f"{glyph}\N{MULTIPLICATION SIGN}{count:,}"
        runs.append((state, rank, glyph * count if count <= _GLYPHS else many))
    return str(macro("cell")(
        kind, name, label=", ".join((f"{name}, {summary}", *flags)), shown=shown,
        has=" ".join(sorted(counts or {shown})), flags=flags, runs=runs,
    ))  # fmt: skip


def _card(context: Context, crowd: _Crowd) -> str:
    group = crowd.group
    others = {seen.identity.host if group else seen.identity.group for seen in crowd.ranks}
    return str(macro("card")(
        HOSTS if group is None else GROUPS,
        crowd,
        others=sorted(others, key=natural),
        has=" ".join(sorted(set(crowd.states) or {crowd.shown})),
        states=context.states,
        tempos=context.view.tempos,
        trouble_of=trouble_of,
        guarded=context.guarded,
    ))  # fmt: skip


# The policy in force, in one line and, unfolded, in full.


_SEVERITIES: Final = ("info", "warning", "critical")


def _policy(view: View) -> dict[str, Any] | None:
    """As `GET /v1/policy` shows it, and each action with its kinds of fault; None: not known."""
    if view.rules is None:
        return None
    policy = effective_to_json(view.rules)
    done = grouped(
        (" / ".join(dict.fromkeys(plain(row[level]) for level in _SEVERITIES)), plain(kind))
        for kind, row in policy["actions"].items()
    )
    learned = learned_to_json(view.rules.config, view.result.learned)
    return {**policy, "learned": learned, "done": done}


# -- The pages of one group, one host and one rank: who is there, and what concerns it. Pure ------
# Words and markup are in templates/crowd.html (groups and hosts), rank.html and ui.html.

_LATEST: Final = 4
_OPEN: Final = 40
_EVENTS: Final = 60
_MOST: Final = 512
"""Rows of a table."""


def group_page(context: Context) -> Page:
    name, view = context.place.name, context.view
    ranks = context.by_group.get(name, ())
    group = next((group for group in view.groups if group.group == name), None)
    incidents = [
        incident
        for incident in view.incidents
        if name in incident.groups
        or any(group_of(rank) == name for rank in incident.verdict.victims)
    ]
    return _crowd_page(
        context, "group", ranks, incidents, view.quarantine_groups,
        remembered=group is not None or bool(incidents),
        state=EVICTING if name in view.evicting else None,
        group=group,
        elsewhere={seen.identity.host for seen in ranks},
        others=sum(group.group != name and group.in_quorum is not False for group in view.groups),
    )  # fmt: skip


def host_page(context: Context) -> Page:
    name, view = context.place.name, context.view
    ranks = context.by_host.get(name, ())
    record = view.hosts.get(Host(name))
    groups = {seen.identity.group for seen in ranks}
    return _crowd_page(
        context, "host", ranks,
        [
            incident
            for incident in view.incidents
            if name in incident.hosts or groups.intersection(incident.groups)
        ],
        view.quarantine,
        remembered=record is not None,
        state=None,
        record=record or HostRecord(Host(name)),
        machine=view.snapshot.machines.get(Host(name), ()),
        elsewhere=groups,
    )  # fmt: skip


def _crowd_page(
    context: Context,
    kind: str,
    ranks: Sequence[Observation],
    incidents: Sequence[Incident],
    entries: Sequence[QuarantineEntry],
    *,
    remembered: bool,
    state: str | None,
    elsewhere: Iterable[str],
    **values: Any,
) -> Page:
    """`elsewhere`: the hosts of a group, or the groups on a host."""
    name = context.place.name
    entry = next((entry for entry in entries if entry.name == name), None)
    return made_of(
        context, "crowd.html", f"{kind} {name}",
        exists=remembered or bool(ranks or entry or context.history),
        kind=kind,
        state=state or worst(context.states[seen.rank] for seen in ranks),
        entry=entry,
        ranks=ranks[:_MOST],
        rank_count=len(ranks),
        incidents=incidents[:_OPEN],
        history=context.history[:_EVENTS],
        elsewhere=sorted(elsewhere, key=natural),
        **values,
    )  # fmt: skip


def rank_page(context: Context) -> Page:
    """One rank: what it does, its pace, and where it is in its collectives."""
    name, view = context.place.name, context.view
    seen = view.snapshot.by_rank.get(RankName(name))
    step = None if seen is None else seen.step
    spent = {} if step is None else {phase: s for phase, s in step.seconds.items() if s > 0}
    if step is not None and spent:  # the present one counts only once it is over
        spent[step.phase] = spent.get(step.phase, 0.0) + step.phase_age_s
    incidents = [
        incident
        for incident in view.incidents
        if name in incident.suspects or name in incident.verdict.victims
    ]
    state = UNKNOWN if seen is None else context.states[seen.rank]
    return made_of(
        context, "rank.html", f"rank {name}",
        exists=seen is not None or bool(incidents),
        state=state,
        meaning=LOOKS[state].meaning,
        seen=seen,
        report=None if seen is None else seen.report,
        phases=sorted(spent.items(), key=lambda phase: -phase[1]),
        spent_s=sum(spent.values()),
        odd=[edge.sentence() for edge in view.result.links.of(RankName(name))],
        incidents=incidents[:_OPEN],
    )  # fmt: skip


def runs_page(view: View) -> str:
    """The runs of a job: when each began, how far it came, how fast it was, what went wrong."""
    paces = [run_chart(run.trend) for run in view.runs]
    rows = zip(runs_to_json(view), paces, strict=True)
    return render("runs.html", rows=list(rows), now_s=view.snapshot.now_s, view=view)


_OF_KIND: Final = {FLEET: fleet_page, GROUPS: group_page, HOSTS: host_page, RANKS: rank_page}


def make(context: Context) -> Page:
    return _OF_KIND[context.place.kind](context)
