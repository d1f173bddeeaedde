"""Stragglers in recorded timings: all checks run, and what one explains is not reported twice.

Theory of operation. Ranks of one pipeline stage do the same work on different data, so they are
each other's reference; stages are never compared (39 % of the jobs in "Understanding Stragglers
in Large Model Training Using What-if Analysis", OSDI'25, have a heavier last stage, which is no
fault). Three things vary between such ranks although none is sick, and each is handled:

- long sequences make a microbatch slow on *all* stages of its replica: each duration is divided
  by how slow the same microbatch is across stages (`work`);
- pauses (garbage collection) hit few microbatches of a step: a rank's step is the median over its
  microbatches (`work`);
- anything else hits different ranks in different steps: a rank is named only if its peers' share
  of slow steps cannot explain its own (`stretches`).

Timestamps are only subtracted within one rank, and durations compared: the ranks' clocks need not
agree. The seconds inside a collective are the transfer plus the wait for the last member, so the
minimum over the members is the transfer, and the rank that has it came last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import log
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lightkeeper.monitor.model.cohort import (
    SMALL,
    Bools,
    Floats,
    late_share,
    middle,
    slower,
    usual,
    z_scores,
)
from lightkeeper.monitor.model.verdict import Confidence
from lightkeeper.monitor.model.wording import counted, listed, plural
from lightkeeper.monitor.offline.timings import (
    TableError,
    TimeOwner,
    TimingTable,
    direction,
)

# -- how long each rank worked, adjusted for the load of its microbatches ----------------------

_BASE: Final = 0.2
"""Quantile of the durations of one kind on one stage that is taken as its usual work: low, so that
it does not change if the later half of the steps is slow."""


@dataclass(frozen=True, slots=True)
class Cohort:
    """The ranks of one stage. All arrays are steps x ranks of the stage, NaN without rows."""

    stage: int
    ranks: NDArray[np.intp]
    """Codes of the ranks."""
    pace: Floats
    """Own work relative to the stage's median in that step: about 1."""
    own: Floats
    """Own work relative to the stage's usual work: a rank's history is judged by it."""
    seconds: Floats
    """The stage's median seconds of work in a step; steps x 1."""
    by_op: Mapping[str, Floats]
    """Ratio to the median of the others, by type of operation."""


@dataclass(frozen=True, slots=True)
class Work:
    """The own work of all ranks."""

    cohorts: tuple[Cohort, ...]
    fleet: Cohort | None = None
    """The replicas as if they were ranks of one stage: their pace is the load of their microbatches
    on all of their stages, relative to the usual. None if microbatches cannot be matched between
    stages."""

    @property
    def busiest_s(self) -> Floats:
        """By step the busiest stage's median seconds of work; steps x 1."""
        seconds = np.concatenate([cohort.seconds for cohort in self.cohorts], axis=1)
        return np.asarray(np.max(seconds, axis=1, keepdims=True), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of own work, and the kind (operation and chunk) of each."""

    rank: NDArray[np.int32]
    step: NDArray[np.int32]
    kind: NDArray[np.int64]
    relative: Floats
    """Duration relative to the usual of its kind on its stage."""
    base: Floats
    """Usual seconds by kind and stage: [kinds, stages]."""
    names: tuple[str, ...]
    """Operation of each kind."""


def work(table: TimingTable, *, by_load: bool = True) -> Work:
    """The work of every cohort; `by_load` divides by the microbatches' load on all stages.

    Raises:
        TableError: too few rows to compare.
    """
    rows, picked = _rows(table)
    relative, load = rows.relative, None
    if by_load and {"dp_rank", "mb_id"} <= table.tells and len(picked):
        asked, load = _load(table, rows, picked)
        relative = relative / asked
    kinds, ranks, steps = len(rows.names), len(table.ranks), len(table.steps)
    if kinds * ranks * steps > max(1 << 22, 40 * len(table)):
        raise TableError(f"too few rows for {kinds:,} kinds of work on {ranks:,} ranks")
    key = (rows.kind * ranks + rows.rank) * steps + rows.step
    keys, middles, counts = medians(key, relative)
    del key, relative
    cells = np.full((kinds, ranks, steps), np.nan)
    cells.reshape(-1)[keys] = middles
    number = np.zeros((kinds, ranks, steps), dtype=np.float32)
    number.reshape(-1)[keys] = counts
    cohorts = tuple(
        _cohort(int(stage), table.ranks_of(stage), rows, rows.base[:, place], (cells, number))
        for place, stage in enumerate(table.stages.tolist())
    )
    if load is None:
        return Work(cohorts)
    members = np.arange(load.shape[1])
    return Work(cohorts, Cohort(-1, members, load, load, Work(cohorts).busiest_s, {}))


def _rows(table: TimingTable) -> tuple[_Rows, NDArray[np.intp]]:
    picked = table.rows_of(table.codes_of(TimeOwner.OWN))
    rank, step = table.rank[picked], table.step[picked]
    chunks = int(table.chunk.max()) + 1
    raw = table.op[picked].astype(np.int64) * chunks + table.chunk[picked]
    kinds = np.unique(raw)
    kind = np.searchsorted(kinds, raw).astype(np.int64)
    stages = table.stages
    stage = np.searchsorted(stages, table.stage)[rank]
    duration = table.duration_s[picked]
    keys, order, starts, counts = _grouped(kind * len(stages) + stage, duration)
    typical = duration[order[starts + ((counts - 1) * _BASE).astype(np.intp)]]
    base = np.full(max(1, len(kinds)) * len(stages), np.nan)
    base[keys] = typical
    with np.errstate(all="ignore"):
        relative = duration / base[kind * len(stages) + stage]
    good = np.isfinite(relative)  # a kind that takes no time has no ratio
    names = tuple(table.ops[code // chunks] for code in kinds.tolist())
    if not good.all():
        rank, step, kind, relative, picked = (
            array[good] for array in (rank, step, kind, relative, picked)
        )
    shaped = base.reshape(max(1, len(kinds)), len(stages))[: len(kinds)]
    return _Rows(rank, step, kind, relative, shaped, names), picked


def _load(table: TimingTable, rows: _Rows, picked: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """The load of each row's microbatch on all stages, and its median by step and replica.

    The load is the lower median of the microbatch's relative durations.

    The same microbatch passes all stages of a replica; forward and backward count separately. One
    slow stage of two or more does not move the lower median; a long sequence moves all durations.
    If only one rank has rows of a microbatch, the load is unknown and counts as 1.
    """
    replicas = np.unique(table.replica)
    replica = np.searchsorted(replicas, table.replica)[rows.rank]
    microbatch = table.microbatch[picked].astype(np.int64)
    microbatches = int(microbatch.max()) + 1
    key = (replica * len(table.steps) + rows.step) * len(table.ops) + table.op[picked]
    key = key * microbatches + microbatch
    keys, order, starts, counts = _grouped(key, rows.relative)
    asked = rows.relative[order[starts + (counts - 1) // 2]]
    by_rank = rows.rank[order]
    compared = np.minimum.reduceat(by_rank, starts) != np.maximum.reduceat(by_rank, starts)
    asked = np.where(compared, asked, 1.0)
    of_row = np.empty(len(order))
    of_row[order] = np.repeat(asked, counts)
    cells, middles, _ = medians(keys // (microbatches * len(table.ops)), asked)
    by_replica = np.full(len(replicas) * len(table.steps), np.nan)
    by_replica[cells] = middles
    return of_row, by_replica.reshape(len(replicas), len(table.steps)).T


def _cohort(
    stage: int,
    ranks: NDArray[np.intp],
    rows: _Rows,
    base: Floats,
    cells: tuple[Floats, NDArray[np.float32]],
) -> Cohort:
    """One stage from the medians and counts of all cells: kinds x ranks x steps."""
    shape = (cells[0].shape[2], len(ranks))
    own_s, usual_s, whole = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    seconds = np.zeros((shape[0], 1))
    ratios: dict[str, list[Floats]] = {}
    for kind, name in enumerate(rows.names):
        relative = cells[0][kind][ranks].T
        present = ~np.isnan(relative)
        if not present.any():
            continue
        centre = middle(relative)
        weight = base[kind] * np.max(cells[1][kind][ranks], axis=0)[:, None]
        own_s += np.where(present, weight * relative, 0.0)
        usual_s += np.where(present, weight * centre, 0.0)
        whole += np.where(present, weight, 0.0)
        seconds += np.nan_to_num(weight * centre)
        with np.errstate(all="ignore"):
            ratios.setdefault(name, []).append(relative / usual(relative))
    with np.errstate(all="ignore"):
        pace, own = own_s / usual_s, own_s / whole
    by_op = {name: _mean(relative) for name, relative in sorted(ratios.items())}
    return Cohort(stage, ranks, pace, own, seconds, by_op)


def _mean(ratios: list[Floats]) -> Floats:
    """Mean over the chunks that have a value."""
    stacked = np.stack(ratios)
    present = ~np.isnan(stacked)
    with np.errstate(invalid="ignore"):
        mean = np.where(present, stacked, 0.0).sum(axis=0) / present.sum(axis=0)
    return np.asarray(mean, dtype=np.float64)


def medians(
    key: NDArray[np.int64], values: NDArray[Any]
) -> tuple[NDArray[np.int64], Floats, NDArray[np.intp]]:
    """Distinct keys, sorted, with the median and the count of their values."""
    keys, order, starts, counts = _grouped(key, values)
    low = values[order[starts + (counts - 1) // 2]]
    high = values[order[starts + counts // 2]]
    return keys, (low + high) / 2, counts


def _grouped(
    key: NDArray[np.int64], values: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    """Distinct keys, sorted; the order of the values by key; where those of each key begin in it,
    and how many there are.
    """
    order = np.lexsort((values, key))
    keys, starts, counts = np.unique(key[order], return_index=True, return_counts=True)
    return keys, order, starts, counts


# -- how long a step lasts ---------------------------------------------------------------------


def step_seconds(table: TimingTable, work: Work) -> Floats:
    """Seconds by step: the median of the ranks' spans, each on its own clock.

    Without start times it is the work of the busiest stage, a lower bound.
    """
    least = work.busiest_s[:, 0]
    if table.start_s is None:
        return least
    steps = len(table.steps)
    cells = len(table.ranks) * steps
    key = table.rank.astype(np.int64) * steps + table.step
    begin, end = np.full(cells, np.inf), np.full(cells, -np.inf)
    np.minimum.at(begin, key, table.start_s)
    np.maximum.at(end, key, table.start_s + table.duration_s)
    spans = (end - begin).reshape(len(table.ranks), steps)
    spans[~np.isfinite(spans)] = np.nan
    return np.asarray(np.maximum(column_medians(spans), least), dtype=np.float64)


# -- persistent or temporary -------------------------------------------------------------------

_SICK: Final = (0.8, 0.5)
"""Shares of steps in which a sick rank is slow: 4 of 5, as online, or every other one."""
LEAST_CHANCE: Final = 0.05
"""Share of slow steps allowed for any healthy rank, however rarely its peers are slow."""
_MOST_CHANCE: Final = 0.75
"""Fraction of a sick rank's share: if peers are slow this often, slowness accuses nobody."""
_FALSE_ALARMS: Final = 0.01
"""Expected number of stretches found in a whole table in which no rank is sick."""
_FEW_FALSE_ALARMS: Final = 1e-4
"""The same in a cohort under 4, where a slow step has no robust score."""
LEAST: Final = 5
"""Steps in the shortest stretch that counts."""
_LONGEST_LEAST: Final = 20
_LEAST_SHARE: Final = 0.1
"""Share of the table that a stretch must cover (at most 20 steps): less is temporary."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive steps in which a member was slow, with few exceptions."""

    member: int
    first: int
    last: int
    """Inclusive; both are places in the table's steps."""
    slow: int
    seen: int
    chance: float
    """Share of slow steps among its peers, at least 5 %."""

    @property
    def steps(self) -> slice:
        return slice(self.first, self.last + 1)


def stretches(
    slow: Bools, seen: Bools, tests: int, *, least_chance: float = LEAST_CHANCE
) -> list[Stretch]:
    """The longest stretch of each member whose slowness its peers' cannot explain.

    A scan statistic: a slow step adds log(sick / chance), any other log((1 - sick) / (1 - chance)).
    The best run of steps must reach log(tests / 0.01), where `tests` is ranks times steps of the
    whole table, for each of the two shares of a sick rank. So a rank slow in 5 of 5 steps is found
    if its peers never are, but not one of many that long sequences hit now and then. (Page's CUSUM
    over a complete table.)

    `slow` and `seen` are steps x members. `least_chance` is higher if each step has a slow member.
    """
    steps, members = slow.shape
    least = max(LEAST, min(_LONGEST_LEAST, int(np.ceil(_LEAST_SHARE * steps))))
    peers = usual(_rates(slow, seen)[None, :])[0]
    alarms = _FALSE_ALARMS if members >= SMALL else _FEW_FALSE_ALARMS
    needed = log(max(1, tests) * len(_SICK) / alarms)
    longest = []
    for member in np.flatnonzero(slow.sum(axis=0) >= LEAST).tolist():
        chance = max(least_chance, float(np.nan_to_num(peers[member])))
        for sick in _SICK:
            stretch = _stretch(slow, seen, member, (chance, sick), needed)
            if stretch is not None and stretch.seen >= least:
                longest.append(stretch)
                break
    return longest


def _rates(slow: Bools, seen: Bools) -> Floats:
    """Share of slow steps of each member; NaN for a member that was never seen."""
    with np.errstate(invalid="ignore"):
        rates = (slow & seen).sum(axis=0) / seen.sum(axis=0)
    return np.asarray(rates, dtype=np.float64)


def _stretch(
    slow: Bools, seen: Bools, member: int, shares: tuple[float, float], needed: float
) -> Stretch | None:
    """The best stretch of a member; with few peers it must also stand out from the steps outside.

    If two ranks are slow by turns, one is fast while the other is slow, so a peer's rate alone is
    too low a chance.
    """
    slow_steps, seen_steps = slow[:, member], seen[:, member]
    chance, sick = shares
    for _ in range(_ROUNDS):
        if chance > _MOST_CHANCE * sick:
            return None
        points = (
            np.where(slow_steps, log(sick / chance), log((1 - sick) / (1 - chance))) * seen_steps
        )
        first, last, score = _best(points)
        if score < needed:
            return None
        outside = np.ones(len(slow_steps), dtype=np.bool_)
        outside[first : last + 1] = False
        rate = float(np.nanmax(_rates(slow[outside], seen[outside]), initial=0.0))
        enough = slow.shape[1] >= SMALL or np.count_nonzero(outside) < LEAST
        if enough or rate <= chance:
            inside = slice(first, last + 1)
            count = int((slow_steps & seen_steps)[inside].sum())
            return Stretch(member, first, last, count, int(seen_steps[inside].sum()), chance)
        chance = rate
    return None


def _best(points: Floats) -> tuple[int, int, float]:
    """First and last place of the run with the greatest sum, and the sum."""
    sums = np.concatenate(([0.0], np.cumsum(points)))
    lowest = np.minimum.accumulate(sums)[:-1]
    gains = sums[1:] - lowest
    last = int(np.argmax(gains))
    first = int(np.flatnonzero(sums[: last + 1] == lowest[last])[-1])
    return first, last, float(gains[last])


@dataclass(frozen=True, slots=True)
class PaceChange:
    """A lasting change of a rank's own pace."""

    at: int
    """Index of the first step after it."""
    before: float
    after: float

    @property
    def ratio(self) -> float:
        """How many times as long it takes since the change."""
        return self.after / self.before


SCORE: Final = 5.0
"""Robust standard deviations that count."""
_ROUNDS: Final = 4
_LASTING: Final = 0.8
"""Share of values on each side of a change that must lie on their side of the midpoint."""


def change(series: Floats) -> PaceChange | None:
    """The lasting rise in a series, if there is one: CUSUM of deviations from its median.

    Deviations are clipped to a factor of e, so one pause has no effect. Both sides need 5 values
    and must differ by 5 robust standard deviations, and 4 of 5 values of each side must lie on
    their side of the midpoint.
    """
    places = np.flatnonzero(np.isfinite(series) & (series > 0))
    values = series[places]
    if len(values) < 2 * LEAST:
        return None
    deviations = np.clip(np.log(values / np.median(values)), -1.0, 1.0)
    sums = np.cumsum(deviations - deviations.mean())[LEAST - 1 : len(values) - LEAST]
    cut = int(np.argmin(sums)) + LEAST
    before, after = values[:cut], values[cut:]
    low, high = float(np.median(before)), float(np.median(after))
    noise = np.concatenate((np.abs(before - low), np.abs(after - high)))
    spread = 1.4826 * max(float(np.median(noise)), 0.01 * low)
    apart = (low + high) / 2
    lasting = min(np.mean(before < apart), np.mean(after > apart)) >= _LASTING
    if high - low <= SCORE * spread or not lasting:
        return None
    return PaceChange(int(places[cut]), low, high)


# -- what is reported on a table ---------------------------------------------------------------


class SlowKind(StrEnum):
    """The classes of ALGORITHMS.md section 0 in words."""

    STRAGGLER = "straggler"  # S1: works longer than its peers, which wait for it
    SLOW_TRANSFER = "slow_transfer"  # S2: all arrive in time, the transfer takes long
    MIXED = "mixed"  # S3: slow at its own work and in its transfers


@dataclass(frozen=True, slots=True)
class SlowVerdict:
    """One fault of the job; ranks are codes of the table."""

    kind: SlowKind
    reason: str
    """One English sentence that a tired person understands."""
    stretch: Stretch
    """The steps in which it shows."""
    culprits: tuple[int, ...] = ()
    between: tuple[tuple[int, ...], ...] = ()
    """Sides between which the table cannot decide."""
    stage: int | None = None
    replica: int | None = None
    """Data-parallel rank."""
    ratio: float = 1.0
    by_op: Mapping[str, float] = field(default_factory=dict)
    lost_s: float = 0.0
    """Own seconds beyond its peers', summed over the stretch."""
    evidence: Mapping[str, str] = field(default_factory=dict)

    @property
    def confidence(self) -> Confidence:
        """Unsure if sides are named; never certain from a table alone."""
        return Confidence.UNSURE if self.between else Confidence.LIKELY


@dataclass(frozen=True, slots=True)
class RankPace:
    """One rank's pace over the whole table."""

    rank: int
    stage: int
    replica: int | None
    ratio: float
    """Own work relative to the peers' median, as median over the steps; NaN without peers."""
    slow: int
    seen: int
    by_op: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Report:
    verdicts: tuple[SlowVerdict, ...]
    paces: tuple[RankPace, ...]
    """Slowest first."""
    step_s: float
    """Median length of a step."""
    notes: tuple[str, ...] = ()

    @property
    def culprits(self) -> tuple[int, ...]:
        """Codes of all accused ranks, sorted."""
        return tuple(sorted({rank for verdict in self.verdicts for rank in verdict.culprits}))


# -- ranks whose own work is slow (class S1) ---------------------------------------------------

RATIO: Final = 1.10
"""Relative to the median of the peers (ALGORITHMS.md section 6)."""
SHARE_OF_STEP: Final = 0.05
"""Share of a step that the excess must reach: less is not noticeable."""
FEW_RATIO: Final = 1.5
"""With 1 or 2 peers and no change of its own: as online (`straggler_ratio`)."""
FEW_STEPS: Final = 8
"""Slow steps required then: as online (`persistent_windows`)."""
ODD_RATIO: Final = 1.2
"""With 1 or 2 peers that work as long as the ranks of other stages."""
_STEADY: Final = 2.0
"""Robust standard deviations by which the ratio's logarithm must be above 0."""
CHANGED: Final = 1.10
"""Rise of a rank's own pace that confirms what 1 or 2 peers show."""
ALONE_CHANGED: Final = 1.2
"""The same without peers, where only the other stages show that the whole job has not changed:
above the effect of a data change on one stage alone, below the 1.3 of the online detector
(`own_change_ratio`), which has shorter windows."""
_BLOCKS: Final = (1, 5, 15)
"""Steps judged as one by their median: noise that hides 15 % in a step does not in the median of
five. Larger blocks are used only for ranks not found with smaller ones."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A rank that was slow for long, and the evidence for it."""

    rank: int
    stretch: Stretch
    ratio: float
    lost_s: float
    peers: int
    changed: float | None = None
    """Rise of its own pace, if any."""
    odd: bool = False
    """Its few peers work as long as the ranks of other stages, but it does not."""
    sure: bool = True
    """False: only its peers show it, and they are too few or half of the cohort is slow."""


def suspects(
    cohort: Cohort,
    step_s: Floats,
    tests: int,
    *,
    raw: Cohort | None = None,
    elsewhere: Floats | None = None,
) -> list[Suspect]:
    """Slow ranks of one stage; if peers are few, other evidence is needed.

    It is `raw`, the same cohort not adjusted for the load of microbatches, and `elsewhere`, the
    seconds of own work by step as the median of the ranks of other stages.
    """
    members = len(cohort.ranks)
    if members < 2:
        return _alone(cohort, raw, step_s)
    slow = list(_against_peers(cohort, step_s, tests, SCORE))
    if members < SMALL:
        return [
            _with_few(cohort, raw, elsewhere, suspect)
            for suspect in slow
            if steady(cohort, suspect.stretch)
        ]
    named = {suspect.rank for suspect in slow}
    weaker = [
        suspect
        for suspect in _against_peers(cohort, step_s, tests, 0.0)
        if suspect.rank not in named
    ]
    slow += [suspect for suspect in weaker if _stands_out(cohort, suspect.stretch)]
    if not slow and 2 * len(weaker) == members:  # half of a cohort against the other half: a tie
        return [replace(suspect, sure=False) for suspect in weaker]
    return slow


def slow_steps(cohort: Cohort, step_s: Floats, least_score: float = SCORE, block: int = 1) -> Bools:
    """Blocks of steps x members: whether a member was slow enough to delay the job."""
    pace, seconds = blocked(cohort.pace, block), blocked(cohort.seconds, block)
    return _slower(pace, seconds, blocked(step_s[:, None], block), RATIO, least_score)


def _slower(
    values: Floats, weight: Floats | float, step: Floats, ratio: float, least_score: float
) -> Bools:
    """Steps x members: whether a member's value, times `weight` in seconds, is slow."""
    slow = slower(
        values * weight,
        usual(values) * weight,
        step=step,
        score=z_scores(values),
        members=np.sum(~np.isnan(values), axis=1, keepdims=True),
        ratio=ratio,
        share=SHARE_OF_STEP,
        least_score=least_score,
    )
    return np.asarray(slow, dtype=np.bool_)


def blocked(values: Floats, block: int) -> Floats:
    """Medians of `block` steps each, along the first axis; the last block may be shorter."""
    if block == 1:
        return values
    short = -len(values) % block
    filled = np.concatenate((values, np.full((short, *values.shape[1:]), np.nan)))
    blocks = filled.reshape(-1, block, *values.shape[1:])
    return middle(np.moveaxis(blocks, 1, -1))[..., 0]


def _against_peers(
    cohort: Cohort, step_s: Floats, tests: int, least_score: float
) -> Iterator[Suspect]:
    named: set[int] = set()
    steps = len(cohort.pace)
    for block in _BLOCKS:
        if block > 1 and steps < LEAST * block:
            return
        slow = slow_steps(cohort, step_s, least_score, block)
        seen = ~np.isnan(blocked(cohort.pace, block))
        for stretch in stretches(slow, seen, tests):
            if stretch.member not in named:
                named.add(stretch.member)
                yield _suspect(cohort, _unblocked(cohort, stretch, block))


def _unblocked(cohort: Cohort, stretch: Stretch, block: int) -> Stretch:
    if block == 1:
        return stretch
    first, last = stretch.first * block, min(len(cohort.pace), (stretch.last + 1) * block) - 1
    steps = slice(first, last + 1)
    above = cohort.pace[steps, stretch.member] > usual(cohort.pace)[steps, stretch.member]
    seen = int(np.count_nonzero(~np.isnan(cohort.pace[steps, stretch.member])))
    return Stretch(stretch.member, first, last, int(np.count_nonzero(above)), seen, stretch.chance)


def _suspect(cohort: Cohort, stretch: Stretch) -> Suspect:
    pace = cohort.pace[stretch.steps, stretch.member]
    peers = usual(cohort.pace[stretch.steps])[:, stretch.member]
    lost = (pace - peers) * cohort.seconds[stretch.steps, 0]
    ratios = pace / peers
    slow = ratios[ratios > 1.0]
    return Suspect(
        rank=int(cohort.ranks[stretch.member]),
        stretch=stretch,
        ratio=float(np.median(slow)) if len(slow) else 1.0,
        lost_s=_lost_s(lost),
        peers=len(cohort.ranks) - 1,
    )


def steady(cohort: Cohort, stretch: Stretch) -> bool:
    """Whether a rank's distance from one or two peers exceeds its own variation.

    A slow machine is slow by the same factor each time; long sequences are not.
    """
    ratios = (cohort.pace / usual(cohort.pace))[stretch.steps, stretch.member]
    logs = np.log(ratios[np.isfinite(ratios) & (ratios > 0)])
    centre = float(np.median(logs))
    return bool(centre > _STEADY * 1.4826 * float(np.median(np.abs(logs - centre))))


def _with_few(
    cohort: Cohort, raw: Cohort | None, elsewhere: Floats | None, suspect: Suspect
) -> Suspect:
    """One or two peers cannot show which rank is the odd one: more evidence is needed.

    That is the rank's own past; or the other stages, if the peers take as long as those; or
    slowness that is great and long enough to be beyond doubt.
    """
    member = suspect.stretch.member
    rise = change(cohort.own[:, member])
    before = None if raw is None else change(raw.own[:, member])
    changed = None if rise is None or before is None else min(rise.ratio, before.ratio)
    lasting = suspect.ratio >= FEW_RATIO and suspect.stretch.slow >= FEW_STEPS
    odd = suspect.ratio >= ODD_RATIO and _as_elsewhere(cohort, elsewhere, suspect.stretch)
    sure = lasting or odd or (changed is not None and changed >= CHANGED)
    return replace(suspect, changed=changed, odd=odd, sure=sure)


def _as_elsewhere(cohort: Cohort, elsewhere: Floats | None, stretch: Stretch) -> bool:
    """Whether the peers of a rank work about as long as the ranks of other stages."""
    if elsewhere is None:
        return False
    peers = usual(cohort.pace)[stretch.steps, stretch.member] * cohort.seconds[stretch.steps, 0]
    with np.errstate(all="ignore"):
        against = float(np.nanmedian(peers / elsewhere[stretch.steps]))
    return 1 / RATIO < against < RATIO


def _stands_out(cohort: Cohort, stretch: Stretch) -> bool:
    """Whether a rank stands out over its whole stretch, if not in each step.

    With long sequences no single step scores high; medians over many steps do.
    """
    paces = column_medians(cohort.pace[stretch.steps])
    pace, peers = paces[stretch.member], usual(paces)[stretch.member]
    return bool(pace > RATIO * peers and z_scores(paces)[stretch.member] > SCORE)


def _alone(cohort: Cohort, raw: Cohort | None, step_s: Floats) -> list[Suspect]:
    """A rank without peers, compared with its own past and the other stages meanwhile."""
    if raw is None:
        return []
    rise, seen = change(cohort.own[:, 0]), change(raw.own[:, 0])
    if rise is None or seen is None or min(rise.ratio, seen.ratio) < ALONE_CHANGED:
        return []
    series = cohort.own[rise.at :, 0]
    excess = (series - rise.before) * cohort.seconds[rise.at :, 0]
    if not _noticeable(excess, step_s):
        return []
    slow = series > (rise.before + rise.after) / 2
    stretch = Stretch(
        member=0,
        first=rise.at,
        last=len(cohort.own) - 1,
        slow=int(np.count_nonzero(slow)),
        seen=int(np.count_nonzero(~np.isnan(series))),
        chance=0.0,
    )
    return [Suspect(int(cohort.ranks[0]), stretch, rise.ratio, _lost_s(excess), 0, rise.ratio)]


def _noticeable(excess: Floats, step_s: Floats) -> bool:
    """Whether the seconds by step are enough to delay the job."""
    return bool(np.nanmedian(excess) > SHARE_OF_STEP * np.nanmedian(step_s))


def _lost_s(excess: Floats) -> float:
    """The sum over the steps that took longer."""
    return float(np.nansum(np.maximum(excess, 0.0)))


# -- late arrival or slow transfer -------------------------------------------------------------

LATE: Final = 0.7
"""P at or above which a collective's lost time is late arrival; below 0.3 it is the transfer."""
_LINK_RATIO: Final = 1.5
_GROWN: Final = 1.5
"""Of a group's fastest member, relative to its own past."""


@dataclass(frozen=True, slots=True)
class Late:
    """A rank that its stage waits for in a collective, again and again."""

    rank: int
    op: str
    stretch: Stretch
    share: float
    """Median P over the steps in which it came last."""
    lost_s: float
    """Seconds that the first to arrive waited for it."""


@dataclass(frozen=True, slots=True)
class SlowLink:
    """Two pipeline neighbours whose transfers take longer than those between their peers."""

    ranks: tuple[int, int]
    replica: int
    stretch: Stretch
    ratio: float
    lost_s: float


def collectives(table: TimingTable) -> Iterator[tuple[int, str, NDArray[np.intp], Floats]]:
    """Stage, operation, ranks, and seconds inside: steps x ranks; NaN where rows are missing."""
    for code in table.codes_of(TimeOwner.SHARED):
        rows = table.rows_of([code])
        inside = np.full((len(table.ranks), len(table.steps)), np.nan)
        key = table.rank[rows].astype(np.int64) * len(table.steps) + table.step[rows]
        sums = np.bincount(key, table.duration_s[rows], minlength=inside.size)
        present = np.bincount(key, minlength=inside.size) > 0
        inside.reshape(-1)[present] = sums[present]
        for stage in table.stages.tolist():
            ranks = table.ranks_of(stage)
            seconds = inside[ranks].T
            if len(ranks) > 1 and not np.isnan(seconds).all():
                unclear = np.isnan(seconds).any(axis=1)  # which rank came last is unknown there
                seconds[unclear] = np.nan
                yield stage, table.ops[code], ranks, seconds


def late(table: TimingTable, step_s: Floats, tests: int) -> list[Late]:
    """Ranks that come last, and late, for long."""
    latecomers = []
    for _, op, ranks, inside in collectives(table):
        least, share, lost = _parts(inside)
        bad = (share >= LATE) & (lost > np.maximum(SHARE_OF_STEP * step_s, 3 * _spread(least)))
        with np.errstate(invalid="ignore"):
            near = inside - least[:, None] <= (1 - LATE) * lost[:, None]
        # If two come last together, the others wait for neither alone.
        last = near & (bad & (near.sum(axis=1) == 1))[:, None]
        # Some rank always comes last: by turns, if none is sick.
        turns = max(LEAST_CHANCE, float(last.any(axis=1).mean()) / len(ranks))
        for stretch in stretches(last, ~np.isnan(inside), tests, least_chance=turns):
            steps = last[stretch.steps, stretch.member]
            latecomers.append(
                Late(
                    rank=int(ranks[stretch.member]),
                    op=op,
                    stretch=stretch,
                    share=float(np.median(share[stretch.steps][steps])),
                    lost_s=float(lost[stretch.steps][steps].sum()),
                )
            )
    return latecomers


def slow_groups(table: TimingTable, step_s: Floats) -> Iterator[SlowVerdict]:
    """Collectives whose transfer itself became slow and stayed so, though all arrive in time."""
    for stage, op, _, inside in collectives(table):
        least, share, _ = _parts(inside)
        grown = change(least)
        if grown is None or grown.ratio < _GROWN:
            continue
        excess = least[grown.at :] - grown.before
        late_part = float(np.nanmedian(np.nan_to_num(share[grown.at :])))
        if late_part >= LATE or not _noticeable(excess, step_s):
            continue
        count = len(table.steps) - grown.at
        yield SlowVerdict(
            kind=SlowKind.SLOW_TRANSFER if late_part < 0.3 else SlowKind.MIXED,
            reason=(
                f"{op} of stage {stage} takes {grown.ratio:.1f} times as long as it did since "
                f"step {table.steps[grown.at]}, though all its ranks come in time: the network "
                "between them, no rank is accused"
            ),
            stretch=Stretch(0, grown.at, len(table.steps) - 1, count, count, 0.0),
            stage=stage,
            ratio=grown.ratio,
            lost_s=_lost_s(excess),
            evidence={
                **_source(f"fastest member of {op}"),
                "late arrival": f"late share P = {late_part:.2f}",
            },
        )


def _parts(inside: Floats) -> tuple[Floats, Floats, Floats]:
    """By step: the fastest member, P, and the seconds between the first and last arrival."""
    with np.errstate(all="ignore"):
        least = np.fmin.reduce(inside, axis=1)
        lost = np.fmax.reduce(inside, axis=1) - least
    present = least[~np.isnan(least)]
    base = np.full(len(least), np.median(present) if len(present) else np.nan)
    # A step may be faster than usual: then its own time is the base.
    return least, late_share(inside, np.fmin(base, least)), np.nan_to_num(lost)


def _spread(values: Floats) -> float:
    present = values[~np.isnan(values)]
    return float(np.median(np.abs(present - np.median(present)))) if len(present) else 0.0


def slow_links(table: TimingTable, step_s: Floats, tests: int) -> list[SlowLink]:
    """Links slower than the same link of the other replicas.

    A send and its receive each last from their own side's arrival to the end of the transfer, so
    the shorter of the two is the transfer (or an upper bound if a framework posts a send and a
    receive as one).
    """
    if not {"dp_rank", "seq_id"} <= table.tells or len(table.stages) < 2:
        return []
    replicas = np.unique(table.replica)
    links = []
    for below, seconds in enumerate(_link_seconds(table, replicas)):
        slow = _slower(seconds, 1.0, step_s[:, None], _LINK_RATIO, SCORE)
        for stretch in stretches(slow, ~np.isnan(seconds), tests):
            replica = int(replicas[stretch.member])
            stages = table.stages
            both = (stages[below], stages[(below + 1) % len(stages)])
            ends = [
                int(np.flatnonzero((table.stage == s) & (table.replica == replica))[0])
                for s in both
            ]
            of_peers = usual(seconds[stretch.steps])[:, stretch.member]
            link_s = seconds[stretch.steps, stretch.member]
            link = SlowLink(
                ranks=(ends[0], ends[1]),
                replica=replica,
                stretch=stretch,
                ratio=float(np.nanmedian(link_s / of_peers)),
                lost_s=_lost_s(link_s - of_peers),
            )
            few = len(replicas) < SMALL
            if not (few and (link.ratio < FEW_RATIO or stretch.slow < FEW_STEPS)):
                links.append(link)
    return links


def _link_seconds(table: TimingTable, replicas: NDArray[np.int64]) -> Floats:
    """Seconds of transfer between each stage and the next: stages x steps x replicas."""
    total = np.zeros((len(table.stages), len(table.steps), len(replicas)))
    present = np.zeros(total.shape, dtype=np.bool_)
    receives = table.codes_of(TimeOwner.RECEIVE)
    for code in table.codes_of(TimeOwner.SEND):
        way = direction(table.ops[code])
        partners = [other for other in receives if direction(table.ops[other]) == way]
        if len(partners) != 1:
            continue
        # A link is named by the stage below it, which sends forward and receives backward.
        key_a, sent = _messages(table, code, replicas, 0 if way > 0 else 1)
        key_b, received = _messages(table, partners[0], replicas, 1 if way > 0 else 0)
        both, a, b = np.intersect1d(key_a, key_b, assume_unique=True, return_indices=True)
        cells, middles, counts = medians(
            both // (int(table.sequence.max()) + 1), np.minimum(sent[a], received[b])
        )
        total.reshape(-1)[cells] += middles * counts
        present.reshape(-1)[cells] = True
    return np.where(present, total, np.nan)


def _messages(
    table: TimingTable, op: int, replicas: NDArray[np.int64], above: int
) -> tuple[NDArray[np.int64], Floats]:
    """Key of (link, step, replica, sequence) and seconds: the minimum if recorded twice.

    `above` is 1 if the rank is above its link.
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


# -- verdicts in sentences ---------------------------------------------------------------------


def _source(what: str, resolution: str = "one step") -> dict[str, str]:
    """The first part of every verdict's evidence."""
    source = f"{what}; durations of operations, each on its rank's own clock"
    return {"source": source, "resolution": resolution}


def slow_rank(table: TimingTable, cohort: Cohort, suspect: Suspect) -> SlowVerdict:
    """A rank slower than its peers, or than its own past."""
    steps, member = suspect.stretch.steps, suspect.stretch.member
    by_op = {name: float(column_medians(of[steps])[member]) for name, of in cohort.by_op.items()}
    by_op = {name: ratio for name, ratio in by_op.items() if np.isfinite(ratio)}
    who = f"{named(table, [suspect.rank])} ({_place(table, suspect.rank)})"
    if suspect.peers:
        others = "the other rank" if suspect.peers == 1 else f"the {suspect.peers} other ranks"
        parts = ", ".join(f"{name} {ratio:.2f}" for name, ratio in by_op.items())
        reason = (
            f"{who} takes {suspect.ratio:.2f} times as long for its own work as {others} of its "
            f"stage in {_when(table, suspect.stretch)}" + (f" ({parts})" if len(by_op) > 1 else "")
        )
    else:
        reason = (
            f"{who} takes {suspect.ratio:.2f} times as long for its own work as it did, in "
            f"{_when(table, suspect.stretch)}, while the other stages take what they took"
        )
    return SlowVerdict(
        kind=SlowKind.STRAGGLER,
        reason=reason,
        culprits=(suspect.rank,),
        stage=cohort.stage,
        replica=table.replica_of(suspect.rank),
        ratio=suspect.ratio,
        by_op=by_op,
        lost_s=suspect.lost_s,
        evidence=_evidence(table, cohort, suspect),
        stretch=suspect.stretch,
    )


def _evidence(table: TimingTable, cohort: Cohort, suspect: Suspect) -> dict[str, str]:
    ops = ", ".join(cohort.by_op)
    of_stage = f"{counted(len(cohort.ranks), 'rank')} of stage {cohort.stage}"
    evidence = _source(f"{ops} of {of_stage}", _resolution(table))
    if suspect.peers:
        others = np.delete(cohort.pace[suspect.stretch.steps], suspect.stretch.member, axis=1)
        scores = z_scores(cohort.pace[suspect.stretch.steps])[:, suspect.stretch.member]
        if suspect.peers + 1 >= SMALL:
            evidence["score"] = (
                f"{np.nanmedian(scores):.0f} robust standard deviations from the stage"
            )
            evidence["peers"] = f"differ by {_spread_told(others):.1%} among themselves"
            evidence["chance"] = (
                f"a peer is slow in {suspect.stretch.chance:.0%} of the steps at most"
            )
        else:
            evidence["peers"] = f"{suspect.peers} only, too few for a robust score: low confidence"
    else:
        evidence["peers"] = "none, its own past only: low confidence"
    if suspect.odd:
        evidence["other stages"] = "their ranks take as long as its peers"
    if suspect.changed is not None:
        evidence["own past"] = f"{suspect.changed:.2f} times as long as before"
    elif suspect.peers + 1 < SMALL:
        evidence["own past"] = "no change: it was so from the beginning of the table"
    return evidence


def _spread_told(others: Floats) -> float:
    centre = middle(others)
    apart = np.abs(others - centre) / centre
    return float(np.nanmedian(apart)) if np.isfinite(apart).any() else 0.0


def tie(table: TimingTable, cohort: Cohort, suspects: Sequence[Suspect]) -> SlowVerdict:
    """Slow ranks against as many others, or one against one."""
    ranks = sorted(suspect.rank for suspect in suspects)
    others = sorted(set(cohort.ranks.tolist()) - set(ranks))
    worst = max(suspects, key=lambda suspect: (suspect.ratio, -suspect.rank))
    return SlowVerdict(
        kind=SlowKind.STRAGGLER,
        reason=(
            f"{named(table, ranks)} of stage {cohort.stage} {plural(ranks, 'takes', 'take')} "
            f"{worst.ratio:.2f} times as long for own work as {named(table, others)} in "
            f"{_when(table, worst.stretch)}; peers are too few to tell who is the odd one"
        ),
        between=(tuple(ranks), tuple(others)),
        stage=cohort.stage,
        ratio=worst.ratio,
        lost_s=max(suspect.lost_s for suspect in suspects),
        evidence=_source(", ".join(cohort.by_op), _resolution(table)),
        stretch=worst.stretch,
    )


def slow_replica(table: TimingTable, replica: int, suspect: Suspect) -> SlowVerdict:
    ranks = np.flatnonzero(table.replica == replica).tolist()
    return SlowVerdict(
        kind=SlowKind.STRAGGLER,
        reason=(
            f"all stages of data-parallel rank {replica} take {suspect.ratio:.2f} times as long "
            f"for the same microbatches as the other replicas in {_when(table, suspect.stretch)}: "
            "its data or its hosts, the table does not tell"
        ),
        between=(tuple(ranks),),
        replica=replica,
        ratio=suspect.ratio,
        lost_s=suspect.lost_s,
        evidence=_source("lower median over the stages of each microbatch", _resolution(table)),
        stretch=suspect.stretch,
    )


def tell_slow_links(
    table: TimingTable, links: Sequence[SlowLink], culprit: int | None
) -> SlowVerdict:
    """A link, or a rank all of whose links are slow."""
    worst = max(links, key=lambda link: (link.ratio, link.ranks))
    when = _when(table, worst.stretch)
    if culprit is None:
        reason = (
            f"transfers between {named(table, worst.ranks)} take {worst.ratio:.1f} times as long "
            f"as between the same stages of other replicas in {when}; both ends work as usual, "
            "and which end it is cannot be told"
        )
    else:
        reason = (
            f"{named(table, [culprit])} ({_place(table, culprit)}) has slow transfers to both of "
            f"its neighbours, {worst.ratio:.1f} times as long as between the same stages of other "
            f"replicas in {when}, and works as usual"
        )
    ends = sorted({(rank,) for link in links for rank in link.ranks})
    return SlowVerdict(
        kind=SlowKind.SLOW_TRANSFER,
        reason=reason,
        culprits=() if culprit is None else (culprit,),
        between=tuple(ends) if culprit is None else (),
        stage=None if culprit is None else int(table.stage[culprit]),
        replica=worst.replica,
        ratio=worst.ratio,
        lost_s=max(link.lost_s for link in links),
        evidence=_source(
            "the shorter of each send and its receive", "one step: median over its messages"
        ),
        stretch=worst.stretch,
    )


def late_rank(table: TimingTable, comer: Late, replica: int | None) -> SlowVerdict:
    """A rank that a collective waits for, though its recorded work is as usual."""
    when = _when(table, comer.stretch)
    lost = f"its peers waited {comer.lost_s:.1f} s for it (late share P = {comer.share:.2f})"
    if replica is None:
        reason = (
            f"{named(table, [comer.rank])} comes last to {comer.op} in {when} and {lost}, while "
            "its recorded work is like its peers': the time goes outside of the recorded operations"
        )
        ranks = [comer.rank]
    else:
        ranks = np.flatnonzero(table.replica == replica).tolist()
        reason = (
            f"data-parallel rank {replica} comes last to {comer.op} in {when} and {lost}, while "
            "the recorded work of all its stages is like that of others: which rank began it "
            "cannot be told"
        )
    return SlowVerdict(
        kind=SlowKind.STRAGGLER,
        reason=reason,
        culprits=tuple(ranks) if replica is None else (),
        between=() if replica is None else tuple((rank,) for rank in ranks),
        stage=int(table.stage[comer.rank]) if replica is None else None,
        replica=table.replica_of(comer.rank),
        lost_s=comer.lost_s,
        evidence=_source(f"seconds inside {comer.op}"),
        stretch=comer.stretch,
    )


def _when(table: TimingTable, stretch: Stretch) -> str:
    """`44 of 44 steps`, `20 of 22 steps since step 804`, `9 of 9 steps from step 3 to 11`."""
    count = f"{stretch.slow:,} of {stretch.seen:,} steps"
    first, last = table.steps[stretch.first], table.steps[stretch.last]
    if stretch.last < len(table.steps) - 1:
        return f"{count} from step {first} to {last}"
    return count if stretch.first == 0 else f"{count} since step {first}"


def _resolution(table: TimingTable) -> str:
    if "mb_id" not in table.tells:
        return "one step"
    rows = table.rows_of(table.codes_of(TimeOwner.OWN))
    count = len(np.unique(table.microbatch[rows]))
    return f"one step: median over its {counted(count, 'microbatch')}"


def named(table: TimingTable, ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 3 and 7`, `ranks 3, 7, 9 and 4 more`."""
    numbers = [str(number) for number in sorted(table.ranks[list(ranks)].tolist())]
    shown = listed(numbers, 7 if len(numbers) > 8 else 8)
    return f"{plural(numbers, 'rank', 'ranks')} {shown}"


def _place(table: TimingTable, rank: int) -> str:
    stage = f"stage {table.stage[rank]}"
    replica = table.replica_of(rank)
    return stage if replica is None else f"{stage}, data-parallel rank {replica}"


def column_medians(values: Floats) -> Floats:
    """Median of each column over the rows that have a value."""
    return middle(values.T)[:, 0]


# -- judge -------------------------------------------------------------------------------------

_EXPLAINS: Final = 0.5
"""Share of the seconds lost to a late rank that its own recorded work must explain."""
_LEAST_ELSEWHERE: Final = 3
"""Ranks of other stages needed as evidence."""


def judge(table: TimingTable) -> Report:
    """All verdicts on a table. Deterministic; the order of rows does not matter."""
    done = work(table)
    step_s = step_seconds(table, done)
    tests = len(table.ranks) * len(table.steps)
    few = any(len(cohort.ranks) < SMALL for cohort in done.cohorts)
    raw = work(table, by_load=False) if few else done
    verdicts: list[SlowVerdict] = []
    for place in range(len(done.cohorts)):
        verdicts += _in_stage(table, done, raw, place, step_s)
    explained = _explained(table, verdicts)
    loads = _loads(table, done, step_s, tests)
    verdicts += [verdict for verdict in loads if verdict.replica not in explained]
    comers = late(table, step_s, tests)
    links = slow_links(table, step_s, tests)
    verdicts = [_with_transfers(table, verdict, comers, links) for verdict in verdicts]
    verdicts += _links(table, links, _explained(table, verdicts))
    comers = [comer for comer in comers if not _by_own_work(table, done, comer)]
    verdicts += _late(table, comers, _explained(table, verdicts))
    stages = {verdict.stage for verdict in verdicts}
    verdicts += [verdict for verdict in slow_groups(table, step_s) if verdict.stage not in stages]
    verdicts.sort(key=lambda v: (v.confidence is Confidence.UNSURE, -v.lost_s, v.culprits))
    return Report(
        verdicts=tuple(verdicts),
        paces=tuple(_paces(table, done, step_s)),
        step_s=float(np.median(step_s)),
        notes=(*table.notes, *_notes(table, done)),
    )


def _in_stage(
    table: TimingTable, done: Work, raw: Work, place: int, step_s: Floats
) -> Iterator[SlowVerdict]:
    """Ranks whose own work is slow: a verdict on each, and one on all that tie with their peers."""
    cohort, tests = done.cohorts[place], len(table.ranks) * len(table.steps)
    elsewhere = _elsewhere(done, place) if len(cohort.ranks) < SMALL else None
    slow = suspects(cohort, step_s, tests, raw=raw.cohorts[place], elsewhere=elsewhere)
    yield from (slow_rank(table, cohort, suspect) for suspect in slow if suspect.sure)
    tied = [suspect for suspect in slow if not suspect.sure and suspect.ratio >= ODD_RATIO]
    if tied:
        yield tie(table, cohort, tied)


def _elsewhere(done: Work, place: int) -> Floats | None:
    """Seconds of own work by step, median over the ranks of other stages; None if under 3."""
    others = [cohort.pace * cohort.seconds for at, cohort in enumerate(done.cohorts) if at != place]
    ranks = np.concatenate(others, axis=1) if others else np.empty((0, 0))
    return middle(ranks)[:, 0] if ranks.shape[1] >= _LEAST_ELSEWHERE else None


def _loads(table: TimingTable, done: Work, step_s: Floats, tests: int) -> Iterator[SlowVerdict]:
    """Replicas whose stages are all equally slow for long: their hosts or their data."""
    fleet = done.fleet
    if fleet is None or len(fleet.ranks) < 2:
        return
    replicas = np.unique(table.replica)
    for suspect in suspects(fleet, step_s, tests):
        if suspect.sure and steady(fleet, suspect.stretch):
            yield slow_replica(table, int(replicas[suspect.rank]), suspect)


def _explained(table: TimingTable, verdicts: list[SlowVerdict]) -> set[int]:
    """Replicas that already have a verdict: their lateness follows from it."""
    replicas = {verdict.replica for verdict in verdicts if verdict.replica is not None}
    for verdict in verdicts:
        accused = (*verdict.culprits, *(rank for side in verdict.between[:1] for rank in side))
        replicas.update(table.replica[list(accused)].tolist())
    return replicas


def _with_transfers(
    table: TimingTable, verdict: SlowVerdict, comers: list[Late], links: list[SlowLink]
) -> SlowVerdict:
    """A slow rank's verdict with what its replica's collectives and its links show."""
    if not verdict.culprits:
        return verdict
    kind, evidence = verdict.kind, dict(verdict.evidence)
    own_comers = [
        comer
        for comer in comers
        if comer.rank in verdict.culprits
        or (verdict.replica is not None and table.replica_of(comer.rank) == verdict.replica)
    ]
    if own_comers:
        worst = max(own_comers, key=lambda comer: comer.lost_s)
        evidence["late arrival"] = (
            f"its replica comes last to {worst.op}, where the others waited {worst.lost_s:.1f} s; "
            f"late share P = {worst.share:.2f}"
        )
    touching = [link for link in links if set(link.ranks) & set(verdict.culprits)]
    if touching:
        kind, slowest = SlowKind.MIXED, max(touching, key=lambda link: link.ratio)
        evidence["slow transfer"] = (
            f"the link between {named(table, slowest.ranks)} takes {slowest.ratio:.1f} times "
            "as long as in the other replicas"
        )
    return replace(verdict, kind=kind, evidence=evidence)


def _links(table: TimingTable, links: list[SlowLink], sick: set[int]) -> Iterator[SlowVerdict]:
    """Slow links of replicas in which no rank works slowly; two links of one rank accuse it."""
    healthy = [link for link in links if link.replica not in sick]
    for replica in sorted({link.replica for link in healthy}):
        of_replica = [link for link in healthy if link.replica == replica]
        shared = set(of_replica[0].ranks).intersection(*(link.ranks for link in of_replica))
        if len(of_replica) == 2 and len(shared) == 1:
            yield tell_slow_links(table, of_replica, shared.pop())
        else:
            for link in of_replica:
                yield tell_slow_links(table, [link], None)


def _by_own_work(table: TimingTable, done: Work, comer: Late) -> bool:
    """Whether recorded work of the rank or its replica explains why it is late.

    Then the rules for slow ranks have already judged it as too small or too rare.
    """
    for cohort in done.cohorts:
        excess = (cohort.pace - usual(cohort.pace)) * cohort.seconds
        for place, rank in enumerate(cohort.ranks.tolist()):
            same = rank == comer.rank or table.replica_of(rank) == table.replica_of(comer.rank)
            spent = excess[comer.stretch.steps, place]
            if same and _lost_s(spent) > _EXPLAINS * comer.lost_s:
                return True
    return False


def _late(table: TimingTable, comers: list[Late], sick: set[int]) -> Iterator[SlowVerdict]:
    """Ranks that collectives wait for though their recorded work is as usual.

    In a pipeline the whole replica is late together, so which of its ranks began is unknown.
    Without a pipeline it is the rank itself, outside of what is recorded.
    """
    alone = len(table.stages) == 1
    by_replica: dict[int, list[Late]] = {}
    for comer in comers:
        replica = table.replica_of(comer.rank)
        if (alone or replica is not None) and table.replica[comer.rank] not in sick:
            by_replica.setdefault(comer.rank if replica is None else replica, []).append(comer)
    for replica, late_ranks in sorted(by_replica.items()):
        worst = max(late_ranks, key=lambda each: (each.lost_s, -each.rank))
        yield late_rank(table, worst, None if alone else replica)


def _paces(table: TimingTable, done: Work, step_s: Floats) -> list[RankPace]:
    paces = []
    for cohort in done.cohorts:
        with np.errstate(all="ignore"):
            ratios = column_medians(cohort.pace / usual(cohort.pace))
        slow = slow_steps(cohort, step_s)
        seen = ~np.isnan(cohort.pace)
        by_op = {name: column_medians(values) for name, values in cohort.by_op.items()}
        for place, rank in enumerate(cohort.ranks.tolist()):
            pace = RankPace(
                rank=rank,
                stage=cohort.stage,
                replica=table.replica_of(rank),
                ratio=float(ratios[place]),
                slow=int(slow[:, place].sum()),
                seen=int(seen[:, place].sum()),
                by_op={name: float(medians_of[place]) for name, medians_of in by_op.items()},
            )
            paces.append(pace)
    return sorted(paces, key=lambda pace: (-pace.slow, -np.nan_to_num(pace.ratio), pace.rank))


def _notes(table: TimingTable, done: Work) -> Iterator[str]:
    if len(table.steps) < LEAST:
        yield f"{len(table.steps)} steps are too few to call anything persistent: {LEAST} are asked"
    few = sorted({len(cohort.ranks) for cohort in done.cohorts if len(cohort.ranks) < SMALL})
    if few:
        sizes = " or ".join(str(size) for size in few)
        yield (
            f"stages of {sizes} {'rank' if few == [1] else 'ranks'}: too few peers for a robust "
            "score, so a rank is named only if its own past or a great ratio agrees"
        )
    if not any(np.isfinite(cohort.pace).any() for cohort in done.cohorts):
        yield "no operation is known as a rank's own work: expected names such as forward-compute"
