"""One moment: everybody concerned is asked for everything at once, until one deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace
from typing import Final

from monitor.clock import Clock
from monitor.evidence.parts import KINDS, Kind, Part, Status, weigh
from monitor.fetch import Answer, Fetcher, FetchError, Question
from monitor.poller import describe_status
from monitor.snapshot import Failure, Observation

_LOOP_LATE_S: Final = 0.5
"""A fetch loop that is later than this is broken: whoever waits goes on without it."""


class Budget:
    """Bytes that the answers of one moment may hold together; used on the fetch loop only."""

    def __init__(self, nbytes: int) -> None:
        self.left = nbytes


class Meter:
    """What one request has taken of the budget."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._taken = 0

    def take(self, nbytes: int) -> None:
        """Count a piece.

        Raises:
            FetchError: nothing is left.
        """
        self._budget.left -= nbytes
        self._taken += nbytes
        if self._budget.left < 0:
            raise FetchError(Failure.GARBAGE, TOO_MUCH)

    def give_back(self) -> None:
        """Nothing of it was kept."""
        self._budget.left += self._taken


TOO_MUCH: Final = "the bundle is full"


@dataclass(frozen=True, slots=True)
class Raw:
    """What came of one request, not looked into yet."""

    one: Observation
    kind: Kind
    answer: Answer | None = None
    taken_s: float | None = None
    failed: FetchError | None = None
    cut: bool = False


class Asker:
    """Asks over the shared fetcher."""

    def __init__(self, clock: Clock, fetcher: Fetcher, token: str | None) -> None:
        self._clock = clock
        self._fetcher = fetcher
        self._token = token

    def ask(self, whom: Sequence[Observation], *, deadline_s: float, nbytes: int) -> list[Raw]:
        """Every part of every rank, in order; returns after at most about `deadline_s`."""
        end = time.monotonic() + deadline_s
        budget = Budget(nbytes)
        asked = [(one, kind) for one in whom for kind in KINDS]

        async def all_of_them() -> list[Raw]:
            return await asyncio.gather(*(self._one(*each, end, budget) for each in asked))

        future = self._fetcher.submit(all_of_them())
        try:
            return future.result(timeout=deadline_s + _LOOP_LATE_S)
        except (FutureTimeoutError, CancelledError):
            future.cancel()
            late = FetchError(Failure.TIMEOUT, "the monitor's own loop is late or has ended")
            return [Raw(one, kind, failed=late) for one, kind in asked]

    async def _one(self, one: Observation, kind: Kind, end: float, budget: Budget) -> Raw:
        """One part; a smaller answer where the whole is too large."""
        whole = await self._get(one, kind, "", end, budget)
        if not kind.smaller or whole.failed is None or not _too_large(whole.failed):
            return whole
        if whole.failed.detail == TOO_MUCH:
            return whole
        less = await self._get(one, kind, kind.smaller, end, budget)
        return replace(less, cut=True) if less.failed is None else whole

    async def _get(
        self, one: Observation, kind: Kind, query: str, end: float, budget: Budget
    ) -> Raw:
        meter = Meter(budget)
        question = Question(
            one.url + kind.path + query,
            timeout_s=end - time.monotonic(),
            max_bytes=kind.max_bytes,
            token=self._token,
            meter=meter.take,
        )
        try:
            answer = await self._fetcher.fetch(question)
        except FetchError as exc:
            meter.give_back()
            return Raw(one, kind, failed=exc)
        return Raw(one, kind, answer, self._clock.now_s())


def judged(raw: Sequence[Raw]) -> list[Part]:
    """What the answers are worth; nothing of a rank as which a stranger answers."""
    parts = [_judge(one) for one in raw]
    strange = {part.rank: part.error for part in parts if part.status is Status.STRANGER}
    return [
        replace(part, status=Status.STRANGER, body=None, error=strange[part.rank])
        if part.rank in strange and part.body is not None
        else part
        for part in parts
    ]


def _judge(raw: Raw) -> Part:
    bare = Part(raw.one.rank, raw.kind, Status.OK, taken_s=raw.taken_s)
    if raw.answer is None:
        status, why = _failure(raw)
        return replace(bare, status=status, error=why)
    said = replace(bare, seconds=raw.answer.seconds)
    if raw.answer.status != 200:
        error = f"{describe_status(raw.answer.status)}: {_told(raw.answer.body)}"
        return replace(said, status=Status.REFUSED, error=error)
    status, age_s, wrong = weigh(raw.kind, raw.one.identity, raw.answer.body)
    if status is not Status.OK:
        return replace(said, status=status, error=wrong)
    if raw.cut:
        error = f"all of it is over {raw.kind.max_bytes} bytes: only what is unfinished"
        return replace(said, status=Status.CUT, body=raw.answer.body, age_s=age_s, error=error)
    return replace(said, body=raw.answer.body, age_s=age_s)


def _failure(raw: Raw) -> tuple[Status, str]:
    failed = raw.failed or FetchError(Failure.TIMEOUT, "not asked")
    if _too_large(failed):
        return Status.TOO_LARGE, failed.detail
    if failed.failure is Failure.TIMEOUT:
        return Status.LATE, failed.detail
    if failed.failure is Failure.GARBAGE:
        return Status.GARBAGE, failed.detail
    return Status.UNREACHABLE, failed.detail


def _too_large(failed: FetchError) -> bool:
    return failed.detail == TOO_MUCH or failed.detail.startswith("body over ")


def _told(body: bytes) -> str:
    return " ".join(body[:200].decode(errors="replace").split())
