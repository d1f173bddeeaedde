"""Unequal replicas (class X): silent corruption, seen in fingerprints of the weights.

The odd one out of a lane, at two steps (see `monitor.prints` for who may vote). With two sides that
nobody outvotes it cannot be told.
"""

from __future__ import annotations

from collections.abc import Sequence

from monitor.detectors.verdict import Confidence, Kind, Verdict
from monitor.detectors.wording import groups_of, listed
from monitor.history import History
from monitor.names import GroupName, RankName, group_of
from monitor.prints import Dissent


def unequal(history: History) -> tuple[Verdict, ...]:
    """At most one verdict for each replica group."""
    dissents = history.prints.dissents()
    by_ranks: dict[tuple[int, tuple[RankName, ...]], list[Dissent]] = {}
    for dissent in dissents:
        by_ranks.setdefault((dissent.lane, _concerned(dissent)), []).append(dissent)
    confirmed = [found for found in by_ranks.values() if len(found) > 1]
    told: dict[GroupName, list[Dissent]] = {}
    for found in confirmed:
        if found[-1].odd and not _contradicted(found[-1], dissents):
            for group in groups_of(found[-1].odd):
                told.setdefault(group, []).extend(found)
    verdicts = [_odd_one(group, found) for group, found in sorted(told.items())]
    for found in confirmed:
        ranks = _concerned(found[-1])
        if not any(group in told for group in groups_of(ranks)):
            verdicts.append(_unknown(found))
            told.update(dict.fromkeys(groups_of(ranks), found))
    return tuple(verdicts)


def _concerned(dissent: Dissent) -> tuple[RankName, ...]:
    return dissent.odd or tuple(sorted(rank for side in dissent.sides for rank in side))


def _contradicted(found: Dissent, dissents: Sequence[Dissent]) -> bool:
    """Whether at another step quite others were the odd ones."""
    return any(
        one.lane == found.lane and one.odd and not set(one.odd) & set(found.odd) for one in dissents
    )


def _odd_one(group: GroupName, found: Sequence[Dissent]) -> Verdict:
    ranks = tuple(sorted({r for one in found for r in one.odd if group_of(r) == group}))
    last = max(found, key=lambda one: (one.step, one.lane))
    return Verdict(
        kind=Kind.STATE_CORRUPT,
        culprits=ranks,
        groups=(group,),
        reason=f"the weights of {listed(ranks)} differ from those of {len(last.sides[0])} ranks "
        f"that are equal to each other, after {_steps(found)}: they were equal before",
        confidence=Confidence.CERTAIN,
        since_s=min(one.seen_s for one in found),
        evidence=_sides(found),
        signature="state_corrupt:unequal",
    )


def _unknown(found: Sequence[Dissent]) -> Verdict:
    last, ranks = found[-1], _concerned(found[-1])
    why = "no majority was equal before and is now"
    if not last.known:
        why = (
            "they were not all seen to be equal before; a heal came between, or they differ by "
            "design and should take no fingerprints (replicas_equal=False)"
        )
    return Verdict(
        kind=Kind.STATE_CORRUPT,
        culprits=ranks,
        groups=groups_of(ranks),
        reason=f"the weights of {' and '.join(listed(side) for side in last.sides[:3])} differ "
        f"after {_steps(found)}, and who is right cannot be told: {why}",
        confidence=Confidence.UNSURE,
        since_s=found[0].seen_s,
        evidence=_sides(found),
        signature="state_corrupt:unequal",
    )


def _steps(found: Sequence[Dissent]) -> str:
    steps = sorted({one.step for one in found})
    return f"steps {steps[0]} and {steps[-1]}"


def _sides(found: Sequence[Dissent]) -> dict[str, str]:
    return {
        f"step {one.step}": " | ".join(listed(side) for side in one.sides) for one in found[-4:]
    }
