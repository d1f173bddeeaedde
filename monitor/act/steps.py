"""Carries out what one eviction asks for: instructions become requests, answers become events.

Nothing here decides (`model.escalation` does) and nothing waits but for a look: an answer is told
when it is there. The Lighthouse and the WorkerServers are asked in the fetcher's loop, each
scheduler in a thread of its own: what hangs there holds nobody up. Whoever crashes when asked has
answered so.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any, Final

from monitor.act.gate import Gatekeeper
from monitor.act.http import Fetcher, FetchError, Question
from monitor.act.lighthouse import ANSWER_MAX_BYTES, Lighthouse
from monitor.act.poller import STATE_MAX_BYTES
from monitor.act.quarantine import Quarantine
from monitor.act.schedulers.base import Outcome, Place, Scheduler
from monitor.act.targets import Registered, Registry
from monitor.clock import Clock
from monitor.model.escalation import (
    Answered,
    LighthouseSeen,
    Liveness,
    ProbeResult,
    Timeouts,
)
from monitor.model.eviction import (
    Accused,
    Eviction,
    QuarantineEntry,
    Rung,
    Scope,
)
from monitor.model.names import RankName, ReplicaId, group_of
from monitor.model.observation import LighthouseAway
from worker_server.wire import PATH_EVICT, PATH_STATE, Process, StateReport, parse_state

log = logging.getLogger(__name__)

ASK_MARGIN_S: Final = 6.5
"""Beyond the grace: a WorkerServer looks for up to 5 s whether the process is gone."""
LAST_WORD_S: Final = 0.3
"""For the answer of a kill that has already worked: it makes a better story, no more."""
_LOOP_LATE_S: Final = 3.0
"""A fetch loop that is later than this does not run: the eviction fails and says so."""


@dataclass(frozen=True, slots=True)
class Parties:
    """Whom evictions ask, and look at."""

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
    """A fresh look at the accused, all at once, the Lighthouse and the gate.

    When a WorkerServer that said that its process is gone is silent afterwards, it has ended too
    and is believed.
    """
    lighthouse, gate, registry = parties.lighthouse, parties.gate, parties.registry
    look_s = parties.timeouts.look_s
    page = None if lighthouse is None else lighthouse.begin_look(look_s)
    states = [(one, parties.fetcher.submit(_state(parties, one))) for one in eviction.accused]
    lives: dict[RankName, Liveness] = {}
    details: dict[RankName, str] = {}
    progress: dict[RankName, int] = {}
    for one, state in states:
        seen = state.result(look_s + _LOOP_LATE_S)
        asked = eviction.ask(Rung.WORKER_EVICT, one.rank)
        said_gone = asked is not None and asked.done is True
        lives[one.rank], details[one.rank] = _judge(parties, one, seen, said_gone)
        if isinstance(seen, StateReport) and seen.step is not None:
            progress[one.rank] = seen.step.progress
    view = LighthouseAway("none configured") if page is None else page.result(look_s + _LOOP_LATE_S)
    known = {one.rank: registry.standing(one.rank, one.incarnation) for one in eviction.accused}
    replica_id = eviction.replica_id
    refused_s = None
    if gate is not None and replica_id is not None:
        refused_s = gate.refusing_for_s(replica_id)
    return ProbeResult(
        lives,
        details,
        LighthouseSeen(view, refused_s),
        progress,
        current=frozenset(rank for rank, is_ in known.items() if is_ is Registered.CURRENT),
        superseded=frozenset(rank for rank, is_ in known.items() if is_ is Registered.SUPERSEDED),
        gate_trouble=None if gate is None else gate.trouble(),
    )


async def _state(parties: Parties, accused: Accused) -> StateReport | str:
    url, group = accused.url + PATH_STATE, group_of(accused.rank)
    question = Question(url, parties.timeouts.look_s, STATE_MAX_BYTES, group=group)
    try:
        answer = await parties.fetcher.fetch(question)
        if answer.status != 200:
            return f"its WorkerServer answers {answer.status}"
        return parse_state(json.loads(answer.body))
    except FetchError as exc:
        return f"its WorkerServer gives no answer ({exc})"
    except (ValueError, OverflowError, RecursionError) as exc:
        return f"its WorkerServer answers garbage ({exc})"[:200]


def _judge(
    parties: Parties, one: Accused, state: StateReport | str, said_gone: bool
) -> tuple[Liveness, str]:
    if isinstance(state, str):
        standing = parties.registry.standing(one.rank, one.incarnation)
        if standing in (Registered.SUPERSEDED, Registered.LEFT):
            return Liveness.GONE, f"{standing}"
        if said_gone:
            return Liveness.GONE, "its WorkerServer said gone, and ended"
        return Liveness.UNSEEN, state
    identity, process = state.identity, state.process
    if (identity.rank, identity.incarnation) != (one.rank, one.incarnation):
        return Liveness.GONE, f"another process answers (pid {identity.pid})"
    if not process.alive:
        return Liveness.GONE, "its process is gone"
    return _condition(process, parties.timeouts.interpreter_stuck_s)


def _condition(process: Process, stuck_s: float) -> tuple[Liveness, str]:
    silent_s = process.interpreter_age_s
    if process.stopped and not process.traced:  # one that is traced for long runs no Python
        return Liveness.STUCK, f"stopped (state {process.state})"
    if silent_s is not None and silent_s > stuck_s:
        return Liveness.STUCK, f"stuck: its interpreter has not run for {silent_s:.1f} s"
    return Liveness.ALIVE, f"alive (state {process.state or 'unknown'})"


# -- before anybody is asked ---------------------------------------------------------------------


def save_evidence(evidence: Callable[[], str] | None) -> Answered:
    """Wait until what the group says last is saved; a crash of that stops no eviction."""
    try:
        return Answered(Rung.EVIDENCE, "", "" if evidence is None else evidence(), done=True)
    except Exception as exc:  # noqa: BLE001 - evidence is worth less than the eviction
        return Answered(Rung.EVIDENCE, "", f"failed: {type(exc).__name__}: {exc}", done=False)


def deny_launchers(
    eviction: Eviction, quarantine: Quarantine, clock: Clock, last_s: float | None
) -> Answered:
    """Quarantine the hosts of an eviction, and the group's names where it is kept out."""
    now_s = clock.now_s()
    denied: list[tuple[Scope, str]] = [(Scope.HOST, host) for host in eviction.quarantine]
    denied += [(Scope.GROUP, group) for group in eviction.keep_out]
    for scope, name in denied:
        quarantine.add(
            QuarantineEntry(
                name=name,
                reason=eviction.reason,
                author=eviction.author,
                since_s=now_s,
                until_s=None if last_s is None else now_s + last_s,
                incident_id=eviction.incident_id,
                scope=scope,
            )
        )
    hosts, groups = ", ".join(eviction.quarantine), ", ".join(eviction.keep_out)
    said = f"launchers are refused on {hosts}" if hosts else ""
    kept = f"launchers may not start {groups}" if groups else ""
    return Answered(Rung.QUARANTINE, "", "; ".join(filter(None, (said, kept))), done=True)


def eviction_words(status: int, said: Any) -> str:
    """What a WorkerServer answers to an eviction; empty where it is not understood."""
    if not isinstance(said, dict):
        return ""
    if status != 200:
        return f"refused ({status}): {said['error']}" if said.get("error") else ""
    signals, gone = said.get("signalled"), said.get("gone")
    if not isinstance(signals, list) or not isinstance(gone, bool):
        return ""
    if not signals:
        return "was gone already" if gone else "got no signal"
    how = " and then ".join(str(one)[:20] for one in signals[:4])
    started = said.get("started_gone")
    with_own = f", with {started} of its own" if type(started) is int and started > 0 else ""
    return f"got {how} and is {'gone' if gone else 'not gone yet'}{with_own}"


# -- asking --------------------------------------------------------------------------------------


class Asker:
    """Who was asked for one eviction, and has not answered yet."""

    def __init__(self, parties: Parties) -> None:
        self._parties = parties
        self._waiting: dict[tuple[Rung, str], Future[Answered]] = {}

    def ask(
        self, eviction: Eviction, rung: Rung, whom: str, forbidden: str | None = None
    ) -> Answered | None:
        """Ask somebody, in the background. `forbidden`: why nobody may be asked at this moment."""
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
        match rung:
            case Rung.GATE if parties.gate is not None:
                parties.gate.kick()  # its keeper looks whether it refuses
            case Rung.LIGHTHOUSE_KILL if parties.lighthouse is not None and replica_id is not None:
                return self._press(parties.lighthouse, replica_id)
            case Rung.WORKER_EVICT:
                (accused,) = (one for one in eviction.accused if one.rank == whom)
                return parties.fetcher.submit(self._evict(accused, eviction.reason))
            case Rung.SCHEDULER:
                return self._remove(eviction, whom)
            case _:
                pass
        return None

    def answers(self, *, wait_s: float = 0.0) -> Iterator[Answered]:
        """What has come since; what is awaited may come within `wait_s`."""
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

        def told(said: Future[str]) -> None:
            answer.set_result(Answered(Rung.LIGHTHOUSE_KILL, "", said.result()))

        lighthouse.begin_kill(replica_id, self._parties.timeouts.kill_s).add_done_callback(told)
        return answer

    async def _evict(self, one: Accused, reason: str) -> Answered:
        grace_s = self._parties.timeouts.grace_s
        question = Question(
            one.url + PATH_EVICT,
            timeout_s=grace_s + ASK_MARGIN_S,
            max_bytes=ANSWER_MAX_BYTES,
            method="POST",
            json={"reason": reason, "grace_s": grace_s, "incarnation": one.incarnation},
            group=group_of(one.rank),
        )
        try:
            answer = await self._parties.fetcher.fetch(question)
        except FetchError as exc:
            return Answered(Rung.WORKER_EVICT, one.rank, str(exc))
        try:
            said = json.loads(answer.body)
        except (ValueError, RecursionError):
            said = None
        gone = answer.status == 200 and isinstance(said, dict) and said.get("gone") is True
        words = eviction_words(answer.status, said) or answer.summary
        return Answered(Rung.WORKER_EVICT, one.rank, words, done=True if gone else None)

    def _remove(self, eviction: Eviction, name: str) -> Future[Answered]:
        (scheduler,) = (one for one in self._parties.schedulers if one.name == name)
        places = [Place(one.rank, one.host, one.place) for one in eviction.accused]
        answer: Future[Answered] = Future()

        def ask() -> None:
            try:
                told = scheduler.remove(
                    eviction.group,
                    places,
                    eviction.reason,
                    eviction.incident_id,
                    self._parties.timeouts.scheduler_s,
                )
            except Exception as exc:  # noqa: BLE001 - a driver that breaks its promise has failed
                told = Outcome(done=False, detail=f"crashed: {type(exc).__name__}: {exc}")
            answer.set_result(Answered(Rung.SCHEDULER, name, told.detail, told.done))

        threading.Thread(target=ask, name=f"remove by {name}", daemon=True).start()
        return answer
