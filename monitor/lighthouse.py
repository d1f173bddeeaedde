"""The Lighthouse as the monitor sees it: its HTML page read, its kill button pressed.

TorchFT 0.2.0 has no JSON: `GET /status` is an HTML fragment (template in the binary) with the
quorum id, the members of the last quorum and every replica id that ever sent a heartbeat. Text
is taken by what it says, not by where it stands; what cannot be understood is `LighthouseAway`.
"""

from __future__ import annotations

import re
from concurrent.futures import Future
from html.parser import HTMLParser
from typing import Final
from urllib.parse import quote

from monitor.fetch import Answer, Fetcher, FetchError, Question
from monitor.names import ReplicaId
from monitor.snapshot import LighthouseAway, LighthouseView, Member

PAGE_MAX_BYTES: Final = 4 * 1024 * 1024
"""A heartbeat line takes about 120 bytes, and the Lighthouse never forgets one."""
ANSWER_MAX_BYTES: Final = 16 * 1024

_QUORUM_ID: Final = re.compile(r"Current quorum_id:\s*(-?\d+)")
_STATUS: Final = re.compile(r"Next quorum status:\s*(.+?)\s*$", re.MULTILINE)
_STEP: Final = re.compile(r"Step:\s*(-?\d+)")
_HEARTBEAT: Final = re.compile(r"^\s*(?P<id>.+): seen\s+(?P<age>\S+)\s+ago\s*$", re.DOTALL)
_DURATION: Final = re.compile(r"^(-?[\d.]+(?:e-?\d+)?)(ns|us|µs|ms|s)$")
_UNIT_S: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


class PageError(ValueError):
    """A page that is not the Lighthouse's; the message says what is missing."""


class _Page(HTMLParser):
    """Splits the page into its text, member boxes and heartbeat lines."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text: list[str] = []
        self.members: list[tuple[str, str]] = []  # replica id, text of the box
        self.heartbeats: list[str] = []
        self._depth = 0  # of <div> inside a member box
        self._bold = False
        self._item = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        classes = (dict(attrs).get("class") or "").split()
        if tag == "div" and (self._depth or "member" in classes):
            if not self._depth:
                self.members.append(("", ""))
            self._depth += 1
        elif tag == "b":
            self._bold = True
        elif tag == "li" and "heartbeat" in classes:
            self._item = True
            self.heartbeats.append("")
        elif tag == "br":
            self.text.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag == "div" and self._depth:
            self._depth -= 1
        elif tag == "b":
            self._bold = False
        elif tag == "li":
            self._item = False

    def handle_data(self, data: str) -> None:
        if self._item:
            self.heartbeats[-1] += data
        elif self._depth:
            replica_id, text = self.members[-1]
            bold = self._bold and not text.strip()
            self.members[-1] = (replica_id + data, text) if bold else (replica_id, text + data)
        else:
            self.text.append(data)


def parse_status(html: str) -> LighthouseView:
    """The Lighthouse's `/status` page.

    Raises:
        PageError: it is not such a page.
    """
    page = _Page()
    page.feed(html)
    page.close()
    text = "".join(page.text)
    quorum_id, status = _QUORUM_ID.search(text), _STATUS.search(text)
    if quorum_id is None:
        raise PageError("no 'Current quorum_id' on the page")
    return LighthouseView(
        quorum_id=_int(quorum_id[1]),
        members=tuple(_member(*box) for box in page.members),
        heartbeat_ages_s=dict(_heartbeat(line) for line in page.heartbeats),
        status="" if status is None else status[1],
    )


def _int(digits: str) -> int:
    if len(digits) > 20:
        raise PageError("a number of more than 20 digits")
    return int(digits)


def _member(replica_id: str, text: str) -> Member:
    step = _STEP.search(text)
    if not replica_id.strip() or step is None:
        raise PageError("a member without a replica id or a step")
    return Member(ReplicaId(replica_id.strip()), _int(step[1]))


def _heartbeat(line: str) -> tuple[ReplicaId, float]:
    found = _HEARTBEAT.match(line)
    if found is None:
        raise PageError(f"a heartbeat line that reads {line.strip()[:80]!r}")
    return ReplicaId(found["id"].strip()), _seconds(found["age"])


def _seconds(text: str) -> float:
    """A duration as Rust prints it: `0.3s`, `1.5ms`."""
    found = _DURATION.match(text)
    if found is None:
        raise PageError(f"a duration that reads {text[:40]!r}")
    try:
        return max(0.0, float(found[1]) * _UNIT_S[found[2]])
    except ValueError as exc:
        raise PageError(f"a duration that reads {text[:40]!r}") from exc


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
        return describe(answer)


def describe(answer: Answer) -> str:
    """An answer in one short line."""
    text = " ".join(answer.body.decode("utf-8", "replace").split())
    return f"answered {answer.status}: {text[:160]}" if text else f"answered {answer.status}"
