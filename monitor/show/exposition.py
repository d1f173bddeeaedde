"""One view as a scrape reads it: what several metrics use is computed once.

Ranks and groups are bounded: a job may have 100,000 of them, one page should not. Exported first
are suspects of open incidents, then the unwell, then the ranks that work longest and the groups
first by name. Aggregates (`lightkeeper_ranks`, `fleet_busy_seconds` ...) always cover all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import nsmallest
from typing import Final, TypeVar

from lightkeeper.monitor.decide.tempo import Tempo
from lightkeeper.monitor.decide.view import GroupView, View
from lightkeeper.monitor.model.grouping import grouped
from lightkeeper.monitor.model.names import GroupName, RankName, group_of
from lightkeeper.monitor.model.verdict import RankHealth
from lightkeeper.worker_server.wire import StepState

T = TypeVar("T")
RANK_SERIES: Final = 4096
GROUP_SERIES: Final = 1024


@dataclass(frozen=True, slots=True)
class Bounds:
    """Most ranks and groups with their own series on the page; 0: none."""

    ranks: int = RANK_SERIES
    groups: int = GROUP_SERIES


@dataclass(frozen=True)  # no slots: a cached property needs `__dict__`
class ScrapeView:
    """A view as the exporters read it."""

    view: View
    bounds: Bounds = Bounds()

    @cached_property
    def exported_groups(self) -> tuple[GroupView, ...]:
        accused = {g for incident in self.view.incidents if incident.open for g in incident.groups}
        worst = nsmallest(
            self.bounds.groups, self.view.groups,
            lambda group: (group.group not in accused, group.health == RankHealth.HEALTHY,
                           group.group),
        )  # fmt: skip
        return tuple(sorted(worst, key=lambda group: group.group))

    @cached_property
    def busy(self) -> tuple[RankName, ...]:
        """Ranks with a known tempo and their own series, sorted."""
        tempos, healths = self.view.tempos, self.view.result.rank_health
        suspects = {r for incident in self.view.incidents if incident.open
                    for r in incident.suspects}  # fmt: skip
        worst = nsmallest(
            self.bounds.ranks, tempos,
            lambda rank: (rank not in suspects, healths.get(rank) is RankHealth.HEALTHY,
                          -tempos[rank].busy_s, rank),
        )  # fmt: skip
        return tuple(sorted(worst))

    @cached_property
    def tempos(self) -> Mapping[GroupName, Sequence[Tempo]]:
        """Known ones of the ranks of each group with its own series."""
        tempos = self.view.tempos.items()
        return self._exported(grouped((group_of(rank), tempo) for rank, tempo in tempos))

    @cached_property
    def steps(self) -> Mapping[GroupName, Sequence[StepState]]:
        """What the ranks of each of them report."""
        seen = self.view.snapshot.observations
        return self._exported(
            grouped((rank.identity.group, rank.step) for rank in seen if rank.step is not None)
        )

    def _exported(self, by_group: Mapping[GroupName, Sequence[T]]) -> dict[GroupName, Sequence[T]]:
        names = (group.group for group in self.exported_groups)
        return {name: by_group[name] for name in names if name in by_group}
