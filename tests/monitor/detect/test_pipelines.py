"""Plain jobs whose ranks send to each other: who is named, and who is not."""

from __future__ import annotations

import pytest

from lightkeeper.monitor.model.verdict import Confidence
from lightkeeper.worker_server.wire import Doing
from tests.monitor.fleet import Drive
from tests.monitor.fleet.plain import PlainJob


def stage_hangs(job: PlainJob) -> None:
    """0 sends to 1, which opens a dead file; 2 waits for 1."""
    job.transfer(0, "send", 1, done=True)
    job.transfer(0, "recv", 1)
    job.transfer(1, "recv", 0, done=True)
    job.stand(1, "read_shard", 22, Doing.IO)
    job.transfer(2, "recv", 1)


def test_a_stage_that_stands_in_a_file_is_named_with_its_line_and_its_neighbours_are_not() -> None:
    drive = Drive(PlainJob(3, (20, stage_hangs))).run(50)
    incident = drive.incident("not_entered")
    assert incident.culprits == ("job.1",)
    assert "read_shard (train.py:22)" in incident.verdict.reason
    assert incident.verdict.victims == ("job.0", "job.2")
    assert drive.accused() == {"job.1"}


def both_send_first(job: PlainJob) -> None:
    job.transfer(0, "send", 1, site="pipe.py:31")
    job.transfer(1, "send", 0, site="pipe.py:45")


def in_the_wrong_order(job: PlainJob) -> None:
    job.transfer(0, "send", 2, site="pipe.py:31")
    job.transfer(1, "recv", 0, site="pipe.py:45")
    job.transfer(2, "recv", 1, site="pipe.py:50")


@pytest.mark.parametrize("strike", [both_send_first, in_the_wrong_order])
def test_a_circle_of_transfers_names_every_line_and_accuses_nobody(strike) -> None:
    drive = Drive(PlainJob(3, (20, strike))).run(50)
    incident = drive.incident("deadlock")
    assert not drive.accused()
    assert incident.verdict.confidence is Confidence.UNSURE
    assert "pipe.py:31" in incident.verdict.reason
    assert "pipe.py:45" in incident.verdict.reason


@pytest.mark.parametrize(("stand", "culprits"), [((1,), {"job.1"}), ((1, 2), set())])
def test_a_server_that_receives_from_anybody_waits_for_the_only_rank_that_can_send(stand, culprits):
    def works(job: PlainJob) -> None:
        job.transfer(0, "recv", -1)
        job.transfer(3, "recv", 0)
        for number in (1, 2):
            if number in stand:
                job.stand(number, "works", 55, Doing.LOCK)
            else:
                job.transfer(number, "recv", 0)

    assert Drive(PlainJob(4, (20, works))).run(60).accused() == culprits


def test_a_healthy_pipeline_is_silent() -> None:
    def step(job: PlainJob) -> None:
        for low, high in ((0, 1), (1, 2)):
            job.transfer(low, "isend", high, done=True)
            job.transfer(high, "recv", low, done=True)

    drive = Drive(PlainJob(3, *((2.0 + n, step) for n in range(40)))).run(45)
    assert not drive.seen
