"""One look at every target: each yields exactly one Observation before the deadline.

Theory of operation. One WorkerServer of each host reports all ranks of the host. Ranks missing from
its answer are asked directly, as are all ranks of a host that does not answer in half of the time.
The number of requests at once is limited. Targets not asked by the deadline come first in the next
sweep. Those that did not answer in time come last: else they would hold up the others in every
sweep. Sickness is data: whatever a target does, its Observation says so, and no other Observation
is late or missing because of it. The same sweep asks for the flight records that the previous tick
wants (tier 2). A busy host is slow with a megabyte: what comes after the deadline goes into one of
the next sweeps, with the time of asking. What happened since then it may lack.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from msgspec.json import decode

from lightkeeper.monitor.act.http import LOOP_LATE_S, Fetcher, FetchError, Question
from lightkeeper.monitor.act.launches import Target
from lightkeeper.monitor.model.names import GroupName, RankName, one_line
from lightkeeper.monitor.model.observation import Failure, Observation, Unreachable, with_pauses
from lightkeeper.monitor.model.units import grouped
from lightkeeper.worker_server.wire import (
    PATH_FLIGHT_RECORDER,
    PATH_HOST,
    PATH_STATE,
    PATH_STEPS,
    FlightRecord,
    HostReader,
    HostReport,
    StateReport,
    StepLog,
    parse_flight_record,
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
"""The reports of 64 ranks, each at its largest."""
_OTHERS: Final = 8
"""Reports of ranks that are not asked for: others' in the run directory, mostly a few KiB each."""
_CONTAINERS_MOST: Final = 500_000
"""Lists and objects in one answer: 8,192 entries of torch's record with 60 frames each have that
many. Eight MiB of empty lists would take 200 MiB of memory."""
_AT_ONCE: Final = 256
"""Requests under way at once: more would only queue in the kernel and fill its tables."""
_HOST_SHARE: Final = 0.5
"""Share of a sweep's time that a host may take before its ranks are asked directly."""
_DUMB_S: Final = 30.0
_UNASKED: Final = Unreachable(Failure.UNASKED, "its turn did not come")
RECORDS_AT_ONCE: Final = 32
"""Tier 2 is for the few ranks that matter; more are left for the next tick."""
_RECORD_S: Final = 5.0  # a WorkerServer waits 2.5 s for torch


@dataclass(frozen=True, slots=True)
class Sweep:
    """What one look brought."""

    observations: tuple[Observation, ...]
    """One for each target, in the targets' order."""
    records: Mapping[RankName, FlightRecord | Unreachable]
    asked_ago_s: Mapping[RankName, float]
    """For records that an earlier sweep asked for: how long before this one."""
    steps: Mapping[RankName, StepLog | Unreachable] = field(default_factory=dict)
    """The past steps that were asked for, reduced to those with pauses."""


@dataclass(frozen=True, slots=True)
class _Questions:
    """Some targets of one host, and the WorkerServer that is asked for all of them."""

    speaker: Target | None
    """None: each target is asked directly."""
    targets: tuple[Target, ...]


@lru_cache(maxsize=1 << 17)
def _address(url: str) -> str | None:
    return urlsplit(url).hostname


class _Round:
    """Asks the questions of one sweep, a limited number at once.

    This is a class because closures that refer to each other would keep all results of a sweep in
    memory until the garbage collector finds the cycle, which at 100,000 ranks is late.
    """

    def __init__(
        self, poller: Poller, questions: Sequence[_Questions | Target], end: float,
        silent: frozenset[RankName], silent_end: float,
    ) -> None:  # fmt: skip
        self._poller, self._end, self._silent = poller, end, silent
        self._silent_end = silent_end
        self._todo: deque[_Questions | Target] = deque()
        self._last: deque[_Questions | Target] = deque()
        self._put(questions)
        self._seen: dict[RankName, Observation] = {}
        self._working = 0

    async def seen(self) -> Mapping[RankName, Observation]:
        """Ask all questions; returns the observations by rank."""
        async with asyncio.TaskGroup() as self._workers:
            self._start(len(self._todo) + len(self._last))
        return self._seen

    async def _work(self) -> None:
        while (queue := self._todo or self._last) and time.monotonic() < self._end:
            question = queue.popleft()
            if isinstance(question, Target):
                end = self._silent_end if question.rank in self._silent else self._end
                self._seen[question.rank] = await self._poller.ask_rank(question, end)
                continue
            if question.speaker is not None:
                host = await self._poller.ask_host(question.speaker, question.targets, self._end)
                self._seen.update(host)
            unseen = [target for target in question.targets if target.rank not in self._seen]
            self._put(unseen)
            self._start(len(unseen))

    def _put(self, questions: Iterable[_Questions | Target]) -> None:
        if not self._silent:
            self._todo.extend(questions)
            return
        for question in questions:
            targets = (question,) if isinstance(question, Target) else question.targets
            silent = all(target.rank in self._silent for target in targets)
            (self._last if silent else self._todo).append(question)

    def _start(self, most: int) -> None:  # a few tasks: one per request costs too much
        more = min(most, _AT_ONCE - self._working)
        self._working += max(0, more)
        for _ in range(more):
            self._workers.create_task(self._work()).add_done_callback(self._over)

    def _over(self, _: asyncio.Task[None]) -> None:
        self._working -= 1


class Poller:
    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._hosts = HostReader()
        self._covers: dict[str, frozenset[tuple[GroupName, int, str]]] = {}
        """URL of a WorkerServer that answered for its host -> the incarnations that it reported."""
        self._dumb: dict[str, float] = {}
        """URL of one that did not answer for its host -> monotonic time when it is asked again."""
        self._left: frozenset[RankName] = frozenset()
        """Ranks not asked in the last sweep."""
        self._silent: frozenset[RankName] = frozenset()
        """Ranks that did not answer in time when last asked."""
        self._silent_share = 1.0
        """Share of the time for ranks that did not answer in time."""
        self._planned: tuple[Sequence[Target], list[_Questions]] | None = None
        """The last plan and the targets that it is for, while it is valid."""
        self._records: dict[
            tuple[GroupName, int, str], tuple[float, asyncio.Task[FlightRecord | Unreachable]]
        ] = {}
        """Those that were asked for and have not come, with the monotonic time of asking."""

    def sweep(
        self,
        targets: Sequence[Target],
        *,
        deadline_s: float,
        wanted: Sequence[RankName] = (),
        past: Sequence[RankName] = (),
        watched: Sequence[RankName] = (),
        again: bool = False,
    ) -> Sweep:
        """Look at all targets; those `watched` are asked directly, not through their host.

        Returns after at most about `deadline_s` seconds. `again`: soon after the last look, so
        that ranks that did not answer then get half of the time.

        Raises:
            TimeoutError: the fetcher's own loop does not run.
        """

        async def look() -> Sweep:
            began_s = time.monotonic()
            end = began_s + deadline_s
            self._silent_share = _HOST_SHARE if again else 1.0
            chosen = {*wanted, *past}
            of = {t.identity.rank: t for t in targets if t.identity.rank in chosen}
            asked, early = (
                [of[rank] for rank in dict.fromkeys(ranks[:RECORDS_AT_ONCE]) if rank in of]
                for ranks in (wanted, past)
            )
            observations, came, steps = await asyncio.gather(
                self._observe(targets, frozenset(watched), end),
                self._records_by(end, asked, targets),
                self._each(early, PATH_STEPS, STEPS_MAX_BYTES, _parse_pauses, end),
            )
            records = {rank: record for rank, (_, record) in came.items()}
            ago_s = {rank: began_s - at_s for rank, (at_s, _) in came.items() if at_s < began_s}
            return Sweep(observations, records, ago_s, steps)

        return self._fetcher.submit(look()).result(timeout=deadline_s + LOOP_LATE_S)

    async def _observe(
        self, targets: Sequence[Target], watched: frozenset[RankName], end: float
    ) -> tuple[Observation, ...]:
        """One observation for each target, in the targets' order."""
        now_s, urls = time.monotonic(), {target.url for target in targets}
        self._hosts.most = 1024 + 2 * len(targets)
        self._covers = {url: lives for url, lives in self._covers.items() if url in urls}
        self._dumb = {url: until_s for url, until_s in self._dumb.items() if until_s > now_s}
        todo: list[_Questions | Target] = []
        others = [*targets]
        if watched:
            todo += [target for target in targets if target.rank in watched]
            others = [target for target in targets if target.rank not in watched]
        if self._left:
            others.sort(key=lambda target: target.rank not in self._left)
        if self._planned is None or self._planned[0] != others:
            self._planned = others, self._plan(others)
        todo.extend(self._planned[1])
        if self._dumb:  # the plan depends on these too
            self._planned = None
        silent_end = now_s + self._silent_share * (end - now_s)
        seen = await _Round(self, todo, end, self._silent, silent_end).seen()
        observations = tuple(
            [seen.get(t.identity.rank) or _observed(t, _UNASKED, 0.0) for t in targets]
        )
        self._remember(observations)
        return observations

    def _remember(self, observations: Iterable[Observation]) -> None:
        """Remember targets that were not asked, and those that did not answer in time."""
        failed = {
            seen.rank: seen.outcome.reason
            for seen in observations
            if isinstance(seen.outcome, Unreachable)
        }
        self._left = frozenset(rank for rank, why in failed.items() if why is Failure.UNASKED)
        late = {rank for rank, why in failed.items() if why is Failure.TIMEOUT}
        self._silent = frozenset(late | (self._left & self._silent))

    def _plan(self, targets: Sequence[Target]) -> list[_Questions]:
        """Choose whom to ask: one WorkerServer of each host, and another one for the ranks of the
        host that the first did not know (another container, another run directory).
        """
        # ranks may report each other if they have all of this in common: the address, because a
        # rank may claim any host name; the token, because a rank must not speak for ranks whose
        # token it need not know
        token_of = self._fetcher.tokens.of
        hosts = grouped(
            ((t.identity.host, _address(t.url), token_of(t.identity.group)), t) for t in targets
        )
        plan: list[_Questions] = []
        for members in hosts.values():
            uncovered = {target.identity.life: target for target in members}
            for speaker in members:
                lives = self._covers.get(speaker.url, ())
                covered = [uncovered.pop(life) for life in lives if life in uncovered]
                if covered:
                    plan.append(_Questions(speaker if len(covered) > 1 else None, tuple(covered)))
            remaining = tuple(uncovered.values())
            able = (target for target in remaining if target.url not in self._dumb)
            plan.append(_Questions(next(able, None) if len(remaining) > 1 else None, remaining))
        turns: dict[str | None, count[int]] = defaultdict(count)
        # addresses take turns: who hangs under a thousand names holds up its own address
        plan.sort(
            key=lambda asked: next(turns[_address(asked.targets[0].url)]) if asked.targets else 0
        )
        return plan

    async def ask_host(
        self, speaker: Target, targets: Sequence[Target], end: float
    ) -> dict[RankName, Observation]:
        """Observations of those targets that a WorkerServer reports for its host."""
        began = time.monotonic()
        until = began + _HOST_SHARE * max(0.0, end - began)
        most = min(HOST_MAX_BYTES, STATE_MAX_BYTES * (_OTHERS + len(targets)))
        question = _question(speaker, PATH_HOST, until, most)
        said = await _ask(self._fetcher, question, self._hosts.read)
        took_s = round(time.monotonic() - began, 6)
        if isinstance(said, Unreachable):
            self._covers.pop(speaker.url, None)
            self._dumb[speaker.url], self._planned = time.monotonic() + _DUMB_S, None
            return {}
        reports = {e.report.identity.life: e.report for e in said.entries if e.report}
        if reports.keys() != self._covers.get(speaker.url):
            self._covers[speaker.url], self._planned = frozenset(reports), None
        return {
            target.identity.rank: _observed(target, report, took_s)
            for target in targets
            if (report := reports.get(target.identity.life)) is not None
        }

    async def ask_rank(self, target: Target, end: float) -> Observation:
        began = time.monotonic()
        state = await ask_state(self._fetcher, target.url, target.identity.group, end)
        outcome = _recognise(target, state)
        took_s = round(time.monotonic() - began, 6)  # more digits only fill the journal
        return _observed(target, outcome, took_s)

    async def _records_by(
        self, end: float, asked: Sequence[Target], targets: Sequence[Target]
    ) -> dict[RankName, tuple[float, FlightRecord | Unreachable]]:
        """The flight records that have come by then, also for earlier sweeps, each with the
        monotonic time of asking.
        """
        now_s, records = time.monotonic(), self._records
        for target in asked:
            if target.identity.life not in records and len(records) < RECORDS_AT_ONCE:
                path, most, until = PATH_FLIGHT_RECORDER, RECORD_MAX_BYTES, now_s + _RECORD_S
                answer = self._one(target, path, most, parse_flight_record, until)
                records[target.identity.life] = now_s, asyncio.create_task(answer)
        if not records:
            return {}
        await asyncio.wait([task for _, task in records.values()], timeout=max(0.0, end - now_s))
        came = {life: (s, task.result()) for life, (s, task) in records.items() if task.done()}
        self._records = {life: asked for life, asked in records.items() if life not in came}
        return {t.rank: came[t.identity.life] for t in targets if t.identity.life in came}

    async def _each(
        self, targets: Sequence[Target], path: str, most: int, parse: Callable[[Any], T], end: float
    ) -> dict[RankName, T | Unreachable]:
        """The answers of these ranks, read by `parse`."""
        asked = (self._one(target, path, most, parse, end) for target in targets)
        answers = await asyncio.gather(*asked)
        return dict(zip((target.rank for target in targets), answers, strict=True))

    async def _one(
        self, target: Target, path: str, most: int, parse: Callable[[Any], T], end: float
    ) -> T | Unreachable:
        question = _question(target, path, end, most)
        said = await _ask(self._fetcher, question, lambda raw: parse(json.loads(raw)))
        return _recognise(target, said)


def _parse_pauses(data: Any) -> StepLog:
    return with_pauses(parse_steps(data))


def _question(target: Target, path: str, end: float, max_bytes: int) -> Question:
    left_s, group = end - time.monotonic(), target.identity.group
    return Question(target.url + path, left_s, max_bytes, group=group)


async def ask_state(
    fetcher: Fetcher, url: str, group: GroupName, end: float
) -> StateReport | Unreachable:
    """The state that a WorkerServer reports of its rank, until `end` on the monotonic clock."""
    question = Question(url + PATH_STATE, end - time.monotonic(), STATE_MAX_BYTES, group=group)
    # msgspec refuses text that could not be encoded again
    return await _ask(fetcher, question, lambda body: parse_state(decode(body)))


async def _ask(
    fetcher: Fetcher, question: Question, read: Callable[[bytes], Said]
) -> Said | Unreachable:
    try:
        answer = await fetcher.fetch(question)
        if answer.status != 200:
            return Unreachable(Failure.HTTP, describe_status(answer.status))
        if answer.body.count(b"[") + answer.body.count(b"{") > _CONTAINERS_MOST:
            return Unreachable(Failure.GARBAGE, f"more than {_CONTAINERS_MOST:,} containers")
        return read(answer.body)
    except FetchError as exc:
        return Unreachable(exc.failure, exc.detail)
    except (ValueError, RecursionError) as exc:  # WireError is a ValueError
        return Unreachable(Failure.GARBAGE, one_line(exc))


def _observed(target: Target, outcome: StateReport | Unreachable, took_s: float) -> Observation:
    return Observation(target.identity, target.url, outcome, took_s, target.bringer)


def describe_status(status: int) -> str:
    """A WorkerServer's HTTP status in words, with a hint when the token is refused."""
    wants_token = " (it does not take this monitor's token)" if status in (401, 403) else ""
    return f"status {status}{wants_token}"


def _recognise(target: Target, answer: T | Unreachable) -> T | Unreachable:
    """The answer; `Unreachable` if another rank or incarnation gave it."""
    if isinstance(answer, Unreachable):
        return answer
    theirs, expected = answer.identity, target.identity
    if (theirs.rank, theirs.incarnation) == (expected.rank, expected.incarnation):
        return answer
    who = "another incarnation" if theirs.rank == expected.rank else "another rank"
    process = theirs.incarnation, theirs.group_rank, theirs.launched_as or theirs.group
    return Unreachable(
        Failure.RENAMED if process == target.process else Failure.STRANGER,
        f"{who} answers: {theirs.rank} pid {theirs.pid} ({theirs.incarnation})"[:200],
    )
