"""Keeps the gate's sockets and open requests, so that no client loses them when a process dies.

Theory of operation. TorchFT asks for a quorum once; if the connection breaks before the answer,
every rank waits out its timeout and exits, whatever TORCHFT_QUORUM_RETRIES says. So the process
that reads and writes (the worker) is not the one that keeps the connections. Its supervisor holds a
duplicate of each socket and the bytes of each open quorum request. It reads nothing from the
network, so little can kill it. When the worker dies or falls silent, a spare worker that has
already started gets all of this.

When the supervisor itself dies, the worker keeps serving, so that training continues. The next
`lightkeeper gate` on the same address finds it by a name in the abstract namespace of Unix sockets,
which leaves no file behind, and becomes its supervisor: it receives the whole state, then asks the
worker to end and starts another, as after the end of any worker. The old worker serves until then
and reads nothing afterwards, so two processes never serve one port with two lists. Requests are
lost only when supervisor and worker die together.

A worker may also die when one group has a quorum's answer and another does not. So the supervisor
gets the first answer of each quorum before any group, and the next worker gives it to the members
that asked before (`proxy.NewestQuorum`).

A new worker has the sockets and the quorum requests that were open on them. For each client it has
the number of the last call that its predecessor handled, and all that the client sent since: what
was already read is in shared memory, the rest in the kernel. Quorum requests are sent again. Other
calls up to that number are reset, because a manager waits for a heartbeat's answer without a limit.
Headers can be read without earlier ones, because the gate's settings forbid a header table. No
GOAWAY is sent: TorchFT's client cancels a request that it begins while one arrives (seen in 1 of 5
restarts), and never asks again.

Each message is one datagram on a Unix socket. A client's socket travels with its `CLIENT` message.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import itertools
import json
import logging
import mmap
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from lightkeeper.monitor.gate import http2
from lightkeeper.monitor.gate.calls import Method, ProxiedCall
from lightkeeper.monitor.gate.denylist import Denial, denials_json, parse_denials
from lightkeeper.monitor.gate.listener import GateOptions, NewClient, raise_file_limit
from lightkeeper.monitor.gate.messages import CallHeaders, is_whole
from lightkeeper.monitor.gate.proxy import Downstream, NewestQuorum, Proxy, Successor
from lightkeeper.monitor.gate.quorum_ids import QuorumIds, members_of
from lightkeeper.monitor.model.plain import from_plain, to_plain
from lightkeeper.worker_server.plain_text import log_to_stderr

log = logging.getLogger("lightkeeper.gate")

SILENT_S: Final = 10.0
"""A worker reports every second that it is alive; a stopped or stuck one is replaced."""
ALONE_S: Final = 3600.0
"""A worker without a supervisor ends after this long without any client: a fleet restart takes
minutes."""
SPARE_PAUSE_S: Final = 10.0
"""Pause between two starts of a spare that keeps dying: it must not use up a core."""
_ALIVE_S: Final = 1.0
_READY_S: Final = 30.0
_SHORT_S: Final = 0.5
"""If a worker lived for less than this, the next one starts after the same pause."""
_GRACE_S: Final = 5.0
_LOOK_S: Final = 1.0
_REMIND_S: Final = 300.0
_TELL_S: Final = 2.0
"""How long a handover may take: the supervisor only has to read, and our clients wait."""
_DRAIN_S: Final = 1.0
"""How long an ending worker waits for clients that are slow to read their answers."""
_DRAIN_PAUSE_S: Final = 0.002
_EARLIER: Final = 40
"""Calls before the last that may still be open: a manager has one open heartbeat."""
_UNREAD_MAX: Final = 1024 * 1024
_HANDED_OVER: Final = "another worker reads on"


# -- what travels ------------------------------------------------------------------------------

DATAGRAM_MAX: Final = 192 * 1024
"""Most bytes of a datagram: below Linux's default limit (wmem_default, 208 KiB)."""
_REQUEST_MAX: Final = 128 * 1024
"""A larger quorum request is not kept: it dies with its worker, as without a supervisor."""
_PIECE: Final = 128 * 1024
_HEAD: Final = struct.Struct(">cQL")  # kind, client's key, call number
_NAMES: Final = "lightkeeper-gate/6/"
"""Begins the name under which a worker waits; the number is the protocol version."""

OPTIONS, LISTENERS, CLIENT, ASKED, FORMED, OVER, LEFT, DENIED, NUMBERS, GO, ALIVE, ALL, END = (
    b"O", b"L", b"C", b"Q", b"F", b"A", b"X", b"D", b"N", b"G", b".", b"E", b"S",
)  # fmt: skip


def datagram(kind: bytes, key: int = 0, number: int = 0, body: bytes = b"") -> bytes:
    return _HEAD.pack(kind, key, number) + body


def quorum_datagrams(message: bytes) -> list[bytes]:
    """A quorum's answer, in as many pieces as needed; each says how many follow."""
    pieces = [message[at : at + _PIECE] for at in range(0, len(message), _PIECE)] or [b""]
    return [
        datagram(FORMED, number=following, body=piece)
        for following, piece in zip(reversed(range(len(pieces))), pieces, strict=True)
    ]


def send(channel: socket.socket, data: bytes, *files: int) -> bool:
    """Send one datagram; False: the other end is gone or too slow."""
    rights: list[Any] = []
    if files:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
    try:
        channel.sendmsg([data], rights)
    except OSError:
        return False
    return True


def receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """One datagram and its files; empty when the other end is gone."""
    try:
        data, rights, _, _ = channel.recvmsg(DATAGRAM_MAX, socket.CMSG_SPACE(8 * 4))
    except ConnectionResetError:  # the other end was killed before it read all of ours
        return b"", []
    files = array.array("i")
    for level, kind, body in rights:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            files.frombytes(body[: len(body) - len(body) % files.itemsize])
    return data, list(files)


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a channel that keeps datagrams whole."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        _widen(end)
    return ends


def _widen(channel: socket.socket) -> None:
    """Room for a burst: 1,000 groups ask within a moment."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        with contextlib.suppress(OSError):
            channel.setsockopt(socket.SOL_SOCKET, option, 8 * 1024 * 1024)


def _pack_denials(denials: Sequence[Denial]) -> bytes:
    """Empty if too long: no list, which the monitor replaces, is better than an outdated one."""
    body = json.dumps(denials_json(denials)).encode()
    return body if len(body) + _HEAD.size < DATAGRAM_MAX else b""


def _pack_quorum_ids(quorum_ids: QuorumIds) -> bytes:
    return json.dumps(to_plain(quorum_ids)).encode()


def _pack_request(call: ProxiedCall) -> bytes:
    """A quorum request; empty if too long. Times are on the system's steady clock, which all
    processes share.
    """
    headers = call.headers
    head = [headers.path, headers.timeout_s, call.began_s, len(headers.block)]
    body = json.dumps(head).encode() + b"\n" + headers.block + call.data
    return body if len(body) <= _REQUEST_MAX else b""


def _unpack_request(number: int, body: bytes) -> ProxiedCall:
    """Inverse of `_pack_request`, unchecked: both ends are ours."""
    head, _, block_and_data = body.partition(b"\n")
    path, timeout_s, began_s, size = json.loads(head)
    headers, data = CallHeaders(path, timeout_s, block_and_data[:size]), block_and_data[size:]
    ended = is_whole(data) is not False  # its end may have come after it was sent here
    call = ProxiedCall(number, headers, began_s, ended=ended)
    call.data += data
    return call


class ReadPosition(NamedTuple):
    """How far a worker has read a client, and how much the client accepts."""

    number: int = 0
    """Number of the last handled call."""
    window: int = 0
    """Send window of the connection, in bytes."""
    initial_window: int = 0
    """Send window of a new stream, in bytes."""
    unread: bytes | None = b""
    """Bytes received after that call, at most `ReadPositions.UNREAD_MAX`; None: there are more, or
    they follow part of a header block, so no other worker can continue."""


class ReadPositions:
    """Memory that outlives a worker: the `ReadPosition` of each connection.

    Input is written here before it is handled, so a worker may die at any moment. Writing costs
    about a microsecond.
    """

    SLOTS: Final = 16_384
    UNREAD_MAX: Final = 1008
    """Bytes; a heartbeat and a quorum request together take 300."""
    _HEAD: Final = struct.Struct("=IiIi")
    _SIZE: Final = _HEAD.size + UNREAD_MAX

    def __init__(self, file: int | None = None) -> None:
        """`file`: the memory of another process; None: make new, empty memory."""
        self.file = os.memfd_create("lightkeeper-gate") if file is None else file
        if file is None:
            os.ftruncate(self.file, self.SLOTS * self._SIZE)
        self._memory = mmap.mmap(self.file, self.SLOTS * self._SIZE)

    def write(self, key: int, position: ReadPosition) -> None:
        """Write the position of a connection. The lower 16 bits of its key are its slot."""
        slot, unread = key & 0xFFFF, position.unread
        if slot >= self.SLOTS:
            return
        at, size = slot * self._SIZE, -1
        if unread is not None:
            size = len(unread)
            begin = at + self._HEAD.size
            self._memory[begin : begin + size] = unread
        self._HEAD.pack_into(self._memory, at, *position[:3], size)

    def read(self, key: int) -> ReadPosition:
        if (slot := key & 0xFFFF) >= self.SLOTS:
            return ReadPosition()
        at = slot * self._SIZE
        number, window, initial, size = self._HEAD.unpack_from(self._memory, at)
        begin = at + self._HEAD.size
        unread = None if size < 0 else self._memory[begin : begin + size]
        return ReadPosition(number, window, initial, unread)


@dataclass
class SharedState:
    """What outlives a worker: the supervisor holds it, and the next worker begins with it."""

    listeners: list[socket.socket] = field(default_factory=list)
    positions: ReadPositions = field(default_factory=ReadPositions)
    denied: bytes = b""
    quorum_ids: bytes = b""
    """The `QuorumIds`, as JSON."""
    clients: dict[int, int] = field(default_factory=dict)
    """Key -> duplicate of the client's socket."""
    asked: dict[int, dict[int, bytes]] = field(default_factory=dict)
    """Key -> call number -> quorum request."""
    formed: bytes = b""
    """The newest quorum's answer."""
    asked_before: set[tuple[int, int]] = field(default_factory=set)
    """Key and call number of each request that was open when that answer came."""
    _pieces: bytes = b""
    """The pieces so far of the next quorum's answer."""

    def note(self, data: bytes, files: list[int]) -> None:
        kind, key, number = _HEAD.unpack_from(data)
        body = data[_HEAD.size :]
        if kind == LISTENERS and not self.listeners:
            *listeners, positions = files
            self.listeners = [socket.socket(fileno=file) for file in listeners]
            os.close(self.positions.file)
            self.positions, files = ReadPositions(positions), []
        elif kind == CLIENT and files:
            self._forget(key)
            self.clients[key] = files.pop()
        elif kind == ASKED:
            self.asked.setdefault(key, {})[number] = body
        elif kind == FORMED:
            self._note_quorum(body, following=number)
        elif kind == OVER:
            self.asked.get(key, {}).pop(number, None)
            self.asked_before.discard((key, number))
        elif kind == LEFT:
            self._forget(key)
        elif kind == DENIED:
            self.denied = body
        elif kind == NUMBERS:
            self.quorum_ids = body
        for file in files:
            os.close(file)

    def _note_quorum(self, piece: bytes, *, following: int) -> None:
        self._pieces += piece
        if following == 0:
            self.formed, self._pieces = self._pieces, b""
            self.asked_before = {(key, number) for key in self.asked for number in self.asked[key]}

    def _forget(self, key: int) -> None:
        self.asked.pop(key, None)
        if (file := self.clients.pop(key, None)) is not None:
            os.close(file)

    def datagrams(self) -> Iterator[tuple[bytes, Sequence[int]]]:
        """The whole state, for another process to `note`; each datagram with its files."""
        listeners = [listener.fileno() for listener in self.listeners]
        yield datagram(LISTENERS), [*listeners, self.positions.file]
        yield datagram(DENIED, body=self.denied), ()
        yield datagram(NUMBERS, body=self.quorum_ids), ()
        for key, file in self.clients.items():
            yield datagram(CLIENT, key), [file]
        before: list[bytes] = []
        since: list[bytes] = []
        for key, requests in self.asked.items():
            for number, body in requests.items():
                asked = before if (key, number) in self.asked_before else since
                asked.append(datagram(ASKED, key, number, body))
        for data in (*before, *quorum_datagrams(self.formed), *since):
            yield data, ()

    def open_requests(self, key: int) -> list[ProxiedCall]:
        """A client's open requests that the last worker had handled; others are read again."""
        position, calls = self.positions.read(key), []
        for number, body in self.asked.get(key, {}).items():
            if number <= position.number or not position.unread:
                calls.append(_unpack_request(number, body))
                calls[-1].formed = (key, number) in self.asked_before
        return calls

    def close(self) -> None:
        """Close all files."""
        for listener in self.listeners:
            listener.close()
        for file in [*self.clients.values(), self.positions.file]:
            os.close(file)


# -- the worker --------------------------------------------------------------------------------


class SupervisorLink(Successor):
    """Reports a worker's connections and their quorum requests to its supervisor.

    Never blocks: if the supervisor does not keep up, a report is dropped and counted.
    """

    def __init__(
        self,
        proxy: Proxy,
        channel: socket.socket,
        listeners: Sequence[socket.socket],
        positions: ReadPositions,
        inherited: Sequence[int] = (),
        *,
        alone_s: float = ALONE_S,
    ) -> None:
        """`inherited`: keys that are in use already."""
        channel.setblocking(False)
        self.kept = True
        self.positions = positions
        self._proxy = proxy
        self._channel: socket.socket | None = channel
        self._listeners = listeners
        self._alone_s = alone_s
        self._highest: int | None = None
        """Highest quorum id that the supervisor has."""
        self._serials = itertools.count(time.monotonic_ns() & 0xFFFFFFFFFF)
        used = {key & 0xFFFF for key in inherited}
        self._slots = [slot for slot in range(ReadPositions.SLOTS) if slot not in used]

    # -- reports to the supervisor --------------------------------------------------------------

    def came(self, transport: asyncio.Transport) -> int:
        """A client has connected; returns its key."""
        slot = self._slots.pop() if self._slots else 0xFFFF
        key = next(self._serials) << 16 | slot
        self.positions.write(key, ReadPosition())
        connection = transport.get_extra_info("socket")
        if connection is not None:
            self._send(datagram(CLIENT, key), connection.fileno())
        return key

    def left(self, key: int) -> None:
        if key & 0xFFFF < ReadPositions.SLOTS:
            self._slots.append(key & 0xFFFF)
        self._send(datagram(LEFT, key))

    def read(self, client: Downstream, more: bytes = b"") -> None:
        """Store where another worker would continue; unread bytes only if they fit."""
        fits = client.unread + len(more) <= ReadPositions.UNREAD_MAX
        rest = client.rest if fits else None
        unread = None if rest is None else rest + more
        window, initial = max(0, client.send_window), client.initial_window
        self.positions.write(client.key, ReadPosition(client.last, window, initial, unread))

    def asked(self, client: Downstream, call: ProxiedCall) -> None:
        if body := _pack_request(call):
            self._send(datagram(ASKED, client.key, call.number, body))

    def over(self, client: Downstream, call: ProxiedCall) -> None:
        self._send(datagram(OVER, client.key, call.number))

    def denied(self, denials: Sequence[Denial]) -> None:
        body = _pack_denials(denials)
        self.missed += not body
        self._send(datagram(DENIED, body=body))

    def formed(self, quorum_ids: QuorumIds, message: bytes) -> None:
        """The first group is about to get a new quorum."""
        if quorum_ids.highest != self._highest:
            self._highest = quorum_ids.highest
            self._send(datagram(NUMBERS, body=_pack_quorum_ids(quorum_ids)))
        for data in quorum_datagrams(message):
            self._send(data)

    def _send(self, data: bytes, *files: int) -> None:
        if self._channel is not None:
            self.missed += not send(self._channel, data, *files)

    # -- with a supervisor, and without ---------------------------------------------------------

    async def serve(self) -> None:
        """Report to a supervisor, or wait for one, as long as the worker lives."""
        while True:
            await self._until_alone()
            self.kept = False
            try:
                await self._until_found()
            except OSError as exc:
                log.warning("nobody can take over from this worker: %s", exc)
                await asyncio.sleep(_LOOK_S)

    async def _until_alone(self) -> None:
        """Report every second that we live; end when asked to."""
        while self._channel is not None:
            self._send(datagram(ALIVE))
            data = b""
            try:
                async with asyncio.timeout(_ALIVE_S):
                    data = await asyncio.get_running_loop().sock_recv(self._channel, 4096)
            except TimeoutError:
                continue
            except OSError:
                pass
            if data[:1] == END:
                await self._end()
            if not data:
                self._channel.close()
                self._channel = None

    async def _until_found(self) -> None:
        """Wait for the next gate; end after `alone_s` without a client.

        Raises:
            OSError: no gate can find us.
        """
        loop = asyncio.get_running_loop()
        seen_s, reminded_s = time.monotonic(), -_REMIND_S
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.setblocking(False)
            listener.bind(name_of(self._listeners[0].getsockname(), os.getpid()))
            listener.listen(1)
            while self._channel is None:
                now_s = time.monotonic()
                seen_s = now_s if self._proxy.clients else seen_s
                if now_s - seen_s >= self._alone_s:
                    log.warning("no keeper and no client for %.0f s: the gate ends", self._alone_s)
                    os.kill(os.getpid(), signal.SIGTERM)
                if now_s - reminded_s >= _REMIND_S:
                    reminded_s = now_s
                    log.warning(
                        "the keeper is gone: serving on (pid %d), with nobody to go on after us, "
                        "until the next `lightkeeper gate` on the same address takes over",
                        os.getpid(),
                    )
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(_LOOK_S, self._alone_s)):
                        channel, _ = await loop.sock_accept(listener)
                        if not self.hand_over(channel):
                            channel.close()

    def hand_over(self, channel: socket.socket) -> bool:
        """Send all state to the next supervisor at once: no client is served meanwhile."""
        if _peer(channel)[1] != os.getuid():
            return False
        _widen(channel)
        channel.settimeout(_TELL_S)
        sent = all(send(channel, data, *files) for data, files in self._state().datagrams())
        if not (sent and send(channel, datagram(ALL))):
            self.missed += 1
            log.warning("somebody came to take over and did not: serving on")
            return False
        channel.setblocking(False)
        self._channel, self._highest = channel, self._proxy.quorum_ids.highest
        return True

    def _state(self) -> SharedState:
        """The state that a supervisor would hold if there had been one; the files stay ours."""
        proxy = self._proxy
        state = SharedState(
            list(self._listeners),
            self.positions,
            denied=_pack_denials(proxy.denylist.denials),
            quorum_ids=_pack_quorum_ids(proxy.quorum_ids),
            formed=proxy.quorum.message,
        )
        for client in proxy.clients:
            connection = client.transport.get_extra_info("socket")
            if connection is None:
                continue
            state.clients[client.key] = connection.fileno()
            for call in client.calls.values():
                if call.method is Method.QUORUM and (body := _pack_request(call)):
                    state.asked.setdefault(client.key, {})[call.number] = body
                    if call.formed:
                        state.asked_before.add((client.key, call.number))
        return state

    async def _end(self) -> None:
        """Finish answers, then exit: another worker has the sockets now."""
        until_s = time.monotonic() + _DRAIN_S
        while True:
            for client in self._proxy.clients:
                client.pause_reading(_HANDED_OVER)
            self._proxy.flush()
            answering = any(client.answering for client in self._proxy.clients)
            if not answering or time.monotonic() >= until_s:
                break
            await asyncio.sleep(_DRAIN_PAUSE_S)
        for client in self._proxy.clients:
            self.read(client)
            if client.answering:
                self._send(datagram(LEFT, client.key))  # cannot be continued
        os._exit(0)


class AdoptedConnection(Downstream):
    """A client of a dead worker: its connection continues, no quorum request is lost."""

    def __init__(
        self, proxy: Proxy, key: int, position: ReadPosition, asked: Sequence[ProxiedCall]
    ) -> None:
        """`position`: its `unread` is all that the client sent after the last handled call."""
        super().__init__(proxy, key)
        self._position = position
        self._asked = {call.number: call for call in asked}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Resume the quorum requests, reset the rest, and read on."""
        http2.Connection.connection_made(self, transport)
        self._proxy.transports[self.transport] = None
        self._proxy.clients.add(self)
        position = self._position
        if position.number:
            self.send_window, self.initial_window = position.window, position.initial_window
        self.last = max([position.number, *self._asked])
        self.write(http2.window_update(0, http2.WINDOW_DEFAULT // 2))  # what was not credited
        for number in range(max(1, self.last - 2 * _EARLIER | 1), self.last + 1, 2):
            if number not in self._asked:
                self.write(http2.reset(number, http2.CANCEL))
        for call in self._asked.values():
            self.calls[call.number] = call
            self._keep(len(call.data))
            if call.ended:
                self._judge(call)
        self.data_received(position.unread or b"")


async def adopt(
    proxy: Proxy,
    position: ReadPosition,
    key: int,
    client: socket.socket,
    asked: Sequence[ProxiedCall],
) -> None:
    loop = asyncio.get_running_loop()
    client.setblocking(False)
    unread = position.unread or b""
    with contextlib.suppress(OSError):
        while len(unread) < _UNREAD_MAX and (more := client.recv(65_536)):
            unread += more
    speaks_first = not asked and unread.startswith(http2.PREFACE[: len(unread) or 1])
    with contextlib.suppress(OSError):
        if speaks_first:
            _, arrived = await loop.connect_accepted_socket(lambda: NewClient(proxy), client)
            arrived.data_received(unread)
        else:
            position = position._replace(unread=unread)
            adopted = AdoptedConnection(proxy, key, position, asked)
            await loop.connect_accepted_socket(lambda: adopted, client)


def main() -> int:
    """A worker: import everything, wait until needed, serve.

    It ends if its supervisor ends first.
    """
    from lightkeeper.monitor.gate.serve import run  # noqa: PLC0415 - a supervisor starts without aiohttp

    channel = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's
    _widen(channel)
    log_to_stderr(logging.WARNING)
    send(channel, datagram(ALIVE))
    options, state = GateOptions(("", 0)), SharedState()
    while True:
        data, files = receive(channel)
        if not data:
            return 0
        if data[:1] == GO:
            break
        if data[:1] == OPTIONS:
            options = _options(json.loads(data[_HEAD.size :]))
        else:
            state.note(data, files)
    if options.verbose:
        log.setLevel(logging.INFO)
    run(options, state.listeners, lambda proxy: _go_on(proxy, channel, state))
    return 0


def _options(data: dict[str, Any]) -> GateOptions:
    state = None if data["state"] is None else Path(data["state"])
    return GateOptions(**{**data, "lighthouse": tuple(data["lighthouse"]), "state": state})


async def _go_on(proxy: Proxy, channel: socket.socket, state: SharedState) -> None:
    """Continue where the last worker ended."""
    link = SupervisorLink(proxy, channel, state.listeners, state.positions, list(state.clients))
    proxy.successor = link
    if state.denied:
        proxy.deny(parse_denials(json.loads(state.denied)))
    if state.quorum_ids:
        try:
            proxy.quorum_ids = from_plain(QuorumIds, json.loads(state.quorum_ids))
        except ValueError as exc:  # keeps no worker from serving
            log.warning("the worker before left no count of quorums: %s", exc)
    proxy.quorum = NewestQuorum(state.formed, members_of(state.formed))
    proxy.lighthouse.inherited(len(state.clients))
    for key, file in state.clients.items():
        client, position = socket.socket(fileno=file), state.positions.read(key)
        if position.unread is None:
            client.close()
            link.left(key)
            continue
        await adopt(proxy, position, key, client, state.open_requests(key))
    proxy.tasks.add(asyncio.get_running_loop().create_task(link.serve()))


# -- the supervisor ----------------------------------------------------------------------------


class Worker:
    def __init__(self) -> None:
        self.channel, end = pair()
        # not 0 to 2, free where the gate was started without: those become the worker's streams
        theirs = socket.socket(fileno=fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3))
        end.close()
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "lightkeeper.monitor.gate.hot_restart",
                str(theirs.fileno()),
            ],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self.began_s = self.heard_s = time.monotonic()

    def ready(self) -> Worker:
        """Wait until it has imported everything."""
        self.channel.settimeout(_READY_S)
        with contextlib.suppress(OSError):
            receive(self.channel)
        return self

    def ended(self) -> bool:
        """Whether it is gone; if so, closes its channel."""
        if self.process.poll() is None:
            return False
        self.channel.close()
        return True

    def begin(self, options: GateOptions, state: SharedState) -> Worker:
        self.channel.settimeout(_GRACE_S)
        body = json.dumps(asdict(options), default=str).encode()
        send(self.channel, datagram(OPTIONS, body=body))
        for data, files in state.datagrams():
            send(self.channel, data, *files)
        send(self.channel, datagram(GO))
        self.began_s = self.heard_s = time.monotonic()
        return self

    def end(self, number: signal.Signals) -> None:
        """Signal it and wait; kill it if that takes too long."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        try:
            self.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.channel.close()


class Spare:
    """Keeps one worker standing by.

    If it died unnoticed, the next worker would have to import everything while all clients wait.
    """

    def __init__(
        self, start: Callable[[], Worker], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._start = start
        self._clock = clock
        self._due_s = clock()
        self.worker: Worker | None = None
        self.look()

    def look(self) -> None:
        """Start one if there is none."""
        now_s = self._clock()
        if self.worker is not None and self.worker.ended():
            self.worker = None
            log.warning("the spare worker is gone: another is started")
        if self.worker is None and now_s >= self._due_s:
            self.worker = self._start()
            self._due_s = now_s + SPARE_PAUSE_S

    def take(self) -> Worker:
        """Take the spare, or start a new worker; the next `look` starts another spare."""
        worker, self.worker = self.worker, None
        self._due_s = self._clock()
        return self._start() if worker is None or worker.ended() else worker


class WorkerSupervisor:
    """Holds the shared state, and keeps a worker running."""

    def __init__(self, options: GateOptions, state: SharedState, first: Worker) -> None:
        self._options = options
        self._state = state
        self._first = first
        self._stopping = threading.Event()

    def run(self) -> None:
        """Run until SIGTERM or SIGINT."""
        raise_file_limit()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stopping.set())
        wake, wakes = socket.socketpair()
        wakes.setblocking(False)
        signal.set_wakeup_fd(wakes.fileno())
        worker = self._first.begin(self._options, self._state)
        spare = Spare(Worker)
        try:
            while True:
                self._watch(worker, spare, wake)
                if self._stopping.is_set():
                    break
                worker.end(signal.SIGKILL)
                if time.monotonic() - worker.began_s < _SHORT_S:
                    time.sleep(_SHORT_S)
                log.warning("the worker (pid %d) is gone: another takes over", worker.process.pid)
                worker = spare.take().begin(self._options, self._state)
        finally:
            signal.set_wakeup_fd(-1)
            worker.end(signal.SIGTERM)
            if spare.worker is not None:
                spare.worker.end(signal.SIGKILL)

    def _watch(self, worker: Worker, spare: Spare, wake: socket.socket) -> None:
        """Note the worker's reports until it is gone or silent, or we are to stop."""
        with selectors.DefaultSelector() as selector:
            selector.register(worker.channel, selectors.EVENT_READ)
            selector.register(wake, selectors.EVENT_READ)
            while not self._stopping.is_set():
                ready = selector.select(timeout=1.0)
                spare.look()
                if any(key.fileobj is worker.channel for key, _ in ready):
                    try:
                        data, files = receive(worker.channel)
                    except OSError:
                        return
                    if not data:
                        return
                    worker.heard_s = time.monotonic()
                    self._state.note(data, files)
                elif time.monotonic() - worker.heard_s > SILENT_S:
                    log.warning("the worker (pid %d) is silent", worker.process.pid)
                    return


# -- a worker whose supervisor died ------------------------------------------------------------


def name_of(address: Any, pid: int | str) -> bytes:
    """The socket name at which a worker without a supervisor waits: it is not a file, and ends with
    the worker. `address`: of a listener, resolved.
    """
    host, port = address[:2]
    return f"\0{_NAMES}{host}/{port}/{pid}".encode()


def unsupervised() -> list[bytes]:
    """Names of the workers on this host that wait for a supervisor."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/net/unix").read_bytes().split(b"\n")
        names = {line.rpartition(b" ")[2] for line in lines}
        return sorted(b"\0" + name[1:] for name in names if name[1:].startswith(_NAMES.encode()))
    return []


def shown(name: bytes) -> str:
    """For people: `127.0.0.1:29511 (pid 4711)`."""
    host, port, pid = name.decode("utf-8", "replace").rsplit("/", 2)
    host = host.rpartition("/")[2]
    return f"{f'[{host}]' if ':' in host else host}:{port} (pid {pid})"


def take_over(address: Any, *, silent_s: float = SILENT_S) -> SharedState | None:
    """The state of a worker at this address whose supervisor died; None: there is none.

    A worker that does not answer for `silent_s` is killed, as by its supervisor.
    """
    for name in unsupervised():
        if name.startswith(name_of(address, "")):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
                state = SharedState()
                if _take(channel, name, silent_s, state):
                    requests = sum(map(len, state.asked.values()))
                    log.warning(
                        "taken over from the worker of a gate that died: %d clients, "
                        "%d quorum requests", len(state.clients), requests,
                    )  # fmt: skip
                    return state
                state.close()
    return None


def _take(channel: socket.socket, name: bytes, silent_s: float, state: SharedState) -> bool:
    """Take all state or nothing: the worker serves until asked to end, even if we die."""
    _widen(channel)
    channel.settimeout(silent_s)
    asked_to_end = False
    try:
        channel.connect(name)
        if _peer(channel)[1] != os.getuid():
            return False
        while (received := receive(channel))[0]:
            if received[0][:1] == ALL:
                asked_to_end = send(channel, datagram(END))
            state.note(*received)
    except TimeoutError:
        log.warning("the worker at %s does not answer: it is ended", shown(name))
        if (pid := _peer(channel)[0]) > 0:  # 0 (no peer) would be our own process group
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
    except OSError:
        return False
    return asked_to_end


def _peer(channel: socket.socket) -> tuple[int, int]:
    """Process and user at the other end."""
    answer = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", answer)
    return pid, user


if __name__ == "__main__":
    sys.exit(main())
