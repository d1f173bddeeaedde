"""What a detector reports: who did what, since when, on what evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from lightkeeper.monitor.model.names import GroupName, Host, RankName, group_of
from lightkeeper.monitor.model.wait_map import WaitMap

# -- verdict -----------------------------------------------------------------------------------


class Confidence(StrEnum):
    """How far an accusation may be trusted to act on."""

    CERTAIN = "certain"
    """Seen directly (a dead process), or the only explanation of what every rank shows."""
    LIKELY = "likely"
    """Supported by a strict majority or by the rank's own history, contradicted by nothing."""
    UNSURE = "unsure"
    """Culprits tie or evidence is missing; never evicts."""


class Kind(StrEnum):
    """Fault kinds; the class in ALGORITHMS.md section 0 beside each."""

    DEAD = "dead"  # D
    NOT_ENTERED = "not_entered"  # H1: a hang outside any collective
    MISMATCH = "mismatch"  # H2
    DEADLOCK = "deadlock"  # H2 by order, H3: all wait inside collectives, nobody is absent
    STRAGGLER = "straggler"  # S1
    REPLICA_LAG = "replica_lag"  # heals in a loop, fails commits, flaps, does not take part
    LIGHTHOUSE_AWAY = "lighthouse_away"  # accuses no rank
    QUORUM_LOST = "quorum_lost"  # requests that the Lighthouse does not have; accuses no rank
    STATE_CORRUPT = "state_corrupt"  # X: NaN or Inf, unequal replicas, a loss that jumps
    UNSEEN = "unseen"  # takes part, and no WorkerServer reports it; accuses no rank
    ABSENT = "absent"  # trained, is gone and not back; accuses no rank
    PROGRESS_LOST = "progress_lost"  # continues from an earlier step; accuses no rank
    BY_HAND = "by_hand"  # no fault: a person evicted; no detector or policy covers it


FAULTS: tuple[Kind, ...] = tuple(kind for kind in Kind if kind is not Kind.BY_HAND)
"""What detectors find and policies cover."""


class Severity(StrEnum):
    """How bad a fault is for the job, in Alertmanager's usual words."""

    INFO = "info"  # worth knowing; nothing to do yet
    WARNING = "warning"  # the job continues, slower or at a risk
    CRITICAL = "critical"  # somebody waits forever, or the state is corrupt


@dataclass(frozen=True, slots=True)
class Meaning:
    """What the monitor has to know about a kind of fault; all else has a safe default."""

    what: str
    """One line, for the policy file."""
    stops: bool = True
    """True if it makes ranks stand still. During a kind that stops nobody, the fleet still has a
    pace to compare."""
    title: str = ""
    """For a page; empty: the kind's own name is a common word."""


OF_LIGHTHOUSE: Final = frozenset({Kind.LIGHTHOUSE_AWAY, Kind.QUORUM_LOST})
"""Kinds that a job without a Lighthouse cannot have."""

MEANINGS: Final[Mapping[Kind, Meaning]] = {
    Kind.DEAD: Meaning(
        "a process is gone while its group or its heartbeat lives on", title="death"
    ),
    Kind.NOT_ENTERED: Meaning(
        "a rank hangs: others wait in a collective that it has not entered", title="hang"
    ),
    Kind.MISMATCH: Meaning(
        "ranks of a group call different collectives: a fault of the program",
        title="different collectives",
    ),
    Kind.DEADLOCK: Meaning(
        "all wait inside of collectives: a fault of the program, of a link or a GPU"
    ),
    Kind.STRAGGLER: Meaning(
        "a rank slows the whole job; is evicted once it has cost more than an eviction", stops=False
    ),
    Kind.REPLICA_LAG: Meaning(
        "a group heals in a loop, fails commits, flaps, or takes no part", stops=False
    ),
    Kind.LIGHTHOUSE_AWAY: Meaning(
        "accuses no group: page or observe only", title="Lighthouse away"
    ),
    Kind.QUORUM_LOST: Meaning(
        "all groups ask for a quorum, and the Lighthouse lacks requests", title="lost requests"
    ),
    Kind.STATE_CORRUPT: Meaning(
        "NaN or Inf, unequal replicas, a loss that jumps", stops=False, title="wrong numbers"
    ),
    Kind.UNSEEN: Meaning(
        "takes part in the quorum, and no WorkerServer reports it", stops=False,
        title="a participant that nobody reports",
    ),
    Kind.ABSENT: Meaning(
        "trained, is gone, and has not come back", stops=False, title="a group that is missing"
    ),
    Kind.PROGRESS_LOST: Meaning(
        "the job continues from an earlier step than it had committed", stops=False,
        title="lost progress",
    ),
    Kind.BY_HAND: Meaning("a person evicted", stops=False, title="evicted by hand"),
}  # fmt: skip
"""All kinds; `tests/monitor/model/test_verdict.py` names a missing one."""

SLOWS_ONLY: Final = frozenset(kind for kind, meaning in MEANINGS.items() if not meaning.stops)
"""Kinds that stop nobody."""


BY_ELIMINATION: Final = "elimination: every rank that is seen waits"
"""The source of a verdict on the weakest evidence for a hang."""


TAKEN: Final = "taken away"
"""The evidence that a scheduler ended the ranks, or that memory ran out: no host is to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One detector's finding in one tick. Unless it says so, it accuses nobody."""

    kind: Kind
    culprits: tuple[RankName, ...] = ()
    """Sorted; empty when it is no rank's fault, or while it is unknown whose (`candidates`)."""
    groups: tuple[GroupName, ...] = ()
    """Replica groups of the suspects, sorted; if empty, nobody can be evicted for it."""
    reason: str
    """One English sentence that a tired person understands."""
    confidence: Confidence = Confidence.UNSURE
    since_s: float
    """Unix time at which the fault began, as nearly as can be known."""
    victims: tuple[RankName, ...] = ()
    """Ranks that wait for the suspects."""
    evidence: Mapping[str, str] = field(default_factory=dict)
    """What it rests on: source -> observation."""
    lost_s: float = 0.0
    """Fleet time lost to it so far, for faults that only slow (straggler)."""
    spare: str = ""
    """Why an eviction would not fix it, or is not needed (yet); empty: nothing against it."""
    brief: str = ""
    """The reason in a few words, for a headline: who, what, where. Empty: `reason` is short
    enough."""
    signature: str = ""
    """Same program place, same signature: `mismatch:intra:all_reduce`."""

    settled: bool = field(default=False, compare=False)
    """It has happened, and stays true without lasting: a death whose cause is known."""
    blamed: tuple[Host, ...] = ()
    """Hosts that are broken by what their machines testify; the culprits run there."""
    tie: tuple[GroupName, ...] = ()
    """Groups of which one has to go, whichever, for the others to train; empty: no such tie."""
    lost: bool = False
    """Whether its suspects are out of sight with their hosts, and not known to be dead."""
    candidates: tuple[RankName, ...] = ()
    """Sorted; one of them may be to blame. A detector need not fill it in: the culprits of an
    UNSURE verdict become candidates."""
    waits: WaitMap | None = field(default=None, compare=False)
    """Who is seen to wait for whom around it; None: nobody."""

    def __post_init__(self) -> None:
        """An UNSURE verdict blames nobody: it has candidates, and any other has culprits."""
        unsure = self.confidence is Confidence.UNSURE
        if unsure and self.culprits:
            object.__setattr__(self, "candidates", self.culprits)
            object.__setattr__(self, "culprits", ())
        elif self.candidates and not unsure:
            object.__setattr__(self, "culprits", self.culprits or self.candidates)
            object.__setattr__(self, "candidates", ())
        if not self.groups:
            groups = sorted({group_of(rank) for rank in self.suspects})
            object.__setattr__(self, "groups", tuple(groups))

    @property
    def suspects(self) -> tuple[RankName, ...]:
        """The culprits, or the candidates: for what follows the same ranks from tick to tick."""
        return self.culprits or self.candidates

    @property
    def accuses(self) -> bool:
        """True if it accuses its groups: it is sure, and does not only ask for a person."""
        return self.confidence is not Confidence.UNSURE and not self.spare

    @property
    def stops(self) -> bool:
        """True if anybody stands still because of it; a spared mismatch hangs nothing."""
        if self.kind is Kind.LIGHTHOUSE_AWAY:
            return bool(self.victims)
        return self.kind not in SLOWS_ONLY and not (self.kind is Kind.MISMATCH and self.spare)


# -- standing ----------------------------------------------------------------------------------


class RankStanding(StrEnum):
    """What stops or blocks a rank, if anything."""

    DEAD = "dead"
    SILENT = "silent"  # no report in this tick
    UNKNOWN = "unknown"  # no phases of its own, and nobody waits for it
    STOPPED = "stopped"  # by a signal (state T)
    TRACED = "traced"  # by a debugger or the like
    FROZEN = "frozen"  # the interpreter does not run: the GIL is held
    HELD = "held"  # inside an unfinished collective of its own group
    WAITING = "waiting"  # in communication across groups
    LEFT = "left"  # inside a collective that all have entered and a peer has left
    ALONE = "alone"  # works by itself
    OUTSIDE = "outside"  # reports no phases, and is not in the collective that others wait in


class RankHealth(StrEnum):
    """How a rank looks in one tick."""

    HEALTHY = "healthy"
    WAITING = "waiting"  # held up by others
    STALLED = "stalled"  # alone, and not progressing; or to blame for a standstill
    DEAD = "dead"
    UNREACHABLE = "unreachable"
    STARTING = "starting"  # attached, not through its first commits
    LATE = "late"  # no commit for longer than a hang needs, cause not known yet
    SLOW = "slow"  # to blame for a pace that holds the others up
    CORRUPT = "corrupt"  # to blame for numbers that are wrong
    TRACED = "traced"  # a debugger or profiler holds it
    ENDED = "ended"  # by SIGTERM or Ctrl-C: with the job, or because a peer had failed
    FINISHED = "finished"  # its work is done, or it ended with exit code 0


WORST_FIRST: Final = (
    RankHealth.DEAD, RankHealth.UNREACHABLE, RankHealth.STALLED, RankHealth.CORRUPT,
    RankHealth.TRACED, RankHealth.SLOW, RankHealth.STARTING, RankHealth.LATE, RankHealth.WAITING,
    RankHealth.HEALTHY, RankHealth.ENDED, RankHealth.FINISHED,
)  # fmt: skip
