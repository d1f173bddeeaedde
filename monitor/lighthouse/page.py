"""The Lighthouse's page, read. Pure.

TorchFT has no JSON: `GET /status` is an HTML fragment (template in the binary) with the quorum id,
the members of the last quorum and every replica id that ever sent a heartbeat. Text is taken by
what it says, not by where it stands. 0.2.0 and the nightly 2026.10.26 print the same page; 0.1.1
prints a quorum for each of its rooms, none before somebody has joined, and calls no Lighthouse's
page its own but by its heartbeats (captured pages of all three: tests/monitor/shell/cases).
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Final

from monitor.names import ReplicaId
from monitor.snapshot import LighthouseView, Member

_QUORUM_ID: Final = re.compile(r"Current quorum_id:\s*(-?\d+)")
_STATUS: Final = re.compile(r"Next quorum status:\s*(.+?)\s*$", re.MULTILINE)
_ROOM: Final = re.compile(r"Room Status:\s*(.+?)\s*$", re.MULTILINE)
_STEP: Final = re.compile(r"Step:\s*(-?\d+)")
_MANAGER: Final = re.compile(r"Manager:\s*(\S+)")
_STORE: Final = re.compile(r"TCPStore:\s*(\S+)")
_WORLD: Final = re.compile(r"World size:\s*(\d+)")
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
        self.members: list[tuple[str, str, bool]] = []  # replica id, text of the box, recovering
        self.heartbeats: list[str] = []
        self._depth = 0  # of <div> inside a member box
        self._bold = False
        self._item = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        classes = (dict(attrs).get("class") or "").split()
        if tag == "div" and (self._depth or "member" in classes):
            if not self._depth:
                self.members.append(("", "", "recovering" in classes))
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
            replica_id, text, recovering = self.members[-1]
            if self._bold and not text.strip():
                self.members[-1] = (replica_id + data, text, recovering)
            else:
                self.members[-1] = (replica_id, text + data, recovering)
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
    quorum_id, status, rooms = _QUORUM_ID.search(text), _STATUS.search(text), _ROOM.findall(text)
    if len(rooms) > 1:
        raise PageError(
            f"{len(rooms)} rooms ({', '.join(rooms)[:80]}): one job a Lighthouse is read"
        )
    if quorum_id is None and not _nobody_joined(text, page):
        raise PageError("no 'Current quorum_id' on the page")
    return LighthouseView(
        quorum_id=0 if quorum_id is None else _int(quorum_id[1]),
        members=tuple(_member(*box) for box in page.members),
        heartbeat_ages_s=dict(_heartbeat(line) for line in page.heartbeats),
        status="" if status is None else status[1],
    )


def _nobody_joined(text: str, page: _Page) -> bool:
    """Whether it is the page of a Lighthouse of 0.1.1 that has had no quorum request yet."""
    return text.split() == ["Heartbeats"] and not page.members


def _int(digits: str) -> int:
    if len(digits) > 20:
        raise PageError("a number of more than 20 digits")
    return int(digits)


def _member(replica_id: str, text: str, recovering: bool) -> Member:
    step, world = _STEP.search(text), _WORLD.search(text)
    manager, store = _MANAGER.search(text), _STORE.search(text)
    if not replica_id.strip() or step is None:
        raise PageError("a member without a replica id or a step")
    return Member(
        replica_id=ReplicaId(replica_id.strip()),
        step=_int(step[1]),
        address=None if manager is None else manager[1],
        store_address=None if store is None else store[1],
        world_size=None if world is None else _int(world[1]),
        recovering=recovering,
    )


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
