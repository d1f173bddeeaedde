"""One Lighthouse: its page fetched, its kill button pressed; never raises, never waits for long.

What cannot be fetched or understood is `LighthouseAway`, with why. Each look stands alone: a
Lighthouse that was restarted or away is looked at again by the next one, and what that means is
for those who compare views (`LighthouseView.anew`, `monitor.lighthouse_log`).
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Final
from urllib.parse import quote

from monitor.fetch import Fetcher, FetchError, Question
from monitor.lighthouse.page import PageError, parse_status
from monitor.names import ReplicaId
from monitor.snapshot import LighthouseAway, LighthouseView

PAGE_MAX_BYTES: Final = 4 * 1024 * 1024
"""A heartbeat line takes about 120 bytes, and the Lighthouse never forgets one."""
ANSWER_MAX_BYTES: Final = 16 * 1024


class Lighthouse:
    """One TorchFT Lighthouse."""

    def __init__(self, url: str, fetcher: Fetcher) -> None:
        self.url = url.rstrip("/")
        self._fetcher = fetcher

    def look(self, timeout_s: float) -> LighthouseView | LighthouseAway:
        """Its page now; takes at most about `timeout_s` seconds."""
        return self.begin_look(timeout_s).result()

    def begin_look(self, timeout_s: float) -> Future[LighthouseView | LighthouseAway]:
        """Start looking at its page."""
        return self._fetcher.submit(self._look(timeout_s))

    async def _look(self, timeout_s: float) -> LighthouseView | LighthouseAway:
        question = Question(f"{self.url}/status", timeout_s, PAGE_MAX_BYTES)
        try:
            answer = await self._fetcher.fetch(question)
            if answer.status != 200:
                return LighthouseAway(f"GET /status answered {answer.status}")
            return parse_status(answer.body.decode("utf-8", "replace"))
        except FetchError as exc:
            return LighthouseAway(str(exc))
        except PageError as exc:
            return LighthouseAway(f"cannot read its page: {exc}")

    def begin_kill(self, replica_id: ReplicaId, timeout_s: float) -> Future[str]:
        """Press its kill button; the result is what it said, which proves nothing.

        A kill that works answers 500 (the group's manager exits without answering), one that
        does not may never answer at all: look at the quorum and the processes instead.
        """
        return self._fetcher.submit(self._kill(replica_id, timeout_s))

    async def _kill(self, replica_id: ReplicaId, timeout_s: float) -> str:
        url = f"{self.url}/replica/{quote(replica_id, safe='')}/kill"
        try:
            answer = await self._fetcher.fetch(
                Question(url, timeout_s, ANSWER_MAX_BYTES, method="POST")
            )
        except FetchError as exc:
            return str(exc)
        return answer.summary
