"""Keeps quorum ids unique when a restarted Lighthouse has forgotten its count. Pure.

A Lighthouse counts its quorums from 1, in memory. TorchFT's managers meet for a new quorum at
`STORE/torchft/QUORUM_ID/RANK`, a key in the store of one of the groups, which outlives the
Lighthouse. After a restart the same ids come again: the managers find each other's old addresses
there or, if they already have that id, do not meet at all, and training stands until it times out
(seen with TorchFT 0.2.0: 60 s, twice).

So the gate continues the count of the former Lighthouse. Replies of a Lighthouse that was never
restarted pass unchanged, byte for byte; in those of a restarted one only the number changes. Nobody
sends the number back, so the Lighthouse never sees the changed one.

How a restart is detected: a quorum made later than the last one, with a smaller number, or with
the same number and other members. (Within one life the number never falls, and grows whenever the
members change.) What cannot be read passes unchanged.

A gate that took over from nobody (its host is lost, it was killed) does not know which numbers
the groups have. So if the job has made steps already, it begins above the time in milliseconds,
which no gate before can have reached: the same members meet once more, at an unused key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lightkeeper.gate.messages import (
    BYTES,
    PREFIX_BYTES,
    VARINT,
    WireField,
    encode_varint,
    fields,
    is_whole,
    signed,
    values,
    varint,
)
from lightkeeper.monitor.model.plain import readable

_ID_MOST: Final = 2**62
"""No Lighthouse counts to a larger number."""
_UNKNOWN: Final = "no reply of a Lighthouse that we can read"


@dataclass(frozen=True, slots=True)
class _Quorum:
    """The content of one reply, and where its number lies in the bytes."""

    number: int
    made: tuple[int, int]
    """Seconds and nanoseconds of the Lighthouse's clock."""
    members: dict[str, bytes]
    """Replica id -> its request, as in `QuorumRequest.member`."""
    whole: WireField
    """Where the quorum is in the reply."""
    numbered: WireField
    """Where its number is."""

    @property
    def under_way(self) -> bool:
        """True if any member has made a step."""
        return any(signed(values(member).get(4)) > 0 for member in self.members.values())


@readable
@dataclass(slots=True)
class QuorumIds:
    """Keeps the count across Lighthouse restarts. One for all connections of a gate."""

    floor: int = 0
    """The first number is above it if the job has made steps already; 0: the Lighthouse's own."""
    offset: int = 0
    """Added to the present Lighthouse's numbers."""
    highest: int = 0
    """The highest number sent to the groups."""
    restarts: int = 0
    """Restarts seen."""
    made: tuple[int, int] = (0, 0)
    """When the newest quorum was made, by the Lighthouse's clock."""
    number: int = -1
    members: frozenset[str] = frozenset()
    before: int = 0
    """Offset of the Lighthouse's previous life, for late replies from it."""
    began: tuple[int, int] = (0, 0)
    """When the first quorum of the present life was made."""

    def passed(self, reply: bytes) -> bytes:
        """The reply as the groups are to see it.

        Args:
            reply: one message of `Quorum`, without gRPC's five-byte prefix.
        """
        try:
            quorum = _read(reply)
        except ValueError:
            return reply
        offset = self._offset_of(quorum)
        self.highest = max(self.highest, quorum.number + offset)
        return reply if not offset else _renumbered(reply, quorum, quorum.number + offset)

    def framed(self, message: bytes) -> bytes:
        """`passed` for a whole gRPC message; a compressed or invalid one passes unchanged."""
        if is_whole(message) is not True:
            return message
        reply = message[PREFIX_BYTES:]
        passed = self.passed(reply)
        if passed is reply:
            return message
        return message[:1] + len(passed).to_bytes(PREFIX_BYTES - 1, "big") + passed

    def _offset_of(self, quorum: _Quorum) -> int:
        if quorum.made < self.began:
            return self.before
        if quorum.made <= self.made:
            return self.offset  # another manager's copy, or a late reply
        if self.number < 0:
            if self.floor and quorum.under_way:
                self.offset = max(0, self.floor + 1 - quorum.number)
        elif quorum.number < self.number or (
            quorum.number == self.number and quorum.members.keys() != self.members
        ):
            self.restarts += 1
            self.before, self.began = self.offset, quorum.made
            self.offset = max(0, self.highest + 1 - quorum.number)
        self.number, self.made = quorum.number, quorum.made
        self.members = frozenset(quorum.members)
        return self.offset


def members_of(message: bytes) -> dict[str, bytes]:
    """The quorum in a whole gRPC message, as in `_Quorum`; empty if it cannot be read."""
    try:
        return _read(message[PREFIX_BYTES:]).members
    except ValueError:
        return {}


# -- protobuf, as far as needed ----------------------------------------------------------------


def _read(reply: bytes) -> _Quorum:
    """LighthouseQuorumResponse: 1 quorum; in it 1 number, 2 members, 3 when it was made."""
    quorums = [field for field in fields(reply, 0, len(reply)) if field.number == 1]
    if len(quorums) != 1 or quorums[0].kind != BYTES:
        raise ValueError(_UNKNOWN)
    (whole,) = quorums
    number, numbered, made = _ID_MOST, whole, (0, 0)
    members: dict[str, bytes] = {}
    for part in fields(reply, whole.begin, whole.end):
        name, kind, _, first, last = part
        if name == 1 and kind == VARINT:
            number, numbered = varint(reply, part.value_at, last)[0], part
        elif name == 2 and kind == BYTES:
            member = reply[first:last]
            replica_id = values(member).get(1)
            if not isinstance(replica_id, bytes):
                raise ValueError(_UNKNOWN)
            members[replica_id.decode("utf-8", "surrogateescape")] = member
        elif name == 3 and kind == BYTES:
            stamp = values(reply[first:last])
            made = signed(stamp.get(1)), signed(stamp.get(2))
    if number >= _ID_MOST or not members or made == (0, 0):
        raise ValueError(_UNKNOWN)
    return _Quorum(number, made, members, whole, numbered)


def _renumbered(reply: bytes, quorum: _Quorum, number: int) -> bytes:
    whole, at = quorum.whole, quorum.numbered
    inner = reply[whole.begin : at.value_at] + encode_varint(number) + reply[at.end : whole.end]
    return reply[: whole.value_at] + encode_varint(len(inner)) + inner + reply[whole.end :]
