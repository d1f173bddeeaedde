"""One call under way through the gate."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from monitor.gate.headers import HEARTBEAT_PATH, QUORUM_PATH, Call
from monitor.gate.ledger import Entry

if TYPE_CHECKING:
    from monitor.gate.lighthouse_side import LighthouseSide

KEPT_MAX: Final = 1024 * 1024
"""Bytes of requests that are kept for one client, to read them and to send them again."""


class Kind(Enum):
    """What the gate does with a call."""

    HEARTBEAT = "heartbeat"
    QUORUM = "quorum"
    OTHER = "other"
    """Passed on without looking."""


class Stage(Enum):
    """How far a call is."""

    READING = "reading"
    """Its message is not whole yet."""
    WAITING = "waiting"
    """It may pass; the Lighthouse is not there, or not ready for it."""
    REFUSED = "refused"
    """It may not; the answer is due at `due_s`."""
    HELD = "held"
    """Nobody said yet whether it may; it passes at `due_s`."""
    SENT = "sent"
    """The Lighthouse has it."""


_KINDS: Final = {HEARTBEAT_PATH: Kind.HEARTBEAT, QUORUM_PATH: Kind.QUORUM}


@dataclass(slots=True)
class Stream:
    """One call. Times are of the loop's clock."""

    number: int
    call: Call
    kind: Kind
    began_s: float
    ended: bool
    """Whether the client has sent all of its request."""
    stage: Stage = Stage.READING
    data: bytearray = field(default_factory=bytearray)
    """What the client sent: all of it where `kept`, else what did not go on yet."""
    kept: bool = True
    credited: int = 0
    """Bytes for which the client has got room again though they did not go on yet."""
    trailers: bytes | None = None
    via: LighthouseSide | None = None
    """Which connection carries it, and there under `via_number`."""
    via_number: int = 0
    entry: Entry | None = None
    since_s: float = 0.0
    """Since when it is at its stage."""
    due_s: float = 0.0
    reply: bytearray = field(default_factory=bytearray)
    """Of a quorum: what came of the answer's message so far."""
    replied: bool = False
    """Whether it went on: what follows is passed as it comes."""
    answered: bool = False
    """Whether a part of the answer went to the client: from then on nobody is asked again."""

    @property
    def deadline_s(self) -> float | None:
        """The client's own."""
        return None if self.call.timeout_s is None else self.began_s + self.call.timeout_s


def begin(number: int, call: Call, now_s: float, *, ended: bool) -> Stream:
    """A call whose headers came in."""
    kind = _KINDS.get(call.path, Kind.OTHER)
    return Stream(number, call, kind, now_s, ended, kept=kind is not Kind.OTHER)
