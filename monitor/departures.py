"""Ranks that were here and are not: a job that ended is another thing than one that never began.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from monitor.names import GroupName, RankName, rank_name
from monitor.snapshot import Observation, Snapshot
from worker_server.wire import Ending, Process

_KEPT_S: Final = 86_400.0
_MOST: Final = 100_000


@dataclass(frozen=True, slots=True)
class Departure:
    """One rank whose target is gone, as it was seen last."""

    rank: RankName
    group: GroupName
    at_s: float
    """When it ended; when it was heard of last, where its end was not seen."""
    process: Process | None
    """None: its end was not seen."""
    ending: Ending | None = None

    @property
    def clean(self) -> bool:
        """Whether it ended as a program that is through does."""
        return self.process is not None and self.process.exit_code == 0


class DepartureBook:
    """Remembers for a day."""

    def __init__(self) -> None:
        self._last: dict[RankName, Departure] = {}

    def push(self, snapshot: Snapshot) -> tuple[Departure, ...]:
        """Those that are registered no more, by name."""
        now_s, here = snapshot.now_s, set()
        for seen in snapshot.observations:
            here.add(seen.rank)
            if seen.report is not None:
                self._last[seen.rank] = departure_of(seen, now_s)
            launched = seen.identity.launched_as
            if launched is not None:  # it was here under its launcher's name, and is not gone
                self._last.pop(rank_name(launched, seen.identity.group_rank), None)
        kept = [one for one in self._last.values() if now_s - one.at_s <= _KEPT_S]
        kept.sort(key=lambda one: one.at_s)
        self._last = {one.rank: one for one in kept[-_MOST:]}
        return tuple(sorted((d for r, d in self._last.items() if r not in here),
                            key=lambda one: one.rank))  # fmt: skip


def departure_of(seen: Observation, now_s: float) -> Departure:
    """As it would be if it were gone after this tick."""
    report = seen.report
    if report is None or report.process.alive:
        return Departure(seen.rank, seen.identity.group, now_s, None)
    died_s = now_s - (report.process.dead_age_s or 0.0)
    return Departure(seen.rank, seen.identity.group, died_s, report.process, report.ending)
