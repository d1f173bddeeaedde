"""The question before a group starts: may it run on this host?

Three answers, and the third is no error: a monitor that is away admits everybody, for training
never depends on the monitor. Whoever asks waits for `timeout_s` and not a second longer, whatever
the network and the name service do.

The standard library and the wire only: a launcher asks before every start.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import threading
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from worker_server.wire import PATH_ADMISSION

REFUSED_STATUS = 75
"""EX_TEMPFAIL of sysexits.h: not now, try again later. What a refused launcher and a refused rank
end with."""
EACH_S = 2.0
"""For one monitor of several. One that is up answers within milliseconds."""
_ANSWER_MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Admitted:
    """The host may run the group."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """The host may not run the group now."""

    reason: str
    until_s: float | None = None
    """Unix time; None: until a person releases it."""


@dataclass(frozen=True, slots=True)
class Away:
    """No monitor gave an answer that can be understood."""

    reason: str


Admission = Admitted | Refused | Away


class UrlError(ValueError):
    """An address that is none; the message says what is expected."""


def monitors_of(text: str) -> tuple[str, ...]:
    """The monitors of `URL` or `URL,URL`, in the order in which they are asked.

    Raises:
        UrlError: one is no address.
    """
    urls = tuple(part.strip().rstrip("/") for part in text.split(",") if part.strip())
    for url in urls:
        try:
            parts = urlsplit(url)
            good = parts.scheme in ("http", "https") and bool(parts.hostname)
            good = good and (parts.port is None or parts.port > 0)
        except ValueError:
            good = False
        if not good:
            raise UrlError(f"{url!r} is no monitor's address, expected http://HOST:PORT[,URL]")
    return urls


def ask(monitors: list[str], host: str, group: str | None, timeout_s: float) -> Admission:
    """What the first monitor says that gives a usable answer; never raises. It comes to the front
    of the list: who asks with it again waits no more for a host that is away.

    All of it in a thread of its own: no deadline of a socket covers a name service that hangs, or
    a server that answers a byte a second.
    """
    answers: queue.SimpleQueue[Admission] = queue.SimpleQueue()
    threading.Thread(
        target=lambda: answers.put(_ask_all(monitors, host, group, timeout_s)),
        name="admission",
        daemon=True,
    ).start()
    try:
        return answers.get(timeout=timeout_s)
    except queue.Empty:
        return Away(f"no answer of {' or '.join(monitors)} within {timeout_s:g} s")


def _ask_all(monitors: list[str], host: str, group: str | None, timeout_s: float) -> Admission:
    end_s, said = time.monotonic() + timeout_s, []
    for url in tuple(monitors):
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            break
        answer = _ask_one(url, host, group, min(EACH_S, left_s))
        if not isinstance(answer, Away):
            monitors[:] = [url, *(one for one in monitors if one != url)]
            return answer
        said.append(f"{url}: {answer.reason}")
    return Away("; ".join(said) or "no time left to ask")


def _ask_one(url: str, host: str, group: str | None, timeout_s: float) -> Admission:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    query = urlencode({"host": host, **({} if group is None else {"group": group})})
    try:
        with contextlib.closing(kind(parts.netloc, timeout=timeout_s)) as connection:
            connection.request("GET", f"{parts.path}{PATH_ADMISSION}?{query}")
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                return Away(f"it answers {response.status}")
            return _read(json.loads(response.read(_ANSWER_MAX_BYTES)))
    except TimeoutError:
        return Away("no answer in time")
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as exc:
        return Away(" ".join(f"{type(exc).__name__}: {exc}".split()))


def _read(answer: Any) -> Admission:
    if not isinstance(answer, dict) or not isinstance(answer.get("admit"), bool):
        return Away("its answer is no admission")
    reason, until_s = answer.get("reason"), answer.get("until_s")
    text = " ".join(reason.split()) if isinstance(reason, str) else ""
    if answer["admit"]:
        return Admitted(text)
    if isinstance(until_s, bool) or not isinstance(until_s, int | float):
        until_s = None
    return Refused(text or "no reason given", until_s)


def until(at_s: float | None) -> str:
    """The end of a refusal: a local date and time, or whom it takes."""
    if at_s is None:
        return "a person releases it"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(at_s))
    except (ValueError, OverflowError, OSError):
        return "some time"
