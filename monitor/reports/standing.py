"""Where every rank stands, and ranks that stand alike taken together.

A job has thousands of ranks and a page has room for a few dozen rows. Ranks that wait in the same
collective for the same others are one crowd. Where that leaves too many, crowds that cannot be
told apart by what they wait in, and by whom they wait for, become one: the coarsest partition that
the wait-for graph allows (partition refinement, as for minimising automata: Hopcroft 1971, here in
its plain form). So eight tensor-parallel groups that do the same thing are drawn once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from monitor.analysis.finding import Analysis, Wait
from monitor.flight_recorder.job import Job, State

_ROUNDS = 12

_Key = Callable[[int], Hashable]


UNFINISHED = (State.UNKNOWN, State.SCHEDULED, State.STARTED)


class Role(StrEnum):
    """What a rank is in the whole matter; the first that fits, in this order."""

    CULPRIT = "culprit"
    SUSPECT = "suspect"  # one of the sides between which it cannot be told
    SILENT = "silent"  # no record
    VICTIM = "victim"
    WAITING = "waiting"  # in a collective, and no finding explains it
    FREE = "free"  # nothing unfinished


ORDER = tuple(Role)


@dataclass(frozen=True, slots=True)
class Crowd:
    """Ranks that stand alike."""

    ranks: tuple[int, ...]
    role: Role
    waits: tuple[Wait, ...]
    """Of its first rank; empty when that rank waits for nothing."""
    waits_for: tuple[int, ...]
    """Ranks for which its members wait, sorted."""
    groups: int
    """In how many process groups its members wait."""
    unfinished: int | None
    """Entries that its first rank has not finished; None without a record."""


def rows_of(job: Job, rank: int) -> slice:
    """A rank's rows in `Job.columns`."""
    ranks = job.columns["rank"]
    ends = np.array([rank, rank + 1], ranks.dtype)  # of another type the whole column is converted
    first, last = np.searchsorted(ranks, ends)
    return slice(int(first), int(last))


def unfinished(job: Job, rank: int | None = None) -> NDArray[np.bool_]:
    """Which entries, of a rank or of all, no record calls finished."""
    states = job.columns["state"]
    return np.isin(states if rank is None else states[rows_of(job, rank)], UNFINISHED)


def roles(job: Job, analysis: Analysis) -> dict[int, Role]:
    """The role of every rank that the job or the analysis knows."""
    found: dict[int, Role] = dict.fromkeys(sorted({*job.expected, *job.ranks}), Role.FREE)
    found.update((wait.rank, Role.WAITING) for wait in analysis.waits)
    for one in analysis.findings:
        found.update(dict.fromkeys(one.victims, Role.VICTIM))
    found.update(dict.fromkeys(job.silent, Role.SILENT))
    for one in analysis.findings:
        found.update((rank, Role.SUSPECT) for side in one.between for rank in side)
    found.update(dict.fromkeys(analysis.culprits, Role.CULPRIT))
    return found


def crowds(job: Job, analysis: Analysis, at_most: int) -> tuple[Crowd, ...]:
    """All ranks, those that stand alike together; culprits first, then by rank.

    Folded as little as `at_most` allows. More come back only if nothing folds them further.
    """
    role = roles(job, analysis)
    waits: dict[int, list[Wait]] = defaultdict(list)
    for wait in analysis.waits:
        waits[wait.rank].append(wait)
    marks = _marks(analysis)
    exact = _classes(
        role,
        lambda rank: (
            role[rank],
            marks[rank],
            tuple((w.group, w.sequence, w.op, _whom(job, w)) for w in waits[rank]),
        ),
    )
    chosen = (
        exact
        if len(exact) <= at_most
        else _coarsest(job, role, marks, waits, exact=exact, at_most=at_most)
    )
    made = [_crowd(job, members, role, waits) for members in chosen]
    return tuple(sorted(made, key=lambda one: (ORDER.index(one.role), one.ranks)))


def _whom(job: Job, wait: Wait) -> tuple[int, ...] | None:
    """For whom a rank waits; None for everybody else in the group, whoever that leaves."""
    members = job.groups[wait.group].members
    everybody = len(wait.waits_for) == len(members) - 1 > 1
    return None if everybody and wait.rank not in wait.waits_for else wait.waits_for


def _marks(analysis: Analysis) -> Mapping[int, tuple[int, ...]]:
    """Which findings accuse or suspect a rank: culprits of different faults never fold."""
    marks: dict[int, tuple[int, ...]] = defaultdict(tuple)
    for index, one in enumerate(analysis.findings):
        for rank in {*one.culprits, *(rank for side in one.between for rank in side)}:
            marks[rank] = (*marks[rank], index)
    return marks


def _classes(ranks: Iterable[int], key: _Key) -> list[tuple[int, ...]]:
    by_key: dict[Hashable, list[int]] = defaultdict(list)
    for rank in sorted(ranks):
        by_key[key(rank)].append(rank)
    return [tuple(members) for members in by_key.values()]


def _coarsest(
    job: Job,
    role: Mapping[int, Role],
    marks: Mapping[int, tuple[int, ...]],
    waits: Mapping[int, Sequence[Wait]],
    *,
    exact: Sequence[tuple[int, ...]],
    at_most: int,
) -> list[tuple[int, ...]]:
    """Refined by whom they wait for until nothing changes or there would be too many.

    Works on the first rank of each exact class: whom the others wait for is the same.
    """
    members = {one[0]: one for one in exact}

    def all_of(classes: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
        return [tuple(sorted(rank for one in some for rank in members[one])) for some in classes]

    kinds: dict[int, Hashable] = {
        one: (role[one], marks[one], tuple((_shape(job, w.group), w.op) for w in waits[one]))
        for one in members
    }
    chosen = _classes(members, kinds.__getitem__)
    if len(chosen) > at_most:  # thousands of things at once: by role alone
        return all_of(_classes(members, lambda one: (role[one], marks[one][:1])))
    for _ in range(_ROUNDS):
        colour = {rank: index for index, some in enumerate(all_of(chosen)) for rank in some}
        pairs: dict[int, Hashable] = {
            one: (
                colour[one],
                frozenset(colour[to] for w in waits[one] for to in w.waits_for if to in colour),
            )
            for one in members
        }
        finer = _classes(members, pairs.__getitem__)
        if len(finer) > at_most or len(finer) == len(chosen):
            break
        chosen = finer
    return all_of(chosen)


def _shape(job: Job, group: int) -> Hashable:
    """What a process group has in common with its like: what the program calls it, or its size."""
    one = job.groups[group]
    return one.desc or len(one.members)


def _crowd(
    job: Job,
    members: tuple[int, ...],
    role: Mapping[int, Role],
    waits: Mapping[int, Sequence[Wait]],
) -> Crowd:
    every = [wait for rank in members for wait in waits[rank]]
    return Crowd(
        members,
        role[members[0]],
        tuple(waits[members[0]]),
        tuple(sorted({to for wait in every for to in wait.waits_for})),
        len({wait.group for wait in every}),
        int(unfinished(job, members[0]).sum()) if members[0] in job.ranks else None,
    )
