"""Collectives that hang with everybody inside, because their numbers do not fit together.

No two members of an all_to_all or a gather have to give the same, so nothing differs between them;
only the whole does not add up, or has two roots. Whose number is wrong nobody can tell. Asked only
of what hangs: NCCL records the first tensor only of an all_to_all of lists, and that one completes.
"""

from __future__ import annotations

from collections.abc import Iterable

from monitor.analysis.calls import Calls
from monitor.analysis.finding import Fault
from monitor.analysis.graph import Graph, Stuck
from monitor.analysis.sequences import Divergence
from monitor.flight_recorder.semantics import disagree

_WHOLE = frozenset({"all_to_all", "gather", "scatter"})


def wholes(graph: Graph, calls: Calls, known: Iterable[Divergence]) -> tuple[Divergence, ...]:
    """Those that do not add up, in groups where nothing else differs."""
    told = {one.group for one in known}
    found = (
        _whole(graph, calls, stuck)
        for stuck in graph.stuck
        if stuck.transfer is None
        and stuck.group not in told
        and graph.index.op(stuck.row) in _WHOLE
        and not stuck.absent
        and not stuck.silent
    )
    return tuple(one for one in found if one is not None)


def _whole(graph: Graph, calls: Calls, stuck: Stuck) -> Divergence | None:
    job = graph.index.job
    begin, end = calls.place[stuck.group]
    here = slice(
        begin + int(calls.sequence[begin:end].searchsorted(stuck.sequence)),
        begin + int(calls.sequence[begin:end].searchsorted(stuck.sequence, side="right")),
    )
    rows = dict(zip(calls.rank[here].tolist(), calls.row[here].tolist(), strict=True))
    payloads = {rank: job.payloads[int(job.columns["payload"][row])] for rank, row in rows.items()}
    sides = disagree(payloads, len(job.groups[stuck.group].members))
    if not sides:
        return None
    return Divergence(
        kind=Fault.MISMATCH,
        group=stuck.group,
        sequence=stuck.sequence,
        sides=tuple(side.ranks for side in sides),
        rows=tuple(rows[side.ranks[0]] for side in sides),
        said=tuple(str(side.signature) for side in sides),
        culprits=(),
        live=True,
    )
