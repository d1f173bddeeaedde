"""Open calls, the replica ids that make them, and whether a call may pass. Does no I/O."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Final

from lightkeeper.gate.denylist import AccessRefused, DenialScope, DenyList, SeenReplica
from lightkeeper.gate.http2 import Http2Connection
from lightkeeper.gate.messages import (
    HEARTBEAT_PATH,
    QUORUM_PATH,
    CallHeaders,
    read_heartbeat,
    read_quorum_request,
)
from lightkeeper.monitor.model.names import Host, ReplicaId, group_of_replica

log = logging.getLogger("lightkeeper.gate")

HOLD_S: Final = 10.0
"""How long a quorum request of an unknown incarnation waits for a newer list."""
REFUSE_AFTER_S: Final = 1.0
"""A refused heartbeat's answer is delayed: a manager dials again at once after a failure."""
SILENT_S: Final = 120.0
"""Silence after which a replica id is forgotten: TorchFT's is 5 s, a restarted one has a new id."""
REPLICAS_MAX: Final = 20_000
"""Most replica ids remembered; calls of any others pass unchecked."""
_HEARTBEAT_BYTES: Final = 1100
"""Of a heartbeat that is read once: a manager's are alike."""
_read_short_heartbeat: Final = lru_cache(maxsize=20_000)(read_heartbeat)


@dataclass(slots=True)
class Replica:
    """What one replica id sent. Times are on the steady clock."""

    replica_id: ReplicaId
    heard_s: float
    heartbeat_s: float | None = None
    answered_s: float | None = None
    """When the last answered heartbeat was sent to the Lighthouse."""
    step: int | None = None
    """In its last quorum request."""
    host: Host | None = None
    asking: ProxiedCall | None = None
    """Its newest quorum request, while that is open."""
    sent: ProxiedCall | None = None
    """Its open quorum request that was sent to the Lighthouse last."""
    refusal: AccessRefused | None = None
    list_version: int = -1
    """Version of the deny list that `refusal` is based on."""

    def seen(self, now_s: float) -> SeenReplica:
        beat_s, asking = self.heartbeat_s, self.asking
        return SeenReplica(
            replica_id=self.replica_id,
            group=group_of_replica(self.replica_id),
            heartbeat_age_s=None if beat_s is None else round(now_s - beat_s, 3),
            asking_for_s=None if asking is None else round(now_s - asking.began_s, 3),
            step=self.step,
            refused_for=None if self.refusal is None else self.refusal.reason,
        )


class Method(Enum):
    """What the gate does with a call."""

    HEARTBEAT = HEARTBEAT_PATH
    QUORUM = QUORUM_PATH
    OTHER = ""
    """Passed on unread."""


class Stage(Enum):
    READING = "reading"
    """Its message is incomplete."""
    WAITING = "waiting"
    """It may pass; the Lighthouse is away or not ready for it."""
    REFUSED = "refused"
    """It may not pass; the answer is due at `due_s`."""
    HELD = "held"
    """The list has not decided yet; the call passes at `due_s`."""
    SENT = "sent"
    """The Lighthouse has it."""


_METHODS: Final = {HEARTBEAT_PATH: Method.HEARTBEAT, QUORUM_PATH: Method.QUORUM}


@dataclass(slots=True)
class ProxiedCall:
    """One open call. Times are on the steady clock."""

    number: int
    """Stream number on the client's connection."""
    headers: CallHeaders
    began_s: float
    ended: bool
    """True if the client has sent all of its request."""
    method: Method = Method.OTHER
    stage: Stage = Stage.READING
    data: bytearray = field(default_factory=bytearray)
    """What the client sent: all of it if `kept`, else only what is not forwarded yet."""
    kept: bool = True
    credited: int = 0
    """Bytes already credited to the client but not forwarded yet."""
    trailers: bytes | None = None
    resent: int = 0
    via: Http2Connection | None = None
    """The connection that carries it to the Lighthouse, as stream `via_number`."""
    via_number: int = 0
    replica: Replica | None = None
    since_s: float = 0.0
    """When the current stage began."""
    due_s: float = 0.0
    reply_headers: bytes | None = None
    """For a quorum request: the headers of the answer."""
    reply: bytearray = field(default_factory=bytearray)
    """For a quorum request: the answer's message so far."""
    replied: bool = False
    """True if `reply` was passed on: the rest passes as it comes."""
    member: bytes = b""
    """For a quorum request: `QuorumRequest.member`."""
    answered: bool = False
    """True if the client has a part of the answer: then the call is never sent again."""

    def __post_init__(self) -> None:
        self.method = _METHODS.get(self.headers.path, Method.OTHER)
        self.kept = self.method is not Method.OTHER

    @property
    def deadline_s(self) -> float | None:
        timeout_s = self.headers.timeout_s
        return None if timeout_s is None else self.began_s + timeout_s

    @property
    def at_lighthouse(self) -> bool:
        """True if the Lighthouse has this very quorum request, by whichever connection."""
        sent = None if self.replica is None else self.replica.sent
        return sent is not None and sent.via is not None and sent.member == self.member


def _counted(text: str) -> int:
    counter: int = field(default=0, metadata={"help": text})
    return counter


@dataclass
class GateCounts:
    """Counters since the start, with the words that `/metrics` has for them."""

    heartbeats: int = _counted("Heartbeats that came in")
    quorum_requests: int = _counted("Quorum requests that came in")
    unread: int = _counted("Calls passed on because they could not be read")
    waved: int = _counted("Requests let through because no newer deny list arrived in time")
    upstream_retries: int = _counted("Connections to the Lighthouse that failed")
    resent: int = _counted("Quorum requests sent again to a Lighthouse that came back")
    told_again: int = _counted(
        "Quorums answered again to members whose answer was lost with a Lighthouse or worker"
    )
    bad_clients: int = _counted("Clients disconnected for violating HTTP/2")
    refused: dict[DenialScope, int] = field(default_factory=lambda: dict.fromkeys(DenialScope, 0))


class AdmissionControl:
    """Finds out who calls and whether the call may pass. All connections of a gate share one."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.denylist = DenyList()
        self.counts = GateCounts()
        self.replicas: dict[ReplicaId, Replica] = {}
        """Every replica id heard from recently."""
        self._now_s = now_s

    def decide(self, call: ProxiedCall) -> tuple[Stage, float]:
        """The next stage of a call whose message is whole, and when it is due.

        A call that cannot be read passes.
        """
        now_s = self._now_s()
        replica = call.replica
        if replica is None:
            replica = call.replica = self._identify(call, now_s)
            if replica is None:
                self.counts.unread += 1
                return Stage.WAITING, now_s
        if replica.list_version != self.denylist.version:
            replica.refusal = self.denylist.refusal(replica.replica_id, replica.host)
            replica.list_version = self.denylist.version
        if replica.refusal is None:
            return (Stage.SENT if call.stage is Stage.SENT else Stage.WAITING), now_s
        if call.method is not Method.QUORUM:
            return Stage.REFUSED, call.began_s + REFUSE_AFTER_S
        if replica.refusal.held:
            return Stage.HELD, max(call.began_s, now_s) + HOLD_S
        return Stage.REFUSED, now_s

    def _identify(self, call: ProxiedCall, now_s: float) -> Replica | None:
        message = bytes(call.data)
        if call.method is Method.HEARTBEAT:
            return self._of_heartbeat(message, now_s)
        self.counts.quorum_requests += 1
        request = read_quorum_request(message)
        replica = None if request is None else self._replica(request.replica_id, now_s)
        if request is None or replica is None:
            return None
        if replica.host != request.host:
            replica.host, replica.list_version = request.host, -1
        replica.step, call.member = request.step, request.member
        replica.asking = call
        return replica

    def _of_heartbeat(self, message: bytes, now_s: float) -> Replica | None:
        self.counts.heartbeats += 1
        short = len(message) <= _HEARTBEAT_BYTES
        replica_id = _read_short_heartbeat(message) if short else read_heartbeat(message)
        replica = None if replica_id is None else self._replica(replica_id, now_s)
        if replica is not None:
            replica.heartbeat_s = now_s
        return replica

    def _replica(self, replica_id: ReplicaId, now_s: float) -> Replica | None:
        """The replica with this id, added if it is new; None: there are too many."""
        replica = self.replicas.get(replica_id)
        if replica is None and len(self.replicas) < REPLICAS_MAX:
            replica = self.replicas[replica_id] = Replica(replica_id, now_s)
        if replica is not None:
            replica.heard_s = now_s
        return replica

    def wave(self, call: ProxiedCall) -> None:
        """Let a held call pass: no list decided in time on its incarnation."""
        if call.replica is not None:
            log.warning("%s was held and nobody said: it passes", call.replica.replica_id)
            self.counts.waved += 1
            self.denylist.wave(call.replica.replica_id)

    def refused(self, call: ProxiedCall) -> str:
        if call.replica is None or call.replica.refusal is None:
            return ""
        self.counts.refused[call.replica.refusal.scope] += 1
        return call.replica.refusal.reason

    def over(self, call: ProxiedCall) -> None:
        replica = call.replica
        if replica is not None and replica.asking is call:
            replica.asking = None
        if replica is not None and replica.sent is call:
            replica.sent = None

    def forget(self) -> None:
        now_s = self._now_s()
        for replica_id, replica in list(self.replicas.items()):
            if replica.asking is None and now_s - replica.heard_s > SILENT_S:
                del self.replicas[replica_id]
