"""From the roots of the wait-for graph to findings.

Theory of operation. A root is one of these: a rank with nothing unfinished that did not come; a
rank without a record; a collective in which everybody is, so that only the GPUs or the network
can hold it up; a cycle (see `cycles`). For a rank that did not come, the sides are weighed: when
more of a group is missing than has come, it is those inside that called one too many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from monitor.analysis import skew, wording
from monitor.analysis.finding import Confidence, Fault, Finding
from monitor.analysis.graph import Graph, Stuck
from monitor.analysis.habit import Habit
from monitor.analysis.lost import stopped_short
from monitor.analysis.witness import Witness
from monitor.flight_recorder.job import Backend, State

_LONG_NS = 10_000_000_000
"""A collective that all are in and that is known to last so long is stuck. Lower: a slow one is
called stuck. Higher: a stuck one is said later; nobody is accused of it anyway."""


@dataclass(frozen=True, slots=True)
class Root:
    """A finding, and what it rests on."""

    finding: Finding
    scene: tuple[Stuck, ...]
    """The collectives at which it shows."""


def absent(graph: Graph, witness: Witness) -> Iterable[Root]:
    """Ranks with nothing unfinished that others wait for; or, outnumbered, those who wait."""
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
    doubted = {one: _usual(graph, witness, one) for one in graph.stuck if _outnumbered(one, still)}
    guilty = {
        rank
        for rank, scene in waited.items()
        if any(_blames(one, doubted.get(one)) for one in scene)
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


def _blames(one: Stuck, usual: Habit | None) -> bool:
    """Whether a collective speaks against those who did not come to it."""
    if usual is None or usual is Habit.UNKNOWN:
        return len(one.absent) <= len(one.joined)
    return usual is Habit.USUAL


def _usual(graph: Graph, witness: Witness, one: Stuck) -> Habit:
    """Whether those inside call what they called at this place before."""
    if one.transfer is not None:
        return Habit.UNKNOWN
    return witness.of(graph.index.head_row(rank, one.group) for rank in one.inside)


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
    job, first = graph.index.job, scene[0]
    who, has = wording.ranks(job, ranks), wording.verb(ranks, "has", "have")
    what = wording.collective(graph.index, first)
    inside = wording.ranks(job, first.inside)
    waiting = f"{inside} {wording.verb(first.inside, 'waits', 'wait')} in {what}"
    match kind:
        case Fault.NOT_ENQUEUING:
            reason = (
                f"{who} {has} finished all that {wording.verb(ranks, 'it', 'they')} launched and "
                f"launched nothing since, while {waiting} and had launched more."
            )
        case Fault.POINT_TO_POINT:
            hidden = any(rank in graph.index.hidden for rank in ranks)
            where = (
                "in a send or recv that gloo does not record" if hidden else "nowhere to be seen"
            )
            reason = f"{waiting}, and {who} {wording.verb(ranks, 'is', 'are')} {where}."
        case _:
            reason = f"{waiting}, which {who} {has} not entered, nor anything else."
    return Root(
        Finding(
            kind=kind,
            confidence=Confidence.LIKELY,
            reason=reason,
            culprits=tuple(ranks),
            victims=_victims(graph, graph.nodes_of(ranks), ranks),
            group=first.group,
            sequence=first.sequence,
            op=graph.index.op(first.row),
            evidence=_evidence(graph, ranks, scene),
        ),
        scene,
    )


def _evidence(graph: Graph, ranks: Iterable[int], scene: tuple[Stuck, ...]) -> dict[str, str]:
    index, job = graph.index, graph.index.job
    evidence = {}
    for one in scene[:4]:
        inside = f"inside: {wording.ranks(job, one.inside)}"
        if one.absent:
            inside += f"; not come: {wording.ranks(job, one.absent)}"
        if one.held:
            inside += f"; stuck before it: {wording.ranks(job, one.held)}"
        if one.silent:
            inside += f"; without a record: {wording.ranks(job, one.silent)}"
        evidence[wording.collective(index, one)] = inside
    sites = {index.site(one.row) for one in scene[:1]} - {None}
    for site in sites:
        evidence["called at"] = str(site)
    for rank in list(ranks)[:4]:
        for one in scene[:1]:
            if one.transfer is None:
                at = index.groups[one.group]
                last = int(at.enqueued[at.members == rank].max(initial=0))
                evidence[f"rank {job.name(rank)}"] = (
                    f"enqueued up to {last} in {job.groups[one.group].label}"
                )
    return evidence


def _ahead(graph: Graph, one: Stuck, *, sure: bool) -> Root:
    job = graph.index.job
    reason = (
        f"{wording.ranks(job, one.joined)} alone {wording.verb(one.joined, 'is', 'are')} in "
        f"{wording.collective(graph.index, one)}, and {wording.ranks(job, one.absent)} finished "
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
            evidence=_evidence(graph, one.joined, (one,)),
        ),
        (one,),
    )


def inside(graph: Graph) -> Iterable[Root]:
    """Collectives that nobody is missing from, and that some or all do not get out of."""
    for nodes in graph.roots:
        if len(nodes) > 1 or graph.rank_of(nodes[0]) is not None:
            continue
        one = graph.stuck_of(nodes[0])
        if graph.unbegun.intersection(one.front):
            continue
        if one.transfer is not None:
            yield _transfer(graph, one)
        elif not one.done:
            yield from _all_in(graph, one)
        elif len(one.front) == 1 and len(one.done) > 1 and _lasting(graph, one):
            yield _gpu_behind(graph, list(one.front), [one], dict.fromkeys(one.front, 1))
    yield from _behind(graph)


def _behind(graph: Graph) -> Iterable[Root]:
    """Ranks whose GPU did not finish what it finished on their peers, or did not come to it."""
    waited = {graph.rank_of(nodes[0]) for nodes in graph.roots if len(nodes) == 1}
    accused = {
        rank: one
        for rank, unfinished in sorted(graph.lost.items())
        if rank in waited
        for one in (_where_lost(graph, rank),)
        if _really_behind(graph, one, rank, unfinished)
    }
    if accused and 2 * len(accused) < len(graph.index.job.ranks):
        yield _gpu_behind(graph, list(accused), list(accused.values()), graph.lost)
    late = {
        rank: one
        for one in graph.stuck
        for rank in one.front
        if rank in graph.unbegun and rank not in graph.lost
        if rank in waited or len(one.front) > 1
    }
    if late:
        ranks = sorted(late)
        yield _gpu_behind(graph, ranks, [late[rank] for rank in ranks], None)


def _where_lost(graph: Graph, rank: int) -> Stuck:
    """The first collective that the rank does not finish and peers did, in its own order."""
    index = graph.index
    over = [one for one in graph.stuck if rank in one.inside and one.done and not one.transfer]
    return min(over, key=lambda one: index.head_row(rank, one.group))


def _really_behind(graph: Graph, one: Stuck, rank: int, unfinished: int) -> bool:
    """Whether it cannot be that this rank was merely dumped before its peers."""
    if skew.old(graph, (one,), _LONG_NS):
        return True
    partial = graph.index.job.ranks[rank].only_active
    return unfinished > 1 and (partial or stopped_short(graph.index, rank))


def _gpu_behind(
    graph: Graph, ranks: list[int], at: list[Stuck], trailing: Mapping[int, int] | None
) -> Root:
    index, job = graph.index, graph.index.job
    scene = _waiting_for(graph, ranks)
    who = wording.ranks(job, ranks)
    what = wording.joined(list(dict.fromkeys(wording.collective(index, one) for one in at))[:3])
    stopped = wording.verb(ranks, "its GPU stopped", "their GPUs stopped")
    if trailing is None:
        came = f"{wording.verb(ranks, 'has', 'have')} not begun {what} on the GPU, and peers have"
    else:
        came = f"{wording.verb(ranks, 'does', 'do')} not finish {what}, which all peers finished"
    evidence = {
        f"rank {job.name(rank)}": f"first unfinished: {wording.collective(index, one)}"
        + (f"; {trailing[rank]} unfinished that peers finished" if trailing else "")
        for rank, one in zip(ranks, at, strict=True)
    }
    first = at[0]
    return Root(
        Finding(
            kind=Fault.GPU_BEHIND,
            confidence=Confidence.LIKELY,
            reason=f"{who} {came}: {stopped} before the others', which wait for it.",
            culprits=tuple(ranks),
            victims=_victims(graph, graph.nodes_of(ranks), ranks),
            group=first.group,
            sequence=first.sequence,
            op=index.op(first.row),
            evidence=evidence | _evidence(graph, (), scene),
        ),
        (*dict.fromkeys((*at, *scene)),),
    )


def _waiting_for(graph: Graph, ranks: Iterable[int]) -> tuple[Stuck, ...]:
    some = set(ranks)
    return tuple(
        one for one in graph.stuck if one.front and some.intersection((*one.absent, *one.held))
    )


def _all_in(graph: Graph, one: Stuck) -> Iterable[Root]:
    failed = [rank for rank in one.front if _state(graph, one, rank) is State.FAILED]
    if failed or _lasting(graph, one):
        yield _stuck_inside(graph, one, timed_out=len(failed) == len(one.front))


def _lasting(graph: Graph, one: Stuck) -> bool:
    """Whether a collective that all are in is known to last long.

    So it is too when only unfinished entries were written: because something was stuck.
    """
    ranks = graph.index.job.ranks.values()
    if skew.old(graph, (one,), _LONG_NS):
        return True
    return any(info.only_active and info.backend is Backend.NCCL for info in ranks)


def _state(graph: Graph, one: Stuck, rank: int) -> State:
    return State(int(graph.index.job.columns["state"][graph.index.head_row(rank, one.group)]))


def _stuck_inside(graph: Graph, one: Stuck, *, timed_out: bool) -> Root:
    job = graph.index.job
    who = wording.ranks(job, one.front)
    what = wording.collective(graph.index, one)
    ended = "all ended it by an error or a timeout" if timed_out else "none gets out"
    reason = (
        f"{who} {wording.verb(one.front, 'is', 'are')} in {what} and nobody is missing, yet {ended}: "
        "a GPU or the network between them; the records cannot tell whose."
    )
    return Root(
        Finding(
            kind=Fault.TIMED_OUT if timed_out else Fault.STUCK_INSIDE,
            confidence=Confidence.UNSURE,
            reason=reason,
            between=tuple((rank,) for rank in one.front),
            victims=_victims(graph, (graph.front_node(graph.stuck.index(one)),), one.front),
            group=one.group,
            sequence=one.sequence,
            op=graph.index.op(one.row),
            evidence=_evidence(graph, (), (one,)),
        ),
        (one,),
    )


def _transfer(graph: Graph, one: Stuck) -> Root:
    what = wording.collective(graph.index, one)
    who = wording.ranks(graph.index.job, one.inside)
    reason = f"{who} are both in {what}, and it does not end; the records cannot tell whose fault."
    return Root(
        Finding(
            kind=Fault.POINT_TO_POINT,
            confidence=Confidence.UNSURE,
            reason=reason,
            between=tuple((rank,) for rank in one.inside),
            victims=_victims(graph, (graph.front_node(graph.stuck.index(one)),), one.inside),
            group=one.group,
            sequence=one.sequence,
            op=graph.index.op(one.row),
            evidence=_evidence(graph, (), (one,)),
        ),
        (one,),
    )


def _victims(graph: Graph, nodes: Iterable[int], culprits: Iterable[int]) -> tuple[int, ...]:
    own = set(culprits)
    return tuple(rank for rank in graph.reaching(nodes) if rank not in own)
