"""Everything that may be shown after one tick, as one frozen value. Pure.

The web page, the API and `/metrics` read a `View` and nothing that changes meanwhile. Here are the
value, what is kept for it between ticks (incidents, decisions and evictions, as the store has them
on disk; ranks that were here and are gone), and what it shows: which groups there are, what is
wrong with a rank, whether the job is well. Its form for programs is `view_json`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, pairwise
from operator import attrgetter
from statistics import median
from textwrap import shorten
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from lightkeeper.monitor.decide.accounts import IncidentAccount, Totals, account, totals_of
from lightkeeper.monitor.decide.links import LinkTemplates
from lightkeeper.monitor.decide.rank_seconds import Spent
from lightkeeper.monitor.decide.tempo import Tempo
from lightkeeper.monitor.detect.wording import DOING
from lightkeeper.monitor.model.eviction import (
    Decision,
    Eviction,
    Hold,
    QuarantineEntry,
    Remembered,
    taken_up,
)
from lightkeeper.monitor.model.incident import (
    BundleView,
    Incident,
    State,
    newest_first,
    oldest_first,
)
from lightkeeper.monitor.model.names import (
    GroupName,
    Host,
    IncidentId,
    RankName,
    ReplicaId,
    group_of_replica,
    rank_name,
    unseen_name,
)
from lightkeeper.monitor.model.observation import (
    LighthouseAway,
    LighthouseRecord,
    LighthouseView,
    Observation,
    Snapshot,
    Unreachable,
    missing_ranks,
    stopped,
)
from lightkeeper.monitor.model.quarantine import HostRecord
from lightkeeper.monitor.model.run import Run, TrendPoint
from lightkeeper.monitor.model.units import grouped
from lightkeeper.monitor.model.verdict import WORST_FIRST, Kind, RankHealth
from lightkeeper.monitor.model.wording import Face, face_of, listed, seconds
from lightkeeper.monitor.model.work import IncidentWork, Work, WorkRow
from lightkeeper.worker_server.wire import Ending, Process, Witness

if TYPE_CHECKING:  # the command line reads views, and imports no detector for it
    from lightkeeper.monitor.decide.pipeline import TickResult
    from lightkeeper.monitor.decide.rules import Effective
    from lightkeeper.monitor.store.lease import LeaseStanding


def finite(value: float | None) -> float | None:
    """Rounded; None for NaN and infinity, which JSON lacks."""
    return round(value, 6) if value is not None and math.isfinite(value) else None


def bundle_url(incident_id: IncidentId) -> str:
    """Where this monitor serves the evidence of an incident."""
    return f"/v1/incidents/{quote(incident_id, safe='')}/bundle"


# What is wrong with one rank, by its report, its silence or its stacks.

_SAYS: Final = 140
"""Characters of an exception's text; the rank's last words have all of it."""


def how_it_ended(process: Process, ending: Ending | None) -> str:
    """How a dead process ended: `exit code 1, RuntimeError: no (train.py:66)`."""
    code = None if process.exit_code is None else f"exit code {process.exit_code}"
    how = [process.exit_signal or code]
    if ending is not None:
        how.append(ending.exception and shorten(ending.exception, _SAYS, placeholder=" ..."))
        if ending.exception is None and not any(how):
            how.append(ending.sentence)
    text = ", ".join(part for part in how if part)
    where = "" if ending is None or ending.frame is None else f" in {ending.frame}"
    return f"{text or 'nobody knows how'}{where}"


def stands(witness: Witness) -> str:
    """Where a rank stands: `stands in f (train.py:66), sleeping (3 stacks over 4 s, 1 s ago)`."""
    does = DOING.get(witness.doing)
    how = f"{witness.samples} stacks over {seconds(witness.same_s)}" if witness.samples > 1 else (
        "one stack")  # fmt: skip
    doing = "" if does is None else f", {does}"
    return f"stands in {witness.frame}{doing} ({how}, {seconds(witness.age_s)} ago)"


def trouble_of(seen: Observation) -> str:
    """What is wrong with a rank; empty: nothing known."""
    if isinstance(seen.outcome, Unreachable):
        return f"{seen.outcome.reason}: {seen.outcome.detail}"
    report = seen.outcome
    process, witness, step = report.process, report.witness, report.step
    if not process.alive:
        ago = "" if process.dead_age_s is None else f" {seconds(process.dead_age_s)} ago"
        return f"ended{ago} ({how_it_ended(process, report.ending)}){_before(process, witness)}"
    troubles = (
        process.tracer and f"traced by {process.tracer.name} (pid {process.tracer.pid})",
        process.stopped and f"its process is stopped ({process.state})",
        step and not step.loss_finite and "its loss is not finite",
        witness and stands(witness),
        step and step.errored and "this attempt has failed",
    )
    return next((trouble for trouble in troubles if isinstance(trouble, str)), "")


def _before(process: Process, witness: Witness | None) -> str:
    """Where it stood while alive, which is not where it died."""
    if witness is None or process.dead_age_s is None:
        return ""
    before_s = max(0.0, witness.age_s - process.dead_age_s)
    return f"; {seconds(before_s)} before its end it stood in {witness.frame}"


# Recent events in memory, newest first, so that a scrape or a page does not read the store.

INCIDENTS_KEPT: Final = 500
DECISIONS_KEPT: Final = 50
"""Decisions that are kept of each incident."""


class RecentIncidents:
    """What happened, as far back as is shown. One thread writes; what it returns is frozen."""

    def __init__(self, remembered: Remembered) -> None:
        self._incidents: dict[IncidentId, Incident] = {}
        self._decisions: dict[IncidentId, tuple[Decision, ...]] = {}
        self.take_incidents(remembered.incidents[:INCIDENTS_KEPT])
        for row in remembered.decisions:
            self.take_decision(row)

    def take_incidents(self, incidents: Sequence[Incident]) -> None:
        """Take incidents that are new or have changed."""
        for incident in incidents:
            self._incidents[incident.id] = incident
        excess = len(self._incidents) - INCIDENTS_KEPT
        if excess > 0:
            closed = [incident for incident in self.incidents()[::-1] if not incident.open]
            for incident in closed[:excess]:
                self._incidents.pop(incident.id)
                self._decisions.pop(incident.id, None)

    def take_decision(self, row: Decision) -> None:
        """Take a new decision, or the progress of one."""
        rows = {(r.at_s, r.action): r for r in self._decisions.get(row.incident_id, ())}
        rows[row.at_s, row.action] = row
        if len(rows) > DECISIONS_KEPT:
            del rows[next(key for key, old in rows.items() if isinstance(old, Hold))]
        self._decisions[row.incident_id] = tuple(rows.values())

    def incidents(self) -> tuple[Incident, ...]:
        """All, newest first."""
        return tuple(sorted(self._incidents.values(), key=newest_first))

    def get(self, incident_id: IncidentId) -> Incident | None:
        return self._incidents.get(incident_id)

    def latest(self, incident_id: IncidentId) -> Decision | None:
        """The latest decision about an incident."""
        return next(reversed(self._decisions.get(incident_id, ())), None)

    def decisions(self) -> Mapping[IncidentId, Sequence[Decision]]:
        """By incident, oldest first."""
        return dict(self._decisions)


# Ranks that were here and are gone: a job that ended differs from one that never began.

_KEPT_S: Final = 86_400.0
_MOST: Final = 100_000


@dataclass(frozen=True, slots=True)
class Departure:
    """One rank whose target is gone, as last seen."""

    rank: RankName
    group: GroupName
    at_s: float
    """When it ended, or was last heard of if its end was not seen."""
    process: Process | None
    """None: its end was not seen."""
    ending: Ending | None = None

    @property
    def clean(self) -> bool:
        """True if it ended with exit code 0."""
        return self.process is not None and self.process.exit_code == 0

    @property
    def how(self) -> str:
        """How it ended, in words."""
        unseen = "not heard of any more"
        return unseen if self.process is None else how_it_ended(self.process, self.ending)

    @property
    def stopped(self) -> bool:
        """True if it was asked to end."""
        return self.process is not None and stopped(self.process, self.ending)


class DepartureBook:
    """Remembers departures for a day."""

    def __init__(self) -> None:
        self._before: Mapping[RankName, Observation] = {}
        """Ranks of the last tick."""
        self._before_s = 0.0
        self._silent: dict[RankName, tuple[Observation, float]] = {}
        """Those of them that did not answer: last report, and its time."""
        self._gone: dict[RankName, Departure] = {}

    def push(self, snapshot: Snapshot) -> tuple[Departure, ...]:
        """Ranks that are no longer registered, by name."""
        now_s, present = snapshot.now_s, snapshot.by_rank
        for rank in missing_ranks(self._before, present):
            if (last := self._last_report(rank)) is not None:
                self._gone[rank] = departure_of(*last)
        unheard = missing_ranks(present, snapshot.reports)
        self._silent = {r: last for r in unheard if (last := self._last_report(r)) is not None}
        self._before, self._before_s = present, now_s
        for seen in snapshot.observations if self._gone else ():
            launched = seen.identity.launched_as
            if launched is not None:  # it was here under its launcher's name, and is not gone
                self._gone.pop(rank_name(launched, seen.identity.group_rank), None)
        recent = sorted(self._gone.values(), key=attrgetter("at_s"))[-_MOST:]
        self._gone = {d.rank: d for d in recent if now_s - d.at_s <= _KEPT_S}
        return tuple(self._gone[rank] for rank in sorted(self._gone) if rank not in present)

    def _last_report(self, rank: RankName) -> tuple[Observation, float] | None:
        """A rank's last report, and its time."""
        seen = self._before.get(rank)
        if seen is None or seen.report is None:
            return self._silent.get(rank)
        return seen, self._before_s


def departure_of(seen: Observation, now_s: float) -> Departure:
    """The departure of a rank if it were gone after this tick."""
    report = seen.report
    if report is None or report.process.alive:
        return Departure(seen.rank, seen.identity.group, now_s, None)
    died_s = now_s - (report.process.dead_age_s or 0.0)
    return Departure(seen.rank, seen.identity.group, died_s, report.process, report.ending)


SCHEMA: Final = 1
_BEATS_S: Final = 3.0
"""A heartbeat this young is from a live process: TorchFT sends 3 to 10 a second."""


class NotPossible(Exception):  # noqa: N818 - an answer, not an accident
    """What a person asked for cannot be done now; the message says why."""


@dataclass(frozen=True)
class View:
    """Everything that may be shown after one tick."""

    snapshot: Snapshot
    result: TickResult
    observe: bool
    incidents: tuple[Incident, ...] = ()
    """All that are remembered, newest first."""
    decisions: Mapping[IncidentId, Sequence[Decision]] = field(default_factory=dict)
    bundles: Mapping[IncidentId, BundleView] = field(default_factory=dict)
    evicting: frozenset[GroupName] = frozenset()
    quarantine: tuple[QuarantineEntry, ...] = ()
    """Hosts."""
    quarantine_groups: tuple[QuarantineEntry, ...] = ()
    hosts: Mapping[Host, HostRecord] = field(default_factory=dict)
    """The record of every known host."""
    departures: tuple[Departure, ...] = ()
    """Ranks that were here and are no longer registered."""
    work: Work = field(default_factory=Work)
    """What people did about incidents."""
    tempos: Mapping[RankName, Tempo] = field(default_factory=dict)
    trend: Mapping[str, Sequence[TrendPoint]] = field(default_factory=dict)
    """The past of the job, oldest first, by resolution (`RESOLUTIONS`)."""
    runs: tuple[Run, ...] = ()
    """Newest first; the first is that of the ranks."""
    spent: Spent = field(default_factory=Spent)
    """Effective rank-seconds, and the lost ones by cause."""
    tokens: Mapping[GroupName, int] = field(default_factory=dict)
    """Trained on since this monitor started, for groups that report any."""
    rules: Effective | None = None
    """The policy in force."""
    lighthouse: LighthouseRecord = field(default_factory=LighthouseRecord)
    troubles: tuple[str, ...] = ()
    """What is wrong with the monitor itself, one sentence each."""
    standing: LeaseStanding | None = None
    """Who acts, this monitor or another; None: it does not share its store."""
    tokenless: bool = False
    """True if it has no token: ranks refuse to be evicted by it."""

    @property
    def job(self) -> str:
        """Its name, as the ranks report it; empty without ranks."""
        return next((seen.identity.job for seen in self.snapshot.observations), "")

    @cached_property
    def opened(self) -> tuple[Incident, ...]:
        """Open incidents: firing ones before pending ones, the oldest first."""
        opened = (incident for incident in self.incidents if incident.open)
        return tuple(sorted(opened, key=lambda i: (i.state is State.PENDING, *oldest_first(i))))

    @cached_property
    def groups(self) -> tuple[GroupView, ...]:
        """Every replica group, sorted by name; built on first use."""
        return group_views(self)

    @cached_property
    def out(self) -> Mapping[GroupName, float]:
        """Groups that were evicted and not started again, and how many seconds ago."""
        run, healths = self.snapshot.run, self.result.rank_health
        ranks = (o for o in self.snapshot.observations if healths.get(o.rank) not in _OVER)
        here = {group.group for group in self.groups if group.in_quorum}
        here |= {seen.identity.group for seen in ranks}
        latest: dict[GroupName, tuple[Incident, Eviction]] = {}
        for incident in self.incidents:
            if run is None or incident.run in ("", run.id):
                for eviction in taken_up(self.decisions.get(incident.id, ()))[-1:]:
                    latest.setdefault(eviction.group, (incident, eviction))
        return {
            group: max(0.0, self.snapshot.now_s - (eviction.ended_s or eviction.asked_s))
            for group, (incident, eviction) in sorted(latest.items())
            if group not in here and eviction.out and incident.milestones.rejoined_s is None
        }

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Problems of a job that trains, one sentence each."""
        warnings = []
        if self.out:
            ago_s = min(self.out.values())
            ago = seconds(ago_s) if ago_s < _MINUTES_S else f"{ago_s / 60:.0f} min"
            gone = f"without {listed(list(self.out))}: evicted {ago} ago, not restarted yet"
            warnings.append(gone)
        usual_s = self.spent.usual_s
        # without declared pauses: a checkpoint does not count as a slow step
        paces = [tempo.busy_s + tempo.wait_s for tempo in self.tempos.values()]
        if usual_s and paces and (pace_s := median(paces)) > SLOW * usual_s:
            warnings.append(f"a step takes {pace_s:.3g} s, and {usual_s:.3g} s is usual")
        warnings += _of_live_ranks(self.snapshot)
        running = {seen.identity.group for seen in self.snapshot.observations}
        departed = {departure.group for departure in self.departures if not departure.clean}
        if running and (missing := departed - running - self.out.keys()):
            warnings.append(f"gone and not back: {listed(sorted(missing))}")
        return tuple(warnings)

    @cached_property
    def ended(self) -> Ended | None:
        """How the job ended; None: something runs, or nothing was ever seen."""
        observations, now_s = self.snapshot.observations, self.snapshot.now_s
        if any(seen.report is None or seen.report.process.alive for seen in observations):
            return None
        departures = [*self.departures, *(departure_of(seen, now_s) for seen in observations)]
        if not departures:
            return None
        count, at_s = len(departures), max(departure.at_s for departure in departures)
        if all(departure.clean for departure in departures):
            return Ended(at_s, True, f"{count:,} of {count:,} ranks ended with exit code 0")
        root = _root(self.incidents, departures)
        says = f"{_ways(root, departures)}; 0 of {count} ranks left"
        stopped = all(departure.clean or departure.stopped for departure in departures)
        return Ended(at_s, False, says, stopped, None if root is None else root.id)

    @cached_property
    def waiting(self) -> frozenset[RankName]:
        """Ranks that wait for others, or whose commit is late."""
        waits = (RankHealth.WAITING, RankHealth.LATE)
        healths = self.result.rank_health
        return frozenset(rank for rank, health in healths.items() if health in waits)

    def account(self, incident: Incident) -> IncidentAccount:
        lost = (run.lost[incident.id] for run in self.runs if incident.id in run.lost)
        rows = self.decisions.get(incident.id, ())
        return account(incident, rows, next(lost, None), self.snapshot.now_s)

    def totals(self, incidents: Iterable[Incident]) -> Totals:
        """What those of them came to that have fired."""
        fired = (incident for incident in incidents if incident.milestones.firing_s is not None)
        return totals_of([self.account(incident) for incident in fired])

    def face(self, incident: Incident) -> Face:
        """An incident as people see it."""
        return face_of(incident, self.decisions.get(incident.id, ()), self.snapshot.now_s)

    def report(self, incident: Incident) -> IncidentReport:
        victims, lasted_s = incident.verdict.victims, self.snapshot.now_s - incident.verdict.since_s
        ranks = self.snapshot.by_rank
        return IncidentReport(
            incident=incident,
            face=self.face(incident),
            account=self.account(incident),
            decisions=self.decisions.get(incident.id, ()),
            bundle=self.bundles.get(incident.id),
            for_s=max(0.0, lasted_s) if incident.open else None,
            waiting=len(self.waiting.intersection(victims)),
            seen={
                rank: trouble
                for rank in incident.suspects
                if rank in ranks and (trouble := trouble_of(ranks[rank]))
            },
            victims=self._some(victims),
            victim_count=len(victims),
            work=self.work.of(incident),
            silence=self.work.silence_of(incident, self.snapshot.now_s),
            links=self.links.of_incident(incident),
        )

    @cached_property
    def links(self) -> LinkTemplates:
        """To what others know, as the policy says."""
        return LinkTemplates({} if self.rules is None else self.rules.policy.links, self.snapshot)

    def _some(self, victims: Sequence[RankName]) -> tuple[RankName, ...]:
        """At most `VICTIMS_TOLD`; first those that another incident accuses."""
        if len(victims) <= VICTIMS_TOLD:
            return tuple(victims)
        accused = {rank for i in self.result.incidents if i.open for rank in i.culprits}
        first = [rank for rank in victims if rank in accused][:VICTIMS_TOLD]
        others = (rank for rank in victims if rank not in accused)
        return (*first, *islice(others, VICTIMS_TOLD - len(first)))


VICTIMS_TOLD: Final = 64
"""How many are named; a fleet has thousands, which `victim_count` counts."""


@dataclass(frozen=True, slots=True)
class IncidentReport:
    """One incident with all that is shown of it, as JSON, on pages and in the terminal."""

    incident: Incident
    face: Face
    account: IncidentAccount
    decisions: Sequence[Decision] = ()
    """Oldest first."""
    bundle: BundleView | None = None
    for_s: float | None = None
    """How long it has lasted; None: it is over."""
    waiting: int = 0
    """Victims that wait now."""
    seen: Mapping[RankName, str] = field(default_factory=dict)
    """What is wrong with the suspects now."""
    victims: Sequence[RankName] = ()
    """At most `VICTIMS_TOLD`."""
    victim_count: int = 0
    work: IncidentWork = field(default_factory=IncidentWork)
    silence: WorkRow | None = None
    """The silence that mutes messages about it now."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Name -> URL."""

    @property
    def evictions(self) -> tuple[Eviction, ...]:
        """Those that an evictor had, oldest first."""
        return taken_up(self.decisions)

    @property
    def latest(self) -> Eviction | None:
        return next(reversed(self.evictions), None)


@dataclass(frozen=True, slots=True)
class GroupView:
    """One replica group, put together from its ranks and the Lighthouse."""

    group: GroupName
    host: Host | None
    replica_id: ReplicaId | None
    in_quorum: bool | None
    """None while the Lighthouse cannot be seen."""
    ranks: tuple[RankName, ...]
    health: str
    step: int | None
    commits: int | None
    heartbeat_age_s: float | None
    launched_as: GroupName | None = None
    """Its launcher's name for it, where that differs."""
    eviction: str | None = None
    """`evicting` while it is being evicted."""

    @property
    def shown(self) -> str:
        """Its state in a word."""
        return self.eviction or self.health


def group_views(view: View) -> tuple[GroupView, ...]:
    """Every replica group that has a registered rank or is in the quorum, sorted.

    A member of the quorum that sends heartbeats, and that no rank reports though its group's ranks
    report theirs, is a group of its own: a new instance of the group, or an orphan of the old one.
    """
    seen, lighthouse = view.snapshot.observations, view.snapshot.lighthouse
    ranks = grouped((each.identity.group, each) for each in seen)
    own = {
        step.replica_id: each.identity.group
        for each in seen
        if (step := each.step) is not None and step.replica_id is not None
    }
    replica_ids: dict[GroupName, ReplicaId] = {}
    members: frozenset[ReplicaId] = frozenset()
    if isinstance(lighthouse, LighthouseView):
        ages_s, seen_as = lighthouse.heartbeat_ages_s, frozenset(own.values())
        members = frozenset(member.replica_id for member in lighthouse.members)
        for replica_id in (member.replica_id for member in lighthouse.members):
            name = own.get(replica_id, group_of_replica(replica_id))
            if replica_id not in own and name in seen_as:
                if ages_s.get(replica_id, math.inf) > _BEATS_S:
                    continue  # the group before its restart
                name = unseen_name(replica_id)
            replica_ids[name] = replica_id
    names = sorted(ranks.keys() | replica_ids.keys())
    return tuple(
        _group(view, name, ranks.get(name, ()), replica_ids.get(name), members) for name in names
    )


def _group(
    view: View,
    name: GroupName,
    ranks: Sequence[Observation],
    listed_as: ReplicaId | None,
    members: Collection[ReplicaId],
) -> GroupView:
    """`listed_as`: the group's replica id at the Lighthouse."""
    steps = [step for seen in ranks if (step := seen.step) is not None]
    replica_id = next((step.replica_id for step in steps if step.replica_id is not None), listed_as)
    healths = {view.result.rank_health.get(seen.rank) for seen in ranks}
    launched = (seen.identity.launched_as for seen in ranks if seen.identity.launched_as)
    lighthouse, age_s = view.snapshot.lighthouse, None
    if isinstance(lighthouse, LighthouseView) and replica_id is not None:
        age_s = lighthouse.heartbeat_ages_s.get(replica_id)
    return GroupView(
        group=name,
        host=ranks[0].identity.host if ranks else None,
        replica_id=replica_id,
        in_quorum=None if isinstance(lighthouse, LighthouseAway) else replica_id in members,
        ranks=tuple(seen.rank for seen in ranks),
        health=next((str(health) for health in WORST_FIRST if health in healths), "unknown"),
        step=max((step.step for step in steps), default=None),
        commits=max((step.commits for step in steps), default=None),
        heartbeat_age_s=finite(age_s),
        launched_as=next(launched, None),
        eviction="evicting" if name in view.evicting else None,
    )


# Beyond whether the job trains, in sentences for page, terminal and programs: has it ended, is it
# slow, are its numbers corrupt?

SLOW: Final = 2.0
"""A pace this many times the usual one is a warning, whatever the cause."""
_NAMED: Final = 4


@dataclass(frozen=True, slots=True)
class Ended:
    """A job of which nothing runs any longer."""

    at_s: float
    clean: bool
    """True if all ended with exit code 0."""
    says: str
    """Why and how, without when."""
    stopped: bool = False
    """True if the others were asked to end, by SIGTERM or Ctrl-C."""
    incident: IncidentId | None = None
    """The one that says why."""


_APART_S: Final = 60.0
"""Ranks that end within this end together: launchers send SIGKILL half a minute after SIGTERM."""


def _root(incidents: Sequence[Incident], departures: Sequence[Departure]) -> Incident | None:
    """Why the job ended: the oldest of the faults that stop ranks and whose incidents were open
    when its last ranks began to end. It may be resolved by now, since all ended.
    """
    ends_s = sorted((departure.at_s for departure in departures), reverse=True)
    began_s = next((b for b, a in pairwise(ends_s) if b - a > _APART_S), ends_s[-1])
    roots = [
        incident
        for incident in incidents
        if incident.milestones.firing_s is not None
        and incident.verdict.stops
        and incident.verdict.since_s <= ends_s[0] + _APART_S
        and (incident.ended_s is None or incident.ended_s >= began_s)
    ]
    return min(roots, key=lambda i: (i.verdict.since_s, *oldest_first(i)), default=None)


def _ways(root: Incident | None, departures: list[Departure]) -> str:
    """How the ranks ended. First the incident's own sentence and who gave up waiting, or the deaths
    that it blames, if it knows why; never first a victim that said more.
    """
    first = frozenset(() if root is None else root.suspects)
    own = [departure for departure in departures if departure.rank in first]
    died = any(not (departure.clean or departure.stopped) for departure in own)
    if root is not None and not (root.kind is Kind.DEAD and (died or not first)):
        return (root.verdict.brief or root.verdict.reason).rstrip(".") + _given_up(root, departures)
    departures.sort(
        key=lambda d: (
            d.rank not in first, d.clean, d.ending is None or not d.ending.exception, d.at_s
        )
    )  # fmt: skip
    ways = grouped((departure.how, departure.rank) for departure in departures)
    says = [f"{listed(ranks)} {how}" for how, ranks in ways.items()][:_NAMED]
    others = sum(map(len, list(ways.values())[_NAMED:]))
    return "; ".join(says) + (f" and {others:,} more" if others else "")


def _given_up(root: Incident, departures: Sequence[Departure]) -> str:
    """`; job.1 gave up after 8.0 s`: victims that ended by themselves; `died`: aborted."""
    victims = {*root.verdict.victims}
    ends = [d for d in departures if d.rank in victims and not (d.clean or d.stopped)]
    if not ends:
        return ""
    first_s = min(departure.at_s for departure in ends) - root.verdict.since_s
    after = f" after {seconds(first_s)}" if first_s >= 1 else ""
    aborted = any(d.process is not None and d.process.exit_signal == "SIGABRT" for d in ends)
    how = "died" if aborted else "gave up"
    return f"; {listed(sorted(departure.rank for departure in ends))} {how}{after}"


_OVER: Final = (RankHealth.DEAD, RankHealth.UNREACHABLE, RankHealth.FINISHED, RankHealth.ENDED)
"""Healths of a rank that has not been started again."""
_MINUTES_S: Final = 600.0


def _of_live_ranks(snapshot: Snapshot) -> Iterator[str]:
    """Warnings of losses that are not finite, and of tracers."""
    spoilt, traced = [], []
    for rank, report in snapshot.reports.items():
        if not report.process.alive:
            continue
        if report.step is not None and not report.step.loss_finite:
            spoilt.append(rank)
        if (tracer := report.process.tracer) is not None:
            traced.append(f"{rank} by {tracer.name} (pid {tracer.pid})")
    if spoilt:
        yield f"the loss of {listed(spoilt)} is not finite, and steps are committed with it"
    if traced:
        yield f"somebody traces {listed(traced)}"
