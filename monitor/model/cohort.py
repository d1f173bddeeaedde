"""One rank among its peers: the arithmetic that every straggler rule shares.

A cohort is the ranks of one role. Arrays hold its members along the last axis, NaN where a member
has no value; all axes before it (windows, steps) are judged side by side. Ratios and scores are
those of ALGORITHMS.md section 6. The reference is always the median of the *others*: a mean moves
with the sick one, a minimum accuses everybody when one rank is lucky.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

SMALL: Final = 4
"""Below this many members a median absolute deviation means nothing: other evidence must agree."""
_NORMAL: Final = 1.4826
"""Standard deviations of a normal distribution in one median absolute deviation."""
_LEAST_SPREAD: Final = 0.01
"""Share of the median: peers that agree within 1 % would turn noise into a high score."""


def usual(values: Floats) -> Floats:
    """The median of the others for every member; NaN where there is no other."""
    members = values.shape[-1]
    count = np.sum(~np.isnan(values), axis=-1, keepdims=True)
    if members < 2:
        return np.full(values.shape, np.nan)
    ordered = np.sort(values, axis=-1)  # NaN last
    others = count - 1
    middles = []
    for place in (np.maximum(others - 1, 0) // 2, np.maximum(others, 0) // 2):
        # Leaving a value out moves all later values down by one.
        at_place = np.take_along_axis(ordered, np.minimum(place, members - 1), axis=-1)
        after = np.take_along_axis(ordered, np.minimum(place + 1, members - 1), axis=-1)
        middles.append(np.where(at_place >= values, after, at_place))
    medians = (middles[0] + middles[1]) / 2
    return np.where((others > 0) & ~np.isnan(values), medians, np.nan)


def most(values: Floats) -> Floats:
    """The greatest of the others for every member of a row; needs at least two members."""
    first = int(np.argmax(values))
    second = np.delete(values, first).max()
    greatest = np.where(np.arange(len(values)) == first, second, values[first])
    return np.asarray(greatest, dtype=np.float64)


def middle(values: Floats) -> Floats:
    """Median over the members that have a value, kept as an axis of one; NaN for none."""
    count = np.sum(~np.isnan(values), axis=-1, keepdims=True)
    ordered = np.sort(values, axis=-1)
    last = max(0, values.shape[-1] - 1)
    low = np.take_along_axis(ordered, np.clip((count - 1) // 2, 0, last), axis=-1)
    high = np.take_along_axis(ordered, np.clip(count // 2, 0, last), axis=-1)
    return np.asarray(low / 2 + high / 2, dtype=np.float64)  # their sum may be too large


def z_scores(values: Floats, judged: Floats | None = None) -> Floats:
    """Robust score of `judged` (default: the values themselves) against the whole cohort.

    Distance from the median in 1.4826 max(MAD, 1 % of the median); 0 where all are 0.
    """
    centre = middle(values)
    spread = _NORMAL * np.maximum(middle(np.abs(values - centre)), _LEAST_SPREAD * centre)
    distance = (values if judged is None else judged) - centre
    with np.errstate(invalid="ignore", divide="ignore"):
        scores = np.where(spread > 0, distance / spread, 0.0)
    return np.asarray(scores, dtype=np.float64)


def slower(
    value: Any,
    peers: Any,
    *,
    step: Any,
    score: Any,
    members: Any,
    ratio: float,
    share: float,
    least_score: float,
) -> Any:
    """True for the value of a slow rank: numbers give a bool, arrays an array of them.

    Slow is more than `ratio` times the peers' median, by more than `share` of a step, and in a
    cohort of 4 or more also a robust score above `least_score`. NaN is not slow.
    """
    return (
        (members > 1)
        & (value > ratio * peers)
        & (value - peers > share * step)
        & ((members < SMALL) | (score > least_score))
    )


def late_share(inside: Floats, base: Floats) -> Floats:
    """Share of a collective's lost time due to late arrival: P of CCL-D (arXiv 2605.04478).

    `inside` are the members' seconds inside one collective, `base` what its fastest member usually
    takes. (Tmax - Tmin) / (Tmax - Tbase), in 0 to 1: near 1 a member came late (its peers waited
    inside), near 0 the transfer was slow for all, between it was both. NaN where nothing was lost.
    """
    with np.errstate(all="ignore"):
        most = np.fmax.reduce(inside, axis=-1)
        least = np.fmin.reduce(inside, axis=-1)
        share = (most - least) / (most - base)
    return np.where(most > base, np.clip(share, 0.0, 1.0), np.nan)
