"""A client's calls under way: how each is answered, and how it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from monitor.gate import frames
from monitor.gate.connection import Connection
from monitor.gate.headers import answer
from monitor.gate.messages import whole
from monitor.gate.stream import Kind, Stream

if TYPE_CHECKING:
    from monitor.gate.arrival import Arrivals
    from monitor.gate.gate import GateCore

RESETS_MAX: Final = 1000
"""Calls that a client may cancel beyond those that were answered, before it is sent away."""
_REPLY_MAX: Final = 512 * 1024
"""A quorum of 2,500 groups. A longer one passes as it comes: more would not fit the window."""


class Answering(Connection):
    """The half of a client's connection that answers."""

    def __init__(self, core: GateCore, arrivals: Arrivals, key: int) -> None:
        """`key`: by which the keeper knows this connection."""
        super().__init__(core, window=frames.WINDOW_DEFAULT)
        self._core = core
        self._arrivals = arrivals
        self.key = key
        self.streams: dict[int, Stream] = {}
        self._kept_bytes = 0
        self._resets_left = RESETS_MAX
        self._leaving = False

    def answer_headers(self, stream: Stream, block: bytes, *, end: bool) -> None:
        """An answer begins or ends."""
        self._begin_answer(stream)
        if stream.reply:  # less than a message, and no more comes
            self.send_data(stream.number, bytes(stream.reply), end=False)
            stream.reply.clear()
        self.send_headers(stream.number, block, end=end)
        if end:
            self._answered(stream)

    def answer_data(self, stream: Stream, data: bytes, *, end: bool) -> None:
        """A part of an answer; a quorum passes as a whole, see `quorum_ids`."""
        self._begin_answer(stream)
        if stream.kind is Kind.QUORUM and not stream.replied:
            stream.reply += data
            if not end and whole(stream.reply) is False and len(stream.reply) < _REPLY_MAX:
                return
            data, stream.replied = self._numbered(bytes(stream.reply)), True
            stream.reply.clear()
        self.send_data(stream.number, data, end=end)
        if end:
            self._answered(stream)

    def _numbered(self, message: bytes) -> bytes:
        """The keeper knows of another number before the client does."""
        ids, keeping = self._core.quorum_ids, self._arrivals.keeping
        before = ids.highest
        passed = ids.framed(message)
        if keeping is not None and ids.highest != before:
            keeping.numbered(self._core)
        return passed

    def _begin_answer(self, stream: Stream) -> None:
        if not stream.answered:
            stream.answered = True
            self._core.answered(stream)

    def _answered(self, stream: Stream) -> None:
        self._resets_left = min(self._resets_left + 1, RESETS_MAX)
        self._finish(stream)

    def answer_reset(self, stream: Stream, code: int) -> None:
        """The Lighthouse ends a call without an answer."""
        self.send_reset(stream.number, code)
        self._finish(stream)

    # -- the end of a call ----------------------------------------------------------------------

    def _respond(self, stream: Stream, status: int, message: str) -> None:
        """Answer in the Lighthouse's place: only ever a failure, and always with its reason."""
        self.send_headers(stream.number, answer(status, message), end=True)
        if not stream.ended:
            self.write(frames.reset(stream.number, frames.NO_ERROR))
        self._forsake(stream, frames.CANCEL)

    def _forsake(self, stream: Stream, code: int) -> None:
        if stream.via is not None:
            stream.via.leave(stream, code)
        self._finish(stream)

    def _finish(self, stream: Stream) -> None:
        if self.streams.pop(stream.number, None) is None:
            return
        self._stream_credit.pop(stream.number, None)  # who never ends its request leaves one behind
        if stream.kept:
            self._kept_bytes -= len(stream.data)
        elif len(stream.data) > stream.credited:
            self.ignore(stream.number, len(stream.data) - stream.credited)
        self._core.finished(stream)
        if stream.kind is Kind.QUORUM and self._arrivals.keeping is not None:
            self._core.flush()  # first the answer, then nobody has to remember the question
            self._arrivals.keeping.over(self.key, stream.number)
        if self._leaving and not self.streams and not self._queued:
            self._core.flush()
            self.close()
