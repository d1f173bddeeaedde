"""Training runs in blocks, forked from one warm process; see `block_parent`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from lightkeeper.worker_server import run_dir
from tests.ports import free_port
from tests.waiting import wait_for
from tests.worker_server.ranks import TOKEN, Rank, environment


class Blocks:
    """Starts blocks; each has a log of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pids: dict[int, int | None] = {}
        self._count = 0
        self._parent = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("block_parent.py"))],
            env=environment(
                folder, LIGHTKEEPER_TOKEN=TOKEN, LIGHTKEEPER_LINGER_S="1", RUST_LOG="error"
            ),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def start(self, kind: str, *, ranks: int = 1, attached: bool = True, **more: object) -> Block:
        self._count += 1
        log = self.folder / f"block-{self._count}.log"
        order = {"kind": kind, "ranks": ranks, "attached": attached, "log": str(log),
                 "group": f"b{self._count}", "port": free_port(), **more}  # fmt: skip
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps(order) + "\n")
        self._parent.stdin.flush()
        pids = json.loads(self._parent.stdout.readline())
        self._pids.update({pid: run_dir.start_ticks(pid) for pid in pids})
        return Block(log, [Rank(pid, self.folder) for pid in pids])

    def close(self) -> None:
        for pid, ticks in self._pids.items():
            if ticks is not None and run_dir.start_ticks(pid) == ticks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.close()
        self._parent.wait(10)
        self._parent.stdout.close()


class Block:
    """One run and its log."""

    def __init__(self, log: Path, ranks: list[Rank]) -> None:
        self.log = log
        self.ranks = ranks

    def ended(self) -> bool:
        return all(run_dir.start_ticks(rank.pid) is None for rank in self.ranks)

    def join(self, within_s: float = 300.0) -> None:
        wait_for(self.ended, within_s=within_s, what=f"{self.log.name} ends")

    def samples(self) -> list[tuple[float, float]]:
        """(time, seconds) of each step of rank 0."""
        if not self.log.exists():
            return []
        rows = []
        for line in self.log.read_text().split("\n")[:-1]:
            if line.startswith("{"):
                row = json.loads(line)
                if row["event"] == "step":
                    rows.append((row["time"], row["seconds"]))
            elif len(parts := line.split()) == 2:
                rows.append((float(parts[0]), float(parts[1])))
        return rows


class Poller(threading.Thread):
    """Asks each rank for its state once a second, as the monitor does."""

    def __init__(self, ranks: list[Rank]) -> None:
        super().__init__(daemon=True)
        self._ranks = ranks
        self._over = threading.Event()
        self.answers = 0

    def run(self) -> None:
        while not self._over.wait(1.0):
            for rank in self._ranks:
                with contextlib.suppress(OSError, AssertionError):
                    rank.state()
                    self.answers += 1

    def stop(self) -> None:
        self._over.set()
        self.join(10)


@contextlib.contextmanager
def block_folder():
    with tempfile.TemporaryDirectory(prefix="lk-", dir="/tmp", ignore_cleanup_errors=True) as name:
        blocks = Blocks(Path(name))
        try:
            yield blocks
        finally:
            blocks.close()
            time.sleep(1.5)  # sidecars linger for a second
