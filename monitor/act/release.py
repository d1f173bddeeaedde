"""Asks the ranks that wait for a group that is gone to end their exchange with it.

TorchFT would end it at its own timeout, 60 s by default. Each WorkerServer passes the order to its
rank, which shuts the connections of that quorum's process group down, or aborts it
(`rank.exchange`). Answers are collected in later ticks, so that nothing here waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Final

from lightkeeper.monitor.act.http import Fetcher, FetchError, Question
from lightkeeper.monitor.act.lighthouse import ANSWER_MAX_BYTES
from lightkeeper.monitor.clock import Clock
from lightkeeper.monitor.model.eviction import Accused, Release
from lightkeeper.monitor.model.names import RankName, group_of
from lightkeeper.worker_server.wire import PATH_RELEASE, printable_line

_TIMEOUT_S: Final = 5.0
"""A rank looks for orders four times a second, and its WorkerServer waits 3 s for it."""
_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class _Order:
    release: Release
    answers: dict[RankName, Future[tuple[bool, str]]]


class Releaser:
    """Sends orders, and collects what came of them."""

    def __init__(self, fetcher: Fetcher, clock: Clock) -> None:
        self._fetcher = fetcher
        self._clock = clock
        self._orders: list[_Order] = []

    def begin(self, release: Release, epoch: int) -> Release:
        """Send one order to every survivor; returns what is kept of it."""
        answers = {s.rank: self._fetcher.submit(self._ask(s, release)) for s in release.survivors}
        kept = replace(release, addresses=(), at_s=self._clock.now_s(), epoch=epoch)
        self._orders.append(_Order(kept, answers))
        return kept

    def finished(self) -> Iterator[Release]:
        """The orders that have all their answers now, each once."""
        for order in tuple(self._orders):
            if all(answer.done() for answer in order.answers.values()):
                self._orders.remove(order)
                yield self._ended(order)

    def _ended(self, order: _Order) -> Release:
        said = {rank: answer.result() for rank, answer in sorted(order.answers.items())}
        words = [f"{rank} {text}" for rank, (_, text) in said.items()]
        more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
        return replace(
            order.release,
            state="confirmed" if any(done for done, _ in said.values()) else "failed",
            ended_s=self._clock.now_s(),
            outcome="; ".join(words[:_SHOWN]) + more,
        )

    async def _ask(self, survivor: Accused, release: Release) -> tuple[bool, str]:
        """Ask one rank; returns if it ended anything, and what it said."""
        question = Question(
            survivor.url + PATH_RELEASE, _TIMEOUT_S, ANSWER_MAX_BYTES, method="POST",
            json={
                "reason": release.reason,
                "quorum_id": release.quorum_id,
                "addresses": list(release.addresses),
                "incarnation": survivor.incarnation,
            },
            group=group_of(survivor.rank),
        )  # fmt: skip
        try:
            answer = await self._fetcher.fetch(question)
        except FetchError as exc:
            return False, str(exc)
        said = answer.json_object
        if answer.status != 200 or not said:
            return False, answer.summary
        ended = said.get("ended")
        return type(ended) is int and ended > 0, printable_line(str(said.get("said")))
