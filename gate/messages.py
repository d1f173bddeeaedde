"""The messages between TorchFT's managers and Lighthouse, as far as the gate reads them. Pure.

A call is a header block (RFC 7541) and one gRPC message: five bytes, then protobuf. torchft.proto
of 0.2.0: LighthouseHeartbeatRequest{1: replica_id}, LighthouseQuorumRequest{1: QuorumMember},
QuorumMember{1: replica_id, 2: address, 3: store_address, 4: step, 5: world_size, 6: shrink_only,
7: data, 8: commit_failures}. What cannot be read is None, which means: pass it on.

A client's header block may refer to headers that it sent before, and the gate does not pass on
every block; so each is rewritten without references. The Lighthouse's blocks are passed on as they
are: the gate's settings forbid it a header table, so they refer to nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

import hpack

from lightkeeper.gate.http2 import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, Http2Error
from lightkeeper.monitor.model.names import Host, ReplicaId

HEARTBEAT_PATH: Final = "/torchft.LighthouseService/Heartbeat"
QUORUM_PATH: Final = "/torchft.LighthouseService/Quorum"

DEADLINE_EXCEEDED: Final = 4
PERMISSION_DENIED: Final = 7
UNAVAILABLE: Final = 14

HEADERS_MAX: Final = 8 * 1024
"""Bytes of a client's block, and of its headers plus 32 each; TorchFT's are 150 and 480."""
_REPEATED_MAX: Final = 16
_REPEATED_BYTES: Final = 1024
_RESIZES: Final = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]{0,4}[\x00-\x7f]){3}")
"""More table size changes than a block may begin with (RFC 7541, 4.2)."""
_TIMEOUT: Final = re.compile(r"^(\d{1,8})([HMSmun])$", re.ASCII)
_UNIT_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}

PREFIX_BYTES: Final = 5
"""Before a gRPC message: one byte for compression, four for its length."""
_ID_MAX_BYTES: Final = 1024
_FIELDS_MAX: Final = 64
"""Most fields of one message that are read. TorchFT 0.2.0's have 8, which come first; nightlies add
one for each rank."""
_COMPARED: Final = range(1, 9)
"""Fields of a member that TorchFT 0.2.0 has."""
VARINT: Final = 0
BYTES: Final = 2
_FIXED: Final = {1: 8, 5: 4}
"""Wire type -> bytes that follow."""


# -- headers -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallHeaders:
    path: str
    timeout_s: float | None
    """The client's own deadline, from when it asked; None: not set."""
    block: bytes
    """The headers in their order, encoded without references to earlier blocks."""


class HeaderReader:
    """Reads the blocks of one client, each block once: heartbeats repeat the same bytes.

    A block keeps its meaning as long as the table of earlier headers has not changed.
    """

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=HEADERS_MAX)
        self._repeated: dict[bytes, CallHeaders] = {}

    def read(self, block: bytes) -> tuple[CallHeaders, float]:
        """The block's headers, and the work it took (see `proxy.FairTurns`).

        Raises:
            Http2Error: it cannot be read, so no later one can.
        """
        repeated = self._repeated.get(block)
        if repeated is not None:
            return repeated, 0
        if len(block) > HEADERS_MAX or _RESIZES.match(block):
            raise Http2Error(ENHANCE_YOUR_CALM, f"headers over {HEADERS_MAX} bytes")
        before = self._table()
        try:
            pairs = [(bytes(k), bytes(v)) for k, v in self._decoder.decode(block, raw=True)]
        except hpack.HPACKError as exc:
            raise Http2Error(COMPRESSION_ERROR, f"headers that cannot be read: {exc}") from exc
        named = dict(pairs)
        timeout = _TIMEOUT.match(named.get(b"grpc-timeout", b"").decode("ascii", "replace"))
        call = CallHeaders(
            path=named.get(b":path", b"").decode("utf-8", "replace"),
            timeout_s=None if timeout is None else int(timeout[1]) * _UNIT_S[timeout[2]],
            block=encode_headers(pairs),
        )
        after = self._table()
        changed = after[:2] != before[:2] or after[2] is not before[2]
        if changed or len(self._repeated) >= _REPEATED_MAX:
            self._repeated.clear()
        if not changed and len(block) <= _REPEATED_BYTES:
            self._repeated[block] = call
        return call, len(pairs) + len(block) / 16

    def _table(self) -> tuple[int, int, Any]:
        """Largest size, entry count and newest entry: they change when a block adds an entry."""
        table = self._decoder.header_table
        entries = table.dynamic_entries
        return table.maxsize, len(entries), entries[0] if entries else None


def encode_headers(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A header block of literals without indexing: readable whatever was sent before."""
    return b"".join(b"\x00" + _string(name) + _string(value) for name, value in pairs)


def _string(text: bytes) -> bytes:
    """Length with a 7-bit prefix, then the plain octets (RFC 7541, 5.1 and 5.2)."""
    if len(text) < 0x7F:
        return bytes((len(text),)) + text
    return b"\x7f" + encode_varint(len(text) - 0x7F) + text


def failure(status: int, message: str) -> bytes:
    """A gRPC answer without a message: its status and why, in one block."""
    text = quote(message[:1000], safe=" !\"#$&'()*+,-./:;<=>?@[]^_`{|}~")
    return encode_headers(
        (
            (b":status", b"200"),
            (b"content-type", b"application/grpc"),
            (b"grpc-status", str(status).encode()),
            (b"grpc-message", text.encode()),
        )
    )


ANSWER_BEGINS: Final = encode_headers(
    ((b":status", b"200"), (b"content-type", b"application/grpc"))
)
ANSWER_ENDS: Final = encode_headers(((b"grpc-status", b"0"),))
"""The header blocks around an answer's one message, as the Lighthouse sends them."""


# -- requests ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QuorumRequest:
    replica_id: ReplicaId
    host: Host | None
    """The host in its manager's address."""
    step: int
    member: bytes
    """Its own part of the request: the Lighthouse puts these bytes into the quorum."""


def is_same_request(left: bytes, right: bytes) -> bool:
    """True if two parts of a member are alike; a Lighthouse drops fields that it does not know."""
    if left == right:
        return True
    try:
        lefts, rights = values(left), values(right)
    except ValueError:
        return False
    return all(lefts.get(number) == rights.get(number) for number in _COMPARED)


def is_whole(data: bytes | bytearray) -> bool | None:
    """True if this is a whole gRPC message; None: it is compressed or more than one."""
    if len(data) < PREFIX_BYTES:
        return False
    if data[0]:
        return None
    missing = PREFIX_BYTES + int.from_bytes(data[1:PREFIX_BYTES], "big") - len(data)
    return missing == 0 if missing >= 0 else None


def read_heartbeat(data: bytes) -> ReplicaId | None:
    try:
        return _id(values(data[PREFIX_BYTES:]).get(1))
    except ValueError:
        return None


def read_quorum_request(data: bytes) -> QuorumRequest | None:
    """Who asks for a quorum, and what it reports."""
    try:
        requester = values(data[PREFIX_BYTES:]).get(1)
        if not isinstance(requester, bytes):
            return None
        member = values(requester)
        replica_id = _id(member.get(1))
    except ValueError:
        return None
    if replica_id is None:
        return None
    return QuorumRequest(
        replica_id=replica_id,
        host=host_of(_text(member.get(2))),
        step=signed(member.get(4)),
        member=requester,
    )


def host_of(address: str) -> Host | None:
    """`node-7` of `http://node-7:41533`, in lower case; None if there is none."""
    try:
        host = urlsplit(address if "//" in address else f"//{address}").hostname
    except ValueError:
        return None
    return Host(host.rstrip(".")) if host else None


def _id(value: int | bytes | None) -> ReplicaId | None:
    if not isinstance(value, bytes) or not 0 < len(value) <= _ID_MAX_BYTES:
        return None
    return ReplicaId(value.decode())  # UnicodeDecodeError is a ValueError


def _text(value: int | bytes | None) -> str:
    return value.decode("utf-8", "replace")[:1024] if isinstance(value, bytes) else ""


def signed(value: int | bytes | None) -> int:
    if not isinstance(value, int):
        return 0
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


# -- protobuf ----------------------------------------------------------------------------------


class WireField(NamedTuple):
    """Where one field of a message lies in its bytes."""

    number: int
    kind: int
    """Its wire type."""
    value_at: int
    """Position of its number, or of its length."""
    begin: int
    end: int
    """Its content is `data[begin:end]`."""


def fields(data: bytes, at: int, end: int) -> Iterator[WireField]:
    """The fields of the message in `data[at:end]`, in order.

    Raises:
        ValueError: it is not a protobuf message.
    """
    while at < end:
        key, value_at = varint(data, at, end)
        kind, begin = key & 7, value_at
        if kind == VARINT:
            _, last = varint(data, value_at, end)
        elif kind == BYTES:
            length, begin = varint(data, value_at, end)
            last = begin + length
        elif kind in _FIXED:
            last = begin + _FIXED[kind]
        else:
            raise ValueError(f"wire type {kind}")
        if last > end:
            raise ValueError("a field longer than its message")
        yield WireField(key >> 3, kind, value_at, begin, last)
        at = last


def values(data: bytes) -> dict[int, int | bytes]:
    """Numbers and values of its first `_FIELDS_MAX` fields; of a repeated field, the last value.

    Raises:
        ValueError: it is not a protobuf message.
    """
    values: dict[int, int | bytes] = {}
    for count, field in enumerate(fields(data, 0, len(data))):
        if count == _FIELDS_MAX:
            break
        values[field.number] = (
            varint(data, field.value_at, field.end)[0]
            if field.kind == VARINT
            else data[field.begin : field.end]
        )
    return values


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The number at `at`, and the position after it.

    Raises:
        ValueError: it does not end, within ten bytes or before `end`.
    """
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number that does not end")


def encode_varint(value: int) -> bytes:
    """Inverse of `varint`; HPACK encodes integers the same way (RFC 7541, 5.1)."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
