"""Lost progress: told when all that had it are gone, and only then."""

from __future__ import annotations

import pytest

from lightkeeper.monitor.model.observation import Failure, Snapshot, Unreachable
from lightkeeper.monitor.model.run import Run
from tests.changed import replace
from tests.monitor.fleet import START_S, Drive, SimFleet, at, crash, ended_by
from tests.monitor.fleet.told import Alter, reports

KINDS_OF_END = {"crash": crash, "asked": lambda rank: ended_by(rank, "SIGTERM")}


def restarted(group: str):
    return lambda fleet: fleet.restart(group)


def fall(end=crash, groups=("rg_0", "rg_1", "rg_2")) -> SimFleet:
    """These groups end at 40 s and start again at 55 s."""
    script = [at(40, end(f"{group}.0")) for group in groups]
    return SimFleet(3, 1, [*script, *(at(55, restarted(group)) for group in groups)])


def from_step(start: int, since: float) -> Alter:
    """From this second on processes count their steps from here: what they loaded."""

    def alter(seen: Snapshot) -> Snapshot:
        if seen.now_s - START_S < since:
            return seen
        lives = {
            o.identity.rank for o in seen.observations if not o.identity.incarnation.endswith("#0")
        }

        def step(report):
            if report.step is None:
                return report
            return replace(report, step=replace(report.step, step=start + report.step.commits))

        return reports(step, *lives)(seen) if lives else seen

    return alter


def in_runs(alter: Alter, second_s: float) -> Alter:
    """The same, in two runs of the job."""

    def both(seen: Snapshot) -> Snapshot:
        late = seen.now_s - START_S >= second_s
        run = Run("second" if late else "first", "job", START_S + (second_s if late else 0.0))
        return alter(replace(seen, run=run))

    return both


def lost(drive: Drive) -> list[str]:
    return [i.verdict.brief for i in drive.seen.values() if i.kind == "progress_lost"]


@pytest.mark.parametrize("start", [0, 30], ids=["from the beginning", "from a checkpoint"])
def test_a_job_that_goes_on_from_an_earlier_step_says_how_much_it_cost(start: int) -> None:
    drive = Drive(fall(), alter=from_step(start, 50)).run(90)
    (brief,) = lost(drive)
    verdict = drive.incident("progress_lost").verdict
    assert brief.startswith(f"the job continued from step {start}: ")
    assert "rank-seconds" in brief
    assert verdict.culprits == ()
    assert "every process that had it is gone. rg_0.0 ended first: " in verdict.reason
    assert drive.evicted() == []


def test_it_is_over_when_the_job_has_passed_that_step_again() -> None:
    drive = Drive(fall(), alter=from_step(30, 50)).run(140)
    incident = drive.incident("progress_lost")
    assert incident.resolution == "it has passed that step again"


def test_a_group_that_heals_from_the_others_loses_nothing() -> None:
    assert lost(Drive(fall(groups=("rg_1",))).run(90)) == []


def test_a_new_run_after_a_fall_is_compared_with_the_last_one() -> None:
    (brief,) = lost(Drive(fall(), alter=in_runs(from_step(0, 50), 55)).run(90))
    assert brief.startswith("the job continued from step 0: ")


def test_who_ends_a_job_and_starts_it_anew_has_lost_nothing() -> None:
    drive = Drive(fall(KINDS_OF_END["asked"]), alter=in_runs(from_step(0, 50), 55)).run(90)
    assert lost(drive) == []


def test_a_run_of_which_one_group_was_ended_by_a_person_has_lost_nothing() -> None:
    ends = [at(40, crash("rg_0.0")), at(42, ended_by("rg_1.0", "SIGTERM"))]
    again = [at(55, restarted(group)) for group in ("rg_0", "rg_1")]
    drive = Drive(SimFleet(2, 1, [*ends, *again]), alter=in_runs(from_step(0, 50), 55)).run(90)
    assert lost(drive) == []


def test_a_group_that_lives_on_behind_the_one_that_died_says_nothing() -> None:
    def behind(seen: Snapshot) -> Snapshot:
        def step(report):
            if report.step is None:
                return report
            return replace(report, step=replace(report.step, step=report.step.step // 2))

        return reports(step, "rg_1.0")(seen)

    drive = Drive(SimFleet(2, 1, [at(40, crash("rg_0.0"))]), alter=behind).run(90)
    assert lost(drive) == []


def test_a_script_that_counts_its_steps_anew_in_each_epoch_loses_nothing() -> None:
    def epochs(seen: Snapshot) -> Snapshot:
        def step(report):
            if report.step is None:
                return report
            return replace(report, step=replace(report.step, step=report.step.step % 20))

        return reports(step, *(o.identity.rank for o in seen.observations))(seen)

    assert lost(Drive(fall(), alter=epochs).run(120)) == []


def test_nor_after_a_restart_of_the_monitor_in_a_later_epoch() -> None:
    """Stored is a step of the epoch before; the process that had it lives on."""

    def epochs(seen: Snapshot) -> Snapshot:
        def step(report):
            if report.step is None:
                return report
            commits = report.step.commits + 500
            return replace(report, step=replace(report.step, step=3, commits=commits))

        stored = Run("first", "job", START_S - 900, seen_s=START_S - 20, step=90)
        return reports(step, *(o.identity.rank for o in seen.observations))(
            replace(seen, run=stored)
        )

    assert lost(Drive(SimFleet(2, 1, []), alter=epochs).run(40)) == []


def test_a_rank_that_is_only_not_reached_may_still_have_it() -> None:
    def silent(seen: Snapshot) -> Snapshot:
        if seen.now_s - START_S < 38:
            return seen
        away = Unreachable(Failure.TIMEOUT, "no answer")
        rows = (
            replace(row, outcome=away) if row.identity.rank == "rg_2.0" else row
            for row in seen.observations
        )
        return replace(seen, observations=tuple(rows))

    def both(seen: Snapshot) -> Snapshot:
        return silent(from_step(0, 50)(seen))

    assert lost(Drive(fall(groups=("rg_0", "rg_1")), alter=both).run(90)) == []
