"""One gate follows another, and no request is lost: the new one takes over before the old leaves.

Theory of operation. The new gate asks the old one, at its admin port, for all that it knows: whom
it refuses, how it numbers quorums, the newest quorum and who still waits for it. In the same turn
of its loop the old one stops to judge and to number, ends its connections to the Lighthouse, and
passes every call to the new one as if that were the Lighthouse: those that are open are sent again
there, those that come follow. So two gates may be up for as long as it takes, whichever of them a
group meets, and only one of them ever judges, numbers and speaks to the Lighthouse.

The old one ends each client's connection when that costs nothing (`proxy.Downstream.part`), and
still accepts new ones: a Service or a balancer may send it clients for a while, and a dial that
nobody answers silences a manager's heartbeats for up to a minute. On one host both listen at the
same port; there the old one stops to listen when it has handed over, so that all who come meet the
new one. It leaves when nobody has been connected for a while.

A successor that goes away before the old one has left is no loss: the old one takes its list back,
and numbers above the highest that it has seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Annotated, Any, Final

import msgspec

from lightkeeper.gate.denylist import DENIALS_MAX, Denial, GateView, wire_json
from lightkeeper.gate.listener import GateOptions, resolve
from lightkeeper.gate.proxy import TICK_S, NewestQuorum, Proxy
from lightkeeper.gate.quorum_ids import QuorumIds, members_of
from lightkeeper.monitor.model.names import ReplicaId
from lightkeeper.monitor.model.plain import from_plain, readable

log = logging.getLogger("lightkeeper.gate")

_ANSWER_MOST: Final = 64 << 20
"""More than the longest list that a gate holds and a quorum of all its clients."""
LEAVE_S: Final = 5.0
"""A gate that was followed leaves when nobody has been connected for this long."""
LONGEST_S: Final = 600.0
"""How long it stays on the same host for clients that do not go."""
LOST_S: Final = 3.0
"""A successor that is away for this long is not waited for."""
_DIAL_S: Final = 3.0
_NAMES_S: Final = 10.0
"""How long names are waited for: a Service's come with its first pod."""
_AGAIN_S: Final = 0.25
_SILENT_S: Final = 10.0
"""A gate that accepts a connection and does not answer for this long is stuck: do not wait."""


@readable
@dataclass(frozen=True, slots=True)
class Handover:
    """What a gate must know to continue where another ends."""

    denied: Annotated[list[Denial], msgspec.Meta(max_length=DENIALS_MAX)]
    quorum_ids: QuorumIds
    newest: bytes
    """The newest quorum's answer."""
    owed: list[ReplicaId]
    """Its members that have not got it yet."""


@readable
@dataclass(frozen=True, slots=True)
class Successor:
    """The gate that takes over."""

    host: str
    """Where it is reached if it listens at all its addresses."""
    bind: tuple[str, int]
    admin: tuple[str, int]
    same_host: bool

    def reached(self, listener: tuple[str, int]) -> tuple[str, int]:
        """Where it is reached that listens at this address."""
        host, port = listener
        return (self.host if ip_address(host).is_unspecified else host), port


def handover(proxy: Proxy) -> Handover:
    quorum = proxy.quorum
    owed = [ReplicaId(name) for name in quorum.members if name not in quorum.told]
    return Handover([*proxy.denylist.denials], proxy.quorum_ids, quorum.message, owed)


def go_on(proxy: Proxy, before: Handover) -> None:
    """Continue where another gate ends."""
    proxy.quorum_ids = before.quorum_ids
    members = members_of(before.newest)
    owed: dict[str, bytes] = {name: members[name] for name in before.owed if name in members}
    proxy.quorum = NewestQuorum(before.newest, owed)
    proxy.deny(before.denied)
    proxy.lighthouse.resume()


# -- the new one -------------------------------------------------------------------------------


class PredecessorError(Exception):
    """The gate before does not hand over; the message says why."""


class Predecessor:
    """The gate that serves now."""

    def __init__(self, connection: http.client.HTTPConnection, where: str) -> None:
        self._connection = connection
        self._where = where

    @classmethod
    def find(cls, options: GateOptions) -> Predecessor | None:
        """The first gate that answers, at any of the addresses; None: there is none to follow.

        Raises:
            PredecessorError: its name cannot be resolved now, it serves another Lighthouse, or it
                reaches the Lighthouse and we do not.
        """
        host, port = options.take_over
        ours = f"http://{options.lighthouse[0]}:{options.lighthouse[1]}"
        for *_, address in _resolved(host, port):
            where = f"{address[0]}:{port}"
            connection = http.client.HTTPConnection(str(address[0]), port, timeout=_DIAL_S)
            predecessor = cls(connection, where)
            try:
                connection.connect()
                connection.sock.settimeout(_SILENT_S)
                view = from_plain(GateView, predecessor._ask("GET", "/v1/gate", {}))
            except (OSError, http.client.HTTPException, ValueError, PredecessorError):
                continue
            if view.lighthouse != ours:
                raise PredecessorError(f"the gate at {where} is for {view.lighthouse}, not {ours}")
            if view.lighthouse_up:
                _try(options.lighthouse)
            return predecessor
        return None

    def take_over(self, options: GateOptions) -> Handover:
        """Returns what it knew: from now on it passes its calls to us, so we must be listening.

        Raises:
            PredecessorError: it does not hand over.
        """
        sock = self._connection.sock
        ours, theirs = sock.getsockname()[0], sock.getpeername()[0]
        us = Successor(
            ours,
            bind=resolve(*options.bind)[1][:2],
            admin=resolve(*options.admin)[1][:2],
            same_host=ours == theirs,
        )
        token = {"Authorization": f"Bearer {options.token}"} if options.token else {}
        try:
            state = self._ask("POST", "/v1/gate/successor", token, json.dumps(wire_json(us)))
            return from_plain(Handover, state)
        except (OSError, http.client.HTTPException, ValueError) as exc:
            raise PredecessorError(f"the gate at {self._where} does not hand over: {exc}") from exc

    def _ask(self, method: str, path: str, headers: dict[str, str], body: str = "") -> object:
        self._connection.request(method, path, body=body, headers=headers)
        answer = self._connection.getresponse()
        said = answer.read(_ANSWER_MOST)
        if answer.status != 200:
            text = said.decode(errors="replace")[:200]
            raise PredecessorError(f"the gate at {self._where} says {answer.status}: {text}")
        return json.loads(said)


def _resolved(host: str, port: int) -> Sequence[tuple[Any, ...]]:
    """All addresses; empty: there is no such name. A gate that ends instead of waiting for names
    is started again by Kubernetes later and later, and so is one that is killed after it.
    """
    until_s = time.monotonic() + _NAMES_S
    while True:
        try:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except socket.gaierror as exc:
            if exc.errno != socket.EAI_AGAIN:
                return ()
            if time.monotonic() > until_s:  # it may be there: two must not serve unconnected
                raise PredecessorError(f"cannot resolve {host}: {exc.strerror}") from exc
            time.sleep(_AGAIN_S)


def _try(lighthouse: tuple[str, int]) -> None:
    try:
        socket.create_connection(lighthouse, timeout=_DIAL_S).close()
    except OSError as exc:
        raise PredecessorError(f"we do not reach the Lighthouse: {exc}") from exc


# -- the old one -------------------------------------------------------------------------------


class Overlap:
    """What becomes of a gate when another one comes, or when it must end."""

    successor: Successor | None = None

    def __init__(
        self, proxy: Proxy, options: GateOptions, stop_listening: Callable[[], None]
    ) -> None:
        self._proxy = proxy
        self._options = options
        self._bind = resolve(*options.bind)[1][:2]
        self._stop_listening = stop_listening
        self._denied: tuple[Denial, ...] = ()
        self._up_s = self._busy_s = proxy.now_s()
        self._end_s: float | None = None

    @property
    def same_port(self) -> bool:
        """True if a client that connects to our address from now on meets the successor."""
        to = self.successor
        return to is not None and to.same_host and to.bind == self._bind

    def hand_over(self, to: Successor) -> Handover:
        """Pass every call to the gate that takes over; returns what it must know."""
        proxy = self._proxy
        state = handover(proxy)
        log.warning("the gate at %s:%d has taken over", *to.reached(to.bind))
        self.successor, self._denied = to, proxy.denylist.denials
        if self.same_port:
            self._stop_listening()
        proxy.quorum_ids = QuorumIds(highest=proxy.quorum_ids.highest)
        proxy.lighthouse.move(*to.reached(to.bind))
        proxy.deny(())
        proxy.flush()
        return state

    def take_back(self) -> None:
        """The successor is gone, and this gate is not: serve as before."""
        proxy = self._proxy
        log.warning("the gate that took over is gone: this one serves again")
        self.successor = None
        proxy.quorum_ids = QuorumIds(floor=proxy.quorum_ids.highest)
        proxy.lighthouse.move(*self._options.lighthouse)
        proxy.deny(self._denied)

    async def until_gone(self, stop: asyncio.Event) -> None:
        """Serve until `stop`, and then as long as a client needs it, within the grace."""
        while not self.gone(stopping=stop.is_set()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await (asyncio.Event() if stop.is_set() else stop).wait()

    def gone(self, *, stopping: bool) -> bool:
        """Do what is due; returns whether nobody needs this gate any longer."""
        proxy, now_s = self._proxy, self._proxy.now_s()
        if proxy.clients:
            self._busy_s = now_s
        if self.successor is None or proxy.lighthouse.up is not False:
            self._up_s = now_s
        elif not self.same_port and now_s - self._up_s >= LOST_S:
            self.take_back()
        followed = self.successor is not None
        proxy.leaving = followed and (stopping or self.same_port)
        if not stopping and not self.same_port:
            return False
        most_s = self._options.grace_s if stopping else LONGEST_S
        self._end_s = min(self._end_s or now_s + most_s, now_s + most_s)
        alone_s = LEAVE_S if followed and not self.same_port else 0.0
        return now_s >= self._end_s or now_s - self._busy_s > alone_s
