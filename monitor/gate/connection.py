"""One HTTP/2 connection, seen from either end: frames in, frames out, flow control.

Theory of operation. What comes in is cut into frames and handed to `on_...`; what goes out is
gathered and written once a turn of the loop. Windows are kept hop by hop: bytes that came in are
given back to the sender (`credit`) only when they went out on the other side, so that a peer that
reads slowly holds up to one window of memory and slows nobody but its own counterpart. A breach
of the protocol ends this connection and no other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol, cast

from monitor.gate import frames
from monitor.gate.headers import BLOCK_MAX

_HELD_WRITES: Final = "its writes"
_QUEUE_ITEM = tuple[int, bytes, bool]  # kind of frame, payload or block, whether it ends the stream


class Flushes(Protocol):
    """Whoever writes out what was gathered, at the end of a turn."""

    def dirty(self, connection: Connection) -> None:
        """A connection has something to write."""
        ...

    def flush(self) -> None:
        """Write it."""
        ...


class Connection(asyncio.Protocol):
    """Frames, windows and bookkeeping that client and Lighthouse have in common."""

    transport: asyncio.Transport

    def __init__(self, shared: Flushes, *, window: int) -> None:
        """`window`: how many bytes the other side may send before they went on."""
        self._shared = shared
        self._reader = frames.FrameReader()
        self._out: list[bytes] = []
        self._open_window = frames.WINDOW_DEFAULT  # for what we send
        self._initial = frames.WINDOW_DEFAULT
        self._windows: dict[int, int] = {}
        self._queued: dict[int, deque[_QUEUE_ITEM]] = {}
        self._own_window = window
        self._inside = 0  # bytes received that did not go on yet
        self._credit = 0
        self._stream_credit: dict[int, int] = {}
        self._block: tuple[int, int, bytearray] | None = None
        self._reading_held: set[str] = set()
        self.closed = False

    @property
    def room(self) -> int:
        """Bytes that the other side takes now, of all streams together."""
        return self._open_window

    @property
    def initial_room(self) -> int:
        """Bytes that it takes of a new stream."""
        return self._initial

    # -- asyncio ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready to be spoken to."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Bytes came in."""
        try:
            for kind, flags, stream, payload in self._reader.feed(data):
                self._frame(kind, flags, stream, payload)
                if self.closed:
                    break
        except frames.FrameError as exc:
            self.fail(exc.code, str(exc))
        self._shared.flush()

    def pause_writing(self) -> None:
        """The other side does not read: take nothing more that would make us write to it."""
        self.hold_reading(_HELD_WRITES)
        self.held_up(True)

    def resume_writing(self) -> None:
        """It reads again."""
        self.let_read(_HELD_WRITES)
        self.held_up(False)

    def hold_reading(self, why: str) -> None:
        """Read nothing until `let_read` of the same reason."""
        self._reading_held.add(why)
        self.transport.pause_reading()

    def let_read(self, why: str) -> None:
        """One reason less not to read."""
        self._reading_held.discard(why)
        if not self._reading_held and not self.transport.is_closing():
            self.transport.resume_reading()

    # -- sending ------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Gather; goes out with the next flush."""
        if not self._out:
            self._shared.dirty(self)
        self._out.append(data)

    def flush(self) -> None:
        """Write what was gathered."""
        out, self._out = self._out, []
        if out and not self.transport.is_closing():
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))

    def send_headers(self, stream: int, block: bytes, *, end: bool) -> None:
        """A header block, after what is queued for its stream."""
        if stream in self._queued:
            self._queued[stream].append((frames.HEADERS, block, end))
            return
        self.write(frames.headers(stream, block, end=end))
        if end:
            self._windows.pop(stream, None)

    def send_data(self, stream: int, data: bytes, *, end: bool) -> None:
        """As much as the windows allow; the rest when they open."""
        size = len(data)
        room = self._windows.get(stream, self._initial)
        if (
            size <= frames.FRAME_MAX
            and stream not in self._queued
            and (size == 0 or size <= min(room, self._open_window))
        ):
            self._put(stream, data, room, end=end)
            return
        self._queued.setdefault(stream, deque()).append((frames.DATA, data, end))
        self._drain(stream)

    def _put(self, stream: int, data: bytes, room: int, *, end: bool) -> None:
        self.write(frames.frame(frames.DATA, frames.END_STREAM if end else 0, stream, data))
        self._open_window -= len(data)
        if end:
            self._windows.pop(stream, None)
        else:
            self._windows[stream] = room - len(data)
        if data:
            self.went_on(stream, len(data))

    def _drain(self, stream: int) -> None:
        waiting = self._queued[stream]
        while waiting:
            kind, data, end = waiting[0]
            if kind == frames.HEADERS:
                waiting.popleft()
                self.write(frames.headers(stream, data, end=end))
                continue
            room = self._windows.get(stream, self._initial)
            size = min(len(data), room, self._open_window, frames.FRAME_MAX)
            if size <= 0 < len(data):
                return
            rest = data[size:]
            if rest:
                waiting[0] = (kind, rest, end)
            else:
                waiting.popleft()
            self._put(stream, data[:size], room, end=end and not rest)
        del self._queued[stream]

    def send_reset(self, stream: int, code: int) -> None:
        """End one stream; what is queued for it is dropped."""
        self.drop(stream)
        self.write(frames.reset(stream, code))

    def drop(self, stream: int) -> None:
        """Forget what is still to be sent on a stream."""
        for kind, data, _ in self._queued.pop(stream, ()):
            if kind == frames.DATA and data:
                self.went_on(stream, len(data))
        self._windows.pop(stream, None)

    def fail(self, code: int, why: str) -> None:
        """End this connection: the other side broke the protocol."""
        if not self.closed:
            self.write(frames.goaway(0, code, why))
            self._shared.flush()
            self.close()

    def close(self) -> None:
        """End this connection."""
        self.closed = True
        self.transport.close()

    # -- receiving ----------------------------------------------------------------------------

    def credit(self, stream: int, size: int) -> None:
        """That many bytes of this stream went on: their sender may send as many more."""
        self._inside -= size
        self._credit += size
        if self._credit * 2 >= self._own_window:
            self.write(frames.window_update(0, self._credit))
            self._credit = 0
        if stream in self._stream_credit:
            open_again = self._stream_credit[stream] + size
            if open_again * 2 >= self._own_window:
                self.write(frames.window_update(stream, open_again))
                open_again = 0
            self._stream_credit[stream] = open_again

    def ignore(self, stream: int, size: int) -> None:
        """Data of a stream that is over."""
        self._stream_credit.pop(stream, None)
        self.credit(stream, size)

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._block is not None and (kind != frames.CONTINUATION or stream != self._block[0]):
            raise frames.FrameError(frames.PROTOCOL_ERROR, "a header block was not continued")
        if kind == frames.DATA:
            self._data(flags, stream, payload)
        elif kind == frames.HEADERS:
            self._headers(flags, stream, bytearray(frames.body_of(flags, payload)))
        elif kind == frames.CONTINUATION:
            self._continuation(flags, payload)
        elif kind == frames.RST_STREAM:
            self._stream_credit.pop(stream, None)
            self.on_reset(stream, frames.read_word(payload))
        else:
            self._control(kind, flags, stream, payload)

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == frames.WINDOW_UPDATE:
            self._window_update(stream, frames.read_word(payload) & frames.WINDOW_MAX)
        elif kind == frames.SETTINGS:
            self._settings(flags, payload)
        elif kind == frames.PING:
            self._ping(flags, payload)
        elif kind == frames.GOAWAY:
            self.on_goaway(int.from_bytes(payload[:4], "big") & frames.WINDOW_MAX)
        elif kind == frames.PUSH_PROMISE:
            raise frames.FrameError(frames.PROTOCOL_ERROR, "a push nobody asked for")
        # PRIORITY and frames that nobody knows are ignored (RFC 9113, 5.5)

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        if not stream:
            raise frames.FrameError(frames.PROTOCOL_ERROR, "data of no stream")
        size = len(payload)
        self._inside += size
        if self._inside > self._own_window:
            raise frames.FrameError(frames.FLOW_CONTROL_ERROR, "more data than the window")
        end = bool(flags & frames.END_STREAM)
        if end:
            self._stream_credit.pop(stream, None)
        else:
            self._stream_credit.setdefault(stream, 0)
        body = frames.body_of(flags & frames.PADDED, payload)
        if len(body) < size:
            self.credit(stream, size - len(body))
        self.on_data(stream, body, end=end)

    def _headers(self, flags: int, stream: int, block: bytearray) -> None:
        if not stream:
            raise frames.FrameError(frames.PROTOCOL_ERROR, "headers of no stream")
        if flags & frames.END_HEADERS:
            if flags & frames.END_STREAM:
                self._stream_credit.pop(stream, None)
            self.on_headers(stream, bytes(block), end=bool(flags & frames.END_STREAM))
        else:
            self._block = (stream, flags, block)

    def _continuation(self, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise frames.FrameError(frames.PROTOCOL_ERROR, "a continuation of nothing")
        stream, first, block = self._block
        if len(block) + len(payload) > BLOCK_MAX or not (payload or flags & frames.END_HEADERS):
            raise frames.FrameError(frames.ENHANCE_YOUR_CALM, f"headers over {BLOCK_MAX} bytes")
        block += payload
        if flags & frames.END_HEADERS:
            self._block = None
            self._headers(first | frames.END_HEADERS, stream, block)

    def _window_update(self, stream: int, more: int) -> None:
        if stream:
            if stream in self._windows or stream in self._queued or self.knows(stream):
                room = self._windows.get(stream, self._initial) + more
                if room > frames.WINDOW_MAX:
                    raise frames.FrameError(frames.FLOW_CONTROL_ERROR, "a window over 2 GiB")
                self._windows[stream] = room
                if stream in self._queued:
                    self._drain(stream)
            return
        self._open_window += more
        if self._open_window > frames.WINDOW_MAX:
            raise frames.FrameError(frames.FLOW_CONTROL_ERROR, "a window over 2 GiB")
        for waiting in list(self._queued):
            self._drain(waiting)

    def _settings(self, flags: int, payload: bytes) -> None:
        if flags & frames.ACK:
            return
        initial = frames.read_settings(payload).get(frames.INITIAL_WINDOW_SIZE, self._initial)
        for stream in self._windows:
            self._windows[stream] += initial - self._initial
        self._initial = initial
        self.write(frames.frame(frames.SETTINGS, frames.ACK, 0))
        for waiting in list(self._queued):
            self._drain(waiting)

    def _ping(self, flags: int, payload: bytes) -> None:
        if len(payload) != 8:
            raise frames.FrameError(frames.FRAME_SIZE_ERROR, "a ping that is not 8 bytes")
        if not flags & frames.ACK:
            self.write(frames.frame(frames.PING, frames.ACK, 0, payload))

    # -- for the two ends ---------------------------------------------------------------------

    def on_headers(self, stream: int, block: bytes, *, end: bool) -> None:
        """A whole header block came in."""
        raise NotImplementedError

    def on_data(self, stream: int, data: bytes, *, end: bool) -> None:
        """Data came in; must be credited once it went on."""
        raise NotImplementedError

    def on_reset(self, stream: int, code: int) -> None:
        """The other side ended a stream."""
        raise NotImplementedError

    def on_goaway(self, last_stream: int) -> None:
        """The other side begins nothing more, and answers up to this stream."""
        raise NotImplementedError

    def knows(self, stream: int) -> bool:
        """Whether this stream is under way."""
        raise NotImplementedError

    def went_on(self, stream: int, size: int) -> None:
        """That many bytes of a stream went out here: credit the connection they came from."""
        raise NotImplementedError

    def held_up(self, held: bool) -> None:
        """The other side reads too slowly, or does again."""
        raise NotImplementedError
