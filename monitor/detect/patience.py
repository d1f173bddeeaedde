"""How long a rank may stand still before it is called hung, and why.

Theory of operation. The longest applicable allowance counts: the floor, a higher one where the
phase is unknown; its learned step time; a pause of the same kind by itself, its role, or peers at
this very moment; the budgets of declared phases, of healing and of the first steps. Each has a
source, which the verdict states.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from lightkeeper.monitor.detect.history import History
from lightkeeper.monitor.detect.track import OUTSIDE, RUNNING, UNDECLARED, RankTrack
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.wording import seconds
from lightkeeper.worker_server.wire import (
    FINISHED_PHASE,
    LONG_PHASES,
    WAITING_PHASE,
    Doing,
    Process,
)

LASTS = frozenset({Doing.COMPILE, Doing.SAVE, Doing.EVALUATE, Doing.START})
"""What may keep a healthy rank at one line for long while others wait."""
FOR_OTHERS = frozenset({Doing.COLLECTIVE, Doing.STORE, Doing.GROUP})
"""Waits for other ranks: a rank that stands there is no root, whatever counters say."""
BLOCKS = frozenset({Doing.LOCK, Doing.IO, Doing.PROCESS, Doing.DATA})
_STILL = BLOCKS | {Doing.SLEEP}
_STUCK = _STILL | {Doing.SAVE}
_BEFORE_THEY_GIVE_UP = 0.75
"""Share of its waiters' own timeout after which a blocked rank is called hung: the rest is for the
second look, and for the eviction that is to come before the timeout."""
_NOT_STARTED = "init"
"""The page's own name for the time before the first step: no declaration of the loop."""
_WORKS_CORES = 0.05
"""A wait in TorchFT uses 0.007, and moves 2 kB a second (seen in the field suite)."""
_WORKS_BYTES_S = 1e5
_WAKES_S = 5.0
"""Wake-ups a second of a main thread that reads a socket or evaluates. Each look at its stack makes
two; no bytes, no others; an evaluation with 0.045 of a core had 37 (field suite, 2026-11-28)."""
_LULL_S = 8.0
"""A torchrun that a rank runs does nothing for 3 s when its ranks have ended, on a busy host."""
_READS = frozenset({Doing.IO, Doing.START, Doing.EVALUATE})
_FETCHES = frozenset({Doing.DATA, Doing.PROCESS})
_SEEN_OFTEN = 3
"""Declared pauses after which their usual length replaces the budget."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """A threshold and where it comes from."""

    span_s: float
    source: str

    def __str__(self) -> str:
        """Such as `5 s floor`, or `2 x learned gap 10 s of 'other': 20 s`."""
        plain = self.source.startswith(f"{self.span_s:g} s")
        return self.source if plain else f"{self.source}: {seconds(self.span_s)}"

    @classmethod
    def flat(cls, span_s: float, what: str) -> Allowance:
        """One of the configured spans."""
        return cls(span_s, f"{span_s:g} s {what}")

    def times(self, factor: float, why: str) -> Allowance:
        """A multiple of it."""
        if factor == 1:
            return self
        return Allowance(factor * self.span_s, f"{factor:g} x ({self.source}), {why}")


def allowance(history: History, track: RankTrack) -> Allowance:
    """How long this rank may stand still in its current phase."""
    if track.doing == FINISHED_PHASE:
        return Allowance(inf, "it has finished")
    best = max(_reasons(history, track), key=lambda reason: reason.span_s)
    if track.running and not (track.doing in LONG_PHASES and _declares(track)):
        config, usual = history.config, _ordinary(history, track)
        longer = usual.times(config.running_factor, "its main thread runs")
        if longer.span_s > max(usual.span_s, config.lasting_floor_s):
            most_s = max(usual.span_s, config.lasting_floor_s)
            longer = Allowance(most_s, f"{most_s:.0f} s while its main thread runs")
        best = max(best, longer, key=lambda reason: reason.span_s)
    return best


def undeclared(history: History, track: RankTrack) -> Allowance | None:
    """The allowance of a rank in no collective that declares no phase; None: it declares one.

    Two stacks that agree shorten it, unless they show a sleep, or work that is known to last.
    """
    if _declares(track) or track.doing == FINISHED_PHASE:
        return None
    config, witness = history.config, track.witness
    lasting = _lasting(track)
    if lasting is not None:
        return Allowance.flat(config.lasting_floor_s, f"to {lasting}, by its stacks")
    computes = witness is not None and witness.doing is Doing.UNKNOWN and track.state in RUNNING
    if witness is None or computes or witness.doing is Doing.SLEEP:
        return Allowance.flat(config.undeclared_floor_s, "where no phase is declared")
    if at_work(track):
        return Allowance.flat(config.undeclared_floor_s, "while a child or it is at work")
    by_stacks = f"by {witness.samples} stacks"
    if witness.doing is Doing.DATA:
        return Allowance.flat(config.data_floor_s, f"to wait for data, {by_stacks}")
    return Allowance.flat(config.witnessed_floor_s, f"at one place, {by_stacks}")


def works_long(track: RankTrack) -> bool:
    """True if it says that it does what takes long: a checkpoint, an evaluation, a heal."""
    step = track.step
    tagged = step is not None and (step.healing or bool(LONG_PHASES.intersection(step.tags)))
    return tagged or track.doing in LONG_PHASES


def out_of_sight(history: History, track: RankTrack) -> bool:
    """True if a rank that does not answer may still be in a pause, or at the long work that it was
    last seen at, or does not answer for a moment only.
    """
    config, silence_s = history.config, track.silence_s(history.now_s)
    seen = None if track.report is None else track.report.witness
    lasts = seen is not None and seen.doing in LASTS
    span_s = config.lasting_floor_s if lasts else config.undeclared_floor_s
    if works_long(track):
        span_s = allowance(history, track).span_s
    return silence_s < config.silent_s or track.stall_s + silence_s < span_s


def _declares(track: RankTrack) -> bool:
    """True if its phase says what it does."""
    if track.doing == _NOT_STARTED:
        return track.phased
    return track.doing not in (OUTSIDE, UNDECLARED, WAITING_PHASE)


def before_they_give_up(track: RankTrack, waiters: Iterable[RankTrack]) -> Allowance | None:
    """The allowance of a blocked rank whose waiters have timeouts of their own; None: they have
    none that is known, or it is not seen to be blocked.
    """
    if not blocked(track):
        return None
    limits = [(limit_s, waiter.rank) for waiter in waiters if (limit_s := waiter.limit_s) < inf]
    if not limits:
        return None
    limit_s, rank = min(limits)
    return Allowance(_BEFORE_THEY_GIVE_UP * limit_s, f"{rank} gives up after {seconds(limit_s)}")


def at_work(track: RankTrack, lull_s: float = _LULL_S) -> bool:
    """True if its last stack shows work that may last, and the kernel sees it done, or did a moment
    ago: a file is written or read, a child is busy, a compiler runs.
    """
    if track.seen_s - track.worked_s < lull_s:
        return True
    seen = None if track.report is None else track.report.witness
    doing = Doing.UNKNOWN if seen is None else seen.doing
    if doing in (Doing.IO, Doing.LOCK):  # who waits for a thread that saves or fetches
        return track.used is not None and _moves(track.used, doing)
    return (doing in LASTS or doing in _FETCHES) and _active(track)


def last_worked_s(track: RankTrack, now_s: float) -> float:
    """When it was last seen at work while it stood still: its usage is that of the last 5 s."""
    return now_s if track.stall_s > 6 and at_work(track, 0.0) else track.worked_s


def _lasting(track: RankTrack) -> Doing | None:
    """The work in its last stack, if known to last: it moves from line to line, one stack is
    enough.
    """
    seen = None if track.fresh is None else track.fresh.witness
    return seen.doing if seen is not None and seen.doing in LASTS else None


def _active(track: RankTrack) -> bool:
    """True if the process or a child of it uses cores or moves bytes, or its main thread wakes."""
    if (process := track.used) is None:
        return False
    seen = None if track.report is None else track.report.witness
    doing = Doing.UNKNOWN if seen is None else seen.doing
    return (process.cores or 0.0) >= _WORKS_CORES or _moves(process, doing)


def _moves(process: Process, doing: Doing) -> bool:
    """True if bytes move; for a socket only the wake-ups of its reader show that."""
    reads = doing in _READS and (process.wakes_s or 0.0) >= _WAKES_S
    return reads or (process.bytes_s or 0.0) >= _WORKS_BYTES_S


def _ordinary(history: History, track: RankTrack) -> Allowance:
    """The allowance of every rank, in any phase."""
    span_s, step_s = history.hang_after_s(track), history.learned_step_s(track)
    if span_s <= history.config.stall_floor_s:
        return Allowance.flat(span_s, "floor")
    return Allowance(span_s, f"{span_s / step_s:.2g} x learned step {seconds(step_s)}")


def _reasons(history: History, track: RankTrack) -> Iterable[Allowance]:
    config, step = history.config, track.step
    yield _ordinary(history, track)
    for tag in () if step is None else sorted(LONG_PHASES.intersection(step.tags)):
        yield Allowance.flat(config.long_phase_budget_s, f"for {tag}, by its tag")
    if track.doing in LONG_PHASES and _declares(track):
        yield _declared(history, track)
    else:
        yield from _learned(history, track)
    stuck = blocked(track, _STUCK)
    if step is not None and step.healing and not stuck:  # reported at an attempt's end
        yield Allowance(config.healing_budget_s, f"{seconds(config.healing_budget_s)} to heal")
    if track.gives_state and not blocked(track):
        yield Allowance.flat(config.healing_budget_s, "to give its state to a group that heals")
    if history.starting(track):
        if blocked(track):
            yield Allowance.flat(config.data_floor_s, "at one place in its first steps")
        elif stuck:
            yield Allowance.flat(config.lasting_floor_s, f"to {Doing.SAVE}, by its stacks")
        elif track.healed_steps is None:
            yield Allowance.flat(config.warm_up_budget_s, "to start")
        else:
            yield Allowance.flat(config.healing_budget_s, "for first steps after heal")


def blocked(track: RankTrack, kinds: frozenset[Doing] = _STILL) -> bool:
    """True if two stacks show it in a lock, file, socket, child or loader, and nothing moves there:
    that is no slow start and no long download.
    """
    witness = track.witness
    return witness is not None and witness.doing in kinds and not _active(track)


def _declared(history: History, track: RankTrack) -> Allowance:
    """The budget of a declared long phase, or what is usual in this job."""
    config, phase = history.config, track.doing
    budget = Allowance.flat(config.long_phase_budget_s, f"for {phase}")
    usual = history.habits.learned(track.identity.group_rank, phase, history.now_s)
    if usual is None or usual.events < _SEEN_OFTEN:
        return budget
    span_s = max(config.long_phase_floor_s, config.long_phase_factor * usual.span_s)
    if span_s >= budget.span_s:
        return budget
    factor = f"{config.long_phase_factor:g} x learned gap {seconds(usual.span_s)} of '{phase}'"
    return Allowance(span_s, f"{factor}, at least {seconds(config.long_phase_floor_s)}")


def _learned(history: History, track: RankTrack) -> Iterable[Allowance]:
    """What earlier pauses in this phase allow, and those of peers right now."""
    config, phase = history.config, track.doing
    usual = history.habits.learned(track.identity.group_rank, phase, history.now_s)
    if usual is not None:
        yield Allowance(
            min(config.habit_factor * usual.span_s, config.long_phase_budget_s),
            f"{config.habit_factor:g} x learned gap {seconds(usual.span_s)} of '{phase}'",
        )
    since_s = history.now_s - track.stall_s
    peer = history.habits.meanwhile(phase, since_s, track.rank)
    if peer is not None:
        yield Allowance(
            min(config.habit_factor * peer.span_s, config.long_phase_budget_s),
            f"{config.habit_factor:g} x gap {seconds(peer.span_s)} of '{phase}' that {peer.rank} "
            "made meanwhile",
        )


def giving_up(history: History, victims: Iterable[RankName]) -> frozenset[RankName]:
    """Victims that left their wait without a commit, wait in nothing new, and may be about to end.

    Their interpreters are shutting down then, and answer nobody.
    """
    return frozenset(rank for rank in victims if _ends(history.tracks[rank], history))


def _ends(track: RankTrack, history: History) -> bool:
    stopped = track.fresh is None or history.stopped(track)
    outside = track.doing in (UNDECLARED, OUTSIDE) and track.waits_in is None
    return outside and not stopped and track.stall_s < history.config.ending_s
