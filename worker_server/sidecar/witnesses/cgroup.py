"""What the ranks' cgroups say: too little of a core, too little memory, a process ended for it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lightkeeper.worker_server.sidecar.cgroups import Level
from lightkeeper.worker_server.sidecar.witnesses import counting
from lightkeeper.worker_server.sidecar.witnesses.counting import number, table, text_of
from lightkeeper.worker_server.wire import Weight

_DENIED: Final = 0.15
"""Of the CPU time that a cgroup wanted. A loop with 0.95 cores is denied 0.045 of it, with 0.9
0.094, with 0.8 0.19, with 0.5 0.5 (measured, Linux 6.18); the share of throttled periods, which
others watch, is 0.96 or more in all of these."""
_FILLED: Final = 0.95
"""Of a limit, without file cache: that fills any cgroup which reads files."""
_NO_LIMIT: Final = 1 << 62
"""Of version 1."""


class Cgroup(counting.Counting):
    """Reads the limits of the ranks' cgroups, and how often they were met."""

    name = "cgroup"

    def __init__(self, root: Path = Path("/")) -> None:
        super().__init__(root)
        self._homes: dict[int, dict[str, tuple[Level, ...]]] = {}

    def _read(self) -> None:
        homes, why = {}, None
        for pid in self.ranks:
            try:
                homes[pid] = {name: self.levels(pid, name) for name in ("cpu", "memory")}
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended
            except OSError as exc:
                why = exc
        every, self._homes = self._homes | homes, homes  # who just ended is asked for once more
        if why and not every:
            raise why
        pids: dict[tuple[str, Level], list[int]] = {}
        for pid, home in every.items():
            for kind, level in [(kind, level) for kind, chain in home.items() for level in chain]:
                pids.setdefault((kind, level), []).append(pid)
        for (kind, level), some in pids.items():
            (self._cpu if kind == "cpu" else self._memory)(level, some)
        for chain in {home["memory"] for home in every.values()}:
            self._kills(chain, pids["memory", chain[0]])

    def _cpu(self, level: Level, pids: list[int]) -> None:
        counts, cores = table(level.folder / "cpu.stat"), _cores(level.folder)
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
        folder, limit = level.folder, _limit(level.folder)
        counts, kept = table(folder / "memory.events"), table(folder / "memory.stat")
        met = counts.get("high", 0) + counts.get("max", number(folder / "memory.failcnt") or 0)
        used = number(folder / "memory.current") or number(folder / "memory.usage_in_bytes") or 0
        used -= sum(
            kept.get(f"total_{n}", kept.get(n, 0)) for n in ("active_file", "inactive_file")
        )
        if (times := self.rose(("memory", level), met)) and limit and used >= _FILLED * limit:
            text = (
                f"cgroup {level.name[-60:]} fills {used / limit:.0%} of its {limit >> 20} MiB of "
                "memory without file cache: every new page has to wait for an old one"
            )
            self.saw(Weight.SLOW, "memory-limit", text, about=level.name, pids=pids, times=times)

    def _kills(self, chain: tuple[Level, ...], pids: list[int]) -> None:
        own = chain[0]
        counts = table(own.folder / "memory.events") or table(own.folder / "memory.oom_control")
        if times := self.rose(("oom", own), counts.get("oom_kill")):
            limits = ((each.name, _limit(each.folder)) for each in chain)
            limit = next(
                (f"; {n[-60:]} is limited to {most >> 20} MiB" for n, most in limits if most), ""
            )
            text = f"out of memory: the kernel ended a process of cgroup {own.name[-60:]}{limit}"
            self.saw(Weight.ENDED, "oom-kill", text, about=own.name, pids=pids, times=times)


def _cores(folder: Path) -> float | None:
    """How many cores a cgroup may use; None: all."""
    quota, _, period = (text_of(folder / "cpu.max") or "").partition(" ")
    quota = quota or text_of(folder / "cpu.cfs_quota_us") or ""
    period = period or text_of(folder / "cpu.cfs_period_us") or ""
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() else None


def _limit(folder: Path) -> int | None:
    """Bytes of memory that a cgroup may use; None: all."""
    names = ("memory.high", "memory.max", "memory.limit_in_bytes")
    limits = (number(folder / name) or _NO_LIMIT for name in names)
    return min((most for most in limits if most < _NO_LIMIT), default=None)
