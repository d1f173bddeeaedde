"""WorkerServers' answers name whom torch's dumps name, whatever their rings have forgotten.

A ring keeps fewer calls than torch's record, and tells of them what torch does not: root, reduce op
and, where there are no frames, the call site. Ranks that make different numbers of calls forget
different ones, so that the same call is told in two ways.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import replace
from typing import Any

import pytest

from lightkeeper.monitor.records import dump, ring
from lightkeeper.monitor.records.analyse import analyse
from lightkeeper.monitor.records.dump import Record, assemble
from lightkeeper.monitor.records.ring import RankRecord, from_answers
from lightkeeper.worker_server.wire import parse_flight_record
from tests.corpus.cases import Case, Labelled
from tests.corpus.records import EPOCH_NS
from tests.deep import crossed
from tests.monitor.records.answers import answer, call

FAULTS = (
    ("healthy", "wrapped"), ("not_entered", "wrapped"), ("not_entered", "full"),
    ("most_absent", "full"), ("gpu_hang", "full"), ("skipped", "full"), ("wrong_size", "full"),
)  # fmt: skip
"""Kind, and what dumps hold."""
ROOTED = ("broadcast", "reduce", "gather", "scatter")
REDUCING = ("all_reduce", "reduce", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced")
OF_PYTHON = {"_all_gather_base": "all_gather_into_tensor", "all_reduce_barrier": "barrier",
             "_reduce_scatter_base": "reduce_scatter_tensor"}  # fmt: skip


def group_of(name: str, desc: str) -> str:
    return "default" if desc == "default_pg" else desc or name


def site_of(row: dict[str, Any]) -> str:
    for frame in row.get("frames", ()):
        if frame["filename"].startswith("/job/src/"):
            return f"{frame['filename'].rpartition('/')[2]}:{frame['line']}"
    return "train.py:1"


def ring_call(row: dict[str, Any], number: int, taken_ns: int) -> dict[str, Any]:
    """The ring's entry of a call that torch recorded, left at once: it is asynchronous."""
    op, age_s = row["profiling_name"].partition(":")[2], (taken_ns - row["time_created_ns"]) / 1e9
    return call(
        number, row["collective_seq_id"], group=group_of(*row["process_group"]),
        op=OF_PYTHON.get(op, op), sizes_in=row["input_sizes"], sizes_out=row["output_sizes"],
        dtype=next(iter(row["input_dtypes"]), None), root=0 if op in ROOTED else None,
        reduce_op="SUM" if op in REDUCING else None, site=site_of(row), is_async=True,
        torch_ids=[row["record_id"]], enter_age_s=max(0.0, age_s), exit_age_s=0.0,
    )  # fmt: skip


def answers(labelled: Labelled, kept: random.Random, *, frames: bool) -> list[RankRecord]:
    """The same records as answers, each ring with a number of calls of its own."""
    records = []
    for rank, document, at in labelled.documents:
        taken_ns = EPOCH_NS + int(at * 1e6)
        calls = [ring_call(row, n, taken_ns) for n, row in enumerate(document["entries"], 1)]
        some = calls[-kept.choice([8, 16, 24]) :]
        members = {
            group_of(team.name, team.desc): list(team.members)
            for team in labelled.run.programs.teams
            if rank in team.members
        }
        torch = document if frames else {**document, "entries": [
            {key: value for key, value in row.items() if key != "frames"}
            for row in document["entries"]
        ]}  # fmt: skip
        ring_answer = answer(*some, rank=rank, size=labelled.world, torch=torch, members=members,
                      dropped=len(calls) - len(some))  # fmt: skip
        records.append(ring.read_answer(parse_flight_record(ring_answer), taken_ns=taken_ns))
    return records


def culprits_of_dumps(labelled: Labelled) -> tuple[int, ...]:
    records = [Record(rank, dump.read_dump(document)) for rank, document, _ in labelled.documents]
    job = assemble(records, world_size=labelled.world)
    taken_ns = {rank: EPOCH_NS + int(at * 1e6) for rank, _, at in labelled.documents}
    infos = {rank: replace(info, taken_ns=taken_ns[rank]) for rank, info in job.ranks.items()}
    return analyse(replace(job, ranks=infos)).culprits


@pytest.mark.integration  # no processes, but 2 s of CPU
@pytest.mark.parametrize(
    ("fault", "layout", "frames"),
    crossed(FAULTS, ["DP", "TPxDP", "HSDP", "EP"], [True, False], times=2),
)
def test_the_culprits_are_those_of_the_dumps(fault, layout, frames) -> None:
    kind, dumps = fault
    case = Case(kind, layout, dumps, blocking=True)
    labelled = case.build()
    if labelled is None:
        pytest.skip("such a job has no place for such a fault")
    kept = random.Random(zlib.crc32(case.name.encode()))
    analysis = analyse(from_answers(answers(labelled, kept, frames=frames)))
    assert analysis.culprits == culprits_of_dumps(labelled)
