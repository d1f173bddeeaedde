"""How jobs end: the root is named, not its victims, and every bad end is told."""

from __future__ import annotations

import pytest

from lightkeeper.monitor.model.observation import Snapshot
from lightkeeper.monitor.model.verdict import Confidence, RankHealth
from lightkeeper.worker_server.wire import ACROSS, Doing, Frame, StateReport
from tests.changed import replace
from tests.monitor.fleet import Drive, SimFleet, at, leaves, pause
from tests.monitor.fleet.plain import PlainJob
from tests.monitor.fleet.told import reports

TIMED_OUT = "RuntimeError: Timed out waiting 8000ms for recv operation to complete"
LOST = "RuntimeError: Connection closed by peer"


def locks(job: PlainJob) -> None:
    job.stand(0, "flush", 22, Doing.LOCK, "acquire")


def ended_at(at_s: float, signal: str = "SIGTERM") -> list:
    """Rank 1 gives up, and the launcher ends rank 0 for it."""
    return [
        (at_s, lambda job: job.end(1, TIMED_OUT, of_peers=True)),
        (at_s + 0.1, lambda job: job.end(0, signal=signal)),
    ]


@pytest.mark.parametrize("timeout_s", [8, 20])
@pytest.mark.parametrize("signal", ["SIGTERM", "SIGKILL"])
def test_a_hang_that_the_peers_timeout_ended_names_who_stood_and_says_who_gave_up(
    timeout_s, signal
) -> None:
    end_s = 20.5 + timeout_s
    job = PlainJob(2, (20, locks), *ended_at(end_s, signal), timeout_s=timeout_s)
    drive = Drive(job).run(int(end_s) + 15)
    incident = drive.incident("not_entered")
    assert incident.culprits == ("job.0",)
    assert drive.accused() == {"job.0"}
    assert incident.open
    [incident] = [shown for shown in drive.last.incidents if shown.id == incident.id]
    reason = incident.verdict.reason
    assert "stood in flush (train.py:22), waiting for a lock," in reason
    assert f"ended by its launcher ({signal})" in reason
    assert f"job.1 gave up after {timeout_s}" in reason
    assert len(drive.fired) == 1
    assert drive.last.rank_health["job.0"] is RankHealth.DEAD


def test_who_stands_on_when_its_waiter_has_given_up_is_still_the_culprit() -> None:
    job = PlainJob(2, (20, locks), ended_at(28.5)[0], timeout_s=8)
    drive = Drive(job).run(50)
    assert drive.accused() == {"job.0"}
    [incident] = drive.last.incidents
    assert "job.1 gave up after 8" in incident.verdict.reason


def test_a_save_that_outlasts_the_timeout_is_no_hang_but_the_timeout_is_told() -> None:
    def saves(job: PlainJob) -> None:
        job.stand(0, "save_checkpoint", 31, Doing.SAVE, bytes_s=12e6)

    job = PlainJob(2, (20, saves), *ended_at(40.5), timeout_s=20)
    drive = Drive(job).run(55)
    assert not drive.accused()
    said = [drive.seen[key].verdict.reason for key in drive.fired]
    assert any("12 MB/s there: the timeout is shorter" in reason for reason in said)


def test_a_rank_that_leaves_with_0_while_others_are_inside_left_early() -> None:
    drive = Drive(PlainJob(3, (20, lambda job: job.end(2, code=0)))).run(40)
    incident = drive.incident("dead")
    assert incident.culprits == ("job.2",)
    assert "exit code 0" in incident.verdict.reason
    assert incident.verdict.victims == ("job.0", "job.1")


def test_ranks_that_finish_one_after_the_other_are_done() -> None:
    def finish(number: int):
        return 20 + number / 4, lambda job: job.end(number, code=0)

    drive = Drive(PlainJob(3, *map(finish, range(3)))).run(40)
    assert not drive.seen


def test_a_rank_that_its_own_queue_keeps_at_its_end_is_told_and_its_peer_has_not_died() -> None:
    def ends(job: PlainJob) -> None:
        job.end(1, code=0)
        job.stand(0, "", 0)
        frame = Frame("Thread._wait_for_tstate_lock", "threading.py", 1132)
        job.ranks[0].place = frame, Doing.LOCK, None

    reason = Drive(PlainJob(2, (20.0, ends))).run(90).incident("deadlock").verdict.reason
    assert "job.0 is at its end: its program is over, and a thread, queue or child" in reason
    assert "; a process of job ended meanwhile: some may wait" in reason


@pytest.mark.parametrize("groups", [1, 2])
def test_ranks_that_report_phases_and_end_with_0_are_done_though_one_saves_for_long(groups) -> None:
    """And though none has called `reporter.close()`."""
    last, *others = [f"rg_{group}.{rank}" for group in range(groups) for rank in range(2)]
    saves = at(19, pause([last], "checkpoint", 25))
    ends = [at(20 + n, leaves(rank)) for n, rank in enumerate(others)]
    drive = Drive(SimFleet(groups, 2, [saves, *ends, at(44, leaves(last))])).run(60)
    assert not drive.fired


def test_a_rank_that_reports_phases_and_leaves_with_0_while_others_wait_for_it_left_early() -> None:
    incident = Drive(SimFleet(1, 3, [at(20, leaves("rg_0.2"))])).run(50).incident("dead")
    assert incident.culprits == ("rg_0.2",)
    assert incident.verdict.victims == ("rg_0.0", "rg_0.1")
    assert "left with exit code 0" in incident.verdict.reason


def test_who_left_with_0_is_named_once_all_others_have_lost_it() -> None:
    lost = [(20.4, lambda job, n=n: job.end(n, LOST, of_peers=True)) for n in (1, 2)]
    drive = Drive(PlainJob(3, (20.1, lambda job: job.end(0, code=0)), *lost)).run(35)
    assert drive.accused() == {"job.0"}
    [incident] = [drive.seen[key] for key in drive.fired]
    assert incident.verdict.reason.startswith("job.0 left with exit code 0; job.1 and job.2 lost")


def lost_after_a_call(asked: bool = False) -> PlainJob:
    """Rank 1 makes a call more than rank 0, which is leaving; no poll sees it wait."""
    job = PlainJob(
        2,
        (20.1, lambda job: job.end(0, code=0)),
        (20.2, lambda job: job.call(1)),
        (20.4, lambda job: job.end(1, LOST, of_peers=True)),
    )
    job.ranks[0].handles_sigterm = asked
    return job


def test_who_left_with_0_before_a_call_that_its_peer_made_left_early() -> None:
    drive = Drive(lost_after_a_call()).run(35)
    incident = drive.incident("dead")
    assert incident.culprits == ("job.0",)
    assert "left with exit code 0 while job.1 was still in" in incident.verdict.reason
    assert f"left early; it ended after that: {LOST}" in incident.verdict.reason


def test_who_left_with_0_is_not_behind_by_a_head_of_torchs_that_is_older_than_its_end() -> None:
    def of_torch(report: StateReport) -> StateReport:
        return replace(report, heads=tuple(replace(h, read_age_s=1.5) for h in report.heads))

    reason = (
        Drive(lost_after_a_call(), alter=reports(of_torch)).run(35).incident("dead").verdict.reason
    )
    assert reason.startswith("job.0 left with exit code 0; job.1 lost it")


def test_who_left_early_and_may_have_been_asked_to_is_no_culprit() -> None:
    assert not Drive(lost_after_a_call(asked=True)).run(35).accused()


def test_a_rank_that_handles_sigterm_and_left_with_0_was_perhaps_asked_to() -> None:
    job = PlainJob(3, (20, lambda job: job.end(2, code=0)))
    job.ranks[2].handles_sigterm = True
    reason = Drive(job).run(40).incident("dead").verdict.reason
    assert reason.startswith("job.2 left with exit code 0, perhaps because it was asked to (it")


def test_an_error_of_its_own_is_certain_whatever_words_it_has() -> None:
    raises = (20.1, lambda job: job.end(0, "ReadTimeout: Read timed out", of_peers=False))
    follows = (20.3, lambda job: job.end(1, LOST, of_peers=True))
    drive = Drive(PlainJob(2, raises, follows)).run(35)
    incident = drive.incident("dead")
    assert (incident.culprits, incident.verdict.confidence) == (("job.0",), Confidence.CERTAIN)


def test_who_lost_it_in_the_same_moment_is_not_named_beside_who_raised() -> None:
    job = PlainJob(
        3,
        (20.10, lambda job: job.end(0, LOST, of_peers=True)),
        (20.11, lambda job: job.end(1, "ValueError: no UTF-8", of_peers=False)),
        (20.12, lambda job: job.end(2, LOST, of_peers=True)),
    )
    drive = Drive(job).run(35)
    assert drive.accused() == {"job.1"}


def test_the_same_error_at_one_place_on_all_ranks_is_the_program() -> None:
    raises = [
        (20 + n / 5, lambda job, n=n: job.end(n, "ValueError: no data", of_peers=False))
        for n in range(3)
    ]
    drive = Drive(PlainJob(3, *raises)).run(35)
    incident = drive.incident("dead")
    assert incident.culprits == ()
    assert "ValueError: no data in main (train.py:9)" in incident.verdict.reason


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGHUP", "SIGUSR1"])
def test_a_job_killed_as_a_whole_is_told_and_accuses_nobody(signal: str) -> None:
    kills = [(20 + n / 20, lambda job, n=n: job.end(n, signal=signal)) for n in range(3)]
    drive = Drive(PlainJob(3, *kills)).run(35)
    assert not drive.accused()
    assert signal in drive.incident("dead").verdict.reason


def test_a_rank_that_aborts_without_a_word_is_no_proof_of_its_own_fault() -> None:
    aborts = (20.1, lambda job: job.end(0, signal="SIGABRT"))
    asked = (20.3, lambda job: job.end(1, signal="SIGTERM"))
    drive = Drive(PlainJob(2, aborts, asked)).run(35)
    assert not drive.accused()
    assert "SIGABRT" in drive.incident("dead").verdict.reason


def test_who_aborted_in_a_call_of_its_own_comes_before_those_that_the_launcher_ended() -> None:
    job = PlainJob(
        3,
        (20.0, lambda job: job.call(0)),
        (20.1, lambda job: job.end(0, signal="SIGABRT")),
        (20.2, lambda job: job.end(1, signal="SIGTERM")),
        (20.2, lambda job: job.end(2, LOST, of_peers=True)),
    )
    drive = Drive(job).run(35)
    assert not drive.accused()
    assert drive.incident("dead").verdict.reason.startswith("rank job.0 died")


@pytest.mark.parametrize("lost", [True, False])  # or its launcher is faster
@pytest.mark.parametrize(("site", "accused"), [("train.py:81", {"job.0"}), ("train.py:7", set())])
def test_who_aborted_in_a_call_that_only_it_has_made_strayed_from_its_peers(
    site, accused, lost
) -> None:
    """Gloo aborts it, since the others are in calls of C++'s with other sizes. From a line that it
    has called before it may be the others that went astray.
    """
    end = {"exception": LOST, "of_peers": True} if lost else {"signal": "SIGTERM"}
    job = PlainJob(
        3,
        (20.05, lambda job: job.call(0, site=site)),
        (20.1, lambda job: job.end(0, signal="SIGABRT")),
        (20.2, lambda job: job.end(1, **end)),
        (20.2, lambda job: job.end(2, signal="SIGTERM")),
    )
    drive = Drive(job).run(35)
    assert drive.accused() == accused
    if accused:
        reason = drive.incident("dead").verdict.reason
        assert "in its first all_reduce at train.py:81, which no other rank has entered" in reason


def test_who_aborts_since_its_peers_were_asked_to_end_has_not_strayed() -> None:
    job = PlainJob(
        3,
        (20.05, lambda job: job.call(0, site="train.py:81")),
        (20.1, lambda job: job.end(1, signal="SIGTERM")),
        (20.2, lambda job: job.end(0, signal="SIGABRT")),
        (20.3, lambda job: job.end(2, signal="SIGTERM")),
    )
    assert not Drive(job).run(35).accused()


def test_records_of_peers_from_before_their_end_do_not_show_what_they_never_entered() -> None:
    job = PlainJob(
        3,
        (20.05, lambda job: job.call(0, site="train.py:81")),
        (20.1, lambda job: job.end(0, signal="SIGABRT")),
        (20.2, lambda job: job.end(1, LOST, of_peers=True)),
        (20.2, lambda job: job.end(2, LOST, of_peers=True)),
    )

    def early(seen: Snapshot) -> Snapshot:
        """Those of job.1 and job.2 come before their end, and no more."""
        records = {rank: record for rank, record in seen.records.items() if rank == "job.0"}
        if seen.tick == 19:
            records |= {rank.name: job._record(rank) for rank in job.ranks[1:]}
        return replace(seen, records=records)

    assert not Drive(job, alter=early).run(35).accused()


def test_who_is_done_has_left_nobody_who_waits_across_groups() -> None:
    done = (20, lambda job: [job.end(2, code=0), *(job.call(n, group=ACROSS) for n in (0, 1))])
    assert not Drive(PlainJob(3, done)).run(40).accused()


def test_an_error_of_c_plus_plus_that_nobody_can_place_ends_a_wait_if_the_rank_waited() -> None:
    pair = "RuntimeError: Application timeout caused pair closure"
    job = PlainJob(
        2,
        (20, locks),
        (28.5, lambda job: job.end(1, pair, of_peers=None)),
        (28.6, lambda job: job.end(0, signal="SIGTERM")),
        timeout_s=8,
    )
    drive = Drive(job).run(45)
    assert drive.accused() == {"job.0"}


def test_and_convicts_nobody_if_it_did_not() -> None:
    pair = "RuntimeError: Application timeout caused pair closure"
    drive = Drive(
        PlainJob(
            2,
            (20.1, lambda job: job.end(1, pair, of_peers=None)),
            (20.3, lambda job: job.end(0, signal="SIGTERM")),
        )
    ).run(35)
    assert not drive.accused()
    assert drive.fired
