"""One view with what several exporters ask of it, each worked out once; and who has own series.

Ranks and groups are bounded, for a job may have 100,000 of them while one page should not. Who is
told: first culprits of open incidents, then who is not well, then of the ranks those that work
longest, of the groups the first by name. Aggregates (`lightkeeper_ranks`, `fleet_busy_seconds`
...) are always of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from monitor.decide.view import GroupView, View
from monitor.model.names import GroupName, RankName
from monitor.model.observation import Observation
from monitor.model.verdict import RankHealth

RANK_SERIES: Final = 4096
GROUP_SERIES: Final = 1024


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many may have series of their own on the monitor's page; 0: none."""

    ranks: int = RANK_SERIES
    groups: int = GROUP_SERIES


@dataclass(frozen=True)  # no slots: they leave no room for a cached property
class Scene:
    """A view as the exporters read it."""

    view: View
    bounds: Bounds = Bounds()

    @cached_property
    def told_groups(self) -> tuple[GroupView, ...]:
        """Groups with series of their own, sorted."""
        groups = self.view.groups
        if len(groups) <= self.bounds.groups:
            return groups
        accused = {group for one in self.view.incidents if one.open for group in one.groups}
        worst = sorted(
            groups,
            key=lambda one: (one.group not in accused, one.health == RankHealth.HEALTHY, one.group),
        )
        return tuple(sorted(worst[: self.bounds.groups], key=lambda one: one.group))

    @cached_property
    def told_names(self) -> frozenset[GroupName]:
        """Names of those groups."""
        return frozenset(one.group for one in self.told_groups)

    @cached_property
    def busy(self) -> tuple[RankName, ...]:
        """Ranks of which a tempo is known and that have series of their own, sorted."""
        view = self.view
        if len(view.tempos) <= self.bounds.ranks:
            return tuple(sorted(view.tempos))
        accused = {rank for one in view.incidents if one.open for rank in one.culprits}
        worst = sorted(
            view.tempos,
            key=lambda rank: (
                rank not in accused,
                view.result.rank_health.get(rank) is RankHealth.HEALTHY,
                -view.tempos[rank].busy_s,
                rank,
            ),
        )
        return tuple(sorted(worst[: self.bounds.ranks]))

    @cached_property
    def observed(self) -> dict[GroupName, list[Observation]]:
        """Ranks of the groups with series of their own."""
        found: dict[GroupName, list[Observation]] = {one.group: [] for one in self.told_groups}
        for seen in self.view.snapshot.observations:
            if seen.identity.group in found:
                found[seen.identity.group].append(seen)
        return found
