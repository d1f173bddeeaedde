"""Who is slow in a recorded job: named, passed over in silence, or not to be told."""

from __future__ import annotations

import numpy as np
import pytest

from monitor.records.slow import Confidence, Report, SlowKind, judge
from monitor.records.timings import TimingTable, build
from tests.changed import replace
from tests.monitor.records.slow.jobs import OPS, Recorded, Slow, SlowLink

JOB = Recorded(steps=30)


def named(table: TimingTable, report: Report) -> list[int]:
    return table.ranks[list(report.culprits)].tolist()


def judged(job: Recorded) -> tuple[list[int], Report]:
    table = job.table()
    report = judge(table)
    return named(table, report), report


# -- in silence -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "job",
    [
        JOB,
        replace(JOB, noise=0.1),
        replace(JOB, last_stage=2.2),
        replace(JOB, long_sequences=0.6),
        replace(JOB, long_sequences=0.6, pp=1, dp=8, microbatches=4),
        replace(JOB, long_sequences=1.0, pp=2, dp=8, microbatches=2),
        replace(JOB, long_sequences=0.6, dp=2),
        replace(JOB, long_sequences=0.6, dp=2, pp=1, microbatches=2),
        replace(JOB, gc=0.1),
        replace(JOB, gc=0.5, microbatches=4),
        replace(JOB, gc=0.2, dp=1),
        replace(JOB, clock_offsets_s=5.0),
        replace(JOB, vpp=2, last_stage=1.5, long_sequences=0.5),
        replace(JOB, dp=1, pp=1),
        replace(JOB, gc=0.1, long_sequences=0.6, last_stage=1.5, noise=0.05),
    ],
    ids=[
        "healthy",
        "noisy",
        "slow last stage",
        "long sequences",
        "long sequences without a pipeline",
        "very long sequences",
        "long sequences, two replicas",
        "long sequences, two ranks",
        "pauses",
        "many pauses",
        "pauses without peers",
        "clocks that disagree",
        "virtual stages",
        "one rank",
        "all at once",
    ],
)
def test_passes_in_silence(job, seed) -> None:
    culprits, report = judged(replace(job, seed=seed))
    assert culprits == []
    assert report.verdicts == ()


# -- named ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "job",
    [
        replace(JOB, slow=(Slow(0, 0, 2.3),)),
        replace(JOB, slow=(Slow(2, 3, 1.15),)),
        replace(JOB, slow=(Slow(3, 1, 1.3),), last_stage=2.0),
        replace(JOB, slow=(Slow(0, 11, 1.3),), pp=1, dp=16, tp=8),
        replace(JOB, slow=(Slow(1, 2, 2.0),), long_sequences=0.6, gc=0.1),
        replace(JOB, slow=(Slow(1, 2, 1.5, first=15),)),
        replace(JOB, slow=(Slow(1, 2, 1.5, last=14),)),
        replace(JOB, slow=(Slow(1, 2, 2.0, share=0.5),)),
        replace(JOB, slow=(Slow(1, 2, 1.3),), clock_offsets_s=5.0),
        replace(JOB, slow=(Slow(1, 2, 1.3),), vpp=2, tp=2),
        replace(JOB, slow=(Slow(0, 1, 1.5), Slow(2, 3, 1.5))),
        replace(JOB, slow=(Slow(0, 1, 1.5), Slow(3, 1, 1.5))),
        replace(JOB, slow=(Slow(1, 0, 1.4), Slow(1, 4, 2.0)), dp=8),
        replace(JOB, slow=(Slow(2, 1, 2.0),), dp=2),
        replace(JOB, slow=(Slow(2, 1, 1.3, first=12),), dp=2),
        replace(JOB, slow=(Slow(2, 1, 1.3),), dp=2),
        replace(JOB, slow=(Slow(0, 1, 2.0),), dp=2, pp=1),
        replace(JOB, slow=(Slow(2, 0, 1.5, first=15),), dp=1),
    ],
    ids=[
        "rank 0",
        "mild",
        "on the slow last stage",
        "without a pipeline",
        "among long sequences and pauses",
        "in the second half",
        "in the first half",
        "in every other step",
        "with clocks that disagree",
        "with virtual stages",
        "two on two stages",
        "two of one replica",
        "two of one stage",
        "one of two replicas, from the start",
        "one of two replicas, mild, from the middle",
        "one of two replicas, mild, where other stages agree with its peer",
        "one of two ranks",
        "one that was faster before",
    ],
)
def test_names_exactly_who_is_slow(job) -> None:
    culprits, report = judged(job)
    assert culprits == job.culprits
    assert all(one.kind is SlowKind.STRAGGLER for one in report.verdicts)
    assert all(one.confidence is Confidence.LIKELY for one in report.verdicts)


def test_says_how_much_since_when_and_on_what_it_rests() -> None:
    _, report = judged(replace(JOB, slow=(Slow(1, 2, 2.0, first=15),), tp=2))
    (one,) = report.verdicts
    assert one.ratio == pytest.approx(2.0, rel=0.05)
    assert (one.stage, one.replica) == (1, 2)
    assert (one.stretch.first, one.stretch.last) == (15, 29)
    assert (one.stretch.slow, one.stretch.seen) == (15, 15)
    assert one.lost_s == pytest.approx(15 * 8 * 0.6, rel=0.1)
    assert one.by_op == pytest.approx({"backward-compute": 2.0, "forward-compute": 2.0}, rel=0.05)
    assert one.reason.startswith("rank 12 (stage 1, data-parallel rank 2) takes ")
    assert "as the 3 other ranks of its stage in 15 of 15 steps since step 55" in one.reason
    assert one.evidence["resolution"] == "one step: median over its 8 microbatches"
    assert "P = 1.00" in one.evidence["late arrival"]


def test_the_slowest_rank_leads_the_list() -> None:
    table = replace(JOB, slow=(Slow(2, 1, 1.5),)).table()
    report = judge(table)
    assert table.ranks[report.paces[0].rank] == 9
    assert report.paces[0].ratio == pytest.approx(1.5, rel=0.05)
    assert len(report.paces) == 16


# -- not to be told -------------------------------------------------------------------------------


def test_half_of_a_stage_against_the_other_half_is_a_tie() -> None:
    culprits, report = judged(replace(JOB, slow=(Slow(1, 0, 1.5), Slow(1, 2, 1.5))))
    assert culprits == []
    (one,) = report.verdicts
    assert one.confidence is Confidence.UNSURE
    assert one.between == ((4, 6), (5, 7))


def test_of_two_ranks_alone_a_mild_difference_from_the_start_names_nobody() -> None:
    culprits, report = judged(replace(JOB, dp=2, pp=1, slow=(Slow(0, 0, 1.3),)))
    assert culprits == []
    assert len(report.verdicts) == 1
    assert all(one.confidence is Confidence.UNSURE for one in report.verdicts)


def test_a_replica_slow_on_all_stages_may_have_other_data() -> None:
    job = replace(JOB, pp=3, dp=6, slow=tuple(Slow(stage, 4, 1.4) for stage in range(3)))
    culprits, report = judged(job)
    assert culprits == []
    (one,) = report.verdicts
    assert (one.confidence, one.replica) == (Confidence.UNSURE, 4)
    assert "its data or its hosts" in one.reason


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
    (one,) = report.verdicts
    assert one.kind is SlowKind.SLOW_TRANSFER
    assert one.between == ((6,), (10,))


def test_a_rank_both_of_whose_links_are_slow_is_named() -> None:
    culprits, report = judged(replace(JOB, links=(SlowLink(1, 2, 0.2), SlowLink(2, 2, 0.2))))
    assert culprits == [10]
    assert [one.kind for one in report.verdicts] == [SlowKind.SLOW_TRANSFER]


def test_a_collective_that_became_slow_for_all_is_the_groups() -> None:
    culprits, report = judged(replace(JOB, slow_group=(1, 15, 60.0)))
    assert culprits == []
    (one,) = report.verdicts
    assert (one.kind, one.stage, one.stretch.first) == (SlowKind.SLOW_TRANSFER, 1, 15)
    assert "P = 0.0" in one.evidence["late arrival"]


def test_who_comes_late_from_outside_of_the_recorded_work_is_named_without_a_pipeline() -> None:
    culprits, report = judged(replace(JOB, pp=1, dp=8, late=((0, 5, 1.5),)))
    assert culprits == [5]
    assert "outside of the recorded operations" in report.verdicts[0].reason


def test_a_replica_that_comes_late_in_a_pipeline_names_no_rank() -> None:
    culprits, report = judged(replace(JOB, late=((0, 3, 3.0),)))
    assert culprits == []
    (one,) = report.verdicts
    assert (one.confidence, one.replica) == (Confidence.UNSURE, 3)


def test_a_slow_rank_with_a_slow_link_is_mixed() -> None:
    culprits, report = judged(replace(JOB, slow=(Slow(1, 2, 2.0),), links=(SlowLink(1, 2, 0.3),)))
    assert culprits == [6]
    assert [one.kind for one in report.verdicts] == [SlowKind.MIXED]


# -- tables as they come --------------------------------------------------------------------------

SICK = replace(JOB, slow=(Slow(1, 2, 1.5),))


def test_missing_rows_change_nothing() -> None:
    rng = np.random.default_rng(3)
    for job in (JOB, SICK):
        columns = job.columns()
        kept = rng.random(len(columns["rank"])) < 0.7
        table = build({name: held[kept] for name, held in columns.items()}, OPS)
        assert named(table, judge(table)) == job.culprits


def test_a_rank_without_rows_is_not_accused() -> None:
    columns = JOB.columns()
    kept = columns["rank"] != 6
    table = build({name: held[kept] for name, held in columns.items()}, OPS)
    assert judge(table).verdicts == ()


def test_a_rank_that_ends_early_is_judged_by_the_steps_that_it_has() -> None:
    columns = SICK.columns()
    kept = (columns["rank"] != 6) | (columns["step"] < 70)
    table = build({name: held[kept] for name, held in columns.items()}, OPS)
    report = judge(table)
    assert named(table, report) == [6]
    assert report.verdicts[0].stretch.seen == 20


def test_durations_that_are_no_numbers_are_left_out() -> None:
    columns = SICK.columns()
    columns["duration"] = columns["duration"].copy()
    columns["duration"][::7] = float("nan")
    columns["duration"][1::7] = float("inf")
    columns["duration"][2::70] = -1.0
    table = build(columns, OPS)
    report = judge(table)
    assert named(table, report) == [6]
    assert "rows left out" in report.notes[0]


@pytest.mark.parametrize("name", ["dp_rank", "mb_id", "mc", "seq_id", "start_ts"])
def test_a_column_that_is_not_needed_may_be_missing(name) -> None:
    columns = SICK.columns()
    del columns[name]
    table = build(columns, OPS)
    report = judge(table)
    assert named(table, report) == [6]
    assert any(note.startswith(f"no column {name}: ") for note in report.notes)


def test_unknown_operations_accuse_nobody() -> None:
    table = build(SICK.columns(), [f"op{number}" for number in range(len(OPS))])
    report = judge(table)
    assert report.verdicts == ()
    assert any("no operation is known" in note for note in report.notes)


def test_work_that_takes_no_time_at_all_is_no_work() -> None:
    columns = JOB.columns()
    columns["duration"] = np.zeros(len(columns["duration"]))
    assert judge(build(columns, OPS)).verdicts == ()
