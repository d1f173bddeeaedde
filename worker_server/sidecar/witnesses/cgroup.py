"""What the ranks' cgroups and the host's pressure say: too little of a core, memory or a disk."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lightkeeper.worker_server.sidecar.files import (
    Level,
    levels,
    needed,
    number_in,
    numbers_in,
    sized,
    text_in,
)
from lightkeeper.worker_server.sidecar.witnesses.witness import MachineWitness
from lightkeeper.worker_server.wire import Weight

_DENIED: Final = 0.15
"""Share of the CPU time that a cgroup wanted. A loop with 0.95 cores lacks 0.045, with 0.9
0.094, with 0.8 0.19, with 0.5 0.5 (measured, Linux 6.18); the share of throttled periods, which
others watch, is 0.96 or more in all of these."""
_FILLED: Final = 0.95
"""Share of a limit, without file cache: that fills any cgroup which reads files."""
_WAITED: Final = 10.0
"""Per cent of 10 s in which some task waited for a disk (on a calmer host nobody looks which rank
does), or in which all work waited for memory, and nothing else ran."""
_SAMPLES, _SAMPLE_S, _BLOCKED = 10, 0.02, 0.3
"""A rank waits for a disk whose main thread is in state D in this share of the samples; its other
threads may load and save beside the training."""
_Chain = tuple[Level, ...]


class Cgroup(MachineWitness):
    """Reads the limits of the ranks' cgroups, and how often they were met."""

    name = "cgroup"

    def __init__(self, root: Path = Path("/")) -> None:
        super().__init__(root)
        self._homes: dict[int, tuple[_Chain, _Chain]] = {}
        """Where each rank is, for cores and for memory."""

    def _read(self) -> None:
        homes, why = {}, None
        for pid in self.ranks:
            try:
                lines = needed(self.root / f"proc/{pid}/cgroup")
                top = self.root / "sys/fs/cgroup"
                homes[pid] = levels(top, lines, "cpu"), levels(top, lines, "memory")
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended
            except OSError as exc:
                why = exc
        every, self._homes = self._homes | homes, homes  # who just ended is asked for once more
        if why and not every:
            raise why
        for kind, look in enumerate((self._cpu, self._memory)):
            for level in {level for home in every.values() for level in home[kind]}:
                look(level, [pid for pid, home in every.items() if level in home[kind]])
        for chain in {memory for _, memory in every.values()}:
            self._kills(chain, [pid for pid, home in every.items() if chain[0] in home[1]])

    def _cpu(self, level: Level, pids: list[int]) -> None:
        counts, cores = numbers_in(level.folder / "cpu.stat"), _cores(level.folder)
        waited_us = counts.get("throttled_usec", counts.get("throttled_time", 0) // 1000)
        waited_s = self.rose(("cpu", level), waited_us) / 1e6
        denied = waited_s / (waited_s + (cores or 0.0) * self.span_s) if waited_s else 0.0
        if cores and denied >= _DENIED:
            text = (
                f"cgroup {level.name[-60:]} is limited to {cores:.3g} cores, and did not get "
                f"{denied:.0%} of the CPU time that it wanted in the last {self.span_s:.0f} s"
            )
            self.saw(Weight.SLOW, "cpu-throttled", text, about=level.name, pids=pids)

    def _memory(self, level: Level, pids: list[int]) -> None:
        folder, limit = level.folder, level.limit()
        counts, kept = (numbers_in(folder / f"memory.{name}") for name in ("events", "stat"))
        met = counts.get("high", 0) + counts.get("max", number_in(folder / "memory.failcnt") or 0)
        used = (
            number_in(folder / "memory.current") or number_in(folder / "memory.usage_in_bytes") or 0
        )
        used -= sum(
            kept.get(f"total_{k}_file", kept.get(f"{k}_file", 0)) for k in ("active", "inactive")
        )
        if (times := self.rose(("memory", level), met)) and limit and used >= _FILLED * limit:
            text = (
                f"cgroup {level.name[-60:]} fills {used / limit:.0%} of its {sized(limit)} of "
                "memory without file cache: every new page has to wait for an old one"
            )
            self.saw(Weight.SLOW, "memory-limit", text, about=level.name, pids=pids, times=times)

    def _kills(self, chain: tuple[Level, ...], pids: list[int]) -> None:
        folder, name = chain[0].folder, chain[0].name
        counts = numbers_in(folder / "memory.events") or numbers_in(folder / "memory.oom_control")
        if times := self.rose(("oom", name), counts.get("oom_kill")):
            text = f"out of memory: the kernel ended a process of cgroup {name[-60:]}"
            if limited := next((level for level in chain if level.limit()), None):
                text += f"; {limited.name[-60:]} is limited to {sized(limited.limit() or 0)}"
            self.saw(Weight.ENDED, "oom-kill", text, about=name, pids=pids, times=times)


def _cores(folder: Path) -> float | None:
    """How many cores a cgroup may use; None: all."""
    quota, _, period = (text_in(folder / "cpu.max") or "").partition(" ")
    quota = quota or text_in(folder / "cpu.cfs_quota_us") or ""
    period = period or text_in(folder / "cpu.cfs_period_us") or ""
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() else None


class Pressure(MachineWitness):
    """Reads the pressure of the host, and looks which ranks it concerns: the share of time in which
    some task, or every task that has work, waited (pressure stall information,
    Documentation/accounting/psi.rst). Whether a rank waits for a core, its own sidecar says.
    """

    name = "pressure"

    def __init__(self, root: Path = Path("/"), pause: Callable[[float], None] = time.sleep) -> None:
        super().__init__(root)
        self._pause = pause

    def _read(self) -> None:
        for pid, blocked in self._blocked().items() if self._share("io", "some") >= _WAITED else ():
            text = f"pid {pid} stood still for a disk in {blocked:.0%} of {_SAMPLES} looks"
            self.saw(Weight.SLOW, "io-pressure", text, about=str(pid), pids=(pid,))
        if (full := self._share("memory", "full")) >= _WAITED:
            text = f"all work of the host waited for memory in {full:.0f} % of the last 10 s"
            self.saw(Weight.SLOW, "memory-pressure", text, for_s=10.0)

    def _share(self, what: str, kind: str) -> float:
        """Per cent of the last 10 s; 0 if the kernel does not say."""
        text = needed(self.root / "proc/pressure" / what)
        rows = (line.split() for line in text.splitlines() if line.startswith(f"{kind} avg10="))
        return next((float(row[1].partition("=")[2]) for row in rows), 0.0)

    def _blocked(self) -> dict[int, float]:
        """Ranks that wait for a disk, and in which share of the samples."""
        seen = Counter[int]()
        for _ in range(_SAMPLES):
            stats = {pid: text_in(self.root / f"proc/{pid}/stat") or "" for pid in self.ranks}
            seen.update(pid for pid, stat in stats.items() if ") D " in stat)
            self._pause(_SAMPLE_S)
        return {pid: n / _SAMPLES for pid, n in seen.items() if n >= _BLOCKED * _SAMPLES}
