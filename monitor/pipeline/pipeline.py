"""One tick of deciding: history, detectors, inhibition, incidents, policy. Pure.

    snapshot -> History -> wait-for graph -> verdicts -> those that stand -> incidents -> decisions

A detector that crashes makes its kind unknown for this tick (its incidents neither advance
nor end), is named in `detector_failures`, and stops nobody else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from monitor.config import KeeperConfig
from monitor.detectors.inhibit import inhibit
from monitor.detectors.patience import giving_up
from monitor.detectors.verdict import FAULTS, Kind, Verdict
from monitor.detectors.waits import WaitGraph, build
from monitor.history import History, push
from monitor.incident import Incident, State
from monitor.names import MANUAL, GroupName, RankName, group_of
from monitor.pipeline.experience import Experience
from monitor.pipeline.fleet import fleet_of
from monitor.pipeline.rank_health import rank_health
from monitor.pipeline.result import Learned, TickResult
from monitor.pipeline.roster import DETECTORS, Detector, wanted_records
from monitor.policy import DEFAULT, Decision, Evict, Guard, Hold, PastEviction, Policy, decide
from monitor.policy.lessons import cost
from monitor.self_health import Health, SelfHealth, scaled
from monitor.snapshot import EvictionProgress, Snapshot
from monitor.tracker import Tracker

_T = TypeVar("_T")

_HOUR_S: Final = 3600.0
_GRAPH: Final = "waits"
_SECOND_LOOK_S: Final = 0.3
"""After a hang was first seen. Ranks that one sweep asked before and after a step are not told
apart once more so much later; until the schedule's next tick nobody trains."""
_WATCHED: Final = 64
_ROUNDING_S: Final = 0.02
_OF_A_NEW_LIFE: Final = (Kind.NOT_ENTERED, Kind.MISMATCH, Kind.DEADLOCK)
"""What an eviction explains of those processes alone that it has put out."""
_NO_MEMORY: Final = frozenset({"_config", "_detectors", "_deciding", "_policy"})
"""What a pipeline is given, not what it remembers."""


class Pipeline:
    """From snapshots to decisions; its only state is what earlier snapshots said.

    Args:
        config: thresholds.
        incidents: what the store holds, open ones and the last hour's: they are continued.
        evictions: what the store holds of the last hour: they count against the budget.
        detectors: another set, for tests.
        policy: the operator's rules.
        would: evictions that observe mode held back, as the store holds them.
    """

    def __init__(
        self,
        config: KeeperConfig,
        incidents: Sequence[Incident] = (),
        evictions: Sequence[EvictionProgress] = (),
        detectors: Sequence[Detector] = DETECTORS,
        *,
        policy: Policy = DEFAULT,
        would: Sequence[PastEviction] = (),
    ) -> None:
        self._config = config
        self._policy = policy
        self._detectors = tuple(detectors)
        self._history = History.of(config)
        self._tracker = Tracker(config)
        self._deciding = True
        self._self_health = SelfHealth(config)
        self._health = Health()
        self._past: list[PastEviction] = []
        self._holds: dict[str, tuple[Guard, str]] = {}
        self._experience = Experience()
        self.go_on(incidents, evictions, would=would)

    def go_on(
        self,
        incidents: Sequence[Incident],
        evictions: Sequence[EvictionProgress],
        *,
        deciding: bool = True,
        would: Sequence[PastEviction] = (),
    ) -> None:
        """Go on from what the store holds; what was seen stays.

        Not `deciding`: another monitor decides and acts. Its evictions are under way then, which
        otherwise somebody left without an end. `would`: those that observe mode held back.
        """
        before, self._tracker = self._tracker, Tracker(self._config)
        self._tracker.restore(incidents)
        self._tracker.warm(before)
        if deciding:
            self._tracker.resume([one for one in evictions if one.interrupted])
        self._deciding, self._past, self._holds = deciding, [], {}
        self._experience = Experience(self._experience.min_replicas, list(would))
        now_s = max((one.last_seen_s for one in incidents), default=0.0)
        self._experience.take(incidents, now_s, self._config)
        self._take_past(evictions)

    def reconfigure(self, config: KeeperConfig, policy: Policy) -> None:
        """From the next tick on judge by these; what was seen and learned so far stays.

        Windows of the past are not judged again, and incidents that have fired stay.
        """
        self._config, self._policy = config, policy
        history = self._history
        history.config = history.pace.config = history.attendance.config = config
        history.habits.config = self._tracker.config = self._self_health.config = config

    def tick(self, snapshot: Snapshot) -> TickResult:
        """Judge one snapshot; call once per tick, in order of time."""
        self._health = self._self_health.push(snapshot)
        self._history.config = scaled(self._config, self._health.scale)
        push(self._history, snapshot)
        self._take_past(snapshot.evictions)
        self._experience.see(snapshot.lighthouse)
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
            wanted = _guarded("records", failures, lambda: wanted_records(self._history, graph))
        return TickResult(
            now_s=snapshot.now_s,
            verdicts=verdicts,
            incidents=self._tracker.shown(),
            changed=changed,
            decisions=decisions,
            wants_records=wanted or (),
            wants_steps=self._history.wanted_steps(),
            watches=() if graph is None else graph.suspects[:_WATCHED],
            look_again_s=snapshot.now_s + self._look_again_s(graph, changed),
            rank_health=rank_health(
                self._history, graph, self._tracker.open(), self._tracker.blamed(self._history)
            ),
            detector_failures=failures,
            detectors={
                one.name: graph is not None and one.name not in failures for one in self._detectors
            },
            unknown=self._unknown(failures),
            health=self._health,
            learned=self._learned(snapshot.now_s),
        )

    def _look_again_s(self, graph: WaitGraph | None, changed: Sequence[Incident]) -> float:
        """In how many seconds a hang is due, or is seen for the second time."""
        now_s = self._history.now_s
        new = (one for one in changed if one.milestones.first_seen_s == now_s)
        if any(one.kind is Kind.NOT_ENTERED and one.state is State.PENDING for one in new):
            return _SECOND_LOOK_S
        return math.inf if graph is None else graph.next_root_s + _ROUNDING_S

    def _learned(self, now_s: float) -> Learned:
        known, groups = self._experience, len(self._history.groups())
        price = cost(known.all(), groups, self._config)
        past = [*self._past, *known.would] if self._config.observe else self._past
        recent = Counter(one.group for one in past if now_s - one.asked_s < _HOUR_S)
        measured_s = price.seconds if price.evictions else None
        return Learned(known.min_replicas, measured_s, price.evictions, dict(recent))

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
            return (), frozenset(FAULTS)
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
        blamed = self._tracker.blamed(self._history)
        standing, reasons = inhibit(
            found,
            shielded=(
                {
                    (kind, group)
                    for group, incident in shields.items()
                    for kind in Kind
                    if kind not in _OF_A_NEW_LIFE or not self._anew(group, incident)
                }
                | {(Kind.DEAD, group) for group in self._put_out_by_hand()}
            )
            - own,
            blamed=blamed,
            ending=giving_up(self._history, blamed),
            stalled=bool(faults) or any(verdict.stops for verdict in found),
            named=any(fault.culprits for fault in faults),
        )
        return standing, reasons

    def _anew(self, group: GroupName, incident: Incident) -> bool:
        """Whether all its processes have begun since it was put out: they may hang, too."""
        asked_s = incident.milestones.evict_asked_s
        tracks = self._history.groups().get(group, ())
        return asked_s is not None and all(track.first_seen_s > asked_s for track in tracks)

    def _put_out_by_hand(self) -> frozenset[GroupName]:
        """Groups that a person evicted: that those processes end is no fault."""
        groups = self._history.groups()
        return frozenset(
            one.group
            for one in self._past
            if one.incident_id.startswith(MANUAL)
            and all(track.first_seen_s <= one.asked_s for track in groups.get(one.group, ()))
        )

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
        if not self._deciding:
            return ()
        ripe = [
            incident
            for incident in self._tracker.ripe(snapshot.now_s)
            if incident.id not in self._tracker.awaiting()
        ]
        emitted: list[Decision] = []
        self._experience.take(self._tracker.incidents.values(), snapshot.now_s, self._config)
        fleet = fleet_of(
            self._history,
            self._tracker,
            snapshot,
            config=self._config,
            past=self._past,
            doubt=self._health.hold,
            experience=self._experience,
        )
        for decision in decide(self._config, fleet, ripe, self._policy):
            match decision:
                case Evict():
                    self._holds.pop(decision.incident_id, None)
                    self._tracker.asked(decision.incident_id, snapshot.now_s)
                    emitted.append(decision)
                case Hold():
                    if decision.would is not None:
                        held = decision.would
                        self._experience.hold_back(held.incident_id, held.group, snapshot.now_s)
                    said = (decision.guard, decision.reason)
                    if self._holds.get(decision.incident_id) != said:
                        self._holds[decision.incident_id] = said
                        emitted.append(decision)
        still = {incident.id for incident in self._tracker.open()}
        self._holds = {key: said for key, said in self._holds.items() if key in still}
        return tuple(emitted)

    def _take_past(self, evictions: Sequence[EvictionProgress]) -> None:
        """Count evictions that the evictor has taken up, each once, however often it was asked.

        One that is decided and not taken up stands in the way of others by itself (`IN_FLIGHT`).
        """
        past = {(one.incident_id, one.decided_s): one for one in self._past}
        for progress in evictions:
            past[progress.incident_id, progress.of_s] = PastEviction(
                progress.incident_id, progress.group, progress.asked_s, progress.of_s
            )
        now_s = self._history.now_s
        self._past = [one for one in past.values() if now_s - one.asked_s < _HOUR_S]


def _explains_lag(verdict: Verdict) -> bool:
    """Whether a fault makes commits fail: a standstill, or numbers that a rank votes against."""
    return verdict.stops or verdict.kind is Kind.STATE_CORRUPT


def _guarded(name: str, failures: dict[str, str], call: Callable[[], _T]) -> _T | None:
    try:
        return call()
    except Exception as exc:  # noqa: BLE001 - one crashed detector must not blind the others
        failures[name] = f"{type(exc).__name__}: {exc}"
        return None
