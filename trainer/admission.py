"""May this host run the group? The question that quarantine lives by.

Three answers, and the third is not an error: a monitor that is away admits everybody, for
training never depends on the monitor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import requests

from worker_server.wire import PATH_ADMISSION

_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Admitted:
    """The host may run the group."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """The host may not run the group now."""

    reason: str


@dataclass(frozen=True, slots=True)
class Away:
    """The monitor gave no answer that can be understood."""

    reason: str


Admission = Admitted | Refused | Away


def ask_monitor(url: str, group: str) -> Callable[[str], Admission]:
    """A question to the monitor at `url`, per host; it never raises.

    Of several (`A,B`) the first that answers is believed: one that stands by answers from the same
    store. The one that answered last is asked first, so that a host which is away costs one wait.
    """
    urls = [one.strip().rstrip("/") for one in url.split(",") if one.strip()]
    session = requests.Session()
    session.trust_env = False  # no proxy between a launcher and its monitor

    def ask(host: str) -> Admission:
        answer: Admission = Away("no monitor is named")
        for number, one in enumerate(list(urls)):
            answer = ask_one(one, host)
            if not isinstance(answer, Away):
                urls.insert(0, urls.pop(number))
                return answer
        return answer

    def ask_one(base: str, host: str) -> Admission:
        try:
            response = session.get(
                base + PATH_ADMISSION,
                params={"host": host, "group": group},
                timeout=_TIMEOUT_S,
            )
            response.raise_for_status()
            return _read(response.json())
        except (requests.RequestException, ValueError, LookupError, TypeError) as error:
            return Away(f"{type(error).__name__}: {error}")

    return ask


def _read(answer: Any) -> Admission:
    admit, reason = answer["admit"], str(answer.get("reason", ""))
    if not isinstance(admit, bool):
        raise TypeError(f"'admit' is {admit!r}")
    return Admitted(reason) if admit else Refused(reason)


def admit_all(host: str) -> Admission:
    """What is asked when there is no monitor."""
    del host
    return Admitted("no monitor configured")
