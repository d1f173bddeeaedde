"""The monitor as a process of its own, as a user starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import requests

from lightkeeper.worker_server.wire import to_json
from tests.monitor.fakes import FakeRank, wait_until

ROOT = Path(__file__).parents[2]
TOKEN = "secret"
QUICK = ("--tick", "0.2", "--set", "stall_floor_s=1", "--set", "warm_up_commits=0",
         "--set", "warm_up_budget_s=0")  # fmt: skip
"""A hang is seen within seconds."""


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LIGHTKEEPER", "TORCHFT"))}
    return {**kept, "PYTHONPATH": str(ROOT), "LIGHTKEEPER_TOKEN": "", **more}


def lightkeeper(*words: str, timeout_s: float = 60, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lightkeeper.monitor.cli", *words], env=environment(**env),
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip


def into_closed_pipe(*words: str) -> tuple[int, bytes]:
    """Exit status and stderr of a command whose output nobody reads (`| head`, which is gone)."""
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-m", "lightkeeper.monitor.cli", *words], env=environment(), cwd=ROOT,
        stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False,
    )  # fmt: skip
    os.close(writing)
    return ended.returncode, ended.stderr


class Monitor:
    """`lightkeeper monitor` until it is killed."""

    def __init__(self, *words: str, port: int, **env: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.began = time.monotonic()
        own = ["-m", "lightkeeper.monitor.cli", "monitor", "--bind", f"127.0.0.1:{port}"]
        self.process = subprocess.Popen(
            [sys.executable, *own, *words], stderr=subprocess.PIPE, text=True,
            env=environment(**env),
        )  # fmt: skip
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        options.setdefault("headers", {"Authorization": f"Bearer {TOKEN}"})
        return requests.request(method, self.url + path, timeout=10, **options)

    def get(self, path: str) -> Any:
        return self.call("GET", path).json()

    def ready(self) -> float:
        """Seconds from the start of the process until it has looked once."""

        def answers() -> bool:
            assert self.process.poll() is None, "".join(self.lines)
            try:
                return self.call("GET", "/readyz").status_code == 200
            except requests.RequestException:
                return False

        wait_until(answers, 60, "the monitor is ready")  # seen at a load of 40: over 30 s
        return time.monotonic() - self.began

    def register(self, *ranks: FakeRank) -> None:
        for rank in ranks:
            answer = self.call("POST", "/v1/register", json=to_json(rank.registration()))
            assert answer.status_code == 200, answer.text

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(10)
        self._reader.join(5)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


class Training:
    """Lets fake ranks make progress until it is told to stop."""

    def __init__(self, *ranks: FakeRank) -> None:
        self.ranks = list(ranks)
        self.hung: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stop.wait(0.05):
            now = time.monotonic()
            for rank in self.ranks:
                if rank.identity.group in self.hung:
                    rank.phase_age_s = now - began
                elif self.hung:
                    rank.phase, rank.phase_age_s = "communication", now - began
                else:
                    began = now
                    rank.step += 1

    def close(self) -> None:
        self._stop.set()
        self._thread.join(5)
