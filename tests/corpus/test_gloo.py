"""Real gloo ranks in trouble: the analysis says what their records can show, and no more."""

import json

import pytest

from monitor.analysis.analyse import analyse
from monitor.dumps.load import load
from tests.corpus.gloo_captures import KINDS, Captures, complaint, truths

TRUTHS = truths()
SIZE = 4
EVERY = [pytest.param(case, kind, id=f"{case}-{kind}") for case in TRUTHS for kind in KINDS]


@pytest.fixture(scope="module")
def captures(tmp_path_factory):
    return Captures.unpack(tmp_path_factory.mktemp("gloo"))


def analysed(path):
    return analyse(load([path], world_size=SIZE, workers=1))


@pytest.mark.parametrize(("case", "kind"), EVERY)
def test_the_files_of_a_job_tell_what_they_can(case, kind, captures) -> None:
    assert complaint(TRUTHS[case][kind], analysed(captures.files(case, kind))) is None


@pytest.mark.parametrize(("case", "kind"), EVERY)
def test_without_the_files_dates_nobody_else_is_accused(case, kind, captures) -> None:
    accused = set(analysed(captures.bundle(case, kind)).culprits)
    assert accused <= set(TRUTHS[case][kind]["culprits"])


@pytest.mark.parametrize("case", TRUTHS)
def test_every_rank_of_a_ring_is_there_the_dead_too(case, captures) -> None:
    job = load([captures.files(case, "ring")], workers=1)
    assert tuple(job.ranks) == job.expected == tuple(range(SIZE))
    assert not any(problem.fatal for problem in job.problems)
    assert [job.name(rank) for rank in job.ranks] == [f"rg_0.{rank}" for rank in range(SIZE)]


def test_the_truth_beside_the_captures_is_that_of_the_cases() -> None:
    from tests.corpus.gloo_cases import CASES

    assert list(TRUTHS) == [case.name for case in CASES]
    for case in CASES:
        parts = (case.ring, case.torch, case.json or case.torch)
        told = [json.loads(json.dumps(truth.as_json())) for truth in parts]
        assert [TRUTHS[case.name][kind] for kind in KINDS] == told
