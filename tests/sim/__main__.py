"""`python -m tests.sim RANKS`: a real monitor over a simulated fleet on real HTTP; what it costs.

A fleet in this process, a monitor in its own (observing, a file of targets). Prints one JSON
object: CPU seconds of the monitor per second, its memory, how many ranks it saw a tick, how long
page and API took, and when it named a rank that was made to hang.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

from tests.sim.fleet import Fleet

ROOT: Final = Path(__file__).resolve().parents[2]
_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")


def main() -> int:
    """One fleet."""
    top = argparse.ArgumentParser(prog="tests.sim", description=__doc__)
    top.add_argument("ranks", type=int)
    top.add_argument("--tick", type=float, default=1.0, metavar="S")
    top.add_argument("--seconds", type=float, default=30.0, metavar="S")
    top.add_argument(
        "--bad",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="of the hosts that are silent, and as many slow, and as many garbage",
    )
    top.add_argument("--hang", action="store_true", help="one rank hangs in the middle")
    args = top.parse_args()  # fmt: skip
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(json.dumps(asyncio.run(_run(args))))
    return 0


async def _run(args: argparse.Namespace) -> dict[str, Any]:
    fleet = Fleet(args.ranks)
    chosen = random.Random(7).sample(fleet.hosts, len(fleet.hosts))
    share = int(args.bad * len(fleet.hosts))
    for at, behaves in enumerate(("silent", "slow", "garbage")):
        for host in chosen[at * share : (at + 1) * share]:
            host.behaves = behaves
    await fleet.serve()
    with tempfile.TemporaryDirectory() as folder:
        targets = Path(folder, "targets.json")
        fleet.write_targets(targets)
        port = 18470
        command = [
            sys.executable, "-m", "monitor.cli", "monitor", "--bind", f"127.0.0.1:{port}",
            "--store", f"{folder}/m.db", "--targets", str(targets), "--observe",
            "--tick", str(args.tick),
        ]  # fmt: skip
        with Path(folder, "log").open("wb") as log:
            monitor = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            return await _measured(args, fleet, monitor, f"http://127.0.0.1:{port}")
        finally:
            monitor.terminate()
            await asyncio.to_thread(monitor.wait, 20)
            if os.environ.get("SIM_LOG"):
                Path(os.environ["SIM_LOG"]).write_bytes(Path(folder, "log").read_bytes())


async def _measured(
    args: argparse.Namespace, fleet: Fleet, monitor: subprocess.Popen[bytes], url: str
) -> dict[str, Any]:
    good = sum(len(host.ranks) for host in fleet.hosts if host.behaves == "well")
    seen = 0
    until_s = time.monotonic() + 60 + 6 * args.tick
    while seen < good and time.monotonic() < until_s:
        await asyncio.sleep(0.5)
        seen = await _healthy(url)
    cpu_s, began_s = _cpu_s(monitor.pid), time.monotonic()
    before = dict(fleet.asked)
    least, slowest_s, named_s = good, 0.0, None
    hung = next(
        rank for rank in fleet.ranks[len(fleet.ranks) // 2 :] if rank.host.behaves == "well"
    )
    while time.monotonic() - began_s < args.seconds:
        await asyncio.sleep(args.tick)
        if args.hang and fleet.stands_s is None and time.monotonic() - began_s > args.seconds / 3:
            fleet.hang(hung)
        asked_s = time.monotonic()
        if fleet.stands_s is None:
            least = min(least, await _healthy(url))
        elif named_s is None:
            told = await asyncio.to_thread(_get, f"{url}/v1/incidents")
            if any(one["culprits"] == [hung.name] for one in told.get("incidents", ())):
                named_s = time.monotonic() - fleet.stands_s
        slowest_s = max(slowest_s, time.monotonic() - asked_s)
    took_s = time.monotonic() - began_s
    status = Path(f"/proc/{monitor.pid}/status").read_text()
    rss = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    asked = {name: round((n - before[name]) / took_s, 1) for name, n in fleet.asked.items()}
    return {
        "ranks": args.ranks, "tick_s": args.tick, "good": good, "seen_at_first": seen,
        "seen_least": least, "cores": round((_cpu_s(monitor.pid) - cpu_s) / took_s, 3),
        "peak_mib": int(rss.split()[1]) >> 10, "api_slowest_s": round(slowest_s, 2),
        "named_after_s": None if named_s is None else round(named_s, 1), "asked_a_second": asked,
    }  # fmt: skip


async def _healthy(url: str) -> int:
    """Ranks that the monitor sees, by its metrics."""
    try:
        page = await asyncio.to_thread(_text, f"{url}/metrics")
    except OSError:
        return 0
    lines = [line for line in page.splitlines() if line.startswith("lightkeeper_ranks{")]
    return int(sum(float(line.split()[-1]) for line in lines
                   if 'unreachable' not in line and 'dead' not in line))  # fmt: skip


def _get(url: str) -> dict[str, Any]:
    try:
        return json.loads(_text(url))
    except (OSError, ValueError):
        return {}


def _text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND


if __name__ == "__main__":
    sys.exit(main())
