"""Corrupt state (class X): not finite, unequal replicas, a loss that jumps; one verdict a group.

While numbers are not finite nothing else is said: one NaN is not bitwise another's, and a loss that
is NaN does not jump. A loss that jumps in one group alone is told, and evicts nobody; in all groups
at once it is the optimiser's or the data's business, and not told.
"""

from __future__ import annotations

from typing import Final

from monitor.detectors.not_finite import not_finite, spells
from monitor.detectors.unequal import unequal
from monitor.detectors.verdict import Confidence, Kind, Verdict
from monitor.detectors.wording import groups_of, listed
from monitor.history import History
from monitor.losses import LATEST

_ALSO: Final = 0.5
"""Share of the threshold at which another group's loss has risen as well."""
_RISE: Final = 1.3
"""A jump that is worth a word: the loss is so many times what it was."""


def corrupt(history: History) -> tuple[Verdict, ...]:
    """At most one verdict for each replica group."""
    cases = spells(history)
    found = not_finite(history, cases)
    if any(case.spoilt.run for case in cases):
        return found
    others = unequal(history) or _jumps(history)
    told = {group for verdict in others for group in verdict.groups}
    return (*others, *(verdict for verdict in found if not told & set(verdict.groups)))


def _jumps(history: History) -> tuple[Verdict, ...]:
    limit = history.config.spike_z
    if not any(history.losses.risen(track.rank, _RISE) for track in history.present()):
        return ()
    seen = []
    for track in history.present():
        excess = history.losses.excess(track.rank) if history.participating(track) else None
        if excess is not None:
            seen.append((track, excess))
    risen = {track.group for track, (z, _, _) in seen if z > limit * _ALSO}
    if len(risen) != 1 or len({track.group for track, _ in seen}) < 2:
        return ()
    found = [
        (track, now, usual) for track, (z, now, usual) in seen if z > limit and now > _RISE * usual
    ]
    if not found:
        return ()
    ranks = tuple(track.rank for track, _, _ in found)
    _, now, usual = found[0]
    return (
        Verdict(
            kind=Kind.STATE_CORRUPT,
            culprits=ranks,
            groups=groups_of(ranks),
            reason=f"the loss of {listed(ranks)} is {now:.3g} where it was {usual:.3g}, in the "
            f"last {LATEST} looks, and that of no other group has risen",
            confidence=Confidence.LIKELY,
            since_s=history.now_s,
            evidence={t.rank: f"loss {now:.4g}, usual {usual:.4g}" for t, now, usual in found},
            signature="state_corrupt:loss",
            spare="a loss alone evicts nobody: it may be the data of that group",
        ),
    )
