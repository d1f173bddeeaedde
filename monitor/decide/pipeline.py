"""One tick of deciding: history, detectors, inhibition, incidents, policy. Pure.

    snapshot -> History -> wait-for graph -> verdicts -> those that stand -> incidents -> decisions

A detector that crashes makes its kind unknown for this tick (its incidents neither advance
nor end), is named in `detector_failures`, and stops no other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

from lightkeeper.monitor.decide.commits import missing_after_s
from lightkeeper.monitor.decide.guards import (
    HOUR_S,
    DecisionFacts,
    GroupFacts,
    cost,
    decide,
    min_replicas_named,
)
from lightkeeper.monitor.decide.release import Asked, releases
from lightkeeper.monitor.decide.rules import DEFAULT, Policy
from lightkeeper.monitor.decide.tracker import GONE_UNCONFIRMED_S, Tracker
from lightkeeper.monitor.detect.dead import over
from lightkeeper.monitor.detect.detectors import (
    DETECTORS,
    Detector,
    Tick,
    fired,
    inhibit,
    wanted_records,
)
from lightkeeper.monitor.detect.graph import WaitGraph
from lightkeeper.monitor.detect.history import History
from lightkeeper.monitor.detect.intake import take_in
from lightkeeper.monitor.detect.links import Links
from lightkeeper.monitor.detect.machine import join_machines
from lightkeeper.monitor.detect.patience import giving_up
from lightkeeper.monitor.detect.progress import of_last_run
from lightkeeper.monitor.detect.self_health import Health, SelfHealth, scaled
from lightkeeper.monitor.detect.track import UNDECLARED, RankTrack
from lightkeeper.monitor.detect.wait_map import wait_map
from lightkeeper.monitor.detect.waits import build_wait_graph
from lightkeeper.monitor.detect.wording import looks
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Decision, Eviction, EvictionState, Ruling
from lightkeeper.monitor.model.incident import Incident, State
from lightkeeper.monitor.model.names import (
    GroupName,
    Host,
    IncidentId,
    RankName,
    group_of,
    unseen_name,
)
from lightkeeper.monitor.model.observation import LighthouseAway, LighthouseView, Snapshot, stopped
from lightkeeper.monitor.model.units import grouped
from lightkeeper.monitor.model.verdict import (
    FAULTS,
    SLOWS_ONLY,
    WORST_FIRST,
    Confidence,
    Kind,
    RankHealth,
    RankStanding,
    Verdict,
)
from lightkeeper.monitor.model.wording import listed
from lightkeeper.worker_server.wire import FINISHED_PHASE, LONG_PHASES, WAITING_PHASE

# -- rank health -------------------------------------------------------------------------------


def rank_health(
    history: History,
    graph: WaitGraph | None,
    incidents: Iterable[Incident],
    victims: Container[RankName],
) -> dict[RankName, RankHealth]:
    """The health of every registered rank.

    `incidents`: open ones, oldest first: a culprit is never called healthy. A candidate is judged
    by what it does, like any other rank. `victims`: those that have not moved on.
    """
    blamed: dict[RankName, RankHealth] = {}
    for incident in incidents:
        if incident.state is State.PENDING:
            continue
        looks_so = RankHealth.SLOW if incident.kind in SLOWS_ONLY else RankHealth.STALLED
        looks_so = RankHealth.CORRUPT if incident.kind is Kind.STATE_CORRUPT else looks_so
        for rank in incident.culprits:
            track = history.tracks.get(rank)
            if track is not None and track.identity.incarnation in incident.incarnations:
                blamed[rank] = min(looks_so, blamed.get(rank, looks_so), key=WORST_FIRST.index)
    tracks = history.present()
    health = {t.rank: _of(history, graph, t, blamed, victims) for t in tracks}
    gone = [track for track in tracks if health[track.rank] is RankHealth.DEAD]
    return health | _ended(gone, over(history), blamed) if gone else health


def _ended(
    gone: Sequence[RankTrack], faultless: Container[RankName], blamed: Container[RankName]
) -> dict[RankName, RankHealth]:
    """Ranks that are gone, but are no deaths: one that had done its work is finished; one that was
    asked to end, with the whole job or because a peer of its group had failed, has ended.
    """
    failed_s: dict[GroupName, float] = {}
    for track in gone:
        if track.rank not in faultless and not _asked(track):
            failed_s[track.group] = min(track.death_s, failed_s.get(track.group, math.inf))
    health: dict[RankName, RankHealth] = {}
    for track in gone:
        taken_along = track.death_s >= failed_s.get(track.group, math.inf)
        asked = _asked(track) and track.doing != FINISHED_PHASE
        if asked and (track.rank in faultless or taken_along) and track.rank not in blamed:
            health[track.rank] = RankHealth.ENDED
        elif track.rank in faultless and not asked:
            health[track.rank] = RankHealth.FINISHED
    return health


def _asked(track: RankTrack) -> bool:
    """True if SIGTERM or Ctrl-C ended it."""
    return track.report is not None and stopped(track.report.process, track.ending)


def _of(  # noqa: PLR0911
    history: History,
    graph: WaitGraph | None,
    track: RankTrack,
    blamed: Mapping[RankName, RankHealth],
    victims: Container[RankName],
) -> RankHealth:
    report, rank = track.fresh, track.rank
    if report is None:
        return RankHealth.UNREACHABLE
    if not report.process.alive:
        return RankHealth.DEAD
    if report.process.tracer is not None:
        return RankHealth.TRACED
    if rank in blamed:
        return blamed[rank]
    if graph is not None and rank in graph.roots:
        return RankHealth.STALLED
    if track.doing == FINISHED_PHASE:
        return RankHealth.HEALTHY
    if rank in victims:
        return RankHealth.WAITING
    if history.starting(track):
        return RankHealth.STARTING
    standing = RankStanding.ALONE if graph is None else graph.standing[rank]
    waits = standing in (RankStanding.HELD, RankStanding.WAITING)
    if waits and track.stall_s >= history.config.stall_floor_s / 2:
        return RankHealth.WAITING
    return RankHealth.LATE if _late(history, track) else RankHealth.HEALTHY


def _late(history: History, track: RankTrack) -> bool:
    """True if its next step is overdue by more than a rank may stand still."""
    age_s = None if track.step is None else track.step.made_age_s
    if age_s is None or track.doing in LONG_PHASES:
        return False
    return age_s > history.config.stall_floor_s and age_s > missing_after_s(history, track)


# -- result ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Learned:
    """What decisions are based on beyond the configuration, for people."""

    min_replicas: int | None = None
    """The Lighthouse's own flag; None until its page has shown it."""
    eviction_cost_s: float | None = None
    """In fleet seconds; None until an eviction of this job was measured."""
    cost_evictions: int = 0
    """How many it was learned from."""
    evictions: Mapping[GroupName, int] = field(default_factory=dict)
    """Those of the last hour, by group; in observe mode with those only observed."""


@dataclass(frozen=True, slots=True)
class TickResult:
    """What one tick found and decided."""

    now_s: float
    verdicts: tuple[Verdict, ...] = ()
    """Without those that another fault explains."""
    incidents: tuple[Incident, ...] = ()
    """Open ones and those resolved within the last hour, newest first."""
    changed: tuple[Incident, ...] = ()
    """Incidents that changed in this tick: the store writes them."""
    decisions: tuple[Decision, ...] = ()
    """A Hold only when its guard or what it says changed, not every tick."""
    wants_records: tuple[RankName, ...] = ()
    """Ranks whose flight records the next tick should carry."""
    wants_steps: tuple[RankName, ...] = ()
    """Ranks whose past steps (`/v1/steps`) the next tick should carry."""
    watches: tuple[RankName, ...] = ()
    """Ranks that the next tick should ask directly, even if another reports for their host."""
    look_again_s: float = math.inf
    """When a tick can settle something, if before the next scheduled one."""
    rank_health: Mapping[RankName, RankHealth] = field(default_factory=dict)
    detector_failures: Mapping[str, str] = field(default_factory=dict)
    """Detector -> error, for each that crashed in this tick: its kind is unknown, not healthy."""
    detectors: Mapping[str, bool] = field(default_factory=dict)
    """Every detector that should have run -> whether it did."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Kind of fault -> why it cannot be judged in this tick."""
    health: Health = field(default_factory=Health)
    """The monitor's own."""
    learned: Learned = field(default_factory=Learned)
    links: Links = field(default_factory=Links)

    @property
    def blind(self) -> bool:
        """True if no detector ran at all."""
        return bool(self.unknown) and not any(self.detectors.values())


# -- without lighthouse ------------------------------------------------------------------------

_NOT_ITS_WORK: Final = frozenset({WAITING_PHASE, "quorum", "init", UNDECLARED, FINISHED_PHASE})
"""Phases in which a rank may be waiting for a quorum."""
_LOOK_S: Final = 3.0
"""The longest that reading the Lighthouse takes: it may be gone for that and a tick before it is
seen to be away."""


def missing_without(history: History, snapshot: Snapshot, incident: Incident) -> str | None:
    """What is missing to judge and confirm an eviction without a Lighthouse; None: nothing.

    Theory of operation. Without a Lighthouse no quorum forms: soon all ranks wait, and after
    TorchFT's quorum timeout all end. So a verdict counts only if a wait for the Lighthouse cannot
    explain it: processes that are dead, stopped or run no Python; collectives or weights that
    differ; a rank that stood still before the Lighthouse went away; a rank that stands in a phase
    of its own work while others wait for it. And an eviction makes sense only if something else can
    confirm it: the group's own WorkerServers, or a gate, which also keeps the group out when the
    Lighthouse is back.
    """
    away = snapshot.lighthouse
    if not isinstance(away, LighthouseAway) or not incident.groups:
        return None
    if not away.missed and not snapshot.gate_up:
        return "nor is there a gate"
    members = [t for group in incident.groups for t in history.groups().get(group, ())]
    if members and all(track.died_s is not None for track in members):
        return "every process of it is gone, and nothing else shows whether its heartbeat goes on"
    explained = _explained(history, incident)
    if explained is not None:
        return explained
    return None if snapshot.gate_up else _unconfirmed(incident, members)


def _unconfirmed(incident: Incident, members: Sequence[RankTrack]) -> str | None:
    """The rank whose WorkerServer could not confirm an eviction; None: all of the group's could."""
    unseen = tuple(track.rank for track in members if track.fresh is None)
    if members and not unseen:
        return None
    return f"nor {listed(unseen or incident.suspects)}: nobody could confirm an eviction"


def _explained(history: History, incident: Incident) -> str | None:
    """How the Lighthouse's absence may explain an incident; None if it cannot."""
    match incident.kind:
        case Kind.DEAD | Kind.MISMATCH | Kind.DEADLOCK | Kind.STATE_CORRUPT:
            return None
        case Kind.NOT_ENTERED:
            waits = [rank for rank in incident.suspects if not _by_itself(history, incident, rank)]
            return f"{listed(tuple(waits))} may wait for it" if waits else None
        case _:
            return "the pace of a job without quorums says nothing"


def _by_itself(history: History, incident: Incident, rank: RankName) -> bool:
    """True if a rank stands still for another reason than the Lighthouse."""
    track, since_s = history.tracks.get(rank), history.away_since_s
    fresh = None if track is None else track.fresh
    if track is None or fresh is None:
        return False
    silent_s = fresh.process.interpreter_age_s
    frozen = silent_s is not None and silent_s >= history.hang_after_s(track)
    if history.stopped(track) or frozen:
        return True
    margin_s = history.config.tick_s + _LOOK_S
    if since_s is not None and history.now_s - track.stall_s < since_s - margin_s:
        return True  # it stood before the Lighthouse went away
    working = track.phased and track.doing not in _NOT_ITS_WORK and track.doing not in LONG_PHASES
    return working and not history.starting(track) and bool(incident.verdict.victims)


# -- fleet -------------------------------------------------------------------------------------

_OF_HOSTS: Final = frozenset({Kind.NOT_ENTERED, Kind.STRAGGLER, Kind.DEAD, Kind.STATE_CORRUPT})
"""Kinds for which a host may be to blame."""


def _faults(incidents: Iterable[Incident]) -> dict[Host, list[Incident]]:
    """Faults that have fired and are over, by the hosts of their culprits."""
    return grouped(
        (host, incident)
        for incident in incidents
        if incident.milestones.firing_s is not None and not incident.open
        if incident.kind in _OF_HOSTS and incident.culprits
        for host in incident.hosts
    )


def _dead_hosts(history: History, config: KeeperConfig) -> frozenset[Host]:
    """Hosts on which every rank is known dead, or has been silent for `host_lost_s`."""
    lives: dict[Host, bool] = {}
    for track in history.present():
        silent_s = track.silent_since_s
        lost = silent_s is not None and history.now_s - silent_s >= config.host_lost_s
        host = track.identity.host
        lives[host] = lives.get(host, False) or not (lost or track.died_s is not None)
    return frozenset(host for host, alive in lives.items() if not alive)


def _of_the_lost(snapshot: Snapshot) -> set[IncidentId]:
    """Incidents whose groups are lost, and nothing of them is seen: nobody waits for their end."""
    lost = {each.incident_id: each.group for each in snapshot.evictions if each.lost}
    seen = {report.identity.group for report in snapshot.reports.values()} if lost else set()
    return {incident_id for incident_id, group in lost.items() if group not in seen}


def _in_flight(tracker: Tracker, snapshot: Snapshot, config: KeeperConfig) -> tuple[GroupName, ...]:
    now_s = snapshot.now_s
    going = {
        progress.group
        for progress in snapshot.evictions
        if not progress.out
        and progress.failed is None
        and now_s - progress.asked_s <= config.eviction_deadline_s
    }
    done = {
        progress.incident_id
        for progress in snapshot.evictions
        if (gone_s := progress.gone_s or progress.unseen_s) is not None
        and now_s - gone_s > GONE_UNCONFIRMED_S
    }
    done |= _of_the_lost(snapshot)
    going -= {progress.group for progress in snapshot.evictions if progress.incident_id in done}
    awaiting = tracker.awaiting()
    for incident in tracker.open():
        evicting = incident.state is State.EVICTING and incident.id not in done
        if incident.id in awaiting or evicting:
            going.update(incident.groups)
    return tuple(sorted(going))


def _view(
    history: History, group: GroupName, members: tuple[RankTrack, ...], *, well: bool
) -> GroupFacts:
    died_s = [track.died_s for track in members if track.died_s is not None]
    whole = len(members) == members[0].identity.world_size
    return GroupFacts(
        group=group,
        healthy=well and whole and all(_able(history, track) for track in members),
        alive=tuple(t.rank for t in members if t.fresh is not None and t.fresh.process.alive),
        replica_id=history.replica_id(group),
        in_quorum=history.in_quorum(group),
        heartbeat_age_s=history.heartbeat_age_s(group),
        dead_for_s=history.now_s - min(died_s) if died_s else None,
        hosts={track.rank: track.identity.host for track in members},
        names=tuple(dict.fromkeys((group, *(t.identity.launched_as or group for t in members)))),
        traced="; ".join(
            f"{track.rank} is traced by {looks(track.tracer)}"
            for track in members
            if track.tracer is not None
        ),
        disk_wait=frozenset(track.rank for track in members if track.state == "D"),
        kernels=any(track.fresh is not None and track.fresh.kernels for track in members),
    )


def _anew(members: tuple[RankTrack, ...], evicted: Incident | None) -> bool:
    """True if none of the group's processes is one that it was recently evicted for."""
    return evicted is None or not any(
        track.identity.incarnation in evicted.incarnations for track in members
    )


def _able(history: History, track: RankTrack) -> bool:
    """True if a rank contributes, or is ready to: it waits for the others to let it in.

    If one of two groups hangs, the other, back from a restart, commits nothing until the hung one
    is out. It must not count as missing then.
    """
    if track.participating:
        return True
    if track.fresh is None or not track.fresh.process.alive or history.stopped(track):
        return False
    if track.phased:
        return track.doing == WAITING_PHASE
    return track.waits_in is not None or track.inside_across


# -- pipeline ----------------------------------------------------------------------------------

_T = TypeVar("_T")

_GRAPH, _MAP = "waits", "wait map"
_SECOND_LOOK_S: Final = 0.3
"""From the first sight of a hang to the second. A sweep may ask ranks before and after one step,
but not twice so soon; and until the next scheduled tick nobody trains."""
_LOOKED_AT_TWICE: Final = frozenset({Kind.NOT_ENTERED, Kind.DEAD, Kind.DEADLOCK})
_WATCHED: Final = 64
_DRAWN: Final = 8
"""Verdicts of a tick that get a picture of their waits."""
_ROUNDING_S: Final = 0.02
_OF_A_NEW_LIFE: Final = (Kind.NOT_ENTERED, Kind.MISMATCH, Kind.DEADLOCK)
"""Faults that an eviction explains only for the processes it evicted, not for new ones."""
_NO_MEMORY: Final = frozenset({"_config", "_detectors", "_policy"})
"""Attributes that a pipeline is given, not what it remembers."""


class Pipeline:
    """From snapshots to decisions; its only state comes from earlier snapshots.

    Args:
        config: thresholds.
        incidents: in the store, open or of the last hour: they are continued.
        evictions: in the store, of the last hour: they count against the budget.
        detectors: another set, for tests.
        policy: the operator's rules.
    """

    def __init__(
        self,
        config: KeeperConfig,
        incidents: Sequence[Incident] = (),
        evictions: Sequence[Eviction] = (),
        detectors: Sequence[Detector] = DETECTORS,
        *,
        policy: Policy = DEFAULT,
    ) -> None:
        self._config = config
        self._policy = policy
        self._detectors = tuple(detectors)
        self._history = History.of(config)
        self._tracker = Tracker(config)
        self._self_health = SelfHealth(config)
        self._health = Health()
        self._past: list[Eviction] = []
        self._released: Asked = set()
        self._min_replicas: int | None = None
        """The Lighthouse's own flag, as its page last showed it."""
        self.go_on(incidents, evictions)

    def go_on(self, incidents: Sequence[Incident], evictions: Sequence[Eviction]) -> None:
        """Continue from what the store holds; keep what was seen. Nothing that was decided here
        before counts: a standby decides too, and nobody carries it out.
        """
        before, self._tracker = self._tracker, Tracker(self._config)
        unfinished = [
            replace(eviction, state=EvictionState.INTERRUPTED)
            for eviction in evictions
            if eviction.open
        ]
        self._tracker.go_on(self._history, incidents, unfinished, before)
        self._past, self._released = [], set()
        self._take_past((*evictions, *unfinished))

    def reconfigure(self, config: KeeperConfig, policy: Policy) -> None:
        """Judge by these from the next tick; keep what was seen and learned so far.

        Past windows are not judged again, and incidents that have fired stay.
        """
        self._config, self._policy = config, policy
        history = self._history
        history.config = history.pace.config = history.attendance.config = config
        history.habits.config = self._tracker.config = self._self_health.config = config

    def close(self, incident_id: IncidentId, author: str, reason: str) -> bool:
        """A person closes an incident that only a person may close, from the next tick on."""
        return self._tracker.close(incident_id, author, reason)

    def tick(self, snapshot: Snapshot) -> TickResult:
        """Judge one snapshot; call it once per tick, in order of time."""
        self._health = self._self_health.push(snapshot)
        self._history.config = scaled(self._config, self._health.scale)
        begins = snapshot.run is not None and snapshot.run.id != self._history.run
        if begins and self._history.run:
            progress = of_last_run(self._history)
            self._history = History.of(self._history.config)
            self._history.progress = progress
        if snapshot.run is not None:
            self._history.run = snapshot.run.id
        take_in(self._history, snapshot)
        self._take_past(snapshot.evictions)
        if isinstance(snapshot.lighthouse, LighthouseView):
            flag = min_replicas_named(snapshot.lighthouse.status)
            self._min_replicas = self._min_replicas if flag is None else flag
        self._tracker.take_evictions(self._history, snapshot.evictions)
        if begins:
            self._tracker.end_runs(self._history)
        self._history.lost = self._tracker.lost()
        failures: dict[str, str] = {}
        graph = _guarded(_GRAPH, failures, lambda: build_wait_graph(self._history))
        seen, unknown = self._detect(graph, failures)
        verdicts, inhibited = self._inhibit(
            tuple(join_machines(self._history, verdict) for verdict in seen)
        )
        verdicts = self._drawn(graph, verdicts, failures)
        self._tracker.update(self._history, verdicts, unknown=unknown, inhibited=inhibited)
        victims = fired(self._tracker.waits(self._history))
        decisions = self._decide(snapshot)
        changed = self._tracker.changed(snapshot.now_s)
        records: tuple[RankName, ...] | None = ()
        if graph is not None:
            self._history.pausing, self._history.inside = graph.pausing, graph.all_in
            self._history.left_s = graph.left_since(self._history)
            self._history.held = graph.held_since(self._history)
            records = _guarded("records", failures, lambda: wanted_records(self._history, graph))
        return TickResult(
            now_s=snapshot.now_s,
            verdicts=verdicts,
            incidents=self._tracker.shown(),
            changed=changed,
            decisions=decisions,
            wants_records=records or (),
            wants_steps=self._history.wanted_steps(),
            watches=() if graph is None else graph.suspects[:_WATCHED],
            look_again_s=snapshot.now_s + self._look_again_s(graph, changed),
            rank_health=rank_health(self._history, graph, self._tracker.open(), victims),
            detector_failures=failures,
            detectors={
                detector.name: graph is not None and detector.name not in failures
                for detector in self._detectors
            },
            unknown=unknown,
            health=self._health,
            learned=self._learned(snapshot.now_s),
            links=self._history.links,
        )

    def _look_again_s(self, graph: WaitGraph | None, changed: Sequence[Incident]) -> float:
        """Seconds until a hang is due, or can be seen a second time."""
        now_s = self._history.now_s
        new = [incident for incident in changed if incident.milestones.first_seen_s == now_s]
        if any(i.kind in _LOOKED_AT_TWICE and i.state is State.PENDING for i in new):
            return _SECOND_LOOK_S
        return math.inf if graph is None else graph.next_root_s + _ROUNDING_S

    def _learned(self, now_s: float) -> Learned:
        price = cost(self._tracker.lessons(), len(self._history.groups()), self._config)
        observed = self._tracker.observed(now_s) if self._config.observe else ()
        past = [*self._past, *observed]
        recent = Counter(eviction.group for eviction in past if now_s - eviction.asked_s < HOUR_S)
        measured_s = price.seconds if price.evictions else None
        return Learned(self._min_replicas, measured_s, price.evictions, dict(recent))

    # -- for the journal -------------------------------------------------------------------

    def memory(self) -> Mapping[str, object]:
        """What earlier snapshots left, by name; `monitor.journal` records it."""
        return {name: value for name, value in vars(self).items() if name not in _NO_MEMORY}

    def remember(self, memory: object) -> None:
        """Continue from an earlier `memory`.

        Raises:
            ValueError: it is of a pipeline with other names.
        """
        now = self.memory()
        if not isinstance(memory, Mapping) or memory.keys() != now.keys():
            raise ValueError(f"expected {sorted(now)}")
        vars(self).update(memory)

    def _detect(
        self, graph: WaitGraph | None, failures: dict[str, str]
    ) -> tuple[list[Verdict], dict[str, str]]:
        """What the detectors see, and why a kind of fault cannot be judged in this tick."""
        if graph is None:
            why = f"what all detectors build on ({_GRAPH}) crashed: {failures[_GRAPH]}"
            return [], dict.fromkeys((kind.value for kind in FAULTS), why)
        seen: list[Verdict] = []
        unknown: dict[str, str] = {}
        for detector in self._detectors:
            call = partial(detector.verdicts, self._history, graph)
            verdicts = _guarded(detector.name, failures, call)
            if verdicts is None:
                why = f"detector {detector.name} crashed: {failures[detector.name]}"
                unknown[detector.kind.value] = why
            else:
                seen += verdicts
        return seen, unknown

    def _drawn(
        self, graph: WaitGraph | None, verdicts: tuple[Verdict, ...], failures: dict[str, str]
    ) -> tuple[Verdict, ...]:
        """The verdicts with what a person is shown of the graph. It takes as long as a detector: it
        is made at the first sight, and again once the incident has fired and more ranks wait; not
        in the tick that decides.
        """
        drawn = {(i.kind, i.suspects): i for i in self._tracker.open()}
        shown = list(verdicts)
        for number, verdict in enumerate(verdicts[:_DRAWN]):
            incident = drawn.get((verdict.kind, verdict.suspects))
            waits = None if incident is None else incident.verdict.waits
            decides = incident is not None and incident.state is State.PENDING
            all_in = sum(r in self._history.tracks for r in (*verdict.suspects, *verdict.victims))
            enough = waits is not None and (decides or waits.ranks >= all_in)
            if graph is not None and not enough:
                waits = _guarded(_MAP, failures, partial(wait_map, self._history, graph, verdict))
            shown[number] = replace(verdict, waits=waits)
        return tuple(shown)

    def _inhibit(
        self, verdicts: tuple[Verdict, ...]
    ) -> tuple[tuple[Verdict, ...], Mapping[tuple[Kind, GroupName], str]]:
        shields = self._tracker.shielded(self._history.now_s)
        own = {(i.kind, group) for i in self._tracker.open() for group in i.groups}
        firing = [i.verdict for i in self._tracker.open() if i.state is not State.PENDING]
        faults = [verdict for verdict in firing if verdict.stops]
        self._pardon(
            shields, [v for v in (*firing, *verdicts) if v.stops or v.kind is Kind.STATE_CORRUPT]
        )
        shielded = self._shielded(shields) | {(Kind.DEAD, group) for group in self._put_out()}
        waits = self._tracker.waits(self._history)
        hangs = [i for i in self._tracker.open() if i.kind is Kind.NOT_ENTERED]
        return inhibit(
            Tick(
                verdicts,
                shielded=shielded - own,
                waits=waits,
                ending=giving_up(self._history, fired(waits)),
                stalled=bool(faults) or any(verdict.stops for verdict in verdicts),
                named=any(fault.suspects for fault in faults),
                hangs_s={r: i.milestones.first_seen_s for i in hangs for r in i.suspects},
            )
        )

    def _shielded(self, shields: Mapping[GroupName, Incident]) -> set[tuple[Kind, GroupName]]:
        """What is not reported of a group that an incident already explains. A lost group that is
        not back is reported: nobody ended it.
        """
        lost = {(Kind.ABSENT, eviction.group) for eviction in self._past if eviction.lost}
        return {
            (kind, group)
            for group, incident in shields.items()
            for kind in Kind
            if kind not in _OF_A_NEW_LIFE or not self._anew(group, incident)
        } - lost

    def _anew(self, group: GroupName, incident: Incident) -> bool:
        """True if all its processes started after its eviction: they may hang, too."""
        asked_s = incident.milestones.evict_asked_s
        tracks = self._history.groups().get(group, ())
        return asked_s is not None and all(track.first_seen_s > asked_s for track in tracks)

    def _put_out(self) -> frozenset[GroupName]:
        """Evicted groups that have not restarted: it is no fault that their processes end, and stay
        away until a person lets them in. Manual evictions have no other shield.
        """
        groups = self._history.groups()
        accused = {each.incarnation for eviction in self._past for each in eviction.accused}
        return frozenset(
            eviction.group
            for eviction in self._past
            if all(
                (track.first_seen_s <= eviction.asked_s or track.identity.incarnation in accused)
                and (track.died_s is not None or eviction.by_hand)
                for track in groups.get(eviction.group, ())
            )
        )

    def _pardon(self, shields: Mapping[GroupName, Incident], faults: Sequence[Verdict]) -> None:
        """Forgive heals, failed commits and entries that an eviction or another fault explains.

        For an older fault only those of its victims: the others have formed a quorum without it.
        No commit succeeds while fewer groups than `min_replica_size` are there, either.
        """
        logs, config = self._history.attendance.groups, self._config
        groups = {group_of(rank) for fault in faults for rank in fault.victims}
        groups |= {g for v in faults if v.kind is Kind.STATE_CORRUPT for g in v.groups}
        for group in {*shields, *groups} & logs.keys():
            logs[group].forgive()
        since_s = [fault.since_s for fault in faults]
        since_s += [incident.milestones.evict_asked_s or 0.0 for incident in shields.values()]
        if any(self._history.now_s - at_s < config.lag_window_s for at_s in since_s):
            for log in logs.values():
                log.failures = []

    # -- deciding --------------------------------------------------------------------------

    def _decide(self, snapshot: Snapshot) -> tuple[Decision, ...]:
        ripe = self._tracker.ripe(snapshot.now_s)
        ruled: Sequence[Ruling] = ()
        if ripe:
            ruled = decide(self._config, self._facts(snapshot), ripe, self._policy)
        new = [ruling for ruling in ruled if self._tracker.decided(ruling, snapshot.now_s)]
        released = releases(
            self._history, snapshot, self._tracker.shown(), past=self._past,
            policy=self._policy, doubt=self._health.hold, asked=self._released,
        )  # fmt: skip
        return (*new, *released)

    def _facts(self, snapshot: Snapshot) -> DecisionFacts:
        """What the decisions of this tick are based on, once its verdicts are tracked."""
        history, tracker = self._history, self._tracker
        faults = [i for i in tracker.open() if i.state is not State.PENDING]
        # who accuses nobody must not prevent the eviction of another group that hangs
        accused = frozenset(g for i in faults if i.verdict.accuses for g in i.groups)
        suspected = accused.union(  # who may stand still is not counted on as healthy
            *(i.groups for i in faults if i.kind not in SLOWS_ONLY and not i.verdict.spare)
        )
        shields = tracker.shielded(snapshot.now_s)
        away = snapshot.lighthouse
        return DecisionFacts(
            now_s=snapshot.now_s,
            groups={
                group: _view(
                    history,
                    group,
                    members,
                    well=group not in suspected and _anew(members, shields.get(group)),
                )
                for group, members in history.groups().items()
            }
            | {
                (name := unseen_name(replica_id)): GroupFacts(
                    name, healthy=False, alive=(), replica_id=replica_id, names=(name,)
                )
                for replica_id in history.unseen()
            },
            accused=accused,
            doubt=self._health.hold,
            lighthouse_away=getattr(away, "reason", None),
            without_lighthouse={
                incident.id: missing_without(history, snapshot, incident)
                for incident in tracker.open()
            },
            past=tuple(self._past),
            in_flight=_in_flight(tracker, snapshot, self._config),
            would=tracker.observed(snapshot.now_s),
            lessons=tracker.lessons(),
            faults=_faults(tracker.all()),
            waited_for=frozenset(
                group
                for incident in tracker.open()
                if incident.verdict.confidence is not Confidence.UNSURE
                and incident.verdict.stops
                and any(group_of(rank) not in accused for rank in incident.verdict.victims)
                for group in incident.groups
            ),
            dead_hosts=_dead_hosts(history, self._config),
            lighthouse_min_replicas=self._min_replicas,
            pause=snapshot.pause,
            schedulers=snapshot.schedulers,
        )

    def _take_past(self, evictions: Sequence[Eviction]) -> None:
        """Count evictions that the evictor has taken up, each once, however often it was asked.

        One that is decided but not taken up blocks others anyway (`IN_FLIGHT`).
        """
        past = {eviction.key: eviction for eviction in (*self._past, *evictions)}
        now_s = self._history.now_s
        self._past = [eviction for eviction in past.values() if now_s - eviction.asked_s < HOUR_S]


def _guarded(name: str, failures: dict[str, str], call: Callable[[], _T]) -> _T | None:
    try:
        return call()
    except Exception as exc:  # noqa: BLE001 - one crashed detector must not blind the others
        failures[name] = f"{type(exc).__name__}: {exc}"
        return None
