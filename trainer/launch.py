"""One launch: torchrun, the ranks it started, and how to be sure that none of them survives.

A rank may be stopped, or hold the GIL for ever, and torchrun puts each rank into a session of
its own. So whatever a launch starts carries a mark in its environment, and is found by it in
/proc. Sidecars carry the mark too, but outlive their rank on purpose (they are the black box):
only `Launcher.close` ends them.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

MARK: Final = "LIGHTKEEPER_LAUNCH"
"""Environment variable by which everything that a launch started is found again."""
_SIDECAR: Final = re.compile(rb"worker_server[./]sidecar")


class Launch(Protocol):
    """One torchrun and what it started."""

    @property
    def pid(self) -> int:
        """Of torchrun."""

    def poll(self) -> int | None:
        """Return code once torchrun has left (negative: killed by that signal), else None."""

    def stop(self) -> None:
        """End torchrun and its ranks; returns when they are gone."""

    def sweep(self) -> list[int]:
        """Kill ranks that outlived torchrun; who was killed."""


class Launcher(Protocol):
    """Starts launches."""

    def start(self, host: str) -> Launch:
        """Start torchrun for the group on `host`."""

    def close(self) -> list[int]:
        """End whatever any launch of this supervisor left, sidecars too; who was ended."""


def marked(mark: str, proc: Path = Path("/proc")) -> Iterator[int]:
    """Processes whose environment held `mark` (a launch, or a prefix of several) at their start."""
    needle = f"{MARK}={mark}".encode()
    for entry in proc.iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            environ = (entry / "environ").read_bytes()
        except OSError:  # gone in the meantime, or another user's
            continue
        if any(item.startswith(needle) for item in environ.split(b"\0")):
            yield int(entry.name)


def _is_sidecar(pid: int) -> bool:
    try:
        return bool(_SIDECAR.search(Path(f"/proc/{pid}/cmdline").read_bytes()))
    except OSError:
        return False


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _wait_gone(pids: Sequence[int], limit_s: float) -> list[int]:
    """Who is still there after `limit_s`."""
    until = time.monotonic() + limit_s
    while (left := [pid for pid in pids if _alive(pid)]) and time.monotonic() < until:
        time.sleep(0.05)
    return left


_LIBC: Final = ctypes.CDLL(None)
_PR_SET_PDEATHSIG: Final = 1


def die_with_parent() -> None:
    """In the child, between fork and exec: SIGTERM when the parent dies, however it dies.

    For parents with one thread only: it runs Python code after a fork.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass
class TorchrunLaunch:
    """A torchrun in a session of its own."""

    process: subprocess.Popen[bytes]
    mark: str
    grace_s: float

    @property
    def pid(self) -> int:
        """Of torchrun."""
        return self.process.pid

    def poll(self) -> int | None:
        """See `Launch`."""
        return self.process.poll()

    def stop(self) -> None:
        """See `Launch`; torchrun passes SIGTERM on to its ranks."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                os.killpg(self.process.pid, number)
            try:
                self.process.wait(self.grace_s)
                break
            except subprocess.TimeoutExpired:
                continue
        self.sweep()

    def sweep(self) -> list[int]:
        """See `Launch`."""
        left = [pid for pid in marked(self.mark + ";") if not _is_sidecar(pid)]
        _signal(left, signal.SIGKILL)
        _wait_gone(left, self.grace_s)
        return left


@dataclass
class TorchrunLauncher:
    """Starts torchrun for one group with a fresh rendezvous port each time."""

    group: str
    nproc: int
    arguments: Sequence[str]
    monitor: str | None = None
    log_dir: Path | None = None
    grace_s: float = 5.0
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    _count: int = 0

    def command(self) -> list[str]:
        """What runs: torchrun chooses a free port itself and does not restart ranks."""
        return [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={self.nproc}",
            "--max-restarts=0",
            f"--shutdown-timeout={max(1, round(self.grace_s / 2))}",
            "-m",
            "trainer.train",
            *self.arguments,
        ]

    def environment(self, host: str, mark: str) -> dict[str, str]:
        """The environment of the ranks."""
        environ = {
            **os.environ,
            "LIGHTKEEPER_HOST": host,
            "REPLICA_GROUP": self.group,
            MARK: mark + ";",
        }
        for stale in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
            environ.pop(stale, None)
        environ.setdefault("OMP_NUM_THREADS", "1")
        if self.monitor is not None:
            environ.setdefault("LIGHTKEEPER_MONITOR", self.monitor)
        return environ

    def start(self, host: str) -> TorchrunLaunch:
        """See `Launcher`."""
        self._count += 1
        mark = f"{self.run_id}.{self._count}"
        output = None
        if self.log_dir is not None:
            self.log_dir.mkdir(parents=True, exist_ok=True)
            output = (self.log_dir / f"{self.group}.log").open("ab")
        try:
            process = subprocess.Popen(
                self.command(),
                env=self.environment(host, mark),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - this process has one thread
            )
        finally:
            if output is not None:
                output.close()
        return TorchrunLaunch(process, mark, self.grace_s)

    def close(self) -> list[int]:
        """See `Launcher`."""
        left = list(marked(self.run_id + "."))
        _signal(left, signal.SIGTERM)
        stubborn = _wait_gone(left, self.grace_s)
        _signal(stubborn, signal.SIGKILL)
        _wait_gone(stubborn, self.grace_s)
        return left
