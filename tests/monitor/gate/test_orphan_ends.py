"""A worker without a keeper, in memory: its name, and when it ends by itself."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket

import pytest

from lightkeeper.monitor.gate.denylist import Denial, DenialScope
from lightkeeper.monitor.gate.hot_restart import (
    ALL,
    ReadPositions,
    SharedState,
    SupervisorLink,
    name_of,
    pair,
    receive,
    shown,
)
from lightkeeper.monitor.gate.listener import listen, resolve
from tests.monitor.gate.wires import bench


@pytest.mark.parametrize("clients", [0, 1])
def test_it_ends_when_nobody_has_been_connected_for_long_and_not_before(clients: int) -> None:
    ended: list[int] = []
    ours, theirs = pair()
    listener = socket.create_server(("127.0.0.1", 0))
    with bench() as gate, ours, listener:
        for _ in range(clients):
            gate.client()
        link = SupervisorLink(gate.core, ours, [listener], ReadPositions(), alone_s=0.05)
        theirs.close()

        async def serve() -> None:
            loop = asyncio.get_running_loop()
            stop = asyncio.Event()
            loop.add_signal_handler(signal.SIGTERM, lambda: (ended.append(1), stop.set()))
            task = loop.create_task(link.serve())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 5.0 if not clients else 0.5)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            loop.remove_signal_handler(signal.SIGTERM)

        gate.loop.run_until_complete(serve())
        assert bool(ended) == (not clients)
        assert link.kept is False


@pytest.mark.parametrize(
    ("host", "text"), [("localhost", "127.0.0.1"), ("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")]
)
def test_it_waits_under_the_name_by_which_the_next_gate_asks(host: str, text: str) -> None:
    with listen(host, 0) as listener:
        port = listener.getsockname()[1]
        waits = name_of(listener.getsockname(), 4711)
        asks = name_of(resolve(host, port)[1], "")
    assert waits.startswith(asks)
    assert shown(waits) == f"{text}:{port} (pid 4711)"


@pytest.mark.parametrize("host", ["::", "0:0::0", "0.0.0.0"])
def test_every_address_has_one_name(host: str) -> None:
    name = name_of(resolve(host, 29511)[1], "")
    assert name.startswith(
        b"\0lightkeeper-gate/6/0.0.0.0/" if "." in host else b"\0lightkeeper-gate/6/::/"
    )


def test_a_list_that_is_too_long_to_be_told_keeps_no_gate_from_taking_over() -> None:
    long = [Denial(DenialScope.HOST, f"node-{n}", "bad memory " * 20) for n in range(2000)]
    (ours, _keeper), (worker, gate_that_comes) = pair(), pair()
    state = SharedState()
    with bench() as gate, socket.create_server(("127.0.0.1", 0)) as listener:
        gate.core.deny(long)
        link = SupervisorLink(gate.core, ours, [listener], ReadPositions())
        assert link.hand_over(worker)
        while (said := receive(gate_that_comes))[0][:1] != ALL:
            state.note(*said)
    assert (len(state.listeners), state.denied) == (1, b"")
    state.close()
    for end in (ours, _keeper, worker, gate_that_comes):
        end.close()
