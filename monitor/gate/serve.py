"""Runs one gate on listening sockets that are given to it, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

from aiohttp import web

from monitor.clock import SteadyClock
from monitor.gate.admin import Admin
from monitor.gate.listener import BACKLOG, GateOptions, NewClient, raise_file_limit
from monitor.gate.proxy import CLIENTS_MAX, TICK_S, Proxy
from monitor.gate.quorum_ids import QuorumIds
from monitor.gate.state_file import StateFile

log = logging.getLogger("lightkeeper.gate")

_AT_ONCE: Final = 32
"""Clients that are accepted in one turn of the loop."""
_FORGET_S: Final = 10.0
_AHEAD_S: Final = 1.0


def run(
    options: GateOptions,
    listeners: Sequence[socket.socket],
    prepare: Callable[[Proxy], Awaitable[None]] | None = None,
) -> None:
    """Serve until SIGTERM. `listeners`: for groups and, where there is one, the admin port;
    `prepare`: called before anybody is let in.
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

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(until_stopped())


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


@contextlib.asynccontextmanager
async def serving(
    options: GateOptions,
    listeners: Sequence[socket.socket],
    prepare: Callable[[Proxy], Awaitable[None]] | None = None,
    clients_max: int = CLIENTS_MAX,
) -> AsyncIterator[Admin]:
    """A gate that serves within the block."""
    loop = asyncio.get_running_loop()
    clock = SteadyClock().now_s
    proxy = Proxy(options.lighthouse, clock, hold_s=options.hold_s, clients_max=clients_max)
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
    gate.listen(BACKLOG)  # what waits in the kernel; asyncio takes the other for both
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
        except Exception:  # one call that cannot be served must not stop time for the others
            log.exception("a tick failed")


async def _forget(proxy: Proxy) -> None:
    while True:
        await asyncio.sleep(_FORGET_S)
        proxy.admission.forget()


async def _stay_ahead(proxy: Proxy, state: StateFile) -> None:
    """The disk knows of quorum ids before the groups are told them."""
    while state.exists:
        number = proxy.quorum_ids.reserve(state.reserved)
        if number is not None:
            await state.reserve(number)
        await asyncio.sleep(_AHEAD_S)
