"""Late arrival or slow transfer: what collectives and links between stages show.

Only one rank's own seconds are ever subtracted from one another, and durations compared: clocks
of ranks need not agree. The seconds inside a collective are the transfer plus the wait for the
last member, so the least of the members is the transfer, and whoever has it came last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from monitor import cohort
from monitor.cohort import Bools, Floats
from monitor.stragglers.ops import Role, codes_of, direction
from monitor.stragglers.persist import LEAST_CHANCE, Stretch, change, stretches
from monitor.stragglers.slow import FEW_RATIO, FEW_STEPS, SCORE, SHARE_OF_STEP
from monitor.stragglers.table import Table
from monitor.stragglers.work import medians

LATE: Final = 0.7
"""P from which on a collective's lost time is late arrival; below 0.3 it is the transfer."""
_LINK_RATIO: Final = 1.5
_GROWN: Final = 1.5
"""Of a group's fastest member, against its own past."""


@dataclass(frozen=True, slots=True)
class Late:
    """A rank for which its stage waits in a collective, again and again."""

    rank: int
    op: str
    stretch: Stretch
    share: float
    """Median P over the steps in which it came last."""
    lost_s: float
    """Seconds that the first to come waited for it."""


@dataclass(frozen=True, slots=True)
class SlowGroup:
    """A stage whose collective takes longer than it did, though all come in time."""

    stage: int
    op: str
    first: int
    ratio: float
    share: float
    lost_s: float


@dataclass(frozen=True, slots=True)
class SlowLink:
    """Two neighbours in a pipeline between which transfers take longer than between their peers."""

    ranks: tuple[int, int]
    replica: int
    stretch: Stretch
    ratio: float
    lost_s: float


def collectives(table: Table) -> Iterator[tuple[int, str, NDArray[np.intp], Floats]]:
    """Stage, operation, ranks, and seconds inside: steps x ranks; only where rows are complete."""
    for code in codes_of(table.ops, Role.SHARED).tolist():
        rows = table.rows_of([code])
        inside = np.full((len(table.ranks), len(table.steps)), np.nan)
        key = table.rank[rows].astype(np.int64) * len(table.steps) + table.step[rows]
        sums = np.bincount(key, table.duration_s[rows], minlength=inside.size)
        there = np.bincount(key, minlength=inside.size) > 0
        inside.reshape(-1)[there] = sums[there]
        for stage in table.stages.tolist():
            ranks = table.crew(stage)
            mine = inside[ranks].T
            if len(ranks) > 1 and not np.isnan(mine).all():
                yield stage, table.ops[code], ranks, _complete(mine)


def _complete(inside: Floats) -> Floats:
    """Without the steps in which a member has no row: who came last cannot be told then."""
    return np.where(np.isnan(inside).any(axis=1, keepdims=True), np.nan, inside)


def late(table: Table, step_s: Floats, tests: int) -> list[Late]:
    """Ranks that come last, and late, for long."""
    found = []
    for _, op, ranks, inside in collectives(table):
        least, share, lost = _parts(inside)
        bad = (share >= LATE) & (lost > np.maximum(SHARE_OF_STEP * step_s, 3 * _spread(least)))
        with np.errstate(invalid="ignore"):
            near = inside - least[:, None] <= (1 - LATE) * lost[:, None]
        # Where two come last together, nobody's lateness is what the others wait for.
        last = near & (bad & (near.sum(axis=1) == 1))[:, None]
        # Somebody always comes last: by turns, if nobody is sick.
        turns = max(LEAST_CHANCE, float(last.any(axis=1).mean()) / len(ranks))
        for stretch in stretches(last, ~np.isnan(inside), tests, least_chance=turns):
            mine = slice(stretch.first, stretch.last + 1)
            steps = last[mine, stretch.member]
            found.append(
                Late(
                    rank=int(ranks[stretch.member]),
                    op=op,
                    stretch=stretch,
                    share=float(np.median(share[mine][steps])),
                    lost_s=float(lost[mine][steps].sum()),
                )
            )
    return found


def slow_groups(table: Table, step_s: Floats) -> list[SlowGroup]:
    """Collectives whose transfer itself became slow and stayed so."""
    found = []
    for stage, op, _, inside in collectives(table):
        least, share, _ = _parts(inside)
        grown = change(least)
        if grown is None or grown.ratio < _GROWN:
            continue
        excess = least[grown.at :] - grown.before
        if np.nanmedian(excess) <= SHARE_OF_STEP * np.nanmedian(step_s):
            continue
        late_part = float(np.nanmedian(np.nan_to_num(share[grown.at :])))
        if late_part < LATE:
            lost_s = float(np.nansum(np.maximum(excess, 0.0)))
            found.append(SlowGroup(stage, op, grown.at, grown.ratio, late_part, lost_s))
    return found


def _parts(inside: Floats) -> tuple[Floats, Floats, Floats]:
    """By step: the fastest member, P, and the seconds between the first and the last to come."""
    with np.errstate(all="ignore"):
        least = np.fmin.reduce(inside, axis=1)
        lost = np.fmax.reduce(inside, axis=1) - least
    there = least[~np.isnan(least)]
    base = np.full(len(least), np.median(there) if len(there) else np.nan)
    # A step may be faster than the usual: then the base is what it took itself.
    return least, cohort.late_share(inside, np.fmin(base, least)), np.nan_to_num(lost)


def _spread(values: Floats) -> float:
    there = values[~np.isnan(values)]
    return float(np.median(np.abs(there - np.median(there)))) if len(there) else 0.0


def slow_links(table: Table, step_s: Floats, tests: int) -> list[SlowLink]:
    """Links slower than the same link of the other replicas.

    A send and its receive both last from the first side's coming to the end of the transfer, so
    the shorter of the two is the transfer (and an upper bound where a framework posts a send and a
    receive as one).
    """
    if not {"dp_rank", "seq_id"} <= table.tells or len(table.stages) < 2:
        return []
    replicas = np.unique(table.replica)
    found = []
    for below, seconds in enumerate(_link_seconds(table, replicas)):
        slow = _slow_links(seconds, step_s)
        for stretch in stretches(slow, ~np.isnan(seconds), tests):
            one = _link(table, below, int(replicas[stretch.member]), stretch, seconds)
            few = len(replicas) < cohort.SMALL
            if not (few and (one.ratio < FEW_RATIO or stretch.slow < FEW_STEPS)):
                found.append(one)
    return found


def _slow_links(seconds: Floats, step_s: Floats) -> Bools:
    slow = cohort.slower(
        seconds,
        cohort.usual(seconds),
        step=step_s[:, None],
        score=cohort.z_scores(seconds),
        members=np.sum(~np.isnan(seconds), axis=1, keepdims=True),
        ratio=_LINK_RATIO,
        share=SHARE_OF_STEP,
        least_score=SCORE,
    )
    return np.asarray(slow, dtype=np.bool_)


def _link(table: Table, below: int, replica: int, stretch: Stretch, seconds: Floats) -> SlowLink:
    stages = table.stages
    both = (stages[below], stages[(below + 1) % len(stages)])
    ends = [
        int(np.flatnonzero((table.stage == stage) & (table.replica == replica))[0])
        for stage in both
    ]
    mine = slice(stretch.first, stretch.last + 1)
    usual = cohort.usual(seconds[mine])[:, stretch.member]
    held = seconds[mine, stretch.member]
    return SlowLink(
        ranks=(ends[0], ends[1]),
        replica=replica,
        stretch=stretch,
        ratio=float(np.nanmedian(held / usual)),
        lost_s=float(np.nansum(np.maximum(held - usual, 0.0))),
    )


def _link_seconds(table: Table, replicas: NDArray[np.int64]) -> Floats:
    """Seconds of transfer between each stage and the next: stages x steps x replicas."""
    total = np.zeros((len(table.stages), len(table.steps), len(replicas)))
    there = np.zeros(total.shape, dtype=np.bool_)
    receives = codes_of(table.ops, Role.RECEIVE).tolist()
    for code in codes_of(table.ops, Role.SEND).tolist():
        way = direction(table.ops[code])
        partners = [other for other in receives if direction(table.ops[other]) == way]
        if len(partners) != 1:
            continue
        # A link is named by the stage below it: that of who sends forward, or receives backward.
        key_a, sent = _messages(table, code, replicas, 0 if way > 0 else 1)
        key_b, received = _messages(table, partners[0], replicas, 1 if way > 0 else 0)
        both, a, b = np.intersect1d(key_a, key_b, assume_unique=True, return_indices=True)
        cells, middles, counts = medians(
            both // (int(table.sequence.max()) + 1), np.minimum(sent[a], received[b])
        )
        total.reshape(-1)[cells] += middles * counts
        there.reshape(-1)[cells] = True
    return np.where(there, total, np.nan)


def _messages(
    table: Table, op: int, replicas: NDArray[np.int64], above: int
) -> tuple[NDArray[np.int64], Floats]:
    """Key of (link, step, replica, sequence) and seconds: the least where recorded twice.

    `above` is 1 where the rank stands above its link.
    """
    rows = table.rows_of([op])
    rank = table.rank[rows]
    link = (np.searchsorted(table.stages, table.stage) - above) % len(table.stages)
    key = link[rank].astype(np.int64) * len(table.steps) + table.step[rows]
    key = key * len(replicas) + np.searchsorted(replicas, table.replica)[rank]
    key = key * (int(table.sequence.max()) + 1) + table.sequence[rows]
    order = np.lexsort((table.duration_s[rows], key))
    keys, first = np.unique(key[order], return_index=True)
    return keys, table.duration_s[rows][order][first]
