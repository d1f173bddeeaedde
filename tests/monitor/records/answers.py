"""Answers of WorkerServers (`GET /v1/flight_recorder`), small."""

from __future__ import annotations

from tests.monitor.records.dumps import entry as completed
from tests.monitor.records.dumps import gloo


def call(number=1, seq=1, **changes):
    """One call in the ring."""
    row = {
        "group": "default",
        "seq": seq,
        "op": "all_reduce",
        "sizes_in": [[8, 4]],
        "sizes_out": [[8, 4]],
        "dtype": "float32",
        "reduce_op": "SUM",
        "root": None,
        "step": 3,
        "attempt": 3,
        "nth": seq - 1,
        "site": "train.py:12",
        "enter_age_s": 10.0 - number,
        "exit_age_s": 9.5 - number,
        "error": None,
        "is_async": False,
        "id": number,
        "torch_ids": [],
        "quorum": None,
    }
    return row | changes


def answer(*ring, group="rg_0", rank=0, size=2, torch=..., **changes):
    """One rank's answer, as JSON is parsed."""
    if not ring:
        ring = (
            call(1, 1, torch_ids=[0]),
            call(2, 1, group="torchft", quorum=5),
            call(3, 2, op="send", root=1, exit_age_s=None),
        )
    if torch is ...:
        torch = gloo(completed(0, 1), completed(1, 2))
    whole = {
        "schema": 1,
        "identity": {
            "job": "job",
            "group": group,
            "group_rank": rank,
            "world_size": size,
            "host": f"host-{group}",
            "pid": 7,
            "incarnation": "one",
        },
        "alive": True,
        "members": {"default": list(range(min(size, 8)))},
        "ring": list(ring),
        "dropped": 0,
        "torch": torch,
        "torch_only": [],
    }
    return whole | changes
