"""Which process of a fleet is what: found from outside, by what each leaves about itself."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from experiments.fleet import Fleet, Setting
from experiments.harness import StepLog
from lightkeeper.trainer import status

_PASSING: Final = (b"experiments.killing.keep", b"py-spy", b"py_spy")
"""Init's part, and processes that live for a second."""


def ticks(pid: int) -> int | None:
    """Start time of a process that runs; None of one that is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def expected(setting: Setting) -> list[str]:
    """Names of all processes, in the order in which they are killed."""
    names = [f"rg_{group}" for group in range(setting.groups)]
    ranks = [f"{name}.{rank}" for name in names for rank in range(setting.ranks)]
    return [
        "lighthouse",
        *(["gate"] if setting.gate else []),
        "monitor",
        *(f"supervisor {name}" for name in names),
        *(f"torchrun {name}" for name in names),
        *(f"rank {name}" for name in ranks),
        *(f"sidecar {name}" for name in ranks),
        "witnesses",
    ]


class Roles:
    """Finds the processes of one fleet, over and over."""

    def __init__(self, fleet: Fleet, steps: StepLog) -> None:
        self._folder = fleet.folder
        self._steps = steps
        self.expected = expected(fleet.setting)

    def find(self) -> dict[str, int]:
        """Name -> pid of all that run, in the order of `expected`."""
        pids = {**self._units(), **self._launches(), **self._ranks()}
        pids |= self._sidecars(pids)
        panel = next((pid for pid in self._all() if b"witnesses.panel" in _command(pid)), None)
        pids |= {} if panel is None else {"witnesses": panel}
        alive = {name: pid for name, pid in pids.items() if ticks(pid) is not None}
        return {name: alive[name] for name in self.expected if name in alive}

    def missing(self) -> list[str]:
        """Who is not there."""
        pids = self.find()
        return [name for name in self.expected if name not in pids]

    def others(self) -> dict[int, str]:
        """Processes of the fleet that have no name here, with their command lines."""
        named = set(self.find().values()) | set(self._of_the_dead())
        words_by_pid = {}
        for pid in self._all():
            words = _command(pid)
            if pid not in named and words and not any(word in words for word in _PASSING):
                words_by_pid[pid] = words.replace(b"\0", b" ").decode(errors="replace").strip()
        return words_by_pid

    # -- where each tells of itself ---------------------------------------------------------

    def _units(self) -> dict[str, int]:
        lines = status.read_events(self._folder / "events" / "units.jsonl")
        return {
            str(line["unit"]).replace("supervisor-", "supervisor "): line["pid"]
            for line in lines
            if line["event"] == "started"
        } | self._forked_supervisors()

    def _forked_supervisors(self) -> dict[str, int]:
        path = self._folder / "supervisors.json"
        pids = json.loads(path.read_text()) if path.exists() else {}
        return {f"supervisor {group}": pid for group, pid in pids.items()}

    def _launches(self) -> dict[str, int]:
        return {
            f"torchrun {path.stem}": line["pid"]
            for path in (self._folder / "events").glob("rg_*.jsonl")
            for line in status.read_events(path)
            if line["event"] == "started"
        }

    def _ranks(self) -> dict[str, int]:
        lines = self._steps.read()
        return {f"rank {line['rank']}": line["pid"] for line in lines if line["event"] == "started"}

    def _endpoints(self) -> Iterator[dict[str, Any]]:
        for path in (self._folder / "run").glob("*.json"):
            with contextlib.suppress(OSError, ValueError):
                endpoint = json.loads(path.read_text())
                if "sidecar_pid" in endpoint:
                    yield endpoint

    def _sidecars(self, pids: dict[str, int]) -> dict[str, int]:
        ranks = {pid: name for name, pid in pids.items() if name.startswith("rank ")}
        return {
            ranks[endpoint["pid"]].replace("rank", "sidecar"): endpoint["sidecar_pid"]
            for endpoint in self._endpoints()
            if endpoint["pid"] in ranks
        }

    def _of_the_dead(self) -> list[int]:
        """Sidecars that outlive their rank for two minutes."""
        return [
            endpoint["sidecar_pid"]
            for endpoint in self._endpoints()
            if ticks(endpoint["pid"]) is None
        ]

    def _all(self) -> Iterator[int]:
        mark = f"LIGHTKEEPER_RUN_DIR={self._folder / 'run'}".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
