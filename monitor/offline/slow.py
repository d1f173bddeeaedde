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
    usual,
    z_scores,
)
from lightkeeper.monitor.model.units import counted
from lightkeeper.monitor.model.verdict import Confidence
from lightkeeper.monitor.model.wording import listed, plural
from lightkeeper.monitor.offline.timings import TimeOwner, TimingTable, coded, direction

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
    seconds: Floats
    """The stage's median seconds of work in a step; steps x 1."""
    by_op: Mapping[str, Floats]
    """Ratio to the median of the others, by type of operation."""

    @property
    def own_s(self) -> Floats:
        """Seconds of own work."""
        return self.pace * self.seconds


def work(table: TimingTable) -> list[Cohort]:
    """The work of every stage; none if no operation is known as work.

    A kind of work is an operation on one chunk. A microbatch's load is the lower median of its
    durations on all stages, relative to what is usual there: one slow stage of two or more does not
    move it, a long sequence does. Forward and backward count separately.
    """
    rows = table.rows_of(table.codes_of(TimeOwner.OWN))
    kind = table.op[rows].astype(np.int64) * (int(table.chunk.max()) + 1) + table.chunk[rows]
    stages, steps = len(table.stages), len(table.steps)
    of_stage = kind * stages + np.searchsorted(table.stages, table.stage)[table.rank[rows]]
    usual_s = _lower(of_stage, table.duration_s[rows], _BASE)
    timed = usual_s > 0.0  # a kind that takes no time has no ratio
    rows, kind, usual_s = rows[timed], kind[timed], usual_s[timed]
    if not len(rows):
        return []
    rank, step = table.rank[rows].astype(np.int64), table.step[rows]
    relative = table.duration_s[rows] / usual_s
    if {"dp_rank", "mb_id"} <= table.tells and stages > 1:
        key = coded(table.replica)[1][rank].astype(np.int64) * steps + step
        key = key * len(table.ops) + table.op[rows]
        key = key * (int(table.microbatch.max()) + 1) + table.microbatch[rows]
        relative /= _lower(key, relative, 0.5)
    kinds, place = coded(kind)
    shape = len(kinds), len(table.ranks), steps
    keys, middles, counts = medians((place * shape[1] + rank) * steps + step, relative)
    cells, spent_s = np.full(shape, np.nan), np.zeros(shape)
    cells.reshape(-1)[keys] = middles
    spent_s.reshape(-1)[keys] = counts
    base = np.zeros((len(kinds), len(table.ranks)))
    base[place, rank] = usual_s
    spent_s *= base[:, :, None]
    names = [table.ops[code] for code in kinds // (int(table.chunk.max()) + 1)]
    return [_cohort(table, int(stage), cells, spent_s, names) for stage in table.stages]


def _cohort(
    table: TimingTable, stage: int, cells: Floats, spent_s: Floats, names: Sequence[str]
) -> Cohort:
    """One stage, from all cells: kinds x ranks x steps."""
    ranks = table.ranks_of(stage)
    relative = cells[:, ranks].swapaxes(1, 2)
    weight = spent_s[:, ranks].max(axis=1)[:, :, None]

    def mean(kinds: Bools) -> Floats:
        present = np.where(np.isnan(relative[kinds]), 0.0, weight[kinds])
        with np.errstate(invalid="ignore"):
            spent = np.nan_to_num(relative[kinds]) * present
            return np.asarray(spent.sum(axis=0) / present.sum(axis=0), dtype=np.float64)

    own = mean(np.ones(len(names), dtype=np.bool_))
    ops = {name: mean(np.array(names) == name) for name in sorted(set(names))}
    with np.errstate(all="ignore"):
        by_op = {
            name: ratio / usual(ratio) for name, ratio in ops.items() if not np.isnan(ratio).all()
        }
        pace = own / middle(own)
    seconds = np.nansum(weight * middle(relative), axis=0)
    return Cohort(stage, ranks, pace, seconds, by_op)


def medians(
    key: NDArray[np.int64], values: NDArray[Any]
) -> tuple[NDArray[np.int64], Floats, NDArray[np.intp]]:
    """Distinct keys, sorted, with the median and the count of their values."""
    keys, order, starts, counts = _grouped(key, values)
    low = values[order[starts + (counts - 1) // 2]]
    high = values[order[starts + counts // 2]]
    return keys, (low + high) / 2, counts


def _lower(key: NDArray[np.int64], values: Floats, share: float) -> Floats:
    """For each value the lower quantile of those with its key."""
    _, order, starts, counts = _grouped(key, values)
    of_row = np.empty(len(order))
    of_row[order] = np.repeat(
        values[order[starts + ((counts - 1) * share).astype(np.intp)]], counts
    )
    return of_row


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


def step_seconds(table: TimingTable, cohorts: Sequence[Cohort]) -> Floats:
    """Seconds by step: the median of the ranks' spans, each on its own clock.

    Without start times it is the work of the busiest stage, a lower bound.
    """
    shape = len(table.ranks), len(table.steps)
    if table.start_s is None:
        seconds = [np.zeros(shape[1]), *(cohort.seconds[:, 0] for cohort in cohorts)]
        return np.asarray(np.max(seconds, axis=0), dtype=np.float64)
    begin, end = np.full(shape, np.inf), np.full(shape, -np.inf)
    np.minimum.at(begin, (table.rank, table.step), table.start_s)
    np.maximum.at(end, (table.rank, table.step), table.start_s + table.duration_s)
    spans = np.where(end >= begin, end - begin, np.nan)
    return column_medians(spans)


# -- persistent or temporary -------------------------------------------------------------------

_SICK: Final = 0.5
"""Share of steps in which a sick rank is slow at least."""
LEAST_CHANCE: Final = 0.05
"""Share of slow steps allowed for any healthy rank, however rarely its peers are slow."""
_MOST_CHANCE: Final = 0.375
"""If peers are slow this often, slowness accuses nobody."""
_FALSE_ALARMS: Final = 0.01
"""Expected number of stretches found in a whole table in which no rank is sick."""
_FEW_FALSE_ALARMS: Final = 1e-4
"""The same in a cohort under 4, where no robust score confirms it."""
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

    @property
    def steps(self) -> slice:
        return slice(self.first, self.last + 1)


def stretches(
    slow: Bools, seen: Bools, tests: int, *, least_chance: float = LEAST_CHANCE
) -> Iterator[Stretch]:
    """The longest stretch of each member whose slowness its peers' cannot explain.

    A scan statistic: a slow step adds log(sick / chance), any other log((1 - sick) / (1 - chance)),
    where `chance` is the share of slow steps of its peers. The best run of steps must reach
    log(tests / 0.01), where `tests` is ranks times steps of the whole table. So a rank slow in 5 of
    5 steps is found if its peers never are, but not one of many that long sequences hit now and
    then. (Page's CUSUM over a complete table.)

    `slow` and `seen` are steps x members. `least_chance` is higher if each step has a slow member.
    """
    steps, members = slow.shape
    least = max(LEAST, min(_LONGEST_LEAST, int(np.ceil(_LEAST_SHARE * steps))))
    with np.errstate(invalid="ignore"):
        peers = usual((slow & seen).sum(axis=0) / seen.sum(axis=0))
    needed = log(max(1, tests) / (_FALSE_ALARMS if members >= SMALL else _FEW_FALSE_ALARMS))
    for member in np.flatnonzero(slow.sum(axis=0) >= LEAST).tolist():
        chance = max(least_chance, float(np.nan_to_num(peers[member])))
        if chance > _MOST_CHANCE:
            continue
        points = np.where(slow[:, member], log(_SICK / chance), log((1 - _SICK) / (1 - chance)))
        first, last, score = _best(points * seen[:, member])
        inside = slice(first, last + 1)
        count = int(seen[inside, member].sum())
        if score >= needed and count >= least:
            yield Stretch(member, first, last, int(slow[inside, member].sum()), count)


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
    """A lasting rise in a series."""

    at: int
    """Index of the first step after it."""
    before: float
    ratio: float
    """How many times as long it takes since then."""


SCORE: Final = 5.0
"""Robust standard deviations that count."""
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
    return PaceChange(int(places[cut]), low, high / low)


# -- what is reported on a table ---------------------------------------------------------------


class SlowKind(StrEnum):
    """The classes of ALGORITHMS.md section 0 in words."""

    STRAGGLER = "straggler"  # S1: works longer than its peers, which wait for it
    SLOW_TRANSFER = "slow_transfer"  # S2: all arrive in time, the transfer takes long
    MIXED = "mixed"  # S3: slow at its own work and in its transfers


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowVerdict:
    """One fault of the job; ranks are codes of the table."""

    kind: SlowKind = SlowKind.STRAGGLER
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
    """Global."""
    stage: int
    dp_rank: int | None
    ratio: float
    """Own work relative to the peers' median, as median over the steps; NaN without peers."""
    ratios: Mapping[str, float]
    """By type of operation."""
    slow_steps: int
    steps: int


@dataclass(frozen=True, slots=True)
class SlowReport:
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
FEW_RATIO: Final = 1.2
"""With few peers that work as long as the ranks of other stages; without peers, relative to its own
past: above the effect of a data change on one stage alone."""
GREAT_RATIO: Final = 1.5
"""With 1 or 2 peers and no change of its own: as online (`straggler_ratio`). Of a link relative to
those of other replicas, and of a collective relative to its own past."""
GREAT_STEPS: Final = 8
"""Slow steps required then: as online (`persistent_windows`)."""


def slow_steps(values: Floats, seconds: Floats | float, step_s: Floats, ratio: float) -> Bools:
    """Steps x members: whether a value, times `seconds`, was slow enough to delay the job."""
    peers = usual(values)
    noticed = (values - peers) * seconds > SHARE_OF_STEP * step_s[:, None]
    return np.asarray((values > ratio * peers) & noticed, dtype=np.bool_)


def _stands_out(values: Floats, slow: Bools, stretch: Stretch) -> bool:
    """True if a member stands out in medians over its slow steps.

    With long sequences no single step scores high. Under 4 members have no robust score.
    """
    paces = column_medians(values[stretch.steps][slow[stretch.steps, stretch.member]])
    return bool(z_scores(paces)[stretch.member] > SCORE)


def in_stage(
    table: TimingTable, cohort: Cohort, elsewhere: Floats | None, step_s: Floats, tests: int
) -> Iterator[SlowVerdict]:
    """Ranks whose own work is slow: a verdict on each, and one on all that tie with their peers.

    `elsewhere`: seconds of own work by step, median over the ranks of other stages.
    """
    members, seen = len(cohort.ranks), ~np.isnan(cohort.pace)
    if members < 2:
        yield from _alone(table, cohort, elsewhere, step_s)
        return
    late = slow_steps(cohort.pace, cohort.seconds, step_s, RATIO)
    slow = list(stretches(late, seen, tests))
    if members < SMALL:
        sides = [(stretch, _witnesses(cohort, elsewhere, stretch)) for stretch in slow]
        sure = [slow_rank(table, cohort, stretch, more) for stretch, more in sides if more]
        tied = [slow_rank(table, cohort, stretch, {}) for stretch, more in sides if not more]
    else:
        clear = [stretch for stretch in slow if _stands_out(cohort.pace, late, stretch)]
        sure = [slow_rank(table, cohort, stretch, {}) for stretch in clear]
        half = not clear and 2 * len(slow) == members  # half of a cohort against the other half
        tied = [slow_rank(table, cohort, stretch, {}) for stretch in slow] if half else []
    yield from sure
    if tied := [verdict for verdict in tied if verdict.ratio >= FEW_RATIO]:
        yield tie(table, cohort, tied)


def _witnesses(cohort: Cohort, elsewhere: Floats | None, stretch: Stretch) -> dict[str, str]:
    """What agrees that of two or three ranks this one is the odd one; empty: nothing does.

    It is the rank's own past; or the other stages, if its peers take as long as those; or slowness
    that is great and long enough to be beyond doubt.
    """
    steps, member = stretch.steps, stretch.member
    ratio, _ = _excess(cohort.pace, cohort.seconds, stretch)
    agree = {}
    if elsewhere is not None and ratio >= FEW_RATIO:
        with np.errstate(all="ignore"):
            peers_s = usual(cohort.own_s)[steps, member]
            against = float(np.nanmedian(peers_s / elsewhere[steps]))
        if 1 / RATIO < against < RATIO:
            agree["other stages"] = "their ranks take as long as its peers"
    rise = change(cohort.own_s[:, member])
    if rise is not None and rise.ratio >= RATIO:
        agree["own past"] = f"{rise.ratio:.2f} times as long as before"
    if agree or (ratio >= GREAT_RATIO and stretch.slow >= GREAT_STEPS):
        agree.setdefault("own past", "no change: it was so from the beginning of the table")
    return agree


def _alone(
    table: TimingTable, cohort: Cohort, elsewhere: Floats | None, step_s: Floats
) -> Iterator[SlowVerdict]:
    """A rank without peers, compared with its own past and the other stages meanwhile."""
    if elsewhere is None:
        return
    with np.errstate(all="ignore"):
        series = cohort.own_s[:, 0] / elsewhere
    rise = change(series)
    if rise is None or rise.ratio < FEW_RATIO:
        return
    excess = ((series - rise.before) * elsewhere)[rise.at :]
    if not _noticeable(excess, step_s):
        return
    slow = series[rise.at :] > rise.before * (1 + rise.ratio) / 2
    seen = int(np.count_nonzero(~np.isnan(excess)))
    stretch = Stretch(0, rise.at, len(series) - 1, int(np.count_nonzero(slow)), seen)
    yield slow_rank(table, cohort, stretch, {}, alone=(rise.ratio, _lost_s(excess)))


def _excess(values: Floats, seconds: Floats | float, stretch: Stretch) -> tuple[float, float]:
    """Of a member in its stretch: how many times its peers' where it is slow, and the seconds."""
    value = values[stretch.steps, stretch.member]
    peers = usual(values[stretch.steps])[:, stretch.member]
    lost = (value - peers) * np.broadcast_to(seconds, values.shape)[stretch.steps, stretch.member]
    ratios = value / peers
    return float(np.median(ratios[ratios > 1.0])), _lost_s(lost)


def _noticeable(excess: Floats, step_s: Floats) -> bool:
    """True if the seconds by step are enough to delay the job."""
    return bool(np.nanmedian(excess) > SHARE_OF_STEP * np.nanmedian(step_s))


def _lost_s(excess: Floats) -> float:
    """The sum over the steps that took longer."""
    return float(np.nansum(np.maximum(excess, 0.0)))


def slow_rank(
    table: TimingTable,
    cohort: Cohort,
    stretch: Stretch,
    witnesses: Mapping[str, str],
    *,
    alone: tuple[float, float] | None = None,
) -> SlowVerdict:
    """A rank slower than its peers, or `alone` than it was: how many times, and seconds."""
    steps, member, peers = stretch.steps, stretch.member, len(cohort.ranks) - 1
    ratio, lost_s = alone or _excess(cohort.pace, cohort.seconds, stretch)
    others, end = f"the {peers} other ranks of its stage", ""
    how = {"peers": f"{peers} only, too few for a robust score: low confidence"}
    if peers == 0:
        others, end = "it did", ", while the other stages take what they took"
        how = {"peers": "none, its own past only: low confidence"}
    elif peers == 1:
        others = "the other rank of its stage"
    elif peers + 1 >= SMALL:
        score = float(np.nanmedian(z_scores(cohort.pace[steps])[:, member]))
        how = {"score": f"{score:.0f} robust standard deviations from the stage"}
    rank = int(cohort.ranks[member])
    by_op = {name: float(column_medians(of[steps])[member]) for name, of in cohort.by_op.items()}
    by_op = {name: times for name, times in by_op.items() if np.isfinite(times)}
    parts = ", ".join(f"{name} {times:.2f}" for name, times in by_op.items())
    what = f"{', '.join(cohort.by_op)} of {counted(peers + 1, 'rank')} of stage {cohort.stage}"
    return SlowVerdict(
        reason=(
            f"{_placed(table, rank)} takes {ratio:.2f} times as long for its own work as {others} "
            f"in {_when(table, stretch)}" + f" ({parts})" * (len(by_op) > 1) + end
        ),
        culprits=(rank,),
        stage=cohort.stage,
        replica=table.replica_of(rank),
        ratio=ratio,
        by_op=by_op,
        lost_s=lost_s,
        evidence={**_source(what, _resolution(table)), **how, **witnesses},
        stretch=stretch,
    )


def tie(table: TimingTable, cohort: Cohort, slow: Sequence[SlowVerdict]) -> SlowVerdict:
    """Slow ranks against as many others, or one against one."""
    ranks = sorted(rank for verdict in slow for rank in verdict.culprits)
    others = sorted(set(cohort.ranks.tolist()) - set(ranks))
    worst = max(slow, key=lambda verdict: verdict.ratio)
    return replace(
        worst,
        reason=(
            f"{named_ranks(table, ranks)} of stage {cohort.stage} {plural(ranks, 'takes', 'take')} "
            f"{worst.ratio:.2f} times as long for own work as {named_ranks(table, others)} in "
            f"{_when(table, worst.stretch)}; peers are too few to tell who is the odd one"
        ),
        culprits=(),
        between=(tuple(ranks), tuple(others)),
        replica=None,
    )


# -- late arrival or slow transfer -------------------------------------------------------------

LATE: Final = 0.7
"""P at or above which a collective's lost time is late arrival; below 0.3 it is the transfer."""


def collective_times(table: TimingTable) -> Iterator[tuple[int, str, NDArray[np.intp], Floats]]:
    """Stage, operation, ranks, and seconds inside: steps x ranks; NaN where rows are missing."""
    for code in table.codes_of(TimeOwner.SHARED):
        rows = table.rows_of([code])
        shape = len(table.steps), len(table.ranks)
        key = table.step[rows].astype(np.int64) * shape[1] + table.rank[rows]
        sums = np.bincount(key, table.duration_s[rows], minlength=shape[0] * shape[1])
        present = np.bincount(key, minlength=shape[0] * shape[1]) > 0
        inside = np.where(present, sums, np.nan).reshape(shape)
        for stage in table.stages.tolist():
            ranks = table.ranks_of(stage)
            seconds = inside[:, ranks]
            if len(ranks) > 1 and not np.isnan(seconds).all():
                unclear = np.isnan(seconds).any(axis=1)  # which rank came last is unknown there
                seconds[unclear] = np.nan
                yield stage, table.ops[code], ranks, seconds


def late(table: TimingTable, step_s: Floats, tests: int) -> Iterator[SlowVerdict]:
    """Ranks that come last, and late, for long, as if their recorded work were as usual."""
    for _, op, ranks, inside in collective_times(table):
        least, share, lost = _parts(inside)
        bad = (share >= LATE) & (lost > SHARE_OF_STEP * step_s)
        with np.errstate(invalid="ignore"):
            near = inside - least[:, None] <= (1 - LATE) * lost[:, None]
        # If two come last together, the others wait for neither alone.
        last = near & (bad & (near.sum(axis=1) == 1))[:, None]
        # Some rank always comes last: by turns, if none is sick.
        turns = max(LEAST_CHANCE, float(last.any(axis=1).mean()) / len(ranks))
        for stretch in stretches(last, ~np.isnan(inside), tests, least_chance=turns):
            steps = last[stretch.steps, stretch.member]
            rank = int(ranks[stretch.member])
            lost_s = float(lost[stretch.steps][steps].sum())
            usual_share = float(np.median(share[stretch.steps][steps]))
            yield SlowVerdict(
                reason=(
                    f"{named_ranks(table, [rank])} comes last to {op} in {_when(table, stretch)} "
                    f"and its peers waited {lost_s:.1f} s for it, while its recorded work is like "
                    "its peers': the time goes outside of the recorded operations"
                ),
                culprits=(rank,),
                stage=int(table.stage[rank]),
                replica=table.replica_of(rank),
                lost_s=lost_s,
                evidence={
                    **_source(f"seconds inside {op}"),
                    "late arrival": (
                        f"its replica comes last to {op}, where the others waited {lost_s:.1f} s; "
                        f"late share P = {usual_share:.2f}"
                    ),
                },
                stretch=stretch,
            )


def slow_groups(table: TimingTable, step_s: Floats) -> Iterator[SlowVerdict]:
    """Collectives whose transfer itself became slow and stayed so, though all arrive in time."""
    for stage, op, _, inside in collective_times(table):
        least, share, _ = _parts(inside)
        grown = change(least)
        if grown is None or grown.ratio < GREAT_RATIO:
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
            stretch=Stretch(0, grown.at, len(table.steps) - 1, count, count),
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
    # A step may be faster than usual: then its own time is the base.
    base = np.fmin(middle(least), least)
    return least, late_share(inside, base), np.nan_to_num(lost)


def slow_links(table: TimingTable, step_s: Floats, tests: int) -> Iterator[SlowVerdict]:
    """Links slower than the same link of the other replicas.

    A send and its receive each last from their own side's arrival to the end of the transfer, so
    the shorter of the two is the transfer (or an upper bound if a framework posts a send and a
    receive as one).
    """
    if not {"dp_rank", "seq_id"} <= table.tells or len(table.stages) < 2:
        return
    replicas, stages = np.unique(table.replica), table.stages
    for below, seconds in enumerate(_link_seconds(table, replicas)):
        slow = slow_steps(seconds, 1.0, step_s, GREAT_RATIO)
        for stretch in stretches(slow, ~np.isnan(seconds), tests):
            ratio, lost_s = _excess(seconds, 1.0, stretch)
            if len(replicas) < SMALL:
                clear = ratio >= GREAT_RATIO and stretch.slow >= GREAT_STEPS
            else:
                clear = _stands_out(seconds, slow, stretch)
            if not clear:
                continue
            replica = int(replicas[stretch.member])
            ends = [
                int(np.flatnonzero((table.stage == stage) & (table.replica == replica))[0])
                for stage in (stages[below], stages[(below + 1) % len(stages)])
            ]
            yield SlowVerdict(
                kind=SlowKind.SLOW_TRANSFER,
                reason=(
                    f"transfers between {named_ranks(table, ends)} take {ratio:.1f} times as long "
                    f"as between the same stages of other replicas in {_when(table, stretch)}; "
                    "both ends work as usual, and which end it is cannot be told"
                ),
                between=tuple((end,) for end in sorted(ends)),
                replica=replica,
                ratio=ratio,
                lost_s=lost_s,
                evidence=_source(
                    "the shorter of each send and its receive",
                    "one step: median over its messages",
                ),
                stretch=stretch,
            )


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
    keys, order, starts, _ = _grouped(key, table.duration_s[rows])
    return keys, table.duration_s[rows][order][starts]


# -- parts of sentences ------------------------------------------------------------------------


def _source(what: str, resolution: str = "one step") -> dict[str, str]:
    """The first part of every verdict's evidence."""
    source = f"{what}; durations of operations, each on its rank's own clock"
    return {"source": source, "resolution": resolution}


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
    count = len(np.unique(table.microbatch[table.rows_of(table.codes_of(TimeOwner.OWN))]))
    return f"one step: median over its {counted(count, 'microbatch')}"


def named_ranks(table: TimingTable, ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 3 and 7`, `ranks 3, 7, 9 and 4 more`."""
    numbers = [str(number) for number in sorted(table.ranks[list(ranks)].tolist())]
    return f"{plural(numbers, 'rank', 'ranks')} {listed(numbers, 8)}"


def _placed(table: TimingTable, rank: int) -> str:
    """A rank with its stage and replica."""
    replica = table.replica_of(rank)
    of_replica = "" if replica is None else f", data-parallel rank {replica}"
    return f"{named_ranks(table, [rank])} (stage {table.stage[rank]}{of_replica})"


def column_medians(values: Floats) -> Floats:
    """Median of each column over the rows that have a value."""
    return middle(values.T)[:, 0]


# -- judge -------------------------------------------------------------------------------------

_EXPLAINS: Final = 0.5
"""Share of the seconds lost to a late rank that its own recorded work must explain."""


def judge(table: TimingTable) -> SlowReport:
    """All verdicts on a table. Deterministic; the order of rows does not matter."""
    cohorts = work(table)
    step_s = step_seconds(table, cohorts)
    tests = len(table.ranks) * len(table.steps)
    verdicts: list[SlowVerdict] = []
    for cohort in cohorts:
        elsewhere = _elsewhere(cohorts, cohort)
        verdicts += in_stage(table, cohort, elsewhere, step_s, tests)
    comers = list(late(table, step_s, tests))
    links = list(slow_links(table, step_s, tests))
    verdicts = [_with_transfers(table, verdict, comers, links) for verdict in verdicts]
    verdicts += _links(table, links, _explained(table, verdicts))
    comers = [comer for comer in comers if not _by_own_work(table, cohorts, comer)]
    verdicts += _late(table, comers, _explained(table, verdicts))
    stages = {verdict.stage for verdict in verdicts}
    verdicts += [verdict for verdict in slow_groups(table, step_s) if verdict.stage not in stages]
    verdicts.sort(key=lambda v: (v.confidence is Confidence.UNSURE, -v.lost_s, v.culprits))
    return SlowReport(
        verdicts=tuple(verdicts),
        paces=tuple(_paces(table, cohorts, step_s)),
        step_s=float(np.median(step_s)),
        notes=(*table.notes, *_notes(table, cohorts)),
    )


def _elsewhere(cohorts: Sequence[Cohort], cohort: Cohort) -> Floats | None:
    """Seconds of own work by step, median over the ranks of other stages; None without any."""
    others = [other.own_s for other in cohorts if other is not cohort]
    return middle(np.concatenate(others, axis=1))[:, 0] if others else None


def _explained(table: TimingTable, verdicts: list[SlowVerdict]) -> set[int]:
    """Replicas that already have a verdict: their lateness follows from it."""
    replicas = {verdict.replica for verdict in verdicts if verdict.replica is not None}
    for verdict in verdicts:
        accused = (*verdict.culprits, *(rank for side in verdict.between[:1] for rank in side))
        replicas.update(table.replica[list(accused)].tolist())
    return replicas


def _with_transfers(
    table: TimingTable,
    verdict: SlowVerdict,
    comers: Sequence[SlowVerdict],
    links: Sequence[SlowVerdict],
) -> SlowVerdict:
    """A slow rank's verdict with what its replica's collectives and its links show."""
    kind, evidence = verdict.kind, dict(verdict.evidence)
    own = [
        comer
        for comer in comers
        if comer.culprits == verdict.culprits
        or (verdict.replica is not None and comer.replica == verdict.replica)
    ]
    if own:
        worst = max(own, key=lambda comer: comer.lost_s)
        evidence["late arrival"] = worst.evidence["late arrival"]
    touching = [link for link in links if {*link.between} & {verdict.culprits}]
    if touching:
        kind, slowest = SlowKind.MIXED, max(touching, key=lambda link: link.ratio)
        ends = named_ranks(table, [rank for side in slowest.between for rank in side])
        evidence["slow transfer"] = (
            f"the link between {ends} takes {slowest.ratio:.1f} times as long as in the other "
            "replicas"
        )
    return replace(verdict, kind=kind, evidence=evidence)


def _links(
    table: TimingTable, links: Sequence[SlowVerdict], sick: set[int]
) -> Iterator[SlowVerdict]:
    """Slow links of replicas in which no rank works slowly; two links of one rank accuse it."""
    healthy = [link for link in links if link.replica not in sick]
    for replica in sorted({link.replica for link in healthy if link.replica is not None}):
        of_replica = [link for link in healthy if link.replica == replica]
        shared = set(of_replica[0].between).intersection(*(link.between for link in of_replica))
        if len(of_replica) != 2 or len(shared) != 1:
            yield from of_replica
            continue
        worst, ((rank,),) = max(of_replica, key=lambda link: link.ratio), shared
        yield replace(
            worst,
            reason=(
                f"{_placed(table, rank)} has slow transfers to both of its neighbours, "
                f"{worst.ratio:.1f} times as long as between the same stages of other replicas in "
                f"{_when(table, worst.stretch)}, and works as usual"
            ),
            culprits=(rank,),
            between=(),
            stage=int(table.stage[rank]),
        )


def _by_own_work(table: TimingTable, cohorts: Sequence[Cohort], comer: SlowVerdict) -> bool:
    """True if recorded work of the rank or its replica explains why it is late.

    Then the rules for slow ranks have already judged it as too small or too rare.
    """
    for cohort in cohorts:
        excess = (cohort.pace - usual(cohort.pace)) * cohort.seconds
        for place, rank in enumerate(cohort.ranks.tolist()):
            same = (rank,) == comer.culprits or table.replica_of(rank) == comer.replica
            spent = excess[comer.stretch.steps, place]
            if same and _lost_s(spent) > _EXPLAINS * comer.lost_s:
                return True
    return False


def _late(
    table: TimingTable, comers: Sequence[SlowVerdict], sick: set[int]
) -> Iterator[SlowVerdict]:
    """Ranks that collectives wait for though their recorded work is as usual.

    In a pipeline the whole replica is late together, so which of its ranks began is unknown.
    Without a pipeline it is the rank itself, outside of what is recorded.
    """
    worst: dict[object, SlowVerdict] = {}
    alone = len(table.stages) == 1
    for comer in sorted(comers, key=lambda comer: comer.lost_s):
        if (alone or comer.replica is not None) and table.replica[comer.culprits[0]] not in sick:
            worst[comer.culprits if alone else comer.replica] = comer
    for comer in worst.values():
        if alone:
            yield comer
            continue
        ranks = np.flatnonzero(table.replica == comer.replica).tolist()
        yield replace(
            comer,
            reason=(
                f"data-parallel rank {comer.replica} comes last in {_when(table, comer.stretch)} "
                f"and its peers waited {comer.lost_s:.1f} s for it, while none of its stages works "
                "longer than the others on the same microbatches: its data, its hosts, or what is "
                "not recorded; which rank began it cannot be told"
            ),
            culprits=(),
            between=tuple((rank,) for rank in ranks),
            stage=None,
        )


def _paces(table: TimingTable, cohorts: Sequence[Cohort], step_s: Floats) -> list[RankPace]:
    paces = []
    for cohort in cohorts:
        with np.errstate(all="ignore"):
            ratios = column_medians(cohort.pace / usual(cohort.pace))
        slow = slow_steps(cohort.pace, cohort.seconds, step_s, RATIO).sum(axis=0)
        seen = (~np.isnan(cohort.pace)).sum(axis=0)
        by_op = {name: column_medians(values) for name, values in cohort.by_op.items()}
        paces += [
            RankPace(
                rank=int(table.ranks[rank]),
                stage=cohort.stage,
                dp_rank=table.replica_of(rank),
                ratio=float(ratios[place]),
                ratios={name: float(medians_of[place]) for name, medians_of in by_op.items()},
                slow_steps=int(slow[place]),
                steps=int(seen[place]),
            )
            for place, rank in enumerate(cohort.ranks.tolist())
        ]
    return sorted(paces, key=lambda pace: (-pace.slow_steps, -np.nan_to_num(pace.ratio), pace.rank))


def _notes(table: TimingTable, cohorts: Sequence[Cohort]) -> Iterator[str]:
    if len(table.steps) < LEAST:
        yield f"{len(table.steps)} steps are too few to call anything persistent: {LEAST} are asked"
    few = sorted({len(cohort.ranks) for cohort in cohorts if len(cohort.ranks) < SMALL})
    if few:
        sizes = " or ".join(str(size) for size in few)
        yield (
            f"stages of {sizes} {'rank' if few == [1] else 'ranks'}: too few peers for a robust "
            "score, so a rank is named only if its own past, other stages or a great ratio agree"
        )
    if not cohorts:
        yield "no operation is known as a rank's own work: expected names such as forward-compute"
