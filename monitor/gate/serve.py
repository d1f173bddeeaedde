"""Runs one gate on listening sockets that are given to it, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from monitor.clock import SteadyClock
from monitor.gate.admin import Desk
from monitor.gate.arrival import Arrivals
from monitor.gate.bequest import Asked, Page
from monitor.gate.denial import Denial
from monitor.gate.gate import HOLD_S, TICK_S, GateCore
from monitor.gate.heir import inherit
from monitor.gate.keeping import Keeping
from monitor.gate.memory import Memory
from monitor.gate.orphan import Orphan
from monitor.gate.quorum_ids import QuorumIds

log = logging.getLogger("lightkeeper.gate")

BACKLOG: Final = 4096
"""After a restart of the gate all groups dial at once."""
_FORGET_S: Final = 10.0
_AHEAD_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Options:
    """What a gate is told."""

    lighthouse: tuple[str, int]
    state: Path | None = None
    token: str | None = field(default=None, repr=False)
    hold_s: float = HOLD_S


def resolve(host: str, port: int) -> tuple[int, Any]:
    """Family and socket address of a host's name or number, of IPv4 where it has both.

    Raises:
        OSError: nobody knows the name.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    return family, address


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        OSError: the address is in use or not ours.
    """
    family, address = resolve(host, port)
    made = socket.socket(family)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # and never SO_REUSEPORT
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind(address)
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


@dataclass(frozen=True, slots=True)
class Inheritance:
    """What a worker is given, and may have of one that died."""

    listeners: list[socket.socket]
    """For groups and, where there is one, the admin port."""
    channel: socket.socket | None = None
    """To the keeper."""
    page: Page | None = None
    denied: tuple[Denial, ...] | None = None
    numbers: QuorumIds | None = None
    clients: Mapping[int, socket.socket] = field(default_factory=dict)
    asked: Mapping[int, Sequence[Asked]] = field(default_factory=dict)


def run(options: Options, given: Inheritance) -> None:
    """Serve until SIGTERM."""
    raise_file_limit()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(options, given))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Uvloop's where it is installed: about 5 % cheaper than asyncio's own (docs/gate.md)."""
    if os.environ.get("LIGHTKEEPER_GATE_LOOP") == "asyncio":
        return None
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _serve(options: Options, given: Inheritance) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with serving(options, given):
        await stop.wait()


@contextlib.asynccontextmanager
async def serving(options: Options, given: Inheritance) -> AsyncIterator[Desk]:
    """A gate that serves within the block."""
    loop = asyncio.get_running_loop()
    core = GateCore(options.lighthouse, SteadyClock().now_s, hold_s=options.hold_s)
    memory = Memory(options.state)
    recalled = memory.recall()
    memory.denials = recalled if given.denied is None else given.denied
    core.deny(memory.denials)
    core.quorum_ids = given.numbers or QuorumIds.above(memory.reserved)
    desk = Desk(core, Arrivals(core), memory, options.token)
    works = [core.lighthouse.watch(), _tick(core), _forget(core), _stay_ahead(core, memory)]
    if given.channel is not None and given.page is not None:
        keeping = desk.arrivals.keeping = Keeping(given.channel, given.page, given.clients)
        works.append(_kept(keeping, Orphan(core, keeping, given.listeners)))
    core.lighthouse.inherited(len(given.clients))
    for key, client in given.clients.items():
        await inherit(core, desk.arrivals, key, client, given.asked.get(key, ()))
    tasks = [loop.create_task(work) for work in works]
    gate, *admin = given.listeners
    server = await loop.create_server(desk.arrivals.protocol, sock=gate, backlog=BACKLOG)
    runner = web.AppRunner(desk.application(), access_log=None, handle_signals=False)
    try:
        await runner.setup()
        for listener in admin:
            await web.SockSite(runner, listener, shutdown_timeout=1.0).start()
        yield desk
    finally:
        server.close()
        for client_side in list(core.clients):
            client_side.fail(0, "the gate ends")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await runner.cleanup()


async def _kept(keeping: Keeping, orphan: Orphan) -> None:
    try:
        await keeping.stay_alive()
        await orphan.serve_on()
    except Exception:  # it serves on in any case
        log.exception("nobody keeps this worker, and nobody can take over")


async def _tick(core: GateCore) -> None:
    while True:
        await asyncio.sleep(TICK_S)
        try:
            core.tick()
        except Exception:  # one call that cannot be served must not stop time for the others
            log.exception("a tick failed")


async def _forget(core: GateCore) -> None:
    while True:
        await asyncio.sleep(_FORGET_S)
        core.forget()


async def _stay_ahead(core: GateCore, memory: Memory) -> None:
    """The disk knows of quorum ids before the groups are told them."""
    while memory.keeps:
        number = core.quorum_ids.reserve(memory.reserved)
        if number is not None:
            await memory.reserve(number)
        await asyncio.sleep(_AHEAD_S)


def raise_file_limit() -> None:
    """Two connections a group: as many files as the system lets us have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
