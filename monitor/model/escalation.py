"""The events of an eviction, and the instructions that follow from them. Pure.

`decide.escalation` has the rules, `act.evictor` carries the instructions out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from lightkeeper.monitor.model.eviction import Accused, Eviction, Rung
from lightkeeper.monitor.model.incident import Incident
from lightkeeper.monitor.model.names import RankName, ReplicaId
from lightkeeper.monitor.model.observation import LighthouseAway, LighthouseView, Snapshot

# -- what it is given ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long each part of an eviction gets. All times are seconds."""

    kill_s: float = 2.0
    """For the Lighthouse kill; one that works takes 0.4 to 0.5 s (facts/torchft.md)."""
    gate_s: float = 5.0
    """Until the gate is seen to refuse the group. It takes a new list at once; requests
    continue."""
    worker_s: float = 9.0
    """For the WorkerServers, from when all are asked: a grace of 1 s, then 5 s in which each checks
    whether its process is gone, and one retry. Then it is the scheduler's turn. A gentler end or a
    longer grace comes on top, here and in `confirm_s`."""
    scheduler_s: float = 30.0
    """For the schedulers: a pod's grace, or `scancel` until the step has ended."""
    lost_s: float = 60.0
    """The same where the host may be lost: Kubernetes says so after 40 to 50 s of silence."""
    schedule_again_s: float = 10.0
    """Before a scheduler that failed is asked again."""
    confirm_s: float = 25.0
    """Total without the schedulers' time, before giving up. Together below the policy's own
    `eviction_deadline_s`."""
    look_s: float = 1.0
    """Deadline of one look."""
    pause_s: float = 0.25
    """Between two looks."""
    ask_again_s: float = 3.0
    """Before the WorkerServer of a rank that is still alive is asked again."""
    interpreter_stuck_s: float = 3.0
    """An interpreter that ran nothing for this long cannot carry out a kill."""
    heartbeat_dead_s: float = 6.0
    """An older heartbeat counts for no quorum: above the Lighthouse's own 5 s."""
    leave_s: float = 15.0
    """A replica id that still beats this long after its last known process was seen gone has an
    unreported process; a Lighthouse takes its heartbeat timeout (5 s) to notice."""
    quarantine_s: float | None = 24 * 3600.0
    """How long an automatic quarantine lasts; None: until a person releases it."""


@dataclass(frozen=True, slots=True)
class EvictionDeps:
    """What this monitor has for an eviction."""

    timeouts: Timeouts = Timeouts()
    gate: bool = False
    schedulers: tuple[str, ...] = ()
    """Names."""
    sinks: tuple[str, ...] = ()
    """Names of those that get a failure."""

    def given_s(self, eviction: Eviction) -> float:
        """Time limit of all rungs together."""
        times = self.timeouts
        scheduling_s = times.lost_s if eviction.lost else times.scheduler_s
        more_s = scheduling_s if self.schedulers else 0.0
        return times.confirm_s + eviction.manner.more_s + more_s


SLACK_S: Final = 3.0
"""A heartbeat is a second old on the page, and a death is seen a second late."""


class Liveness(StrEnum):
    """What one look shows of one accused incarnation."""

    ALIVE = "alive"
    STUCK = "stuck"  # alive, but nothing that needs its cooperation can work
    GONE = "gone"
    UNSEEN = "unseen"


@dataclass(frozen=True, slots=True)
class LighthouseSeen:
    """What a look at the Lighthouse and the gate shows of one replica id."""

    view: LighthouseView | LighthouseAway
    refused_for_s: float | None = None
    """How long the gate has been seen to refuse it; None while it does not."""

    def out(self, replica_id: ReplicaId, dead_s: float) -> str | None:
        """How it is known that it has left the quorum; None while it is not.

        The Lighthouse's answer counts before the gate's. While it is away, an id that the gate
        refuses for longer than a heartbeat lives (`dead_s`) will be in no quorum when it is back.
        """
        if isinstance(self.view, LighthouseView):
            if not self.view.out(replica_id, dead_s):
                return None
            return "it left the quorum" if self.view.members else "the Lighthouse hears it no more"
        if self.refused_for_s is not None and self.refused_for_s > dead_s:
            return f"the gate refuses it for {self.refused_for_s:.0f} s, the Lighthouse is away"
        return None

    def silent(self, replica_id: ReplicaId, dead_s: float) -> bool:
        """Whether the Lighthouse no longer counts it for a quorum: its heartbeat is dead there."""
        if self.refused_for_s is not None and self.refused_for_s > dead_s:
            return True
        if isinstance(self.view, LighthouseAway):
            return False
        age_s = self.view.heartbeat_ages_s.get(replica_id)
        hears = bool(self.view.members or self.view.heartbeat_ages_s)
        return hears if age_s is None else age_s > dead_s

    def beats_on(self, replica_id: ReplicaId, gone_for_s: float, leave_s: float) -> bool:
        """Whether the id still beats long after its last known process was gone."""
        if isinstance(self.view, LighthouseAway) or gone_for_s < leave_s:
            return False
        age_s = self.view.heartbeat_ages_s.get(replica_id)
        return age_s is not None and age_s + SLACK_S < gone_for_s


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One fresh look at the accused, the Lighthouse and the gate."""

    lives: Mapping[RankName, Liveness]
    details: Mapping[RankName, str]
    lighthouse: LighthouseSeen
    progress: Mapping[RankName, int] = field(default_factory=dict)
    """Phase changes of ranks that report steps."""
    current: frozenset[RankName] = frozenset()
    """Accused registered as this very incarnation."""
    superseded: frozenset[RankName] = frozenset()
    """Accused whose name now belongs to another incarnation."""
    gate_trouble: str | None = None
    """Why the gate's list cannot be set; None while it can."""

    def moving(self, stood: Mapping[RankName, int]) -> bool:
        """Whether all ranks that stood still have moved since: there is nothing to evict."""
        return bool(stood) and all(
            self.lives.get(rank) is Liveness.ALIVE and self.progress.get(rank, -1) > before
            for rank, before in stood.items()
        )

    def having(self, *lives: Liveness) -> tuple[RankName, ...]:
        """Accused ranks in one of these conditions, sorted."""
        return tuple(sorted(rank for rank, life in self.lives.items() if life in lives))

    @property
    def all_gone(self) -> bool:
        """Whether every accused incarnation is gone; False when none is known."""
        return bool(self.lives) and all(life is Liveness.GONE for life in self.lives.values())


# -- events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DecidedAgain:
    """The same decision again, after a takeover or a failed write."""

    evict: Eviction


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Its decision is on disk, and the evictor has it, with a look at this tick's fleet."""

    asked_s: float
    accused: tuple[Accused, ...] = ()
    stood: Mapping[RankName, int] = field(default_factory=dict)
    refused: str | None = None
    """Why it must not be carried out after all: the group has restarted since."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Its monitor has ended or no longer acts; the reporter has taken over."""


@dataclass(frozen=True, slots=True)
class Reviewed:
    """A tick in which no evictor has it."""

    snapshot: Snapshot
    incident: Incident | None
    held: str | None
    """Why it is not decided again."""
    patience_s: float
    """How long that may last."""
    ack_s: float
    """How long the disk may take to store its decision."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """Whether its beginning is on disk, and this monitor may act."""

    may: bool


@dataclass(frozen=True, slots=True)
class Probed:
    look: ProbeResult
    may: bool = True
    """Whether requests may be sent at this moment."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Somebody who was asked has answered, or could not be asked."""

    rung: Rung
    whom: str
    said: str
    done: bool | None = None


@dataclass(frozen=True, slots=True)
class Revoked:
    """From now on nobody may be asked."""

    why: str


Event = (
    DecidedAgain | HandedOver | Interrupted | Reviewed | Cleared | Probed | Answered
    | Revoked | LighthouseSeen
)  # fmt: skip

# -- instructions --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """Record on disk that it begins, then send `Cleared`."""

    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Probe:
    """Report the answers that have come, look, then send `Probed`."""

    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Climb:
    """Do what a rung asks for, then send `Answered`: at once where it saves evidence or denies
    launchers, which takes a few seconds at most, else when an answer has come.
    """

    rung: Rung
    whom: str = ""
    """As in `Ask`."""


Instruction = Begin | Probe | Climb
Instructions = tuple[Instruction, ...]
Move = tuple[Eviction, Instructions]
