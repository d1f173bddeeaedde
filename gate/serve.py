"""Runs one gate on the given sockets, with what outlives it and its admin port."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from yarl import URL

from lightkeeper.gate.calls import Method, Stage
from lightkeeper.gate.denylist import Denial, denials_json, parse_denials, wire_json
from lightkeeper.gate.listener import BACKLOG, GateOptions, NewClient, listen, raise_file_limit
from lightkeeper.gate.overlap import Handover, Overlap, Predecessor, Successor, go_on
from lightkeeper.gate.proxy import CLIENTS_MAX, TICK_S, NewestQuorum, Proxy
from lightkeeper.gate.quorum_ids import QuorumIds, members_of
from lightkeeper.monitor.model.plain import from_plain

# -- What outlives a gate that is killed ---------------------------------------------------------

_FILE_MAX_BYTES: Final = 16 * 1024 * 1024


class MemoryFile:
    """Bytes in memory that outlive the process, for the next gate here.

    The newest quorum's answer: a gate that is killed may have answered some members and not the
    others (see `NewestQuorum`). And whom the monitor refuses, for it may be away.
    """

    _HEAD: Final = struct.Struct("=LL")  # length and checksum: a write may be cut short

    def __init__(self, name: str, folder: Path = Path("/dev/shm")) -> None:  # noqa: S108 - ours alone
        self._file: int | None = None
        self._path = folder / f"lightkeeper-gate-{os.geteuid()}-{name}"
        with suppress(OSError):
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            if os.fstat(self._file).st_uid != os.geteuid():
                self.close()

    def read(self) -> bytes:
        """Empty if there is none."""
        if self._file is None:
            return b""
        data = os.pread(self._file, _FILE_MAX_BYTES, 0).ljust(self._HEAD.size, b"\0")
        size, checksum = self._HEAD.unpack_from(data)
        kept = data[self._HEAD.size :][:size]
        return kept if len(kept) == size and zlib.crc32(kept) == checksum else b""

    def write(self, data: bytes) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.pwrite(self._file, self._HEAD.pack(len(data), zlib.crc32(data)) + data, 0)

    def refuse(self, denials: Sequence[Denial]) -> None:
        """Write the list of whom to refuse."""
        self.write(json.dumps(denials_json(denials)).encode())

    def refused(self) -> Sequence[Denial]:
        """The list that was in force."""
        with suppress(ValueError, RecursionError):  # none, or one of another version
            return parse_denials(json.loads(self.read()))
        return ()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def remove(self) -> None:
        if self._file is not None:
            self._path.unlink(missing_ok=True)
        self.close()


log = logging.getLogger("lightkeeper.gate")

# -- the process --------------------------------------------------------------------------------

_AT_ONCE: Final = 32
"""Clients accepted in one turn of the loop."""
_FORGET_S: Final = 10.0


def run(options: GateOptions) -> None:
    """Take over from the gate that serves now, if there is one, and serve until nobody needs us.

    Raises:
        PredecessorError: it does not hand over.
        OSError: we cannot listen.
    """
    clients_max = raise_file_limit()
    if clients_max < CLIENTS_MAX:
        text = "room for %d clients: more open files are not allowed (ulimit -Hn)"
        log.warning(text, clients_max)
    predecessor = Predecessor.find(options)
    listeners = [
        listen(*address, shared=predecessor is not None)
        for address in (options.bind, options.admin)
    ]
    before = None if predecessor is None else predecessor.take_over(options)
    if before is None:
        log.info("no gate to take over from at %s:%d", *options.take_over)

    async def until_gone() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        loop.add_signal_handler(signal.SIGHUP, _start_another)
        async with serving(options, listeners, before, clients_max) as admin:
            _tell_systemd(f"READY=1\nMAINPID={os.getpid()}")  # the unit is ours from now on
            await admin.overlap.until_gone(stop)

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(until_gone())


def _start_another() -> None:
    """Run the same command again: it takes over from us, perhaps with newer code."""
    subprocess.Popen([sys.executable, *sys.orig_argv[1:]])


def _tell_systemd(text: str) -> None:
    """Notify the process that started us, if that is systemd."""
    if path := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel, suppress(OSError):
            channel.sendto(text.encode(), path.replace("@", "\0", 1))


@contextlib.asynccontextmanager
async def serving(
    options: GateOptions,
    listeners: Sequence[socket.socket],
    before: Handover | None = None,
    clients_max: int = CLIENTS_MAX,
) -> AsyncIterator[Admin]:
    """A gate that serves within the block. `listeners`: for groups, and for the admin port."""
    loop = asyncio.get_running_loop()
    proxy = Proxy(options.lighthouse, time.time, clients_max=clients_max)
    port, where = options.bind[1], options.lighthouse
    newest, refused = MemoryFile(f"{port}"), MemoryFile(f"{port}-{where[0]}-{where[1]}")
    proxy.keep = newest.write
    if before is not None:
        go_on(proxy, before)
        refused.refuse(before.denied)
    else:
        proxy.deny(refused.refused())
        answer = newest.read()
        proxy.quorum = NewestQuorum(answer, members_of(answer), sure=False)
        proxy.quorum_ids = QuorumIds(floor=round(time.time() * 1000))
        proxy.lighthouse.settle()
    works = (proxy.lighthouse.watch(), _tick(proxy), _forget(proxy))
    proxy.tasks.update(loop.create_task(work) for work in works)
    gate, admin = listeners
    server = await loop.create_server(lambda: NewClient(proxy), sock=gate, backlog=_AT_ONCE)
    gate.listen(BACKLOG)  # the kernel's queue; asyncio uses its `backlog` for both

    def stop_listening() -> None:
        """Serve clients in the kernel's queue, and leave the others to the gate at this port."""
        with suppress(OSError):
            while True:
                client, _ = gate.accept()
                client.setblocking(False)
                accepted = loop.connect_accepted_socket(lambda: NewClient(proxy), client)
                proxy.tasks.add(loop.create_task(accepted))
        server.close()
        proxy.tasks.add(loop.create_task(site.stop()))

    api = Admin(proxy, refused, options.token, Overlap(proxy, options, stop_listening))
    runner = web.AppRunner(api.application(), access_log=None, handle_signals=False)
    try:
        await runner.setup()
        site = web.SockSite(runner, admin, shutdown_timeout=1.0)
        await site.start()
        yield api
    finally:
        server.close()
        for client in list(proxy.clients):
            client.fail(0, "the gate ends")
        tasks = list(proxy.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await runner.cleanup()
        if api.overlap.successor is None:  # we end in peace: nobody needs it
            newest.remove()
            if not proxy.denylist.denials:
                refused.remove()


async def _tick(proxy: Proxy) -> None:
    while True:
        await asyncio.sleep(TICK_S)
        try:
            proxy.tick()
        except Exception:  # one bad call must not stop time for the others
            log.exception("a tick failed")


async def _forget(proxy: Proxy) -> None:
    while True:
        await asyncio.sleep(_FORGET_S)
        proxy.admission.forget()
        _tell_systemd("WATCHDOG=1")


# -- The gate's admin port: what it sees, whom it refuses, its metrics. Denying takes the token ---

BODY_MAX_BYTES: Final = 16 * 1024 * 1024
_PASS_S: Final = 2.0


@dataclass(frozen=True)
class Admin:
    proxy: Proxy
    kept: MemoryFile
    token: str | None
    overlap: Overlap

    def application(self) -> web.Application:
        app = web.Application(client_max_size=BODY_MAX_BYTES, middlewares=[self._passed_on])
        app.add_routes(
            [
                web.get("/v1/gate", self._view),
                web.put("/v1/gate/denied", self._deny),
                web.post("/v1/gate/successor", self._hand_over),
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._health),
            ]
        )
        return app

    @web.middleware
    async def _passed_on(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """The gate that took over answers for both."""
        to = self.overlap.successor
        if to is None or not request.path.startswith("/v1/"):
            return await handler(request)
        host, port = to.reached(to.admin)
        headers = [("Authorization", said) for said in request.headers.getall("Authorization", ())]
        body = await request.read()
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_PASS_S)) as session,
                session.request(
                    request.method,
                    URL.build(scheme="http", host=host, port=port, path=request.path),
                    headers=headers,
                    data=body,
                    allow_redirects=False,
                ) as answer,
            ):
                return web.Response(
                    status=answer.status,
                    body=await answer.read(),
                    content_type="application/json",
                )
        except (TimeoutError, aiohttp.ClientError):
            if self.overlap.successor is to:
                self.overlap.take_back()
            return await handler(request)

    async def _view(self, _: web.Request) -> web.Response:
        return web.json_response(wire_json(self.proxy.view()))

    async def _metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(GateCollector(self.proxy))
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _health(self, _: web.Request) -> web.Response:
        up = {True: "up", False: "away", None: "not looked at yet"}[self.proxy.lighthouse.up]
        return web.Response(text=f"ok: the Lighthouse is {up}\npid {os.getpid()}\n")

    def _stranger(self, request: web.Request) -> web.Response | None:
        """The answer to one who may change nothing; None: this one may."""
        if self.token is None:
            return _error(403, "this gate has no token, so it denies nobody and hands over to none")
        headers = request.headers.getall("Authorization", ())
        said = [header.encode(errors="replace") for header in headers]
        right = f"Bearer {self.token}".encode()
        if len(said) != 1 or not hmac.compare_digest(said[0], right):
            return _error(401, "the bearer token is missing or another")
        return None

    async def _deny(self, request: web.Request) -> web.Response:
        if (refusal := self._stranger(request)) is not None:
            return refusal
        try:
            denials = parse_denials(json.loads(await request.read()))
        except (ValueError, RecursionError) as exc:
            return _error(400, str(exc))
        if self.proxy.deny(denials):
            self.kept.refuse(self.proxy.denylist.denials)
        return web.json_response(denials_json(self.proxy.denylist.denials))

    async def _hand_over(self, request: web.Request) -> web.Response:
        if (refusal := self._stranger(request)) is not None:
            return refusal
        try:
            to = from_plain(Successor, json.loads(await request.read()))
        except (ValueError, RecursionError) as exc:
            return _error(400, str(exc))
        return web.json_response(wire_json(self.overlap.hand_over(to)))


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)


# -- metrics: read when Prometheus asks, so that they cost a heartbeat nothing -------------------


class GateCollector(Collector):
    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def collect(self) -> Iterator[Metric]:
        counts = self._proxy.counts
        for counter in fields(counts):
            if text := counter.metadata.get("help"):
                name, count = f"lightkeeper_gate_{counter.name}", getattr(counts, counter.name)
                yield CounterMetricFamily(name, text, value=count)
        refused = CounterMetricFamily(
            "lightkeeper_gate_refused",
            "Heartbeats and quorum requests refused, by what the denial names",
            labels=["scope"],
        )
        for scope, number in counts.refused.items():
            refused.add_metric([scope.value], number)
        yield refused
        for name, text, value in _gauges(self._proxy):
            yield GaugeMetricFamily(f"lightkeeper_gate_{name}", text, value=float(value))


def _gauges(proxy: Proxy) -> Iterator[tuple[str, str, float]]:
    calls = [call for client in proxy.clients for call in client.calls.values()]
    quorums = [call.stage for call in calls if call.method is Method.QUORUM]
    yield "held", "Quorum requests that wait for a newer list", quorums.count(Stage.HELD)
    yield "quorum_requests_under_way", "Quorum requests without an answer", len(quorums)
    yield "upstream_up", "1 while the Lighthouse is there", proxy.lighthouse.up is True
    yield "connections", "Clients connected", len(proxy.transports)
    yield "denials", "Entries of the list in force", len(proxy.denylist.denials)
    yield "quorum_id", "The highest quorum id that groups were given", proxy.quorum_ids.highest
    yield "lighthouse_restarts", "Restarts: quorum ids fell", proxy.quorum_ids.restarts
