"""examples/torchtitan as processes: Lighthouse, groups, and what a user would ask with curl."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import requests

from tests.examples.fleet import EXAMPLES
from tests.monitor.process import Monitor, environment
from tests.ports import free_port
from tests.waiting import wait_for

TITAN = EXAMPLES / "torchtitan"
PYTHON = os.environ.get("LIGHTKEEPER_TORCHTITAN_PYTHON", "")
Row = dict[str, Any]


class Bench:
    """One monitor that only observes, and what it watches; everything ends with the test."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._lighthouse = ""
        port = free_port()
        self.monitor = Monitor(
            "--store", str(folder / "monitor.db"), "--observe", "--no-journal",
            "--set", "undeclared_floor_s=5", "--set", "restart_quiet_s=4", port=port,
        )  # fmt: skip
        stack.callback(self.monitor.end)
        self.monitor.ready()

    def lighthouse(self) -> None:
        port = free_port()
        self._lighthouse = f"http://127.0.0.1:{port}"
        self._start(
            "lighthouse", "torchft_lighthouse", "--bind", f"127.0.0.1:{port}", "--min_replicas",
            "1", "--join_timeout_ms", "5000", "--heartbeat_timeout_ms", "10000",
        )  # fmt: skip

    def plain(self, ranks: int, *options: str) -> subprocess.Popen[bytes]:
        return self._start(
            "plain", "torchrun", "--standalone", "--shutdown-timeout=5", "--nproc-per-node",
            str(ranks), str(TITAN / "run.py"), "--module", "debugmodel", "--config", "plain",
            *options,
        )  # fmt: skip

    def group(self, number: int, of: int, ranks: int, *options: str) -> subprocess.Popen[bytes]:
        return self._start(
            f"group_{number}", "sh", str(TITAN / "group.sh"), str(number), str(of), *options,
            RANKS=str(ranks), MASTER_PORT=str(free_port()), TORCHFT_LIGHTHOUSE=self._lighthouse,
        )  # fmt: skip

    def _start(self, name: str, *command: str, **more: str) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context((self._folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            command, cwd=self._folder, stdout=log, stderr=log,
            env=environment(
                PATH=f"{Path(PYTHON).parent}:{os.environ['PATH']}", GLOO_SOCKET_IFNAME="lo",
                OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", LIGHTKEEPER_MONITOR=self.monitor.url,
                LIGHTKEEPER_RUN_DIR=str(self._folder / "run"), LIGHTKEEPER_LINGER_S="3",
                LIGHTKEEPER_FINGERPRINT_EVERY="2", **more,
            ),
        )  # fmt: skip
        self._stack.callback(_end, process)
        return process

    # -- what is seen ------------------------------------------------------------------------

    def ranks(self) -> list[Row]:
        """The monitor's view of the fleet, of the ranks that it reaches."""
        rows: list[Row] = self.monitor.get("/v1/snapshot")["ranks"]
        return [row for row in rows if row["unreachable"] is None]

    def training(self, count: int, *, steps: int, within_s: float = 240) -> list[Row]:
        """The ranks, once so many are healthy and have committed so many steps with a loss."""

        def trained() -> list[Row] | None:
            rows = [row for row in self.ranks() if row["loss"] and (row["commits"] or 0) >= steps]
            return rows if len(rows) == count == sum(map(_healthy, rows)) else None

        return wait_for(trained, within_s=within_s, what=f"{count} ranks train; {self.logs()}")

    def state(self, rank: str) -> Row:
        """The step in the rank's own answer."""
        return state_of(self._row(rank))

    def stop(self, rank: str) -> None:
        """Stop a rank, as a debugger or a swapping host would."""
        pid = self.pid(rank)
        os.kill(pid, signal.SIGSTOP)
        self._stack.callback(os.kill, pid, signal.SIGKILL)  # it would not hear torchrun's SIGTERM

    def pid(self, rank: str) -> int:
        return int(self._row(rank)["pid"])

    def _row(self, rank: str) -> Row:
        [row] = [row for row in self.monitor.get("/v1/snapshot")["ranks"] if row["rank"] == rank]
        return dict(row)

    def fired(self) -> dict[str, Row]:
        """Every incident that ever fired, by its id."""
        items = self.monitor.get("/v1/incidents")["incidents"]
        return {
            item["id"]: item
            for item in items
            if any(line["to"] == "firing" for line in item["story"])
        }

    def named(self, seen: Collection[str] = (), within_s: float = 120) -> Row:
        """The first incident that fires and is none of these."""
        began = time.monotonic()

        def fresh() -> Row | None:
            return next((item for key, item in self.fired().items() if key not in seen), None)

        item = wait_for(fresh, within_s=within_s, what=f"an incident fires; {self.logs()}")
        print(f"{item['kind']} {item['culprits']} after {time.monotonic() - began:.1f} s")
        return item

    def logs(self) -> str:
        return f"logs in {self._folder}"


def state_of(row: Row) -> Row:
    """The step in the rank's own answer; empty when its WorkerServer is gone with it."""
    try:
        answer: Row = requests.get(f"{row['url']}/v1/state", timeout=5).json()["step"]
    except requests.RequestException:
        return {}
    return answer


@contextmanager
def bench(folder: Path) -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(folder, stack)


def _healthy(row: Row) -> bool:
    return bool(row["health"] == "healthy")


def _end(process: subprocess.Popen[bytes]) -> None:
    """By SIGTERM, which group.sh and torchrun pass on: the ranks have sessions of their own."""
    process.terminate()
    process.wait(60)
