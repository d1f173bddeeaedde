"""Incidents: verdicts that last, from pending to resolved, with their story; and their JSON.

The table `decide.tracker.TRANSITIONS` moves them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final

from lightkeeper.monitor.model.names import GroupName, Host, IncidentId, RankName, ReplicaId
from lightkeeper.monitor.model.plain import Moment, from_plain, readable, to_plain
from lightkeeper.monitor.model.verdict import Kind, Severity, Verdict

# -- incident ----------------------------------------------------------------------------------


class Training(StrEnum):
    """If the job trains since a fault began, by its commits."""

    TRAINS = "trains"  # a commit since, and not long ago
    STANDS = "stands"  # none for longer than a rank may stand still
    UNKNOWN = "unknown"  # too soon to say, or a declared pause, or nothing to judge by


class State(StrEnum):
    PENDING = "pending"
    FIRING = "firing"
    EVICTING = "evicting"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Transition:
    """One line of an incident's story."""

    at_s: Moment
    to: str
    """A `State`, or the name of a milestone."""
    reason: str


@dataclass(frozen=True, slots=True)
class Milestones:
    """Unix times of what happened after the fault; None: not yet."""

    first_seen_s: Moment
    firing_s: Moment | None = None
    evict_asked_s: Moment | None = None
    left_quorum_s: Moment | None = None
    """The evicted replica id is no longer in any quorum."""
    survivor_commit_s: Moment | None = None
    """First commit of another group after the eviction was asked (after firing, if nobody
    evicted), the stall being over."""
    rejoined_s: Moment | None = None
    """First commit of the same group under a new replica id, all its ranks alive."""

    def stages(self) -> dict[str, tuple[float, float]]:
        """Begin and end of each finished stage."""
        spans = {
            "detect": (self.first_seen_s, self.firing_s),
            "decide": (self.firing_s, self.evict_asked_s),
            "leave": (self.evict_asked_s, self.left_quorum_s),
            "recover": (self.evict_asked_s, self.survivor_commit_s),
            "rejoin": (self.evict_asked_s, self.rejoined_s),
        }
        return {
            stage: (start_s, end_s)
            for stage, (start_s, end_s) in spans.items()
            if start_s is not None and end_s is not None
        }


@readable
@dataclass(frozen=True, slots=True)
class Incident:
    """One fault, from first sight to the end."""

    id: IncidentId
    kind: Kind
    fingerprint: str
    """Same kind, same suspects: same incident while it is open."""
    signature: str
    state: State
    culprits: tuple[RankName, ...]
    """Those of the latest verdict; nobody while it is unsure."""
    groups: tuple[GroupName, ...]
    replica_ids: tuple[ReplicaId, ...]
    """Replica ids of `groups` when it was first seen: what an eviction removes."""
    incarnations: tuple[str, ...]
    """Incarnations of the suspects when it was first seen: a restarted rank has another."""
    verdict: Verdict
    """The latest."""
    milestones: Milestones
    story: tuple[Transition, ...]
    last_seen_s: Moment
    resolution: str | None = None
    """Why it ended; None while open."""
    severity: Severity = Severity.WARNING
    """That of the latest verdict, by whether the job trains."""
    hosts: tuple[Host, ...] = ()
    """Hosts of the suspects when they were first seen, sorted."""
    back_on: tuple[Host, ...] = ()
    """Where its groups ran when they committed again, sorted."""
    candidates: tuple[RankName, ...] = ()
    """Those of the latest verdict, if it is unsure."""
    training: Training = Training.UNKNOWN
    """When it was last open."""
    stood: bool = False
    """True if the job was seen to stand while it was open."""
    gave_up: tuple[RankName, ...] = ()
    """Victims that ended while they waited, sorted."""
    run: str = ""
    """The run (`RunId`) in which it began; empty: an older version wrote it."""
    run_over_s: Moment | None = None
    """When the next run began: nothing of it is followed any longer; None: not yet."""
    remedy: str = ""
    """What a person can do at once, such as `kill -CONT` for a stopped process; empty: nothing that
    is known."""
    observed: Mapping[GroupName, Moment] = field(default_factory=dict)
    """Groups that observe mode did not evict, and when they would have been."""

    @property
    def suspects(self) -> tuple[RankName, ...]:
        """The culprits, or the candidates."""
        return self.culprits or self.candidates

    @property
    def began_s(self) -> float:
        """When the fault began, as nearly as known."""
        first_s, since_s = self.milestones.first_seen_s, self.verdict.since_s
        return since_s if 0 < since_s <= first_s else first_s

    def about(self) -> dict[str, str]:
        """For a record of the log (`extra`)."""
        groups, ranks = ", ".join(self.groups), ", ".join(self.suspects[:8])
        return {"incident": self.id, "group": groups, "rank": ranks}

    @property
    def open(self) -> bool:
        """True if it still needs attention."""
        return self.state is not State.RESOLVED

    @property
    def ended_s(self) -> float | None:
        """When it was resolved; None while it is open."""
        if self.open:
            return None
        ends = [line.at_s for line in self.story if line.to == State.RESOLVED]
        return ends[-1] if ends else self.last_seen_s


_OF_VERDICT: Final = (
    "reason", "brief", "confidence", "since_s", "victims", "evidence", "lost_s", "lost", "waits",
)  # fmt: skip


def trace_id(incident_id: str) -> str:
    """Of its trace (act/otlp.py), 32 digits: links may hold it."""
    return sha256(incident_id.encode()).hexdigest()[:32]


def oldest_first(incident: Incident) -> tuple[float, str]:
    return incident.milestones.first_seen_s, incident.id


def newest_first(incident: Incident) -> tuple[float, str]:
    return -incident.milestones.first_seen_s, incident.id


def incident_to_json(incident: Incident) -> dict[str, Any]:
    """Plain JSON types; None stays None. The latest verdict's fields stand beside the rest."""
    plain = to_plain(incident)
    verdict = plain.pop("verdict")
    return {**plain, **{key: verdict[key] for key in _OF_VERDICT}}


def incident_from_json(data: Any) -> Incident:
    """Inverse of `incident_to_json`; unknown keys are ignored.

    Raises:
        ValueError: a key is missing or ill-typed; the message names it.
    """
    nested = {**data, "verdict": data} if isinstance(data, dict) else data
    return from_plain(Incident, nested)


@dataclass(frozen=True, slots=True)
class BundleView:
    """The evidence of one incident, on disk."""

    nbytes: int
    written_s: float
    """Unix time."""


# -- severity ----------------------------------------------------------------------------------

STRAGGLER_COSTS_S: Final = 15.0
"""Fleet seconds lost above which a straggler is more than a note: `eviction_cost_s` by default."""


def severity_of(
    verdict: Verdict, training: Training = Training.UNKNOWN, costs_s: float = STRAGGLER_COSTS_S
) -> Severity:
    """How soon a person should look: by whether the job trains, by the kind, by who waits. Whether
    to evict is policy; how sure the verdict is, is confidence.

    Critical: nobody commits, and this may be why; somebody waits for it, as long as no commit shows
    that the job trains; or numbers are corrupt. Info: a straggler that has cost less than
    `costs_s`, which is what an eviction would.
    """
    trains, stands = training is Training.TRAINS, training is Training.STANDS
    match verdict.kind:
        case Kind.STRAGGLER:
            return Severity.INFO if verdict.lost_s <= costs_s else Severity.WARNING
        case Kind.STATE_CORRUPT:
            grave = bool(verdict.victims) or len(verdict.groups) > 1 or not verdict.spare
        case Kind.MISMATCH | Kind.DEADLOCK:  # its ranks wait forever, and none is named as a victim
            grave = verdict.stops and not trains
        case Kind.REPLICA_LAG if not verdict.groups:  # no group's commits go through
            grave = not trains
        case _:
            grave = not trains and (bool(verdict.victims) or (stands and verdict.stops))
    return Severity.CRITICAL if grave else Severity.WARNING
