"""One kill as seconds after it. Pure: from the trainers' own status lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

Event = Mapping[str, Any]

PAUSE_S: Final = 2.0
"""A rank that does not commit in a quorum of all groups for longer is interrupted; steps take 0.2
to 0.3 s here, and a busy machine takes a process its core for a second."""


def group_of(rank: str) -> str:
    """Of `rg_1.0`: `rg_1`."""
    return rank.rpartition(".")[0]


def commits(steps: Iterable[Event]) -> list[Event]:
    """The status lines of commits."""
    return [line for line in steps if line["event"] == "step" and line["committed"]]


@dataclass(frozen=True, slots=True)
class Interruption:
    """How long not every rank committed in a quorum of all groups."""

    whole_s: float | None
    """Since the kill: from then on all did; 0 where none paused for `PAUSE_S`, None: not yet."""
    last_end_s: float
    """Unix time of the last end, or of the kill."""


def interruption(
    steps: Sequence[Event], ranks: Sequence[str], groups: int, struck_s: float, now_s: float
) -> Interruption:
    """Of the whole fleet, by a kill at `struck_s`, as seen at `now_s`."""
    whole: dict[str, list[float]] = {rank: [] for rank in ranks}
    for line in commits(steps):
        if line["participants"] == groups and line["rank"] in whole:
            whole[line["rank"]].append(line["time"])
    last_end_s = struck_s
    for times in whole.values():
        if not times or now_s - times[-1] > PAUSE_S:
            return Interruption(None, now_s)
        ends = [b for a, b in pairwise(times) if b > struck_s and b - a > PAUSE_S]
        last_end_s = max([last_end_s, *ends])
    return Interruption(last_end_s - struck_s, last_end_s)


def pause_s(steps: Iterable[Event], struck_s: float, now_s: float) -> float:
    """The longest time after the kill in which nobody in the whole job committed."""
    times = sorted(line["time"] for line in commits(steps))
    before = [at_s for at_s in times if at_s <= struck_s]
    after = [at_s for at_s in times if at_s > struck_s]
    marks = [before[-1] if before else struck_s, *after, now_s]
    return max(b - a for a, b in pairwise(marks))


def next_commit_s(steps: Iterable[Event], struck_s: float) -> float | None:
    """Seconds to the first commit anywhere."""
    after = [line["time"] for line in commits(steps) if line["time"] > struck_s]
    return min(after) - struck_s if after else None


def steps_of(group: str, steps: Iterable[Event], from_s: float, to_s: float) -> int:
    """Steps that a group committed in this time."""
    mine = [line for line in commits(steps) if group_of(line["rank"]) == group]
    return len({line["step"] for line in mine if from_s < line["time"] <= to_s})


def steps_lost(steps: Iterable[Event]) -> list[tuple[float, int]]:
    """When the job's step number went back, and by how many committed steps: each time.

    A commit of step n+1 needs the votes of all who were in step n, cast after their line about n;
    so in order of time the number only grows, whoever writes.
    """
    lost, furthest = [], 0
    for line in sorted(commits(steps), key=lambda line: float(line["time"])):
        if line["step"] < furthest:
            lost.append((line["time"], furthest - line["step"] + 1))
        furthest = line["step"]
    return lost


def unequal(steps: Iterable[Event]) -> list[tuple[int, str]]:
    """Steps, with the group rank, after which groups did not hold the same bytes.

    Once the step number has gone back, another job of the same name begins.
    """
    seen: dict[tuple[int, int, str], set[str]] = defaultdict(set)
    life, furthest = 0, 0
    for line in sorted(steps, key=lambda line: float(line["time"])):
        if line["event"] == "step" and line["committed"]:
            life += line["step"] < furthest
            furthest = line["step"]
        elif line["event"] == "fingerprint":
            seen[life, line["step"], line["rank"].rpartition(".")[2]].add(line["sha256"])
    return [(step, rank) for (_, step, rank), hashes in seen.items() if len(hashes) > 1]


def compared(steps: Iterable[Event]) -> int:
    """Steps, with the group rank, whose fingerprint several groups wrote: what `unequal` saw."""
    who: dict[tuple[int, str], set[str]] = defaultdict(set)
    for line in steps:
        if line["event"] == "fingerprint":
            group, _, rank = line["rank"].rpartition(".")
            who[line["step"], rank].add(group)
    return sum(len(groups) > 1 for groups in who.values())
