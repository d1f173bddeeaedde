"""Large jobs' dumps for the benchmark, written rank by rank without simulating them.

All ranks run in step until one halts in the last step, before a collective of its tensor-parallel
group: its mates wait there, everybody else for one of them in a data-parallel group. With one
group only, all wait for the one that halted.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.corpus.records import EPOCH_NS, frames

TP = 8
BIG, SMALL = [8192, 1, 64], [1024, 1, 64]


ONE_GROUP, MEGATRON, THIRDS = "one group", "TP8 x DP", "TP8 x DP x world in equal parts"
MIXES = (ONE_GROUP, MEGATRON, THIRDS)


def _pattern(mix: str) -> list[tuple[str, str, list[int], list[int]]]:
    """A step: which group, which op, sizes in and out."""
    if mix == ONE_GROUP:
        return [("world", "all_reduce", [4096], [4096])] * 5
    if mix == THIRDS:
        return [(role, "all_reduce", [4096], [4096]) for role in ("tp", "dp", "world")]
    layer = [("tp", "_all_gather_base", SMALL, BIG), ("tp", "_reduce_scatter_base", BIG, SMALL)]
    bucket = ("dp", "all_reduce", [65536], [65536])
    return [*layer * 3, bucket, *layer * 3, bucket, ("world", "all_reduce", [1], [1])]


def _groups(rank: int, world: int, mix: str) -> dict[str, tuple[str, str, list[int]]]:
    """Role -> name, description, members."""
    groups = {"world": ("0", "default_pg", list(range(world)))}
    if mix != ONE_GROUP:
        first = rank // TP * TP
        tp, dp = str(1 + rank // TP), str(1 + world // TP + rank % TP)
        groups["tp"] = (tp, "TENSOR_MODEL_PARALLEL_GROUP", list(range(first, first + TP)))
        groups["dp"] = (dp, "DATA_PARALLEL_GROUP", list(range(rank % TP, world, TP)))
    return groups


def _last(rank: int, pattern: list[Any], count: int, culprit: int) -> int:
    """Which of its calls is a rank's last."""
    roles = [role for role, *_ in pattern]
    halt = (count // len(pattern) - 1) * len(pattern)
    if rank == culprit:
        return halt - 1
    if "dp" not in roles or rank // TP == culprit // TP:
        return halt
    # Everybody else finishes its tensor-parallel part and waits in the first bucket.
    return halt + roles.index("dp")


def _entries(rank: int, world: int, count: int, culprit: int, mix: str) -> Iterator[dict[str, Any]]:
    pattern, groups = _pattern(mix), _groups(rank, world, mix)
    stack = [frames(f"train.py:{100 + number} step") for number in range(len(pattern))]
    ids = {role: number for number, role in enumerate(groups)}
    seqs = dict.fromkeys(groups, 0)
    last = _last(rank, pattern, count, culprit)
    for number in range(last + 1):
        role, op, ins, outs = pattern[number % len(pattern)]
        seqs[role] += 1
        done = number < last or rank == culprit
        created = EPOCH_NS + number * 3_000_000 + rank * 1000
        yield {
            "frames": stack[number % len(pattern)],
            "record_id": number,
            "pg_id": ids[role],
            "process_group": groups[role][:2],
            "thread_name": "python",
            "thread_id": "140000000000000",
            "collective_seq_id": seqs[role],
            "p2p_seq_id": 0,
            "op_id": seqs[role],
            "profiling_name": f"nccl:{op}",
            "time_created_ns": created,
            "input_sizes": [ins],
            "input_dtypes": ["BFloat16"],
            "output_sizes": [outs],
            "output_dtypes": ["BFloat16"],
            "state": "completed" if done else "scheduled",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": created + 90_000_000 if done else None,
            "retired": done,
            "timeout_ms": 600_000,
            "is_p2p": False,
        }


def write_fleet(folder: Path, world: int, count: int, *, culprit: int, mix: str) -> None:
    """`world` pickles of about `count` entries each, as the watchdog writes them."""
    folder.mkdir(parents=True)
    for rank in range(world):
        entries = list(_entries(rank, world, count, culprit, mix))
        status: dict[str, dict[str, int]] = {}
        for entry in entries:
            heads = status.setdefault(str(entry["pg_id"]), {"last_completed_collective": -1})
            heads["last_enqueued_collective"] = entry["collective_seq_id"]
            heads["last_started_collective"] = -1
            if entry["retired"]:
                heads["last_completed_collective"] = entry["collective_seq_id"]
        groups = _groups(rank, world, mix).values()
        document = {
            "version": "2.10",
            "pg_config": {n: {"name": n, "desc": d, "ranks": str(m)} for n, d, m in groups},
            "comm_lib_version": "2.27.3",
            "pg_status": status,
            "entries": entries,
        }
        path = folder / f"nccl_trace_rank_{rank}"
        path.write_bytes(pickle.dumps(document, protocol=2))
