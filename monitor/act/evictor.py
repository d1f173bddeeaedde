"""Carries out evictions, one at a time: instructions become requests, answers become events.

Nothing is decided here: `decide.escalation` does that. No request is sent while this monitor may
not act; during a pause, only for evictions by a person. The thread waits for evidence, the disk and
looks, but not for other answers. The fetcher's loop asks the Lighthouse and the WorkerServers; each
scheduler has its own thread, so one that hangs delays no other. A request that crashes counts as
answered. `EvictionLog` holds the evictions and applies events to them (`decide.escalation.handle`);
it records each change before the next instruction. `Evictors` is the thread that carries them out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lightkeeper.monitor.act.gate import Gatekeeper
from lightkeeper.monitor.act.http import LOOP_LATE_S, Fetcher, FetchError, Question
from lightkeeper.monitor.act.lighthouse import ANSWER_MAX_BYTES, Lighthouse
from lightkeeper.monitor.act.poller import ask_state
from lightkeeper.monitor.act.quarantine import Quarantine
from lightkeeper.monitor.act.schedulers.base import Lost, NotDone, Place, Scheduler, Why
from lightkeeper.monitor.act.targets import Registered, Registry
from lightkeeper.monitor.background import BackgroundQueue, in_thread
from lightkeeper.monitor.clock import Clock
from lightkeeper.monitor.model.escalation import (
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
    Liveness,
    Move,
    Probe,
    Probed,
    ProbeResult,
    Revoked,
    Timeouts,
)
from lightkeeper.monitor.model.eviction import (
    KEEPER,
    Accused,
    Eviction,
    EvictionState,
    QuarantineEntry,
    Rung,
    Scope,
)
from lightkeeper.monitor.model.names import Host, IncidentId, RankName, ReplicaId, group_of
from lightkeeper.monitor.model.observation import LighthouseAway, LighthouseView, Unreachable
from lightkeeper.worker_server.wire import PATH_EVICT, StateReport, printable_line

log = logging.getLogger(__name__)

ASK_MARGIN_S: Final = 6.5
"""On top of the grace: a WorkerServer checks for up to 5 s whether the process is gone."""
LAST_WORD_S: Final = 0.3
"""How long to wait for open answers once all ranks are gone: they only improve the story."""
_OF_ITS_RUNG: Final = 0.9
"""A scheduler's share of its rung's time: its last words come before that is over."""


@dataclass(frozen=True, slots=True)
class Parties:
    """What evictions send requests to."""

    clock: Clock
    fetcher: Fetcher
    registry: Registry
    quarantine: Quarantine
    lighthouse: Lighthouse | None = None
    gate: Gatekeeper | None = None
    schedulers: tuple[Scheduler, ...] = ()
    timeouts: Timeouts = field(default_factory=Timeouts)


# -- looking -------------------------------------------------------------------------------------


def probe(parties: Parties, eviction: Eviction) -> ProbeResult:
    """Look at all accused ranks at once, and at the Lighthouse and the gate.

    If a WorkerServer reported its process gone and is silent now, it has ended too: the rank is
    gone.
    """
    lighthouse, gate, registry = parties.lighthouse, parties.gate, parties.registry
    look_s = parties.timeouts.look_s
    page = None if lighthouse is None else lighthouse.begin_look(look_s)
    end = time.monotonic() + look_s
    states = [
        parties.fetcher.submit(ask_state(parties.fetcher, each.url, group_of(each.rank), end))
        for each in eviction.accused
    ]
    looks = [state.result(look_s + LOOP_LATE_S) for state in states]
    view = LighthouseAway("none configured") if page is None else page.result(look_s + LOOP_LATE_S)
    lives: dict[RankName, Liveness] = {}
    details: dict[RankName, str] = {}
    progress: dict[RankName, int] = {}
    standings: dict[RankName, Registered] = {}
    for accused, seen in zip(eviction.accused, looks, strict=True):
        rank = accused.rank
        standings[rank] = registry.standing(rank, accused.incarnation)
        asked = eviction.ask(Rung.WORKER_EVICT, rank)
        said_gone = asked is not None and asked.done is True
        if isinstance(seen, Unreachable):
            lives[rank], details[rank] = _judge_unseen(seen, standings[rank], said_gone)
        else:
            stuck_s = parties.timeouts.interpreter_stuck_s
            lives[rank], details[rank] = _judge(accused, seen, stuck_s)
            if seen.step is not None:
                progress[rank] = seen.step.progress
    return ProbeResult(
        lives,
        details,
        lighthouse_seen(view, gate, eviction.replica_id),
        progress,
        current=frozenset(r for r, each in standings.items() if each is Registered.CURRENT),
        superseded=frozenset(r for r, each in standings.items() if each is Registered.SUPERSEDED),
        gate_trouble=None if gate is None else next(gate.troubles(), None),
    )


def lighthouse_seen(
    view: LighthouseView | LighthouseAway, gate: Gatekeeper | None, replica_id: ReplicaId | None
) -> LighthouseSeen:
    refused_s = None if gate is None or replica_id is None else gate.refusing_for_s(replica_id)
    return LighthouseSeen(view, refused_s)


def _judge_unseen(
    answer: Unreachable, standing: Registered, said_gone: bool
) -> tuple[Liveness, str]:
    if standing in (Registered.SUPERSEDED, Registered.LEFT):
        return Liveness.GONE, f"{standing}"
    if said_gone:
        return Liveness.GONE, "its WorkerServer said gone, and ended"
    return Liveness.UNSEEN, f"its WorkerServer gives no state ({answer.detail})"


def _judge(accused: Accused, state: StateReport, stuck_s: float) -> tuple[Liveness, str]:
    identity, process = state.identity, state.process
    silent_s = process.interpreter_age_s
    if (identity.rank, identity.incarnation) != (accused.rank, accused.incarnation):
        return Liveness.GONE, f"another process answers (pid {identity.pid})"
    if not process.alive:
        return Liveness.GONE, "its process is gone"
    if process.stopped and not process.traced:  # a long trace is caught below: no Python runs
        return Liveness.STUCK, f"stopped (state {process.state})"
    if silent_s is not None and silent_s > stuck_s:
        return Liveness.STUCK, f"stuck: its interpreter has not run for {silent_s:.1f} s"
    return Liveness.ALIVE, f"alive (state {process.state or 'unknown'})"


# -- before anybody is asked ---------------------------------------------------------------------


def save_evidence(evidence: Callable[[], str] | None) -> Answered:
    """Wait for the group's evidence; a crash there does not stop the eviction."""
    try:
        return Answered(Rung.EVIDENCE, "", "" if evidence is None else evidence(), done=True)
    except Exception as exc:  # noqa: BLE001 - evidence is worth less than the eviction
        return Answered(Rung.EVIDENCE, "", f"{type(exc).__name__}: {exc}", done=False)


def deny_launchers(
    eviction: Eviction, quarantine: Quarantine, clock: Clock, last_s: float | None
) -> Answered:
    """Quarantine the hosts of an eviction, and the group's names if it must not return at all."""
    now_s = clock.now_s()
    until_s = None if last_s is None else now_s + last_s
    denied: list[tuple[Scope, str]] = [(Scope.HOST, host) for host in eviction.quarantine]
    denied += [(Scope.GROUP, group) for group in eviction.keep_out]
    for scope, name in denied:
        entry = QuarantineEntry(
            name, eviction.reason, eviction.author, now_s, until_s, eviction.incident_id, scope
        )
        quarantine.add(entry)
    hosts, groups = ", ".join(eviction.quarantine), ", ".join(eviction.keep_out)
    said = f"launchers are refused on {hosts}" if hosts else ""
    kept = f"launchers may not start {groups}" if groups else ""
    return Answered(Rung.QUARANTINE, "", "; ".join(filter(None, (said, kept))), done=True)


def eviction_words(status: int, said: Mapping[str, Any]) -> str:
    """Describe a WorkerServer's answer to an eviction request; empty if it is not understood."""
    if status != 200:
        return f"refused ({status}): {said['error']}" if said.get("error") else ""
    signals, gone = said.get("signalled"), said.get("gone")
    if not isinstance(signals, list) or not isinstance(gone, bool):
        return ""
    if not signals:
        return "was gone already" if gone else "got no signal"
    how = " and then ".join(str(signal)[:20] for signal in signals[:4])
    started = said.get("started_gone")
    with_own = f", with {started} of its own" if type(started) is int and started > 0 else ""
    way = said.get("way")
    before = f"{printable_line(way)[:200]}, then " if isinstance(way, str) and way else ""
    return f"{before}got {how} and is {'gone' if gone else 'not gone yet'}{with_own}"


# -- asking --------------------------------------------------------------------------------------


class Asker:
    """Sends the requests of one eviction and collects their answers."""

    def __init__(self, parties: Parties, held: Callable[[Eviction], str | None]) -> None:
        """`held`: why nobody may be asked for an eviction any more, or None."""
        self._parties = parties
        self._held = held
        self._waiting: dict[tuple[Rung, str], Future[Answered]] = {}

    def ask(
        self, eviction: Eviction, rung: Rung, whom: str, forbidden: str | None = None
    ) -> Answered | None:
        """Send a request in the background. `forbidden`: why no request may be sent now."""
        if forbidden is not None:
            return Answered(rung, whom, f"not asked: {forbidden}")
        try:
            answer = self._begin(eviction, rung, whom)
        except Exception as exc:
            log.exception("%s crashed", rung)
            return Answered(rung, whom, f"crashed: {type(exc).__name__}: {exc}", done=False)
        if answer is not None:
            self._waiting[rung, whom] = answer
        return None

    def _begin(self, eviction: Eviction, rung: Rung, whom: str) -> Future[Answered] | None:
        parties, replica_id = self._parties, eviction.replica_id
        if rung is Rung.WORKER_EVICT:
            (accused,) = (accused for accused in eviction.accused if accused.rank == whom)
            return parties.fetcher.submit(self._evict(accused, eviction))
        if rung is Rung.SCHEDULER:
            return self._remove(eviction, whom)
        if rung is Rung.GATE and parties.gate is not None:
            parties.gate.wake()  # sends the list
        lighthouse = parties.lighthouse if rung is Rung.LIGHTHOUSE_KILL else None
        if lighthouse is not None and replica_id is not None:
            return self._press(lighthouse, replica_id)
        return None

    def answers(self, *, wait_s: float = 0.0) -> Iterator[Answered]:
        """Yield the answers so far, after waiting up to `wait_s` for all of them."""
        if wait_s:
            wait(self._waiting.values(), timeout=wait_s)
        for key in [key for key, answer in self._waiting.items() if answer.done()]:
            try:
                yield self._waiting.pop(key).result()
            except Exception as exc:
                log.exception("%s crashed", key[0])
                yield Answered(*key, f"crashed: {type(exc).__name__}: {exc}", done=False)

    def _press(self, lighthouse: Lighthouse, replica_id: ReplicaId) -> Future[Answered]:
        answer: Future[Answered] = Future()

        def pass_on(said: Future[str]) -> None:
            answer.set_result(Answered(Rung.LIGHTHOUSE_KILL, "", said.result()))

        lighthouse.begin_kill(replica_id, self._parties.timeouts.kill_s).add_done_callback(pass_on)
        return answer

    async def _evict(self, accused: Accused, eviction: Eviction) -> Answered:
        manner = eviction.manner
        question = Question(
            accused.url + PATH_EVICT,
            timeout_s=manner.gently_s + manner.grace_s + ASK_MARGIN_S,
            max_bytes=ANSWER_MAX_BYTES,
            method="POST",
            json={
                "reason": eviction.reason,
                "grace_s": manner.grace_s,
                "incarnation": accused.incarnation,
                **({"gently_s": manner.gently_s, "manner": manner.way} if manner.gently_s else {}),
            },
            group=group_of(accused.rank),
        )
        try:
            answer = await self._parties.fetcher.fetch(question)
        except FetchError as exc:
            return Answered(Rung.WORKER_EVICT, accused.rank, str(exc))
        said = answer.json_object
        gone = answer.status == 200 and said.get("gone") is True
        words = eviction_words(answer.status, said) or answer.summary
        return Answered(Rung.WORKER_EVICT, accused.rank, words, done=True if gone else None)

    def _remove(self, eviction: Eviction, name: str) -> Future[Answered]:
        (scheduler,) = (
            scheduler for scheduler in self._parties.schedulers if scheduler.name == name
        )
        places = [Place(accused.rank, accused.host, accused.place) for accused in eviction.accused]
        times = self._parties.timeouts
        timeout_s, lost = times.scheduler_s, None
        if eviction.lost:
            timeout_s, lost = times.lost_s, self._lost(eviction)

        why = Why(eviction.reason, eviction.incident_id, lost)

        def remove() -> Answered:
            outcome = scheduler.remove(eviction.group, places, why, _OF_ITS_RUNG * timeout_s)
            return Answered(Rung.SCHEDULER, name, outcome.detail, outcome.done)

        return in_thread(f"remove by {name}", remove)

    def _lost(self, eviction: Eviction) -> Lost:
        """What a driver needs that is to end what nobody sees."""
        parties, gate, replica_id = self._parties, self._parties.gate, eviction.replica_id
        last_s = parties.timeouts.quarantine_s
        to_blame = {host for host, blamed in eviction.lost.items() if blamed}

        def fenced() -> bool:
            return gate is not None and replica_id is not None and gate.fences(replica_id)

        def down(host: Host) -> None:
            if (held := self._held(eviction)) is not None:
                raise NotDone(held)
            if host in to_blame:
                to_blame.remove(host)
                blamed = replace(eviction, quarantine=(host,), keep_out=())
                deny_launchers(blamed, parties.quarantine, parties.clock, last_s)

        return Lost(fenced, down)


# -- the log of evictions ---------------------------------------------------------------------

PROGRESS_KEPT_S: Final = 3600.0
"""Ended evictions stay in snapshots this long: the policy's budget is per hour."""

Key = tuple[IncidentId, float]
Evidence = Callable[[], str]
Handle = Callable[[Eviction, Event, float, EvictionDeps], Move]
"""What follows from an event (`decide.escalation`)."""
Change = tuple[Eviction | None, Eviction]
"""An eviction before (None: new) and after a change."""


class EvictionLog:
    """Open evictions, and those of the last hour. Safe to use from any thread."""

    def __init__(
        self, clock: Clock, deps: EvictionDeps, record: Callable[[Eviction], None], handle: Handle
    ) -> None:
        self._clock = clock
        self._handle = handle
        self._deps = deps
        self._record = record
        self._lock = threading.RLock()
        self._known: dict[Key, Eviction] = {}
        self._changes: list[Change] = []
        self._acting = True

    # -- taking over and standing by ------------------------------------------------------------

    def take_over(self, evictions: Iterable[Eviction]) -> tuple[Eviction, ...]:
        """Continue with the evictions in the store: open ones are asked again, or abandoned.

        Returns the evictions of the last hour that an evictor had taken up.
        """
        with self._lock:
            self._known, self._changes, self._acting = {}, [], True
            newest: dict[IncidentId, Key] = {}
            for eviction in sorted(evictions, key=lambda eviction: eviction.at_s):
                self._known[eviction.key] = eviction
                self.post(eviction.key, Interrupted())
                older = newest.get(eviction.incident_id)
                if older is not None and self._known[older].open:
                    self.post(older, Revoked("decided again"))
                newest[eviction.incident_id] = eviction.key
            going = [eviction for eviction in self._known.values() if eviction.open]
        for eviction in going:
            log.warning("eviction of %s has no end: it is asked again or abandoned", eviction.group)
        return tuple(self._lately_taken_up())

    def follow(self, evictions: Iterable[Eviction]) -> None:
        """Stop all work here, and show what the active monitor recorded."""
        with self._lock:
            self._known = {eviction.key: eviction for eviction in evictions}
            self._changes, self._acting = [], False

    # -- asking ---------------------------------------------------------------------------------

    def get(self, key: Key) -> Eviction | None:
        """One eviction; None when this monitor no longer handles it."""
        with self._lock:
            return self._known.get(key) if self._acting else None

    def all(self) -> tuple[Eviction, ...]:
        """All evictions, oldest first."""
        since_s = self._clock.now_s() - PROGRESS_KEPT_S
        with self._lock:
            rows = self._known.items()
            self._known = {key: row for key, row in rows if row.open or row.asked_s >= since_s}
            return tuple(sorted(self._known.values(), key=lambda e: (e.asked_s, e.incident_id)))

    def _lately_taken_up(self) -> Iterator[Eviction]:
        since_s = self._clock.now_s() - PROGRESS_KEPT_S
        return (each for each in self.all() if each.taken_up and each.asked_s >= since_s)

    def progress(self) -> tuple[Eviction, ...]:
        """The last hour's evictions that an evictor has or had, but not those to decide again. Of
        those that another monitor left without an end, only how those by hand ended.
        """
        acting = self._acting
        return tuple(
            each
            for each in self._lately_taken_up()
            if (not acting or each.interrupted_s is None or (each.by_hand and not each.open))
            and each.state is not EvictionState.DECIDED
        )

    def take_changes(self) -> tuple[Change, ...]:
        with self._lock:
            changes, self._changes = tuple(self._changes), []
        return changes

    # -- changing -------------------------------------------------------------------------------

    def add(self, eviction: Eviction) -> None:
        with self._lock:
            self._keep(None, eviction)

    def post(self, key: Key, event: Event) -> Instructions:
        """Apply an event to an eviction; returns what to do now."""
        with self._lock:
            before = self.get(key)
            if before is None:
                return ()
            after, instructions = self._handle(before, event, self._clock.now_s(), self._deps)
            if after != before:
                self._keep(before, after)
        return instructions

    def hand_over(self, key: Key, event: HandedOver) -> Instructions:
        """Like `post`, but revoke the eviction if its group is already being evicted."""
        with self._lock:
            eviction = self.get(key)
            if eviction is not None and any(
                other.group == eviction.group and other.under_way and other.key != key
                for other in self._known.values()
            ):
                return self.post(key, Revoked("its group is being evicted already"))
            return self.post(key, event)

    def _keep(self, before: Eviction | None, after: Eviction) -> None:
        self._known[after.key] = after
        self._changes.append((before, after))
        self._record(after)


# -- the thread -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Job:
    key: Key
    attempt: int
    instructions: Instructions
    asker: Asker
    evidence: Evidence | None


class Evictors:
    """The thread that carries out evictions. Close it when done.

    Args:
        parties: what it sends requests to.
        handle: what follows from an event.
        record: stores each change of an eviction.
        permit: why no request may be sent now, or None.
        durable: writes to disk what was recorded; returns whether that worked.
        paused: why no eviction that the monitor decided may continue, or None.
        sinks: names of the notification sinks that receive failures.
    """

    def __init__(
        self,
        parties: Parties,
        *,
        handle: Handle,
        record: Callable[[Eviction], None],
        permit: Callable[[], str | None] = lambda: None,
        durable: Callable[[], bool] = lambda: True,
        paused: Callable[[], str | None] = lambda: None,
        sinks: Sequence[str] = (),
    ) -> None:
        self._parties = parties
        self._permit = permit
        self._durable = durable
        self._paused = paused
        deps = EvictionDeps(
            timeouts=parties.timeouts,
            gate=parties.gate is not None,
            schedulers=tuple(scheduler.name for scheduler in parties.schedulers),
            sinks=tuple(sinks),
        )
        self.log = EvictionLog(parties.clock, deps, record, handle)
        self._jobs = BackgroundQueue("evict", self._carry_out)

    def submit(self, key: Key, event: HandedOver, evidence: Evidence | None = None) -> None:
        """Carry out a decided eviction; `evidence` blocks until the ranks have answered."""
        instructions = self.log.hand_over(key, event)
        taken = self.log.get(key)
        if instructions and taken is not None:
            asker = Asker(self._parties, self._held)
            job = _Job(key, taken.attempt, instructions, asker, evidence)
            if taken.lost:  # waits for its scheduler, for up to a minute: others must not
                in_thread(f"remove {taken.group}", lambda: self._carry_out(job))
            else:
                self._jobs.put(job)

    def note(self, view: LighthouseView | LighthouseAway) -> None:
        """Record a look at the Lighthouse: a group may leave the quorum long after it is gone."""
        for eviction in self.log.all():
            if eviction.replica_id is not None and eviction.left_quorum_s is None:
                seen = lighthouse_seen(view, self._parties.gate, eviction.replica_id)
                self.log.post(eviction.key, seen)

    def active(self) -> tuple[Eviction, ...]:
        return tuple(
            eviction
            for eviction in self.log.all()
            if self.log.get(eviction.key) and eviction.under_way
        )

    def close(self, timeout_s: float = 2.0) -> None:
        """Stop; an eviction under way stays as it is, for the next monitor."""
        self._jobs.close(timeout_s)

    # -- inside -------------------------------------------------------------------------------

    def _carry_out(self, job: _Job) -> None:
        queue = deque(job.instructions)
        try:
            while queue and not self._jobs.worker.closing:
                queue.extend(self._do(job, queue.popleft()))
        except Exception as exc:
            log.exception("an eviction crashed")
            if self._goes_on(job) is not None:
                self.log.post(job.key, Revoked(f"the evictor crashed: {type(exc).__name__}: {exc}"))
        ended = self.log.get(job.key)
        if ended is not None and not ended.open:
            about = {"incident": ended.incident_id, "group": ended.group}
            words = (ended.group, ended.state, ended.outcome)
            log.warning("eviction of %s: %s, %s", *words, extra=about)

    def _goes_on(self, job: _Job) -> Eviction | None:
        """The eviction, if this attempt at it is still under way on this monitor; else None."""
        eviction = None if self._jobs.worker.closing else self.log.get(job.key)
        current = eviction is not None and eviction.under_way and eviction.attempt == job.attempt
        return eviction if current else None

    def _do(self, job: _Job, instruction: Instruction) -> Instructions:
        """Carry out one instruction and return the next ones; none if the eviction has ended."""
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
        """Climb one rung. Returns the answer if it is known at once; else None, and it follows."""
        if step.rung is Rung.EVIDENCE:
            return save_evidence(job.evidence)
        if step.rung is Rung.QUARANTINE:
            last_s = self._parties.timeouts.quarantine_s
            return deny_launchers(eviction, self._parties.quarantine, self._parties.clock, last_s)
        return job.asker.ask(eviction, step.rung, step.whom, self._permit())

    def _look(self, job: _Job, eviction: Eviction) -> Instructions:
        """Post the answers that have come, and the result of a fresh look."""
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
        instructions = self.log.post(job.key, Probed(seen, may))
        return instructions if revoked is None else self.log.post(job.key, revoked)

    def _held(self, eviction: Eviction) -> str | None:
        revoked = self._revoked(eviction)
        return self._permit() if revoked is None else revoked.why

    def _revoked(self, eviction: Eviction) -> Revoked | None:
        """Why the eviction must stop: a pause stops evictions that the monitor decided itself."""
        why = self._paused() if eviction.author == KEEPER else None
        return None if why is None else Revoked(f"{why}: its other rungs are not climbed")
