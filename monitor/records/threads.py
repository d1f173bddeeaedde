"""One process group that two threads of a rank use in no fixed order.

Theory of operation. The members of a group must make the same calls in the same order, and nothing
orders two threads. So where two threads of a rank take turns in one group, every difference there
follows from that, and nobody is accused; a group of its own for one of the threads mends it. A
group that one thread hands over to another once has an order, and so has one whose second thread
runs autograd's hooks while the first one waits for them (they are not recorded as others).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

import numpy as np

from lightkeeper.monitor.model.units import grouped
from lightkeeper.monitor.model.wording import listed, plural
from lightkeeper.monitor.records import findings as wording
from lightkeeper.monitor.records.divergence import Divergence
from lightkeeper.monitor.records.findings import Fault, Finding
from lightkeeper.monitor.records.job import NONE, CollectiveState, Job
from lightkeeper.monitor.records.waits import Graph, Index, Ints, by_stream, young

_EXPLAINED = frozenset({Fault.ORDER_INVERSION, Fault.EXTRA, Fault.SKIPPED, Fault.STUCK_INSIDE})
"""Faults of a shared group that follow from its threads, as does any that accuses nobody."""


Shared = Mapping[int, tuple[int, ...]]
"""A group that several threads of a rank use in turns: rank -> the row of the latest call of each
of its threads, in call order."""


def shared_groups(job: Job) -> dict[int, Shared]:
    """The groups in which calls of two threads alternate or overlap, by index."""
    columns = job.columns
    rows = np.flatnonzero(~columns["p2p"] & (columns["thread"] != NONE))
    calls: dict[int, dict[int, tuple[int, ...]]] = {}
    for (rank, group), own in by_stream(job, rows).items():
        threads = columns["thread"][own]
        turns = np.flatnonzero(np.diff(threads)) + 1
        if len(turns) > 1 or (len(turns) and _overlaps(job, own, int(turns[0]))):
            last = {int(thread): int(row) for thread, row in zip(threads, own, strict=True)}
            calls.setdefault(group, {})[rank] = tuple(sorted(last.values()))
    return dict(sorted(calls.items()))


def _overlaps(job: Job, rows: Ints, turn: int) -> bool:
    """True if the first thread was still inside its last call when the second one called."""
    state, left_ns = (job.columns[name][rows[turn - 1]] for name in ("state", "completed_ns"))
    called_ns = job.columns["created_ns"][rows[turn]]
    if state != CollectiveState.COMPLETED:
        return True
    return bool(NONE not in (left_ns, called_ns) and left_ns > called_ns)


def explained(shared: Collection[int], finding: Finding) -> bool:
    """True if a fault follows from the threads of one of these groups."""
    here = any(stuck.group in shared for stuck in finding.scene) or finding.group in shared
    return here and (finding.kind in _EXPLAINED or not finding.culprits)


def two_threads(
    graph: Graph,
    shared: Mapping[int, Shared],
    divergences: Sequence[Divergence],
    roots: Sequence[Finding],
) -> Iterable[Finding]:
    """One finding for each shared group in which calls differ or hang, in place of all that."""
    for number, calls in shared.items():
        here = [divergence for divergence in divergences if divergence.group == number]
        hanging = [root for root in roots if explained({number}, root)]
        if here or any(not young(graph, root.scene) for root in hanging):
            sides = (*(d.involved for d in here), *(root.tied for root in hanging))
            yield _finding(graph, number, calls, set(calls).union(*sides))


def _finding(graph: Graph, group: int, calls: Shared, involved: Collection[int]) -> Finding:
    index, job = graph.index, graph.index.job
    shown = [(rank, rows[-3:]) for rank, rows in islice(calls.items(), 4)]
    ranks = grouped(
        (listed(sorted({_call(index, row) for row in rows})), job.name(rank))
        for rank, rows in shown
    )
    said = [f"in {listed(names)} they call {text}" for text, names in ranks.items()]
    label = job.groups[group].label
    threads = plural(calls, "of the rank", "of each of these ranks")
    stuck = graph.collectives.get(group, ())
    waiting = graph.reaching(graph.front_node(number) for number in stuck)
    latest = max(rows[-1] for rows in calls.values())
    return Finding(
        kind=Fault.TWO_THREADS,
        reason=f"two threads use {label} in no fixed order: {'; '.join(said)}. Their calls meet "
        f"those of peers in whatever order the threads {threads} happen to run: it is the "
        "program, and no rank. Give one of the threads a process group of its own (new_group).",
        victims=tuple(sorted({*waiting, *involved})),
        group=group,
        sequence=int(job.columns["seq"][latest]),
        op=index.op(latest),
        evidence={
            f"rank {job.name(rank)}, thread {int(job.columns['thread'][row])}": _call(index, row)
            for rank, rows in shown
            for row in rows
        },
        scene=tuple(graph.stuck[number] for number in stuck),
    )


def _call(index: Index, row: int) -> str:
    return f"{index.op(row)}{wording.spot(index, row)}"
