"""Who is slow in a recorded job: named, passed over in silence, or not to be told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lightkeeper.monitor.offline.slow import Confidence, SlowKind, SlowReport, judge
from lightkeeper.monitor.offline.timings import TimingTable, build_table
from tests.changed import replace
from tests.monitor.offline.jobs import OPS, Recorded, Slow, SlowLink

JOB = Recorded(steps=30)


def judged(job: Recorded | TimingTable) -> tuple[list[int], SlowReport]:
    table = job.table() if isinstance(job, Recorded) else job
    report = judge(table)
    return table.ranks[list(report.culprits)].tolist(), report


def without(columns: dict[str, NDArray[Any]], rows: NDArray[np.bool_]) -> TimingTable:
    return build_table({name: values[~rows] for name, values in columns.items()}, OPS)


# -- in silence -----------------------------------------------------------------------------------


HEALTHY = {
    "healthy": JOB,
    "noisy": replace(JOB, noise=0.1),
    "slow last stage": replace(JOB, last_stage=2.2),
    "long sequences": replace(JOB, long_sequences=0.6),
    "long sequences without a pipeline": replace(
        JOB, long_sequences=0.6, pp=1, dp=8, microbatches=4
    ),
    "very long sequences": replace(JOB, long_sequences=1.0, pp=2, dp=8, microbatches=2),
    "long sequences, two replicas": replace(JOB, long_sequences=0.6, dp=2),
    "long sequences, two ranks": replace(JOB, long_sequences=0.6, dp=2, pp=1, microbatches=2),
    "pauses": replace(JOB, gc=0.1),
    "many pauses": replace(JOB, gc=0.5, microbatches=4),
    "pauses without peers": replace(JOB, gc=0.2, dp=1),
    "clocks that disagree": replace(JOB, clock_offsets_s=5.0),
    "virtual stages": replace(JOB, vpp=2, last_stage=1.5, long_sequences=0.5),
    "one rank": replace(JOB, dp=1, pp=1),
    "one rank that was faster before": replace(JOB, dp=1, pp=1, slow=(Slow(0, 0, 1.5, first=15),)),
    "all at once": replace(JOB, gc=0.1, long_sequences=0.6, last_stage=1.5, noise=0.05),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("job", HEALTHY.values(), ids=HEALTHY)
def test_passes_in_silence(job, seed) -> None:
    assert judged(replace(job, seed=seed))[1].verdicts == ()


# -- named ----------------------------------------------------------------------------------------


SICK_JOBS = {
    "rank 0": replace(JOB, slow=(Slow(0, 0, 2.3),)),
    "mild": replace(JOB, slow=(Slow(2, 3, 1.15),)),
    "on the slow last stage": replace(JOB, slow=(Slow(3, 1, 1.3),), last_stage=2.0),
    "without a pipeline": replace(JOB, slow=(Slow(0, 11, 1.3),), pp=1, dp=16, tp=8),
    "among long sequences and pauses": replace(
        JOB, slow=(Slow(1, 2, 2.0),), long_sequences=0.6, gc=0.1
    ),
    "in the second half": replace(JOB, slow=(Slow(1, 2, 1.5, first=15),)),
    "in the first half": replace(JOB, slow=(Slow(1, 2, 1.5, last=14),)),
    "in every other step": replace(JOB, slow=(Slow(1, 2, 2.0, share=0.5),)),
    "with clocks that disagree": replace(JOB, slow=(Slow(1, 2, 1.3),), clock_offsets_s=5.0),
    "with virtual stages": replace(JOB, slow=(Slow(1, 2, 1.3),), vpp=2, tp=2),
    "two on two stages": replace(JOB, slow=(Slow(0, 1, 1.5), Slow(2, 3, 1.5))),
    "two of one replica": replace(JOB, slow=(Slow(0, 1, 1.5), Slow(3, 1, 1.5))),
    "two of one stage": replace(JOB, slow=(Slow(1, 0, 1.4), Slow(1, 4, 2.0)), dp=8),
    "one of two replicas, from the start": replace(JOB, slow=(Slow(2, 1, 2.0),), dp=2),
    "one of two replicas, mild, from the middle": replace(
        JOB, slow=(Slow(2, 1, 1.3, first=12),), dp=2
    ),
    "one of two replicas, mild, where other stages agree with its peer": replace(
        JOB, slow=(Slow(2, 1, 1.3),), dp=2
    ),
    "one of two replicas, among long sequences": replace(
        JOB, slow=(Slow(2, 1, 1.5),), dp=2, long_sequences=0.3
    ),
    "one of two ranks": replace(JOB, slow=(Slow(0, 1, 2.0),), dp=2, pp=1),
    "one that was faster before": replace(JOB, slow=(Slow(2, 0, 1.5, first=15),), dp=1),
}


@pytest.mark.parametrize("job", SICK_JOBS.values(), ids=SICK_JOBS)
def test_names_exactly_who_is_slow(job) -> None:
    culprits, report = judged(job)
    assert culprits == job.culprits
    assert all(verdict.kind is SlowKind.STRAGGLER for verdict in report.verdicts)
    assert all(verdict.confidence is Confidence.LIKELY for verdict in report.verdicts)


def test_says_how_much_since_when_and_on_what_it_rests() -> None:
    _, report = judged(replace(JOB, slow=(Slow(1, 2, 2.0, first=15),), tp=2))
    (verdict,) = report.verdicts
    assert verdict.ratio == pytest.approx(2.0, rel=0.05)
    assert (verdict.stage, verdict.replica) == (1, 2)
    assert (verdict.stretch.first, verdict.stretch.last) == (15, 29)
    assert (verdict.stretch.slow, verdict.stretch.seen) == (15, 15)
    assert verdict.lost_s == pytest.approx(15 * 8 * 0.6, rel=0.1)
    assert verdict.by_op == pytest.approx(
        {"backward-compute": 2.0, "forward-compute": 2.0}, rel=0.05
    )
    assert verdict.reason.startswith("rank 12 (stage 1, data-parallel rank 2) takes ")
    assert "as the 3 other ranks of its stage in 15 of 15 steps since step 55" in verdict.reason
    assert verdict.evidence["resolution"] == "one step: median over its 8 microbatches"
    assert "P = 1.00" in verdict.evidence["late arrival"]


def test_the_slowest_rank_leads_the_list() -> None:
    table = replace(JOB, slow=(Slow(2, 1, 1.5),)).table()
    report = judge(table)
    assert report.paces[0].rank == 9
    assert report.paces[0].ratio == pytest.approx(1.5, rel=0.05)
    assert len(report.paces) == 16


# -- not to be told -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "between", "replica", "said"),
    [
        pytest.param(replace(JOB, slow=(Slow(1, 0, 1.5), Slow(1, 2, 1.5))), ((4, 6), (5, 7)),
                     None, "peers are too few to tell", id="half of a stage is slow"),
        pytest.param(replace(JOB, dp=2, pp=1, slow=(Slow(0, 0, 1.3),)), ((0,), (1,)),
                     None, "peers are too few to tell", id="one of two, mildly, from the start"),
        pytest.param(replace(JOB, pp=3, dp=6, slow=tuple(Slow(s, 4, 1.4) for s in range(3))),
                     ((4,), (10,), (16,)), 4, "its data, its hosts", id="all stages of a replica"),
        pytest.param(replace(JOB, late=((0, 3, 3.0),)), ((3,), (7,), (11,), (15,)),
                     3, "which rank began it cannot be told", id="a pipeline that comes late"),
    ],
)  # fmt: skip
def test_it_is_said_where_nobody_can_be_named(job, between, replica, said) -> None:
    culprits, report = judged(job)
    assert culprits == []
    (verdict,) = report.verdicts
    assert (verdict.confidence, verdict.between) == (Confidence.UNSURE, between)
    assert verdict.replica == replica
    assert said in verdict.reason


def test_too_few_steps_accuse_nobody_and_say_so() -> None:
    culprits, report = judged(replace(JOB, steps=4, slow=(Slow(1, 2, 2.0),)))
    assert culprits == []
    assert any("too few to call anything persistent" in note for note in report.notes)


def test_a_difference_of_a_tenth_between_two_is_no_fault() -> None:
    assert judged(replace(JOB, dp=2, pp=1, slow=(Slow(0, 0, 1.12),)))[1].verdicts == ()


# -- communication --------------------------------------------------------------------------------


def test_a_slow_link_is_told_with_both_ends_and_no_rank_is_accused() -> None:
    culprits, report = judged(replace(JOB, links=(SlowLink(1, 2, 0.2),)))
    assert culprits == []
    (verdict,) = report.verdicts
    assert verdict.kind is SlowKind.SLOW_TRANSFER
    assert verdict.between == ((6,), (10,))


def test_a_rank_both_of_whose_links_are_slow_is_named() -> None:
    culprits, report = judged(replace(JOB, links=(SlowLink(1, 2, 0.2), SlowLink(2, 2, 0.2))))
    assert culprits == [10]
    assert [verdict.kind for verdict in report.verdicts] == [SlowKind.SLOW_TRANSFER]


def test_a_collective_that_became_slow_for_all_is_the_groups() -> None:
    culprits, report = judged(replace(JOB, slow_group=(1, 15, 60.0)))
    assert culprits == []
    (verdict,) = report.verdicts
    assert (verdict.kind, verdict.stage, verdict.stretch.first) == (SlowKind.SLOW_TRANSFER, 1, 15)
    assert "P = 0.0" in verdict.evidence["late arrival"]


def test_who_comes_late_from_outside_of_the_recorded_work_is_named_without_a_pipeline() -> None:
    culprits, report = judged(replace(JOB, pp=1, dp=8, late=((0, 5, 1.5),)))
    assert culprits == [5]
    assert "outside of the recorded operations" in report.verdicts[0].reason


def test_a_slow_rank_with_a_slow_link_is_mixed() -> None:
    culprits, report = judged(replace(JOB, slow=(Slow(1, 2, 2.0),), links=(SlowLink(1, 2, 0.3),)))
    assert culprits == [6]
    assert [verdict.kind for verdict in report.verdicts] == [SlowKind.MIXED]


# -- tables as they come --------------------------------------------------------------------------

SICK = replace(JOB, slow=(Slow(1, 2, 1.5),))


@pytest.mark.parametrize("job", [JOB, SICK], ids=["healthy", "sick"])
def test_missing_rows_change_nothing(job) -> None:
    columns = job.columns()
    missing = np.random.default_rng(3).random(len(columns["rank"])) >= 0.7
    assert judged(without(columns, missing))[0] == job.culprits


def test_a_rank_without_rows_is_not_accused() -> None:
    columns = JOB.columns()
    assert judged(without(columns, columns["rank"] == 6))[1].verdicts == ()


def test_a_rank_that_ends_early_is_judged_by_the_steps_that_it_has() -> None:
    columns = SICK.columns()
    culprits, report = judged(without(columns, (columns["rank"] == 6) & (columns["step"] >= 70)))
    assert culprits == [6]
    assert report.verdicts[0].stretch.seen == 20


def test_durations_that_are_no_numbers_are_left_out() -> None:
    columns = SICK.columns()
    columns["duration"] = columns["duration"].copy()
    columns["duration"][::7] = float("nan")
    columns["duration"][1::7] = float("inf")
    columns["duration"][2::70] = -1.0
    culprits, report = judged(build_table(columns, OPS))
    assert culprits == [6]
    assert "rows left out" in report.notes[0]


@pytest.mark.parametrize("name", ["dp_rank", "mb_id", "mc", "seq_id", "start_ts"])
def test_a_column_that_is_not_needed_may_be_missing(name) -> None:
    columns = SICK.columns()
    del columns[name]
    culprits, report = judged(build_table(columns, OPS))
    assert culprits == [6]
    assert any(note.startswith(f"no column {name}: ") for note in report.notes)


def test_unknown_operations_accuse_nobody() -> None:
    table = build_table(SICK.columns(), [f"op{number}" for number in range(len(OPS))])
    report = judge(table)
    assert report.verdicts == ()
    assert any("no operation is known" in note for note in report.notes)


def test_work_that_takes_no_time_at_all_is_no_work() -> None:
    columns = JOB.columns()
    columns["duration"] = np.zeros(len(columns["duration"]))
    assert judge(build_table(columns, OPS)).verdicts == ()
