"""The proxy between clients and Lighthouse: reads, judges and passes on their calls.

Theory of operation. A heartbeat or quorum request is read whole, then judged, then sent to the
Lighthouse byte for byte. What cannot be read is forwarded as it comes, as is any other call. The
request is kept until its answer begins: if the Lighthouse goes away before that, the same bytes
are sent to the one that comes back, while the client waits and notices nothing.

A quorum request stays at the Lighthouse when its client's connection ends, since the Lighthouse
keeps it anyway. The same request by a new connection waits for that answer. Sent as well, it could
come just after the quorum with the first one: it would stay for the next, with an old step. Where
the connection to the Lighthouse ends, it has to be sent again, and this can happen: then the others
ask for the next quorum only after this replica.

How clients share the proxy: work is counted in units of about 6 us. A frame costs one, a header
field not seen before one more, a call `CALL`. Each client has a free share, several times what a
manager needs for its heartbeats, so an honest client is always handled at once. A client that
sends more is not read further and waits in `FairTurns`. All waiting clients together get `TURN` in
one turn of the loop, a `SLICE` each, in order. So a call of an honest client waits a few turns of
some milliseconds, however much the others send. Work that belongs to no call (headers of finished
calls, cancelled calls, pings, settings, tiny pieces of data) is limited too: by `SPARE_MAX`, which
refills with answered calls and with time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lightkeeper.gate import http2
from lightkeeper.gate.calls import AdmissionControl, Method, ProxiedCall, Replica, Stage
from lightkeeper.gate.denylist import Denial, GateView
from lightkeeper.gate.messages import (
    ANSWER_BEGINS,
    ANSWER_ENDS,
    DEADLINE_EXCEEDED,
    HEADERS_MAX,
    PERMISSION_DENIED,
    UNAVAILABLE,
    HeaderReader,
    failure,
    is_same_request,
    is_whole,
)
from lightkeeper.gate.quorum_ids import QuorumIds, members_of
from lightkeeper.gate.upstream import Caller, Upstream, UpstreamLighthouse, is_alive

log = logging.getLogger("lightkeeper.gate")

TICK_S: Final = 0.1
OWED_S: Final = 0.2
"""The gate waits this long after a quorum's first answer; the Lighthouse needs milliseconds."""
AT_ONCE_S: Final = 0.02
"""A client that is sent away this soon after a quorum's answer is not about to ask again."""
JOIN_S: Final = 60.0
"""The Lighthouse waits no longer for a replica that lives and does not ask: its join timeout."""
QUIET_S: Final = 2.0
"""A client without a quorum request for this long has long steps."""
PATIENCE_S: Final = 2.0
"""How long a heartbeat waits for a Lighthouse that is away."""
CLIENTS_MAX: Final = 16_384
"""Connections at once; each costs two file descriptors and about 10 KB. One more replaces the one
answered least recently: a manager is answered many times a second."""
CALLS_MAX: Final = 100
"""Open calls of one client; a manager has two."""
KEPT_MAX: Final = 1024 * 1024
"""Bytes of requests kept for one client, to read them and to send them again."""
KEPT_OF_ALL: Final = 64 * 1024 * 1024
"""Bytes kept for all clients together; above it, only short requests are kept."""
RESENT_MAX: Final = 8
"""How often a call is sent again: one may make the Lighthouse close its connection each time."""
_REPLY_MAX: Final = 512 * 1024
"""A quorum of 2,500 groups. A longer answer passes as it comes: it does not fit the window."""

CALL: Final = 8
"""Work for a call on top of its frames: reading, forwarding and answering it."""
SHARE_A_S: Final = 240.0
"""Free work a second for each client; a manager that beats every 0.1 s uses 100 to 120."""
SHARE_MAX: Final = 120.0
SLICE: Final = 40.0
TURN: Final = 400.0
SPARE_MAX: Final = 1000.0
SPARE_A_S: Final = 2.0
EARNED: Final = 8.0
"""Spare work gained by each answered call."""
UNREAD_MAX: Final = 32 * 1024 * 1024
"""Unread bytes of all waiting clients; above it, a client with over a frame is cut off."""

_SETTINGS: Final = {
    http2.HEADER_TABLE_SIZE: 0,  # each block stands alone
    http2.MAX_CONCURRENT_STREAMS: CALLS_MAX,
    http2.MAX_HEADER_LIST_SIZE: HEADERS_MAX,
}
_NOT_SENT: Final = frozenset({Stage.WAITING, Stage.HELD, Stage.REFUSED})
_NOT_PASSED: Final = frozenset({Stage.HELD, Stage.REFUSED})
_ITS_TURN: Final = "it waits for its turn"


@dataclass(slots=True)
class NewestQuorum:
    """The Lighthouse's last answer, for its members that asked and did not get it.

    The members of a quorum train together from then on, and wait for each other. When a connection,
    the Lighthouse or a gate is lost while it is answered, some members have the answer and some do
    not. They ask again; but that would ask for the next quorum, which forms when the others are
    there, and those are in a collective that waits for this group: 60 s by TorchFT's defaults. A
    quorum contains each member's request (its step, its failed commits): the same request again is
    for this quorum, and gets the same answer from here.
    """

    message: bytes = b""
    members: dict[str, bytes] = field(default_factory=dict)
    """Replica id -> its request, as in `QuorumRequest.member`."""
    told: dict[str, Downstream] = field(default_factory=dict)
    """Members that have the answer, and by which connection: there they ask for the next one."""
    sure: bool = True
    """True if `told` is complete. Then a member that is not in it is in this quorum by a request
    that it has forgotten; the others wait for it, whatever it asks now."""
    owed: list[tuple[Downstream, ProxiedCall]] = field(default_factory=list)
    due_s: float = 0.0
    """When the gate answers in the Lighthouse's place."""
    outdated: dict[str, Replica] = field(default_factory=dict)
    """Who may have a request for this quorum at the Lighthouse, which took it for the next one."""

    def answers(self, client: Downstream, call: ProxiedCall) -> bool:
        """True if this call asks for this quorum."""
        if client.closed or call.replica is None or not call.member:
            return False
        name = call.replica.replica_id
        if is_same_request(self.members.get(name, b""), call.member):
            return self.told.get(name) is not client
        return self.sure and name in self.members and name not in self.told


class Proxy:
    """What the connections of one gate share: one per process, on one loop."""

    def __init__(
        self,
        lighthouse: tuple[str, int],
        clock: Callable[[], float],
        *,
        now_s: Callable[[], float] = time.monotonic,
        clients_max: int = CLIENTS_MAX,
    ) -> None:
        """`clock`: Unix seconds, for expiry; `now_s`: a steady clock, for the rest."""
        self.now_s = now_s
        self._began_s = now_s()
        self.clock = clock
        self.admission = AdmissionControl(now_s)
        self.denylist = self.admission.denylist
        self.counts = self.admission.counts
        self.quorum_ids = QuorumIds()
        self.quorum = NewestQuorum()
        self.keep: Callable[[bytes], None] = lambda _: None
        """Called with each quorum's answer before any member gets it."""
        self.leaving = False
        """True if clients are to go to the gate that took over."""
        self.flusher = http2.Flusher()
        self.flush = self.flusher.flush
        self.turns = FairTurns(self.flush)
        self.lighthouse = UpstreamLighthouse(
            lighthouse, self.admission, self.flusher, now_s, self.advance_all
        )
        self.clients_max = clients_max
        self.transports: OrderedDict[asyncio.Transport, None] = OrderedDict()
        """Transports of all clients, in the order they came or were last answered; of one that is
        gone, that to the Lighthouse while a quorum request waits there."""
        self.clients: set[Downstream] = set()
        """Clients that speak HTTP/2."""
        self.tunnels = 0
        """Clients that speak something else."""
        self.tasks: set[asyncio.Task[Any]] = set()
        """Tasks that end with the gate."""
        self.kept_bytes = 0
        self._waiting: set[Downstream] = set()

    # -- who is here --------------------------------------------------------------------------

    def came(self, transport: asyncio.Transport) -> None:
        self.transports[transport] = None
        if len(self.transports) > self.clients_max:
            self.transports.popitem(last=False)[0].abort()

    def served(self, transport: asyncio.Transport) -> None:
        if transport in self.transports:
            self.transports.move_to_end(transport)

    def left(self, transport: asyncio.Transport) -> None:
        self.transports.pop(transport, None)

    # -- who may pass -------------------------------------------------------------------------

    def deny(self, denials: Sequence[Denial]) -> bool:
        """Put a list in force, also for open calls; returns whether it changed."""
        changed = self.denylist.replace(denials, self.clock())
        if changed:
            self._judge_again()
        return changed

    def _judge_again(self) -> None:
        for client in list(self.clients):
            client.judge_again()
        self.flush()

    # -- time ---------------------------------------------------------------------------------

    def waits(self, client: Downstream) -> None:
        """A call of this client has not been sent."""
        self._waiting.add(client)

    def advance_all(self) -> None:
        """The Lighthouse is ready: send what waits."""
        for client in list(self._waiting):
            client.advance()
        self.flush()

    def formed(self, message: bytes) -> None:
        """A quorum's first answer, before any client gets it."""
        quorum = self.quorum = NewestQuorum(message, members_of(message))
        self.keep(message)
        quorum.due_s = self.now_s() + OWED_S
        quorum.owed = [
            (client, call)
            for client in self.clients
            for call in client.calls.values()
            if quorum.answers(client, call)
        ]
        quorum.outdated = {
            call.replica.replica_id: call.replica
            for _, call in quorum.owed
            if call.resent and call.via is not None and call.replica is not None
        }

    def asks(self, call: ProxiedCall) -> bool:
        """True if a quorum request may pass: first those that replace an outdated one."""
        outdated, name = self.quorum.outdated, call.replica and call.replica.replica_id
        if outdated and name in outdated:
            del outdated[name]
            if not outdated:
                self.lighthouse.first()
            return True
        return not outdated

    def tick(self) -> None:
        now_s = self.now_s()
        if self.quorum.owed and now_s >= self.quorum.due_s:
            owed, self.quorum.owed = self.quorum.owed, []
            for client, call in owed:
                client.tell_newest(call)
        self.quorum.outdated = {
            name: replica
            for name, replica in self.quorum.outdated.items()
            if is_alive(replica, now_s) and now_s < self.quorum.due_s + JOIN_S
        }
        if self.denylist.expire(self.clock()):
            self._judge_again()
        self.lighthouse.tick(now_s)
        for client in list(self._waiting):
            if not client.tick(now_s):
                self._waiting.discard(client)
        for client in list(self.clients) if self.leaving else ():
            client.part(now_s)
        self.flush()

    def view(self) -> GateView:
        now_s = self.now_s()
        replicas = sorted(self.admission.replicas.items())
        return GateView(
            lighthouse=f"http://{self.lighthouse.host}:{self.lighthouse.port}",
            lighthouse_up=self.lighthouse.up is True,
            denied=self.denylist.denials,
            replicas=tuple(replica.seen(now_s) for _, replica in replicas),
            age_s=now_s - self._began_s,
        )


class Downstream(Caller):
    """A client's connection: a TorchFT manager, or another gRPC client."""

    def __init__(self, proxy: Proxy) -> None:
        super().__init__(proxy.flusher, window=http2.WINDOW_DEFAULT)
        self.calls: dict[int, ProxiedCall] = {}
        self._proxy = proxy
        self._headers_read = HeaderReader()
        self._last = 0  # the highest call number
        self._asked_s = proxy.now_s()  # when it last had an open quorum request
        self._parted_s: float | None = None
        self._kept_bytes = 0
        self._leaving = False
        self._upstream: Upstream | None = None
        self._dialing: asyncio.Task[None] | None = None
        self._spare = SPARE_MAX
        self._share = 0.0
        self._shared_s = proxy.now_s()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client's preface has come: answer with our settings."""
        super().connection_made(transport)
        self._proxy.clients.add(self)
        self.write(http2.settings(_SETTINGS))

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.closed = True
        self._proxy.left(self.transport)
        self._proxy.clients.discard(self)
        self._proxy.turns.leave(self)
        if self._dialing is not None:
            self._dialing.cancel()
        for call in list(self.calls.values()):
            if call.via is None or not call.at_lighthouse:
                self._finish(call)
        if self._upstream is not None and self.calls:  # until the Lighthouse answers them
            self._proxy.came(self._upstream.transport)
            self._upstream.resume_reading(http2.COUNTERPART_SLOW)
        self._release()

    def _release(self) -> None:
        """End the connection to the Lighthouse if the client is gone and nothing waits there."""
        if self.closed and not self.calls and self._upstream is not None:
            self._upstream.close()

    def fail(self, code: int, why: str) -> None:
        if not self.closed:
            self._proxy.counts.bad_clients += 1
            log.info("client %s: %s", self.transport.get_extra_info("peername"), why)
        super().fail(code, why)

    # -- its turn -----------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Handle the client's free share at once, and the rest when its turn comes."""
        now_s = self._proxy.now_s()
        gone_s, self._shared_s = now_s - self._shared_s, now_s
        self._spare = min(SPARE_MAX, self._spare + gone_s * SPARE_A_S)
        self._share = min(SHARE_MAX, self._share + gone_s * SHARE_A_S)
        share = 0.0 if _ITS_TURN in self._pauses else self._share
        if self.take(data, share):
            self.pause_reading(_ITS_TURN)
            self._proxy.turns.wait(self)
        self._share -= share - self._budget
        self._proxy.flush()

    def go_on(self, most: float) -> float:
        """Continue, because the client's turn has come; returns the work done."""
        if self._pauses != {_ITS_TURN} or self.closed:
            return 0.0
        if self.take(b"", most):
            self._proxy.turns.wait(self)
        else:
            self.resume_reading(_ITS_TURN)
        return most - self._budget

    def resume_reading(self, why: str) -> None:
        """Drop one reason to pause; bytes that are already here come first."""
        super().resume_reading(why)
        if self._pauses == {_ITS_TURN}:
            self._proxy.turns.wait(self)

    def spend(self, work: float) -> None:
        """Count work for something that belongs to no call."""
        self._budget -= work
        self._spare -= work
        if self._spare < 0:
            raise http2.Http2Error(http2.ENHANCE_YOUR_CALM, "too much that belongs to no call")

    # -- what the client sends ----------------------------------------------------------------

    def on_headers(self, stream: int, block: bytes, *, end: bool) -> None:
        """A call begins, or ends with trailers."""
        headers, work = self._headers_read.read(block)  # always: later blocks may refer to it
        call = self.calls.get(stream)
        if call is not None:
            self.spend(work)
            self._trailers(call, headers.block)
            return
        if stream <= self._last:
            self.spend(1 + work)
            return  # the end of a finished call
        if not stream & 1:
            raise http2.Http2Error(http2.PROTOCOL_ERROR, "a stream with an even number")
        self._last = stream
        if len(self.calls) >= CALLS_MAX or self._leaving:
            self.spend(1 + work)
            self.write(http2.reset(stream, http2.REFUSED_STREAM))
            return
        self._budget -= CALL + work
        call = self.calls[stream] = ProxiedCall(stream, headers, self._proxy.now_s(), ended=end)
        if call.method is Method.OTHER or end:
            self._wait(call)

    def _trailers(self, call: ProxiedCall, block: bytes) -> None:
        if call.ended:
            raise http2.Http2Error(http2.PROTOCOL_ERROR, "headers after the end of a call")
        call.ended, call.trailers = True, block
        if call.stage is Stage.READING:
            self._judge(call)
        elif call.via is not None:
            call.via.send_headers(call.via_number, block, end=True)

    def on_data(self, stream: int, data: bytes, *, end: bool) -> None:
        """A part of a call's message."""
        call = self.calls.get(stream)
        if call is None or call.ended:
            self.ignore(stream, len(data))
            return
        call.ended = end
        most = KEPT_MAX if self._proxy.kept_bytes < KEPT_OF_ALL else http2.FRAME_MAX
        if call.kept and self._kept_bytes + len(data) > most:
            self._let_go(call)
        if call.kept:
            call.data += data
            call.credited += len(data)
            self._keep(len(data))
            self.credit(stream, len(data))
        if call.stage is Stage.SENT:
            if call.via is not None:
                call.via.send_data(call.via_number, data, end=end)
            return
        if not call.kept:
            call.data += data  # bounded by the window: credited once forwarded
        if call.stage is Stage.READING and (end or is_whole(call.data) is not False):
            self._judge(call)

    def _keep(self, size: int) -> None:
        self._kept_bytes += size
        self._proxy.kept_bytes += size

    def _let_go(self, call: ProxiedCall) -> None:
        """Stop keeping a call that is too large: it passes unread and is never sent again."""
        call.kept = False
        self._keep(-len(call.data))
        if call.stage is Stage.READING:
            self._proxy.counts.unread += 1
            self._wait(call)

    def on_reset(self, stream: int, code: int) -> None:
        call = self.calls.get(stream)
        self.drop(stream)
        self.spend(1)
        if call is not None:
            self._forsake(call, code)

    def on_goaway(self, last_stream: int) -> None:
        """The client begins no new calls; open ones continue."""
        del last_stream
        self._leaving = True
        if not self.calls:
            self.close()

    # -- whether it may pass ------------------------------------------------------------------

    def _judge(self, call: ProxiedCall) -> None:
        """Judge a call: once its message is whole, and again when the list changes."""
        stage, due_s = self._proxy.admission.decide(call)
        if stage is call.stage:
            return
        if stage is Stage.WAITING:
            self._wait(call)
            return
        if call.via is not None:
            call.via.forsake(call.via_number, http2.CANCEL)
            call.via = None
        self._proxy.waits(self)
        call.stage, call.since_s, call.due_s = stage, self._proxy.now_s(), due_s
        if stage is Stage.REFUSED and due_s <= call.since_s:
            self._refuse(call)

    def _refuse(self, call: ProxiedCall) -> None:
        self._respond(call, PERMISSION_DENIED, self._proxy.admission.refused(call))

    def judge_again(self) -> None:
        for call in list(self.calls.values()):
            if call.replica is None or call.answered or call.stage is Stage.READING:
                continue
            if call.method is Method.QUORUM or call.stage is Stage.REFUSED:
                self._judge(call)

    # -- on to the Lighthouse -----------------------------------------------------------------

    def _wait(self, call: ProxiedCall) -> None:
        call.stage, call.since_s = Stage.WAITING, self._proxy.now_s()
        if not self.tell_newest(call) and not self._pass_on(call):
            self._proxy.waits(self)

    def _pass_on(self, call: ProxiedCall) -> bool:
        upstream = self._upstream
        if upstream is None or not upstream.takes:
            if self._dialing is None and not self.closed:
                self._dialing = asyncio.get_running_loop().create_task(self._dial())
            return False
        if call.method is Method.QUORUM:
            lighthouse = self._proxy.lighthouse
            if call.at_lighthouse or not lighthouse.admits() or not self._proxy.asks(call):
                return False
            if call.replica is not None:
                call.replica.sent = call
        call.stage, call.since_s = Stage.SENT, self._proxy.now_s()
        upstream.carry(call)
        if not call.kept:
            call.data.clear()
        return True

    async def _dial(self) -> None:
        try:
            upstream = await self._proxy.lighthouse.connect(self)
        finally:
            self._dialing = None
        if self.closed:
            upstream.close()
            return
        if not upstream.closed:
            self._upstream = self.counterpart = upstream
        self.advance()
        self._proxy.flush()

    def advance(self) -> None:
        """The Lighthouse is there: send what waits, in order of stream numbers."""
        for number in sorted(self.calls):
            call = self.calls[number]
            if call.stage is Stage.WAITING and not self.tell_newest(call):
                self._pass_on(call)

    def unanswered(
        self, upstream: Upstream, calls: Sequence[ProxiedCall], *, lost: bool = False
    ) -> None:
        """These calls get no answer from `upstream`; `lost`: it also closed the connection."""
        if self._upstream is upstream:
            self._upstream = self.counterpart = None
            self.resume_reading(http2.COUNTERPART_SLOW)  # from now on another one takes it
        if upstream.closed:
            self._proxy.left(upstream.transport)
            self._proxy.lighthouse.ended(upstream, self, lost=lost and not self.closed)
        for call in calls:
            if self.closed:
                self._finish(call)
            elif call.replied:
                self.answer_headers(call, ANSWER_ENDS, end=True)
            elif call.answered:
                self.answer_reset(call, http2.CANCEL)
            elif not call.kept or call.resent >= RESENT_MAX:
                self._respond(call, UNAVAILABLE, "lightkeeper: the Lighthouse went away")
            else:
                call.resent += 1
                call.reply_headers = None
                call.reply.clear()
                self._proxy.counts.resent += call.method is Method.QUORUM
                self._wait(call)

    def tick(self, now_s: float) -> bool:
        """Do what is due; returns whether anything waits."""
        for call in [call for call in self.calls.values() if call.stage in _NOT_SENT]:
            absence = self._proxy.lighthouse.absence()
            if call.deadline_s is not None and now_s >= call.deadline_s:
                self._respond(call, DEADLINE_EXCEEDED, f"{absence} until this call's deadline")
            elif call.stage is Stage.WAITING:
                passed = (
                    self.tell_newest(call) or self._pass_on(call) or call.method is Method.QUORUM
                )
                if not passed and now_s - call.since_s >= PATIENCE_S:
                    self._respond(call, UNAVAILABLE, absence)
            elif now_s >= call.due_s and call.stage is Stage.REFUSED:
                self._refuse(call)
            elif now_s >= call.due_s:
                self._proxy.admission.wave(call)
                self._judge(call)
        return any(call.stage in _NOT_SENT for call in self.calls.values())

    # -- answers ------------------------------------------------------------------------------

    def answer_headers(self, call: ProxiedCall, block: bytes, *, end: bool) -> None:
        """A quorum's answer begins with its message."""
        if call.method is Method.QUORUM and not end and not call.answered:
            call.reply_headers = block
            return
        self._begin_answer(call)
        if call.reply:  # an incomplete message, with nothing to follow
            self.send_data(call.number, bytes(call.reply), end=False)
            call.reply.clear()
        self.send_headers(call.number, block, end=end)
        if end:
            self._answered(call)

    def answer_data(self, call: ProxiedCall, data: bytes, *, end: bool) -> None:
        """A part of an answer; a quorum passes as a whole, see `quorum_ids`."""
        if call.method is Method.QUORUM and not call.replied:
            call.reply += data
            whole = is_whole(call.reply)
            if not end and whole is False and len(call.reply) < _REPLY_MAX:
                return
            data, call.replied = self._numbered(bytes(call.reply)), True
            call.reply.clear()
            if whole and call.via is not None:
                call.via.forget(call.via_number)
                self._begin_answer(call)
                self.send_data(call.number, data, end=False)
                self.send_headers(call.number, ANSWER_ENDS, end=True)
                self._answered(call)
                return
        self._begin_answer(call)
        self.send_data(call.number, data, end=end)
        if end:
            self._answered(call)

    def _numbered(self, message: bytes) -> bytes:
        """The message with our quorum id."""
        quorum_ids = self._proxy.quorum_ids
        before = quorum_ids.made
        message = quorum_ids.framed(message)
        if quorum_ids.made != before:
            self._proxy.formed(message)
        return message

    def tell_newest(self, call: ProxiedCall) -> bool:
        """Answer with the newest quorum if the call asks for it; returns whether."""
        quorum = self._proxy.quorum
        if call.answered or not quorum.answers(self, call):
            return False
        if self.calls.get(call.number) is not call or call.stage in _NOT_PASSED:
            return False
        self._proxy.counts.told_again += 1
        self.send_headers(call.number, ANSWER_BEGINS, end=False)
        self.send_data(call.number, quorum.message, end=False)
        self.send_headers(call.number, ANSWER_ENDS, end=True)
        self._told(call)
        self._forsake(call, http2.CANCEL)
        return True

    def _told(self, call: ProxiedCall) -> None:
        if call.replica is not None and self._proxy.quorum.answers(self, call):
            self._proxy.quorum.told[call.replica.replica_id] = self

    def _begin_answer(self, call: ProxiedCall) -> None:
        if call.answered:
            return
        call.answered = True
        if call.reply_headers is not None:
            self.send_headers(call.number, call.reply_headers, end=False)
        if call.replica is not None and call.method is Method.HEARTBEAT:
            call.replica.answered_s = call.since_s
            self._proxy.lighthouse.heard(call.replica)

    def _answered(self, call: ProxiedCall) -> None:
        self._proxy.served(self.transport)
        if call.replica is not None and call.method is Method.QUORUM:
            self._proxy.quorum.outdated.pop(call.replica.replica_id, None)
        self._spare += EARNED
        self._told(call)
        self._finish(call)

    def answer_reset(self, call: ProxiedCall, code: int) -> None:
        self.send_reset(call.number, code)
        self._finish(call)

    def _respond(self, call: ProxiedCall, status: int, message: str) -> None:
        """Answer in the Lighthouse's place: always a failure, with its reason."""
        self.send_headers(call.number, failure(status, message), end=True)
        if not call.ended:
            self.write(http2.reset(call.number, http2.NO_ERROR))
        self._spare += EARNED
        self._forsake(call, http2.CANCEL)

    def _forsake(self, call: ProxiedCall, code: int) -> None:
        if call.via is not None:
            call.via.forsake(call.via_number, code)
        self._finish(call)

    def _finish(self, call: ProxiedCall) -> None:
        if self.calls.pop(call.number, None) is None:
            return
        self._stream_credit.pop(call.number, None)  # left behind when a request never ended
        if call.kept:
            self._keep(-len(call.data))
        elif len(call.data) > call.credited:
            self.ignore(call.number, len(call.data) - call.credited)
        self._proxy.admission.over(call)
        if call.method is Method.QUORUM:
            self._asked_s = self._proxy.now_s()
        self._release()
        if self._leaving and not self.calls and not self._queued:
            self._proxy.flush()
            self.close()
        elif self._proxy.leaving:
            self.part(self._proxy.now_s())

    def part(self, now_s: float) -> None:
        """Send the client to the gate that took over, if this is the right moment.

        TorchFT loses a request that it is about to send when the connection ends, and a lost
        quorum request costs a second at least. So a client goes when it has nothing open, just
        after a quorum's answer, when its step begins; or, if steps are long, at any time within it.
        What it sends all the same is served; it closes the connection itself.
        """
        since_s = now_s - self._asked_s
        if self.calls or self._queued or self.closed or AT_ONCE_S < since_s < QUIET_S:
            return
        if self._parted_s is None:
            self._parted_s = now_s
            self.write(http2.goaway(http2.WINDOW_MAX, http2.NO_ERROR, "another gate took over"))
        elif now_s - self._parted_s >= QUIET_S:
            self.close()

    # -- flow control -------------------------------------------------------------------------

    def knows(self, stream: int) -> bool:
        return stream in self.calls

    def went_on(self, stream: int, size: int) -> None:
        call = self.calls.get(stream)
        if call is not None and call.via is not None:
            call.via.credit(call.via_number, size)
        elif self._upstream is not None:
            self._upstream.credit(0, size)


class FairTurns:
    """Clients that sent more than their share and wait for their turn."""

    def __init__(self, flush: Callable[[], None]) -> None:
        """`flush`: writes the gathered output at the end of a turn."""
        self._flush = flush
        self._waiting: OrderedDict[Downstream, int] = OrderedDict()
        self._unread = 0
        self._next: asyncio.Handle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, client: Downstream) -> None:
        """Queue a client behind all that already wait."""
        self.leave(client)
        unread = client.unread
        if self._unread + unread > UNREAD_MAX and unread > http2.FRAME_MAX:
            client.fail(http2.ENHANCE_YOUR_CALM, "too many clients send too much")
            return
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._turn)
        self._waiting[client] = unread
        self._unread += unread

    def leave(self, client: Downstream) -> None:
        self._unread -= self._waiting.pop(client, 0)

    def _turn(self) -> None:
        """Give each waiting client a slice, within the limit of one turn."""
        left = TURN
        while self._waiting and left > 0:
            client, unread = self._waiting.popitem(last=False)
            self._unread -= unread
            left -= 1 + client.go_on(SLICE)
        self._flush()
        self._next = asyncio.get_running_loop().call_soon(self._turn) if self._waiting else None
