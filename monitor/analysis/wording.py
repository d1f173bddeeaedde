"""Sentences for people who were woken up."""

from __future__ import annotations

from collections.abc import Sequence

from monitor.analysis.graph import Stuck
from monitor.analysis.index import Index
from monitor.flight_recorder.job import Job

_LISTED = 8
"""More ranks than so many are counted, not all named."""


def ranks(job: Job, some: Sequence[int]) -> str:
    """`rank 3`, `ranks 3 and 5`, `ranks 0, 1, 2 and 13 more`."""
    names = [job.name(rank) for rank in some]
    word = "rank" if len(names) == 1 else "ranks"
    if len(names) > _LISTED:
        return f"{word} {', '.join(names[:3])} and {len(names) - 3} more"
    return f"{word} {joined(names)}"


def joined(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def verb(some: Sequence[int], one: str, many: str) -> str:
    """The form of a verb that fits so many ranks."""
    return one if len(some) == 1 else many


def collective(index: Index, stuck: Stuck) -> str:
    """`all_reduce 12 of DATA_PARALLEL_GROUP (7)`."""
    label = index.job.groups[stuck.group].label
    if stuck.transfer is not None:
        name = index.job.name
        way = f"rank {name(stuck.transfer.source)} to rank {name(stuck.transfer.target)}"
        return f"the transfer from {way} in {label}"
    return f"{index.op(stuck.row)} {stuck.sequence} of {label}"
