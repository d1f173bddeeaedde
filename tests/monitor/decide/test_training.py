"""How bad it is, and whether the job trains, follow from commits, never from the confidence."""

from __future__ import annotations

import itertools

import pytest

from lightkeeper.monitor.decide.commits import Commits
from lightkeeper.monitor.decide.pipeline import Pipeline
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.incident import Training, severity_of
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.verdict import Confidence, Kind, Severity, Verdict
from tests.monitor.detect.test_mismatch import records
from tests.monitor.fleet import Drive, SimFleet, at, crash, hang, mismatch, recover, stop

WATCH = KeeperConfig(observe=True)
A, B = RankName("rg_0.0"), RankName("rg_0.1")


def verdict(kind: Kind, confidence: Confidence, **changes) -> Verdict:
    return Verdict(
        kind=kind, culprits=(A, B), reason="it is so", confidence=confidence, since_s=0.0, **changes
    )


def severities(kind: Kind, training: Training, **changes) -> set[Severity]:
    """Of verdicts that differ in nothing but how sure they are."""
    return {severity_of(verdict(kind, sure, **changes), training) for sure in Confidence}


def test_how_sure_a_verdict_is_never_changes_how_bad_it_is() -> None:
    waits = [(), (RankName("rg_1.0"),)]
    cases = itertools.product(Kind, Training, waits, ["", "it hangs nobody"])
    changed = [
        (kind, training, victims, spare)
        for kind, training, victims, spare in cases
        if len(severities(kind, training, victims=victims, spare=spare)) != 1
    ]
    assert changed == []


STOPS = [Kind.DEAD, Kind.NOT_ENTERED, Kind.MISMATCH, Kind.DEADLOCK]


@pytest.mark.parametrize("kind", STOPS)
def test_what_may_be_why_nobody_commits_is_critical(kind) -> None:
    assert severities(kind, Training.STANDS) == {Severity.CRITICAL}


@pytest.mark.parametrize("kind", [*STOPS, Kind.REPLICA_LAG, Kind.UNSEEN, Kind.LIGHTHOUSE_AWAY])
def test_while_the_job_commits_nothing_but_corrupt_numbers_is_critical(kind) -> None:
    assert severities(kind, Training.TRAINS, victims=(A,)) == {Severity.WARNING}
    assert severities(Kind.STATE_CORRUPT, Training.TRAINS) == {Severity.CRITICAL}


@pytest.mark.parametrize("kind", [Kind.MISMATCH, Kind.DEADLOCK])
def test_ranks_that_wait_for_each_other_are_critical_before_a_commit_is_missing(kind) -> None:
    assert severities(kind, Training.UNKNOWN) == {Severity.CRITICAL}
    assert severities(Kind.MISMATCH, Training.UNKNOWN, spare="it hangs nobody") == {
        Severity.WARNING
    }


def test_a_loss_that_jumps_in_one_group_is_a_warning() -> None:
    assert severities(Kind.STATE_CORRUPT, Training.TRAINS, spare="one group's data") == {
        Severity.WARNING
    }


def test_a_mismatch_that_nobody_can_be_blamed_for_is_critical_and_the_job_does_not_train() -> None:
    """Plain DDP of two ranks: one calls something else, and no other group shows what is right."""
    forgotten = records(lambda record: {"ring": record.ring[-1:]}, "rg_0.0", "rg_0.1")
    drive = Drive(SimFleet(1, 2, [at(20, mismatch("rg_0.1"))]), WATCH, alter=forgotten).run(40)
    incident = drive.incident("mismatch")
    assert (incident.verdict.confidence, incident.candidates) == (Confidence.UNSURE, (A, B))
    assert (incident.severity, incident.training) == (Severity.CRITICAL, Training.STANDS)


@pytest.mark.parametrize("source", ["reporter", None], ids=["with steps", "attached only"])
def test_while_a_rank_hangs_the_job_stands_and_once_it_moves_the_job_goes_on(source) -> None:
    script = [at(20, stop("rg_0.1")), at(45, recover("rg_0.1"))]
    drive = Drive(SimFleet(1, 2, script, source=source), WATCH).run(44)
    incident = drive.incident("not_entered")
    assert (incident.severity, incident.training) == (Severity.CRITICAL, Training.STANDS)
    drive.run(30)
    after = drive.seen[incident.id]
    assert (after.training, after.stood) == (Training.TRAINS, True)


@pytest.mark.parametrize("source", ["reporter", None], ids=["with steps", "attached only"])
def test_a_monitor_that_begins_while_the_job_stands_does_not_say_that_it_trains(source) -> None:
    fleet = SimFleet(1, 2, [at(20, stop("rg_0.1"))], source=source)
    before, pipeline = Drive(fleet, WATCH).run(44).last.incidents, Pipeline(WATCH)
    pipeline.go_on(before, ())
    after = Drive(fleet, WATCH, pipeline=pipeline).run(20).last.incidents
    assert [line.to for line in after[0].story] == [line.to for line in before[0].story]


def test_a_death_that_the_others_train_through_is_a_warning() -> None:
    fleet = SimFleet(3, 1, [at(20, crash("rg_1.0"))], relaunch=False)
    incident = Drive(fleet, WATCH).run(34).incident("dead")
    assert (incident.severity, incident.training) == (Severity.WARNING, Training.TRAINS)


def commits(**changes) -> Commits:
    return Commits(
        **{"now_s": 100.0, "last_s": 99.0, "slack_s": 2.0, "limit_s": 5.0, "paused": False}
        | changes
    )


@pytest.mark.parametrize(
    ("seen", "began_s", "training"),
    [
        pytest.param(commits(), 90.0, Training.TRAINS, id="a commit since"),
        pytest.param(commits(), 98.0, Training.UNKNOWN, id="of a step that began before"),
        pytest.param(commits(last_s=94.0), 96.0, Training.STANDS, id="none since"),
        pytest.param(commits(last_s=94.0), 50.0, Training.STANDS, id="none any more"),
        pytest.param(commits(last_s=40.0, paused=True), 50.0, Training.UNKNOWN, id="a checkpoint"),
        pytest.param(commits(last_s=70.0, limit_s=60.0), 90.0, Training.UNKNOWN, id="local steps"),
        pytest.param(commits(last_s=None), 90.0, Training.UNKNOWN, id="nobody is here"),
    ],
)
def test_a_job_trains_if_it_committed_since_and_not_long_ago(seen, began_s, training) -> None:
    assert seen.since(began_s) is training


def test_a_hang_that_begins_stands_from_the_first_second_that_a_commit_is_missing() -> None:
    drive = Drive(SimFleet(3, 1, [at(20, hang("rg_1.0"))]), WATCH).run(60)
    incident = drive.incident("not_entered")
    assert drive.fired[incident.id] <= 27
    assert (incident.severity, incident.training) == (Severity.CRITICAL, Training.STANDS)
