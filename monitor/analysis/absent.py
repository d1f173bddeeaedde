"""Ranks that have nothing unfinished and did not come, while others wait for them.

Theory of operation. The sides are weighed: when as many of a group are missing as have come, or
more, it may be that those inside called one too many. Then their past decides, and where it does
not, nobody is accused of the larger side.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from monitor.analysis import wording
from monitor.analysis.finding import Confidence, Fault, Finding
from monitor.analysis.graph import Graph, Stuck
from monitor.analysis.habit import Habit
from monitor.analysis.root import Root, evidence_of, victims_of
from monitor.analysis.witness import Witness


def absent(graph: Graph, witness: Witness, different: Collection[int] = ()) -> Iterable[Root]:
    """Ranks with nothing unfinished that others wait for; or, outnumbered, those who wait.

    `different` ranks are known to give something else than their peers: nobody asks their past
    whether a call is usual.
    """
    index = graph.index
    still = {
        rank
        for nodes in graph.roots
        if len(nodes) == 1 and (rank := graph.rank_of(nodes[0])) is not None
        if rank in index.job.ranks and rank not in graph.unbegun.union(graph.lost)
    }
    waited = {
        rank: [one for one in graph.stuck if rank in one.absent and one.inside]
        for rank in sorted(still)
    }
    doubted = {
        one: _usual(graph, witness, one, different)
        for one in graph.stuck
        if _outnumbered(one, still)
    }
    guilty = {
        rank
        for rank, scene in waited.items()
        if any(_blames(one, doubted.get(one), still) for one in scene)
    }
    _infect(waited, guilty)
    for ranks in _together(waited, guilty):
        scene = _scene(waited, ranks)
        for kind in sorted({_kind(graph, rank, waited[rank]) for rank in ranks}):
            some = [rank for rank in ranks if _kind(graph, rank, waited[rank]) is kind]
            yield _missing(graph, kind, some, _scene(waited, some) or scene)
    told = set[tuple[int, ...]]()
    for one, usual in doubted.items():
        if not guilty & set(one.absent) and one.joined not in told:
            told.add(one.joined)
            yield _ahead(graph, one, sure=usual is Habit.UNUSUAL)


def _outnumbered(one: Stuck, still: set[int]) -> bool:
    """Whether those who have not come are as many as those who have, or more."""
    return bool(still & set(one.absent)) and len(one.absent) >= len(one.joined)


def _blames(one: Stuck, usual: Habit | None, still: set[int]) -> bool:
    """Whether a collective speaks against those who did not come to it.

    Without a past it does if they are not the larger side; who is held up elsewhere is on none.
    """
    if usual is None or usual is Habit.UNKNOWN:
        return len(still & set(one.absent)) <= len(one.joined)
    return usual is Habit.USUAL


def _usual(graph: Graph, witness: Witness, one: Stuck, different: Collection[int]) -> Habit:
    """Whether those inside call what they called at this place before."""
    if one.transfer is not None:
        return Habit.UNKNOWN
    asked = [rank for rank in one.inside if rank not in different] or one.inside
    return witness.of(graph.index.head_row(rank, one.group) for rank in asked)


def _infect(waited: Mapping[int, Iterable[Stuck]], guilty: set[int]) -> None:
    """Who is missing beside a guilty rank is guilty too: what they are missed in is real."""
    grown = True
    while grown:
        real = {one for rank in guilty for one in waited[rank] if one.transfer is None}
        more = {rank for one in real for rank in one.absent if rank in waited}
        grown = not more <= guilty
        guilty |= more


def _together(waited: dict[int, list[Stuck]], guilty: set[int]) -> list[list[int]]:
    """Guilty ranks that the same collective waits for, together."""
    sets: list[set[int]] = []
    for rank in sorted(guilty):
        linked = {rank} | {r for one in waited[rank] for r in one.absent if r in guilty}
        for other in [s for s in sets if s & linked]:
            linked |= other
            sets.remove(other)
        sets.append(linked)
    return [sorted(one) for one in sets]


def _scene(waited: dict[int, list[Stuck]], ranks: Iterable[int]) -> tuple[Stuck, ...]:
    """What is waited in for these ranks, those first in which somebody is stuck first."""
    found = {(one.group, one.sequence, one.row): one for rank in ranks for one in waited[rank]}
    return tuple(sorted(found.values(), key=_telling))


def _telling(one: Stuck) -> tuple[bool, bool, int, int, int, int]:
    """Sorts what convinces most to the front."""
    transfer = one.transfer is not None
    return (not one.front, transfer, -len(one.inside), one.group, one.sequence, one.row)


def _kind(graph: Graph, rank: int, scene: list[Stuck]) -> Fault:
    """How a rank that did not come is called: by how much it is short of."""
    if all(one.transfer is not None for one in scene) or rank in graph.index.hidden:
        return Fault.POINT_TO_POINT
    collectives = [one for one in scene if one.transfer is None]
    groups = {one.group for one in collectives}
    short = 0
    for group in groups:
        at = graph.index.groups[group]
        short += int(at.enqueued.max()) - int(at.enqueued[at.members == rank][0])
    launched = graph.index.job.ranks[rank].only_active
    return Fault.NOT_ENQUEUING if launched or short > 1 else Fault.NOT_ENTERED


def _missing(graph: Graph, kind: Fault, ranks: list[int], scene: tuple[Stuck, ...]) -> Root:
    index, first = graph.index, scene[0]
    who, has = wording.ranks(index.job, ranks), wording.verb(ranks, "has", "have")
    what = wording.collective(index, first)
    match kind:
        case Fault.NOT_ENQUEUING:
            reason = (
                f"{who} {has} launched nothing since {wording.verb(ranks, 'it', 'they')} finished "
                f"all that {wording.verb(ranks, 'it', 'they')} had launched, and peers launched "
                f"more: {wording.waiting(index, first, f'in {what}')}."
            )
        case Fault.POINT_TO_POINT:
            hidden = any(rank in index.hidden for rank in ranks)
            where = (
                "in a send or recv that gloo does not record" if hidden else "nowhere to be seen"
            )
            reason = (
                f"{who} {wording.verb(ranks, 'is', 'are')} {where}: "
                f"{wording.waiting(index, first, f'in {what}')}."
            )
        case _:
            reason = (
                f"{who} {has} not entered {what}, nor anything else: "
                f"{wording.waiting(index, first)}."
            )
    reason += wording.last_call(index, ranks)
    return Root(
        Finding(
            kind=kind,
            confidence=Confidence.LIKELY,
            reason=reason,
            culprits=tuple(ranks),
            victims=victims_of(graph, graph.nodes_of(ranks), ranks),
            group=first.group,
            sequence=first.sequence,
            op=graph.index.op(first.row),
            evidence=evidence_of(graph, ranks, scene),
        ),
        scene,
    )


def _ahead(graph: Graph, one: Stuck, *, sure: bool) -> Root:
    job = graph.index.job
    reason = (
        f"{wording.ranks(job, one.joined)} alone {wording.verb(one.joined, 'is', 'are')} in "
        f"{wording.collective(graph.index, one)}{wording.site(graph.index, one.row)}, and "
        f"{wording.ranks(job, one.absent)} finished "
        f"all before it and {wording.verb(one.absent, 'calls', 'call')} nothing more: "
    )
    if sure:
        reason += "in earlier steps nobody called it at this place, so the call is one too many."
    else:
        reason += "the records cannot tell whether the call is one too many or was not made."
    return Root(
        Finding(
            kind=Fault.EXTRA if sure else Fault.NOT_ENTERED,
            confidence=Confidence.LIKELY if sure else Confidence.UNSURE,
            reason=reason,
            culprits=one.joined if sure else (),
            between=() if sure else tuple(sorted((one.joined, one.absent))),
            victims=tuple(rank for rank in one.absent if rank in job.ranks) if sure else (),
            group=one.group,
            sequence=one.sequence,
            op=graph.index.op(one.row),
            evidence=evidence_of(graph, one.joined, (one,)),
        ),
        (one,),
    )
