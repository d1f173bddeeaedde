"""A gate in memory: clients and Lighthouse are the h2 library, the clock is a number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings

from lightkeeper.gate.listener import NewClient
from lightkeeper.gate.messages import HEARTBEAT_PATH, QUORUM_PATH
from lightkeeper.gate.proxy import Downstream, Proxy
from lightkeeper.gate.upstream import Upstream


class Wire(asyncio.Transport):
    """Where a protocol writes to."""

    def __init__(self, protocol: asyncio.Protocol | None = None) -> None:
        super().__init__()
        self.protocol = protocol
        self.sent = bytearray()
        self.closed = False
        self.reading = True

    def write(self, data: bytes) -> None:
        self.sent += data

    def take(self) -> bytes:
        data = bytes(self.sent)
        self.sent.clear()
        return data

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def field(number: int, value: bytes | int) -> bytes:
    """A protobuf field."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    made = bytearray()
    value &= 2**64 - 1
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def grpc(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def heartbeat(replica_id: str) -> bytes:
    return grpc(field(1, replica_id.encode()))


def quorum(replica_id: str, host: str = "node-1", step: int = 5, more: bytes = b"") -> bytes:
    member = field(1, replica_id.encode()) + field(2, f"http://{host}:41533".encode())
    member += field(3, f"{host}:29500".encode()) + field(4, step) + field(5, 2) + field(8, 1)
    return grpc(field(1, member + more))


class Client:
    """One TorchFT manager, or somebody worse."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.wire = Wire()
        arrival = NewClient(bench.core)
        self.wire.protocol = arrival
        bench.do(arrival.connection_made, self.wire)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.h2.initiate_connection()
        self.events: list[h2.events.Event] = []
        self.push()

    @property
    def side(self) -> Downstream:
        assert isinstance(self.wire.protocol, Downstream)
        return self.wire.protocol

    def push(self) -> None:
        data = self.h2.data_to_send()
        if data and not self.wire.closed:
            self.bench.do(self.wire.protocol.data_received, data)
        self.bench.turn()

    def call(self, path: str, body: bytes | None, *, timeout: str = "", end: bool = True) -> int:
        number = self.h2.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "gate"),
            (":path", path),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ]
        if timeout:
            headers.append(("grpc-timeout", timeout))
        self.h2.send_headers(number, headers, end_stream=body is None)
        if body is not None:
            self.h2.send_data(number, body, end_stream=end)
        self.push()
        return number

    def beat(self, replica_id: str) -> int:
        return self.call(HEARTBEAT_PATH, heartbeat(replica_id))

    def ask(self, replica_id: str, **more: Any) -> int:
        timeout = more.pop("timeout", "60000000u")
        return self.call(QUORUM_PATH, quorum(replica_id, **more), timeout=timeout)

    def pull(self) -> list[h2.events.Event]:
        data = self.wire.take()
        if data:
            self.events += self.h2.receive_data(data)
            self.push()
        return self.events

    def status(self, number: int) -> tuple[str, str] | None:
        """grpc-status and grpc-message of a call that is over."""
        for event in self.pull():
            if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                named = {bytes(k).decode(): bytes(v).decode() for k, v in event.headers}
                if event.stream_id == number and "grpc-status" in named:
                    return named["grpc-status"], named.get("grpc-message", "")
        return None

    def body(self, number: int) -> bytes:
        return b"".join(
            event.data
            for event in self.pull()
            if isinstance(event, h2.events.DataReceived) and event.stream_id == number
        )

    def reset(self, number: int) -> bool:
        return any(
            isinstance(event, h2.events.StreamReset) and event.stream_id == number
            for event in self.pull()
        )

    def leave(self) -> None:
        self.wire.closed = True
        self.bench.do(self.wire.protocol.connection_lost, None)
        self.bench.turn()


class Carried:
    """One connection of the gate to the Lighthouse, as the Lighthouse sees it."""

    def __init__(self, bench: Bench, side: Upstream) -> None:
        self.bench = bench
        self.side = side
        self.wire = Wire(side)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self.events: list[h2.events.Event] = []
        self.h2.initiate_connection()
        side.connection_made(self.wire)
        self.pull()

    def pull(self) -> list[h2.events.Event]:
        data = self.wire.take()
        if data:
            self.events += self.h2.receive_data(data)
        out = self.h2.data_to_send()
        if out and not self.side.closed:
            self.bench.do(self.side.data_received, out)
        return self.events

    def calls(self) -> list[tuple[int, str, bytes]]:
        """Stream, path and whole message of the calls that came in, in their order."""
        bodies: dict[int, bytes] = {}
        paths: dict[int, str] = {}
        for event in self.pull():
            if isinstance(event, h2.events.RequestReceived):
                named = {bytes(k): bytes(v) for k, v in event.headers}
                paths[event.stream_id] = named[b":path"].decode()
            elif isinstance(event, h2.events.DataReceived):
                bodies[event.stream_id] = bodies.get(event.stream_id, b"") + event.data
        return [(number, path, bodies.get(number, b"")) for number, path in paths.items()]

    def answer(self, number: int, body: bytes = grpc(b"")) -> None:
        self.h2.send_headers(number, [(":status", "200"), ("content-type", "application/grpc")])
        self.h2.send_data(number, body)
        self.h2.send_headers(number, [("grpc-status", "0")], end_stream=True)
        self.pull()
        self.bench.turn()

    def answer_all(self) -> None:
        for number, _, _ in self.calls():
            stream = self.h2.streams.get(number)
            if stream is not None and stream.open:
                self.answer(number)

    def die(self) -> None:
        self.wire.closed = True
        self.bench.do(self.side.connection_lost, None)
        self.bench.turn()


class Bench:
    """The gate, its clock and its Lighthouse."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.now_s = 1000.0
        self.unix_s = 5_000_000.0
        self.core = Proxy(("lh", 1), lambda: self.unix_s, now_s=lambda: self.now_s)
        self.core.lighthouse.connect = self._connect  # type: ignore[method-assign]
        self.core.lighthouse.up = True
        self.carried: list[Carried] = []
        self.back = asyncio.Event()
        self.back.set()

    async def _connect(self, client: Downstream) -> Upstream:
        await self.back.wait()
        made = Carried(self, Upstream(self.core.flusher, client))
        self.carried.append(made)
        self.core.lighthouse._connections.add(made.side)
        self.core.lighthouse._came()
        return made.side

    def away(self) -> None:
        """The Lighthouse dies and stays away."""
        self.back.clear()
        for carried in self.carried:
            if not carried.side.closed:
                carried.die()
        self.do(self.core.lighthouse._went_away)

    def returns(self) -> None:
        self.back.set()
        self.turn()

    def client(self) -> Client:
        return Client(self)

    def turn(self) -> None:
        for _ in range(4):
            self.do(self.core.flush)
        while len(self.core.turns) and asyncio._get_running_loop() is None:
            self.do(self.core.flush)

    def do(self, act: Callable[..., object], *words: object) -> None:
        """Call something on the loop, unless we are on it."""
        if asyncio._get_running_loop() is not None:
            act(*words)
            return

        async def inside() -> None:
            act(*words)

        self.loop.run_until_complete(inside())

    def sleep(self, seconds: float) -> None:
        """Let time pass, in ticks."""
        for _ in range(round(seconds / 0.1)):
            self.now_s += 0.1
            self.unix_s += 0.1
            self.do(self.core.tick)
            self.turn()


@contextmanager
def bench() -> Iterator[Bench]:
    loop = asyncio.new_event_loop()
    made = Bench(loop)
    try:
        yield made
    finally:
        while tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks))
        loop.close()
