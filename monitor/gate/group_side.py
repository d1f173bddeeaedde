"""A client's connection to the gate: a TorchFT manager, or whoever else speaks gRPC to it.

Theory of operation. A heartbeat or quorum request is read whole, then judged, then handed to the
Lighthouse byte for byte; what cannot be read is handed on as it comes, as is any other call. The
request is kept until its answer begins: when the Lighthouse goes away before, the very same bytes
are sent again to the one that comes back, while the client, which knows nothing of it, waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from monitor.gate import frames
from monitor.gate.answering import Answering
from monitor.gate.headers import DEADLINE_EXCEEDED, PERMISSION_DENIED, UNAVAILABLE, Blocks
from monitor.gate.keeping import told
from monitor.gate.lighthouse_side import LighthouseSide
from monitor.gate.messages import whole
from monitor.gate.passage import Passage
from monitor.gate.stream import KEPT_MAX, Kind, Stage, Stream, begin

if TYPE_CHECKING:
    from monitor.gate.arrival import Arrivals
    from monitor.gate.gate import GateCore

STREAMS_MAX: Final = 100
"""Calls under way of one client; a manager has two."""
_SETTINGS: Final = {
    frames.HEADER_TABLE_SIZE: 0,  # so that a block says all by itself
    frames.MAX_CONCURRENT_STREAMS: STREAMS_MAX,
    frames.MAX_HEADER_LIST_SIZE: 64 * 1024,
}
_WAITING: Final = frozenset({Stage.WAITING, Stage.HELD, Stage.REFUSED})


class GroupSide(Answering):
    """One client."""

    def __init__(self, core: GateCore, arrivals: Arrivals, key: int) -> None:
        """`key`: by which the keeper knows this connection."""
        super().__init__(core, arrivals, key)
        self._blocks = Blocks()
        self._last = 0
        self._passage = Passage(core, self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Its preface has come: answer with our settings."""
        super().connection_made(transport)
        self._core.clients.add(self)
        self.write(frames.settings(_SETTINGS))

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, and its calls with it."""
        del exc
        self.closed = True
        self._arrivals.left(self.key)
        self._core.clients.discard(self)
        for stream in list(self.streams.values()):
            self._finish(stream)
        self._passage.close()

    def fail(self, code: int, why: str) -> None:
        """End this connection: the client broke the protocol."""
        if not self.closed:
            self._core.bad_client(self.transport, why)
        super().fail(code, why)

    # -- what the client sends ------------------------------------------------------------------

    def on_headers(self, stream: int, block: bytes, *, end: bool) -> None:
        """A call begins, or ends with trailers."""
        call = self._blocks.read(block)  # always: later blocks may refer to it
        known = self.streams.get(stream)
        if known is not None:
            self._trailers(known, call.block)
            return
        if stream <= self._last:
            return  # the end of a call that is over
        if not stream & 1:
            raise frames.FrameError(frames.PROTOCOL_ERROR, "a stream with an even number")
        self._last = stream
        if self._arrivals.keeping is not None:
            page = self._arrivals.keeping.page
            page.write(self.key, stream, max(0, self.room), self.initial_room)
        if len(self.streams) >= STREAMS_MAX or self._leaving:
            self.write(frames.reset(stream, frames.REFUSED_STREAM))
            return
        made = self.streams[stream] = begin(stream, call, self._core.now_s(), ended=end)
        if made.kind is Kind.OTHER or end:
            self._wait(made)

    def _trailers(self, stream: Stream, block: bytes) -> None:
        if stream.ended:
            raise frames.FrameError(frames.STREAM_CLOSED, "headers after the end of a call")
        stream.ended, stream.trailers = True, block
        if stream.stage is Stage.SENT:
            if stream.via is not None:
                stream.via.send_headers(stream.via_number, block, end=True)
        elif stream.stage is Stage.READING:
            self._judge(stream)

    def on_data(self, stream: int, data: bytes, *, end: bool) -> None:
        """A part of a call's message."""
        call = self.streams.get(stream)
        if call is None or call.ended:
            self.ignore(stream, len(data))
            return
        call.ended = end
        if call.kept and self._kept_bytes + len(data) > KEPT_MAX:
            self._let_go(call)
        if call.kept:
            call.data += data
            call.credited += len(data)
            self._kept_bytes += len(data)
            self.credit(stream, len(data))
        if call.stage is Stage.SENT:
            if call.via is not None:
                call.via.send_data(call.via_number, data, end=end)
            return
        if not call.kept:
            call.data += data  # bounded by the window: it is credited when it went on
        if call.stage is Stage.READING and (end or whole(call.data) is not False):
            self._judge(call)

    def _let_go(self, stream: Stream) -> None:
        """Too large to be kept: passed on unread, and never sent again."""
        stream.kept = False
        self._kept_bytes -= len(stream.data)
        if stream.stage is Stage.READING:
            self._core.ledger.counts.unread += 1
            self._wait(stream)

    def on_reset(self, stream: int, code: int) -> None:
        """The client no longer waits for a call."""
        call = self.streams.get(stream)
        self.drop(stream)
        self._resets_left -= 1
        if self._resets_left < 0:
            raise frames.FrameError(frames.ENHANCE_YOUR_CALM, "too many cancelled calls")
        if call is not None:
            self._forsake(call, code)

    def on_goaway(self, last_stream: int) -> None:
        """The client begins nothing more; what is under way goes on."""
        del last_stream
        self._leaving = True
        if not self.streams:
            self.close()

    # -- whether it may pass --------------------------------------------------------------------

    def _judge(self, stream: Stream) -> None:
        """Once its message is whole; again when the list changes."""
        keeping = self._arrivals.keeping
        if keeping is not None and stream.kind is Kind.QUORUM and stream.entry is None:
            keeping.asked(self.key, told(self, stream))
        stage, due_s = self._core.rule(stream)
        if stage is stream.stage:
            return
        if stage is Stage.WAITING:
            self._wait(stream)
            return
        if stream.via is not None:
            stream.via.leave(stream, frames.CANCEL)
        self._core.waits(self)
        stream.stage, stream.since_s, stream.due_s = stage, self._core.now_s(), due_s
        if stage is Stage.REFUSED and due_s <= stream.since_s:
            self._refuse(stream)

    def _refuse(self, stream: Stream) -> None:
        reason = "" if stream.entry is None else stream.entry.verdict.reason
        self._core.refused(stream)
        self._respond(stream, PERMISSION_DENIED, reason)

    def judge_again(self) -> None:
        """The list has changed."""
        for stream in list(self.streams.values()):
            if stream.entry is None or stream.answered or stream.stage is Stage.READING:
                continue
            if stream.kind is Kind.QUORUM or stream.stage is Stage.REFUSED:
                self._judge(stream)

    # -- on to the Lighthouse -------------------------------------------------------------------

    def _wait(self, stream: Stream) -> None:
        stream.stage, stream.since_s = Stage.WAITING, self._core.now_s()
        if not self._pass_on(stream):
            self._core.waits(self)

    def _pass_on(self, stream: Stream) -> bool:
        upstream = self._passage.open()
        if upstream is None:
            return False
        if stream.kind is Kind.QUORUM and self._core.lighthouse.settling:
            return False
        stream.stage, stream.since_s = Stage.SENT, self._core.now_s()
        upstream.carry(stream)
        if not stream.kept:
            stream.data.clear()
        return True

    def advance(self) -> None:
        """The Lighthouse is there: hand it what waits, in the order of the stream numbers."""
        waiting = [self.streams[n] for n in sorted(self.streams)]
        waiting = [stream for stream in waiting if stream.stage is Stage.WAITING]
        if any(stream.kind is Kind.QUORUM for stream in waiting) and self._core.lighthouse.settling:
            waiting = [stream for stream in waiting if stream.kind is not Kind.QUORUM]
        for stream in waiting:
            self._pass_on(stream)

    def lighthouse_left(
        self, left: LighthouseSide, orphans: Sequence[Stream], *, lost: bool = False
    ) -> None:
        """It took these calls and did not answer them; `lost`: and it ended the connection."""
        self._passage.left(left, lost=lost)
        if self.closed:
            return
        for stream in orphans:
            if stream.answered:
                self.send_reset(stream.number, frames.CANCEL)
                self._finish(stream)
            elif not stream.kept:
                self._respond(stream, UNAVAILABLE, "lightkeeper: the Lighthouse went away")
            else:
                self._core.ledger.counts.resent += stream.kind is Kind.QUORUM
                self._wait(stream)

    # -- time -----------------------------------------------------------------------------------

    def tick(self, now_s: float) -> bool:
        """Do what is due; whether anything still waits."""
        for stream in [s for s in self.streams.values() if s.stage in _WAITING]:
            deadline_s = stream.deadline_s
            if deadline_s is not None and now_s >= deadline_s:
                text = f"lightkeeper: {self._core.absence()} until this call's deadline"
                self._respond(stream, DEADLINE_EXCEEDED, text)
            elif stream.stage is Stage.WAITING:
                self._tick_waiting(stream, now_s)
            elif now_s >= stream.due_s:
                if stream.stage is Stage.REFUSED:
                    self._refuse(stream)
                else:
                    self._core.wave(stream)
                    self._judge(stream)
        return any(stream.stage in _WAITING for stream in self.streams.values())

    def _tick_waiting(self, stream: Stream, now_s: float) -> None:
        if self._pass_on(stream) or stream.kind is Kind.QUORUM:
            return
        if now_s - stream.since_s >= self._core.patience_s:
            self._respond(stream, UNAVAILABLE, f"lightkeeper: {self._core.absence()}")

    def knows(self, stream: int) -> bool:
        """Whether this stream is under way."""
        return stream in self.streams

    def went_on(self, stream: int, size: int) -> None:
        """The client has that much more of an answer."""
        call = self.streams.get(stream)
        if call is not None and call.via is not None:
            call.via.credit(call.via_number, size)
        else:
            self._passage.credit(size)

    def held_up(self, held: bool) -> None:
        """The client reads too slowly, or does again."""
        self._passage.hold(held)
