"""Tokens that each group trained on since this monitor looks. Pure.

A sum of the ranks' own counters would fall whenever one rank does not answer, and Prometheus takes
a fall for a restart. So what each rank's counter grew by is added up here.
"""

from __future__ import annotations

from collections.abc import Mapping

from monitor.names import GroupName, RankName
from monitor.snapshot import Snapshot


class TokenBook:
    """A counter by group; one that has no rank any more is forgotten."""

    def __init__(self) -> None:
        self._seen: dict[RankName, tuple[str, int]] = {}
        self._groups: dict[GroupName, int] = {}

    def push(self, snapshot: Snapshot) -> Mapping[GroupName, int]:
        """Take in one tick; only groups of which a rank ever reported a token."""
        here = {seen.rank: seen for seen in snapshot.observations}
        known = {seen.identity.group for seen in snapshot.observations}
        self._seen = {rank: last for rank, last in self._seen.items() if rank in here}
        self._groups = {group: n for group, n in self._groups.items() if group in known}
        for rank, seen in here.items():
            step = None if seen.report is None else seen.report.step
            if seen.report is None or step is None or not step.tokens:
                continue
            incarnation = seen.report.identity.incarnation
            before = self._seen.get(rank)
            self._seen[rank] = incarnation, step.tokens
            grown = 0 if before is None else step.tokens
            if before is not None and before[0] == incarnation:
                grown = max(0, step.tokens - before[1])
            group = seen.identity.group
            self._groups[group] = self._groups.get(group, 0) + grown
        return dict(self._groups)
