"""One HTTP/2 connection, seen from either end: frames in, and what each of them means.

Theory of operation. What comes in is cut into frames and handed to `on_...`; what goes out is in
`outgoing`. Windows are kept hop by hop: bytes that came in are given back to the sender (`credit`)
only when they went out on the other side, so that a peer that reads slowly holds up to one window
of memory and slows nobody but its own counterpart. A breach of the protocol ends this connection
and no other.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

from monitor.gate import frames
from monitor.gate.headers import BLOCK_MAX
from monitor.gate.outgoing import Flushes, Outgoing

_HELD_WRITES: Final = "its writes"


class Connection(Outgoing, asyncio.Protocol):
    """Frames, windows and bookkeeping that client and Lighthouse have in common."""

    def __init__(self, shared: Flushes, *, window: int) -> None:
        """`window`: how many bytes the other side may send before they went on."""
        super().__init__(shared)
        self._reader = frames.FrameReader()
        self._own_window = window
        self._inside = 0  # bytes received that did not go on yet
        self._credit = 0
        self._stream_credit: dict[int, int] = {}
        self._block: tuple[int, int, bytearray] | None = None
        self._reading_held: set[str] = set()
        self.closed = False

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

    # -- the end --------------------------------------------------------------------------------

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
        if not stream:
            self.open_all(more)
        elif self.sends_on(stream) or self.knows(stream):
            self.open_stream(stream, more)

    def _settings(self, flags: int, payload: bytes) -> None:
        if flags & frames.ACK:
            return
        initial = frames.read_settings(payload).get(frames.INITIAL_WINDOW_SIZE)
        self.write(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self.begin_streams_with(initial)

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

    def held_up(self, held: bool) -> None:
        """The other side reads too slowly, or does again."""
        raise NotImplementedError
