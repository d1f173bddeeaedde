"""One incarnation of one rank, by its reports.

Theory of operation. A stall is a lower bound: the smaller of the rank's own ages (of its phase, and
of the last collective it entered or left) and the time over which this monitor saw the same
counters. So neither a late monitor nor a missed poll can inflate it, and a rank that moved and came
back to the same phase is not stalled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from lightkeeper.monitor.model.names import GroupName, RankName, ReplicaId
from lightkeeper.monitor.model.observation import Failure, Observation, Unreachable
from lightkeeper.worker_server.wire import (
    ACROSS,
    SOURCE_REPORTER,
    WAITING_PHASE,
    Ending,
    Forming,
    GroupHead,
    Identity,
    Process,
    StateReport,
    StepState,
    Tracer,
    TransferHead,
    Witness,
)

OUTSIDE: Final = "outside of collectives"
"""The phase of a rank that reports none, while it is in no collective."""
UNDECLARED: Final = "other"
"""The reporter's name for the time between phases."""
INSIDE: Final = "inside a collective"
"""Where ranks are that are all in one and wait for its end."""

_FAILED_MAX: Final = 64
"""More than this in a row are its own fault, not the cost of another group's."""
RUNNING: Final = ("R", "D")
"""States of a main thread that works, wants to work or waits for the disk."""


@dataclass(slots=True)
class RankTrack:
    """One incarnation of one rank, as seen so far."""

    identity: Identity
    first_seen_s: float
    seen_s: float
    """Last tick in which the target was registered."""
    predecessor: str | None = None
    """Incarnation before this one, if this monitor saw it."""
    trained_as: ReplicaId | None = None
    """As `Observation.trained_as`."""
    observation: Observation | None = None
    """From the latest tick; None once the target is unregistered."""
    report: StateReport | None = None
    """The latest report, however old."""
    report_s: float | None = None
    silent_since_s: float | None = None
    """First tick of the current silence; None while it answers."""
    progress: tuple[int, int] | None = None
    """Phase changes and collectives entered or left, so far."""
    progress_since_s: float = 0.0
    moved_s: float | None = None
    """When this monitor last saw the progress counter change."""
    still_sweeps: int = 0
    """Sweeps in a row without progress."""
    running_sweeps: int = 0
    """Those that saw the main thread run or wait for the disk."""
    unread: int = 0
    """How often its past may still be requested: it made steps before this monitor saw it."""
    healed_steps: int | None = None
    """Steps that this incarnation had made when it was last seen healing; None: never."""
    used: Process | None = None
    """The latest report that has its usage: a look may miss it."""
    worked_s: float = float("-inf")
    """When it was last seen at work while it stood still; -inf: never."""
    traced_since_s: float | None = None
    """First sweep that found it traced; None while it is not."""
    died_s: float | None = None
    first_commit_s: float | None = None
    """When the first commit of this incarnation was seen; None before, or when missed."""
    last_commit_s: float | None = None
    heeded_s: float | None = None
    """When its own word that its host is leaving first spared it."""
    failed: list[tuple[float, int]] = field(default_factory=list)
    """Attempts without a commit: the tick that showed them, and how many; the latest."""

    # derived from the above; read many times a tick, so computed once

    fresh: StateReport | None = None
    """The report of the latest tick; None when there was none."""
    forming: Forming | None = None
    """The process group that it is creating, in the latest tick."""
    step: StepState | None = None
    """Step state of the latest report, however old."""
    commits: int = 0
    """Commits of this incarnation, by the latest report."""
    made: int = 0
    """Its steps, as `StepState.made`, by the latest report."""
    doing: str = OUTSIDE
    """The phase of the latest report; `OUTSIDE` where no phases are reported."""
    phased: bool = False
    """True if the loop itself reports its waiting; other sources' phases may include waiting."""
    ring_heads: tuple[GroupHead, ...] = ()
    """Heads of the rank's own ring: its threads moved them, and they are in every report."""
    inside: tuple[GroupHead, ...] = ()
    """Heads of the collectives it is inside, by the latest report."""
    held: tuple[TransferHead, ...] = ()
    """Sends and receives that hold its thread, by the latest report."""
    stall_s: float = 0.0
    """Least time without progress, at the latest report."""
    participating: bool = False
    """True if it contributes to the job's steps in this tick: alive, warm, in the quorum."""
    rank: RankName = field(init=False)
    group: GroupName = field(init=False)

    def __post_init__(self) -> None:
        self.rank, self.group = self.identity.rank, self.identity.group

    def see(self, observation: Observation | None) -> None:
        """Take in this tick's observation; None: its target is unregistered."""
        self.observation = observation
        self.fresh = None if observation is None else observation.report
        self.forming = None if self.fresh is None else self.fresh.forming

    @property
    def refused(self) -> bool:
        """True if its host answers, and nobody listens there any more."""
        outcome = None if self.observation is None else self.observation.outcome
        return isinstance(outcome, Unreachable) and outcome.reason is Failure.REFUSED

    @property
    def heads(self) -> tuple[GroupHead, ...]:
        """Where it is in its process groups, by the latest report."""
        return () if self.report is None else self.report.heads

    @property
    def ending(self) -> Ending | None:
        """How it ended, by the latest report."""
        return None if self.report is None else self.report.ending

    def silence_s(self, now_s: float) -> float:
        """For how long its WorkerServer has not answered."""
        return 0.0 if self.silent_since_s is None else now_s - self.silent_since_s

    @property
    def death_s(self) -> float:
        """When it died; only for the dead."""
        return self.seen_s if self.died_s is None else self.died_s

    @property
    def running(self) -> bool:
        """True if its main thread was seen running in most sweeps of a stall, and in at least 3."""
        return self.still_sweeps >= 3 and 4 * self.running_sweeps >= 3 * self.still_sweeps

    @property
    def step_s(self) -> float | None:
        """Mean seconds a step over this incarnation's life, long phases left out."""
        step = self.step
        if step is None or step.steps < 1 or not step.seconds:
            return None
        return step.trained_s / step.steps

    @property
    def voted(self) -> bool:
        """True if it has committed, as far as anybody reports: its first vote is slow, even where
        it made local steps before.
        """
        return self.step is None or self.commits > 0

    @property
    def held_s(self) -> float:
        """Seconds so far in which collectives held this incarnation outside a waiting phase."""
        step = self.step
        before_s = 0.0 if step is None else step.held_s or 0.0
        return before_s + (0.0 if self.doing == WAITING_PHASE else self.inside_s)

    @property
    def inside_s(self) -> float:
        """Seconds that it has been inside a collective or a transfer; 0 if in none."""
        ages_s = [head.age_s for head in self.inside] + [head.age_s for head in self.held]
        return max(ages_s, default=0.0)

    @property
    def limit_s(self) -> float:
        """Seconds after which its own timeout ends what it waits in now; infinite if not known."""
        timeouts = {} if self.report is None else self.report.timeouts
        if self.waits_in is not None:
            return timeouts.get(self.waits_in, math.inf)
        return timeouts.get("collective", math.inf) if self.inside or self.held else math.inf

    @property
    def state(self) -> str | None:
        """Letter of its main thread's state, in the latest tick."""
        return None if self.fresh is None else self.fresh.process.state

    @property
    def tracer(self) -> Tracer | None:
        """The tracer, other than its WorkerServer, in the latest tick."""
        return None if self.fresh is None else self.fresh.process.tracer

    @property
    def waits_in(self) -> str | None:
        """What it waits in, by TorchFT's own calls: a quorum or a commit vote."""
        return None if self.fresh is None or self.step is None else self.step.waits_in

    @property
    def witness(self) -> Witness | None:
        """Where it stands, if at least two samples agree."""
        seen = None if self.fresh is None else self.fresh.witness
        return seen if seen is not None and seen.samples >= 2 else None

    @property
    def gives_state(self) -> bool:
        """True if its main thread waits while TorchFT's is in its code, for a group that heals."""
        return self.witness is not None and self.witness.thread is not None

    @property
    def waited_s(self) -> float | None:
        """Seconds of this incarnation in which its main thread waited for others, so far.

        None if its source of steps does not report it.
        """
        step = self.step
        if step is None or step.waited_s is None:
            return None
        return step.waited_s + (self.inside_s if step.waits_s is None else step.waits_s)

    @property
    def paced(self) -> bool:
        """True if its own time is known: by its phases, or by its waits."""
        return self.phased or (self.step is not None and self.step.waited_s is not None)

    @property
    def inside_own(self) -> bool:
        """True if it is inside a collective or a transfer of its own replica group, now."""
        if self.fresh is None:
            return False
        return bool(self.held) or any(of_own_group(head, self) for head in self.inside)

    @property
    def inside_any(self) -> bool:
        """True if it is inside a collective or a transfer, of its own group or across groups."""
        return self.fresh is not None and bool(self.inside or self.held)

    @property
    def inside_across(self) -> bool:
        """True if it is inside a collective that spans replica groups, in the latest tick."""
        return self.fresh is not None and any(h.name.startswith(ACROSS) for h in self.inside)

    @property
    def only_whole(self) -> bool:
        """True if all its process groups hold the whole replica group (or itself alone)."""
        sizes = {head.size for head in self.heads}
        return bool(sizes) and sizes <= {1, self.identity.world_size}

    def take(self, report: StateReport, now_s: float) -> None:
        before, step = self.step, report.step
        self.report, self.report_s, self.step = report, now_s, step
        self.commits, self.made, self.doing, self.phased = 0, 0, OUTSIDE, False
        if step is not None:
            self.commits, self.made, self.doing = step.commits, step.made, step.phase
            self.phased = step.source == SOURCE_REPORTER
        self._take_progress(report, now_s)
        self._take_commits(before, now_s)
        self._take_process(report, now_s)

    def _take_progress(self, report: StateReport, now_s: float) -> None:
        step = report.step
        moves, least_s = self._take_heads(report)
        if step is not None:
            least_s = min(least_s, step.phase_age_s)
        progress = 0 if step is None else step.progress, moves
        if progress != self.progress:
            if self.progress is not None:
                self.moved_s = now_s
            self.progress, self.progress_since_s = progress, now_s
            self.still_sweeps = self.running_sweeps = 0
        elif report.process.tracer is not None:  # after a trace, counting starts at its end
            self.progress_since_s = now_s
            self.still_sweeps = self.running_sweeps = 0
        else:
            self.still_sweeps += 1
            self.running_sweeps += report.process.state in RUNNING
        witness = report.witness
        if least_s == math.inf and witness is not None and witness.samples >= 2:
            least_s = witness.same_s + witness.age_s  # it has done nothing yet that has an age
        aged = least_s < math.inf
        self.stall_s = max(0.0, min(least_s, now_s - self.progress_since_s)) if aged else 0.0

    def _take_commits(self, before: StepState | None, now_s: float) -> None:
        step = self.step
        if step is None:
            return
        if step.healing:
            self.healed_steps = step.made
        if before is not None and step.commit_failures > before.commit_failures:
            self.failed.append((now_s, step.commit_failures - before.commit_failures))
            del self.failed[:-_FAILED_MAX]
        if step.last_commit_age_s is not None:
            self.last_commit_s = now_s - step.last_commit_age_s
            if self.first_commit_s is None and (before is not None or step.commits == 1):
                self.first_commit_s = self.last_commit_s

    def _take_heads(self, report: StateReport) -> tuple[int, float]:
        """Number of movements so far, of heads and transfers, and the least of their ages."""
        moves, least_s = 0, math.inf
        ring, inside = [], []
        for head in report.heads:
            if head.enqueued:  # none: no age
                least_s = min(least_s, head.age_s)
            if head.inside > 0:
                inside.append(head)
            if head.read_age_s is None:
                ring.append(head)
                moves += head.enqueued + head.completed
        self.held = ()
        if report.transfers:
            least_s = min(least_s, *(transfer.age_s for transfer in report.transfers))
            moves += sum(2 * each.posted - each.unfinished for each in report.transfers)
            self.held = tuple(transfer for transfer in report.transfers if transfer.held)
        self.ring_heads = report.heads if len(ring) == len(report.heads) else tuple(ring)
        self.inside = tuple(inside)
        return moves, least_s

    def _take_process(self, report: StateReport, now_s: float) -> None:
        if report.process.cores is not None:
            self.used = report.process
        if report.process.tracer is None:
            self.traced_since_s = None
        elif self.traced_since_s is None:
            self.traced_since_s = now_s
        if report.process.alive:
            self.died_s = None
        elif self.died_s is None:
            self.died_s = now_s - (report.process.dead_age_s or 0.0)


def inside_own_group(head: GroupHead, track: RankTrack) -> bool:
    """True if the rank is inside a collective of its own replica group.

    A process group that spans replica groups does not count: that wait is TorchFT's.
    """
    return head.inside > 0 and of_own_group(head, track)


def of_own_group(head: GroupHead, track: RankTrack) -> bool:
    """True if a process group holds several ranks of its replica group, and no others."""
    across = head.name.startswith(ACROSS) or head.size > track.identity.world_size
    return head.size > 1 and not across
