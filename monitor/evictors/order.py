"""What the evictors are asked to do, and how long they may take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from monitor.names import Host, RankName
from monitor.policy import Evict
from monitor.snapshot import RungOutcome

AUTHOR: Final = "lightkeeper"
"""Of what the monitor decided itself."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long each part of an eviction gets. All times are seconds."""

    kill_s: float = 2.0
    """For the Lighthouse kill; one that works takes 0.4 to 0.5 s (facts/torchft.md)."""
    gate_s: float = 5.0
    """Until the gate is seen to refuse the group. It takes a new list at once; it is asked on."""
    worker_s: float = 9.0
    """For the WorkerServers, from when all are asked: a grace of 1 s, then 5 s in which each looks
    whether its process is gone, and one more try. Then the scheduler's turn comes."""
    scheduler_s: float = 30.0
    """For the schedulers: a pod's grace, or `scancel` until the step has ended."""
    schedule_again_s: float = 10.0
    """Before a scheduler that failed is asked again."""
    grace_s: float = 1.0
    """Between SIGTERM and SIGKILL. Longer lets a checkpoint finish, shorter frees the fleet."""
    confirm_s: float = 25.0
    """In all but the schedulers' time, before giving up. Together below the policy's own
    `eviction_deadline_s`."""
    look_s: float = 1.0
    """Deadline of one look."""
    pause_s: float = 0.25
    """Between two looks."""
    ask_again_s: float = 3.0
    """Before the WorkerServer of a rank that is still alive is asked again."""
    interpreter_stuck_s: float = 3.0
    """An interpreter that ran nothing for so long cannot carry out a kill."""
    heartbeat_dead_s: float = 6.0
    """An older heartbeat counts for no quorum: above the Lighthouse's own 5 s."""
    leave_s: float = 15.0
    """A replica id that still beats so long after its last known process was seen gone has a
    process that nobody told of; a Lighthouse takes its heartbeat timeout (5 s) to notice."""
    quarantine_s: float | None = 24 * 3600.0
    """How long an automatic quarantine lasts; None: until a person releases it."""


_UNKNOWN: Final = Host("")


@dataclass(frozen=True, slots=True)
class Accused:
    """One rank process that may be signalled: this incarnation and no other."""

    rank: RankName
    incarnation: str
    url: str
    host: Host = _UNKNOWN
    place: Mapping[str, str] = field(default_factory=dict)
    """Where its scheduler put it (`Identity.place`)."""


@dataclass(frozen=True, slots=True)
class Order:
    """An eviction to carry out."""

    evict: Evict
    accused: tuple[Accused, ...]
    """Every rank of the group, as the deciding tick saw it."""
    asked_s: float
    author: str = AUTHOR
    refused: str | None = None
    """Why it must not be carried out after all: the group has restarted since."""
    stood: Mapping[RankName, int] = field(default_factory=dict)
    """Culprits that stood still when it was decided, and how many phases they had changed."""
    decided_s: float | None = None
    """Time of its decision, where that is not `asked_s`."""
    attempt: int = 1
    """More than 1: an earlier attempt was interrupted, and this is the same eviction going on."""
    before: tuple[RungOutcome, ...] = ()
    """What the earlier attempt did."""
    evidence: Callable[[], str] | None = None
    """Waits until its evidence is saved, for a few seconds at most by its own account, and says
    what there is; None: none is taken."""
