"""Verdicts in sentences and evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from monitor import cohort
from monitor.cohort import Floats
from monitor.stragglers.finding import Confidence, Kind, Verdict
from monitor.stragglers.ops import Role, codes_of
from monitor.stragglers.persist import Stretch
from monitor.stragglers.slow import Suspect
from monitor.stragglers.table import Table
from monitor.stragglers.transfers import Late, SlowGroup, SlowLink
from monitor.stragglers.work import Crew

_DURATIONS: Final = "durations of operations, each on its rank's own clock"


def slow_rank(table: Table, crew: Crew, one: Suspect) -> Verdict:
    """A rank slower than its peers, or than it was."""
    place = one.stretch.member
    mine = slice(one.stretch.first, one.stretch.last + 1)
    by_op = {name: float(column_medians(held[mine])[place]) for name, held in crew.by_op.items()}
    by_op = {name: ratio for name, ratio in by_op.items() if np.isfinite(ratio)}
    who = f"{named(table, [one.rank])} ({_place(table, one.rank)})"
    if one.peers:
        others = "the other rank" if one.peers == 1 else f"the {one.peers} other ranks"
        parts = ", ".join(f"{name} {ratio:.2f}" for name, ratio in by_op.items())
        reason = (
            f"{who} takes {one.ratio:.2f} times as long for its own work as {others} of its stage "
            f"in {_when(table, one.stretch)}" + (f" ({parts})" if len(by_op) > 1 else "")
        )
    else:
        reason = (
            f"{who} takes {one.ratio:.2f} times as long for its own work as it did, in "
            f"{_when(table, one.stretch)}, while the other stages take what they took"
        )
    return Verdict(
        kind=Kind.STRAGGLER,
        confidence=Confidence.LIKELY,
        reason=reason,
        culprits=(one.rank,),
        stage=crew.stage,
        replica=table.replica_of(one.rank),
        ratio=one.ratio,
        by_op=by_op,
        lost_s=one.lost_s,
        evidence=_evidence(table, crew, one),
        stretch=one.stretch,
    )


def _evidence(table: Table, crew: Crew, one: Suspect) -> dict[str, str]:
    ops = ", ".join(crew.by_op)
    found = {
        "source": f"{ops} of {counted(len(crew.ranks), 'rank')} of stage {crew.stage}; "
        + _DURATIONS,
        "resolution": _resolution(table),
    }
    mine = slice(one.stretch.first, one.stretch.last + 1)
    if one.peers:
        others = np.delete(crew.pace[mine], one.stretch.member, axis=1)
        scores = cohort.z_scores(crew.pace[mine])[:, one.stretch.member]
        if one.peers + 1 >= cohort.SMALL:
            found["score"] = f"{np.nanmedian(scores):.0f} robust standard deviations from the stage"
            found["peers"] = f"differ by {_spread(others):.1%} among themselves"
            found["chance"] = f"a peer is slow in {one.stretch.chance:.0%} of the steps at most"
        else:
            found["peers"] = f"{one.peers} only, too few for a robust score: low confidence"
    else:
        found["peers"] = "none, its own past only: low confidence"
    if one.odd:
        found["other stages"] = "their ranks take as long as its peers"
    if one.changed is not None:
        found["own past"] = f"{one.changed:.2f} times as long as before"
    elif one.peers + 1 < cohort.SMALL:
        found["own past"] = "no change: it was so from the beginning of the table"
    return found


def _spread(others: Floats) -> float:
    middle = cohort.middle(others)
    apart = np.abs(others - middle) / middle
    return float(np.nanmedian(apart)) if np.isfinite(apart).any() else 0.0


def tie(table: Table, crew: Crew, found: Sequence[Suspect]) -> Verdict:
    """Slow ranks against as many, or one against one."""
    ranks = sorted(one.rank for one in found)
    rest = sorted(set(crew.ranks.tolist()) - set(ranks))
    worst = max(found, key=lambda one: (one.ratio, -one.rank))
    return Verdict(
        kind=Kind.STRAGGLER,
        confidence=Confidence.UNSURE,
        reason=(
            f"{named(table, ranks)} of stage {crew.stage} {_verb(ranks, 'takes', 'take')} "
            f"{worst.ratio:.2f} times as long for own work as {named(table, rest)} in "
            f"{_when(table, worst.stretch)}; peers are too few to tell who is the odd one"
        ),
        between=(tuple(ranks), tuple(rest)),
        stage=crew.stage,
        ratio=worst.ratio,
        lost_s=max(one.lost_s for one in found),
        evidence={
            "source": f"{', '.join(crew.by_op)}; {_DURATIONS}",
            "resolution": _resolution(table),
        },
        stretch=worst.stretch,
    )


def slow_replica(table: Table, replica: int, one: Suspect) -> Verdict:
    """All stages of a replica slow alike."""
    ranks = np.flatnonzero(table.replica == replica).tolist()
    return Verdict(
        kind=Kind.STRAGGLER,
        confidence=Confidence.UNSURE,
        reason=(
            f"all stages of data-parallel rank {replica} take {one.ratio:.2f} times as long for "
            f"the same microbatches as the other replicas in {_when(table, one.stretch)}: its data "
            "or its hosts, the table does not tell"
        ),
        between=(tuple(ranks),),
        replica=replica,
        ratio=one.ratio,
        lost_s=one.lost_s,
        evidence={
            "source": f"lower median over the stages of each microbatch; {_DURATIONS}",
            "resolution": _resolution(table),
        },
        stretch=one.stretch,
    )


def with_transfers(
    table: Table, one: Verdict, kind: Kind, comers: Sequence[Late], links: Sequence[SlowLink]
) -> Verdict:
    """With what collectives and links say of it."""
    evidence = dict(one.evidence)
    if comers:
        worst = max(comers, key=lambda comer: comer.lost_s)
        evidence["late arrival"] = (
            f"its replica comes last to {worst.op}, where the others waited {worst.lost_s:.1f} s; "
            f"late share P = {worst.share:.2f}"
        )
    if links:
        worst_link = max(links, key=lambda link: link.ratio)
        evidence["slow transfer"] = (
            f"the link between {named(table, worst_link.ranks)} takes {worst_link.ratio:.1f} times "
            "as long as in the other replicas"
        )
    return replace(one, kind=kind, evidence=evidence)


def slow_links(table: Table, links: Sequence[SlowLink], culprit: int | None) -> Verdict:
    """A link, or a rank all of whose links are slow."""
    worst = max(links, key=lambda link: (link.ratio, link.ranks))
    when = _when(table, worst.stretch)
    if culprit is None:
        reason = (
            f"transfers between {named(table, worst.ranks)} take {worst.ratio:.1f} times as long "
            f"as between the same stages of other replicas in {when}; both ends work as usual, "
            "and which end it is cannot be told"
        )
    else:
        reason = (
            f"{named(table, [culprit])} ({_place(table, culprit)}) has slow transfers to both of "
            f"its neighbours, {worst.ratio:.1f} times as long as between the same stages of other "
            f"replicas in {when}, and works as usual"
        )
    ends = sorted({(rank,) for link in links for rank in link.ranks})
    return Verdict(
        kind=Kind.SLOW_TRANSFER,
        confidence=Confidence.UNSURE if culprit is None else Confidence.LIKELY,
        reason=reason,
        culprits=() if culprit is None else (culprit,),
        between=tuple(ends) if culprit is None else (),
        stage=None if culprit is None else int(table.stage[culprit]),
        replica=worst.replica,
        ratio=worst.ratio,
        lost_s=max(link.lost_s for link in links),
        evidence={
            "source": f"the shorter of each send and its receive; {_DURATIONS}",
            "resolution": "one step: median over its messages",
        },
        stretch=worst.stretch,
    )


def slow_group(table: Table, one: SlowGroup) -> Verdict:
    """A stage's collective became slow for all of its members."""
    count = len(table.steps) - one.first
    stretch = Stretch(0, one.first, len(table.steps) - 1, count, count, 0.0)
    return Verdict(
        kind=Kind.SLOW_TRANSFER if one.share < 0.3 else Kind.MIXED,
        confidence=Confidence.LIKELY,
        reason=(
            f"{one.op} of stage {one.stage} takes {one.ratio:.1f} times as long as it did since "
            f"step {table.steps[one.first]}, though all its ranks come in time: the network "
            "between them, no rank is accused"
        ),
        stage=one.stage,
        ratio=one.ratio,
        lost_s=one.lost_s,
        evidence={
            "source": f"fastest member of {one.op}; {_DURATIONS}",
            "resolution": "one step",
            "late arrival": f"late share P = {one.share:.2f}",
        },
        stretch=stretch,
    )


def late_rank(table: Table, one: Late, replica: int | None) -> Verdict:
    """Somebody for whom a collective waits, though its recorded work is as usual."""
    when = _when(table, one.stretch)
    lost = f"its peers waited {one.lost_s:.1f} s for it (late share P = {one.share:.2f})"
    evidence = {
        "source": f"seconds inside {one.op}; {_DURATIONS}",
        "resolution": "one step",
    }
    if replica is None:
        reason = (
            f"{named(table, [one.rank])} comes last to {one.op} in {when} and {lost}, while its "
            "recorded work is like its peers': the time goes outside of the recorded operations"
        )
        ranks = [one.rank]
    else:
        ranks = np.flatnonzero(table.replica == replica).tolist()
        reason = (
            f"data-parallel rank {replica} comes last to {one.op} in {when} and {lost}, while the "
            "recorded work of all its stages is like that of others: which rank began it cannot "
            "be told"
        )
    return Verdict(
        kind=Kind.STRAGGLER,
        confidence=Confidence.LIKELY if replica is None else Confidence.UNSURE,
        reason=reason,
        culprits=tuple(ranks) if replica is None else (),
        between=() if replica is None else tuple((rank,) for rank in ranks),
        stage=int(table.stage[one.rank]) if replica is None else None,
        replica=table.replica_of(one.rank),
        lost_s=one.lost_s,
        evidence=evidence,
        stretch=one.stretch,
    )


def _when(table: Table, stretch: Stretch) -> str:
    """`44 of 44 steps`, `20 of 22 steps since step 804`, `9 of 9 steps from step 3 to 11`."""
    count = f"{stretch.slow:,} of {stretch.seen:,} steps"
    first, last = table.steps[stretch.first], table.steps[stretch.last]
    if stretch.last < len(table.steps) - 1:
        return f"{count} from step {first} to {last}"
    return count if stretch.first == 0 else f"{count} since step {first}"


def _resolution(table: Table) -> str:
    if "mb_id" not in table.tells:
        return "one step"
    rows = table.rows_of(codes_of(table.ops, Role.OWN))
    count = len(np.unique(table.microbatch[rows]))
    return f"one step: median over its {counted(count, 'microbatch')}"


def named(table: Table, ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 3 and 7`, `ranks 3, 7, 9 and 4 more`."""
    numbers = [str(number) for number in sorted(table.ranks[list(ranks)].tolist())]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > 8:
        return f"ranks {', '.join(numbers[:7])} and {len(numbers) - 7} more"
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"


def _place(table: Table, rank: int) -> str:
    stage = f"stage {table.stage[rank]}"
    replica = table.replica_of(rank)
    return stage if replica is None else f"{stage}, data-parallel rank {replica}"


def _verb(ranks: Sequence[int], one: str, many: str) -> str:
    return one if len(ranks) == 1 else many


def counted(number: int, noun: str) -> str:
    """`1 rank`, `2 ranks`, `2 microbatches`."""
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def column_medians(values: Floats) -> Floats:
    """Median of each column over the rows that have a value."""
    return cohort.middle(values.T)[:, 0]
