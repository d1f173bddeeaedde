"""Columns are the order of the program, and need no clocks."""

import dataclasses

from monitor.analysis.finding import Analysis, Confidence, Fault, Finding, Wait
from monitor.flight_recorder.job import Group
from monitor.reports.purposes import purposes
from monitor.reports.standing import Role
from monitor.reports.strips import COLUMNS, strips
from tests.monitor.reports.jobs import DP, OPEN, PP, entry, hang, job_of, megatron, tie

NOTHING = Analysis((), ())


def columns(job, analysis=NOTHING):
    return {
        one.ranks: [(cell.column, int(job.columns["seq"][cell.row])) for cell in one.cells]
        for one in strips(job, analysis, 40)
    }


def test_a_collective_stands_in_one_column_on_all_its_members():
    job, analysis = hang()
    assert columns(job, analysis) == {
        (1,): [(0, 10), (1, 11)],
        (0, 2, 3): [(0, 10), (1, 11), (2, 12)],
    }


def test_clocks_do_not_matter():
    job, analysis = hang()
    late = job.columns["created_ns"] + (job.columns["rank"] == 2) * 10**12
    moved = dataclasses.replace(job, columns={**job.columns, "created_ns": late})
    assert columns(moved, analysis) == columns(job, analysis)


def test_a_record_that_begins_later_stands_further_right():
    """Rank 0 has dropped what it completed: its first entry is what rank 1 calls fifth."""
    rows = [entry(0, seq, OPEN) for seq in (5, 6)]
    rows += [entry(1, seq, OPEN) for seq in (1, 2, 3, 4)]
    made = columns(job_of(rows, ranks=(0, 1), groups=(Group("g", "", (0, 1)),)))
    assert made == {(0,): [(4, 5), (5, 6)], (1,): [(0, 1), (1, 2), (2, 3), (3, 4)]}


def test_inverted_order_stands_crosswise():
    """Ranks 0 and 1 call dp then pp, rank 2 pp then dp: no common columns, and no endless loop."""
    rows = [entry(rank, 1, OPEN) for rank in (0, 1)]
    rows += [entry(rank, 1, OPEN, group=1) for rank in (0, 1)]
    rows += [entry(2, 1, OPEN, group=1), entry(2, 1, OPEN)]
    job = job_of(rows, ranks=range(3), groups=(DP, dataclasses.replace(PP, members=(0, 1, 2))))
    made = {
        one.ranks: [int(job.columns["group"][cell.row]) for cell in one.cells]
        for one in strips(job, NOTHING, 40)
    }
    assert made == {(0, 1): [0, 1], (2,): [1, 0]}


def test_the_parts_of_a_coalesced_operation_stand_side_by_side():
    rows = [entry(rank, 1, p2p=True, peer=2 - rank, group=1) for rank in (0, 2) for _ in range(3)]
    assert columns(job_of(rows, ranks=(0, 2))) == {(0, 2): [(0, 1), (1, 1), (2, 1)]}


def test_the_place_where_a_rank_stands_is_in_the_picture_however_far_it_ran_ahead():
    rows = [entry(0, seq, OPEN if seq > 500 else 3) for seq in range(900)]
    job = job_of(rows, ranks=(0,))
    (one,) = strips(job, NOTHING, 40)
    seqs = [int(job.columns["seq"][cell.row]) for cell in one.cells]
    assert 501 in seqs
    assert len(seqs) <= COLUMNS
    assert one.later == 899 - seqs[-1]


def test_the_collective_of_a_finding_is_marked():
    job, analysis = tie()
    assert all(cell.marked for one in strips(job, analysis, 40) for cell in one.cells)


def test_a_rank_without_a_record_has_an_empty_row():
    job, analysis = hang(expected=range(5))
    silent = [one for one in strips(job, analysis, 40) if one.role is Role.SILENT]
    assert [(one.ranks, one.cells) for one in silent] == [((4,), ())]


def test_a_thousand_ranks_are_three_rows():
    job, analysis = megatron(128)
    assert [len(one.ranks) for one in strips(job, analysis, 40)] == [1, 1016, 7]


def test_rows_that_would_be_too_many_fold_by_where_they_are_stuck():
    rows = [
        entry(rank, 0, OPEN if rank > 50 else 3, payload=rank >> step & 1)
        for rank in range(60)
        for step in range(6)
    ]
    job = job_of(rows, ranks=range(60))
    made = strips(job, NOTHING, 10)
    assert len(made) <= 10
    assert sorted(rank for one in made for rank in one.ranks) == list(range(60))


def purposes_of(*groups):
    return purposes(job_of([], groups=groups))


def test_groups_of_one_description_and_different_ranks_have_one_purpose():
    tp = [Group(str(i), "tp", (2 * i, 2 * i + 1)) for i in range(3)]
    assert purposes_of(Group("0", "dp", (0, 2, 4)), *tp) == ("dp", "tp", "tp", "tp")


def test_two_groups_over_the_same_ranks_never_have_one_purpose():
    """As after two `new_group()` without a description: who is in which is the whole question."""
    assert purposes_of(Group("1", "", (0, 1)), Group("2", "", (0, 1))) == ("group 1", "group 2")


def test_nameless_groups_of_one_size_have_one_purpose_where_they_share_no_rank():
    pairs = [Group(str(i), "", (2 * i, 2 * i + 1)) for i in range(2)]
    across = [Group(str(i + 2), "", (i, i + 2)) for i in range(2)]
    assert purposes_of(*pairs, *across) == (
        *("groups of 2 ranks",) * 2,
        *("groups of 2 ranks (2)",) * 2,
    )


def test_where_the_accused_are_stuck_is_marked_too():
    """Of a deadlock a finding points at one collective; the other is half of it."""
    job = job_of([entry(0, 1, OPEN), entry(1, 1, OPEN, group=1)], ranks=(0, 1), groups=(DP, PP))
    waits = (Wait(0, (1,), 0, 1, "all_reduce", 0), Wait(1, (0,), 1, 1, "all_reduce", 1))
    finding = Finding(
        Fault.ORDER_INVERSION,
        Confidence.UNSURE,
        "?",
        between=((0,), (1,)),
        group=0,
        sequence=1,
        op="all_reduce",
    )
    made = strips(job, Analysis((finding,), waits), 40)
    assert [cell.marked for one in made for cell in one.cells] == [True, True]


def test_a_send_of_another_pair_with_the_same_number_is_not_marked():
    rows = [entry(r, 7, OPEN, p2p=True, peer=r ^ 1, payload=2) for r in range(4)]
    finding = Finding(
        Fault.POINT_TO_POINT, Confidence.LIKELY, "?", (0,), group=0, sequence=7, op="send"
    )
    made = strips(job_of(rows), Analysis((finding,), ()), 40)
    marked = {rank for one in made for rank in one.ranks if one.cells[0].marked}
    assert marked == {0, 1}
