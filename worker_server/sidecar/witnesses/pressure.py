"""What the kernel says of work that waits for a disk, for memory or for a core, and who takes it.

Linux counts the share of time in which some task, or every task that has work, waited
(pressure stall information, Documentation/accounting/psi.rst).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from lightkeeper.worker_server.sidecar.process import Activity, Counts, counts
from lightkeeper.worker_server.sidecar.witnesses import counting
from lightkeeper.worker_server.sidecar.witnesses.counting import text_of
from lightkeeper.worker_server.wire import Weight

_FULL: Final = {"io": ("a disk", 20.0), "memory": ("memory", 10.0)}
"""Per cent of 10 s in which all work waited: nothing else ran meanwhile."""
_CPU_SOME: Final = 20.0
"""Per cent; below it nobody asks further: some task waits for a core on any busy host."""
_STARVED: Final = 0.5
"""Share of its time in which a rank's thread was ready and had no core, as the monitor takes it.
Beside two compilers on two busy cores it is 0.43 (measured)."""
_CORES, _BYTES_S = 0.2, 5e6
"""Who takes less is not named."""
_PROCESSES_MOST: Final = 4096
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class _Use(NamedTuple):
    parent: int
    name: str
    cpu_s: float
    nbytes: int
    """Read from and written to disks; 0 where that is hidden."""


class Pressure(counting.Counting):
    """Reads the pressure of the host and of its ranks' cgroups, and names who takes most."""

    name = "pressure"

    def __init__(self, root: Path = Path("/"), count: Callable[[int], Counts] = counts) -> None:
        super().__init__(root)
        self._count = count
        self._uses: tuple[float, dict[int, _Use]] = (0.0, {})
        self._activities: dict[int, Activity] = {}

    def _read(self) -> None:
        folder = self.root / "proc/pressure"
        busy = _share(counting.needed(folder / "cpu"), "some") >= _CPU_SOME
        places = {folder: ("the host", "{}", list[int]())}
        for pid in self.ranks:
            with suppress(OSError):
                own, *above = self.levels(pid)
                if above:  # the topmost is the host
                    row = f"cgroup {own.name[-60:]}", "{}.pressure", list[int]()
                    places.setdefault(own.folder, row)[2].append(pid)
        high = [
            (name, what, share, where, pids)
            for place, (where, file, pids) in places.items()
            for name, (what, most) in _FULL.items()
            if (share := _share(text_of(place / file.format(name)) or "", "full")) >= most
        ]
        disk, core = self._neighbours() if busy or high else ("", "")
        for name, what, share, where, pids in high:
            text = f"all work of {where} waited for {what} in {share:.0f} % of the last 10 s"
            text += disk if name == "io" else ""
            self.saw(Weight.SLOW, f"{name}-pressure", text, about=where, pids=pids, for_s=10.0)
        self._activities = {
            pid: self._activities.get(pid) or Activity(pid, lambda: self.now_s, self._count)
            for pid in (self.ranks if busy else ())
        }
        for pid, activity in self._activities.items():
            if (starved := activity.rates().get("starved", 0.0)) >= _STARVED:
                text = f"pid {pid} was ready and had no core for {starved:.0%} of the last seconds"
                self.saw(Weight.SLOW, "cpu-pressure", text + core, about=str(pid), pids=(pid,))

    def _neighbours(self) -> tuple[str, str]:
        """Which process that is no rank's used disks most, and which cores, since the last look."""
        (before_s, before), uses = self._uses, _uses(self.root)
        self._uses, span_s = (self.now_s, uses), self.now_s - before_s
        if not 0.0 < span_s <= 3 * self.every_s:
            return "", ""
        others = {
            f"; pid {pid} ({use.name})": (use, before[pid])
            for pid, use in uses.items()
            if pid in before and not _descends(pid, self.ranks, uses)
        }
        moved = {who: (now.nbytes - old.nbytes) / span_s for who, (now, old) in others.items()}
        cores = {who: (now.cpu_s - old.cpu_s) / span_s for who, (now, old) in others.items()}
        disk, core = (max(each, key=each.__getitem__, default="") for each in (moved, cores))
        return (
            f"{disk} moves {moved[disk] / 1e6:.0f} MB/s" if moved.get(disk, 0) >= _BYTES_S else "",
            f"{core} uses {cores[core]:.1f} cores" if cores.get(core, 0) >= _CORES else "",
        )


def _descends(pid: int, ranks: Collection[int], uses: dict[int, _Use]) -> bool:
    """Whether a process is a rank, or was started by one."""
    for _ in range(16):
        if pid in ranks or pid not in uses:
            break
        pid = uses[pid].parent
    return pid in ranks


def _share(text: str, kind: str) -> float:
    """Per cent of the last 10 s; 0 if the kernel does not say."""
    rows = (line.split() for line in text.splitlines() if line.startswith(f"{kind} avg10="))
    return next((float(row[1].partition("=")[2]) for row in rows), 0.0)


def _uses(root: Path) -> dict[int, _Use]:
    uses = {}
    for folder in islice((root / "proc").glob("[1-9]*"), _PROCESSES_MOST):
        head, _, rest = (text_of(folder / "stat") or "").rpartition(")")
        if len(fields := rest.split()) > 12:
            moved = counting.table(folder / "io")
            nbytes = moved.get("read_bytes:", 0) + moved.get("write_bytes:", 0)
            cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS
            uses[int(folder.name)] = _Use(int(fields[1]), head.partition("(")[2], cpu_s, nbytes)
    return uses
