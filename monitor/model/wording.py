"""How verdicts speak: short, whole sentences, the same words everywhere."""

from __future__ import annotations

from collections.abc import Sequence, Sized

from monitor.model.names import GroupName, RankName, group_of


def listed(ranks: Sequence[str], at_most: int = 4) -> str:
    """`a`, `a and b`, `a, b and c`, or `a, b, c, d and 12 more`."""
    if len(ranks) > at_most:
        return f"{', '.join(ranks[:at_most])} and {len(ranks) - at_most} more"
    if len(ranks) < 2:
        return "".join(ranks)
    return f"{', '.join(ranks[:-1])} and {ranks[-1]}"


def plural(ranks: Sized, one: str, many: str) -> str:
    """The verb that fits the number of ranks."""
    return one if len(ranks) == 1 else many


def seconds(span_s: float) -> str:
    """`0.04 s`, `3.1 s`, `12 s`."""
    return (
        f"{span_s:.0f} s"
        if span_s >= 10
        else f"{span_s:.1f} s"
        if span_s >= 1
        else f"{span_s:.2g} s"
    )


def groups_of(ranks: Sequence[RankName]) -> tuple[GroupName, ...]:
    """Replica groups of ranks, sorted, each once."""
    return tuple(sorted({group_of(rank) for rank in ranks}))
