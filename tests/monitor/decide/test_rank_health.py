"""How ranks look: the culprit is never healthy, and who waits is said to wait."""

from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.verdict import Kind
from lightkeeper.worker_server.wire import Process, StateReport
from tests.changed import replace
from tests.monitor.fleet import Drive, SimFleet, at, hang, slow, traced
from tests.monitor.fleet.told import reports

WATCH = KeeperConfig(observe=True)


def test_the_culprit_of_a_firing_incident_is_never_healthy_and_its_victims_wait() -> None:
    drive = Drive(SimFleet(3, 1, [at(20, hang("rg_1.0"))]), WATCH).run(90)
    incident = drive.incident("not_entered")
    for result in drive.results:
        if result.now_s < incident.milestones.firing_s:
            continue
        health = {str(rank): str(state) for rank, state in result.rank_health.items()}
        assert health == {"rg_0.0": "waiting", "rg_1.0": "stalled", "rg_2.0": "waiting"}


def test_a_straggler_that_is_found_is_slow() -> None:
    drive = Drive(SimFleet(3, 1, [at(40, slow("rg_1.0", 3.0))]), WATCH).run(120)
    assert [incident.kind for incident in drive.last.incidents if incident.open] == [Kind.STRAGGLER]
    assert drive.last.rank_health["rg_1.0"] == "slow"


def test_who_is_traced_is_said_to_be_traced_and_not_stalled() -> None:
    fleet = SimFleet(3, 1, [at(20, hang("rg_1.0")), at(20, traced("rg_1.0"))])
    drive = Drive(fleet, WATCH).run(40)
    assert drive.last.rank_health["rg_1.0"] == "traced"


def test_before_there_is_a_verdict_nobody_who_stands_is_called_healthy() -> None:
    drive = Drive(SimFleet(3, 1, [at(20, hang("rg_1.0"))]), WATCH).run(60)
    still = [r for r in drive.results if 26 <= r.now_s - drive.results[0].now_s <= 60]
    assert "healthy" not in {
        str(state) for result in still for state in result.rank_health.values()
    }


def test_a_rank_that_ended_with_exit_code_0_has_finished_while_others_train() -> None:
    def ended(report: StateReport) -> StateReport:
        gone = Process(alive=False, state=None, dead_age_s=1.0, exit_code=0)
        return replace(report, process=gone, step=None)

    drive = Drive(SimFleet(3, 1), alter=reports(ended, "rg_1.0", after=31)).run(60)
    assert not drive.seen
    assert {str(rank): str(state) for rank, state in drive.last.rank_health.items()} == {
        "rg_0.0": "healthy", "rg_1.0": "finished", "rg_2.0": "healthy",
    }  # fmt: skip
