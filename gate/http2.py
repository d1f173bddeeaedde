"""HTTP/2 as far as a gRPC proxy needs it (RFC 9113): frames, and a connection from either end.

Theory of operation. Input is cut into frames and handed to `on_...`. Output is gathered, written
once per turn of the loop, and kept within the other side's windows: data that exceeds a window
waits in the queue of its stream, with any later headers behind it. Flow control is hop by hop:
received bytes are credited to their sender (`credit`) only when they have left on the other side,
so a slow reader takes up to one window of memory and slows only its own counterpart. A breach of
the protocol ends this connection and no other.

The `h2` library costs several times as much per heartbeat, and cannot stop in the middle of what a
client sent (docs/decisions.md).
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections import deque
from collections.abc import Iterator
from typing import Final, cast

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
"""Frame payload that every peer must accept, and the most that we accept."""
WINDOW_DEFAULT: Final = 65_535
WINDOW_MAX: Final = 2**31 - 1
_BLOCK_MAX: Final = 64 * 1024
"""Most bytes of one header block."""
_SHORT: Final = 1024
"""Bytes; honest clients send few smaller pieces that do not end a call."""
_OUR_WRITES: Final = "it does not read what we write"
COUNTERPART_SLOW: Final = "what it sends is not taken at the other end"

Frame = tuple[int, int, int, bytes]
"""Kind, flags, stream id, payload."""

_HEAD: Final = struct.Struct(">HBBBL")  # the length's upper 16 and lower 8 bits
_SETTING: Final = struct.Struct(">HL")
_WORD: Final = struct.Struct(">L")


class Http2Error(Exception):
    """The other side broke HTTP/2; `code` is sent to it."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


# -- frames to and from bytes ------------------------------------------------------------------


class FrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = b""
        self._at = 0

    @property
    def rest(self) -> bytes:
        return self._buffer[self._at :]

    @property
    def unread(self) -> int:
        return len(self._buffer) - self._at

    def feed(self, data: bytes) -> FrameReader:
        """Add received bytes; then iterate, while there is time, over the complete frames."""
        self._buffer = self.rest + data if self._at < len(self._buffer) else data
        self._at = 0
        return self

    def __iter__(self) -> Iterator[Frame]:
        """The complete frames.

        Raises:
            Http2Error: one is larger than `FRAME_MAX`.
        """
        buffer, end = self._buffer, len(self._buffer)
        while end - self._at >= _HEAD.size:
            begin = self._at + _HEAD.size
            upper, lower, kind, flags, stream = _HEAD.unpack_from(buffer, self._at)
            length = upper << 8 | lower
            if length > FRAME_MAX:
                raise Http2Error(FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            if begin + length > end:
                break
            self._at = begin + length
            yield kind, flags, stream & WINDOW_MAX, buffer[begin : self._at]
        self._buffer, self._at = self.rest, 0


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    length = len(payload)
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream) + payload


def headers(stream: int, block: bytes, *, end: bool) -> bytes:
    """A header block, in as many frames as needed."""
    flags = END_STREAM if end else 0
    if len(block) <= FRAME_MAX:
        return frame(HEADERS, END_HEADERS | flags, stream, block)
    first, *parts, last = (block[at : at + FRAME_MAX] for at in range(0, len(block), FRAME_MAX))
    frames = [frame(HEADERS, flags, stream, first)]
    frames += [frame(CONTINUATION, 0, stream, part) for part in parts]
    return b"".join([*frames, frame(CONTINUATION, END_HEADERS, stream, last)])


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in values.items()))


def reset(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream, _WORD.pack(code))


def window_update(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, _WORD.pack(more))


def goaway(last_stream: int, code: int, why: str = "") -> bytes:
    """End of the connection; streams up to `last_stream` are or will be answered."""
    return frame(GOAWAY, 0, 0, _WORD.pack(last_stream) + _WORD.pack(code) + why.encode()[:200])


def _read_word(payload: bytes) -> int:
    """The 31 bits of a window update, or the 32 of a reset."""
    if len(payload) != _WORD.size:
        raise Http2Error(FRAME_SIZE_ERROR, f"a frame of {len(payload)} bytes, expected 4")
    return int(_WORD.unpack(payload)[0])


def _body(flags: int, payload: bytes) -> bytes:
    """Payload of DATA or HEADERS without padding and priority."""
    start, stop = 0, len(payload)
    if flags & PADDED:
        if not payload:
            raise Http2Error(PROTOCOL_ERROR, "a padded frame without its padding")
        start, stop = 1, stop - payload[0]
    if flags & HAS_PRIORITY:
        start += 5
    if start > stop:
        raise Http2Error(PROTOCOL_ERROR, "more padding than payload")
    return payload[start:stop]


# -- a connection ------------------------------------------------------------------------------


class Flusher:
    """Writes the connections' gathered output at the end of a turn."""

    def __init__(self) -> None:
        self.waiting: list[Http2Connection] = []

    def flush(self) -> None:
        while self.waiting:
            self.waiting.pop().flush()


class Http2Connection(asyncio.Protocol):
    """Frames, windows and bookkeeping common to client and Lighthouse."""

    transport: asyncio.Transport

    def __init__(self, flusher: Flusher, *, window: int) -> None:
        """`window`: most bytes received from the other side and not yet forwarded."""
        self.closed = False
        self.counterpart: Http2Connection | None = None
        """The connection from which comes what goes out here."""
        self._flusher = flusher
        self._reader = FrameReader()
        self._block: tuple[int, int, bytearray] | None = None  # stream, flags, headers so far
        self._pauses: set[str] = set()  # why reading is paused
        self._budget = math.inf  # work left in this turn
        # what the other side may send
        self._window = window
        self._held_bytes = 0  # received, not forwarded yet
        self._credit = 0
        self._stream_credit: dict[int, int] = {}
        # what we may send
        self.send_window = WINDOW_DEFAULT
        self.initial_window = WINDOW_DEFAULT
        self._send_windows: dict[int, int] = {}
        self._queued: dict[int, deque[tuple[int, bytes, bool]]] = {}  # kind, payload, last of it
        self._out: list[bytes] = []

    # -- asyncio ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.take(data)
        self._flusher.flush()

    def take(self, data: bytes, work: float = math.inf) -> bool:
        """Handle `data`, up to about `work`; returns whether some may be left."""
        self._budget = work
        self._reader.feed(data)
        if work <= 0:
            return True
        try:
            for kind, flags, stream, payload in self._reader:
                self._budget -= 1
                self._frame(kind, flags, stream, payload)
                if self.closed:
                    return False
                if self._budget <= 0:
                    return True
        except Http2Error as exc:
            self.fail(exc.code, str(exc))
        return False

    def pause_writing(self) -> None:
        """The other side does not read: take no input that would make us write to it."""
        self.pause_reading(_OUR_WRITES)
        if self.counterpart is not None:
            self.counterpart.pause_reading(COUNTERPART_SLOW)

    def resume_writing(self) -> None:
        self.resume_reading(_OUR_WRITES)
        if self.counterpart is not None:
            self.counterpart.resume_reading(COUNTERPART_SLOW)

    def pause_reading(self, why: str) -> None:
        """Read nothing until `resume_reading` with the same reason."""
        self._pauses.add(why)
        self.transport.pause_reading()

    def resume_reading(self, why: str) -> None:
        """Drop one reason to pause; read again if none is left."""
        self._pauses.discard(why)
        if not self._pauses and not self.transport.is_closing():
            self.transport.resume_reading()

    @property
    def unread(self) -> int:
        return self._reader.unread

    def fail(self, code: int, why: str) -> None:
        if not self.closed:
            self.write(goaway(0, code, why))
            self._flusher.flush()
            self.close()

    def close(self) -> None:
        self.closed = True
        self.transport.close()

    # -- receiving ----------------------------------------------------------------------------

    def credit(self, stream: int, size: int) -> None:
        """`size` bytes of this stream were forwarded: their sender may send as many more."""
        self._held_bytes -= size
        self._credit += size
        if self._credit * 2 >= self._window:
            self.write(window_update(0, self._credit))
            self._credit = 0
        if stream in self._stream_credit:
            stream_credit = self._stream_credit[stream] + size
            if stream_credit * 2 >= self._window:
                self.write(window_update(stream, stream_credit))
                stream_credit = 0
            self._stream_credit[stream] = stream_credit

    def ignore(self, stream: int, size: int) -> None:
        self._stream_credit.pop(stream, None)
        self.credit(stream, size)

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._block is not None and (kind != CONTINUATION or stream != self._block[0]):
            raise Http2Error(PROTOCOL_ERROR, "a header block was not continued")
        if kind == DATA:
            self._data(flags, stream, payload)
        elif kind == HEADERS:
            self._headers(flags, stream, bytearray(_body(flags, payload)))
        elif kind == CONTINUATION:
            self.spend(1)
            self._continuation(flags, payload)
        elif kind == RST_STREAM:
            self._stream_credit.pop(stream, None)
            self.on_reset(stream, _read_word(payload))
        else:
            self._control(kind, flags, stream, payload)

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        self.spend(1 + len(payload) / 64)
        if kind == WINDOW_UPDATE:
            self._window_update(stream, _read_word(payload) & WINDOW_MAX)
        elif kind == SETTINGS and not flags & ACK:
            self._settings(payload)
        elif kind == PING:
            if len(payload) != 8:
                raise Http2Error(FRAME_SIZE_ERROR, "a ping that is not 8 bytes")
            if not flags & ACK:
                self.write(frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            self.on_goaway(int.from_bytes(payload[:4], "big") & WINDOW_MAX)
        elif kind == PUSH_PROMISE:
            raise Http2Error(PROTOCOL_ERROR, "a push nobody asked for")
        # PRIORITY and unknown frames are ignored (RFC 9113, 5.5)

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        if not stream:
            raise Http2Error(PROTOCOL_ERROR, "data of no stream")
        size = len(payload)
        self._held_bytes += size
        if self._held_bytes > self._window:
            raise Http2Error(FLOW_CONTROL_ERROR, "more data than the window")
        end = bool(flags & END_STREAM)
        if end:
            self._stream_credit.pop(stream, None)
        else:
            self._stream_credit.setdefault(stream, 0)
            self.spend(size < _SHORT)
        body = _body(flags & PADDED, payload)
        if len(body) < size:
            self.credit(stream, size - len(body))
        self.on_data(stream, body, end=end)

    def _headers(self, flags: int, stream: int, block: bytearray) -> None:
        if not stream:
            raise Http2Error(PROTOCOL_ERROR, "headers of no stream")
        if flags & END_HEADERS:
            if flags & END_STREAM:
                self._stream_credit.pop(stream, None)
            self.on_headers(stream, bytes(block), end=bool(flags & END_STREAM))
        else:
            self._block = (stream, flags, block)

    def _continuation(self, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise Http2Error(PROTOCOL_ERROR, "a continuation of nothing")
        stream, first_flags, block = self._block
        if len(block) + len(payload) > _BLOCK_MAX or not (payload or flags & END_HEADERS):
            raise Http2Error(ENHANCE_YOUR_CALM, f"headers over {_BLOCK_MAX} bytes")
        block += payload
        if flags & END_HEADERS:
            self._block = None
            self._headers(first_flags | END_HEADERS, stream, block)

    def _window_update(self, stream: int, more: int) -> None:
        window = 0
        if not stream:
            self.send_window = window = self.send_window + more
        elif stream in self._send_windows or stream in self._queued or self.knows(stream):
            window = self._send_windows.get(stream, self.initial_window) + more
            self._send_windows[stream] = window
        if window > WINDOW_MAX:
            raise Http2Error(FLOW_CONTROL_ERROR, "a window over 2 GiB")
        self._drain([stream] if stream else list(self._queued))

    def _settings(self, payload: bytes) -> None:
        if len(payload) % _SETTING.size:
            raise Http2Error(FRAME_SIZE_ERROR, f"settings of {len(payload)} bytes")
        values = dict(_SETTING.iter_unpack(payload))
        initial = values.get(INITIAL_WINDOW_SIZE, self.initial_window)
        if initial > WINDOW_MAX:
            raise Http2Error(FLOW_CONTROL_ERROR, "an initial window over 2 GiB")
        if not FRAME_MAX <= values.get(MAX_FRAME_SIZE, FRAME_MAX) < 2**24:
            raise Http2Error(PROTOCOL_ERROR, "a frame size out of bounds")
        self.write(frame(SETTINGS, ACK, 0))
        for stream in self._send_windows:
            self._send_windows[stream] += initial - self.initial_window
        self.initial_window = initial
        self._drain(list(self._queued))

    # -- sending ------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Gather until the next flush."""
        if not self._out:
            self._flusher.waiting.append(self)
        self._out.append(data)

    def flush(self) -> None:
        out, self._out = self._out, []
        if out and not self.transport.is_closing():
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))

    def send_headers(self, stream: int, block: bytes, *, end: bool) -> None:
        """Send a header block, after what its stream has queued."""
        if stream in self._queued:
            self._queued[stream].append((HEADERS, block, end))
            return
        self.write(headers(stream, block, end=end))
        if end:
            self._send_windows.pop(stream, None)

    def send_data(self, stream: int, data: bytes, *, end: bool) -> None:
        """Send what the windows allow; the rest when they open."""
        size = len(data)
        window = self._send_windows.get(stream, self.initial_window)
        if (
            size <= FRAME_MAX
            and stream not in self._queued
            and (size == 0 or size <= min(window, self.send_window))
        ):
            self._put(stream, data, window, end=end)
            return
        self._queued.setdefault(stream, deque()).append((DATA, data, end))
        self._drain([stream])

    def _put(self, stream: int, data: bytes, window: int, *, end: bool) -> None:
        self.write(frame(DATA, END_STREAM if end else 0, stream, data))
        self.send_window -= len(data)
        if end:
            self._send_windows.pop(stream, None)
        else:
            self._send_windows[stream] = window - len(data)
        if data:
            self.went_on(stream, len(data))

    def _drain(self, streams: list[int]) -> None:
        for stream in streams:
            queue = self._queued.get(stream)
            while queue and self._send_next(stream, queue):
                pass
            if queue is not None and not queue:
                del self._queued[stream]

    def _send_next(self, stream: int, queue: deque[tuple[int, bytes, bool]]) -> bool:
        """Send the first in the queue, or a part of it; False: no window allows it."""
        kind, data, end = queue[0]
        if kind == HEADERS:
            queue.popleft()
            self.write(headers(stream, data, end=end))
            if end:
                self._send_windows.pop(stream, None)
            return True
        window = self._send_windows.get(stream, self.initial_window)
        size = min(len(data), window, self.send_window, FRAME_MAX)
        if size <= 0 < len(data):
            return False
        rest = data[size:]
        if rest:
            queue[0] = (kind, rest, end)
        else:
            queue.popleft()
        self._put(stream, data[:size], window, end=end and not rest)
        return True

    def send_reset(self, stream: int, code: int) -> None:
        """End one stream and drop its queue."""
        self.drop(stream)
        self.write(reset(stream, code))

    def drop(self, stream: int) -> None:
        """Forget what a stream still has to send."""
        for kind, data, _ in self._queued.pop(stream, ()):
            if kind == DATA and data:
                self.went_on(stream, len(data))
        self._send_windows.pop(stream, None)

    def forsake(self, stream: int, code: int) -> None:
        """Nobody waits for this stream any longer."""
        if self.forget(stream) and not self.closed:
            self.send_reset(stream, code)

    # -- for the two ends ---------------------------------------------------------------------

    def spend(self, work: float) -> None:
        """Count work for something that belongs to no call."""

    def on_headers(self, stream: int, block: bytes, *, end: bool) -> None:
        raise NotImplementedError

    def on_data(self, stream: int, data: bytes, *, end: bool) -> None:
        """Data came in; credit it once it is forwarded."""
        raise NotImplementedError

    def on_reset(self, stream: int, code: int) -> None:
        raise NotImplementedError

    def on_goaway(self, last_stream: int) -> None:
        """The other side accepts no new streams; it answers those up to `last_stream`."""
        raise NotImplementedError

    def knows(self, stream: int) -> bool:
        raise NotImplementedError

    def forget(self, stream: int) -> bool:
        """Discard what still comes of this stream; returns whether it was open."""
        raise NotImplementedError

    def went_on(self, stream: int, size: int) -> None:
        """`size` bytes of a stream went out here: credit the connection they came from."""
        raise NotImplementedError
