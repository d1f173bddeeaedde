"""`python -m experiments.scale RANKS`: what a monitor costs, over a simulated fleet on real HTTP.

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
from pathlib import Path
from statistics import median
from typing import Any, Final

from experiments.scale.fleet import Fleet
from experiments.scale.hostile import ODD_STATES, crowd
from tests.ports import free_port

ROOT: Final = Path(__file__).resolve().parents[2]
_READER: Final = """
import sys, time, urllib.request
for line in sys.stdin:
    began_s = time.monotonic()
    try:
        with urllib.request.urlopen(line.strip(), timeout=10) as answer:
            body = answer.read()
    except OSError:
        body = b""
    sys.stdout.buffer.write(b"%f %d\\n" % (time.monotonic() - began_s, len(body)) + body)
    sys.stdout.buffer.flush()
"""
"""Somebody else's process: in this one the fleet computes."""
SILENT, DRIPPING = 2_000, 1_000
_SCRAPE_S: Final = 5.0
"""Between two looks at /metrics; Prometheus looks each 15."""
_LOOK_S: Final = 2.0
"""Between two looks at the page."""
_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")


def main() -> int:
    """One fleet."""
    top = argparse.ArgumentParser(prog="experiments.scale", description=__doc__)
    top.add_argument("ranks", type=int)
    top.add_argument("--tick", type=float, default=1.0, metavar="S")
    top.add_argument("--seconds", type=float, default=30.0, metavar="S")
    top.add_argument(
        "--warm",
        type=float,
        default=0.0,
        metavar="S",
        help="wait so long before measuring: meanwhile each rank's past steps are read once",
    )
    top.add_argument(
        "--bad",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="of the hosts that are silent, and as many slow, and as many garbage",
    )
    top.add_argument("--a-host", type=int, default=8, metavar="N", help="ranks of a host")
    top.add_argument("--files", type=int, metavar="N", help="the monitor may open no more than N")
    top.add_argument("--hang", action="store_true", help="one rank hangs in the middle")
    top.add_argument(
        "--until-named", action="store_true", help="or after 10 s, and when it is named all ends"
    )
    top.add_argument(
        "--hostile",
        action="store_true",
        help=f"{ODD_STATES} ranks say what no rank says, {SILENT:,} clients say nothing to the "
        f"monitor, and {DRIPPING:,} a byte a second",
    )
    args = top.parse_args()  # fmt: skip
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(json.dumps(asyncio.run(_run(args))))
    return 0


async def _run(args: argparse.Namespace) -> dict[str, Any]:
    fleet = Fleet(args.ranks, args.a_host)
    chosen = random.Random(7).sample(fleet.hosts, len(fleet.hosts))
    share = int(args.bad * len(fleet.hosts))
    for at, behaves in enumerate(("silent", "slow", "garbage")):
        for host in chosen[at * share : (at + 1) * share]:
            host.behaves = behaves
    await fleet.serve()
    clients: list[asyncio.Task[None]] = []
    with tempfile.TemporaryDirectory() as folder:
        fleet.write_targets(Path(folder, "m.db"))
        port = free_port()
        command = [
            sys.executable, "-m", "lightkeeper.monitor.cli", "monitor",
            "--bind", f"127.0.0.1:{port}",
            "--store", f"{folder}/m.db", "--observe",
            "--tick", str(args.tick),
        ]  # fmt: skip
        with Path(folder, "log").open("wb") as log:
            monitor = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        if args.files:
            resource.prlimit(monitor.pid, resource.RLIMIT_NOFILE, (args.files, args.files))
        reader = await Reader.open(f"http://127.0.0.1:{port}")
        try:
            return await _measured(args, fleet, monitor, reader, clients)
        finally:
            reader.close()
            for client in clients:
                client.cancel()
            monitor.terminate()
            await asyncio.to_thread(monitor.wait, 60)
            if os.environ.get("SIM_LOG"):
                Path(os.environ["SIM_LOG"]).write_bytes(Path(folder, "log").read_bytes())


async def _measured(
    args: argparse.Namespace,
    fleet: Fleet,
    monitor: subprocess.Popen[bytes],
    reader: Reader,
    clients: list[asyncio.Task[None]],
) -> dict[str, Any]:
    good = sum(len(host.ranks) for host in fleet.hosts if host.behaves == "well")
    seen = 0
    until_s = time.monotonic() + 60 + 6 * args.tick
    while seen < good and time.monotonic() < until_s:
        await asyncio.sleep(0.5)
        seen = await _healthy(reader)
    if args.hostile:
        clients += await crowd(reader.port, SILENT, DRIPPING)
        for rank in fleet.ranks[-ODD_STATES:]:
            rank.odd = True
        good -= ODD_STATES
        await asyncio.sleep(2 * args.tick)
    await asyncio.sleep(args.warm)
    cpu_s, began_s = _cpu_s(monitor.pid), time.monotonic()
    before = dict(fleet.asked)
    least, named_s = good, None
    reader.seconds = {path: [] for path in reader.seconds}
    hung = next(
        rank for rank in fleet.ranks[len(fleet.ranks) // 4 :] if rank.host.behaves == "well"
    )
    scraped_s = looked_s = began_s
    hangs_s = 10.0 if args.until_named else args.seconds / 3
    while (now_s := time.monotonic()) - began_s < args.seconds:
        if args.until_named and named_s is not None:
            break
        if args.hang and fleet.stands_s is None and now_s - began_s > hangs_s:
            fleet.hang(hung)
        if now_s - scraped_s >= _SCRAPE_S and fleet.stands_s is None:
            scraped_s = now_s
            least = min(least, await _healthy(reader))
        if now_s - looked_s >= _LOOK_S:
            looked_s = now_s
            await reader.get("/")
        body = json.loads(await reader.get("/v1/incidents") or "{}")
        named = any(incident["culprits"] == [hung.name] for incident in body.get("incidents", ()))
        if named and named_s is None and fleet.stands_s is not None:
            named_s = time.monotonic() - fleet.stands_s
        await asyncio.sleep(0.5)
    took_s = time.monotonic() - began_s
    status = Path(f"/proc/{monitor.pid}/status").read_text()
    rss = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    asked = {name: round((n - before[name]) / took_s, 1) for name, n in fleet.asked.items()}
    return {
        "ranks": args.ranks, "tick_s": args.tick, "good": good, "seen_at_first": seen,
        "seen_least": least, "cores": round((_cpu_s(monitor.pid) - cpu_s) / took_s, 3),
        "peak_mib": int(rss.split()[1]) >> 10,
        "slowest_s": {path: round(max(took), 3) for path, took in reader.seconds.items() if took},
        "median_s": {path: round(median(took), 3) for path, took in reader.seconds.items() if took},
        "named_after_s": None if named_s is None else round(named_s, 1), "asked_a_second": asked,
    }  # fmt: skip


class Reader:
    """Asks the monitor, one request after the other, and notes how long the slowest took."""

    def __init__(self, url: str, process: asyncio.subprocess.Process) -> None:
        self._url, self._process = url, process
        self.port = int(url.rpartition(":")[2])
        self.seconds: dict[str, list[float]] = {"/": [], "/v1/incidents": [], "/metrics": []}

    @classmethod
    async def open(cls, url: str) -> Reader:
        """With a process of its own."""
        made = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _READER,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        return cls(url, made)

    async def get(self, path: str) -> str:
        """The body; empty where there is none."""
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("it has no pipes")
        self._process.stdin.write(f"{self._url}{path}\n".encode())
        took_s, length = (await self._process.stdout.readline()).split()
        self.seconds[path].append(float(took_s))
        return (await self._process.stdout.readexactly(int(length))).decode()

    def close(self) -> None:
        """End it."""
        self._process.kill()


async def _healthy(reader: Reader) -> int:
    """Ranks that the monitor sees, by its metrics."""
    page = await reader.get("/metrics")
    lines = [line for line in page.splitlines() if line.startswith("lightkeeper_ranks{")]
    return int(sum(float(line.split()[-1]) for line in lines
                   if 'unreachable' not in line and 'dead' not in line))  # fmt: skip


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND


if __name__ == "__main__":
    sys.exit(main())
