"""A group that the Lighthouse does not hear: it trains alone, or waits for an answer in vain."""

from __future__ import annotations

from lightkeeper.monitor.model.observation import LighthouseView, Observation, Snapshot
from lightkeeper.worker_server.wire import StateReport
from tests.changed import replace
from tests.monitor.fleet import Drive, SimFleet
from tests.monitor.fleet.rank import START_S

CUT_S = START_S + 20


def unheard(group: str, seen: Snapshot) -> Snapshot:
    """The Lighthouse's page without one group's heartbeats, from the cut on."""
    view = seen.lighthouse
    if seen.now_s < CUT_S or not isinstance(view, LighthouseView):
        return seen
    since_s = seen.now_s - CUT_S
    ages_s = {
        replica_id: age_s + since_s if replica_id.startswith(group) else age_s
        for replica_id, age_s in view.heartbeat_ages_s.items()
    }
    members = tuple(m for m in view.members if not m.replica_id.startswith(group))
    return replace(seen, lighthouse=replace(view, heartbeat_ages_s=ages_s, members=members))


def waiting(report: StateReport, now_s: float) -> StateReport:
    """It has been in the quorum since the cut."""
    step, for_s = report.step, now_s - CUT_S
    if step is None:
        return report
    still = replace(
        step, waits_in="quorum", waits_s=for_s, phase_age_s=for_s, progress=70, commits=60,
        last_commit_age_s=for_s + 1,
    )  # fmt: skip
    return replace(report, step=still, lighthouse="other:29510")


def test_a_group_that_commits_under_another_lighthouse_trains_alone_and_is_not_evicted() -> None:
    drive = Drive(SimFleet(3, 1), alter=lambda seen: unheard("rg_2", seen)).run(50)
    verdict = drive.incident("replica_lag").verdict
    assert verdict.groups == ("rg_2",)
    assert verdict.reason.startswith("rg_2 trains alone: it commits")
    assert not drive.evicts
    assert not drive.accused()


def test_a_group_without_an_answer_is_told_while_the_others_train_on() -> None:
    def cut_off(seen: Snapshot) -> Snapshot:
        def observe(observation: Observation) -> Observation:
            report = observation.report
            if report is None or observation.rank != "rg_2.0" or seen.now_s < CUT_S:
                return observation
            return replace(observation, outcome=waiting(report, seen.now_s))

        seen = unheard("rg_2", seen)
        return replace(seen, observations=tuple(map(observe, seen.observations)))

    drive = Drive(SimFleet(3, 1, source="torchft"), alter=cut_off).run(50)
    reason = drive.incident("replica_lag").verdict.reason
    assert reason.startswith("rg_2 asks for a quorum for 1")
    assert " s and is not heard: the Lighthouse had no heartbeat of it for 1" in reason
    assert "it asks the Lighthouse at other:29510" in reason
    assert not drive.evicts


def test_a_fleet_that_the_lighthouse_hears_is_silent() -> None:
    assert not Drive(SimFleet(3, 1)).run(50).seen
