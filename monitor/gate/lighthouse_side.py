"""The gate's connection to the Lighthouse on behalf of one client: one for one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from monitor.gate import frames
from monitor.gate.connection import Connection
from monitor.gate.outgoing import Flushes
from monitor.gate.stream import Stream

if TYPE_CHECKING:
    from monitor.gate.group_side import GroupSide

_WINDOW: Final = 1024 * 1024
"""Bytes of answers that may wait for one client: a quorum of 1,000 groups takes about 200 KB."""
_NUMBERS_END: Final = 2**31 - 2
"""Streams of a connection; at ten a second they last three years."""
_SETTINGS: Final = {
    frames.HEADER_TABLE_SIZE: 0,  # so that its blocks can be passed on as they are
    frames.ENABLE_PUSH: 0,
    frames.INITIAL_WINDOW_SIZE: _WINDOW,
}


class LighthouseSide(Connection):
    """Carries the calls of one client; ends with it."""

    def __init__(self, shared: Flushes, client: GroupSide) -> None:
        super().__init__(shared, window=_WINDOW)
        self._client = client
        self._next = 1
        self.carried: dict[int, Stream] = {}
        """Calls that the Lighthouse has and has not answered."""
        self.leaving = False
        """Whether it takes no more calls."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello."""
        super().connection_made(transport)
        self.write(frames.PREFACE + frames.settings(_SETTINGS))
        self.write(frames.window_update(0, _WINDOW - frames.WINDOW_DEFAULT))
        self._shared.flush()

    @property
    def takes(self) -> bool:
        """Whether a call can be handed to it."""
        return not self.leaving and not self.closed and self._next < _NUMBERS_END

    def carry(self, stream: Stream) -> None:
        """Hand a call to the Lighthouse, with all that the client sent of it so far."""
        number = self._next
        self._next += 2
        stream.via, stream.via_number = self, number
        self.carried[number] = stream
        if stream.kept:
            stream.credited = len(stream.data)
        over = stream.ended and stream.trailers is None
        self.send_headers(number, stream.call.block, end=over and not stream.data)
        if stream.data:
            self.send_data(number, bytes(stream.data), end=over)
        if stream.trailers is not None:
            self.send_headers(number, stream.trailers, end=True)

    def leave(self, stream: Stream, code: int) -> None:
        """The client no longer waits for this call."""
        if stream.via_number in self.carried:
            self.drop(stream.via_number)
            self._stream_credit.pop(stream.via_number, None)
            del self.carried[stream.via_number]
            if not self.closed:
                self.send_reset(stream.via_number, code)
        stream.via = None

    def on_headers(self, stream: int, block: bytes, *, end: bool) -> None:
        """An answer begins, or ends with its status."""
        call = self.carried.get(stream)
        if call is not None:
            self._end(stream, end=end)
            self._client.answer_headers(call, block, end=end)

    def on_data(self, stream: int, data: bytes, *, end: bool) -> None:
        """A part of an answer."""
        call = self.carried.get(stream)
        if call is None:
            self.ignore(stream, len(data))
            return
        self._end(stream, end=end)
        self._client.answer_data(call, data, end=end)

    def _end(self, stream: int, *, end: bool) -> None:
        if end:
            self.drop(stream)
            self.carried.pop(stream, None)

    def on_reset(self, stream: int, code: int) -> None:
        """The Lighthouse ends a call."""
        self.drop(stream)
        call = self.carried.pop(stream, None)
        if call is not None:
            self._client.answer_reset(call, code)

    def on_goaway(self, last_stream: int) -> None:
        """It takes no more calls; those beyond `last_stream` were not looked at."""
        self.leaving = True
        self._client.lighthouse_left(self, self._orphans(last_stream))

    def _orphans(self, beyond: int) -> list[Stream]:
        numbers = sorted(number for number in self.carried if number > beyond)
        for number in list(self._queued):
            if number > beyond:
                self.drop(number)
        orphans = [self.carried.pop(number) for number in numbers]
        for orphan in orphans:
            orphan.via = None
        return orphans

    def connection_lost(self, exc: Exception | None) -> None:
        """The Lighthouse is gone, or we have ended it."""
        del exc
        unasked, self.closed = not self.closed, True
        self._client.lighthouse_left(self, self._orphans(0), lost=unasked)
        self._shared.flush()

    def knows(self, stream: int) -> bool:
        """Whether this stream is under way."""
        return stream in self.carried

    def went_on(self, stream: int, size: int) -> None:
        """The Lighthouse has that much more of a call."""
        call = self.carried.get(stream)
        if call is not None:
            before = min(size, call.credited)
            call.credited -= before
            if size > before:
                self._client.credit(call.number, size - before)

    def held_up(self, held: bool) -> None:
        """The Lighthouse reads too slowly, or does again."""
        if held:
            self._client.hold_reading("the Lighthouse")
        else:
            self._client.let_read("the Lighthouse")
