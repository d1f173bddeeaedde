"""Carries evictions out, one at a time: instructions are done, what came of them is reported.

`EvictionLog` holds every eviction that is known here and moves it (`model.escalation.handle`); each
change is on record before the next instruction is done. `Evictors` is the thread that does them. It
decides nothing, and asks nobody while this monitor may not act, or while it is paused.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from monitor.act.steps import (
    LAST_WORD_S,
    Asker,
    Parties,
    deny_launchers,
    probe,
    save_evidence,
)
from monitor.background import BackgroundQueue
from monitor.clock import Clock
from monitor.model.escalation import (
    Answered,
    Begin,
    Cleared,
    Climb,
    Event,
    EvictionDeps,
    HandedOver,
    Instruction,
    Instructions,
    Interrupted,
    LighthouseSeen,
    Probe,
    Probed,
    Revoked,
    handle,
)
from monitor.model.eviction import KEEPER, Eviction, EvictionState, Rung
from monitor.model.names import IncidentId
from monitor.model.observation import LighthouseAway, LighthouseView

log = logging.getLogger(__name__)

PROGRESS_KEPT_S: Final = 3600.0
"""Ended evictions stay in snapshots for so long: the policy's budget counts an hour."""

Key = tuple[IncidentId, float]
Evidence = Callable[[], str]
Change = tuple[Eviction | None, Eviction]
"""How an eviction was, None when it is new, and how it is."""


class EvictionLog:
    """Evictions without an end, and those of the last hour. Safe to use from any thread.

    Args:
        clock: the time.
        deps: what this monitor has for them.
        record: where each change is kept.
    """

    def __init__(
        self, clock: Clock, deps: EvictionDeps, record: Callable[[Eviction], None]
    ) -> None:
        self._clock = clock
        self._means = deps
        self._record = record
        self._lock = threading.RLock()
        self._known: dict[Key, Eviction] = {}
        self._changes: list[Change] = []
        self._acting = True

    # -- taking over and standing by ------------------------------------------------------------

    def take_over(self, evictions: Iterable[Eviction]) -> tuple[Eviction, ...]:
        """Go on with what the store holds: what has no end is asked again, or abandoned.

        Returned are those of the last hour that an evictor had.
        """
        with self._lock:
            self._known, self._changes, self._acting = {}, [], True
            newest: dict[IncidentId, Key] = {}
            for eviction in sorted(evictions, key=lambda one: one.of_s):
                self._known[eviction.key] = eviction
                self.post(eviction.key, Interrupted())
                older = newest.get(eviction.incident_id)
                if older is not None and self._known[older].open:
                    self.post(older, Revoked("decided again"))
                newest[eviction.incident_id] = eviction.key
            going = [one for one in self._known.values() if one.open]
        for one in going:
            log.warning("eviction of %s has no end: it is asked again or abandoned", one.group)
        since_s = self._clock.now_s() - PROGRESS_KEPT_S
        return tuple(one for one in self.all() if one.taken_up and one.asked_s >= since_s)

    def follow(self, evictions: Iterable[Eviction]) -> None:
        """Nothing is under way here any more; show what the active monitor recorded."""
        with self._lock:
            self._known = {one.key: one for one in evictions}
            self._changes, self._acting = [], False

    # -- asking ---------------------------------------------------------------------------------

    def get(self, key: Key) -> Eviction | None:
        """One eviction; None when nothing is to be done about it here any more."""
        with self._lock:
            return self._known.get(key) if self._acting else None

    def all(self) -> tuple[Eviction, ...]:
        """Every one, oldest first."""
        with self._lock:
            self._forget()
            known = tuple(self._known.values())
        return tuple(sorted(known, key=lambda one: (one.asked_s, one.incident_id)))

    def progress(self) -> tuple[Eviction, ...]:
        """Of the last hour those that the evictor has, or had: what others are shown."""
        since_s, acting = self._clock.now_s() - PROGRESS_KEPT_S, self._acting
        return tuple(
            one
            for one in self.all()
            if one.asked_s >= since_s
            and one.taken_up
            and (not acting or one.interrupted_s is None)
            and one.state is not EvictionState.DECIDED
        )

    def open_about(self, incident_id: IncidentId) -> Eviction | None:
        """The eviction for an incident that has no end yet."""
        found = (one for one in self.all() if one.incident_id == incident_id and one.open)
        return next(found, None)

    def take_changes(self) -> tuple[Change, ...]:
        """What has changed since this was last asked."""
        with self._lock:
            changes, self._changes = tuple(self._changes), []
        return changes

    def _forget(self) -> None:
        since_s = self._clock.now_s() - PROGRESS_KEPT_S
        kept = {k: one for k, one in self._known.items() if one.open or one.asked_s >= since_s}
        self._known = kept

    # -- changing -------------------------------------------------------------------------------

    def add(self, eviction: Eviction) -> None:
        """One that was decided now."""
        with self._lock:
            self._keep(None, eviction)

    def post(self, key: Key, event: Event) -> Instructions:
        """Something has happened to an eviction; what is to be done now."""
        with self._lock:
            before = self.get(key)
            if before is None:
                return ()
            after, instructions = handle(before, event, self._clock.now_s(), self._means)
            if after != before:
                self._keep(before, after)
        return instructions

    def hand_over(self, key: Key, event: HandedOver) -> Instructions:
        """As `post`, unless the group is being evicted already."""
        with self._lock:
            mine = self.get(key)
            others = (one for one in self._known.values() if one.key != key and one.under_way)
            if mine is not None and any(one.group == mine.group for one in others):
                return self.post(key, Revoked("its group is being evicted already"))
            return self.post(key, event)

    def _keep(self, before: Eviction | None, after: Eviction) -> None:
        self._known[after.key] = after
        self._changes.append((before, after))
        self._record(after)


@dataclass(frozen=True, slots=True)
class _Job:
    """One attempt at one eviction."""

    key: Key
    attempt: int
    instructions: Instructions
    asker: Asker
    evidence: Evidence | None


class Evictors:
    """The thread that does what evictions ask for. Close it when done.

    Args:
        parties: whom it asks.
        record: where each change of an eviction is kept.
        permit: why nobody may be asked at this moment, or None.
        durable: write to disk what was recorded; whether that worked.
        paused: why nothing that the monitor decided may go on, or None.
        told: names of those whom a failure is told to.
    """

    def __init__(
        self,
        parties: Parties,
        *,
        record: Callable[[Eviction], None],
        permit: Callable[[], str | None] = lambda: None,
        durable: Callable[[], bool] = lambda: True,
        paused: Callable[[], str | None] = lambda: None,
        told: Sequence[str] = (),
    ) -> None:
        self._parties = parties
        self._permit = permit
        self._durable = durable
        self._paused = paused
        deps = EvictionDeps(
            timeouts=parties.timeouts,
            gate=parties.gate is not None,
            schedulers=tuple(one.name for one in parties.schedulers),
            told=tuple(told),
        )
        self.log = EvictionLog(parties.clock, deps, record)
        self._jobs = BackgroundQueue("evict", self._carry_out)

    def submit(self, key: Key, event: HandedOver, evidence: Evidence | None = None) -> None:
        """Carry out an eviction that is decided; `evidence` waits until it is saved."""
        instructions = self.log.hand_over(key, event)
        taken = self.log.get(key)
        if instructions and taken is not None:
            asker = Asker(self._parties)
            self._jobs.put(_Job(key, taken.attempt, instructions, asker, evidence))

    def note(self, view: LighthouseView | LighthouseAway) -> None:
        """What a look at the Lighthouse shows: a group may leave long after it is gone."""
        gate = self._parties.gate
        for one in self.log.all():
            if one.replica_id is not None and one.left_quorum_s is None:
                refused_s = None if gate is None else gate.refusing_for_s(one.replica_id)
                self.log.post(one.key, LighthouseSeen(view, refused_s))

    def progress(self) -> tuple[Eviction, ...]:
        """Evictions under way and those of the last hour, oldest first."""
        return self.log.progress()

    def active(self) -> tuple[Eviction, ...]:
        """Evictions under way."""
        return tuple(one for one in self.log.all() if self.log.get(one.key) and one.under_way)

    def close(self, timeout_s: float = 2.0) -> None:
        """Stop; an eviction under way is left as it is, for whoever goes on."""
        self._jobs.close(timeout_s)

    # -- the worker thread --------------------------------------------------------------------

    @property
    def _closing(self) -> bool:
        return self._jobs.worker.closing

    def _carry_out(self, job: _Job) -> None:
        left = deque(job.instructions)
        try:
            while left and not self._closing:
                left.extend(self._do(job, left.popleft()))
        except Exception as exc:
            log.exception("an eviction crashed")
            if self._goes_on(job) is not None:
                self.log.post(job.key, Revoked(f"the evictor crashed: {type(exc).__name__}: {exc}"))
        ended = self.log.get(job.key)
        if ended is not None and not ended.open:
            log.warning("eviction of %s: %s, %s", ended.group, ended.state, ended.outcome)

    def _goes_on(self, job: _Job) -> Eviction | None:
        """The eviction, while it is this attempt that is under way here."""
        eviction = None if self._closing else self.log.get(job.key)
        mine = eviction is not None and eviction.under_way and eviction.attempt == job.attempt
        return eviction if mine else None

    def _do(self, job: _Job, instruction: Instruction) -> Instructions:
        """Do it, and say what came of it; nothing, where the eviction has ended meanwhile."""
        if isinstance(instruction, Begin | Probe):
            self._jobs.worker.pause(instruction.after_s)
        eviction = self._goes_on(job)
        if eviction is None:
            return ()
        if isinstance(instruction, Probe):
            return self._look(job, eviction)
        if (revoked := self._revoked(eviction)) is not None:
            return self.log.post(job.key, revoked)
        event: Event | None
        if isinstance(instruction, Begin):
            event = Cleared(self._durable() and self._permit() is None)
        else:
            event = self._climb(job, eviction, instruction)
        return () if event is None else self.log.post(job.key, event)

    def _climb(self, job: _Job, eviction: Eviction, step: Climb) -> Answered | None:
        """What is said at once; None: whoever is asked will answer."""
        clock, quarantine = self._parties.clock, self._parties.quarantine
        match step.rung:
            case Rung.EVIDENCE:
                return save_evidence(job.evidence)
            case Rung.QUARANTINE:
                last_s = self._parties.timeouts.quarantine_s
                return deny_launchers(eviction, quarantine, clock, last_s)
            case _:
                return job.asker.ask(eviction, step.rung, step.whom, self._permit())

    def _look(self, job: _Job, eviction: Eviction) -> Instructions:
        """Tell who has answered, and what a fresh look shows."""
        for answer in job.asker.answers():
            self.log.post(job.key, answer)
        seen = probe(self._parties, self._goes_on(job) or eviction)
        if seen.all_gone:
            for answer in job.asker.answers(wait_s=LAST_WORD_S):
                self.log.post(job.key, answer)
        if self._goes_on(job) is None:
            return ()
        self.note(seen.lighthouse.view)
        revoked = self._revoked(eviction)
        may = revoked is None and self._permit() is None
        told = self.log.post(job.key, Probed(seen, may))
        return told if revoked is None else self.log.post(job.key, revoked)

    def _revoked(self, eviction: Eviction) -> Revoked | None:
        """Whether nobody may be asked any more: a pause stops what the monitor decided."""
        why = self._paused() if eviction.author == KEEPER else None
        return None if why is None else Revoked(f"{why}: its other rungs are not climbed")
