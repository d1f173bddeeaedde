"""Real gloo ranks in trouble: the analysis says what their records can show, and no more."""

import json

import numpy as np
import pytest

from lightkeeper.monitor.records.analyse import analyse
from lightkeeper.monitor.records.files import load_job
from lightkeeper.monitor.records.findings import Fault
from lightkeeper.monitor.records.job import NONE, CollectiveState
from tests.changed import replace
from tests.corpus.gloo_captures import KINDS, Captures, complaint, truths

TRUTHS = truths()
SIZE = 4
EVERY = [pytest.param(case, kind, id=f"{case}-{kind}") for case in TRUTHS for kind in KINDS]


@pytest.fixture(scope="module")
def captures(tmp_path_factory):
    return Captures.unpack(tmp_path_factory.mktemp("gloo"))


def analysed(path):
    return analyse(load_job([path], world_size=SIZE, workers=1))


@pytest.mark.parametrize(("case", "kind"), EVERY)
def test_the_files_of_a_job_tell_what_they_can(case, kind, captures) -> None:
    assert complaint(TRUTHS[case][kind], analysed(captures.files(case, kind))) is None


@pytest.mark.parametrize(("case", "kind"), EVERY)
def test_without_the_files_dates_nobody_else_is_accused(case, kind, captures) -> None:
    accused = set(analysed(captures.bundle(case, kind)).culprits)
    assert accused <= set(TRUTHS[case][kind]["culprits"])


@pytest.mark.parametrize("case", TRUTHS)
def test_every_rank_of_a_ring_is_there_the_dead_too(case, captures) -> None:
    job = load_job([captures.files(case, "ring")], workers=1)
    assert tuple(job.ranks) == job.expected == tuple(range(SIZE))
    assert not any(problem.rank is not None for problem in job.problems)
    assert [job.name(rank) for rank in job.ranks] == [f"rg_0.{rank}" for rank in range(SIZE)]


def test_the_truth_beside_the_captures_is_that_of_the_cases() -> None:
    from tests.corpus.gloo_cases import CASES

    assert list(TRUTHS) == [case.name for case in CASES]
    for case in CASES:
        parts = (case.ring, case.torch, case.json or case.torch)
        expected = [json.loads(json.dumps(truth.as_json())) for truth in parts]
        assert [TRUTHS[case.name][kind] for kind in KINDS] == expected


@pytest.mark.parametrize("case", ["skip", "extra"])
@pytest.mark.parametrize("lines", ["none", "one for each rank", "one for all"])
def test_call_sites_that_tell_nothing_make_no_slip(case, lines, captures) -> None:
    job = load_job([captures.files(case, "pickle")], world_size=SIZE, workers=1)
    ranks = job.columns["rank"]
    sites = {"none": ranks * 0 + NONE, "one for each rank": ranks, "one for all": ranks * 0}[lines]
    blind = replace(
        job,
        columns={**job.columns, "site": sites.astype(job.columns["site"].dtype)},
        sites=tuple(f"train.py:{n} step" for n in range(SIZE)),
    )
    kinds = {finding.kind for finding in analyse(blind).findings}
    assert kinds
    assert not kinds & {Fault.SKIPPED, Fault.EXTRA}


@pytest.mark.parametrize("case", ["skip", "extra"])
def test_a_slip_is_reported_where_it_happened_not_where_the_job_hangs(case, captures) -> None:
    (finding,) = analysed(captures.files(case, "pickle")).findings
    assert (finding.sequence, finding.culprits) == (8, (1,))
    assert "gloo_ranks.py" in finding.reason


def stopped_at(job, op, change):
    """The job as if it hung in the first call of an op, where rank 2 gave something else."""
    columns, payloads = job.columns, list(job.payloads)
    ops = np.array([payload.op for payload in payloads])[columns["payload"]]
    sequence = columns["seq"][ops == op].min()
    kept = (columns["seq"] <= sequence) & (columns["group"] == columns["group"][ops == op][0])
    cut = {name: values[kept].copy() for name, values in columns.items()}
    last = cut["seq"] == sequence
    cut["state"][last] = CollectiveState.UNKNOWN
    (row,) = np.flatnonzero(last & (cut["rank"] == 2))
    payloads.append(change(payloads[int(cut["payload"][row])]))
    cut["payload"][row] = len(payloads) - 1
    return replace(job, columns=cut, payloads=tuple(payloads))


@pytest.mark.parametrize(
    ("op", "change", "said"),
    [
        (
            "all_to_all",
            lambda record: replace(record, sizes_out=((21,),)),
            "all_to_all of 20 into 21",
        ),
        (
            "gather",
            lambda record: replace(record, sizes_out=((5,),) * SIZE),
            "gather of 5 float32 root",
        ),
    ],
)
def test_numbers_that_do_not_add_up_are_told_and_accuse_nobody(op, change, said, captures) -> None:
    job = load_job([captures.files("healthy_every_op", "pickle")], world_size=SIZE, workers=1)
    (finding,) = analyse(stopped_at(job, op, change)).findings
    assert (finding.kind, finding.culprits) == (Fault.MISMATCH, ())
    assert said in finding.reason
    healthy = analyse(stopped_at(job, op, lambda record: record)).findings
    assert Fault.MISMATCH not in {blamed.kind for blamed in healthy}
