"""The way from a job's records to what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from monitor.analysis import graph as waiting
from monitor.analysis import index as indexing
from monitor.analysis import sequences, skew, slips, wholes, wording
from monitor.analysis.absent import absent
from monitor.analysis.behind import inside
from monitor.analysis.calls import calls_of
from monitor.analysis.cycles import cycles
from monitor.analysis.doubled import doubled
from monitor.analysis.finding import Analysis, Confidence, Fault, Finding, Wait
from monitor.analysis.graph import Graph
from monitor.analysis.lost import moved, timed_out
from monitor.analysis.mismatch import mismatch
from monitor.analysis.order import orders
from monitor.analysis.root import Root
from monitor.analysis.sequences import Divergence
from monitor.analysis.silent import silent
from monitor.analysis.witness import Witness
from monitor.flight_recorder.job import NONE, Job, State

_ORDER = (Confidence.CERTAIN, Confidence.LIKELY, Confidence.UNSURE)


def analyse(job: Job) -> Analysis:
    """Name the culprits of a job's flight records, and who only waits for them.

    Linear in entries. Nobody is accused where sides tie, where the records do not show one moment
    (a running job), or where a rank that nobody heard of may be the reason.
    """
    index = indexing.build(job)
    failed = timed_out(index)
    if failed:
        state = job.columns["state"].copy()
        state[failed] = State.FAILED
        index = indexing.build(replace(job, columns={**job.columns, "state": state}))
    graph = waiting.build(index)
    calls = calls_of(job)
    witness = Witness(job, calls)
    diverging = sequences.divergences(graph.index, calls, witness)
    diverging = (*diverging, *slips.slips(graph, calls, diverging))
    diverging = (*diverging, *wholes.wholes(graph, calls, diverging))
    different = {rank for one in diverging for rank in one.culprits}
    candidates = (
        *absent(graph, witness, different),
        *inside(graph),
        *_inverted(graph, witness),
        *doubled(graph, calls, witness),
    )
    found = [
        root
        for root in candidates
        if not any(_follows(graph, root, one) for one in diverging)
        and not skew.young(graph, root.scene)
    ]
    culprits = different | {rank for root in found for rank in root.finding.culprits}
    still = [root for root in found if skew.settled(graph, root.scene, culprits)]
    if not still and not any(one.live for one in diverging):
        still += [
            root
            for root in silent(graph)
            if skew.settled(graph, root.scene, ()) and not skew.young(graph, root.scene)
        ]
    findings = [mismatch(graph, one) for one in diverging] + [root.finding for root in still]
    return Analysis(
        findings=_sorted(findings),
        waits=tuple(_waits(graph)),
        notes=tuple(_notes(graph, skewed=len(still) < len(found), found=bool(findings))),
    )


def _inverted(graph: Graph, witness: Witness) -> Iterable[Root]:
    """Cycles, and ranks whose calls are in another order without one; each rank once.

    Where the stuck tie, those who queue behind them may have settled whose order is wrong.
    """
    known = tuple(cycles(graph, witness))
    named = {rank for root in known for rank in root.finding.culprits}
    queued = [one for one in orders(graph, witness) if not named & set(one.finding.culprits)]
    settled = {rank for one in queued for rank in one.finding.culprits}
    for root in known:
        if root.finding.culprits or not settled & {r for s in root.finding.between for r in s}:
            yield root
    yield from queued


def _follows(graph: Graph, root: Root, one: Divergence) -> bool:
    """Whether a root is only what a divergence leads to.

    Ranks inside a collective that differs, or after one in a sequence that slipped, are. A rank
    that did not come at all is a fault of its own, unless the slip left it a call behind or made
    those inside a call ahead; so is one whose GPU stopped elsewhere or did not even begin, and one
    that takes another order than ranks which do not differ.
    """
    if not any(one.explains(stuck.group, stuck.sequence) for stuck in root.scene):
        return False
    culprits = set(root.finding.culprits)
    own = bool(culprits) and culprits <= set(one.culprits)
    match root.finding.kind:
        case Fault.GPU_BEHIND:
            here = (root.finding.group, root.finding.sequence) == (one.group, one.sequence)
            return here and (own or not culprits <= graph.unbegun)
        case Fault.NOT_ENTERED | Fault.NOT_ENQUEUING | Fault.EXTRA:
            joined = {rank for stuck in root.scene for rank in stuck.joined}
            slipped = one.kind in (Fault.SKIPPED, Fault.EXTRA)
            return slipped and (own or joined <= set(one.culprits))
        case Fault.ORDER_INVERSION:
            # where nobody knows who differs, it may be one of these, and the order its consequence
            tied = set() if one.culprits else {rank for side in one.sides for rank in side}
            return not culprits or own or bool(culprits & tied)
        case _:
            return True


def _sorted(findings: list[Finding]) -> tuple[Finding, ...]:
    culprits = {rank for one in findings for rank in one.culprits}
    cleared = [
        replace(one, victims=tuple(rank for rank in one.victims if rank not in culprits))
        for one in findings
    ]
    cleared.sort(
        key=lambda one: (
            _ORDER.index(one.confidence),
            NONE if one.group is None else one.group,
            NONE if one.sequence is None else one.sequence,
            one.kind,
            one.culprits,
            one.between,
        )
    )
    return tuple(cleared)


def _waits(graph: Graph) -> Iterable[Wait]:
    """Of each rank, the collective in which it is stuck first."""
    columns = graph.index.job.columns
    by_rank: dict[int, tuple[int, waiting.Stuck]] = {}
    for one in graph.stuck:
        for rank in one.front:
            row = min(row for row in graph.index.front[rank] if columns["group"][row] == one.group)
            if rank not in by_rank or row < by_rank[rank][0]:
                by_rank[rank] = (row, one)
    for rank, (row, one) in sorted(by_rank.items()):
        yield Wait(
            rank=rank,
            waits_for=tuple(sorted({*one.absent, *one.held, *one.silent})),
            group=one.group,
            sequence=int(columns["seq"][row]),
            op=graph.index.op(row),
            row=row,
            since_ns=int(columns["created_ns"][row]),
        )


def _notes(graph: Graph, *, skewed: bool, found: bool) -> Iterable[str]:
    job = graph.index.job
    if found and any(info.taken_ns == NONE for info in job.ranks.values()):
        yield (
            "Nobody says when the records were taken: those of a job that still runs, "
            "a call apart, can look like a hang."
        )
    unread = [rank for rank in job.silent if rank not in job.gaps]
    if unread:
        yield f"No record of {wording.ranks(job, unread)}."
    if job.gaps:
        who = wording.ranks(job, job.gaps).capitalize()
        left = wording.verb(job.gaps, "it", "them")
        yield f"{who} left no dump: the numbers of the others' dumps leave {left} out."
    wrapped = [rank for rank, info in job.ranks.items() if info.dropped]
    if wrapped:
        yield f"Older entries of {wording.ranks(job, wrapped)} were overwritten in the buffer."
    if any(group.inferred or not group.members for group in job.groups):
        yield "The members of some groups are not recorded; those seen in them are taken for all."
    if skewed:
        later = sorted(moved(graph.index))
        whose = f": {wording.ranks(job, later)} moved on after it" if later else ""
        yield f"The records do not show one moment{whose}. What only looks stuck is left out."
