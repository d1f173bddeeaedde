"""Runs one gate on the given sockets, with its state on disk and its admin port."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import json
import logging
import os
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from lightkeeper.monitor.gate.calls import GateCounts, Method, Stage
from lightkeeper.monitor.gate.denylist import (
    Denial,
    denials_json,
    parse_denials,
    wire_json,
)
from lightkeeper.monitor.gate.listener import BACKLOG, GateOptions, NewClient, raise_file_limit
from lightkeeper.monitor.gate.proxy import CLIENTS_MAX, TICK_S, Proxy
from lightkeeper.monitor.gate.quorum_ids import RESERVED_MOST, QuorumIds
from lightkeeper.monitor.model.plain import from_plain, readable, to_plain

# -- The gate's state on disk: written whole or not at all, and never a reason not to serve -------
# One JSON object: the list of denials, and the highest quorum id groups may have (`quorum_ids`).

_FILE_MAX_BYTES: Final = 16 * 1024 * 1024


@readable
@dataclass(frozen=True, slots=True)
class _Count:
    quorum_ids_reserved: Annotated[int, msgspec.Meta(ge=0, le=RESERVED_MOST)] = 0
    """Missing in a file of an older gate."""


class StateFile:
    """State on disk. Without it, a restarted gate has no list and takes the Lighthouse's count."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.denials: Sequence[Denial] = ()
        """The list in force."""
        self.reserved = 0
        """The highest quorum id that groups may have, as on disk."""
        self._writing = asyncio.Lock()
        self._read_trouble: str | None = None
        self._write_trouble: str | None = None

    @property
    def trouble(self) -> str | None:
        """What cannot be read or written now; None: nothing."""
        return self._write_trouble or self._read_trouble

    # -- reading --------------------------------------------------------------------------------

    def recall(self) -> Sequence[Denial]:
        """Read `reserved` and the list that was in force; what is unreadable is logged."""
        try:
            if self._path is not None and self._path.exists():
                state = _read(self._path)
                self.reserved = from_plain(_Count, state).quorum_ids_reserved
                self.denials = parse_denials(state)
        except (OSError, ValueError, RecursionError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else exc
            self._read_trouble = f"cannot read {self._path}: {why}"
            log.warning(
                "%s: nobody is denied until the monitor says so, and quorum ids begin above %d",
                self._read_trouble, self.reserved,
            )  # fmt: skip
        return self.denials

    # -- writing: in a thread, so that a disk that hangs delays no heartbeat -----------------------

    async def keep(self, denials: Sequence[Denial]) -> None:
        """Write the list; a disk failure is logged and stops nothing."""
        self.denials = tuple(denials)
        if await self._save(self.reserved):
            self._read_trouble = None

    async def reserve(self, number: int) -> None:
        """Write the highest quorum id that may be sent from now on."""
        if await self._save(number):
            self.reserved = number

    async def _save(self, reserved: int) -> bool:
        if self._path is None:
            return False
        async with self._writing:
            count = _Count(max(reserved, self.reserved))
            state = {**denials_json(self.denials), **to_plain(count)}
            try:
                await asyncio.to_thread(self._write, self._path, state)
            except OSError as exc:
                text = f"cannot write {self._path}: {exc.strerror}"
                if self._write_trouble != text:
                    log.warning("%s: what changes now is held in memory only", text)
                self._write_trouble = text
                return False
        self._write_trouble = None
        return True

    def _write(self, path: Path, state: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "it is no file")
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".gate-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(state, file)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _read(path: Path) -> Any:
    """The file's JSON.

    Raises:
        OSError, ValueError, RecursionError: it cannot be read.
    """
    if not path.is_file():  # reading a pipe would wait forever
        raise ValueError("it is no file")
    with path.open("rb") as file:
        body = file.read(_FILE_MAX_BYTES + 1)
    if len(body) > _FILE_MAX_BYTES:
        raise ValueError(f"over {_FILE_MAX_BYTES} bytes")
    return json.loads(body)


log = logging.getLogger("lightkeeper.gate")

# -- the process --------------------------------------------------------------------------------

_AT_ONCE: Final = 32
"""Clients accepted in one turn of the loop."""
_FORGET_S: Final = 10.0
_AHEAD_S: Final = 1.0


def run(
    options: GateOptions,
    listeners: Sequence[socket.socket],
    prepare: Callable[[Proxy], Awaitable[None]] | None = None,
) -> None:
    """Serve until SIGTERM. `listeners`: for groups and, if there is one, the admin port;
    `prepare`: called before any client is accepted.
    """
    clients_max = raise_file_limit()
    if clients_max < CLIENTS_MAX:
        text = "room for %d clients: more open files are not allowed (ulimit -Hn)"
        log.warning(text, clients_max)

    async def until_stopped() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        async with serving(options, listeners, prepare, clients_max):
            await stop.wait()

    asyncio.run(until_stopped())


@contextlib.asynccontextmanager
async def serving(
    options: GateOptions,
    listeners: Sequence[socket.socket],
    prepare: Callable[[Proxy], Awaitable[None]] | None = None,
    clients_max: int = CLIENTS_MAX,
) -> AsyncIterator[Admin]:
    """A gate that serves within the block."""
    loop = asyncio.get_running_loop()
    proxy = Proxy(options.lighthouse, time.time, clients_max=clients_max)
    state = StateFile(options.state)
    proxy.deny(state.recall())
    proxy.quorum_ids = QuorumIds.above(state.reserved)
    if prepare is not None:
        await prepare(proxy)
        state.denials = proxy.denylist.denials
    works = (proxy.lighthouse.watch(), _tick(proxy), _forget(proxy), _stay_ahead(proxy, state))
    proxy.tasks.update(loop.create_task(work) for work in works)
    gate, *admin = listeners
    server = await loop.create_server(lambda: NewClient(proxy), sock=gate, backlog=_AT_ONCE)
    gate.listen(BACKLOG)  # the kernel's queue; asyncio uses its `backlog` for both
    api = Admin(proxy, state, options.token)
    runner = web.AppRunner(api.application(), access_log=None, handle_signals=False)
    try:
        await runner.setup()
        for listener in admin:
            await web.SockSite(runner, listener, shutdown_timeout=1.0).start()
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


async def _stay_ahead(proxy: Proxy, state: StateFile) -> None:
    """Write quorum ids to disk before groups get them."""
    while True:
        number = proxy.quorum_ids.reserve(state.reserved)
        if number is not None:
            await state.reserve(number)
        await asyncio.sleep(_AHEAD_S)


# -- The gate's admin port: what it sees, whom it refuses, its metrics. Denying takes the token ---

BODY_MAX_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True)
class Admin:
    proxy: Proxy
    state: StateFile
    token: str | None

    def application(self) -> web.Application:
        app = web.Application(client_max_size=BODY_MAX_BYTES)
        app.add_routes(
            [
                web.get("/v1/gate", self._view),
                web.put("/v1/gate/denied", self._deny),
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._health),
            ]
        )
        return app

    async def _view(self, _: web.Request) -> web.Response:
        return web.json_response(wire_json(self.proxy.view()))

    async def _metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(GateCollector(self.proxy, self.state))
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _health(self, _: web.Request) -> web.Response:
        up = {True: "up", False: "away", None: "not looked at yet"}[self.proxy.lighthouse.up]
        lines = [f"ok: the Lighthouse is {up}"]
        if self.state.trouble is not None:
            lines.append(self.state.trouble)
        if self.proxy.successor.kept is False:
            lines.append("the keeper is gone: start `lightkeeper gate` again on the same address")
        return web.Response(text="\n".join(lines) + "\n")

    async def _deny(self, request: web.Request) -> web.Response:
        if self.token is None:
            return _error(403, "this gate has no token and denies nobody: start it with one")
        headers = request.headers.getall("Authorization", ())
        said = [header.encode(errors="replace") for header in headers]
        right = f"Bearer {self.token}".encode()
        if len(said) != 1 or not hmac.compare_digest(said[0], right):
            return _error(401, "the bearer token is missing or another")
        try:
            denials = parse_denials(json.loads(await request.read()))
        except (ValueError, RecursionError) as exc:
            return _error(400, str(exc))
        if self.proxy.deny(denials) or self.state.trouble is not None:
            await self.state.keep(self.proxy.denylist.denials)
        return web.json_response(denials_json(self.proxy.denylist.denials))


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)


# -- metrics: read when Prometheus asks, so that they cost a heartbeat nothing -------------------


class GateCollector(Collector):
    def __init__(self, proxy: Proxy, state: StateFile) -> None:
        self._proxy = proxy
        self._state = state

    def collect(self) -> Iterator[Metric]:
        counts = self._proxy.counts
        for name, text, count in _counters(counts):
            yield CounterMetricFamily(f"lightkeeper_gate_{name}", text, value=count)
        refused = CounterMetricFamily(
            "lightkeeper_gate_refused",
            "Heartbeats and quorum requests refused, by what the denial names",
            labels=["scope"],
        )
        for scope, number in counts.refused.items():
            refused.add_metric([scope.value], number)
        yield refused
        for name, text, value in _gauges(self._proxy, self._state):
            yield GaugeMetricFamily(f"lightkeeper_gate_{name}", text, value=float(value))


def _counters(counts: GateCounts) -> Iterator[tuple[str, str, int]]:
    yield "heartbeats", "Heartbeats that came in", counts.heartbeats
    yield "quorum_requests", "Quorum requests that came in", counts.quorum_requests
    yield "unread", "Calls passed on because they could not be read", counts.unread
    yield "waved", "Held replica ids passed because nobody said", counts.waved
    retries = counts.upstream_retries
    yield "upstream_retries", "Connections to the Lighthouse that failed", retries
    yield "resent", "Quorum requests sent again to a Lighthouse that came back", counts.resent
    again = "Quorums answered again to members whose answer was lost with a Lighthouse or worker"
    yield "told_again", again, counts.told_again
    yield "bad_clients", "Clients sent away for breaking HTTP/2", counts.bad_clients


def _gauges(proxy: Proxy, state: StateFile) -> Iterator[tuple[str, str, float]]:
    calls = [call for client in proxy.clients for call in client.calls.values()]
    quorums = [call.stage for call in calls if call.method is Method.QUORUM]
    yield "held", "Quorum requests that wait for a newer list", quorums.count(Stage.HELD)
    yield "quorum_requests_under_way", "Quorum requests without an answer", len(quorums)
    yield "upstream_up", "Whether the Lighthouse is there", proxy.lighthouse.up is True
    yield "connections", "Clients connected", len(proxy.transports)
    yield "denials", "Entries of the list in force", len(proxy.denylist.denials)
    yield "kept", "Whether a keeper stands by", proxy.successor.kept is True
    yield "quorum_id", "The highest quorum id that groups were given", proxy.quorum_ids.highest
    yield "lighthouse_restarts", "Seen in quorum ids that fell", proxy.quorum_ids.restarts
    missed = proxy.successor.missed
    yield "not_kept", "Connections and requests that the keeper did not take", missed
    yield "state_trouble", "Whether --state cannot be read or written", state.trouble is not None
