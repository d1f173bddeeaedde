"""One tick of deciding: history, detectors, inhibition, incidents, policy. Pure.

    snapshot -> History -> wait-for graph -> verdicts -> those that stand -> incidents -> decisions

A detector that crashes makes its kind unknown for this tick (its incidents neither advance
nor end), is named in `detector_failures`, and stops nobody else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final, TypeVar

from monitor.config import KeeperConfig
from monitor.detectors.all_wait import all_wait
from monitor.detectors.all_wait import wanted as wanted_across
from monitor.detectors.corrupt import corrupt
from monitor.detectors.dead import dead
from monitor.detectors.deadlock import deadlock
from monitor.detectors.inhibit import inhibit
from monitor.detectors.late_comer import late_comer
from monitor.detectors.late_comer import wanted as wanted_late
from monitor.detectors.lighthouse_away import lighthouse_away
from monitor.detectors.mismatch import mismatch, wanted_records
from monitor.detectors.not_entered import not_entered
from monitor.detectors.replica_lag import replica_lag
from monitor.detectors.silent_mismatch import sampled_records, silent_mismatch
from monitor.detectors.slow_pause import slow_pause
from monitor.detectors.slow_transfer import slow_transfer
from monitor.detectors.straggler import straggler
from monitor.detectors.unphased import unphased
from monitor.detectors.unphased import wanted as wanted_unphased
from monitor.detectors.verdict import SLOWS_ONLY, Confidence, Kind, Verdict
from monitor.detectors.waits import Standing, WaitGraph, build
from monitor.history import History, RankTrack, push
from monitor.incident import Incident, State
from monitor.names import GroupName, Host, RankName, group_of
from monitor.policy import Decision, Evict, Fleet, GroupView, Guard, Hold, PastEviction, decide
from monitor.self_health import Health, SelfHealth, scaled
from monitor.snapshot import EvictionProgress, LighthouseAway, Snapshot
from monitor.tracker import Tracker
from worker_server.wire import SOURCE_REPORTER, WAITING_PHASE

_T = TypeVar("_T")


class RankHealth(StrEnum):
    """How a rank looks in one tick."""

    HEALTHY = "healthy"
    WAITING = "waiting"  # held up by others
    STALLED = "stalled"  # alone, and not progressing
    DEAD = "dead"
    UNREACHABLE = "unreachable"
    STARTING = "starting"  # attached, not through its first commits


@dataclass(frozen=True, slots=True)
class TickResult:
    """What one tick found and decided."""

    now_s: float
    verdicts: tuple[Verdict, ...] = ()
    """Those that stand: what another fault explains is left out."""
    incidents: tuple[Incident, ...] = ()
    """Open ones and those resolved within the last hour, newest first."""
    changed: tuple[Incident, ...] = ()
    """Incidents that changed in this tick: what the store writes."""
    decisions: tuple[Decision, ...] = ()
    """A Hold is here when its guard or reason changed, not every tick."""
    wants_records: tuple[RankName, ...] = ()
    """Ranks whose flight records the next tick should carry."""
    wants_steps: tuple[RankName, ...] = ()
    """Ranks whose past steps (`/v1/steps`) the next tick should carry."""
    rank_health: Mapping[RankName, RankHealth] = field(default_factory=dict)
    detector_failures: Mapping[str, str] = field(default_factory=dict)
    """Detector -> error, for each that crashed in this tick: its kind is unknown, not healthy."""
    detectors: Mapping[str, bool] = field(default_factory=dict)
    """Every detector that should have looked -> whether it did."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Kind of fault -> why nothing can be said about it in this tick."""
    health: Health = field(default_factory=Health)
    """The monitor's own."""

    @property
    def blind(self) -> bool:
        """Whether nobody looked for any fault at all."""
        return bool(self.unknown) and not any(self.detectors.values())


@dataclass(frozen=True, slots=True)
class Detector:
    """A detector by name, and the kind that is unknown when it crashes."""

    name: str
    kind: Kind
    look: Callable[[History, WaitGraph], tuple[Verdict, ...]]


DETECTORS: Final = (
    Detector("mismatch", Kind.MISMATCH, mismatch),
    Detector("dead", Kind.DEAD, dead),
    Detector("not_entered", Kind.NOT_ENTERED, not_entered),
    Detector("unphased", Kind.NOT_ENTERED, unphased),
    Detector("deadlock", Kind.DEADLOCK, deadlock),
    Detector("all_wait", Kind.DEADLOCK, all_wait),
    Detector("silent_mismatch", Kind.MISMATCH, lambda history, _: silent_mismatch(history)),
    Detector("corrupt", Kind.STATE_CORRUPT, lambda history, _: corrupt(history)),
    Detector("straggler", Kind.STRAGGLER, lambda history, _: straggler(history)),
    Detector("slow_pause", Kind.STRAGGLER, lambda history, _: slow_pause(history)),
    Detector("slow_transfer", Kind.STRAGGLER, lambda history, _: slow_transfer(history)),
    Detector("late_comer", Kind.STRAGGLER, lambda history, _: late_comer(history)),
    Detector("replica_lag", Kind.REPLICA_LAG, replica_lag),
    Detector("lighthouse_away", Kind.LIGHTHOUSE_AWAY, lighthouse_away),
)


class Pipeline:
    """From snapshots to decisions; its only state is what earlier snapshots said.

    Args:
        config: thresholds.
        incidents: what the store holds, open ones and the last hour's: they are continued.
        evictions: what the store holds of the last hour: they count against the budget.
        detectors: another set, for tests.
    """

    def __init__(
        self,
        config: KeeperConfig,
        incidents: Sequence[Incident] = (),
        evictions: Sequence[EvictionProgress] = (),
        detectors: Sequence[Detector] = DETECTORS,
    ) -> None:
        self._config = config
        self._detectors = tuple(detectors)
        self._history = History.of(config)
        self._tracker = Tracker(config)
        self._tracker.restore(incidents)
        self._self_health = SelfHealth(config)
        self._health = Health()
        self._past: list[PastEviction] = []
        self._holds: dict[str, tuple[Guard, str]] = {}
        self._take_past(evictions)

    def tick(self, snapshot: Snapshot) -> TickResult:
        """Judge one snapshot; call once per tick, in order of time."""
        self._health = self._self_health.push(snapshot)
        self._history.config = scaled(self._config, self._health.scale)
        push(self._history, snapshot)
        self._take_past(snapshot.evictions)
        self._tracker.take_evictions(self._history, snapshot.evictions)
        failures: dict[str, str] = {}
        graph = _guarded(_GRAPH, failures, lambda: build(self._history))
        found, unknown = self._detect(graph, failures)
        verdicts, inhibited = self._inhibit(found)
        changed = self._tracker.update(
            self._history, verdicts, unknown=unknown, inhibited=inhibited
        )
        decisions = self._decide(snapshot)
        wanted: tuple[RankName, ...] | None = ()
        if graph is not None:
            self._history.pausing, self._history.inside = graph.pausing, graph.all_in
            self._history.left_s = graph.left_since(self._history)
            wanted = _guarded("records", failures, lambda: _wanted(self._history, graph))
        return TickResult(
            now_s=snapshot.now_s,
            verdicts=verdicts,
            incidents=self._tracker.shown(),
            changed=changed,
            decisions=decisions,
            wants_records=wanted or (),
            wants_steps=self._history.wanted_steps(),
            rank_health=_health(self._history, graph),
            detector_failures=failures,
            detectors={
                one.name: graph is not None and one.name not in failures for one in self._detectors
            },
            unknown=self._unknown(failures),
            health=self._health,
        )

    def _unknown(self, failures: Mapping[str, str]) -> dict[str, str]:
        """Kinds of fault that nobody looked for, and why."""
        blind = failures.get(_GRAPH)
        found: dict[str, str] = {}
        for one in self._detectors:
            if blind is not None:
                found[one.kind.value] = f"what all detectors build on ({_GRAPH}) crashed: {blind}"
            elif one.name in failures:
                found[one.kind.value] = f"detector {one.name} crashed: {failures[one.name]}"
        return found

    # -- for the journal -------------------------------------------------------------------

    def memory(self) -> Mapping[str, object]:
        """All that earlier snapshots left behind, by name; `monitor.journal` writes it down."""
        return {name: held for name, held in vars(self).items() if name not in _NO_MEMORY}

    def remember(self, memory: Mapping[str, object]) -> None:
        """Go on from what `memory` gave at another time.

        Raises:
            ValueError: it is of a pipeline that remembers other things.
        """
        known = self.memory()
        if memory.keys() != known.keys():
            raise ValueError(f"expected {sorted(known)}, got {sorted(memory)}")
        vars(self).update(memory)

    def _detect(
        self, graph: WaitGraph | None, failures: dict[str, str]
    ) -> tuple[tuple[Verdict, ...], frozenset[Kind]]:
        if graph is None:
            return (), frozenset(Kind)
        found: list[Verdict] = []
        unknown: set[Kind] = set()
        for detector in self._detectors:
            call = partial(detector.look, self._history, graph)
            verdicts = _guarded(detector.name, failures, call)
            if verdicts is None:
                unknown.add(detector.kind)
            else:
                found += verdicts
        return tuple(found), frozenset(unknown)

    def _inhibit(
        self, found: tuple[Verdict, ...]
    ) -> tuple[tuple[Verdict, ...], Mapping[tuple[Kind, GroupName], str]]:
        shields = self._tracker.shielded(self._history.now_s)
        own = {(i.kind, group) for i in self._tracker.open() for group in i.groups}
        firing = [i.verdict for i in self._tracker.open() if i.state is not State.PENDING]
        faults = [verdict for verdict in firing if verdict.stops]
        self._pardon(shields, [v for v in (*firing, *found) if _explains_lag(v)])
        standing, reasons = inhibit(
            found,
            shielded={(kind, group) for group in shields for kind in Kind} - own,
            blamed=self._tracker.blamed(self._history),
            stalled=bool(faults) or any(verdict.stops for verdict in found),
        )
        return standing, reasons

    def _pardon(self, shields: Mapping[GroupName, Incident], faults: Sequence[Verdict]) -> None:
        """Heals, failed commits and entries that an eviction or another fault explains.

        Of a fault that stands for long its victims only: the others have formed a quorum without.
        Nor does a commit go through while fewer groups than `min_replica_size` are there.
        """
        logs, config = self._history.attendance.groups, self._config
        groups = {group_of(rank) for fault in faults for rank in fault.victims}
        groups |= {g for v in faults if v.kind is Kind.STATE_CORRUPT for g in v.groups}
        for group in {*shields, *groups} & logs.keys():
            logs[group].forgive()
        since_s = [fault.since_s for fault in faults]
        since_s += [one.milestones.evict_asked_s or 0.0 for one in shields.values()]
        if any(self._history.now_s - at_s < config.lag_window_s for at_s in since_s):
            for log in logs.values():
                log.failures = []

    # -- deciding --------------------------------------------------------------------------

    def _decide(self, snapshot: Snapshot) -> tuple[Decision, ...]:
        ripe = [
            incident
            for incident in self._tracker.ripe(snapshot.now_s)
            if incident.id not in self._tracker.awaiting()
        ]
        emitted: list[Decision] = []
        for decision in decide(self._config, self._fleet(snapshot), ripe):
            match decision:
                case Evict():
                    self._holds.pop(decision.incident_id, None)
                    self._tracker.asked(decision.incident_id, snapshot.now_s)
                    self._past.append(
                        PastEviction(decision.incident_id, decision.group, snapshot.now_s)
                    )
                    emitted.append(decision)
                case Hold():
                    said = (decision.guard, decision.reason)
                    if self._holds.get(decision.incident_id) != said:
                        self._holds[decision.incident_id] = said
                        emitted.append(decision)
        still = {incident.id for incident in self._tracker.open()}
        self._holds = {key: said for key, said in self._holds.items() if key in still}
        return tuple(emitted)

    def _fleet(self, snapshot: Snapshot) -> Fleet:
        history = self._history
        accused = frozenset(
            group
            for incident in self._tracker.open()
            if incident.state is not State.PENDING and _accuses(incident.verdict)
            for group in incident.groups
        )
        shields = self._tracker.shielded(snapshot.now_s)
        away = snapshot.lighthouse
        fired = [i for i in self._tracker.incidents.values() if i.milestones.firing_s is not None]
        return Fleet(
            now_s=snapshot.now_s,
            groups={
                group: _view(
                    history,
                    group,
                    members,
                    well=group not in accused and _anew(members, shields.get(group)),
                )
                for group, members in history.groups().items()
            },
            accused=accused,
            doubt=self._health.hold,
            lighthouse_away=away.reason if isinstance(away, LighthouseAway) else None,
            past=tuple(p for p in self._past if p.incident_id not in self._tracker.cut_short),
            in_flight=self._in_flight(snapshot),
            evicted_signatures=Counter(
                i.signature for i in fired if not i.open and i.milestones.evict_asked_s is not None
            ),
            deaths=Counter(
                Host(host)
                for i in fired
                if i.kind is Kind.DEAD and not i.open
                for host in i.verdict.evidence.get("host", "").split(", ")
                if host
            ),
        )

    def _in_flight(self, snapshot: Snapshot) -> tuple[GroupName, ...]:
        going = {
            progress.group
            for progress in snapshot.evictions
            if progress.left_quorum_s is None
            and progress.failed is None
            and snapshot.now_s - progress.asked_s <= self._config.eviction_deadline_s
        }
        awaiting = self._tracker.awaiting()
        for incident in self._tracker.open():
            if incident.id in awaiting or incident.state is State.EVICTING:
                going.update(incident.groups)
        return tuple(sorted(going))

    def _take_past(self, evictions: Sequence[EvictionProgress]) -> None:
        """Count evictions that were not decided here: by hand, or before a restart."""
        for progress in evictions:
            known = any(
                past.incident_id == progress.incident_id
                and abs(past.asked_s - progress.asked_s) <= self._config.eviction_ack_s
                for past in self._past
            )
            if not known:
                self._past.append(
                    PastEviction(progress.incident_id, progress.group, progress.asked_s)
                )
        now_s = self._history.now_s
        self._past = [past for past in self._past if now_s - past.asked_s < _HOUR_S]


_HOUR_S: Final = 3600.0
_GRAPH: Final = "waits"


def _explains_lag(verdict: Verdict) -> bool:
    """Whether a fault makes commits fail: a standstill, or numbers that a rank votes against."""
    return verdict.stops or verdict.kind is Kind.STATE_CORRUPT


def _accuses(verdict: Verdict) -> bool:
    """Whether it speaks against its groups: what only asks for a person does not, and must not
    stand in the way of evicting another that hangs.
    """
    unsure = verdict.kind in SLOWS_ONLY and verdict.confidence is Confidence.UNSURE
    return not (unsure or verdict.spare)


_NO_MEMORY: Final = frozenset({"_config", "_detectors"})
"""What a pipeline is given, not what it remembers."""


def _guarded(name: str, failures: dict[str, str], call: Callable[[], _T]) -> _T | None:
    try:
        return call()
    except Exception as exc:  # noqa: BLE001 - one crashed detector must not blind the others
        failures[name] = f"{type(exc).__name__}: {exc}"
        return None


def _wanted(history: History, graph: WaitGraph) -> tuple[RankName, ...]:
    """Ranks whose records a detector asks for; sorted, each once."""
    suspected = {*wanted_records(history, graph), *wanted_unphased(history, graph)}
    suspected |= {*wanted_late(history), *wanted_across(history, graph)}
    return tuple(sorted(suspected)) or sampled_records(history, graph)


def _view(
    history: History, group: GroupName, members: tuple[RankTrack, ...], *, well: bool
) -> GroupView:
    died_s = [track.died_s for track in members if track.died_s is not None]
    whole = len(members) == members[0].identity.world_size
    return GroupView(
        group=group,
        healthy=well and whole and all(_able(history, track) for track in members),
        alive=tuple(t.rank for t in members if t.fresh is not None and t.fresh.process.alive),
        replica_id=history.replica_id(group),
        in_quorum=history.in_quorum(group),
        heartbeat_age_s=history.heartbeat_age_s(group),
        dead_for_s=history.now_s - min(died_s) if died_s else None,
        hosts={track.rank: track.identity.host for track in members},
    )


def _anew(members: tuple[RankTrack, ...], evicted: Incident | None) -> bool:
    """Whether a group is free of those processes for which it was evicted lately, if it was."""
    return evicted is None or not any(
        track.identity.incarnation in evicted.incarnations for track in members
    )


def _able(history: History, track: RankTrack) -> bool:
    """Whether a rank contributes, or stands ready to: it waits for the others to let it in.

    Two groups of which one hangs: the other, back from a restart, commits nothing before the hung
    one is out. It must not be counted as missing then.
    """
    fresh = track.fresh
    if history.participating(track):
        return True
    return (
        fresh is not None
        and fresh.process.alive
        and not fresh.process.stopped
        and fresh.step is not None
        and fresh.step.source == SOURCE_REPORTER
        and fresh.step.phase == WAITING_PHASE
    )


def _health(history: History, graph: WaitGraph | None) -> dict[RankName, RankHealth]:
    return {track.rank: _rank_health(history, graph, track) for track in history.present()}


def _rank_health(history: History, graph: WaitGraph | None, track: RankTrack) -> RankHealth:
    report = track.fresh
    if report is None:
        return RankHealth.UNREACHABLE
    if not report.process.alive:
        return RankHealth.DEAD
    standing = Standing.ALONE if graph is None else graph.standing[track.rank]
    if graph is not None and track.rank in graph.roots:
        return RankHealth.STALLED
    if history.starting(track):
        return RankHealth.STARTING
    waits = standing in (Standing.HELD, Standing.WAITING)
    if waits and track.stall_s >= history.config.stall_floor_s / 2:
        return RankHealth.WAITING
    return RankHealth.HEALTHY
