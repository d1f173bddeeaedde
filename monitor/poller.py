"""One look at every target: each yields exactly one Observation before the deadline.

Sickness is data: whatever a target does, its Observation says so, and nobody else's is late
or missing for it. The flight records that the tick before asked for (tier 2) and the URLs of
which the rank is not known yet are fetched in the same sweep.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from monitor.fetch import Fetcher, FetchError, Question
from monitor.habits import with_pauses
from monitor.names import RankName
from monitor.snapshot import Failure, Observation, Unreachable
from monitor.targets import Target
from worker_server.wire import (
    PATH_FLIGHT_RECORDER,
    PATH_STATE,
    PATH_STEPS,
    FlightRecord,
    Identity,
    StateReport,
    StepLog,
    parse_flight_record,
    parse_state,
    parse_steps,
)

T = TypeVar("T", StateReport, FlightRecord, StepLog)

STATE_MAX_BYTES: Final = 64 * 1024
"""A state with 8 process groups takes 1 KiB."""
RECORD_MAX_BYTES: Final = 8 * 1024 * 1024
"""2,000 entries of torch's record with stacks take about 2 MiB."""
STEPS_MAX_BYTES: Final = 4 * 1024 * 1024
"""4,096 steps of 16 phases take about 1 MiB."""
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


class Poller:
    """Polls over the shared fetcher."""

    def __init__(self, fetcher: Fetcher, token: str | None = None) -> None:
        """`token`: for reading, where WorkerServers want one."""
        self._fetcher = fetcher
        self._token = token

    def sweep(
        self,
        targets: Sequence[Target],
        *,
        deadline_s: float,
        wanted: Sequence[RankName] = (),
        unidentified: Sequence[str] = (),
        past: Sequence[RankName] = (),
    ) -> Sweep:
        """Look at everyone; returns after at most about `deadline_s` seconds.

        Raises:
            TimeoutError: the fetcher's own loop does not run.
        """
        work = self._sweep(targets, deadline_s, wanted, unidentified, past=past)
        return self._fetcher.submit(work).result(timeout=deadline_s + _LOOP_LATE_S)

    async def _sweep(
        self,
        targets: Sequence[Target],
        deadline_s: float,
        wanted: Sequence[RankName],
        unidentified: Sequence[str],
        *,
        past: Sequence[RankName],
    ) -> Sweep:
        end = time.monotonic() + deadline_s
        of = {target.rank: target for target in targets}
        asked = [of[rank] for rank in dict.fromkeys(wanted) if rank in of][:RECORDS_AT_ONCE]
        early = [of[rank] for rank in dict.fromkeys(past) if rank in of][:RECORDS_AT_ONCE]
        observations, records, answers, steps = await asyncio.gather(
            asyncio.gather(*(self._observe(target, end) for target in targets)),
            asyncio.gather(*(self._record(target, end) for target in asked)),
            asyncio.gather(*(self._state(url, end) for url in unidentified)),
            asyncio.gather(*(self._steps(target, end) for target in early)),
        )
        return Sweep(
            observations=tuple(observations),
            records=dict(zip((target.rank for target in asked), records, strict=True)),
            identified=tuple(
                (url, answer.identity)
                for url, answer in zip(unidentified, answers, strict=True)
                if isinstance(answer, StateReport)
            ),
            steps=dict(zip((target.rank for target in early), steps, strict=True)),
        )

    async def _observe(self, target: Target, end: float) -> Observation:
        began = time.monotonic()
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
        self, url: str, end: float, max_bytes: int, parse: Callable[[Any], T]
    ) -> T | Unreachable:
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
