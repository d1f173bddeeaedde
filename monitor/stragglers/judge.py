"""From a table to its report: each witness asked, and what one explains not said twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from monitor import cohort
from monitor.cohort import Floats
from monitor.stragglers import wording
from monitor.stragglers.finding import Confidence, Kind, Pace, Report, Verdict
from monitor.stragglers.persist import LEAST
from monitor.stragglers.slow import ODD_RATIO, Suspect, Witnesses, slow_steps, steady, suspects
from monitor.stragglers.steps import step_seconds
from monitor.stragglers.table import Table
from monitor.stragglers.transfers import Late, SlowLink, late, slow_groups, slow_links
from monitor.stragglers.work import Crew, Work, work

_EXPLAINS: Final = 0.5
"""Of the seconds lost to a late rank, the share that its own recorded work must come to."""
_LEAST_ELSEWHERE: Final = 3
"""Ranks of other stages that make a witness."""


def judge(table: Table, progress: Callable[[str], None] | None = None) -> Report:
    """All verdicts on a table. Deterministic; the order of rows changes nothing."""
    tell = progress or (lambda _: None)
    tell("own work of every rank")
    done = work(table)
    step_s = step_seconds(table, done)
    tests = len(table.ranks) * len(table.steps)
    raw: Work | None = None
    if any(len(crew.ranks) < cohort.SMALL for crew in done.crews):
        raw = work(table, by_load=False)
    tell("who is slow for long")
    verdicts: list[Verdict] = []
    for place, crew in enumerate(done.crews):
        known = Witnesses() if raw is None else Witnesses(raw.crews[place], _elsewhere(done, place))
        mine = suspects(crew, known, step_s, tests)
        verdicts += [wording.slow_rank(table, crew, one) for one in mine if one.sure]
        tied = [one for one in mine if not one.sure and one.ratio >= ODD_RATIO]
        verdicts += _unsure(table, crew, tied)
    told = _explained(table, verdicts)
    verdicts += [one for one in _loads(table, done, step_s, tests) if one.replica not in told]
    tell("collectives and links")
    comers = late(table, step_s, tests)
    links = slow_links(table, step_s, tests)
    verdicts = [_with_transfers(table, one, comers, links) for one in verdicts]
    verdicts += _links(table, links, _explained(table, verdicts))
    comers = [one for one in comers if not _by_own_work(table, done, one)]
    verdicts += _late(table, comers, _explained(table, verdicts))
    stages = {one.stage for one in verdicts}
    groups = [one for one in slow_groups(table, step_s) if one.stage not in stages]
    verdicts += [wording.slow_group(table, one) for one in groups]
    return Report(
        verdicts=tuple(sorted(verdicts, key=_worst_first)),
        paces=tuple(_paces(table, done, step_s)),
        step_s=float(np.median(step_s)),
        notes=(*table.notes, *_notes(table, done)),
    )


def _worst_first(one: Verdict) -> tuple[bool, float, tuple[int, ...]]:
    return one.confidence is Confidence.UNSURE, -one.lost_s, one.culprits


def _elsewhere(done: Work, place: int) -> Floats | None:
    """Seconds of own work by step, median of the ranks of other stages; None for under 3."""
    others = [crew.pace * crew.seconds for at, crew in enumerate(done.crews) if at != place]
    ranks = np.concatenate(others, axis=1) if others else np.empty((0, 0))
    return cohort.middle(ranks)[:, 0] if ranks.shape[1] >= _LEAST_ELSEWHERE else None


def _unsure(table: Table, crew: Crew, found: list[Suspect]) -> Iterator[Verdict]:
    """Slow ranks of whom too few peers, or half of them, say otherwise."""
    if found:
        yield wording.tie(table, crew, found)


def _loads(table: Table, done: Work, step_s: Floats, tests: int) -> Iterator[Verdict]:
    """Replicas of which all stages are slow alike, for long: their hosts or their data."""
    if len(done.replicas) < 2:
        return
    seconds = np.max(np.concatenate([crew.seconds for crew in done.crews], axis=1), axis=1)
    fleet = Crew(
        stage=-1,
        ranks=np.arange(len(done.replicas)),
        pace=done.load,
        own=done.load,
        seconds=seconds[:, None],
        by_op={},
    )
    for one in suspects(fleet, Witnesses(), step_s, tests):
        if one.sure and steady(fleet, one.stretch):
            yield wording.slow_replica(table, int(done.replicas[one.rank]), one)


def _explained(table: Table, verdicts: list[Verdict]) -> set[int]:
    """Replicas of which something is said already: lateness follows from it."""
    found = {one.replica for one in verdicts if one.replica is not None}
    for one in verdicts:
        accused = (*one.culprits, *(rank for side in one.between[:1] for rank in side))
        found.update(table.replica[list(accused)].tolist())
    return found


def _with_transfers(
    table: Table, one: Verdict, comers: list[Late], links: list[SlowLink]
) -> Verdict:
    """A slow rank with what its replica's collectives and its links show."""
    if not one.culprits:
        return one
    mine = [
        comer
        for comer in comers
        if comer.rank in one.culprits
        or (one.replica is not None and table.replica_of(comer.rank) == one.replica)
    ]
    touching = [link for link in links if set(link.ranks) & set(one.culprits)]
    kind = Kind.MIXED if touching else one.kind
    return wording.with_transfers(table, one, kind, mine, touching)


def _links(table: Table, links: list[SlowLink], sick: set[int]) -> Iterator[Verdict]:
    """Slow links of replicas in which nobody works slowly; two of one rank name it."""
    left = [link for link in links if link.replica not in sick]
    for replica in sorted({link.replica for link in left}):
        mine = [link for link in left if link.replica == replica]
        ends = [rank for link in mine for rank in link.ranks]
        shared = sorted({rank for rank in ends if ends.count(rank) > 1})
        if len(mine) == 2 and len(shared) == 1:
            yield wording.slow_links(table, mine, shared[0])
        else:
            for link in mine:
                yield wording.slow_links(table, [link], None)


def _by_own_work(table: Table, done: Work, one: Late) -> bool:
    """Whether the recorded work of a rank of the replica is what makes it late.

    Then the rules for slow ranks have judged it, and found it too little or too few.
    """
    mine = slice(one.stretch.first, one.stretch.last + 1)
    for crew in done.crews:
        excess = (crew.pace - cohort.usual(crew.pace)) * crew.seconds
        for place, rank in enumerate(crew.ranks.tolist()):
            same = rank == one.rank or table.replica_of(rank) == table.replica_of(one.rank)
            spent = excess[mine, place]
            if same and np.nansum(np.maximum(spent, 0.0)) > _EXPLAINS * one.lost_s:
                return True
    return False


def _late(table: Table, comers: list[Late], sick: set[int]) -> Iterator[Verdict]:
    """Ranks for which collectives wait though their recorded work is as usual.

    In a pipeline the whole replica comes late together and it cannot be told which of its ranks
    began; without a pipeline it is the rank itself, outside of what is recorded.
    """
    alone = len(table.stages) == 1
    by_replica: dict[int, list[Late]] = {}
    for comer in comers:
        replica = table.replica_of(comer.rank)
        if (alone or replica is not None) and table.replica[comer.rank] not in sick:
            by_replica.setdefault(comer.rank if replica is None else replica, []).append(comer)
    for replica, found in sorted(by_replica.items()):
        worst = max(found, key=lambda one: (one.lost_s, -one.rank))
        yield wording.late_rank(table, worst, None if alone else replica)


def _paces(table: Table, done: Work, step_s: Floats) -> list[Pace]:
    found = []
    for crew in done.crews:
        with np.errstate(all="ignore"):
            ratios = wording.column_medians(crew.pace / cohort.usual(crew.pace))
        slow = slow_steps(crew, step_s)
        seen = ~np.isnan(crew.pace)
        by_op = {name: wording.column_medians(held) for name, held in crew.by_op.items()}
        for place, rank in enumerate(crew.ranks.tolist()):
            found.append(
                Pace(
                    rank=rank,
                    stage=crew.stage,
                    replica=table.replica_of(rank),
                    ratio=float(ratios[place]),
                    slow=int(slow[:, place].sum()),
                    seen=int(seen[:, place].sum()),
                    by_op={name: float(held[place]) for name, held in by_op.items()},
                )
            )
    return sorted(found, key=lambda one: (-one.slow, -np.nan_to_num(one.ratio), one.rank))


def _notes(table: Table, done: Work) -> Iterator[str]:
    if len(table.steps) < LEAST:
        yield f"{len(table.steps)} steps are too few to call anything persistent: {LEAST} are asked"
    few = sorted({len(crew.ranks) for crew in done.crews if len(crew.ranks) < cohort.SMALL})
    if few:
        sizes = " or ".join(str(size) for size in few)
        yield (
            f"stages of {sizes} {'rank' if few == [1] else 'ranks'}: too few peers for a robust "
            "score, so a rank is named only if its own past or a great ratio agrees"
        )
    if not any(np.isfinite(crew.pace).any() for crew in done.crews):
        yield "no operation is known as a rank's own work: expected names such as forward-compute"
