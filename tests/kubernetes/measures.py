"""What a run's status lines and looks come to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, Final

Row = Mapping[str, Any]


def commits(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rank -> its committed steps, by time."""
    ranks: dict[str, list[Row]] = {}
    for row in rows:
        if row["event"] == "step" and row["committed"]:
            ranks.setdefault(row["rank"], []).append(row)
    return ranks


def gap(times: Sequence[float], since_s: float, until_s: float) -> float:
    """The longest time without a commit that reaches past `since_s`, in seconds."""
    before = [time_s for time_s in times if time_s <= since_s][-1:]
    marks = [*(before or [since_s]), *(t for t in times if since_s < t <= until_s), until_s]
    return round(max(b - a for a, b in pairwise(marks)), 2)


def gaps(rows: Sequence[Row], since_s: float, until_s: float) -> dict[str, float]:
    """Rank -> its longest time without a commit; `job`: that of all ranks together."""
    ranks = commits(rows)
    everybody = sorted(row["time"] for mine in ranks.values() for row in mine)
    longest = {rank: gap([row["time"] for row in mine], since_s, until_s)
               for rank, mine in sorted(ranks.items())}  # fmt: skip
    return {"job": gap(everybody, since_s, until_s), **longest}


def pace(rows: Sequence[Row], before_s: float, look_s: float = 15.0) -> float | None:
    """Median seconds from commit to commit of a rank, in the time before; None: no commits."""
    from_s = before_s - look_s
    between = [b["time"] - a["time"] for mine in commits(rows).values()
               for a, b in pairwise(mine) if from_s <= a["time"] <= before_s]  # fmt: skip
    return round(median(between), 3) if between else None


def lost(rows: Sequence[Row], since_s: float) -> int:
    """Committed steps that were made again: the deepest fall of the job's step. Ranks are at most
    one step apart, which is no fall.
    """
    most, deepest = 0, 0
    mine = sorted((row for ranks in commits(rows).values() for row in ranks), key=_time)
    for row in mine:
        if row["time"] > since_s:
            deepest = max(deepest, most - row["step"])
        most = max(most, row["step"])
    return deepest if deepest > 1 else 0


def _time(row: Row) -> float:
    return float(row["time"])


def uncommitted(rows: Iterable[Row], since_s: float) -> int:
    """Tries of ranks that did not count."""
    return sum(row["event"] == "step" and not row["committed"] and row["time"] > since_s
               for row in rows)  # fmt: skip


def group_of(rank: str) -> str:
    """Its replica group."""
    return rank.rpartition(".")[0]


def starts(rows: Iterable[Row], since_s: float) -> dict[str, list[float]]:
    """Group -> seconds after `since_s` at which its first rank began anew."""
    began: dict[str, list[float]] = {}
    for row in rows:
        if row["event"] == "started" and row["time"] > since_s and row["rank"].endswith(".0"):
            began.setdefault(group_of(row["rank"]), []).append(round(row["time"] - since_s, 1))
    return began


def back(rows: Sequence[Row], since_s: float, groups: int) -> dict[str, float | None]:
    """Group -> seconds until it trains again, together with all others, after its last start;
    None: it does not. Groups that did not start anew are left out.
    """
    ranks, answer = commits(rows), {}
    for group, began in starts(rows, since_s).items():
        from_s = since_s + began[-1]
        mine = [row["time"] for rank, committed in ranks.items() if group_of(rank) == group
                for row in committed
                if row["time"] > from_s and row["participants"] == groups]  # fmt: skip
        answer[group] = round(min(mine) - since_s, 1) if mine else None
    return answer


SOON_S: Final = 2.7
"""The scheduler is asked when a group leaves: its word is due after 2 s, seen at the next look."""


def said(incident: Row) -> list[Any]:
    """[when, sentence] soon after it had fired; empty: it did not fire."""
    if incident["fired"] is None:
        return []
    before = [row for row in incident["sentences"] if row[0] <= incident["fired"] + SOON_S]
    return list((before or incident["sentences"])[-1])
