"""A job's start: stores, process groups that ranks create, and who stands before them."""

from __future__ import annotations

import pytest

from lightkeeper.monitor.model.verdict import Confidence
from lightkeeper.worker_server.wire import Doing, MadeGroup
from tests.monitor.fleet import Drive
from tests.monitor.fleet.plain import PlainJob
from tests.monitor.fleet.told import process, reports


def test_a_group_that_one_rank_leaves_out_names_it_with_both_lines() -> None:
    def strike(job: PlainJob) -> None:
        for number in (1, 2):
            made = (MadeGroup((1, 2), "train.py:10"),)
            job.form(number, 2, (), line=12, earlier=made)
        job.form(0, 1, (), line=12)

    drive = Drive(PlainJob(3, (2, strike))).run(20)
    verdict = drive.incident("mismatch").verdict
    assert (verdict.culprits, verdict.confidence) == (("job.0",), Confidence.LIKELY)
    assert "train.py:12" in verdict.reason
    assert verdict.reason.endswith("job.0 left out the one of ranks 1 and 2 (train.py:10)")


def test_of_two_ranks_neither_is_accused() -> None:
    def strike(job: PlainJob) -> None:
        job.form(0, 1, (0, 1), line=10)
        job.form(1, 1, (1,), line=12)

    drive = Drive(PlainJob(2, (2, strike))).run(20)
    assert not drive.accused()
    assert "one side left a call out" in drive.incident("mismatch").verdict.reason


def test_a_rank_that_trains_on_without_the_group_left_it_out() -> None:
    def strike(job: PlainJob) -> None:
        for number in (1, 2):
            job.form(number, 3, (0, 1), line=10)
        job.call(0, "barrier", site="train.py:20")

    drive = Drive(PlainJob(3, (20, strike))).run(40)
    assert drive.accused() == {"job.0"}


def test_ranks_that_all_wait_for_a_store_accuse_nobody_and_name_it() -> None:
    def strike(job: PlainJob) -> None:
        for number in range(3):
            job.form(number, 0, line=8, store="node:29500")

    drive = Drive(PlainJob(3, (0, strike), begins=False)).run(50)
    assert not drive.accused()
    assert "for the store at node:29500" in drive.incident("deadlock").verdict.reason


def test_a_rank_that_stands_in_a_file_before_the_first_step_is_named_before_its_peers_give_up() -> (
    None
):
    def strike(job: PlainJob) -> None:
        job.stand(0, "first_batch", 14, Doing.IO)
        for number in (1, 2):
            job.call(number)

    drive = Drive(PlainJob(3, (0, strike), begins=False, timeout_s=60)).run(60)
    incident = drive.incident("not_entered")
    assert incident.culprits == ("job.0",)
    assert drive.fired[incident.id] < 50
    assert "first_batch (train.py:14)" in incident.verdict.reason


@pytest.mark.parametrize(("doing", "cores", "fires", "ticks"), [
    (Doing.LOCK, 0.0, True, 80), (Doing.COMPILE, 0.0, True, 330), (Doing.COMPILE, 0.9, False, 330),
])  # fmt: skip
def test_a_job_whose_ranks_all_wait_for_the_lock_of_a_build_is_told(
    doing: Doing, cores: float, fires: bool, ticks: int
) -> None:
    """Each at its place since the start, before they meet; one that compiles computes."""

    def strike(job: PlainJob) -> None:
        for number in range(3):
            job.stand(number, "build", 14, doing, "wait")

    drive = Drive(PlainJob(3, (0, strike), begins=False), alter=reports(process(cores=cores)))
    assert not drive.run(ticks).accused()
    assert bool(drive.fired) == fires
    if fires:
        assert "in build (train.py:14)" in drive.incident("deadlock").verdict.reason


def test_ranks_that_come_to_the_start_one_after_the_other_are_silent() -> None:
    def come(number: int):
        return 2 + 8 * number, lambda job: job.form(number, 0, store="node:29500")

    drive = Drive(PlainJob(3, *map(come, range(3)), begins=False)).run(28)
    assert not drive.fired
