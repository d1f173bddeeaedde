"""Header blocks (RFC 7541): which call it is, and a block that any peer can read.

A client's block may refer to headers that it sent before, and the gate does not pass on all that
it sends; so a block is written again without references. The Lighthouse's blocks are passed on as
they are: it is told to keep no table, so that they refer to nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import hpack

from monitor.gate import frames

HEARTBEAT_PATH: Final = "/torchft.LighthouseService/Heartbeat"
QUORUM_PATH: Final = "/torchft.LighthouseService/Quorum"

PERMISSION_DENIED: Final = 7
UNAVAILABLE: Final = 14
DEADLINE_EXCEEDED: Final = 4

BLOCK_MAX: Final = 64 * 1024
"""Bytes of one block; TorchFT's take about 150."""
_LIST_MAX: Final = 64 * 1024
_KNOWN_MAX: Final = 16
_KNOWN_BYTES: Final = 1024
_TIMEOUT: Final = re.compile(r"^(\d{1,8})([HMSmun])$", re.ASCII)
_UNIT_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


@dataclass(frozen=True, slots=True)
class Call:
    """What a request's headers say."""

    path: str
    timeout_s: float | None
    """The client's own deadline, from when it asked; None: it set none."""
    block: bytes
    """The same headers in the same order, without references to earlier blocks."""


class Blocks:
    """Reads the blocks of one client, and each block once: heartbeats send the same bytes again.

    A block means the same as before while the table of earlier headers is the same.
    """

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=_LIST_MAX)
        self._known: dict[bytes, Call] = {}

    def read(self, block: bytes) -> Call:
        """What this block says.

        Raises:
            FrameError: it cannot be read, and so cannot any later one.
        """
        known = self._known.get(block)
        if known is not None:
            return known
        table = self._decoder.header_table
        size, count = table.maxsize, len(table.dynamic_entries)
        newest = table.dynamic_entries[0] if count else None
        try:
            found = self._decoder.decode(block, raw=True)
        except hpack.HPACKError as exc:
            why = f"headers that cannot be read: {exc}"
            raise frames.FrameError(frames.COMPRESSION_ERROR, why) from exc
        call = _call([(bytes(name), bytes(value)) for name, value in found])
        entries = table.dynamic_entries
        now = entries[0] if entries else None
        if (table.maxsize, len(entries)) != (size, count) or now is not newest:
            self._known.clear()
        elif len(self._known) < _KNOWN_MAX and len(block) <= _KNOWN_BYTES:
            self._known[block] = call
        return call


def _call(pairs: Sequence[tuple[bytes, bytes]]) -> Call:
    named = dict(pairs)
    found = _TIMEOUT.match(named.get(b"grpc-timeout", b"").decode("ascii", "replace"))
    return Call(
        path=named.get(b":path", b"").decode("utf-8", "replace"),
        timeout_s=None if found is None else int(found[1]) * _UNIT_S[found[2]],
        block=encode(pairs),
    )


def encode(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Literals that nobody is to remember: readable whatever was sent before."""
    return b"".join(b"\x00" + _string(name) + _string(value) for name, value in pairs)


def _string(text: bytes) -> bytes:
    """Length in 7 bits and more, then the octets as they are (RFC 7541, 5.1 and 5.2)."""
    length = len(text)
    if length < 0x7F:
        return bytes((length,)) + text
    made = bytearray((0x7F,))
    length -= 0x7F
    while length >= 0x80:
        made.append(length & 0x7F | 0x80)
        length >>= 7
    made.append(length)
    return bytes(made) + text


def answer(status: int, message: str) -> bytes:
    """A gRPC answer without a message: its status and why, in one block."""
    return encode(
        (
            (b":status", b"200"),
            (b"content-type", b"application/grpc"),
            (b"grpc-status", str(status).encode()),
            (
                b"grpc-message",
                quote(message[:1000], safe=" !\"#$&'()*+,-./:;<=>?@[]^_`{|}~").encode(),
            ),
        )
    )
