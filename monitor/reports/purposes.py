"""What process groups are for: those of one purpose are drawn alike.

Ranks 0-7 and ranks 8-15 each have a tensor-parallel group, and it is the same thing twice. Two
groups over the same ranks are never the same thing, whatever they are called.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

from monitor.flight_recorder.job import Group, Job
from monitor.reports.wording import clean, counted, group_label


def purposes(job: Job) -> tuple[str, ...]:
    """A name for the purpose of each group: its description, or what else tells it apart.

    Groups of one description, or without one of one size, share a purpose unless they share a rank.
    """
    taken: dict[Hashable, set[int]] = defaultdict(set)
    alike: dict[Hashable, list[Group]] = defaultdict(list)
    found: list[tuple[Hashable, int]] = []
    for group in job.groups:
        kind: Hashable = group.desc or len(group.members)
        used = set().union(*(taken[kind, rank] for rank in group.members))
        place = min(set(range(len(used) + 1)) - used)
        for rank in group.members:
            taken[kind, rank].add(place)
        alike[kind, place].append(group)
        found.append((kind, place))
    return tuple(_name(alike[key], key[1]) for key in found)


def _name(groups: list[Group], place: int) -> str:
    first = groups[0]
    if len(groups) == 1:
        return group_label(first) if place or not first.desc else clean(first.desc, 80)
    name = clean(first.desc, 80) or f"groups of {counted(len(first.members), 'rank')}"
    return f"{name} ({place + 1})" if place else name
