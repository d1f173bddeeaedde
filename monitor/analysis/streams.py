"""Which entries are unfinished, and where each stream is stuck. Vectorised over all entries.

Theory of operation. A stream is one communicator of one rank: collectives of a group, or the
transfers between two ranks in it. Within a stream the GPU works in order, across streams it does
not, and the CPU runs ahead of both. So a stream is stuck in its first unfinished entry (its head),
and a rank is stuck in the first head in the order in which it called them (its front).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor.flight_recorder.job import NONE, Backend, Job, State
from monitor.flight_recorder.ops import closes_coalesced

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def live(job: Job) -> Bools:
    """Unfinished rows, and failed ones after which the rank finished nothing in that group.

    A rank that got over a failure is not stuck in it.
    """
    state = job.columns["state"]
    unfinished = np.isin(state, (State.UNKNOWN, State.SCHEDULED, State.STARTED))
    unfinished &= ~(_counted_out(job) | _parts_of_the_past(job))
    failed = np.flatnonzero(state == State.FAILED)
    if len(failed):
        done = np.flatnonzero(state == State.COMPLETED)
        last = dict(zip(pairs(job, done).tolist(), done.tolist(), strict=True))
        keys = pairs(job, failed).tolist()
        unfinished[
            [r for r, k in zip(failed.tolist(), keys, strict=True) if r > last.get(k, -1)]
        ] = 1
    return np.asarray(unfinished, dtype=np.bool_)


def _counted_out(job: Job) -> Bools:
    """Transfers that are over by their group's counter.

    NCCL's parts of a batch never finish in a record, and of a finished batch a partial one keeps
    nothing else. In a group of two all transfers are one stream, which works in order.
    """
    columns = job.columns
    over = np.zeros(len(job), dtype=np.bool_)
    pairs = [number for number, group in enumerate(job.groups) if len(group.members) == 2]
    chosen = np.flatnonzero(columns["p2p"] & np.isin(columns["group"], pairs))
    for row in chosen.tolist():
        info = job.ranks[int(columns["rank"][row])]
        status = info.status.get(int(columns["group"][row]))
        if status is not None and info.only_active and info.backend is Backend.NCCL:
            over[row] = columns["seq"][row] <= status.completed
    return over


def _parts_of_the_past(job: Job) -> Bools:
    """Parts of batches that are over, in records of unfinished entries only.

    The whole of a batch ends its parts and has their state (`closes_coalesced`), so where groups of
    one kind batch, parts without their whole belong to batches that were left out as completed.
    A batch works in order: not those after a whole that is unfinished.
    """
    columns = job.columns
    over = np.zeros(len(job), dtype=np.bool_)
    whole = np.array([closes_coalesced(p.recorded) for p in job.payloads], dtype=np.bool_)
    if not len(job) or not (whole[columns["payload"]] & columns["p2p"]).any():
        return over
    whole = whole[columns["payload"]] & columns["p2p"]
    kinds = [group.desc or group.name for group in job.groups]
    batching = {kinds[group] for group in np.unique(columns["group"][whole]).tolist()}
    known = np.array([kind in batching for kind in kinds], dtype=np.bool_)
    partial = [r for r, i in job.ranks.items() if i.only_active and i.backend is Backend.NCCL]
    parts = columns["p2p"] & ~whole & known[columns["group"]]
    parts &= np.isin(columns["rank"], partial) & (columns["state"] == State.SCHEDULED)
    ends: dict[int, int] = {}
    wholes = np.flatnonzero(whole)
    for key, seq in zip(pairs(job, wholes).tolist(), columns["seq"][wholes].tolist(), strict=True):
        ends[key] = min(seq, ends.get(key, seq))
    rows = np.flatnonzero(parts)
    for row, key in zip(rows.tolist(), pairs(job, rows).tolist(), strict=True):
        over[row] = key not in ends or columns["seq"][row] < ends[key]
    return over


def generations(job: Job) -> tuple[frozenset[int], Bools]:
    """Groups that were left behind, and by row whether its rank had not left its group.

    With every quorum TorchFT makes a group anew and its sequence starts again; entries of the old
    one stay in the record for ever, whatever became of them.
    """
    generation = np.array([NONE if g.generation is None else g.generation for g in job.groups])
    current = np.ones(len(job), dtype=np.bool_)
    if not len(job) or not (generation != NONE).any():
        return frozenset(), current
    rank, own = job.columns["rank"], generation[job.columns["group"]]
    newest = np.full(int(rank.max()) + 1, NONE)
    np.maximum.at(newest, rank, own)
    current = (own == NONE) | (own == newest[rank])
    latest = int(generation.max())
    return frozenset(np.flatnonzero((generation != NONE) & (generation < latest)).tolist()), current


def collective_heads(job: Job, chosen: Bools) -> dict[tuple[int, int], int]:
    """(rank, group) -> row of its lowest unfinished sequence."""
    rows = np.flatnonzero(chosen)
    keys = pairs(job, rows)
    order = np.lexsort((rows, job.columns["seq"][rows], keys))
    keys, rows = keys[order], rows[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return {
        divmod(int(key), len(job.groups)): int(row)
        for key, row in zip(keys[starts], rows[starts], strict=True)
    }


def firsts(job: Job, chosen: Bools) -> list[int]:
    """Of each rank in each group the first of the chosen rows."""
    rows = np.flatnonzero(chosen)
    return rows[np.unique(pairs(job, rows), return_index=True)[1]].tolist()  # type: ignore[no-any-return]


def transfer_heads(job: Job, chosen: Bools) -> list[int]:
    """Rows of the first unfinished send and the first unfinished recv of each pair and group."""
    found: dict[tuple[int, int, int, str], int] = {}
    columns = job.columns
    for row in np.flatnonzero(chosen).tolist():
        op = job.payloads[int(columns["payload"][row])].op
        key = (int(columns["rank"][row]), int(columns["group"][row]), int(columns["peer"][row]), op)
        found.setdefault(key, row)
    return list(found.values())


def front_of(job: Job, heads: list[int]) -> tuple[int, ...]:
    """The first head, with the other parts of a coalesced transfer that it belongs to."""
    columns, first = job.columns, heads[0]
    if not columns["p2p"][first] or columns["op_id"][first] == NONE:
        return (first,)
    same = ("group", "op_id", "p2p")
    return tuple(r for r in heads if all(columns[c][r] == columns[c][first] for c in same))


def highest(job: Job, chosen: Bools) -> dict[tuple[int, int], int]:
    """(rank, group) -> highest sequence among the chosen rows."""
    rows = np.flatnonzero(chosen)
    keys = pairs(job, rows)
    order = np.argsort(keys, kind="stable")
    keys, seqs = keys[order], job.columns["seq"][rows[order]]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    highest = np.maximum.reduceat(seqs, starts) if len(starts) else seqs
    return {
        divmod(int(key), len(job.groups)): int(seq)
        for key, seq in zip(keys[starts], highest, strict=True)
    }


def pairs(job: Job, rows: NDArray[Any]) -> Ints:
    """(rank, group) of each row, as one number."""
    rank = job.columns["rank"][rows].astype(np.int64)
    return np.asarray(rank * len(job.groups) + job.columns["group"][rows], dtype=np.int64)
