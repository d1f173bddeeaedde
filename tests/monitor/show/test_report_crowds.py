"""Ranks that stand alike are one row; culprits are never hidden in a crowd."""

import dataclasses
import random

from lightkeeper.monitor.records.findings import Analysis, Fault, Finding, RecordedWait
from lightkeeper.monitor.records.job import Group
from lightkeeper.monitor.show.report import Role, crowds, roles, wait_table
from tests.monitor.show.jobs import OPEN, entry, hang, healthy, job_of, megatron, tie


def test_victims_of_one_collective_are_one_crowd():
    assert crowds(*hang(), at_most=24) == ((1,), (0, 2, 3))
    culprit, victims = wait_table(*hang(), at_most=24).rows
    assert (culprit.role, culprit.cells[2:]) == (Role.CULPRIT, ("nothing unfinished", *"---"))
    assert (victims.role, victims.cells[4]) == (Role.VICTIM, "1")


def test_sides_of_a_tie_stay_apart_and_are_suspects():
    assert crowds(*tie(), at_most=24) == ((0, 1), (2, 3))
    assert [row.role for row in wait_table(*tie(), at_most=24).rows] == [Role.SUSPECT] * 2


def test_in_a_healthy_job_everybody_is_free():
    (everybody,) = wait_table(*healthy(), at_most=24).rows
    assert everybody.cells == ("0-3", Role.FREE, "nothing unfinished", "-", "-", "-")


def test_a_rank_without_a_record_is_silent_unless_it_is_accused():
    job, analysis = hang(expected=range(6))
    assert roles(job, analysis)[5] is Role.SILENT
    finding = dataclasses.replace(analysis.findings[0], culprits=(5,))
    accused = dataclasses.replace(analysis, findings=(finding,))
    assert roles(job, accused)[5] is Role.CULPRIT


def test_a_thousand_ranks_are_three_crowds():
    made = crowds(*megatron(128), at_most=24)
    assert [len(ranks) for ranks in made] == [1, 1016, 7]


def test_equal_groups_fold_when_there_are_too_many():
    """Each of 40 pairs waits in its own group for rank 80: two groups of one purpose are alike."""
    groups = tuple(Group(f"g{i}", "pp", (2 * i, 2 * i + 1, 80)) for i in range(40))
    job = job_of(
        (entry(rank, 1, OPEN, group=rank // 2) for rank in range(80)),
        ranks=range(81),
        groups=groups,
    )
    waits = tuple(RecordedWait(rank, (80,), rank // 2, 1, "all_reduce", rank) for rank in range(80))
    finding = Finding(Fault.NOT_ENTERED, "80", (80,), victims=tuple(range(80)))
    analysis = Analysis((finding,), waits)
    assert crowds(job, analysis, at_most=24) == ((80,), tuple(range(80)))
    _, rest = wait_table(job, analysis, at_most=24).rows
    assert rest.cells[2] == "all_reduce of pp and its like (40 groups)"
    assert len(crowds(job, analysis, at_most=100)) == 41


def test_folding_keeps_those_apart_who_wait_for_somebody_else():
    """A chain: 1 waits for 0, 2 for 1 ... 39 for 38; the front of it is told apart."""
    groups = tuple(Group(f"g{i}", "pp", (i, i + 1)) for i in range(39))
    job = job_of(
        (entry(rank, 1, OPEN, group=rank - 1) for rank in range(1, 40)),
        ranks=range(40),
        groups=groups,
    )
    waits = tuple(RecordedWait(r, (r - 1,), r - 1, 1, "recv", r - 1) for r in range(1, 40))
    finding = Finding(Fault.NOT_ENTERED, "0", (0,), victims=tuple(range(1, 40)))
    made = crowds(job, Analysis((finding,), waits), at_most=10)
    assert made == ((0,), (1,), tuple(range(2, 40)))


def test_more_kinds_than_rows_fold_by_role():
    job = job_of(
        (entry(rank, rank, OPEN, group=rank) for rank in range(60)),
        ranks=range(60),
        groups=tuple(Group(f"g{i}", f"purpose {i}", (i, 59)) for i in range(60)),
    )
    waits = tuple(RecordedWait(r, (59,), r, r, "all_reduce", r) for r in range(59))
    finding = Finding(Fault.GPU_BEHIND, "59", (59,), victims=tuple(range(59)))
    table = wait_table(job, Analysis((finding,), waits), at_most=24)
    assert list(dict.fromkeys(row.role for row in table.rows)) == [Role.CULPRIT, Role.VICTIM]


def test_the_order_of_waits_changes_nothing():
    job, analysis = megatron(8)
    waits = list(analysis.waits)
    random.Random(5).shuffle(waits)
    shuffled = dataclasses.replace(analysis, waits=tuple(waits))
    assert crowds(job, shuffled, at_most=24) == crowds(job, analysis, at_most=24)
