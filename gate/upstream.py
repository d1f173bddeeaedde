"""The Lighthouse behind the gate: a connection to it for each client, and whether it is there.

Theory of operation. Each client has its own connection to the Lighthouse, which therefore sees
what it would see without the gate. A restarted Lighthouse knows nobody. The first quorum request
to reach it would form a quorum of one where `--min_replicas` allows it, and so a second job beside
the others. So after a loss heartbeats go first: quorum requests wait until the new Lighthouse has
answered a heartbeat of everybody who was alive before, or for `SETTLE_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from lightkeeper.gate import http2
from lightkeeper.gate.calls import AdmissionControl, ProxiedCall, Replica
from lightkeeper.monitor.model.names import ReplicaId

_WINDOW: Final = 1024 * 1024
"""Bytes of answers waiting for one client: a quorum of 1,000 groups takes about 200 KB."""
_SETTINGS: Final = {
    http2.HEADER_TABLE_SIZE: 0,  # so its blocks can be passed on unchanged
    http2.ENABLE_PUSH: 0,
    http2.INITIAL_WINDOW_SIZE: _WINDOW,
}
SETTLE_S: Final = 2.0
"""Wait after its return: a manager's heartbeat comes every 0.1 s, or was held and goes first."""
ALIVE_S: Final = 5.0
"""A replica with a heartbeat this recent at the loss was alive; TorchFT's own timeout."""
FIRST_S: Final = 0.15
"""The others follow the first request after this time; the Lighthouse needs milliseconds."""
_CONNECT_S: Final = 5.0
_KNOCK_S: Final = 0.1
"""Pause between two checks whether the Lighthouse is back."""
_LOOK_S: Final = 1.0
_OURS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Dial errors for lack of local resources: they say nothing about the Lighthouse."""
_BURST_S: Final = 1.0
"""If half of all clients lose their connection in this time, the Lighthouse itself is gone."""
DEAF_MS: Final = 10_000
"""A Lighthouse that acknowledges nothing this long is away: TCP would wait 15 minutes."""


class Caller(http2.Http2Connection):
    """The client whose calls a connection carries."""

    def answer_headers(self, call: ProxiedCall, block: bytes, *, end: bool) -> None:
        """An answer begins or ends."""

    def answer_data(self, call: ProxiedCall, data: bytes, *, end: bool) -> None:
        """A part of an answer."""

    def answer_reset(self, call: ProxiedCall, code: int) -> None:
        """The Lighthouse ends a call without an answer."""

    def unanswered(
        self, upstream: Upstream, calls: Sequence[ProxiedCall], *, lost: bool = False
    ) -> None:
        """These calls get no answer from `upstream`; `lost`: it also closed the connection."""


class Upstream(http2.Http2Connection):
    """One client's connection to the Lighthouse: carries its calls, and ends with the client."""

    def __init__(self, flusher: http2.Flusher, client: Caller) -> None:
        super().__init__(flusher, window=_WINDOW)
        self.client = self.counterpart = client
        self._next = 1
        self.carried: dict[int, ProxiedCall] = {}
        """Calls that the Lighthouse has and has not answered."""
        self._leaving = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.write(http2.PREFACE + http2.settings(_SETTINGS))
        self.write(http2.window_update(0, _WINDOW - http2.WINDOW_DEFAULT))
        self._flusher.flush()

    @property
    def takes(self) -> bool:
        """True if a call can be handed to it."""
        return not self._leaving and not self.closed

    def carry(self, call: ProxiedCall) -> None:
        """Send a call to the Lighthouse, with all the client has sent of it so far."""
        number = self._next
        self._next += 2
        call.via, call.via_number = self, number
        self.carried[number] = call
        if call.kept:
            call.credited = len(call.data)
        over = call.ended and call.trailers is None
        self.send_headers(number, call.headers.block, end=over and not call.data)
        if call.data:
            self.send_data(number, bytes(call.data), end=over)
        if call.trailers is not None:
            self.send_headers(number, call.trailers, end=True)

    def forget(self, stream: int) -> bool:
        if self.carried.pop(stream, None) is None:
            return False
        self.drop(stream)
        self._stream_credit.pop(stream, None)
        return True

    def on_headers(self, stream: int, block: bytes, *, end: bool) -> None:
        """An answer begins, or ends with its status."""
        call = self._answered(stream, end=end)
        if call is not None:
            self.client.answer_headers(call, block, end=end)

    def on_data(self, stream: int, data: bytes, *, end: bool) -> None:
        call = self._answered(stream, end=end)
        if call is None:
            self.ignore(stream, len(data))
        else:
            self.client.answer_data(call, data, end=end)

    def _answered(self, stream: int, *, end: bool) -> ProxiedCall | None:
        call = self.carried.get(stream)
        if call is not None and end:
            self.drop(stream)
            del self.carried[stream]
        return call

    def on_reset(self, stream: int, code: int) -> None:
        self.drop(stream)
        call = self.carried.pop(stream, None)
        if call is not None:
            self.client.answer_reset(call, code)

    def on_goaway(self, last_stream: int) -> None:
        """The Lighthouse takes no new calls; those above `last_stream` were not processed."""
        self._leaving = True
        self.client.unanswered(self, self._take_back(last_stream))

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        lost, self.closed = not self.closed, True
        self.client.unanswered(self, self._take_back(0), lost=lost)
        self._flusher.flush()

    def _take_back(self, beyond: int) -> list[ProxiedCall]:
        for number in [number for number in self._queued if number > beyond]:
            self.drop(number)
        numbers = sorted(number for number in self.carried if number > beyond)
        calls = [self.carried.pop(number) for number in numbers]
        for call in calls:
            call.via = None
        return calls

    def knows(self, stream: int) -> bool:
        return stream in self.carried

    def went_on(self, stream: int, size: int) -> None:
        call = self.carried.get(stream)
        if call is not None:
            before = min(size, call.credited)
            call.credited -= before
            if size > before:
                self.client.credit(call.number, size - before)


class UpstreamLighthouse:
    def __init__(
        self,
        address: tuple[str, int],
        admission: AdmissionControl,
        flusher: http2.Flusher,
        now_s: Callable[[], float],
        settled: Callable[[], None],
    ) -> None:
        """`settled`: called when quorum requests may pass."""
        self.host, self.port = address
        self.up: bool | None = None
        """None: not checked yet."""
        self.settling = False
        self._admission = admission
        self._flusher = flusher
        self._now_s = now_s
        self._settled = settled
        self._back = asyncio.Event()
        self._connections: set[Upstream] = set()
        self._lost_s: OrderedDict[Caller, float] = OrderedDict()
        self._expected: set[ReplicaId] = set()
        self._since_s = 0.0
        self._until_s: float | None = None
        self._resumes = False
        self._next_s = 0.0

    def resume(self) -> None:
        """Earlier requests may still be at the Lighthouse, with nobody left to answer.

        It puts them into the next quorum that forms. So the first request goes alone: if it gets
        that quorum, the others are for it too; sent at once, they would be for the one after it.
        """
        self._resumes = True

    def admits(self) -> bool:
        """True if a quorum request may pass now."""
        now_s = self._now_s()
        if self.settling or now_s < self._next_s:
            return False
        if self._resumes:
            self._resumes = False
            self.first()
        return True

    def first(self) -> None:
        """Let the request that now goes arrive before those by other connections."""
        self._next_s = self._now_s() + FIRST_S

    def absence(self) -> str:
        """Why a call did not reach it."""
        if self.up is False:
            return f"lightkeeper: the Lighthouse at {self.host}:{self.port} is away"
        return "lightkeeper: the Lighthouse was not ready"

    def move(self, host: str, port: int) -> None:
        """Pass all calls to this address from now on, those without an answer too."""
        self.host, self.port = host, port
        for upstream in list(self._connections):
            upstream.close()

    # -- whether it is there --------------------------------------------------------------------

    async def connect(self, client: Caller) -> Upstream:
        """A connection for this client; waits while the Lighthouse is away."""
        loop = asyncio.get_running_loop()
        while True:
            if self.up is False:
                await self._back.wait()
            address = self.host, self.port
            try:
                async with asyncio.timeout(_CONNECT_S):
                    transport, upstream = await loop.create_connection(
                        lambda: Upstream(self._flusher, client), *address
                    )
            except OSError as exc:  # TimeoutError is one
                if exc.errno in _OURS:
                    await asyncio.sleep(_LOOK_S)
                else:
                    self._failed()
                continue
            if address != (self.host, self.port):  # moved meanwhile
                upstream.close()
                continue
            if upstream.closed:  # in the turn that made it
                self._failed()
                continue
            keep_alive(transport, idle_s=5, interval_s=2, deaf_ms=DEAF_MS)
            self._connections.add(upstream)
            self._came()
            return upstream

    async def watch(self) -> None:
        """Dial often while it is away, now and then while nobody is connected to it."""
        while True:
            if not self._connections or self.up is False:  # one dial may fail alone
                await self._knock()
            await asyncio.sleep(_KNOCK_S if self.up is False else _LOOK_S)

    async def _knock(self) -> None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, writer = await asyncio.open_connection(self.host, self.port)
        except OSError as exc:
            if exc.errno not in _OURS:
                self._went_away()
            return
        writer.close()
        self._came()

    def _came(self) -> None:
        if self.up is not True:
            self.up = True
            self._back.set()
            if self.settling:
                self._until_s = self._now_s() + SETTLE_S

    def _failed(self) -> None:
        self._admission.counts.upstream_retries += 1
        self._went_away()

    def _went_away(self) -> None:
        if self.up is not False:
            self.up = False
            self._unsettle()
        self._back.clear()

    def ended(self, upstream: Upstream, client: Caller, *, lost: bool) -> None:
        """A connection has ended; `lost`: not by us."""
        dialed = upstream not in self._connections  # its client left before it was made
        self._connections.discard(upstream)
        if not lost or dialed:
            return
        now_s = self._now_s()
        self._lost_s.pop(client, None)
        self._lost_s[client] = now_s
        while now_s - next(iter(self._lost_s.values())) >= _BURST_S:
            self._lost_s.popitem(last=False)
        if len(self._lost_s) >= len(self._connections):
            self._unsettle()

    # -- whether it knows its groups again ------------------------------------------------------

    def _unsettle(self) -> None:
        """The Lighthouse is gone: it must hear the live replicas before any quorum request."""
        now_s = self._now_s()
        self._since_s = now_s
        self._until_s = now_s + SETTLE_S if self.up else None  # else from its return
        if not self.settling:
            replicas = self._admission.replicas.values()
            self._expected = {each.replica_id for each in replicas if is_alive(each, now_s)}
            self.settling = bool(self._expected)

    def settle(self) -> None:
        """No gate was there before this one: heartbeats go first, from we cannot know whom."""
        self.settling, self._expected = True, {ReplicaId("")}
        self.resume()
        self._since_s = self._now_s()
        self._until_s = self._since_s + SETTLE_S

    def heard(self, replica: Replica) -> None:
        """The Lighthouse has answered a heartbeat of this replica id."""
        if not self.settling or replica.answered_s is None or replica.answered_s < self._since_s:
            return
        self._expected.discard(replica.replica_id)
        if not self._expected:
            self._settle()

    def tick(self, now_s: float) -> None:
        """Stop waiting for replicas that do not come back in time."""
        if self.settling and self._until_s is not None and now_s >= self._until_s:
            self._settle()

    def _settle(self) -> None:
        self.settling = False
        self._expected.clear()
        self._settled()


def is_alive(replica: Replica, now_s: float) -> bool:
    beat_s = replica.heartbeat_s
    return replica.refusal is None and beat_s is not None and now_s - beat_s < ALIVE_S


def keep_alive(transport: asyncio.Transport, *, idle_s: int, interval_s: int, deaf_ms: int) -> None:
    """Notice that the other end's host is gone: TCP itself would wait forever."""
    connection = transport.get_extra_info("socket")
    with contextlib.suppress(OSError, AttributeError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, deaf_ms)
