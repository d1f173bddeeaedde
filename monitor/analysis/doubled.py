"""A call made twice at the end, while another fault holds up everybody.

Theory of operation. `absent` finds a call too many by those who wait in it for ranks that are done.
Where the GPUs are stuck before it nobody waits in it yet, and only the queues tell: most members
called nothing after this call, and one made the same call again, which it never did at this place.
A rank that simply got further would call what comes next, and go on from there; so only the same
call counts, as the last one of all.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from monitor.analysis import wording
from monitor.analysis.behind import lasting
from monitor.analysis.calls import Calls
from monitor.analysis.finding import Confidence, Fault, Finding
from monitor.analysis.graph import Graph, Stuck
from monitor.analysis.habit import Habit
from monitor.analysis.root import Root, evidence_of
from monitor.analysis.witness import Witness


def doubled(graph: Graph, calls: Calls, witness: Witness) -> Iterable[Root]:
    """Ranks that called once more what their peers called last."""
    last = _last_rows(graph)
    for one in graph.stuck:
        if one.transfer is None and not one.silent and lasting(graph, one):
            yield from _of(graph, calls, witness, one, last)


def _last_rows(graph: Graph) -> dict[int, int]:
    """The row of the last call of each rank."""
    ranks = graph.index.job.columns["rank"]
    ends = np.flatnonzero(np.diff(ranks, append=-1))
    return dict(zip(ranks[ends].tolist(), ends.tolist(), strict=True))


def _of(
    graph: Graph, calls: Calls, witness: Witness, one: Stuck, last: dict[int, int]
) -> Iterable[Root]:
    at = graph.index.groups[one.group]
    top = int(at.enqueued.max())
    ahead = at.members[at.enqueued == top].tolist()
    most = at.members[at.enqueued == top - 1].tolist()
    if 2 * len(most) <= len(at.members) or top <= one.sequence:
        return
    if not all(_ends_in(graph, one.group, last.get(rank)) for rank in (*ahead, *most)):
        return
    rows = [last[rank] for rank in ahead]
    same = all(_same(graph, calls, row - 1, row) for row in rows)
    if same and witness.of(rows) is Habit.UNUSUAL:
        yield _root(graph, one, tuple(ahead), tuple(most), rows[0])


def _ends_in(graph: Graph, group: int, row: int | None) -> bool:
    """Whether a rank's last call is a collective of that group."""
    columns = graph.index.job.columns
    return row is not None and columns["group"][row] == group and not columns["p2p"][row]


def _same(graph: Graph, calls: Calls, before: int, row: int) -> bool:
    """Whether two calls in a row of one rank are the same."""
    columns = graph.index.job.columns
    if before < 0 or any(columns[name][before] != columns[name][row] for name in ("rank", "group")):
        return False
    return bool(calls.by_row[before] == calls.by_row[row])


def _root(
    graph: Graph, one: Stuck, ahead: tuple[int, ...], most: tuple[int, ...], row: int
) -> Root:
    index, job = graph.index, graph.index.job
    sequence = int(job.columns["seq"][row])
    op, label = index.op(row), job.groups[one.group].label
    reason = (
        f"{wording.ranks(job, ahead)} called {op} {sequence - 1} of {label} once more"
        f"{wording.site(index, row)}, as never at this place before: one call too many. Nothing "
        f"after it was called by {wording.ranks(job, most)}."
    )
    return Root(
        Finding(
            kind=Fault.EXTRA,
            confidence=Confidence.LIKELY,
            reason=reason,
            culprits=ahead,
            group=one.group,
            sequence=sequence,
            op=op,
            evidence=evidence_of(graph, ahead, (one,)),
        ),
        (one,),
    )
