"""The generated dumps have torch's exact schema, and the model behaves as jobs do."""

from __future__ import annotations

import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from tests.corpus.cases import Case, Labelled
from tests.corpus.programs import Shape, programs
from tests.corpus.records import Recorder, as_json, dump
from tests.corpus.simulate import Simulation

REAL = Path(__file__).parents[2] / "../shared/data/flight_recorder_nccl/gpu_error_2nd/_dump_9"


def simulated(layout: str = "TPxPPxDP", **how: Any) -> dict[str, Any]:
    job = programs(Shape(layout), random.Random(1))
    run = Simulation(job, random.Random(2), blocking=False, gloo="backend" in how, eager=True).run()
    return dump(run, 1, run.last / 2, Recorder(**how))


def built(kind: str, layout: str, dumps: str = "full", **how: Any) -> Labelled:
    labelled = Case(kind, layout, dumps, **{"blocking": False} | how).build()
    assert labelled is not None
    return labelled


def outline(value: Any) -> Any:
    """Types and keys of a document, in order, without its values."""
    if isinstance(value, dict):
        return [(k if isinstance(v, str) or not k.isdigit() else 0, outline(v))
                for k, v in value.items()]  # fmt: skip
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [outline(item) for item in value[:1]]
    return type(value).__name__


def unordered(document: dict[str, Any]) -> dict[str, Any]:
    """One entry and one group instead of many."""
    short = dict(document)
    short["entries"] = [next(e for e in document["entries"] if not e["is_p2p"])]
    for key in ("pg_config", "pg_status"):
        short[key] = {"0": next(iter(document[key].values()))}
    return short


def last(document: dict[str, Any]) -> dict[str, Any]:
    """Only the last entry: the recorder is the process's, which may have run other tests."""
    return {**document, "entries": document["entries"][-1:]}


def test_an_nccl_dump_has_the_keys_and_types_of_a_real_one_in_their_order() -> None:
    path = REAL if REAL.exists() else Path("/work/shared/data") / Path(*REAL.parts[-3:])
    if not path.exists():
        pytest.skip("../shared/data is not here")
    real = pickle.loads(path.read_bytes())
    ours = simulated(version="2.9", frames=False, only_active=True)
    assert outline(unordered(ours)) == outline(unordered(real))


@pytest.mark.integration  # torch
def test_a_gloo_dump_has_the_keys_and_types_that_this_torch_writes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch._C import _distributed_c10d as c10d

    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    group = torch.distributed.ProcessGroupGloo(store, 0, 1)
    group.allreduce([torch.ones(4)]).wait()
    real = last(pickle.loads(c10d._dump_fr_trace(True, False, False)))
    ours = simulated("DP", backend="gloo", frames=False)
    assert outline(unordered(ours)) == outline(unordered(real))
    text = last(json.loads(c10d._dump_fr_trace_json(True, False)))
    text.pop("nccl_comm_state", None)
    assert outline(unordered(json.loads(as_json(ours)))) == outline(unordered(text))


def test_a_healthy_job_finishes_everything() -> None:
    for layout in ("DP", "TPxDP", "TPxPPxDP", "FSDP", "HSDP", "EP"):
        for blocking in (False, True):
            job = programs(Shape(layout, steps=3), random.Random(3))
            run = Simulation(job, random.Random(4), blocking=blocking, gloo=False, eager=True).run()
            assert all(e.kernel.is_done for rows in run.entries.values() for e in rows)


def test_a_cpu_that_does_not_wait_runs_ahead_of_its_gpu() -> None:
    job = programs(Shape("TPxDP", steps=4, sync_every=2), random.Random(5))
    ahead = Simulation(job, random.Random(6), blocking=False, gloo=False, eager=False).run()
    waits = Simulation(job, random.Random(6), blocking=True, gloo=False, eager=False).run()

    def unfinished(run: Any) -> int:
        at = run.last * 0.4
        return sum(e.created <= at < e.kernel.done for e in run.entries[0])

    assert unfinished(ahead) > 5
    assert unfinished(waits) <= 1


def test_one_name_gives_the_same_dumps_every_time(tmp_path: Path) -> None:
    for folder in ("1", "2"):
        built("gpu_error", "TPxDP", faults=2).write(tmp_path / folder)
    names = sorted(os.listdir(tmp_path / "1"))
    assert names == sorted(os.listdir(tmp_path / "2"))
    for name in names:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_a_halted_cpu_launches_nothing_more() -> None:
    for layout in ("TPxDP", "HSDP", "TPxPPxDP"):
        labelled = built("not_entered", layout)
        (culprit,) = labelled.truth.must
        calls = {rank: len(rows) for rank, rows in labelled.run.entries.items()}
        assert calls[culprit] < max(calls.values())


def test_a_rank_that_does_not_come_has_nothing_pending_and_all_others_wait() -> None:
    labelled = built("not_entered", "DP", blocking=True)
    (culprit,) = labelled.truth.must
    for rank, document, _ in labelled.documents:
        pending = [e for e in document["entries"] if e["state"] != "completed"]
        assert bool(pending) == (rank != culprit)


def test_what_a_failed_gpu_completed_last_is_not_found_by_its_watchdog() -> None:
    labelled = built("gpu_error", "TPxDP")
    (culprit,) = labelled.truth.must
    done = {
        rank: sum(e["state"] == "completed" for e in document["entries"])
        for rank, document, _ in labelled.documents
    }
    assert done[culprit] < min(count for rank, count in done.items() if rank != culprit)


def test_no_record_pins_a_failed_link_on_a_rank() -> None:
    labelled = built("stuck_inside", "TPxDP", "partial")
    assert not labelled.truth.must
    assert not labelled.truth.may


def test_a_rank_that_another_fault_kept_from_its_own_is_labelled_no_culprit() -> None:
    labelled = built("most_absent", "TPxPPxDP", blocking=True, faults=2)
    told_to = {rank for fault in labelled.faults for rank in fault.culprits}
    never_came = told_to - labelled.run.halted.keys() - {0}
    assert 1 in never_came
    assert labelled.truth.must <= labelled.run.halted.keys()
    assert not never_came & (labelled.truth.must | labelled.truth.may)


def test_idle_ranks_with_equal_records_have_equal_labels() -> None:
    labelled = built("most_absent", "DP", "partial", blocking=True, faults=2)
    idle = {rank for rank, document, _ in labelled.documents if not document["entries"]}
    assert len(idle) == 7
    assert (labelled.truth.must, labelled.truth.may) == (frozenset(), idle)
