"""A worker without a keeper, in memory: its name, and when it ends by itself."""

from __future__ import annotations

import asyncio
import signal
import socket

import pytest

from monitor.gate import bequest
from monitor.gate.keeping import Keeping
from monitor.gate.orphan import Orphan
from monitor.gate.serve import listen, resolve
from monitor.gate.succession import told
from tests.monitor.gate.wires import bench


@pytest.mark.parametrize("clients", [0, 1])
def test_it_ends_when_nobody_has_been_connected_for_long_and_not_before(
    clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitor.gate.orphan._LOOK_S", 0.01)
    ended: list[int] = []
    ends = bequest.pair()
    listener = socket.create_server(("127.0.0.1", 0))
    with bench() as gate, ends[0], ends[1], listener:
        for _ in range(clients):
            gate.client()
        orphan = Orphan(gate.core, Keeping(ends[0], bequest.Page.make()), [listener], alone_s=0.05)

        async def serve_on() -> None:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, ended.append, 1)
            task = loop.create_task(orphan.serve_on())
            await asyncio.wait([task], timeout=5.0 if not clients else 0.5)
            assert task.done() == (not clients)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.sleep(0.05)
            loop.remove_signal_handler(signal.SIGTERM)

        gate.loop.run_until_complete(serve_on())
        assert bool(ended) == (not clients)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("host", "shown"), [("localhost", "127.0.0.1"), ("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")]
)
def test_it_waits_under_the_name_by_which_the_next_gate_asks(host: str, shown: str) -> None:
    with listen(host, 0) as listener:
        port = listener.getsockname()[1]
        waits = bequest.successor_address(listener.getsockname(), 4711)
        asks = bequest.successor_address(resolve(host, port)[1], "")
    assert waits.startswith(asks)
    assert told(waits) == f"{shown}:{port} (pid 4711)"


@pytest.mark.parametrize("host", ["::", "0:0::0", "0.0.0.0"])
def test_every_address_has_one_name(host: str) -> None:
    name = bequest.successor_address(resolve(host, 29511)[1], "")
    assert name.startswith(
        b"\0lightkeeper-gate/2/0.0.0.0/" if "." in host else b"\0lightkeeper-gate/2/::/"
    )
