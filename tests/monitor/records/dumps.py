"""Dumps as torch writes them, small: what the tests of reading change here and there."""

from __future__ import annotations

import json
import pickle

CREATED = 1_758_581_237_000_000_000


def entry(record=0, seq=1, **changes):
    """One entry of NCCL's in schema 2.10."""
    row = {
        "record_id": record,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "thread_name": "python3",
        "thread_id": "23456244340032",
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": CREATED + record,
        "input_sizes": [[8, 4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[8, 4]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": CREATED + record + 1,
        "time_discovered_completed_ns": CREATED + record + 2,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }
    return row | changes


def pending(record=0, seq=1, **changes):
    """One that is not finished."""
    unset = {"time_discovered_started_ns": None, "time_discovered_completed_ns": None}
    return entry(record, seq, **({"state": "scheduled", "retired": False} | unset | changes))


def send(record, seq, name="nccl:send 0->1", **changes):
    """An unfinished send or receive."""
    return pending(record, 0, p2p_seq_id=seq, is_p2p=True, profiling_name=name, **changes)


def config(**groups):
    """`pg_config` of name -> (description, ranks)."""
    return {
        name: {"name": name, "desc": desc, "ranks": str(list(ranks))}
        for name, (desc, ranks) in groups.items()
    }


def status(**heads):
    """`pg_status` of pg_id -> (enqueued, started, completed); ids as `p0`."""
    keys = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    return {name[1:]: dict(zip(keys, head, strict=True)) for name, head in heads.items()}


def nccl(*entries, pg_config=None, pg_status=None, **changes):
    """A dump of NCCL's."""
    whole = {
        "version": "2.10",
        "comm_lib_version": "2.27.3",
        "pg_config": config(**{"0": ("default_pg", range(4))}) if pg_config is None else pg_config,
        "pg_status": status(p0=(1, 1, 1)) if pg_status is None else pg_status,
        "entries": list(entries),
    }
    return whole | changes


def gloo(*entries, **changes):
    """A dump of gloo's, which knows no members and no states."""
    rows = [
        row
        | {
            "process_group": ["0", "default_pg"],
            "profiling_name": row["profiling_name"].replace("nccl", "gloo"),
            "state": "scheduled",
            "time_discovered_started_ns": 0,
            "time_discovered_completed_ns": 0,
        }
        for row in entries
    ]
    whole = nccl(*rows, pg_config={"": {"name": "", "desc": "", "ranks": "[]"}})
    return whole | {"comm_lib_version": ""} | changes


def as_json(value):
    """Bytes as torch's JSON writes them: numbers of `pg_status` are texts."""
    heads = value.get("pg_status", {})
    texts = {
        pg_id: {key: str(number) for key, number in head.items()} for pg_id, head in heads.items()
    }
    return json.dumps(value | {"pg_status": texts}).encode()


def as_pickle(value, protocol=2):
    """Bytes as the watchdog writes them."""
    return pickle.dumps(value, protocol=protocol)
