"""Header blocks (RFC 7541): which call it is, and a block that any peer can read.

Both peers are told a table size of zero, so that after its first requests a client's blocks
refer to nothing sent before: such a block is understood once, remembered by its bytes, and
passed on as it is. A block that does refer to earlier ones is written again without references.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
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
_REMEMBERED_MAX: Final = 1024
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
    """Reads the blocks of one client; what can be remembered is shared by all clients."""

    def __init__(self, remembered: dict[bytes, Call]) -> None:
        self._remembered = remembered
        self._decoder: hpack.Decoder | None = None

    def read(self, block: bytes) -> Call:
        """What this block says.

        Raises:
            FrameError: it cannot be read, and so cannot any later one.
        """
        if self._forgets() and (known := self._remembered.get(block)) is not None:
            return known
        if self._decoder is None:
            self._decoder = hpack.Decoder(max_header_list_size=_LIST_MAX)
        try:
            found = self._decoder.decode(block, raw=True)
        except hpack.HPACKError as exc:
            why = f"headers that cannot be read: {exc}"
            raise frames.FrameError(frames.COMPRESSION_ERROR, why) from exc
        pairs = [(bytes(name), bytes(value)) for name, value in found]
        if not self._forgets():
            return _call(pairs, encode(pairs))
        call = _call(pairs, block)
        if len(self._remembered) >= _REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[block] = call
        return call

    def _forgets(self) -> bool:
        """Whether the client keeps to the table size of zero, so that a block stands alone."""
        return self._decoder is not None and self._decoder.header_table_size == 0


def _call(pairs: Iterable[tuple[bytes, bytes]], block: bytes) -> Call:
    named = dict(pairs)
    found = _TIMEOUT.match(named.get(b"grpc-timeout", b"").decode("ascii", "replace"))
    return Call(
        path=named.get(b":path", b"").decode("utf-8", "replace"),
        timeout_s=None if found is None else int(found[1]) * _UNIT_S[found[2]],
        block=block,
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
