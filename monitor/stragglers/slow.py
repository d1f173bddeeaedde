"""Ranks whose own work takes longer than that of the peers on their stage (class S1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from monitor import cohort
from monitor.cohort import Bools, Floats
from monitor.stragglers.persist import LEAST, Stretch, change, stretches
from monitor.stragglers.work import Crew

RATIO: Final = 1.10
"""Against the median of the peers (ALGORITHMS.md section 6)."""
SHARE_OF_STEP: Final = 0.05
"""Of a step, what the excess must come to: less slows nobody down noticeably."""
SCORE: Final = 5.0
FEW_RATIO: Final = 1.5
"""With 1 or 2 peers and no change of its own: as online (`straggler_ratio`)."""
FEW_STEPS: Final = 8
"""Slow steps that are asked then: as online (`persistent_windows`)."""
ODD_RATIO: Final = 1.2
"""With 1 or 2 peers that work as long as the ranks of other stages."""
_STEADY: Final = 2.0
"""Robust standard deviations of the ratio's logarithm that it must lie from 0."""
CHANGED: Final = 1.10
"""Rise of a rank's own pace that agrees with 1 or 2 peers."""
ALONE_CHANGED: Final = 1.2
"""The same without peers, where the other stages are the only ones who say that it is not the
job: above what a change of the data does to one stage and not to another, under the 1.3 of the
online detector (`own_change_ratio`), which has shorter windows."""
_BLOCKS: Final = (1, 5, 15)
"""Steps judged as one by their median: noise that hides 15 % in a step does not in the median of
five. Larger blocks are looked at only where smaller ones found nothing."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A rank that was slow for long, and what speaks for it."""

    rank: int
    stretch: Stretch
    ratio: float
    lost_s: float
    peers: int
    changed: float | None = None
    """Rise of its own pace, where it had one."""
    odd: bool = False
    """Its few peers work as long as the ranks of other stages do, and it does not."""
    sure: bool = True
    """False: its peers alone say so, and they are too few or half of them are slow as well."""


@dataclass(frozen=True, slots=True)
class Witnesses:
    """What else is known of a stage with few ranks."""

    raw: Crew | None = None
    """The same crew without regard to what microbatches asked."""
    elsewhere: Floats | None = None
    """Seconds of own work by step, median of the ranks of the other stages."""


def suspects(crew: Crew, known: Witnesses, step_s: Floats, tests: int) -> list[Suspect]:
    """Slow ranks of one stage; the witnesses are asked where peers are few."""
    members = len(crew.ranks)
    if members < 2:
        return _alone(crew, known.raw, step_s)
    found = list(_against_peers(crew, step_s, tests, SCORE))
    if members < cohort.SMALL:
        return [_with_few(crew, known, one) for one in found if steady(crew, one.stretch)]
    named = {one.rank for one in found}
    more = [one for one in _against_peers(crew, step_s, tests, 0.0) if one.rank not in named]
    found += [one for one in more if _stands_out(crew, one.stretch)]
    if not found and 2 * len(more) == members:  # half of a crew against the other half: a tie
        return [replace(one, sure=False) for one in more]
    return found


def slow_steps(crew: Crew, step_s: Floats, least_score: float = SCORE, block: int = 1) -> Bools:
    """Blocks of steps x members: whether a member was slow, and to the job's cost."""
    pace = blocked(crew.pace, block)
    seconds = blocked(crew.seconds, block)
    slow = cohort.slower(
        pace * seconds,
        cohort.usual(pace) * seconds,
        step=blocked(step_s[:, None], block),
        score=cohort.z_scores(pace),
        members=np.sum(~np.isnan(pace), axis=1, keepdims=True),
        ratio=RATIO,
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
    return cohort.middle(np.moveaxis(blocks, 1, -1))[..., 0]


def _against_peers(crew: Crew, step_s: Floats, tests: int, least_score: float) -> Iterator[Suspect]:
    named: set[int] = set()
    steps = len(crew.pace)
    for block in _BLOCKS:
        if block > 1 and steps < LEAST * block:
            return
        slow = slow_steps(crew, step_s, least_score, block)
        seen = ~np.isnan(blocked(crew.pace, block))
        for found in stretches(slow, seen, tests):
            if found.member not in named:
                named.add(found.member)
                yield _suspect(crew, _unblocked(crew, found, block))


def _unblocked(crew: Crew, found: Stretch, block: int) -> Stretch:
    """A stretch of blocks as one of steps."""
    if block == 1:
        return found
    first, last = found.first * block, min(len(crew.pace), (found.last + 1) * block) - 1
    mine = slice(first, last + 1)
    above = crew.pace[mine, found.member] > cohort.usual(crew.pace)[mine, found.member]
    seen = int(np.count_nonzero(~np.isnan(crew.pace[mine, found.member])))
    return Stretch(found.member, first, last, int(np.count_nonzero(above)), seen, found.chance)


def _suspect(crew: Crew, stretch: Stretch) -> Suspect:
    mine = slice(stretch.first, stretch.last + 1)
    pace = crew.pace[mine, stretch.member]
    peers = cohort.usual(crew.pace[mine])[:, stretch.member]
    lost = (pace - peers) * crew.seconds[mine, 0]
    ratios = pace / peers
    slow = ratios[ratios > 1.0]
    return Suspect(
        rank=int(crew.ranks[stretch.member]),
        stretch=stretch,
        ratio=float(np.median(slow)) if len(slow) else 1.0,
        lost_s=float(np.nansum(np.maximum(lost, 0.0))),
        peers=len(crew.ranks) - 1,
    )


def steady(crew: Crew, stretch: Stretch) -> bool:
    """Whether a rank's distance from one or two peers is greater than its own changes.

    A slow machine is slow by the same factor each time; long sequences are not.
    """
    mine = slice(stretch.first, stretch.last + 1)
    ratios = (crew.pace / cohort.usual(crew.pace))[mine, stretch.member]
    logs = np.log(ratios[np.isfinite(ratios) & (ratios > 0)])
    centre = float(np.median(logs))
    return bool(centre > _STEADY * 1.4826 * float(np.median(np.abs(logs - centre))))


def _with_few(crew: Crew, known: Witnesses, one: Suspect) -> Suspect:
    """One or two peers do not say which of them is the odd one: a second witness must.

    That is the rank's own past; or the other stages, if the peers take as long as those do; or
    slowness too great and too long to be a matter of taste.
    """
    member = one.stretch.member
    rise = change(crew.own[:, member])
    before = None if known.raw is None else change(known.raw.own[:, member])
    changed = None if rise is None or before is None else min(rise.ratio, before.ratio)
    lasting = one.ratio >= FEW_RATIO and one.stretch.slow >= FEW_STEPS
    odd = one.ratio >= ODD_RATIO and _as_elsewhere(crew, known.elsewhere, one.stretch)
    sure = lasting or odd or (changed is not None and changed >= CHANGED)
    return replace(one, changed=changed, odd=odd, sure=sure)


def _as_elsewhere(crew: Crew, elsewhere: Floats | None, stretch: Stretch) -> bool:
    """Whether the peers of a rank work about as long as the ranks of other stages."""
    if elsewhere is None:
        return False
    mine = slice(stretch.first, stretch.last + 1)
    peers = cohort.usual(crew.pace)[mine, stretch.member] * crew.seconds[mine, 0]
    with np.errstate(all="ignore"):
        against = float(np.nanmedian(peers / elsewhere[mine]))
    return 1 / RATIO < against < RATIO


def _stands_out(crew: Crew, stretch: Stretch) -> bool:
    """Whether a rank stands out over its whole stretch, if not in each step of it.

    Among long sequences no single step has a score; the medians over many steps have.
    """
    mine = crew.pace[stretch.first : stretch.last + 1]
    over = cohort.middle(mine.T)[:, 0]
    pace, peers = over[stretch.member], cohort.usual(over)[stretch.member]
    return bool(pace > RATIO * peers and cohort.z_scores(over)[stretch.member] > SCORE)


def _alone(crew: Crew, raw: Crew | None, step_s: Floats) -> list[Suspect]:
    """A rank without peers, against its own past and what the other stages did meanwhile."""
    if raw is None:
        return []
    rise, seen = change(crew.own[:, 0]), change(raw.own[:, 0])
    if rise is None or seen is None or min(rise.ratio, seen.ratio) < ALONE_CHANGED:
        return []
    series = crew.own[rise.at :, 0]
    excess = (series - rise.before) * crew.seconds[rise.at :, 0]
    if np.nanmedian(excess) <= SHARE_OF_STEP * np.nanmedian(step_s):
        return []
    slow = series > (rise.before + rise.after) / 2
    stretch = Stretch(
        member=0,
        first=rise.at,
        last=len(crew.own) - 1,
        slow=int(np.count_nonzero(slow)),
        seen=int(np.count_nonzero(~np.isnan(series))),
        chance=0.0,
    )
    lost_s = float(np.nansum(np.maximum(excess, 0.0)))
    return [Suspect(int(crew.ranks[0]), stretch, rise.ratio, lost_s, 0, rise.ratio)]
