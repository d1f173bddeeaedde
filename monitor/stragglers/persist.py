"""Persistent or passing: a scan for stretches in which one rank is slow far more than its peers."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Final

import numpy as np

from monitor import cohort
from monitor.cohort import Bools, Floats

_SICK: Final = (0.8, 0.5)
"""Shares of steps in which a sick rank is slow: 4 of 5, as online, or every other one."""
LEAST_CHANCE: Final = 0.05
"""Share of slow steps that any healthy rank is granted, however quiet its peers are."""
_MOST_CHANCE: Final = 0.75
"""Of a sick rank's share: peers slow so often make slowness no mark of anybody."""
_FALSE_ALARMS: Final = 0.01
"""Expected number of stretches found in a whole table in which nobody is sick."""
_FEW_FALSE_ALARMS: Final = 1e-4
"""The same in a cohort under 4, where no robust score stands behind a slow step."""
LEAST: Final = 5
"""Steps in the shortest stretch that counts."""
_LONGEST_LEAST: Final = 20
_LEAST_SHARE: Final = 0.1
"""Of the table, what a stretch must cover (at most 20 steps are asked): less has passed."""


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


def stretches(
    slow: Bools, seen: Bools, tests: int, *, least_chance: float = LEAST_CHANCE
) -> list[Stretch]:
    """The longest stretch of each member whose slowness its peers' cannot explain.

    A scan statistic: a slow step adds log(sick / chance), another log((1 - sick) / (1 - chance)),
    and the best run of steps must reach log(tests / 0.01), where `tests` counts ranks times steps
    of the whole table, for each of the two shares of a sick rank. So a rank slow in 5 of 5 steps
    is found where its peers never are, and one of many that long sequences hit now and then is
    not. (Page's CUSUM over a table that is there as a whole.)

    `slow` and `seen` are steps x members. `least_chance` is higher where one of them is always it.
    """
    steps, members = slow.shape
    least = max(LEAST, min(_LONGEST_LEAST, int(np.ceil(_LEAST_SHARE * steps))))
    peers = cohort.usual(_rates(slow, seen)[None, :])[0]
    alarms = _FALSE_ALARMS if members >= cohort.SMALL else _FEW_FALSE_ALARMS
    needed = log(max(1, tests) * len(_SICK) / alarms)
    found = []
    for member in np.flatnonzero(slow.sum(axis=0) >= LEAST).tolist():
        chance = max(least_chance, float(np.nan_to_num(peers[member])))
        for sick in _SICK:
            one = _stretch(slow, seen, member, (chance, sick), needed)
            if one is not None and one.seen >= least:
                found.append(one)
                break
    return found


def _rates(slow: Bools, seen: Bools) -> Floats:
    """Share of slow steps of each member; NaN for one that was never seen."""
    with np.errstate(invalid="ignore"):
        rates = (slow & seen).sum(axis=0) / seen.sum(axis=0)
    return np.asarray(rates, dtype=np.float64)


def _stretch(
    slow: Bools, seen: Bools, member: int, shares: tuple[float, float], needed: float
) -> Stretch | None:
    """The best stretch of a member; with few peers it must hold against the steps outside as well.

    Of two ranks hit by turns, the one's luck is the other's misfortune: a peer's rate alone is too
    low a chance then.
    """
    mine, there = slow[:, member], seen[:, member]
    chance, sick = shares
    for _ in range(_ROUNDS):
        if chance > _MOST_CHANCE * sick:
            return None
        points = np.where(mine, log(sick / chance), log((1 - sick) / (1 - chance))) * there
        first, last, score = _best(points)
        if score < needed:
            return None
        outside = np.ones(len(mine), dtype=np.bool_)
        outside[first : last + 1] = False
        rate = float(np.nanmax(_rates(slow[outside], seen[outside]), initial=0.0))
        enough = slow.shape[1] >= cohort.SMALL or np.count_nonzero(outside) < LEAST
        if enough or rate <= chance:
            inside = slice(first, last + 1)
            count = int((mine & there)[inside].sum())
            return Stretch(member, first, last, count, int(there[inside].sum()), chance)
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
class Change:
    """A lasting change of a rank's own pace."""

    at: int
    """Place of the first step after it."""
    before: float
    after: float

    @property
    def ratio(self) -> float:
        """How many times as long it takes since."""
        return self.after / self.before


_LEAST_SCORE: Final = 5.0
_ROUNDS: Final = 4
_LASTING: Final = 0.8
"""Share of values on each side of a change that must lie on their side of the middle."""


def change(series: Floats) -> Change | None:
    """The lasting rise in a series, if there is one: CUSUM of deviations from its median.

    Deviations are clipped to a factor of e, so that one pause moves nothing. Both sides need 5
    values, lie apart by 5 robust standard deviations, and 4 of 5 values of each side must lie on
    their side of the middle.
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
    if high - low <= _LEAST_SCORE * spread or not lasting:
        return None
    return Change(int(places[cut]), low, high)
