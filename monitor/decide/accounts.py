"""The account of one incident: who decided, how long each part took, what it cost. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from operator import itemgetter
from typing import Any, Final

from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import DecisionRow, Eviction, Guard
from lightkeeper.monitor.model.incident import Incident, State
from lightkeeper.monitor.model.names import GroupName, Host
from lightkeeper.monitor.model.observation import Snapshot
from lightkeeper.monitor.model.plain import readable, to_plain
from lightkeeper.monitor.model.verdict import Kind
from lightkeeper.monitor.model.wording import counted

# -- case --------------------------------------------------------------------------------------

# What is noted while an incident happens, because it cannot be found out later.

Hosts = Mapping[GroupName, tuple[Host, ...]]


@readable
@dataclass(frozen=True, slots=True)
class FleetFacts:
    """The fleet when the incident began to fire."""

    own: int
    """Ranks of the accused groups, dead ones too."""
    others: int
    """Live ranks of the other groups: they wait, or would."""
    hosts: Hosts = field(default_factory=dict)
    """Where the accused groups ran."""
    back_on: Hosts = field(default_factory=dict)
    """Where they ran when they committed again."""


def facts_of(snapshot: Snapshot, groups: Collection[GroupName]) -> FleetFacts:
    """The fleet in this tick; `groups` are accused or evicted."""
    own = others = 0
    for seen in snapshot.observations:
        if seen.identity.group in groups:
            own += 1
        elif seen.report is not None and seen.report.process.alive:
            others += 1
    return FleetFacts(own, others, hosts_of(snapshot, groups))


def hosts_of(snapshot: Snapshot, groups: Collection[GroupName]) -> Hosts:
    """Where these groups run."""
    by_group: dict[GroupName, set[Host]] = {}
    for seen in snapshot.observations:
        if seen.identity.group in groups:
            by_group.setdefault(seen.identity.group, set()).add(seen.identity.host)
    return {group: tuple(sorted(hosts)) for group, hosts in sorted(by_group.items())}


@dataclass(frozen=True, slots=True)
class AuditedIncident:
    """One incident with all that its account needs."""

    incident: Incident
    now_s: float
    decisions: Sequence[DecisionRow] = ()
    """Oldest first."""
    evictions: Sequence[Eviction] = ()
    """Oldest first."""
    facts: FleetFacts | None = None
    config: KeeperConfig = field(default_factory=KeeperConfig)

    @property
    def began_s(self) -> float:
        """When the fault began, as nearly as known."""
        first_s, since_s = self.incident.milestones.first_seen_s, self.incident.verdict.since_s
        return since_s if 0 < since_s <= first_s else first_s

    @property
    def evicted(self) -> bool:
        """Whether an eviction was asked for, whatever its outcome."""
        return self.incident.milestones.evict_asked_s is not None or bool(self.evictions)

    @property
    def asked_s(self) -> float | None:
        """When the last eviction was asked for."""
        asked_s = self.incident.milestones.evict_asked_s
        return self.evictions[-1].asked_s if asked_s is None and self.evictions else asked_s

    @property
    def followed(self) -> bool:
        """Whether its aftermath is still watched."""
        since_s = self.asked_s or self.incident.milestones.firing_s
        if self.incident.open:
            return True
        if self.incident.run_over_s is not None:
            return False
        return since_s is not None and self.now_s - since_s <= self.config.follow_s


# -- account -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loss:
    """Time that ranks lost to a fault, as far as it was measured."""

    ranks: int
    seconds: float | None
    """Of each of them; None: not known."""
    over: bool = True
    """Whether this is all; otherwise it is at least this."""

    @property
    def rank_seconds(self) -> float | None:
        """To a tenth; more would be false precision."""
        return None if self.seconds is None else round(self.ranks * self.seconds, 1)

    def __str__(self) -> str:
        """`183`, `at least 12`, `cannot tell`."""
        if self.rank_seconds is None:
            return "cannot tell"
        return f"{'' if self.over else 'at least '}{self.rank_seconds:.0f}"

    @property
    def words(self) -> str:
        if self.seconds is None or not self.ranks:
            return ""
        each = " each" if self.ranks > 1 else ""
        return f"{counted(self.ranks, 'rank')}, {self.seconds:.1f} s{each}"


_NOTHING: Final = Loss(0, 0.0)
_NOT_KNOWN: Final = Loss(0, None)
_UNMEASURED: Final = (Kind.BY_HAND, Kind.REPLICA_LAG, Kind.STATE_CORRUPT)
"""What these cost is not measured: nobody stands still for them, or it is no fault's."""


def lost_by_others(case: AuditedIncident) -> Loss:
    """What the other groups waited: from the fault until they committed again."""
    facts, incident, verdict = case.facts, case.incident, case.incident.verdict
    if incident.milestones.firing_s is None:
        return _NOTHING
    if facts is None or verdict.kind in _UNMEASURED:
        return _NOT_KNOWN
    if verdict.kind is Kind.STRAGGLER:
        return _lost(facts.others, verdict.lost_s)
    if not verdict.stops:
        return _NOTHING
    again_s = incident.milestones.survivor_commit_s
    end_s = again_s or (_until(case) if case.followed else incident.last_seen_s)
    return _lost(facts.others, end_s - case.began_s, over=again_s is not None)


def lost_by_own(case: AuditedIncident) -> Loss:
    """What the accused groups stood: from the fault until they committed again."""
    facts, incident, stops = case.facts, case.incident, case.incident.verdict.stops
    if incident.milestones.firing_s is None or not incident.groups:
        return _NOTHING
    if facts is None or incident.kind is Kind.BY_HAND:
        return _NOT_KNOWN
    if not stops and not case.evicted:
        return _NOTHING
    began_s = case.began_s if stops or case.asked_s is None else case.asked_s
    back_s = incident.milestones.rejoined_s
    away = case.evicted or incident.kind is Kind.DEAD
    end_s = back_s or (_until(case) if away else incident.last_seen_s)
    return _lost(facts.own, end_s - began_s, over=back_s is not None)


def _lost(ranks: int, seconds: float, *, over: bool = True) -> Loss:
    damaged = not math.isfinite(seconds) or not math.isfinite(ranks * seconds)
    return _NOT_KNOWN if damaged else Loss(ranks, max(0.0, seconds), over)


def _until(case: AuditedIncident) -> float:
    """Until when it was watched."""
    since_s = case.asked_s or case.incident.milestones.firing_s or case.began_s
    over_s = case.incident.run_over_s
    end_s = case.now_s if over_s is None else over_s
    return end_s if case.incident.open else min(end_s, since_s + case.config.follow_s)


# How long each part of an incident took, and how long guards held.
#
# The parts follow one another and add up, from the start of the fault to the last thing seen of it.
# Up to the request, causes precede effects; what follows comes in any order (when a straggler is
# evicted, the others commit at once and its processes go later). A clock that jumped back makes a
# part 0 s long, never negative, and `jumped` marks it.


@dataclass(frozen=True, slots=True)
class Interval:
    """One part, named after the moment that ends it."""

    until: str
    """`seen`, `firing`, `decided`, `asked`, `gone`, `left`, `survivors`, `rejoined`."""
    start_s: float
    end_s: float
    jumped: bool = False
    """Whether its end was recorded before its cause."""

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class HoldSpan:
    """A guard that held an eviction back."""

    guard: str
    start_s: float
    end_s: float | None
    """None while it holds."""
    reason: str
    """The latest."""
    release: str | None = None
    """What would release it."""
    ended_by: str | None = None
    """What ended it; None while it holds."""

    @property
    def seconds(self) -> float | None:
        return None if self.end_s is None else max(0.0, self.end_s - self.start_s)


def intervals(case: AuditedIncident) -> tuple[Interval, ...]:
    """All finished parts, in order; they add up."""
    at_s, parts = case.began_s, []
    for name, moment_s in _moments(case):
        end_s = max(at_s, moment_s)
        parts.append(Interval(name, at_s, end_s, jumped=moment_s < at_s))
        at_s = end_s
    return tuple(parts)


def _moments(case: AuditedIncident) -> Iterator[tuple[str, float]]:
    """Causes in causal order, then effects by time."""
    marks, last = case.incident.milestones, case.evictions[-1] if case.evictions else None
    causes = {
        "seen": marks.first_seen_s,
        "firing": marks.firing_s,
        "decided": decided_s(case),
        "asked": case.asked_s,
    }
    if case.incident.kind is Kind.BY_HAND:
        del causes["seen"], causes["firing"]
    left_s = marks.left_quorum_s
    if left_s is None and last is not None:
        left_s = last.left_quorum_s
    effects = {
        "gone": None if last is None else last.gone_s,
        "left": left_s,
        "survivors": marks.survivor_commit_s,
        "rejoined": marks.rejoined_s,
    }
    yield from _happened(causes)
    yield from sorted(_happened(effects), key=itemgetter(1))


def _happened(moments: Mapping[str, float | None]) -> list[tuple[str, float]]:
    return [(name, at_s) for name, at_s in moments.items() if at_s is not None]


def decided_s(case: AuditedIncident) -> float | None:
    """When the last eviction was decided."""
    rows = [row.at_s for row in case.decisions if row.action == "evict"]
    return rows[-1] if rows else None


def _ended_by(case: AuditedIncident, after: DecisionRow | None) -> str | None:
    if after is None:
        return None if case.incident.open else f"it was over: {case.incident.resolution or '?'}"
    return "it was decided to evict" if after.guard is None else f"{after.guard} held instead"


def hold_spans(case: AuditedIncident) -> tuple[HoldSpan, ...]:
    """Guards that held, oldest first; a guard that only changed its words is one span."""
    spans: list[HoldSpan] = []
    rows = sorted(case.decisions, key=lambda row: row.at_s)
    for row, after in zip_longest(rows, rows[1:]):
        end_s = case.incident.ended_s if after is None else after.at_s
        if row.action == "evict" or row.guard in (None, Guard.WATCH_ONLY):
            continue
        start_s = row.at_s
        if spans and spans[-1].guard == row.guard and spans[-1].end_s == row.at_s:
            start_s = spans.pop().start_s
        release = row.body.get("release")
        release = None if release is None else str(release)
        ended_by = _ended_by(case, after)
        spans.append(HoldSpan(row.guard, start_s, end_s, row.reason, release, ended_by))
    return tuple(spans)


@dataclass(frozen=True, slots=True)
class IncidentAccount:
    decided_by: str
    """`lightkeeper`, a person, or `nobody`."""
    why: str
    """The rule, or the guard that held."""
    outcome: str
    """One of `evicted`, `evicting`, `failed`, `observed` (would have been evicted), `held`,
    `watched` (there is no Lighthouse), `passed`, `open`."""
    intervals: tuple[Interval, ...]
    holds: tuple[HoldSpan, ...]
    lost_by_others: Loss
    lost_by_own: Loss
    ran_on: tuple[Host, ...]
    back_on: tuple[Host, ...]
    final: bool
    """Whether it can no longer change."""

    @property
    def evicted(self) -> bool:
        """Whether an eviction was asked for."""
        return self.outcome in ("evicted", "evicting", "failed")

    @property
    def lost(self) -> float | None:
        """Rank-seconds, at least; None: not known."""
        others, own = self.lost_by_others.rank_seconds, self.lost_by_own.rank_seconds
        return None if others is None or own is None else others + own


def account(case: AuditedIncident) -> IncidentAccount:
    """The account of this incident; never raises, whatever the store held."""
    who, why = _decided(case)
    facts, marks = case.facts, case.incident.milestones
    all_back = marks.survivor_commit_s is not None and marks.rejoined_s is not None
    return IncidentAccount(
        decided_by=who,
        why=why,
        outcome=_outcome(case),
        intervals=intervals(case),
        holds=hold_spans(case),
        lost_by_others=lost_by_others(case),
        lost_by_own=lost_by_own(case),
        ran_on=() if facts is None else all_hosts(facts.hosts),
        back_on=() if facts is None else all_hosts(facts.back_on),
        final=not case.incident.open and (all_back or not case.followed),
    )


def _outcome(case: AuditedIncident) -> str:
    incident = case.incident
    if case.evicted:
        if case.evictions and case.evictions[-1].failed is not None:
            return "failed"
        return "evicting" if incident.open else "evicted"
    if case.decisions and case.decisions[-1].action == "would_evict":
        return "observed"
    if guards := {row.guard for row in case.decisions if row.action == "hold"}:
        return "watched" if guards == {Guard.WATCH_ONLY} else "held"
    return "open" if incident.open else "passed"


def _decided(case: AuditedIncident) -> tuple[str, str]:
    evicts = [row for row in case.decisions if row.action == "evict"]
    incident = case.incident
    if evicts or case.evicted:
        confidence = incident.verdict.confidence
        rule = f"{incident.kind} is evicted when it fires, {confidence}, and no guard holds"
        author = evicts[-1].author if evicts else "lightkeeper"
        return (author, rule) if author == "lightkeeper" else (author, evicts[-1].reason)
    holds = [row for row in case.decisions if row.action != "evict"]
    if holds:
        guard, reason = holds[-1].guard, holds[-1].reason
        return "nobody", reason if guard == Guard.WATCH_ONLY else f"held by {guard}: {reason}"
    return "nobody", "nothing was to be decided"


def all_hosts(hosts: Hosts) -> tuple[Host, ...]:
    """Hosts of all groups, sorted, each once."""
    return tuple(sorted({*chain.from_iterable(hosts.values())}))


def account_to_json(shown: IncidentAccount) -> dict[str, Any]:
    """In plain JSON types; what is not known is null."""
    plain = to_plain(shown)
    for name in ("intervals", "holds"):
        spans: Sequence[Interval | HoldSpan] = getattr(shown, name)
        for span, body in zip(spans, plain[name], strict=True):
            body["seconds"] = None if span.seconds is None else round(span.seconds, 3)
    for name in ("lost_by_others", "lost_by_own"):
        loss: Loss = getattr(shown, name)
        plain[name] |= {"rank_seconds": loss.rank_seconds, "text": str(loss), "words": loss.words}
    return {**plain, "lost": shown.lost}


@dataclass(frozen=True, slots=True)
class Totals:
    """What some incidents came to."""

    incidents: int
    """Those that fired."""
    evictions: int
    lost: float
    """Rank-seconds, at least."""
    unknown: int
    """How many have a cost that is not known: they are counted, not taken for zero."""


def totals_of(cases: Iterable[AuditedIncident]) -> Totals:
    accounts = [account(case) for case in cases if case.incident.milestones.firing_s is not None]
    lost = [audited.lost for audited in accounts if audited.lost is not None]
    evictions = sum(audited.evicted for audited in accounts)
    return Totals(len(accounts), evictions, round(sum(lost), 1), len(accounts) - len(lost))


# -- choose ------------------------------------------------------------------------------------

_SPAN: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhdw]?)")
OPEN: Final = "open"
_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


class ChoiceError(ValueError):
    """What was asked for cannot be looked up; one line for a person."""


class NoSuchIncidentError(ChoiceError):
    """No incident id begins with this."""


def span_s(text: str) -> float:
    """Seconds of `90s`, `15m`, `12h`, `7d`, `2w`; a plain number is seconds.

    Raises:
        ChoiceError: it is none of these.
    """
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise ChoiceError(f"since is {text!r}, expected a span such as 90s, 15m, 12h, 7d or 2w")
    return float(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which incidents are asked for; None: all."""

    since_s: float | None = None
    """Unix time: incidents that were still open then, or began later."""
    kind: Kind | None = None
    group: str | None = None
    state: str | None = None
    """A `State`, or `open`: all but resolved."""
    run: str | None = None
    """That they began in."""

    @classmethod
    def of(
        cls,
        since: str | None,
        kind: str | None,
        group: str | None,
        now_s: float,
        *,
        state: str | None = None,
        run: str | None = None,
    ) -> Choice:
        """From what a person typed.

        Raises:
            ChoiceError: one of them is not valid.
        """
        since_s = None if not since else now_s - span_s(since)
        if kind and kind not in list(Kind):
            raise ChoiceError(f"kind is {kind[:60]!r}, expected one of {', '.join(Kind)}")
        if state and state not in (OPEN, *State):
            states = ", ".join((OPEN, *State))
            raise ChoiceError(f"state is {state[:60]!r}, expected one of {states}")
        kinds = Kind(kind) if kind else None
        return cls(since_s, kinds, group or None, state or None, run or None)

    def takes(self, incident: Incident) -> bool:
        if self.kind is not None and incident.kind is not self.kind:
            return False
        if self.group is not None and self.group not in incident.groups:
            return False
        if self.run is not None and self.run != incident.run:
            return False
        states = (incident.state, OPEN) if incident.open else (incident.state,)
        if self.state is not None and self.state not in states:
            return False
        ended_s = max(incident.last_seen_s, incident.milestones.first_seen_s)
        return self.since_s is None or incident.open or ended_s >= self.since_s

    def among(self, incidents: Iterable[Incident]) -> list[Incident]:
        """The incidents asked for, in their order."""
        return [incident for incident in incidents if self.takes(incident)]


def find(incidents: Sequence[Incident], prefix: str) -> Incident:
    """The incident with this id, or the only one whose id begins with it.

    Raises:
        ChoiceError: several do; `NoSuchIncidentError`: none does.
    """
    near = [incident for incident in incidents if incident.id.startswith(prefix)]
    exact = [incident for incident in near if incident.id == prefix]
    if len(exact or near) == 1:
        return (exact or near)[0]
    if not near or not prefix:
        raise NoSuchIncidentError(f"no such incident: {prefix}")
    names = ", ".join(incident.id for incident in near[:5]) + (" ..." if len(near) > 5 else "")
    raise ChoiceError(f"{len(near)} incidents begin with {prefix}: {names}")
