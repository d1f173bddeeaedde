"""One look at every target: each yields exactly one Observation before the deadline.

Theory of operation. One WorkerServer of each host tells of all its ranks; who is not in its answer
is asked itself, and so is everybody of a host that does not answer in half of the time. So many
requests are under way at once; whose turn has not come when the time is over is among the next
sweep's first. Sickness is data: whatever a target does, its Observation says so, and nobody else's
is late or missing for it. The flight records that the tick before asked for (tier 2) and the URLs
of which the rank is not known yet are fetched in the same sweep.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from monitor.fetch import Fetcher, FetchError, Question
from monitor.habits import with_pauses
from monitor.names import Host, RankName
from monitor.snapshot import Failure, Observation, Unreachable
from monitor.targets import Target
from worker_server.wire import (
    PATH_FLIGHT_RECORDER,
    PATH_HOST,
    PATH_STATE,
    PATH_STEPS,
    FlightRecord,
    HostReport,
    Identity,
    StateReport,
    StepLog,
    parse_flight_record,
    parse_host,
    parse_state,
    parse_steps,
)

T = TypeVar("T", StateReport, FlightRecord, StepLog)
Said = TypeVar("Said", StateReport, FlightRecord, StepLog, HostReport)

STATE_MAX_BYTES: Final = 64 * 1024
"""A state with 8 process groups takes 1 KiB."""
RECORD_MAX_BYTES: Final = 8 * 1024 * 1024
"""2,000 entries of torch's record with stacks take about 2 MiB."""
STEPS_MAX_BYTES: Final = 4 * 1024 * 1024
"""4,096 steps of 16 phases take about 1 MiB."""
HOST_MAX_BYTES: Final = 4 * 1024 * 1024
"""64 ranks of a host at their largest."""
_AT_ONCE: Final = 256
"""Requests under way: more only queue in the kernel, and fill its tables."""
_HOST_SHARE: Final = 0.5
"""Of a sweep's time that a host may take, before its ranks are asked themselves."""
_DUMB_S: Final = 30.0
_LOOP_LATE_S: Final = 3.0
RECORDS_AT_ONCE: Final = 32
"""Tier 2 is for the few ranks that matter; more are left for the next tick."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What one look brought."""

    observations: tuple[Observation, ...]
    """One for each target, in the targets' order."""
    records: Mapping[RankName, FlightRecord | Unreachable]
    identified: tuple[tuple[str, Identity], ...]
    """URLs without a known rank that said who they are."""
    steps: Mapping[RankName, StepLog | Unreachable] = field(default_factory=dict)
    """Past steps asked for, as far as they hold pauses."""


_Life = tuple[RankName, str]
"""A rank's name and its incarnation."""


@dataclass(frozen=True, slots=True)
class _Questions:
    """Whom to ask, and for whom."""

    speaker: Target | None
    """Is asked for all of its host; None: each is asked itself."""
    targets: tuple[Target, ...]


def _life(target: Target) -> _Life:
    return _life_of(target.identity)


def _life_of(identity: Identity) -> _Life:
    return identity.rank, identity.incarnation


class Poller:
    """Polls over the shared fetcher."""

    def __init__(self, fetcher: Fetcher, token: str | None = None) -> None:
        """`token`: for reading, where WorkerServers want one."""
        self._fetcher = fetcher
        self._token = token
        self._covers: dict[str, frozenset[_Life]] = {}
        """URL of a WorkerServer that answered for its host -> whom it knew."""
        self._dumb: dict[str, float] = {}
        """URL of one that could not answer for its host -> until when it need not; monotonic."""
        self._failed: dict[str, int] = {}
        """URL of which it is not known who answers there -> how often nobody did."""
        self._left: frozenset[RankName] = frozenset()
        """Who was not asked in the last sweep."""

    def sweep(
        self,
        targets: Sequence[Target],
        *,
        deadline_s: float,
        wanted: Sequence[RankName] = (),
        unidentified: Sequence[str] = (),
        past: Sequence[RankName] = (),
        watched: Sequence[RankName] = (),
    ) -> Sweep:
        """Look at everyone, and at `watched` by their own WorkerServers.

        Returns after at most about `deadline_s` seconds.

        Raises:
            TimeoutError: the fetcher's own loop does not run.
        """
        work = self._sweep(
            targets, deadline_s, wanted, unidentified, past=past, watched=frozenset(watched)
        )
        return self._fetcher.submit(work).result(timeout=deadline_s + _LOOP_LATE_S)

    async def _sweep(
        self,
        targets: Sequence[Target],
        deadline_s: float,
        wanted: Sequence[RankName],
        unidentified: Sequence[str],
        *,
        past: Sequence[RankName],
        watched: frozenset[RankName],
    ) -> Sweep:
        end = time.monotonic() + deadline_s
        of = {target.rank: target for target in targets}
        asked = [of[rank] for rank in dict.fromkeys(wanted) if rank in of][:RECORDS_AT_ONCE]
        early = [of[rank] for rank in dict.fromkeys(past) if rank in of][:RECORDS_AT_ONCE]
        observations, records, answers, steps = await asyncio.gather(
            self._observe(targets, watched, end),
            asyncio.gather(*(self._record(target, end) for target in asked)),
            self._identify(unidentified, end),
            asyncio.gather(*(self._steps(target, end) for target in early)),
        )
        return Sweep(
            observations=observations,
            records=dict(zip((target.rank for target in asked), records, strict=True)),
            identified=tuple(
                (url, answer.identity)
                for url, answer in zip(unidentified, answers, strict=True)
                if isinstance(answer, StateReport)
            ),
            steps=dict(zip((target.rank for target in early), steps, strict=True)),
        )

    async def _identify(
        self, urls: Sequence[str], end: float
    ) -> Sequence[StateReport | Unreachable]:
        """Who answers there, as many as are let in at once; those last who did not before."""
        turns, wanted = asyncio.Semaphore(_AT_ONCE), set(urls)
        self._failed = {url: times for url, times in self._failed.items() if url in wanted}
        found: dict[str, StateReport | Unreachable] = {}

        async def ask(url: str) -> None:
            async with turns:
                if time.monotonic() >= end:
                    found[url] = Unreachable(Failure.UNASKED, "its turn did not come")
                    return
                found[url] = told = await self._state(url, end)
                if isinstance(told, Unreachable):
                    self._failed[url] = self._failed.get(url, 0) + 1

        await asyncio.gather(*map(ask, sorted(urls, key=lambda url: self._failed.get(url, 0))))
        return [found[url] for url in urls]

    async def _observe(
        self, targets: Sequence[Target], watched: frozenset[RankName], end: float
    ) -> tuple[Observation, ...]:
        """One for each target, in their order; those first who were left out last time."""
        now_s, urls = time.monotonic(), {target.url for target in targets}
        self._covers = {url: told for url, told in self._covers.items() if url in urls}
        self._dumb = {url: until_s for url, until_s in self._dumb.items() if until_s > now_s}
        seen: dict[RankName, Observation] = {}
        turns = asyncio.Semaphore(_AT_ONCE)

        async def ask_rank(target: Target) -> None:
            async with turns:
                seen[target.rank] = await self._ask_rank(target, end)

        async def ask(questions: _Questions) -> None:
            if (speaker := questions.speaker) is not None:
                async with turns:
                    seen.update(await self._ask_host(speaker, questions.targets, end))
            left = (target for target in questions.targets if target.rank not in seen)
            await asyncio.gather(*map(ask_rank, left))

        others = (target for target in targets if target.rank not in watched)
        plan = self._plan(sorted(others, key=lambda one: one.rank not in self._left))
        plan.insert(0, _Questions(None, tuple(one for one in targets if one.rank in watched)))
        await asyncio.gather(*map(ask, plan))
        self._left = frozenset(
            rank
            for rank, one in seen.items()
            if isinstance(one.outcome, Unreachable) and one.outcome.reason is Failure.UNASKED
        )
        return tuple(seen[target.rank] for target in targets)

    def _plan(self, targets: Sequence[Target]) -> list[_Questions]:
        """Whom to ask for whom: one WorkerServer of each host, and again one for those of the host
        that it did not know (another container, another run directory).
        """
        hosts: dict[tuple[Host, str | None], list[Target]] = {}
        for target in targets:  # a rank says itself what its host is called, so its address counts
            address = urlsplit(target.url).hostname
            hosts.setdefault((target.identity.host, address), []).append(target)
        plan: list[_Questions] = []
        for members in hosts.values():
            left = {_life(target): target for target in members}
            known = [one for one in members if one.url in self._covers]
            for speaker in known:
                told = [left.pop(one) for one in self._covers[speaker.url] if one in left]
                if told:
                    plan.append(_Questions(speaker if len(told) > 1 else None, tuple(told)))
            rest = tuple(left.values())
            able = (one for one in rest if one.url not in self._dumb)
            plan.append(_Questions(next(able, None) if len(rest) > 1 else None, rest))
        return plan

    async def _ask_host(
        self, speaker: Target, targets: Sequence[Target], end: float
    ) -> dict[RankName, Observation]:
        """Those of the targets that a WorkerServer tells of."""
        began = time.monotonic()
        until = began + _HOST_SHARE * max(0.0, end - began)
        said = await self._get(speaker.url + PATH_HOST, until, HOST_MAX_BYTES, parse_host)
        took_s = round(time.monotonic() - began, 6)
        if isinstance(said, Unreachable):
            self._covers.pop(speaker.url, None)
            self._dumb[speaker.url] = time.monotonic() + _DUMB_S
            return {}
        reports = {_life_of(e.report.identity): e.report for e in said.entries if e.report}
        self._covers[speaker.url] = frozenset(reports)
        return {
            target.rank: Observation(target.identity, target.url, report, took_s)
            for target in targets
            if (report := reports.get(_life(target))) is not None
        }

    async def _ask_rank(self, target: Target, end: float) -> Observation:
        began = time.monotonic()
        outcome: StateReport | Unreachable = Unreachable(Failure.UNASKED, "its turn did not come")
        if began < end:
            outcome = _recognise(target, await self._state(target.url, end))
        took_s = round(time.monotonic() - began, 6)  # more digits only fill the journal
        return Observation(target.identity, target.url, outcome, took_s)

    async def _record(self, target: Target, end: float) -> FlightRecord | Unreachable:
        url = target.url + PATH_FLIGHT_RECORDER
        return _recognise(target, await self._get(url, end, RECORD_MAX_BYTES, parse_flight_record))

    async def _steps(self, target: Target, end: float) -> StepLog | Unreachable:
        url = target.url + PATH_STEPS
        log = _recognise(target, await self._get(url, end, STEPS_MAX_BYTES, parse_steps))
        return with_pauses(log) if isinstance(log, StepLog) else log

    async def _state(self, url: str, end: float) -> StateReport | Unreachable:
        return await self._get(url + PATH_STATE, end, STATE_MAX_BYTES, parse_state)

    async def _get(
        self, url: str, end: float, max_bytes: int, parse: Callable[[Any], Said]
    ) -> Said | Unreachable:
        timeout_s = end - time.monotonic()
        question = Question(url, timeout_s=timeout_s, max_bytes=max_bytes, token=self._token)
        try:
            answer = await self._fetcher.fetch(question)
            if answer.status != 200:
                return Unreachable(Failure.HTTP, describe_status(answer.status))
            return parse(json.loads(answer.body))
        except FetchError as exc:
            return Unreachable(exc.failure, exc.detail)
        except (ValueError, RecursionError) as exc:  # WireError is a ValueError
            return Unreachable(Failure.GARBAGE, " ".join(str(exc).split())[:200])


def describe_status(status: int) -> str:
    """What a status of a WorkerServer means, where it means more than itself."""
    wants_token = " (it does not take this monitor's token)" if status in (401, 403) else ""
    return f"status {status}{wants_token}"


def _recognise(target: Target, answer: T | Unreachable) -> T | Unreachable:
    """The answer, unless it is another's."""
    if isinstance(answer, Unreachable):
        return answer
    told, known = answer.identity, target.identity
    if (told.rank, told.incarnation) == (known.rank, known.incarnation):
        return answer
    who = "another incarnation" if told.rank == known.rank else "another rank"
    return Unreachable(
        Failure.STRANGER,
        f"{who} answers: {told.rank} pid {told.pid} ({told.incarnation})"[:200],
    )
