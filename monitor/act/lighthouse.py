"""Client of one Lighthouse: fetches its page, presses its kill button; never raises or waits long.

A page that cannot be fetched or understood becomes `LighthouseAway`, with the reason. Each look is
independent of earlier ones; what a restart or an absence means is left to the code that compares
views (`LighthouseView.anew`, `monitor.model.observation`).
"""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import Future
from html import unescape
from typing import Final
from urllib.parse import quote

from lightkeeper.monitor.act.http import Fetcher, FetchError, Question
from lightkeeper.monitor.model.names import ReplicaId
from lightkeeper.monitor.model.observation import LighthouseAway, LighthouseView, Member

# -- page --------------------------------------------------------------------------------------

_QUORUM_ID: Final = re.compile(r"Current quorum_id:\s*(-?\d+)")
_STATUS: Final = re.compile(r"Next quorum status:([^\n]*)")
_REQUESTS: Final = re.compile(r"\[\d{1,9}/(\d{1,9}) participants healthy\]")
_ROOM: Final = re.compile(r"Room Status:([^\n]*)")
_STEP: Final = re.compile(r"Step:\s*(-?\d+)")
_MANAGER: Final = re.compile(r"Manager:\s*(\S+)")
_STORE: Final = re.compile(r"TCPStore:\s*(\S+)")
_WORLD: Final = re.compile(r"World size:\s*(\d+)")
_TAG: Final = re.compile(r"<(/?[A-Za-z]{1,20}+)([^<>]{0,400}+)>")
_REFERENCE: Final = re.compile(r"&#?\w{1,8};")
_CLASS: Final = re.compile(r"""class=["']?([^"'>]*)""")
_DURATION: Final = re.compile(r"(-?\d+(?:\.\d*)?(?:e-?\d+)?)(ns|us|µs|ms|s)")
_ID_MOST: Final = 500
_AGE_MOST_S: Final = 1e9
_UNIT_S: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


class PageError(ValueError):
    """A page that is not the Lighthouse's; the message says what is missing."""


class _Page:
    """Splits the Lighthouse's page into its text, member boxes and heartbeat lines.

    TorchFT has no JSON: `GET /status` is an HTML fragment (template in the binary) with the quorum
    id, the members of the last quorum and every replica id that ever sent a heartbeat. Text is
    matched by its words, not by its position. 0.2.0 and the nightly 2026.10.26 print the same page.
    0.1.1 prints a quorum for each of its rooms, and none before somebody has joined: then only the
    heading "Heartbeats" identifies the page (captured pages of all three:
    tests/monitor/act/cases).

    A page from the network must not cost more time than it has bytes, times a constant: an HTML
    parser reads `<!--` or `<a` without an end again and again.

    Raises:
        PageError: more tags than the largest page has.
    """

    def __init__(self, html: str) -> None:
        if html.count("<") + html.count("&") > _TAGS_MOST:
            raise PageError(f"more than {_TAGS_MOST:,} tags")
        self.text: list[str] = []
        self.members: list[tuple[list[str], list[str], bool]] = []
        """Replica id, text of the box, recovering."""
        self.heartbeats: list[list[str]] = []
        self.old: list[bool] = []
        """True for those that are older than the Lighthouse's timeout (0.2.0: class `old`)."""
        self._depth = 0  # of <div> inside a member box
        self._bold = self._item = False
        pieces = iter(_TAG.split(html))  # text, then a tag's name, its rest, text ...
        self._data(next(pieces))
        for name, rest, data in zip(pieces, pieces, pieces, strict=True):
            self._tag(name.lower(), rest)
            self._data(data)

    def _tag(self, tag: str, rest: str) -> None:
        said = _CLASS.search(rest)
        classes = () if said is None else said[1].split()
        if tag == "div" and (self._depth or "member" in classes):
            if not self._depth:
                self.members.append(([], [], "recovering" in classes))
            self._depth += 1
        elif tag == "/div" and self._depth:
            self._depth -= 1
        elif tag in ("b", "/b"):
            self._bold = tag == "b"
        elif tag in ("li", "/li"):
            self._item = tag == "li" and "heartbeat" in classes
            if self._item:
                self.heartbeats.append([])
                self.old.append("old" in classes)
        elif tag == "br":
            self.text.append("\n")

    def _data(self, data: str) -> None:
        if "&" in data:
            data = _REFERENCE.sub(lambda match: unescape(match[0]), data)
        if self._item:
            self.heartbeats[-1].append(data)
        elif self._depth:
            replica_id, text, _ = self.members[-1]
            if self._bold and not text:
                replica_id.append(data)
            elif data.strip():
                text.append(data)
        else:
            self.text.append(data)


def parse_status(html: str) -> LighthouseView:
    """Read the Lighthouse's `/status` page.

    Raises:
        PageError: it is not such a page.
    """
    page = _Page(html)
    text = "".join(page.text)
    quorum_id, status, rooms = _QUORUM_ID.search(text), _STATUS.search(text), _ROOM.findall(text)
    if len(rooms) > 1:
        names = ",".join(rooms[:9]).strip()[:80]
        raise PageError(f"{len(rooms)} rooms ({names!r}): one job a Lighthouse is read")
    nobody_joined = text.split() == ["Heartbeats"] and not page.members  # 0.1.1: no quorum request
    if quorum_id is None and not nobody_joined:
        raise PageError("no 'Current quorum_id' on the page")
    heartbeats = [_heartbeat("".join(line)) for line in page.heartbeats]
    requests = _REQUESTS.search("" if status is None else status[1])
    return LighthouseView(
        quorum_id=0 if quorum_id is None else _int(quorum_id[1]),
        members=tuple(_member("".join(i), "".join(t), r) for i, t, r in page.members),
        heartbeat_ages_s=dict(heartbeats),
        status="" if status is None else status[1].strip(),
        expired=frozenset(name for (name, _), old in zip(heartbeats, page.old, strict=True) if old),
        requests=None if requests is None else int(requests[1]),
    )


def _int(digits: str) -> int:
    if len(digits) > 18:
        raise PageError("a number of more than 18 digits")
    return int(digits)


def _member(replica_id: str, text: str, recovering: bool) -> Member:
    step, world = _STEP.search(text), _WORLD.search(text)
    manager, store = _MANAGER.search(text), _STORE.search(text)
    if step is None:
        raise PageError("a member without a step")
    return Member(
        replica_id=_id(replica_id),
        step=_int(step[1]),
        address=None if manager is None else manager[1],
        store_address=None if store is None else store[1],
        world_size=None if world is None else _int(world[1]),
        recovering=recovering,
    )


def _heartbeat(line: str) -> tuple[ReplicaId, float]:
    replica_id, seen, rest = line.rpartition(": seen")
    words = rest.split()
    if not seen or words[1:] != ["ago"]:
        raise PageError(f"a heartbeat line that reads {line.strip()[:80]!r}")
    return _id(replica_id), _seconds(words[0])


def _id(text: str) -> ReplicaId:
    if not 0 < len(text.strip()) <= _ID_MOST:
        raise PageError(f"a replica id that reads {text.strip()[:80]!r}")
    return ReplicaId(text.strip())


def _seconds(text: str) -> float:
    """A duration as Rust prints it: `0.3s`, `1.5ms`."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise PageError(f"a duration that reads {text[:40]!r}")
    return min(max(0.0, float(match[1]) * _UNIT_S[match[2]]), _AGE_MOST_S)


# -- driver ------------------------------------------------------------------------------------

PAGE_MAX_BYTES: Final = 4 * 1024 * 1024
"""A heartbeat line takes about 120 bytes, and the Lighthouse never forgets one."""
_TAGS_MOST: Final = 100_000
"""On so long a page: a heartbeat line has two, a member ten in 480 bytes. Read in 0.2 s."""
_UNREADABLE: Final = "the Lighthouse's page cannot be read"
ANSWER_MAX_BYTES: Final = 16 * 1024


class Lighthouse:
    def __init__(self, url: str, fetcher: Fetcher) -> None:
        self.url = url.rstrip("/")
        self._fetcher = fetcher

    def look(self, timeout_s: float) -> LighthouseView | LighthouseAway:
        """Fetch the page and read it; takes at most about `timeout_s` seconds."""
        return self.begin_look(timeout_s).result()

    def begin_look(self, timeout_s: float) -> Future[LighthouseView | LighthouseAway]:
        return self._fetcher.submit(self._look(timeout_s))

    async def _look(self, timeout_s: float) -> LighthouseView | LighthouseAway:
        question = Question(f"{self.url}/status", timeout_s, PAGE_MAX_BYTES)
        try:
            answer = await self._fetcher.fetch(question)
            if answer.status != 200:
                return LighthouseAway(f"GET /status answered {answer.status}")
            page = answer.body.decode("utf-8", "replace")
            async with asyncio.timeout(timeout_s):  # not in the loop: 4 MB take a second
                return await asyncio.to_thread(parse_status, page)
        except FetchError as exc:
            return LighthouseAway(str(exc))
        except TimeoutError:
            return LighthouseAway(f"{_UNREADABLE}: it took more than {timeout_s:g} s")
        except PageError as exc:
            return LighthouseAway(f"{_UNREADABLE}: {exc}")

    def begin_kill(self, replica_id: ReplicaId, timeout_s: float) -> Future[str]:
        """Press the kill button; the result is the Lighthouse's answer, which proves nothing.

        A kill that works answers 500 (the group's manager exits without answering), one that does
        not may never answer at all: look at the quorum and the processes instead.
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
