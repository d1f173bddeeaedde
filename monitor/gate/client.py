"""The gate as the monitor talks to it; never raises, never waits longer than it is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Final

from monitor.fetch import Fetcher, FetchError, Question
from monitor.gate.denial import Denial, DenialError, denials_json, parse_denials
from monitor.gate.view import GateAway, GateError, GateView, parse_view

ANSWER_MAX_BYTES: Final = 16 * 1024 * 1024
"""A replica takes about 500 bytes, a denial as many and 50 for each replica id in it."""

__all__ = ["Gate", "GateAway", "GateView"]


class Gate:
    """One gate, by the URL of its admin port."""

    def __init__(self, url: str, fetcher: Fetcher, token: str | None) -> None:
        self.url = url.rstrip("/")
        self._fetcher = fetcher
        self._token = token

    def begin_look(self, timeout_s: float) -> Future[GateView | GateAway]:
        """Start asking what it sees and whom it refuses."""
        return self._fetcher.submit(self._look(timeout_s))

    def begin_deny(self, denials: Sequence[Denial], timeout_s: float) -> Future[str | None]:
        """Start replacing its list; the result is None when exactly these are in force, else
        what went wrong in one line. An entry that has expired by now need not be in force.
        """
        return self._fetcher.submit(self._deny(tuple(denials), timeout_s))

    async def _look(self, timeout_s: float) -> GateView | GateAway:
        question = Question(f"{self.url}/v1/gate", timeout_s, ANSWER_MAX_BYTES, token=self._token)
        try:
            answer = await self._fetcher.fetch(question)
            if answer.status != 200:
                return GateAway(f"GET /v1/gate {answer.summary}")
            return parse_view(json.loads(answer.body))
        except FetchError as exc:
            return GateAway(str(exc))
        except (GateError, ValueError, RecursionError) as exc:
            return GateAway(f"cannot read its answer: {exc}")

    async def _deny(self, denials: tuple[Denial, ...], timeout_s: float) -> str | None:
        question = Question(
            f"{self.url}/v1/gate/denied",
            timeout_s,
            ANSWER_MAX_BYTES,
            method="PUT",
            json=denials_json(denials),
            token=self._token,
        )
        try:
            answer = await self._fetcher.fetch(question)
            if answer.status != 200:
                return f"PUT /v1/gate/denied {answer.summary}"
            return _difference(denials, parse_denials(json.loads(answer.body)))
        except FetchError as exc:
            return str(exc)
        except (DenialError, ValueError, RecursionError) as exc:
            return f"cannot read its answer: {exc}"


def _difference(asked: Sequence[Denial], in_force: Sequence[Denial]) -> str | None:
    missing = [denial for denial in asked if denial not in in_force and denial.until_s is None]
    more = [denial for denial in in_force if denial not in asked]
    if not missing and not more:
        return None
    first: Any = (missing or more)[0]
    return f"the gate has another list in force, it differs in {first.scope} {first.name}"
