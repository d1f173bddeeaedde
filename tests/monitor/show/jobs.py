"""Jobs and analyses made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from lightkeeper.monitor.records.findings import Analysis, Fault, Finding, RecordedWait
from lightkeeper.monitor.records.job import (
    COLUMNS,
    NONE,
    CollectiveState,
    Group,
    GroupStatus,
    Job,
    Payload,
    RankInfo,
)

DONE, OPEN = CollectiveState.COMPLETED, CollectiveState.SCHEDULED
EPOCH_NS = 1_758_580_156_000_000_000
REDUCE = Payload("all_reduce", "nccl:all_reduce", ((4,),), ((4,),), ("float32",), ("float32",))
GATHER = Payload("all_gather", "nccl:all_gather", ((4,),), ((16,),), ("float32",), ("float32",))
SEND = Payload("send", "nccl:send 0->1", ((4,),), ((4,),), ("float32",), ("float32",))
DP = Group("3", "dp", (0, 1, 2, 3))
PP = Group("4", "pp", (0, 2))


def entry(rank: int, seq: int, state: CollectiveState = DONE, **more: Any) -> dict[str, Any]:
    empty = dict.fromkeys(COLUMNS, NONE)
    made = {"group": 0, "payload": 0, "p2p": False, "created_ns": EPOCH_NS + seq * 10**6}
    return {**empty, **made, "rank": rank, "seq": seq, "record": seq, "state": state, **more}


def job_of(
    entries: Iterable[Mapping[str, Any]],
    *,
    ranks: Iterable[int] = range(4),
    expected: Iterable[int] | None = None,
    groups: tuple[Group, ...] = (DP, PP),
    status: Mapping[int, Mapping[int, GroupStatus]] | None = None,
    **more: Any,
) -> Job:
    rows = sorted(entries, key=lambda row: row["rank"])
    there = tuple(ranks)
    statuses = status or {}
    return Job(
        tuple(there if expected is None else expected),
        {
            rank: RankInfo(rank, status=statuses.get(rank, {}), path=f"dump_{rank}")
            for rank in there
        },
        groups,
        more.pop("payloads", (REDUCE, GATHER, SEND)),
        more.pop("sites", ("train.py:158 step", "train.py:160 step")),
        {name: np.array([row[name] for row in rows], kind) for name, kind in COLUMNS.items()},
        **more,
    )


def hang(**more: Any) -> tuple[Job, Analysis]:
    """Rank 1 of four did not come to all_reduce 12 of dp."""
    rows = [entry(rank, seq, site=0) for rank in range(4) for seq in (10, 11)]
    rows += [entry(rank, 12, OPEN, site=1) for rank in (0, 2, 3)]
    job = job_of(rows, status={1: {0: GroupStatus(11, 11, 11)}}, **more)
    stuck = [int(row) for row in np.flatnonzero(job.columns["seq"] == 12)]
    waits = tuple(
        RecordedWait(int(job.columns["rank"][row]), (1,), 0, 12, "all_reduce", row, EPOCH_NS)
        for row in stuck
    )
    finding = Finding(
        Fault.NOT_ENTERED,
        "Rank 1 never came to all_reduce 12 of dp; ranks 0, 2 and 3 wait for it.",
        (1,),
        victims=(0, 2, 3),
        group=0,
        sequence=12,
        op="all_reduce",
        evidence={"rank 1": "last enqueued 11, nothing unfinished"},
    )
    return job, Analysis((finding,), waits, ("Gloo does not record when collectives complete.",))


def tie(**more: Any) -> tuple[Job, Analysis]:
    """Two against two: all_reduce and all_gather at 12 of dp."""
    rows = [entry(rank, 12, OPEN, payload=int(rank > 1), site=int(rank > 1)) for rank in range(4)]
    job = job_of(rows, **more)
    ops = ("all_reduce", "all_reduce", "all_gather", "all_gather")
    others = tuple(tuple(r for r in range(4) if r != rank) for rank in range(4))
    waits = tuple(RecordedWait(rank, others[rank], 0, 12, ops[rank], rank) for rank in range(4))
    finding = Finding(
        Fault.MISMATCH,
        "At 12 of dp ranks 0 and 1 call all_reduce, ranks 2 and 3 all_gather: no majority.",
        between=((0, 1), (2, 3)),
        group=0,
        sequence=12,
    )
    return job, Analysis((finding,), waits)


def healthy() -> tuple[Job, Analysis]:
    return job_of(entry(rank, seq) for rank in range(4) for seq in range(5)), Analysis((), ())


def megatron(replicas: int) -> tuple[Job, Analysis]:
    """Tensor-parallel groups of 8 in one data-parallel world; rank 9's GPU is behind its peers.

    Its seven neighbours wait for it in their tensor-parallel group, all others in the world.
    """
    size = 8 * replicas
    near_groups = [Group(f"tp{i}", "tp", tuple(range(8 * i, 8 * i + 8))) for i in range(replicas)]
    groups = (Group("world", "world", tuple(range(size))), *near_groups)
    rows, waits = [], []
    for rank in range(size):
        mine = 1 + rank // 8
        near = mine == 2
        rows += [entry(rank, seq, group=mine) for seq in range(1, 6)]
        rows.append(entry(rank, 6, OPEN if near else DONE, group=mine, payload=1))
        rows += [entry(rank, seq, OPEN, group=0) for seq in (1, 2)]
        row = len(rows) - (3 if near else 2)
        if rank != 9:
            others = (9,) if near else tuple(range(8, 16))
            at = (mine, 6, "all_gather") if near else (0, 1, "all_reduce")
            waits.append(RecordedWait(rank, others, *at, row, EPOCH_NS))
    job = job_of(rows, ranks=range(size), groups=groups)
    finding = Finding(
        Fault.GPU_BEHIND,
        "The GPU of rank 9 stopped before its peers'.",
        (9,),
        victims=tuple(rank for rank in range(size) if rank != 9),
        group=2,
        sequence=6,
        op="all_gather",
    )
    return job, Analysis((finding,), tuple(waits))
