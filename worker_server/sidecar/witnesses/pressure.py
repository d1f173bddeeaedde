"""What the kernel says of work that waits for a disk, for memory or for a core.

Linux counts the share of time in which some task, or every task that has work, waited
(pressure stall information, Documentation/accounting/psi.rst).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lightkeeper.worker_server.sidecar.process import Activity, Counts, counts
from lightkeeper.worker_server.sidecar.witnesses.files import needed, text_of
from lightkeeper.worker_server.sidecar.witnesses.witness import Witness
from lightkeeper.worker_server.wire import Weight

_SOME: Final = 10.0
"""Per cent of 10 s in which some task waited for a disk or a core: on a calmer host nobody looks at
the ranks. Whether they are among those that wait, it does not say."""
_MEMORY_FULL: Final = 10.0
"""Per cent of 10 s in which all work waited for memory, and nothing else ran."""
_SAMPLES, _SAMPLE_S, _BLOCKED = 10, 0.02, 0.3
"""A rank waits for a disk whose main thread is in state D in this share of the samples; its other
threads may load and save beside the training."""
_STARVED: Final = 0.5
"""Share of its time in which a rank's thread was ready and had no core, as the monitor takes it.
Beside two compilers on two busy cores it is 0.43 (measured)."""


class Pressure(Witness):
    """Reads the pressure of the host, and looks which ranks it concerns."""

    name = "pressure"

    def __init__(
        self,
        root: Path = Path("/"),
        count: Callable[[int], Counts] = counts,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(root)
        self._count, self._pause = count, pause
        self._activities: dict[int, Activity] = {}

    def _read(self) -> None:
        cpu, disk = self._share("cpu", "some") >= _SOME, self._share("io", "some") >= _SOME
        for pid, blocked in self._blocked().items() if disk else ():
            text = f"pid {pid} stood still for a disk in {blocked:.0%} of {_SAMPLES} looks"
            self.saw(Weight.SLOW, "io-pressure", text, about=str(pid), pids=(pid,))
        if (full := self._share("memory", "full")) >= _MEMORY_FULL:
            text = f"all work of the host waited for memory in {full:.0f} % of the last 10 s"
            self.saw(Weight.SLOW, "memory-pressure", text, for_s=10.0)
        self._activities = {
            pid: self._activities.get(pid) or Activity(pid, lambda: self.now_s, self._count)
            for pid in (self.ranks if cpu else ())
        }
        for pid, activity in self._activities.items():
            if (starved := activity.rates().get("starved", 0.0)) >= _STARVED:
                text = f"pid {pid} was ready and had no core for {starved:.0%} of the last seconds"
                self.saw(Weight.SLOW, "cpu-pressure", text, about=str(pid), pids=(pid,))

    def _share(self, what: str, kind: str) -> float:
        """Per cent of the last 10 s; 0 if the kernel does not say."""
        text = needed(self.root / "proc/pressure" / what)
        rows = (line.split() for line in text.splitlines() if line.startswith(f"{kind} avg10="))
        return next((float(row[1].partition("=")[2]) for row in rows), 0.0)

    def _blocked(self) -> dict[int, float]:
        """Ranks that wait for a disk, and in which share of the samples."""
        seen = Counter[int]()
        for _ in range(_SAMPLES):
            stats = {pid: text_of(self.root / f"proc/{pid}/stat") or "" for pid in self.ranks}
            seen.update(pid for pid, stat in stats.items() if ") D " in stat)
            self._pause(_SAMPLE_S)
        return {pid: n / _SAMPLES for pid, n in seen.items() if n >= _BLOCKED * _SAMPLES}
