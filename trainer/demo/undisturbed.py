"""The fleet before anything is broken: how fast it trains, and what each kind of process takes."""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trainer.demo.watch import MonitorClient

_LOOK_S: Final = 4.0
_ROLES: Final = (
    ("ranks", re.compile(r"trainer\.train")),
    ("WorkerServers", re.compile(r"worker_server[./]sidecar")),
    ("monitor", re.compile(r"monitor\.cli\S* monitor")),
    ("gate", re.compile(r"monitor\.cli\S* gate")),
    ("Lighthouse", re.compile(r"torchft_lighthouse")),
)
_LAUNCHERS: Final = re.compile(r"torch\.distributed\.run|trainer\.supervisor")
_PSS: Final = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """Measured while every rank commits."""

    steps_per_s: float
    """Committed steps of the job."""
    memory: dict[str, tuple[int, int]]
    """Role -> processes, and bytes of all of them together; a shared page counts once (PSS)."""

    def to_json(self) -> dict[str, Any]:
        """Plain types."""
        return {
            "steps_per_s": round(self.steps_per_s, 2),
            "memory": {
                role: {"processes": count, "bytes": size}
                for role, (count, size) in self.memory.items()
            },
        }

    def line(self) -> str:
        """For people."""
        parts = [
            f"{count} {role} x {size / count / 2**20:.0f}"
            if count > 1
            else f"{role} {size / 2**20:.0f}"
            for role, (count, size) in self.memory.items()
        ]
        return f"{self.steps_per_s:.1f} steps/s; MiB: {', '.join(parts)}"


def look(client: MonitorClient, run_dir: Path) -> Undisturbed:
    """Watch a whole fleet for some seconds.

    Raises:
        MonitorAwayError: the monitor does not answer.
    """
    first, began_s = _step(client), time.monotonic()
    time.sleep(_LOOK_S)
    steps_per_s = (_step(client) - first) / (time.monotonic() - began_s)
    return Undisturbed(steps_per_s, memory(run_dir))


def _step(client: MonitorClient) -> int:
    return max(rank.get("step") or 0 for rank in client.snapshot()["ranks"])


def memory(run_dir: Path, proc: Path = Path("/proc")) -> dict[str, tuple[int, int]]:
    """Role -> processes and bytes, of everything that names the run directory."""
    found: dict[str, tuple[int, int]] = {}
    for entry in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError, AttributeError):  # gone in the meantime
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            mine = str(run_dir).encode() in (entry / "environ").read_bytes()
            role = role_of(command)
            if role is None or not (mine or str(run_dir) in command):
                continue
            kilobytes = int(_PSS.search((entry / "smaps_rollup").read_text())[1])  # type: ignore[index]
            count, size = found.get(role, (0, 0))
            found[role] = count + 1, size + 1024 * kilobytes
    return {role: found[role] for role, _ in (*_ROLES, ("launchers", None)) if role in found}


def role_of(command: str) -> str | None:
    """What a process of the demo is, by its command line."""
    if _LAUNCHERS.search(command):
        return "launchers"
    return next((role for role, pattern in _ROLES if pattern.search(command)), None)
