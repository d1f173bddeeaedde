"""A demo fleet that stays up, and what its monitor says."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import requests

from tests.waiting import wait_for

ROOT: Final = Path(__file__).parents[2]
_URL: Final = re.compile(r"Monitor: (http://\S+)")
_START_S: Final = 300.0


class Demo:
    """`lightkeeper demo --keep-running`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._said: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self.url = wait_for(self._url, within_s=_START_S, what="a whole fleet")

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._said.append(line)
            sys.stdout.write(f"demo: {line}")
            sys.stdout.flush()

    def _url(self) -> str | None:
        match = _URL.search("".join(self._said))
        if match is None and self.process.poll() is not None:
            raise AssertionError("the demo ended: " + "".join(self._said[-5:]))
        return None if match is None else match.group(1)

    def said(self, words: str) -> bool:
        """Whether the demo has printed these words."""
        return words in "".join(self._said)

    def get(self, path: str) -> dict[str, Any]:
        """The monitor's JSON."""
        return dict(requests.get(self.url + path, timeout=10).json())

    def kill_ranks(self) -> None:
        """End every rank, and first who would start it again."""
        pids = [int(rank["pid"]) for rank in self.get("/v1/snapshot")["ranks"]]
        for pid in {_parent(pid) for pid in pids} - {self.process.pid}:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def when(self, what: str, condition: Callable[[dict[str, Any]], bool], within_s: float) -> None:
        """Wait for what the monitor sees."""

        def seen() -> bool:
            return condition(self.get("/v1/snapshot"))

        wait_for(seen, within_s=within_s, what=what)


def _parent(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"^PPid:\s+(\d+)$", status, re.MULTILINE)[0])


@contextlib.contextmanager
def demo(fault: str) -> Iterator[Demo]:
    """Two groups of two ranks; the last rank of the second falls ill soon."""
    words = ["demo", "--groups", "2", "--ranks-per-group", "2", "--fault", fault, "--keep-running"]
    process = subprocess.Popen(
        [sys.executable, "-m", "lightkeeper.monitor.cli", *words],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    try:
        yield Demo(process)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
