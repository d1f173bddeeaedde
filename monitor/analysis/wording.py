"""Sentences for people who were woken up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from monitor.analysis.graph import Stuck
from monitor.analysis.index import Index
from monitor.flight_recorder.job import Job, State

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


def site(index: Index, row: int) -> str:
    """` at train.py:66 (log_step)`, or nothing."""
    text = index.site(row)
    if text is None:
        return ""
    line, _, function = text.partition(" ")
    return f" at {line} ({function})" if function else f" at {line}"


def span(ns: int) -> str:
    """`0.4 s`, `31 s`, `12 min`, `1.5 h`."""
    seconds = ns / 1e9
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def waiting(index: Index, stuck: Stuck, where: str = "there") -> str:
    """`ranks 0 and 1 wait there at train.py:66 (step) for 31 s`; of who left: that, and how."""
    job, columns = index.job, index.job.columns
    rows = [
        row
        for rank in stuck.inside
        for row in index.heads[rank]
        if index.place(row) in ((stuck.group, stuck.sequence), stuck.transfer)
    ]
    failed = [row for row in rows if columns["state"][row] == State.FAILED]
    inside = [row for row in rows if columns["state"][row] != State.FAILED]
    parts = []
    for some, left in ((failed, True), (inside, False)):
        if not some:
            continue
        who = [int(columns["rank"][row]) for row in some]
        if left:
            ages = [age for row in some if (age := index.stayed_ns(row)) is not None]
            did, end = "waited", " and left by a timeout or an error"
        else:
            ages = [age for row in some if (age := _age_ns(index, row)) is not None]
            did, end = verb(who, "waits", "wait"), ""
        long = f" for {span(max(ages))}" if ages else ""
        parts.append(f"{ranks(job, who)} {did} {where}{site(index, some[0])}{long}{end}")
    return "; ".join(parts)


def _age_ns(index: Index, row: int) -> int | None:
    """An entry's age, where a WorkerServer dated the record: a file may be a copy."""
    known = index.job.ranks[int(index.job.columns["rank"][row])].alive is not None
    return index.age_ns(row) if known else None


def last_call(index: Index, some: Sequence[int]) -> str:
    """`Its last call was all_gather 7 of tp at data.py:12 (load), 33 s before its dump.`

    Empty where the ranks' last calls are not the same, or not recorded.
    """
    columns = index.job.columns
    rows = [int(np.searchsorted(columns["rank"], rank, side="right")) - 1 for rank in some]
    if any(row < 0 or columns["rank"][row] != rank for row, rank in zip(rows, some, strict=True)):
        return ""
    if len({tuple(int(columns[c][row]) for c in ("group", "seq", "payload")) for row in rows}) > 1:
        return ""
    row = rows[0]
    label = index.job.groups[int(columns["group"][row])].label
    ages = [age for row in rows if (age := _age_ns(index, row)) is not None]
    whose = verb(some, "its", "their")
    when = f", {span(max(ages))} before {verb(some, 'its dump', 'their dumps')}" if ages else ""
    what = f"{index.op(row)} {columns['seq'][row]} of {label}{site(index, row)}"
    return f" {whose.capitalize()} last call was {what}{when}."
