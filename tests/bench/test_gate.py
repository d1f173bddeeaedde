"""What the gate adds to a heartbeat, and how many it carries: direct and through it, one run.

Real Lighthouse, managers' heartbeats from one process of ours; CPU of gate and Lighthouse from
/proc, so that the figures mean something on a machine that is busy with other things.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from tests.gate.groups import Gate, Lighthouse, running
from tests.ports import free_port
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.skipif(
        os.environ.get("LIGHTKEEPER_BENCH") != "1", reason="a benchmark: set LIGHTKEEPER_BENCH=1"
    ),
    pytest.mark.timeout(600),
]

INTERVAL_S = 0.1  # TorchFT's own
SECONDS = 5.0


def kept(pid: int) -> tuple[int, float]:
    """Open files, and MB in memory, of a process."""
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    status = Path(f"/proc/{pid}/status").read_text()
    memory = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return files, int(memory.split()[1]) / 1024


def cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def run(url: str, clients: int, pid: int, seconds: float = SECONDS) -> dict[str, float]:
    words = [url, str(clients), str(INTERVAL_S), str(seconds)]
    before = cpu_s(pid)
    ended = subprocess.run(
        [sys.executable, "-m", "tests.bench.beats", *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    report = json.loads(ended.stdout)
    whole = report["beats"] * (seconds + 1.0) / seconds  # with the warming up
    return {**report, "us": (cpu_s(pid) - before) / whole * 1e6}


@pytest.mark.parametrize("clients", [1, 10, 100, 1000])
def test_heartbeats_direct_and_through_the_gate(clients: int) -> None:
    lighthouse = Lighthouse(free_port(), heartbeat_timeout_ms=5000)
    gate = Gate(lighthouse.url, free_port(), free_port())
    with running(lighthouse, gate):
        direct = run(lighthouse.url, clients, lighthouse.pid)
        through = run(gate.url, clients, gate.process.pid)
    print(
        f"\n{clients} clients: direct {direct['per_s']:.0f}/s p50 {direct['p50_ms']:.2f} ms "
        f"p99 {direct['p99_ms']:.2f} ms (Lighthouse {direct['us']:.0f} us each); gate "
        f"{through['per_s']:.0f}/s p50 {through['p50_ms']:.2f} ms p99 {through['p99_ms']:.2f} ms "
        f"(gate {through['us']:.0f} us each)"
    )
    assert through["beats"] > 0


def test_clients_that_come_and_go_leave_nothing_behind() -> None:
    """10 rounds of 1,000 connections, each with one to the Lighthouse, after 2 to warm up."""
    lighthouse = Lighthouse(free_port(), heartbeat_timeout_ms=5000)
    gate = Gate(lighthouse.url, free_port(), free_port())
    with running(lighthouse, gate):
        worker, keeper = gate.process.pid, gate.process.pid
        seen: list[tuple[int, float]] = []
        for rounds in (2, 5, 5):
            answered = churn(gate.url, 1000, rounds)
            wait_for(lambda: connections(gate) == 0, within_s=30, what="all are gone")
            seen.append(kept(worker))
            print(f"\n{rounds} rounds: {answered} beats; worker {seen[-1]}, keeper {kept(keeper)}")
        assert seen[2][0] <= seen[0][0] + 2
        assert seen[2][1] < seen[0][1] + 5


def churn(url: str, clients: int, rounds: int) -> int:
    words = ["-m", "tests.bench.churn", url, str(clients), str(rounds)]
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=True, timeout=500, cwd=root
    )
    return int(ended.stdout)


def connections(gate: Gate) -> int:
    text = requests.get(f"{gate.admin}/metrics", timeout=30).text
    return int(float(text.split("\nlightkeeper_gate_connections ")[1].split()[0]))
