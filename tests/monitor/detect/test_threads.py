"""Two threads in one process group: the program, whoever is in the minority."""

from __future__ import annotations

from tests.monitor.fleet import Drive
from tests.monitor.fleet.plain import PlainJob


def saves_meanwhile(job: PlainJob) -> None:
    """A saver's gather and the barrier of the main thread meet in another order on rank 2."""
    for rank in job.ranks:
        first, second = (
            ("barrier", "train.py:9", 1000 + rank.number),
            ("all_gather", "ckpt.py:58", 7),
        )
        if rank.number == 2:
            first, second = second, first
        for op, site, thread in (first, second):
            job.call(rank.number, op, site=site, thread=thread)


def test_a_majority_of_two_threads_convicts_nobody_and_both_lines_are_named() -> None:
    drive = Drive(PlainJob(3, (20, saves_meanwhile))).run(45)
    verdict = drive.incident("mismatch").verdict
    assert not drive.accused()
    assert verdict.culprits == ()
    assert "train.py:9" in verdict.reason
    assert "ckpt.py:58" in verdict.reason
    assert verdict.victims == ("job.0", "job.1", "job.2")
