"""Partial sight is sight: whatever part of a job can be seen, nobody but the culprit is accused,
and that the job stands is told.

Each fault of one rank (job.1 of five) meets each way in which something cannot be seen.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lightkeeper.worker_server.wire import Doing, Frame, StateReport, Witness
from tests.changed import replace
from tests.deep import crossed
from tests.monitor.fleet import Drive, SimFleet, at, hang, leaves_out, leaves_vote, mismatch
from tests.monitor.fleet.plain import PlainJob
from tests.monitor.fleet.told import Alter, recordless, reports, unanswered, unregistered

CULPRIT = "job.1"
LOST = "RuntimeError: Connection closed by peer"
TIMED_OUT = "RuntimeError: Timed out waiting 8000ms for recv operation to complete"
Act = Callable[[PlainJob], object]


def stops(job: PlainJob) -> None:
    job.ranks[1].moves, job.ranks[1].since_s, job.ranks[1].state = False, job.now_s, "T"


def end(*ranks: int, **how: object) -> Act:
    return lambda job: [job.end(rank, **how) for rank in ranks]


HANGS: dict[str, list[tuple[float, Act]]] = {
    "a lock": [(20, lambda job: job.stand(1, "flush", 22, Doing.LOCK, "acquire"))],
    "a file": [(20, lambda job: job.stand(1, "read", 22, Doing.IO, "open"))],
    "a loop": [(20, lambda job: job.stand(1, "until_ready", 22))],
    "is stopped": [(20, stops)],
    "another operation": [(20, lambda job: job.call(1, "all_gather", site="train.py:30"))],
    "another size": [(20, lambda job: job.call(1, size=16))],
    "a message that nobody sends": [(20, lambda job: job.transfer(2, "recv", 1))],
    "leaves": [(20, end(1, code=0))],
    "is killed": [(20, end(1, signal="SIGKILL"))],
    "raises": [(20, end(1, exception="ValueError: no UTF-8", of_peers=False))],
}
ENDS: dict[str, list[tuple[float, Act]]] = {
    "raises, and all end": [
        *HANGS["raises"],
        (20.1, end(0, 2, exception=LOST, of_peers=True)),
        (20.2, end(3, 4, signal="SIGTERM")),
    ],
    "a lock, until its peers give up": [
        *HANGS["a lock"],
        (28.5, end(0, 2, 4, exception=TIMED_OUT, of_peers=True)),
        (28.7, end(1, 3, signal="SIGTERM")),
    ],
}


def by_stacks(report: StateReport) -> StateReport:
    """What C++ calls: no head shows it, and a stack that stands in it does."""
    inside_s = [head.age_s for head in report.heads if head.inside]
    inside_s += [head.age_s for head in report.transfers if head.held]
    witness = report.witness
    if witness is None and report.process.alive and inside_s and min(inside_s) >= 7:
        looks = int(min(inside_s) - 7) // 5
        frame = Frame("step", "train.py", 7)
        witness = Witness(frame, Doing.COLLECTIVE, 2 + looks, 2.0 + 5 * looks, 0.5, "full_tensor")
    return replace(report, heads=(), transfers=(), witness=witness)


EVERYBODY = tuple(f"job.{number}" for number in range(5))
SIGHTS: dict[str, Alter] = {
    "all": lambda seen: seen,
    "no stacks": reports(lambda report: replace(report, witness=None)),
    "stacks only": reports(by_stacks),
    "one does not answer": unanswered("job.3"),
    "one does not answer since the fault": unanswered("job.3", after=22),
    "two do not answer": unanswered("job.3", "job.4"),
    "one was never there": unregistered("job.3"),
    "most were never there": unregistered("job.0", "job.3", "job.4"),
    "one record is lacking": recordless("job.3"),
    "no record comes": recordless(*EVERYBODY),
    "the culprit does not answer": unanswered(CULPRIT, after=22),
    "the culprit was never there": unregistered(CULPRIT),
}
STARTING = {("a loop", "stacks only"), ("is stopped", "stacks only")}
"""No steps and no heads: the job may start until 300 s are over."""


@pytest.mark.parametrize(("fault", "sight"), [*crossed([*HANGS, *ENDS], SIGHTS), *sorted(STARTING)])
def test_nobody_but_the_culprit_is_accused_and_that_the_job_stands_is_told(fault, sight) -> None:
    drive = Drive(PlainJob(5, *(HANGS | ENDS)[fault]), alter=SIGHTS[sight]).run(62)
    assert drive.accused() <= {CULPRIT}
    assert bool(drive.fired) is ((fault, sight) not in STARTING)
    assert sight != "all" or drive.accused() or "nobody sends" in fault


def test_a_long_save_is_not_hung_as_soon_as_it_cannot_be_seen() -> None:
    saves = (20, lambda job: job.stand(1, "save", 31, Doing.SAVE, bytes_s=12e6))
    assert not Drive(PlainJob(5, saves), alter=unanswered(CULPRIT, after=29)).run(60).accused()


@pytest.mark.parametrize("began_s", [0, 20])
@pytest.mark.parametrize(("wakes_s", "hangs"), [(0.0, True), (10.0, False)])
def test_who_reads_a_socket_hangs_only_if_no_byte_comes(began_s, wakes_s, hangs) -> None:
    """The first rank downloads, the others are in a barrier."""

    def strike(job: PlainJob) -> None:
        job.stand(1, "download", 31, Doing.IO, "read", wakes_s=wakes_s)
        for number in (0, 2):
            job.call(number)

    drive = Drive(PlainJob(3, (began_s, strike), begins=began_s > 0)).run(began_s + 60)
    assert drive.accused() == ({CULPRIT} if hangs else set())


@pytest.mark.parametrize("began_s", [0, 20])
@pytest.mark.parametrize("doing", [Doing.LOCK, Doing.SLEEP])
@pytest.mark.parametrize("works", [True, False])
def test_a_lock_is_waited_for_while_a_neighbour_that_may_hold_it_is_at_work(
    began_s, doing, works
) -> None:
    """One rank of a host fetches the model, the next waits for the file's lock, others for both."""

    def strike(job: PlainJob) -> None:
        if works:
            job.stand(0, "download", 31, Doing.IO, "read", wakes_s=10.0)
        else:
            job.call(0)
        job.stand(1, "fetch", 44, doing)
        job.call(2)

    drive = Drive(PlainJob(3, (began_s, strike), begins=began_s > 0)).run(began_s + 60)
    assert drive.accused() == (set() if works else {CULPRIT})


def test_who_has_no_worker_server_is_said_to_be_unknown() -> None:
    drive = Drive(PlainJob(5, *HANGS["a lock"]), alter=unregistered(CULPRIT)).run(62)
    [incident] = drive.last.incidents
    assert "nothing is known of job.1: no WorkerServer is registered" in incident.verdict.reason
    assert "nobody is missing" not in incident.verdict.reason


# -- replica groups ----------------------------------------------------------------------------

GROUP_FAULTS = {
    "hang": hang("rg_1.0"),
    "mismatch": mismatch("rg_1.0", "op"),
    "leaves a vote out": leaves_vote("rg_1.0"),
    "leaves a collective out": leaves_out("rg_1.0"),
}
GROUP_SIGHTS: dict[str, Alter] = {
    "all": lambda seen: seen,
    "one of another group does not answer": unanswered("rg_0.0", after=21),
    "another group was never there": unregistered("rg_0.0", "rg_0.1"),
    "one of its group was never there": unregistered("rg_1.1"),
    "it was never there": unregistered("rg_1.0"),
    "its group was never there": unregistered("rg_1.0", "rg_1.1"),
}


@pytest.mark.parametrize(
    ("source", "fault", "sight"), crossed(["reporter", "torchft"], GROUP_FAULTS, GROUP_SIGHTS)
)
def test_a_healthy_group_stays_whatever_can_be_seen_of_the_others(source, fault, sight) -> None:
    """Survivors wait on for a while for whom we put out: a group that nobody can see does not hang
    for that.
    """
    fleet = SimFleet(3, 2, [at(20, GROUP_FAULTS[fault])], source=source, across=True)
    fleet.tells_waits = source == "torchft"
    drive = Drive(fleet, alter=GROUP_SIGHTS[sight]).run(70)
    assert {name.partition(".")[0].partition("~")[0] for name in drive.accused()} <= {"rg_1"}
    assert {group.partition("~")[0] for group in drive.evicted()} <= {"rg_1"}
    assert drive.fired
