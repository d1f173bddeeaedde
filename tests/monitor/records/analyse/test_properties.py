"""What holds for any job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightkeeper.monitor.model.verdict import Confidence
from lightkeeper.monitor.records.analyse import analyse
from lightkeeper.monitor.records.files import load_job
from lightkeeper.monitor.records.findings import Fault
from lightkeeper.monitor.records.job import Job
from tests.monitor.records.analyse.jobs import Call, job, many, recv, send

pytestmark = pytest.mark.integration  # many seconds

REAL = Path(__file__).parents[5] / "shared/data/flight_recorder_nccl"
GROUPS = {"a": (0, 1, 2), "b": (2, 3, 4), "c": (0, 1, 2, 3, 4)}

calls = st.one_of(
    st.sampled_from(["world", "a", "b", "c"]).map(Call),
    st.builds(Call, group=st.just("c"), size=st.sampled_from([4, 8])),
    st.builds(send, st.integers(0, 4)),
    st.builds(recv, st.integers(0, 4)),
)
states = st.sampled_from([Call.open, Call.begun, Call.failed, lambda call: call])
records = st.lists(st.builds(lambda call, state: state(call), calls, states), max_size=6)
jobs = st.fixed_dictionaries({}, optional=dict.fromkeys(range(5), records)).map(
    lambda called: job(called, GROUPS, silent=[r for r in range(5) if r not in called])
)


def _renamed(recorded: Job, to: list[int]) -> Job:
    """The same job with its ranks numbered otherwise."""
    columns = {name: column.copy() for name, column in recorded.columns.items()}
    table = np.array([*to, -1])  # -1 stays -1
    for name in ("rank", "peer"):
        columns[name] = table[columns[name]].astype(columns[name].dtype)
    order = np.argsort(columns["rank"], kind="stable")
    ranks = sorted(to[r] for r in recorded.ranks)
    return replace(
        recorded,
        expected=tuple(sorted(to[r] for r in recorded.expected)),
        ranks={r: replace(recorded.ranks[to.index(r)], rank=r) for r in ranks},
        groups=tuple(replace(g, members=tuple(to[r] for r in g.members)) for g in recorded.groups),
        columns={name: column[order] for name, column in columns.items()},
    )  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(jobs, st.permutations(range(5)))
def test_numbering_the_ranks_otherwise_changes_no_verdict(recorded: Job, to: list[int]) -> None:
    before, after = analyse(recorded), analyse(_renamed(recorded, to))
    assert sorted(to[r] for r in before.culprits) == list(after.culprits)
    kinds = [
        sorted((f.kind, f.confidence) for f in analysis.findings) for analysis in (before, after)
    ]
    assert kinds[0] == kinds[1]


@settings(max_examples=120, deadline=None)
@given(jobs)
def test_findings_are_well_formed(recorded: Job) -> None:
    analysis = analyse(recorded)
    for finding in analysis.findings:
        assert (finding.confidence is Confidence.UNSURE) == (not finding.culprits)
        assert not set(finding.victims) & set(analysis.culprits)
        assert list(finding.culprits) == sorted(set(finding.culprits))
        assert list(finding.between) == sorted(finding.between)
        assert finding.reason.endswith(".")
    assert [wait.rank for wait in analysis.waits] == sorted({wait.rank for wait in analysis.waits})
    assert analyse(recorded) == analysis


@given(st.lists(st.integers(0, 9), min_size=3, max_size=6), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_a_job_in_which_all_goes_on_gives_no_finding(offsets: list[int], ahead: int) -> None:
    """Dumped some calls apart, every rank somewhere between two collectives or inside one."""
    if max(offsets) - min(offsets) < 2:
        return  # one moment, as far as anybody can tell
    calls = {r: [*many(5 + at), *many(ahead, Call().open())] for r, at in enumerate(offsets)}
    assert analyse(job(calls, waited_s=0.2)).findings == ()


def test_an_empty_job_is_no_fault() -> None:
    assert analyse(job({})).findings == ()
    assert analyse(job({0: [], 1: []})).findings == ()


@pytest.mark.skipif(not REAL.exists(), reason="the real records lie beside the project")
@pytest.mark.parametrize(
    ("name", "kind"), [("gpu_error_2nd", Fault.GPU_BEHIND), ("lock_gil_1st", Fault.NOT_ENQUEUING)]
)
def test_real_records_name_the_ranks_into_which_the_fault_was_put(name: str, kind: Fault) -> None:
    analysis = analyse(load_job([REAL / name]))
    assert (analysis.culprits, {finding.kind for finding in analysis.findings}) == ((9, 14), {kind})
    victims = {rank for finding in analysis.findings for rank in finding.victims}
    assert victims == set(range(16)) - {9, 14}


@pytest.mark.skipif(not REAL.exists(), reason="the real records lie beside the project")
@pytest.mark.parametrize("name", ["gpu_error_2nd", "lock_gil_1st"])
@pytest.mark.parametrize("lost", [(9, 14), (0,), (3, 12), (8, 10, 11)])
def test_real_records_without_some_ranks_accuse_no_victim(name: str, lost: tuple[int, ...]) -> None:
    analysis = analyse(
        load_job([p for p in (REAL / name).glob("_dump_*") if int(p.name[6:]) not in lost])
    )
    assert analysis.culprits == (9, 14)
