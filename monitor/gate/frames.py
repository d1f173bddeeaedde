"""HTTP/2 frames to and from bytes (RFC 9113, sections 4 and 6). Pure; knows no connection.

The gate works on frames because a gRPC library spends 500 to 900 us of a core on one heartbeat
(docs/decisions.md); the meaning of frames is in `connection`, of headers in `headers`.
"""

from __future__ import annotations

import struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0
HEADERS: Final = 1
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

NO_ERROR: Final = 0x0
PROTOCOL_ERROR: Final = 0x1
FLOW_CONTROL_ERROR: Final = 0x3
STREAM_CLOSED: Final = 0x5
FRAME_SIZE_ERROR: Final = 0x6
REFUSED_STREAM: Final = 0x7
CANCEL: Final = 0x8
COMPRESSION_ERROR: Final = 0x9
ENHANCE_YOUR_CALM: Final = 0xB

HEADER_TABLE_SIZE: Final = 0x1
ENABLE_PUSH: Final = 0x2
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
MAX_HEADER_LIST_SIZE: Final = 0x6

FRAME_MAX: Final = 16_384
"""Payload of a frame that everybody must take, and the most that we take."""
WINDOW_DEFAULT: Final = 65_535
WINDOW_MAX: Final = 2**31 - 1

Frame = tuple[int, int, int, bytes]
"""Kind, flags, stream id, payload."""

_HEAD: Final = struct.Struct(">HBBBL")  # the length's upper 16 and lower 8 bits
_SETTING: Final = struct.Struct(">HL")
_WORD: Final = struct.Struct(">L")
_HEAD_BYTES: Final = 9


class FrameError(Exception):
    """The other side broke HTTP/2; `code` is what it is told."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class FrameReader:
    """Cuts a stream of bytes into frames, however it arrives."""

    def __init__(self, rest: bytes = b"") -> None:
        self._rest = rest

    @property
    def rest(self) -> bytes:
        """What is not a whole frame yet."""
        return self._rest

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are whole by now.

        Raises:
            FrameError: one is larger than `FRAME_MAX`.
        """
        buffer = self._rest + data if self._rest else data
        frames: list[Frame] = []
        at, end = 0, len(buffer)
        while end - at >= _HEAD_BYTES:
            upper, lower, kind, flags, stream = _HEAD.unpack_from(buffer, at)
            length = upper << 8 | lower
            if length > FRAME_MAX:
                raise FrameError(FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            stop = at + _HEAD_BYTES + length
            if stop > end:
                break
            frames.append((kind, flags, stream & WINDOW_MAX, buffer[at + _HEAD_BYTES : stop]))
            at = stop
        self._rest = buffer[at:]
        return frames


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    length = len(payload)
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream) + payload


def headers(stream: int, block: bytes, *, end: bool) -> bytes:
    """A header block, in as many frames as it takes."""
    flag = END_STREAM if end else 0
    if len(block) <= FRAME_MAX:
        return frame(HEADERS, END_HEADERS | flag, stream, block)
    parts = [block[at : at + FRAME_MAX] for at in range(0, len(block), FRAME_MAX)]
    made = [frame(HEADERS, flag, stream, parts[0])]
    made += [frame(CONTINUATION, 0, stream, part) for part in parts[1:-1]]
    made.append(frame(CONTINUATION, END_HEADERS, stream, parts[-1]))
    return b"".join(made)


def settings(values: dict[int, int]) -> bytes:
    """Our settings."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in values.items()))


def reset(stream: int, code: int) -> bytes:
    """End of one stream."""
    return frame(RST_STREAM, 0, stream, _WORD.pack(code))


def window_update(stream: int, more: int) -> bytes:
    """Room for that many bytes more."""
    return frame(WINDOW_UPDATE, 0, stream, _WORD.pack(more))


def goaway(last_stream: int, code: int, why: str = "") -> bytes:
    """End of the connection; streams up to `last_stream` are or will be answered."""
    return frame(GOAWAY, 0, 0, _WORD.pack(last_stream) + _WORD.pack(code) + why.encode()[:200])


def read_settings(payload: bytes) -> dict[int, int]:
    """Settings of the other side.

    Raises:
        FrameError: the frame's size or a value is out of bounds.
    """
    if len(payload) % _SETTING.size:
        raise FrameError(FRAME_SIZE_ERROR, f"settings of {len(payload)} bytes")
    values = dict(_SETTING.iter_unpack(payload))
    if values.get(INITIAL_WINDOW_SIZE, 0) > WINDOW_MAX:
        raise FrameError(FLOW_CONTROL_ERROR, "an initial window over 2 GiB")
    if not FRAME_MAX <= values.get(MAX_FRAME_SIZE, FRAME_MAX) < 2**24:
        raise FrameError(PROTOCOL_ERROR, "a frame size out of bounds")
    return values


def read_word(payload: bytes) -> int:
    """The 31 bits of a window update, or the 32 of a reset.

    Raises:
        FrameError: the frame's size is wrong.
    """
    if len(payload) != _WORD.size:
        raise FrameError(FRAME_SIZE_ERROR, f"a frame of {len(payload)} bytes, expected 4")
    return int(_WORD.unpack(payload)[0])


def body_of(flags: int, payload: bytes) -> bytes:
    """Payload of DATA or HEADERS without padding and priority.

    Raises:
        FrameError: it is shorter than its own padding.
    """
    start, stop = 0, len(payload)
    if flags & PADDED:
        if not payload:
            raise FrameError(PROTOCOL_ERROR, "a padded frame without its padding")
        start, stop = 1, stop - payload[0]
    if flags & HAS_PRIORITY:
        start += 5
    if start > stop:
        raise FrameError(PROTOCOL_ERROR, "more padding than payload")
    return payload[start:stop]
