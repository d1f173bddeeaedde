"""From a job's flight records to what is wrong with it.

Theory of operation. `analyse` builds the wait-for graph (`waits`), looks for calls that differ
(`divergence`), and runs each check in this file to find whom the stuck ranks wait for: cycles,
ranks that did not arrive or do not get out, ranks without a record. What a divergence explains is
not reported again, and what the records do not show at one moment is not reported at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from operator import itemgetter

from lightkeeper.monitor.model.units import grouped
from lightkeeper.monitor.model.wording import listed, plural
from lightkeeper.monitor.records import findings as wording
from lightkeeper.monitor.records.divergence import (
    Divergence,
    Habit,
    RankPasts,
    divergences,
    index_calls,
    mismatch_finding,
    orders,
    silent_slips,
    the_only,
    with_hanging,
)
from lightkeeper.monitor.records.findings import (
    Analysis,
    Fault,
    Finding,
    RecordedWait,
    at_scene,
    evidence_of,
    victims_of,
)
from lightkeeper.monitor.records.job import NONE, Backend, CollectiveState, Job
from lightkeeper.monitor.records.threads import explained, shared_groups, two_threads
from lightkeeper.monitor.records.waits import (
    SYNCHRONISING,
    Graph,
    Index,
    StuckCollective,
    build_graph,
    build_index,
    lasting,
    old,
    ranks_moved_on,
    settled,
    stopped_short,
    timed_out,
    young,
)

_MOST = 64
"""Collectives of one cycle that are compared with each other."""
_SHOWN = 8
"""Transfers of one circle that are named."""
_STEPS = 64
"""Calls of a rank before the one it is stuck in that are checked against its past: the sends and
receives of a step of 16 micro-batches."""


@dataclass(frozen=True, slots=True)
class _Side:
    ranks: tuple[int, ...]
    stuck: StuckCollective


def cycles(graph: Graph, pasts: RankPasts) -> Iterable[Finding]:
    """One finding for each cycle.

    Two collectives of a cycle conflict when, of the ranks that have to call both, some are stuck
    in one and some in the other. A strict majority of these ranks shows which comes first. On a
    tie their past decides: a rank that calls what it never called at this place is wrong. Failing
    that, nobody is accused.
    """
    for nodes in (*graph.roots, *graph.knots):
        if len(nodes) > 1:
            yield _cycle(graph, pasts, nodes)


def _cycle(graph: Graph, pasts: RankPasts, nodes: tuple[int, ...]) -> Finding:
    sides, index = _sides(graph, nodes), graph.index
    collectives = [side for side in sides if side.stuck.transfer is None][:_MOST]
    culprits: set[int] = set()
    for left, right in combinations(collectives, 2):
        culprits.update(_conflict(graph, pasts, left, right))
    kind = Fault.ORDER_INVERSION if collectives else Fault.POINT_TO_POINT
    if 0 < len(collectives) < len(sides) and not culprits:
        culprits.update(_out_of_habit(graph, pasts, sides))
        kind = Fault.POINT_TO_POINT if culprits else kind
    return at_scene(
        graph,
        kind,
        _crossed(graph, kind, sides, sorted(culprits)) if collectives else _circle(graph, sides),
        tuple(dict.fromkeys(side.stuck for side in sides)),
        culprits=sorted(culprits),
        sides=sorted(side.ranks for side in sides),
        victims=victims_of(graph, nodes, culprits),
        evidence={
            wording.collective(index, side.stuck): wording.ranks_listed(index.job, side.ranks)
            + wording.spot(index, side.stuck.row)
            for side in sides[:8]
        },
    )


def _circle(graph: Graph, sides: Sequence[_Side]) -> str:
    """Each transfer of a circle with its line, each rank after the one that waits for it."""
    job, heads, place = graph.index.job, graph.index.heads, graph.index.place
    rows = {
        side.ranks[0]: next(row for row in heads[side.ranks[0]] if place(row) == side.stuck.place)
        for side in sides
    }
    peers = {rank: int(job.columns["peer"][row]) for rank, row in rows.items()}
    calls = {rank: job.payloads[job.columns["payload"][row]] for rank, row in rows.items()}
    pair = len(calls) == 2 and {call.op for call in calls.values()} == {"send", "recv"}
    differ = pair and len({call.tag for call in calls.values()}) > 1
    rank, said = min(peers), list[str]()
    while rank in peers and len(said) < _SHOWN:
        row, peer = rows[rank], peers.pop(rank)
        tag = f" with tag {calls[rank].tag}" if differ else ""
        where = graph.index.op(row) + tag + wording.spot(graph.index, row)
        waits = "waits for" if not said else "for"
        said.append(f"rank {job.name(rank)} {waits} rank {job.name(peer)} ({where})")
        rank = peer
    more = f" and {len(peers)} more" if peers else ""
    if differ:
        return (
            f"{listed(said)}: their tags differ, so neither ends; it is not known whose is wrong."
        )
    return (
        f"{listed(said, len(said))}{more}: a circle of sends and receives, so none of them ends. "
        "The order of the program's transfers cannot work, and no rank is to blame."
    )


def _out_of_habit(graph: Graph, pasts: RankPasts, sides: Sequence[_Side]) -> tuple[int, ...]:
    """The only side that calls what it never called at this place, if all others are as usual.

    No rank has to call both a transfer and a collective, so there is no majority to count. A rank
    that leaves out a micro-batch may be in a usual call again at its end: the transfers that led
    there count too.
    """
    front = graph.index.front
    if any(rank not in front for side in sides for rank in side.ranks):
        return ()
    ends = [[min(front[rank]) for rank in side.ranks] for side in sides]
    habits = [_habit(graph, pasts, rows, None) for rows in ends]
    odd_one = the_only(habits, Habit.UNUSUAL)
    return () if odd_one is None else sides[odd_one].ranks


def _conflict(graph: Graph, pasts: RankPasts, left: _Side, right: _Side) -> tuple[int, ...]:
    """Which of two sides is wrong; empty if they do not conflict or nothing decides."""
    at = [graph.index.groups[side.stuck.group] for side in (left, right)]
    both = set.intersection(*(set(group.members.tolist()) for group in at))
    sides = [tuple(rank for rank in side.ranks if rank in both) for side in (left, right)]
    if not all(sides):
        return ()
    for mine, theirs in (sides, sides[::-1]):
        if 2 * len(theirs) > len(both):
            return mine
    habits = []
    for own, other, ranks in zip((left, right), (right, left), sides, strict=True):
        ends = [graph.index.collective_heads[rank, own.stuck.group] for rank in ranks]
        habits.append(_habit(graph, pasts, ends, other.stuck.group))
    odd = the_only(habits, Habit.UNUSUAL)
    return () if odd is None else sides[odd]


def _habit(graph: Graph, pasts: RankPasts, ends: Sequence[int], group: int | None) -> Habit:
    """How usual the calls in these rows are, and those since the ranks' last call in a group; None:
    since their last collective.

    A rank that skips a call may be in a usual one again soon after.
    """
    way = (row for end in ends for row in _way(graph, end, group))
    if any(pasts.of((row,)) is Habit.UNUSUAL for row in way):
        return Habit.UNUSUAL
    return pasts.of(ends)


def _way(graph: Graph, end: int, group: int | None) -> Iterable[int]:
    columns = graph.index.job.columns
    for row in range(end - 1, max(end - _STEPS, 0) - 1, -1):
        begins = not columns["p2p"][row] if group is None else columns["group"][row] == group
        if begins or columns["rank"][row] != columns["rank"][end]:
            return
        yield row


def _sides(graph: Graph, nodes: tuple[int, ...]) -> list[_Side]:
    """The ranks of a cycle, grouped by what they are stuck in first, also within a batch."""
    first = {rank: graph.index.place(min(rows)) for rank, rows in graph.index.front.items()}
    within = {node for node in nodes if graph.rank_of(node) is None}
    sides = grouped(
        (min(targets, key=lambda to: (graph.stuck_of(to).place != first.get(rank), to)), rank)
        for node in nodes
        if (rank := graph.rank_of(node)) is not None
        and (targets := within.intersection(graph.edges[node]))
    )
    stuck_sides = [_Side(tuple(sorted(r)), graph.stuck_of(into)) for into, r in sides.items()]
    return sorted(stuck_sides, key=lambda side: side.ranks)


def _crossed(graph: Graph, kind: Fault, sides: Sequence[_Side], culprits: Sequence[int]) -> str:
    job = graph.index.job
    blamed = sorted(sides, key=lambda side: not set(side.ranks) & set(culprits))
    said = [
        f"{wording.ranks_listed(job, side.ranks)} {plural(side.ranks, 'is', 'are')} in "
        f"{wording.collective(graph.index, side.stuck)}{wording.spot(graph.index, side.stuck.row)}"
        for side in blamed[:4]
    ]
    if not culprits:
        end = "the records cannot tell whose order is wrong."
    elif kind is Fault.POINT_TO_POINT:
        end = "has never called in this order before: it left out a call, or made another."
    else:
        end = "took them in another order than the others."
    who = f"{wording.ranks_listed(job, culprits)} " if culprits else ""
    return f"{listed(said)}, and each waits for the other: {who}{end}"


def find_absent(
    graph: Graph, pasts: RankPasts, different: Collection[int] = ()
) -> Iterable[Finding]:
    """Ranks with nothing unfinished that others wait for; or, if outnumbered, those who wait.

    `different` ranks are known to call something else than their peers: their past is not used
    to judge whether a call is usual.

    If outnumbered, those inside may have called one too many: their past decides, or nobody is
    accused.
    """
    still = graph.awaited.intersection(graph.index.job.ranks)
    still -= graph.unbegun.union(graph.lost, graph.index.unplaced)
    absentees = ((stuck, still.intersection(stuck.absent)) for stuck in graph.stuck)
    missing = [(stuck, ranks) for stuck, ranks in absentees if ranks]
    waited = grouped((rank, stuck) for stuck, ranks in missing for rank in ranks)
    doubted = {  # at least as many are missing as have arrived
        stuck: _usual(graph, pasts, stuck, different)
        for stuck, _ in missing
        if len(stuck.absent) >= len(stuck.joined)
    }
    blamed = (
        ranks
        for stuck, ranks in missing
        if _blames(stuck, doubted.get(stuck, Habit.UNKNOWN), ranks)
    )
    guilty = set[int]().union(*blamed)
    real = grouped((r, stuck) for stuck, ranks in missing if not stuck.transfer for r in ranks)
    # ranks missing together with a guilty one are guilty too: the collective is real
    guilty.update(*_linked(guilty, real, still))
    for ranks in sorted(map(sorted, _linked(guilty, waited, guilty)), key=max):
        kinds = grouped((_kind(graph, rank, waited[rank]), rank) for rank in ranks)
        for kind, of_kind in sorted(kinds.items()):
            yield _missing(graph, kind, of_kind, _scene(waited, of_kind))
    reported = set[tuple[int, ...]]()
    for stuck, usual in doubted.items():
        if not guilty & set(stuck.absent) and stuck.joined not in reported:
            reported.add(stuck.joined)
            yield _ahead(graph, stuck, sure=usual is Habit.UNUSUAL)


def _blames(stuck: StuckCollective, usual: Habit, missing: Collection[int]) -> bool:
    """True if a collective is evidence against the ranks that did not enter it.

    Without a past it is, unless they are the larger side; ranks held up elsewhere do not count.
    """
    few = len(missing) <= len(stuck.joined)
    return usual is Habit.USUAL or (usual is Habit.UNKNOWN and few)


def _usual(
    graph: Graph, pasts: RankPasts, stuck: StuckCollective, different: Collection[int]
) -> Habit:
    """How usual it is: those inside may call what they called at this place before."""
    if stuck.transfer is not None:
        return Habit.UNKNOWN
    asked = [rank for rank in stuck.inside if rank not in different] or stuck.inside
    return pasts.of(graph.index.collective_heads[rank, stuck.group] for rank in asked)


def _linked(
    firsts: Iterable[int], waited: Mapping[int, Iterable[StuckCollective]], among: Collection[int]
) -> list[set[int]]:
    """`firsts`, each with all ranks of `among` that the same collectives wait for, transitively."""
    seen: set[int] = set()
    looked: set[int] = set()
    parts: list[set[int]] = []
    for first in sorted(firsts):
        todo, linked = [first] if first not in seen else [], set[int]()
        while todo:
            rank = todo.pop()
            linked.add(rank)
            new = [stuck for stuck in waited.get(rank, ()) if id(stuck) not in looked]
            looked.update(map(id, new))
            more = {r for stuck in new for r in stuck.absent if r in among} - seen - linked
            todo += more
            seen.update((rank, *more))
        if linked:
            parts.append(linked)
    return parts


def _scene(
    waited: dict[int, list[StuckCollective]], ranks: Iterable[int]
) -> tuple[StuckCollective, ...]:
    """The collectives that wait for these ranks, the most convincing first."""
    distinct = {stuck.place: stuck for rank in ranks for stuck in waited[rank]}
    return tuple(
        sorted(
            distinct.values(),  # fronts first, then collectives, then the most ranks inside
            key=lambda stuck: (not stuck.front, stuck.transfer is not None, -len(stuck.inside),
                             stuck.group, stuck.sequence, stuck.row),
        )
    )  # fmt: skip


def _kind(graph: Graph, rank: int, scene: list[StuckCollective]) -> Fault:
    """The fault of a rank that did not arrive, by how many calls it is behind."""
    groups = {stuck.group for stuck in scene if stuck.transfer is None}
    if not groups:
        return Fault.POINT_TO_POINT
    standings = [graph.index.groups[group] for group in groups]
    short = sum(at.enqueued.max() - at.enqueued[at.members == rank][0] for at in standings)
    launched = graph.index.job.ranks[rank].only_active
    return Fault.NOT_ENQUEUING if launched or short > 1 else Fault.NOT_ENTERED


def _missing(
    graph: Graph, kind: Fault, ranks: list[int], scene: tuple[StuckCollective, ...]
) -> Finding:
    index, first = graph.index, scene[0]
    who, has = wording.ranks_listed(index.job, ranks), plural(ranks, "has", "have")
    what = wording.collective(index, first)
    match kind:
        case Fault.NOT_ENQUEUING:
            reason = (
                f"{who} {has} launched nothing since {plural(ranks, 'it', 'they')} finished "
                f"all that {plural(ranks, 'it', 'they')} had launched, and peers launched "
                f"more: {wording.waiting(index, first)}."
            )
        case Fault.POINT_TO_POINT:
            waiting = wording.waiting(index, first)
            reason = f"{who} {plural(ranks, 'is', 'are')} nowhere to be seen: {waiting}."
        case _:
            waiting = wording.waiting(index, first, "there")
            reason = f"{who} {has} not entered {what}, nor anything else: {waiting}."
    reason += wording.last_call(index, ranks)
    return at_scene(
        graph,
        kind,
        reason,
        scene,
        culprits=ranks,
        victims=victims_of(graph, graph.nodes_of(ranks), ranks),
        evidence=evidence_of(graph, ranks, scene),
    )


def _ahead(graph: Graph, stuck: StuckCollective, *, sure: bool) -> Finding:
    job = graph.index.job
    reason = (
        f"{wording.ranks_listed(job, stuck.joined)} alone {plural(stuck.joined, 'is', 'are')} in "
        f"{wording.collective(graph.index, stuck)}{wording.spot(graph.index, stuck.row)}, and "
        f"{wording.ranks_listed(job, stuck.absent)} finished "
        f"all before it and {plural(stuck.absent, 'calls', 'call')} nothing more: "
    )
    if sure:
        reason += "in earlier steps nobody called it at this place, so the call is one too many."
    else:
        reason += "the records cannot tell whether the call is one too many or was not made."
    return at_scene(
        graph,
        Fault.EXTRA if sure else Fault.NOT_ENTERED,
        reason,
        (stuck,),
        culprits=stuck.joined if sure else (),
        sides=sorted((stuck.joined, stuck.absent)),
        victims=tuple(rank for rank in stuck.absent if rank in job.ranks) if sure else (),
        evidence=evidence_of(graph, stuck.joined, (stuck,)),
    )


def inside(graph: Graph) -> Iterable[Finding]:
    """Collectives from which nobody is missing, but that some or all ranks do not get out of.

    A rank whose peers completed what it has unfinished (`lost`), or began what it has not begun, is
    behind by itself. If all are equal, it is the group and not a rank. A running job can look the
    same, so it is reported only when it is known to last.
    """
    state, heads = graph.index.job.columns["state"], graph.index.collective_heads
    for nodes in graph.roots:
        if len(nodes) > 1 or graph.rank_of(nodes[0]) is not None:
            continue
        stuck = graph.stuck_of(nodes[0])
        if graph.unbegun.intersection(stuck.front):
            continue
        failed = 0
        if stuck.transfer is None and not stuck.done:
            failed = sum(
                state[heads[rank, stuck.group]] == CollectiveState.FAILED for rank in stuck.front
            )
        last_one = len(stuck.front) == 1 and len(stuck.done) > 1
        if failed or ((not stuck.done or last_one) and lasting(graph, stuck)):
            yield _nobodys(graph, stuck, timed_out=failed == len(stuck.front))
    yield from _behind(graph)


def _overwritten(graph: Graph) -> Iterable[Finding]:
    """What is left to say if ranks are stuck in what their rings have overwritten."""
    adrift = graph.index.unplaced
    for stuck in graph.stuck:
        here = (stuck,)
        if not lasting(graph, stuck) or young(graph, here) or not settled(graph, here, ()):
            continue
        if adrift & {*stuck.holding, *stuck.inside}:
            ranks = sorted(adrift)
            who = wording.ranks_listed(graph.index.job, ranks)
            reason = (
                f"{who} {plural(ranks, 'is', 'are')} stuck in calls that the buffer no longer has: "
                "the records cannot tell whose fault; a larger TORCH_FR_BUFFER_SIZE can."
            )
            evidence = evidence_of(graph, (), (stuck,))
            yield at_scene(graph, Fault.STUCK_INSIDE, reason, (stuck,), evidence=evidence)
            return


def _behind(graph: Graph) -> Iterable[Finding]:
    """Ranks whose GPU did not finish, or did not reach, what their peers' GPUs finished."""
    waited = graph.awaited
    where = _where_lost(graph)
    accused = {
        rank: stuck
        for rank, unfinished in sorted(graph.lost.items())
        if rank in waited
        for stuck in (where[rank],)
        if _really_behind(graph, stuck, rank, unfinished)
    }
    if accused and 2 * len(accused) < len(graph.index.job.ranks):
        yield _gpu_behind(graph, list(accused), list(accused.values()), graph.lost)
    late = {
        rank: stuck
        for stuck in graph.stuck
        for rank in stuck.front
        if rank in graph.unbegun and rank not in graph.lost
        if (rank in waited or len(stuck.front) > 1) and lasting(graph, stuck)
    }
    if late:
        ranks = sorted(late)
        yield _gpu_behind(graph, ranks, [late[rank] for rank in ranks], None)


def _where_lost(graph: Graph) -> dict[int, StuckCollective]:
    """By rank the first collective, in its own order, that it has not finished but peers have."""
    heads, over = graph.index.collective_heads, (s for s in graph.stuck if s.done)
    inside = [(heads[rank, s.group], rank, s) for s in over if not s.transfer for rank in s.inside]
    return {rank: stuck for _, rank, stuck in sorted(inside, key=itemgetter(0), reverse=True)}


def _really_behind(graph: Graph, stuck: StuckCollective, rank: int, unfinished: int) -> bool:
    """True if it is impossible that this rank was merely dumped before its peers."""
    if old(graph, stuck):
        return True
    partial = graph.index.job.ranks[rank].only_active
    return unfinished > 1 and (partial or stopped_short(graph.index, rank))


def _gpu_behind(
    graph: Graph, ranks: list[int], at: list[StuckCollective], trailing: Mapping[int, int] | None
) -> Finding:
    index, job = graph.index, graph.index.job
    behind = set(ranks)
    scene = tuple(
        stuck
        for stuck in graph.stuck
        if stuck.front and behind.intersection((*stuck.absent, *stuck.held))
    )
    who = wording.ranks_listed(job, ranks)
    what = listed(list(dict.fromkeys(wording.collective(index, stuck) for stuck in at))[:3])
    gpus = f"the {plural(ranks, 'GPU', 'GPUs')} of {who}"
    if trailing is None:
        has = plural(ranks, "has", "have")
        reason = f"{gpus} {has} not begun {what}, which those of peers have"
    else:
        reason = f"{gpus} stopped in {what}, which those of all peers finished"
    if scene:
        reason += f": {wording.waiting(index, scene[0])}"
    evidence = {
        f"rank {job.name(rank)}": f"first unfinished: {wording.collective(index, stuck)}"
        + (f"; {trailing[rank]} unfinished that peers finished" if trailing else "")
        for rank, stuck in zip(ranks, at, strict=True)
    }
    return at_scene(
        graph,
        Fault.GPU_BEHIND,
        f"{reason}.",
        (*dict.fromkeys((*at, *scene)),),
        culprits=ranks,
        victims=victims_of(graph, graph.nodes_of(ranks), ranks),
        evidence=evidence | evidence_of(graph, (), scene),
    )


def _nobodys(graph: Graph, stuck: StuckCollective, *, timed_out: bool) -> Finding:
    """A standstill for which the records show no culprit."""
    waiting = wording.waiting(graph.index, stuck)
    if stuck.transfer is not None:
        kind, members = Fault.POINT_TO_POINT, stuck.inside
        reason = f"{waiting}: both are there and it does not end; the records cannot tell whose"
        reason += " fault."
    else:
        kind, members = Fault.TIMED_OUT if timed_out else Fault.STUCK_INSIDE, stuck.front
        ended = "all of them did" if timed_out else "none gets out"
        reason = (
            f"{waiting}, nobody is missing, and {ended}: a GPU or the network between them; the "
            "records cannot tell whose."
        )
    return at_scene(
        graph,
        kind,
        reason,
        (stuck,),
        sides=(*((rank,) for rank in members), *((stuck.done,) if stuck.done else ())),
        victims=victims_of(graph, (graph.front_node(graph.stuck.index(stuck)),), members),
        evidence=evidence_of(graph, (), (stuck,)),
    )


_FEW = 4
"""At most one in this many ranks is accused. Lower: a job that lost half its records accuses those
ranks. Higher: a dead host is reported as unknown."""


def _needs_silent(graph: Graph, stuck: StuckCollective) -> bool:
    """True if ranks without a record may be what this waits for.

    If a rank got out, which needs all ranks to be in, the silent were in, too. What gloo ended with
    an error looks completed (see `lost`).
    """
    if stuck.absent or not stuck.silent:
        return False
    ranks = graph.index.job.ranks
    through = any(ranks[rank].backend is Backend.NCCL for rank in stuck.done)
    return not (through and graph.index.op(stuck.row) in SYNCHRONISING)


def _members(graph: Graph, scene: Iterable[StuckCollective]) -> set[int]:
    """The ranks without a record that are known to be members of the stuck groups.

    Where members are not recorded, they are if all ranks with a record are members.
    """
    members, job = set[int](), graph.index.job
    for stuck in scene:
        recorded = set(job.groups[stuck.group].members)
        whole = len(recorded) > 1 and recorded >= job.ranks.keys()
        members.update(stuck.silent if whole else recorded.intersection(stuck.silent))
    return members


def _otherwise(graph: Graph) -> bool:
    """True if some ranks stand without waiting for a rank that left no record."""
    silent_nodes = set(graph.nodes_of(graph.index.job.silent))
    return any(silent_nodes.isdisjoint(nodes) for nodes in graph.roots)


def _why_silent(ranks: Sequence[int], *, few: bool, others: bool, sure: bool) -> str:
    """Why ranks without a record are accused, or not."""
    if others:
        return f"some ranks stand without waiting for {plural(ranks, 'it', 'them')}"
    if not few:
        return "too many are missing to tell which of them holds up the rest"
    if not sure:
        return f"nothing tells whether the others wait for {plural(ranks, 'it', 'them')}"
    return plural(ranks, "it is the only one", "they are the only ones") + " missing"


def silent(graph: Graph) -> Iterable[Finding]:
    """The silent ranks that others wait for, in one finding.

    A rank that cannot write its record is often the one that is dead or stopped, but a record may
    also be lost. So silent ranks are accused only if no existing record explains the wait, all that
    stand wait for them, and they are few. Of several, those are accused that are the only silent
    rank of a collective in which ranks are stuck first: what is queued behind it shows nothing.
    """
    scene = tuple(stuck for stuck in graph.stuck if stuck.front and _needs_silent(graph, stuck))
    if not scene:
        return
    job, first = graph.index.job, scene[0]
    others = _otherwise(graph)
    alone = {stuck.silent[0] for stuck in scene if len(stuck.silent) == 1}
    unclear = {r for stuck in scene if alone.isdisjoint(stuck.silent) for r in stuck.silent}
    accused = tuple(sorted(alone | unclear))
    few = not unclear and (len(accused) == 1 or _FEW * len(accused) <= len(job.expected))
    sure = few and not others and _members(graph, scene).issuperset(accused)
    why = _why_silent(accused, few=few, others=others, sure=sure)
    where = wording.waiting(graph.index, first)
    waiting_for = victims_of(graph, graph.nodes_of(accused), accused)
    yield at_scene(
        graph,
        Fault.SILENT,
        f"{wording.ranks_listed(job, accused)} left no record, and {why}: {where}.",
        scene,
        culprits=accused if sure else (),
        sides=((rank,) for rank in accused),
        victims=tuple(rank for rank in waiting_for if rank in job.ranks),
        evidence={
            wording.collective(graph.index, stuck): "without a record: "
            + wording.ranks_listed(job, stuck.silent)
            for stuck in scene[:4]
        },
    )


def analyse(job: Job) -> Analysis:
    """Name the culprits in a job's flight records, and the ranks that only wait for them.

    Linear in entries. Nobody is accused if sides tie, if the records do not show one moment (a
    running job), or if a rank without a record may be the reason. A note says if the accusation
    rests only on file dates: a copy's are later.
    """
    analysis = _analysis(job)
    by_date = [r for r, info in job.ranks.items() if info.alive is None and info.taken_ns != NONE]
    if not analysis.culprits or not by_date:
        return analysis
    undated = {rank: replace(job.ranks[rank], taken_ns=NONE) for rank in by_date}
    without_dates = _analysis(replace(job, ranks={**job.ranks, **undated}))
    if set(analysis.culprits) <= set(without_dates.culprits):
        return analysis
    note = (
        "That the calls stood is known from the files' dates alone: copies of a running job's "
        "records, dated when they were copied, can look like this."
    )
    return replace(analysis, notes=(note, *analysis.notes))


def _analysis(job: Job) -> Analysis:
    graph = build_graph(_index(job))
    calls = index_calls(job)
    pasts = RankPasts(job, calls)
    shared = shared_groups(job)
    differing = with_hanging(graph, calls, divergences(graph.index, calls, pasts))
    groups = shared.keys() | {divergence.group for divergence in differing}
    differing += silent_slips(graph.index, calls, pasts, groups)
    diverging = [divergence for divergence in differing if divergence.group not in shared]
    different = {rank for divergence in diverging for rank in divergence.culprits}
    roots = (*find_absent(graph, pasts, different), *inside(graph), *_inverted(graph, pasts))
    candidates = [root for root in roots if not explained(shared, root)]
    unexplained = list(_unexplained(graph, candidates, diverging))
    culprits = different.union(*(root.culprits for root in unexplained))
    still = [root for root in unexplained if settled(graph, root.scene, culprits)]
    if not still and not any(divergence.live for divergence in diverging):
        still += [
            root
            for root in silent(graph)
            if settled(graph, root.scene, ()) and not young(graph, root.scene)
        ]
    findings = [mismatch_finding(graph, calls, divergence) for divergence in diverging] + still
    findings += two_threads(graph, shared, differing, roots)
    findings += [] if findings else _overwritten(graph)
    return Analysis(
        findings=_sorted(findings),
        waits=tuple(_waits(graph)),
        notes=tuple(_notes(graph, skewed=len(still) < len(unexplained), accused=bool(findings))),
    )


def _index(job: Job) -> Index:
    """The index of a job, where what was left by a timeout counts as failed."""
    index = build_index(job)
    failed = timed_out(index)
    if not failed:
        return index
    state = job.columns["state"].copy()
    state[failed] = CollectiveState.FAILED
    return build_index(replace(job, columns={**job.columns, "state": state}))


def _unexplained(
    graph: Graph, roots: Iterable[Finding], diverging: Iterable[Divergence]
) -> Iterable[Finding]:
    """The roots that have lasted and that follow from no divergence."""
    of_group = grouped((divergence.group, divergence) for divergence in diverging)
    for root in roots:
        groups = {stuck.group for stuck in root.scene}
        near = (divergence for group in groups for divergence in of_group.get(group, ()))
        follows = any(_follows(graph, root, divergence) for divergence in near)
        if not follows and not young(graph, root.scene):
            yield root


def _inverted(graph: Graph, pasts: RankPasts) -> Iterable[Finding]:
    """Cycles, and ranks whose calls are in another order without a cycle; each rank once.

    If the stuck ranks tie, the ranks queued behind them may decide whose order is wrong.
    """
    circles = tuple(cycles(graph, pasts))
    named = {rank for root in circles for rank in root.culprits}
    queued = [finding for finding in orders(graph, pasts) if not named & set(finding.culprits)]
    decided = {rank for finding in queued for rank in finding.culprits}
    for root in circles:
        if root.culprits or not decided & root.tied:
            yield root
    yield from queued


def _follows(graph: Graph, root: Finding, divergence: Divergence) -> bool:
    """True if a root is only a consequence of a divergence.

    It is for ranks inside a collective that differs, or after one in a sequence that slipped. A
    rank that did not arrive at all is a separate fault, unless the slip left it a call behind or
    put those inside a call ahead. So is a rank whose GPU stopped elsewhere or did not even begin,
    and one whose order differs from that of ranks without a divergence.
    """
    if not any(divergence.explains(stuck.group, stuck.sequence) for stuck in root.scene):
        return False
    culprits, different = set(root.culprits), set(divergence.culprits)
    own = culprits <= different
    match root.kind:
        case Fault.GPU_BEHIND:
            here = (root.group, root.sequence) == (divergence.group, divergence.sequence)
            return here and (own or not culprits <= graph.unbegun)
        case Fault.NOT_ENTERED | Fault.NOT_ENQUEUING | Fault.EXTRA:
            ahead = all(different.issuperset(stuck.joined) for stuck in root.scene)
            return divergence.slipped and (ahead or (bool(culprits) and own))
        case Fault.ORDER_INVERSION:
            # if it is unknown who differs, it may be one of these, and the order its consequence
            return own or (not different and bool(culprits & divergence.involved))
        case _:
            return True


def _sorted(findings: list[Finding]) -> tuple[Finding, ...]:
    culprits = {rank for finding in findings for rank in finding.culprits}
    cleared = [
        replace(finding, victims=tuple(rank for rank in finding.victims if rank not in culprits))
        for finding in findings
    ]
    cleared.sort(
        key=lambda finding: (
            not finding.culprits,
            NONE if finding.group is None else finding.group,
            NONE if finding.sequence is None else finding.sequence,
            finding.kind,
            finding.culprits,
            finding.between,
        )
    )
    return tuple(cleared)


def _waits(graph: Graph) -> Iterable[RecordedWait]:
    """For each rank, the collective in which it is stuck first."""
    index, columns = graph.index, graph.index.job.columns
    stuck_at = {stuck.place: stuck for stuck in graph.stuck}
    for rank, rows in sorted(index.front.items()):
        places = [(row, at) for row in sorted(rows) if (at := index.place(row)) is not None]
        if not places:
            continue
        row, stuck = places[0][0], stuck_at[places[0][1]]
        yield RecordedWait(
            rank=rank,
            waits_for=stuck.holding,
            group=stuck.group,
            sequence=int(columns["seq"][row]),
            op=index.op(row),
            row=row,
            since_ns=int(columns["created_ns"][row]),
        )


def _notes(graph: Graph, *, skewed: bool, accused: bool) -> Iterable[str]:
    job = graph.index.job
    if accused and any(info.taken_ns == NONE for info in job.ranks.values()):
        yield (
            "Nobody says when the records were taken: those of a job that still runs, "
            "a call apart, can look like a hang."
        )
    unread = [rank for rank in job.silent if rank not in job.gaps]
    if unread:
        yield f"No record of {wording.ranks_listed(job, unread)}."
    if job.gaps:
        who = wording.ranks_listed(job, job.gaps).capitalize()
        left = plural(job.gaps, "it", "them")
        yield f"{who} left no dump: the numbers of the others' dumps leave {left} out."
    wrapped = [rank for rank, info in job.ranks.items() if info.dropped]
    if wrapped:
        older = wording.ranks_listed(job, wrapped)
        yield f"Older entries of {older} were overwritten in the buffer."
    if any(group.inferred or not group.members for group in job.groups):
        yield "The members of some groups are not recorded; those seen in them are taken for all."
    if skewed:
        later = sorted(ranks_moved_on(graph.index))
        whose = f": {wording.ranks_listed(job, later)} moved on after it" if later else ""
        yield f"The records do not show one moment{whose}. What only looks stuck is left out."
