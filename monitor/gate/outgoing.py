"""What one end of an HTTP/2 connection sends: gathered, and within the other side's windows.

Frames are gathered and written once a turn of the loop. Data that a window does not take waits in
the queue of its stream, and headers that come after it wait behind it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from monitor.gate import frames

_QUEUE_ITEM = tuple[int, bytes, bool]  # kind of frame, payload or block, whether it ends the stream


class Flushes(Protocol):
    """Whoever writes out what was gathered, at the end of a turn."""

    def dirty(self, connection: Outgoing) -> None:
        """A connection has something to write."""
        ...

    def flush(self) -> None:
        """Write it."""
        ...


class Outgoing:
    """The sending half of a connection."""

    transport: asyncio.Transport

    def __init__(self, shared: Flushes) -> None:
        self._shared = shared
        self._out: list[bytes] = []
        self._open_window = frames.WINDOW_DEFAULT
        self._initial = frames.WINDOW_DEFAULT
        self._windows: dict[int, int] = {}
        self._queued: dict[int, deque[_QUEUE_ITEM]] = {}

    @property
    def room(self) -> int:
        """Bytes that the other side takes now, of all streams together."""
        return self._open_window

    @property
    def initial_room(self) -> int:
        """Bytes that it takes of a new stream."""
        return self._initial

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
                if end:
                    self._windows.pop(stream, None)
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

    # -- the other side's windows -------------------------------------------------------------

    def sends_on(self, stream: int) -> bool:
        """Whether something was sent on it, or waits to be."""
        return stream in self._windows or stream in self._queued

    def open_stream(self, stream: int, more: int) -> None:
        """It takes that much more of one stream.

        Raises:
            FrameError: more than there may be.
        """
        room = self._windows.get(stream, self._initial) + more
        if room > frames.WINDOW_MAX:
            raise frames.FrameError(frames.FLOW_CONTROL_ERROR, "a window over 2 GiB")
        self._windows[stream] = room
        if stream in self._queued:
            self._drain(stream)

    def open_all(self, more: int) -> None:
        """It takes that much more of all streams together.

        Raises:
            FrameError: more than there may be.
        """
        self._open_window += more
        if self._open_window > frames.WINDOW_MAX:
            raise frames.FrameError(frames.FLOW_CONTROL_ERROR, "a window over 2 GiB")
        self._drain_all()

    def begin_streams_with(self, initial: int | None) -> None:
        """It takes so much of a new stream, and as much more or less of those that there are."""
        if initial is not None:
            for stream in self._windows:
                self._windows[stream] += initial - self._initial
            self._initial = initial
        self._drain_all()

    def _drain_all(self) -> None:
        for waiting in list(self._queued):
            self._drain(waiting)

    def went_on(self, stream: int, size: int) -> None:
        """That many bytes of a stream went out here: credit the connection they came from."""
        raise NotImplementedError
