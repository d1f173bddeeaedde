"""Dead processes, lost hosts, and what only looks like them."""

import pytest

from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Guard
from lightkeeper.monitor.model.observation import Failure, Observation, Snapshot
from lightkeeper.monitor.model.verdict import Confidence, RankHealth
from lightkeeper.worker_server.wire import GroupHead, Process, StateReport
from tests.changed import replace
from tests.monitor.fleet import (
    START_S,
    At,
    Drive,
    SimFleet,
    at,
    crash,
    ended_by,
    hang,
    pause,
    raises,
    restart,
    silent,
)
from tests.monitor.fleet.told import reports


def test_a_killed_rank_fires_at_once_its_group_goes_and_its_host_is_not_blamed() -> None:
    drive = Drive(SimFleet(2, 2, [at(20, crash("rg_1.1"))])).run(28)
    incident = drive.incident("dead")
    assert drive.fired[incident.id] == 20.0
    assert incident.culprits == ("rg_1.1",)
    assert [(evict.group, evict.quarantine) for _, evict in drive.evicts] == [("rg_1", ())]


# -- of several of a group, who died first -------------------------------------------------------


@pytest.mark.parametrize("order", [("rg_1.0", "rg_1.1"), ("rg_1.1", "rg_1.0")])
def test_of_ranks_that_die_in_one_moment_the_one_that_got_sigterm_was_taken_along(order) -> None:
    """In which order they are seen to end says nothing."""
    first, second = order
    script = [at(20.2, ended_by(first, "SIGABRT")), at(20.15, ended_by(second, "SIGTERM"))]
    config = KeeperConfig(death_slack_s=0.06)
    incident = Drive(SimFleet(2, 2, script), config).run(28).incident("dead")
    assert incident.candidates == (first,)  # SIGABRT without a word may be of a peer's doing
    assert second in incident.verdict.victims


@pytest.mark.parametrize(
    ("script", "culprits"),
    [
        pytest.param(
            [at(20, crash("rg_1.1")), at(20.1, crash("rg_1.0"))], ("rg_1.1",),
            id="taken along by its launcher 100 ms later",
        ),
        pytest.param(
            [at(20, crash("rg_1.1")), at(20, crash("rg_1.0"))], ("rg_1.0", "rg_1.1"),
            id="in one moment",
        ),
        pytest.param(
            [at(20, ended_by(f"rg_1.{n}", "SIGTERM")) for n in (0, 1)], ("rg_1.0", "rg_1.1"),
            id="both by SIGTERM",
        ),
        pytest.param(
            [at(20.1, ended_by("rg_1.1", "SIGHUP")), at(20.2, ended_by("rg_1.0", "SIGHUP"))],
            ("rg_1.0", "rg_1.1"), id="a signal that no launcher sends",
        ),
        pytest.param(
            [at(20.1, ended_by("rg_1.1", "SIGKILL")), at(20.2, ended_by("rg_1.0", "SIGKILL"))],
            ("rg_1.1",), id="a signal that a launcher sends in the end",
        ),
        pytest.param(
            [at(20.1, ended_by("rg_1.1", "SIGUSR1")), at(20.2, ended_by("rg_1.0", "SIGHUP"))],
            ("rg_1.1",), id="two signals",
        ),
        pytest.param(
            [at(20, ended_by("rg_1.1", "SIGUSR1")), at(20, ended_by("rg_1.0", "SIGSEGV"))],
            ("rg_1.0", "rg_1.1"), id="one signal and another end in the same moment",
        ),
        pytest.param(
            [at(20, ended_by("rg_1.0", "SIGKILL")), at(20, ended_by("rg_1.1", "SIGABRT"))],
            ("rg_1.0", "rg_1.1"), id="signals that say nothing of the order",
        ),
        pytest.param(
            [at(20, hang("rg_1.1")), at(23, crash("rg_1.0")), at(23, crash("rg_1.1"))],
            ("rg_1.1",), id="one waited for the other",
        ),
    ],
)  # fmt: skip
def test_who_died_first_is_the_culprit_as_far_as_it_can_be_told(script, culprits) -> None:
    incident = Drive(SimFleet(2, 2, script)).run(28).incident("dead")
    assert incident.suspects == culprits
    others = {"rg_1.0", "rg_1.1"} - {*culprits}
    assert others <= {*incident.verdict.victims}


RESET = "RuntimeError: Read error [127.0.0.1]:25986: Connection reset by peer"


@pytest.mark.parametrize(
    ("signal", "confidence"),
    [("SIGSEGV", Confidence.LIKELY), ("SIGKILL", Confidence.UNSURE)],  # launchers kill as well
)
@pytest.mark.parametrize(
    "victim",
    [raises("rg_1.0", RESET, of_peers=True), ended_by("rg_1.0", "SIGTERM")],
    ids=["lost it", "SIGTERM"],
)
def test_who_died_of_a_peers_end_was_not_the_first_though_the_peers_end_is_seen_later(
    victim, signal, confidence
) -> None:
    """Both die between two ticks; the WorkerServer of the one that was first is late."""
    script = [at(20.15, victim), at(20.2, ended_by("rg_1.1", signal))]
    incident = Drive(SimFleet(2, 2, script)).run(28).incident("dead")
    assert (incident.suspects, incident.verdict.confidence) == (("rg_1.1",), confidence)
    assert "rg_1.0" in incident.verdict.victims


def test_what_is_known_of_a_survivors_end_is_said() -> None:
    bug = "it died of TorchFT's bug 1"
    script = [at(20, crash("rg_1.0")), at(21, raises("rg_0.0", RESET, of_peers=True, detail=bug))]
    incident = Drive(SimFleet(2, 1, script)).run(23).incident("dead")
    assert incident.culprits == ("rg_1.0",)
    assert incident.verdict.reason.endswith(f"; rg_0.0 ended after it: {bug}")


@pytest.mark.parametrize(
    "second",
    [
        at(20.4, ended_by("rg_1.1", "SIGTERM")),  # by the launcher, as soon as it saw the first
        at(22.4, ended_by("rg_1.1", "SIGKILL")),  # the same, once its patience was over
        at(20.4, raises("rg_1.1", RESET, of_peers=True)),
    ],
    ids=["taken along", "killed later", "died of the same"],
)
def test_what_a_launcher_may_have_ended_is_not_blamed_for_the_first_death(second) -> None:
    script = [at(20.1, raises("rg_1.0", RESET, of_peers=True)), second]
    verdict = Drive(SimFleet(2, 2, script)).run(28).incident("dead").verdict
    assert "rg_1.0" in verdict.candidates
    assert verdict.confidence is Confidence.UNSURE


def test_groups_across_replica_groups_do_not_tell_who_waited_inside_one() -> None:
    """Each rank has a group of its own there: their sequence ids have nothing to do with others."""

    def with_torchft(report: StateReport) -> StateReport:
        entered = 9 - report.identity.group_rank
        return replace(report, heads=(GroupHead("torchft", 2, entered, 1, "all_reduce", 1.0),))

    script = [at(20, crash("rg_1.0")), at(20, crash("rg_1.1"))]
    incident = Drive(SimFleet(2, 2, script), alter=reports(with_torchft)).run(28).incident("dead")
    assert incident.culprits == ("rg_1.0", "rg_1.1")


def test_a_group_that_comes_back_rank_by_rank_does_not_change_the_culprit() -> None:
    fleet = SimFleet(2, 2, [at(20, crash("rg_1.1")), at(20.1, crash("rg_1.0")),
                            at(24, restart("rg_1", 0.5))])  # fmt: skip
    held: dict[str, Observation] = {}

    def late_successor(snapshot: Snapshot) -> Snapshot:
        """The successor of rg_1.0 registers 3 s after that of rg_1.1."""
        seen = {observation.rank: observation for observation in snapshot.observations}
        if snapshot.now_s < START_S + 23.5:
            held.update(seen)
        elif snapshot.now_s < START_S + 28:
            seen["rg_1.0"] = held["rg_1.0"]
        return replace(snapshot, observations=tuple(seen.values()))

    drive = Drive(fleet, alter=late_successor).run(60)
    assert drive.incident("dead").culprits == ("rg_1.1",)
    assert [i.kind for i in drive.seen.values()] == ["dead"]


def test_a_group_that_died_as_a_whole_needs_no_eviction() -> None:
    script = [at(20, crash("rg_1.0")), at(25, restart("rg_1"))]
    drive = Drive(SimFleet(3, 1, script)).run(60)
    assert [hold.guard for _, hold in drive.holds] == [Guard.ALREADY_GONE]
    incident = drive.incident("dead")
    assert incident.resolution == "restarted: its ranks are other processes now"
    assert incident.milestones.rejoined_s is not None


def test_a_death_inhibits_the_hang_that_it_causes_in_its_group() -> None:
    drive = Drive(SimFleet(2, 2, [at(20, hang("rg_1.0")), at(22, crash("rg_1.1"))])).run(60)
    assert {incident.kind for incident in drive.seen.values()} == {"dead"}


# -- hosts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [Failure.REFUSED, Failure.TIMEOUT, Failure.GARBAGE])
def test_an_unreachable_worker_server_is_no_dead_rank(failure) -> None:
    drive = Drive(SimFleet(3, 1, [at(20, silent("rg_1.0", 300.0, failure))])).run(70)
    assert not drive.seen
    assert drive.last.rank_health["rg_1.0"] is RankHealth.UNREACHABLE


def test_a_silent_group_whose_heartbeat_is_stale_has_lost_its_host() -> None:
    script = [at(20, crash("rg_1.0")), at(20, silent("rg_1.0", 300.0))]
    drive = Drive(SimFleet(3, 1, script)).run(60)
    incident = drive.incident("dead")
    assert incident.verdict.reason.startswith("host host-rg_1 is lost: no WorkerServer of rg_1")
    assert drive.fired[incident.id] == 36.0
    assert not drive.evicts


def test_a_host_that_refuses_is_not_lost_but_what_ran_there_is_gone() -> None:
    script = [at(20, crash("rg_1.0")), at(20, silent("rg_1.0", 300.0, Failure.REFUSED))]
    incident = Drive(SimFleet(3, 1, script)).run(60).incident("dead")
    assert incident.verdict.reason.startswith("all of rg_1 on host-rg_1 is gone at once")


def of_two_hosts(*script: At, spread: bool = True) -> Drive:
    """The rank with the Manager goes silent, dead; the other one of the group stands on."""
    lost = at(24, crash("rg_1.0")), at(24, silent("rg_1.0", 300.0))
    fleet = SimFleet(3, 2, [*script, *lost])
    for rank in fleet.ranks():
        rank.host = f"{rank.group}-{rank.index if spread else 0}"
    return Drive(fleet).run(60)


def test_the_host_of_the_manager_is_lost_and_the_rest_of_its_group_stands() -> None:
    drive = of_two_hosts()
    verdict = drive.incident("dead").verdict
    assert verdict.culprits == ("rg_1.0",)
    assert verdict.evidence["host"] == "rg_1-0"
    assert verdict.reason == (
        "host rg_1-0 is lost: no WorkerServer of rg_1.0 answers for 16 s, and the heartbeat of "
        "rg_1 is stale; rg_1.1 of the group stands"
    )
    assert [(at_s, evict.group) for at_s, evict in drive.evicts] == [(40.0, "rg_1")]


def test_a_host_is_not_lost_while_the_rest_of_its_group_saves_a_checkpoint() -> None:
    assert not of_two_hosts(at(19, pause(["rg_1.1"], "checkpoint", 60.0))).evicts


def test_a_host_on_which_one_rank_still_answers_is_not_lost() -> None:
    drive = of_two_hosts(spread=False)
    assert {str(incident.kind) for incident in drive.seen.values()} == {"not_entered"}


# -- jobs that end -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("health", "ends"),
    [
        (RankHealth.ENDED, [ended_by("rg_0.0", "SIGINT"), ended_by("rg_0.1", "SIGINT")]),
        (RankHealth.ENDED, [ended_by("rg_0.0", "SIGTERM"), ended_by("rg_0.1", "SIGTERM")]),
        (RankHealth.ENDED, [raises(f"rg_0.{n}", "KeyboardInterrupt") for n in range(2)]),
        (
            RankHealth.ENDED,
            [raises("rg_0.0", "KeyboardInterrupt"), raises("rg_0.1", RESET, of_peers=True)],
        ),
    ],
    ids=["SIGINT", "SIGTERM", "KeyboardInterrupt", "its peer lost it"],
)
def test_a_job_that_ends_as_a_whole_is_no_fault(health, ends) -> None:
    drive = Drive(SimFleet(1, 2, [at(20.1 + n / 10, end) for n, end in enumerate(ends)])).run(28)
    assert not drive.seen
    assert drive.last.rank_health["rg_0.0"] is health


@pytest.mark.parametrize("later", ["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize(
    "first", [ended_by("rg_0.1", "SIGSEGV"), raises("rg_0.1", "ValueError: bad batch")]
)
def test_who_died_by_itself_is_named_though_its_launcher_ends_the_others(first, later) -> None:
    rest = ("rg_0.0", "rg_0.2", "rg_0.3")
    script = [at(20, first), *(at(22, ended_by(rank, later)) for rank in rest)]
    drive = Drive(SimFleet(1, 4, script)).run(28)
    [accused] = [incident for incident in drive.seen.values() if incident.culprits]
    assert accused.culprits == ("rg_0.1",)
    assert accused.id in drive.fired
    health = {str(rank): state for rank, state in drive.last.rank_health.items()}
    assert health.pop("rg_0.1") is RankHealth.DEAD
    assert set(health.values()) == {
        RankHealth.ENDED if later == "SIGTERM" else RankHealth.DEAD  # nobody knows who sent SIGKILL
    }


def test_ctrl_c_ends_a_job_of_one_group_one_rank_after_the_other() -> None:
    drive = Drive(SimFleet(1, 2, [at(20, ended_by("rg_0.0", "SIGINT"))])).run(40)
    assert not drive.fired  # rg_0.1 waits in C++, and may end at any moment
    assert drive.run(20).kinds() == ["dead"]


@pytest.mark.parametrize("asks", ["SIGTERM", "SIGINT"])
def test_who_ends_what_is_left_of_a_job_after_a_death_accuses_nobody_else(asks) -> None:
    """One group died, the others trained on, and a person ended them."""
    left = [at(60, ended_by(f"rg_{group}.{n}", asks)) for group in (0, 2) for n in range(2)]
    died = [at(20, raises("rg_1.0", "ValueError: bad batch")), at(20.5, crash("rg_1.1"))]
    drive = Drive(SimFleet(3, 2, [*died, *left])).run(90)
    [incident] = drive.seen.values()
    assert incident.culprits == ("rg_1.0",)
    assert {drive.last.rank_health[f"rg_{g}.{n}"] for g in (0, 2) for n in range(2)} == {
        RankHealth.ENDED
    }


def test_a_group_that_got_sigterm_before_another_crashed_is_not_what_was_left() -> None:
    script = [at(60, ended_by(f"rg_0.{n}", "SIGTERM")) for n in range(2)]
    script += [at(62, crash(f"rg_1.{n}")) for n in range(2)]
    drive = Drive(SimFleet(2, 2, script)).run(90)
    assert {rank for seen in drive.seen.values() for rank in seen.candidates} >= {"rg_0.0"}


def test_one_rank_that_gets_ctrl_c_while_its_group_stands_is_dead() -> None:
    drive = Drive(SimFleet(2, 2, [at(20, ended_by("rg_1.1", "SIGINT"))])).run(45)
    assert drive.incident("dead").candidates == ("rg_1.1",)
    assert drive.last.rank_health["rg_1.1"] is RankHealth.DEAD


def test_ranks_that_sigterm_took_from_a_group_that_stands_on_are_no_job_that_ends() -> None:
    script = [at(20, ended_by(f"rg_1.{n}", "SIGTERM")) for n in (1, 2)]  # a host is drained
    drive = Drive(SimFleet(3, 4, script)).run(60)
    assert drive.incident("dead").culprits == ("rg_1.1", "rg_1.2")
    assert [(at_s, evict.group) for at_s, evict in drive.evicts] == [(50.0, "rg_1")]


def test_a_dead_rank_that_joined_a_group_which_trains_ends_nobody() -> None:
    """One registration with an unused number, one answer "I am dead": the group was ended."""

    def joined(seen: Snapshot) -> Snapshot:
        others = tuple(each for each in seen.observations if each.rank != "rg_1.1")
        if seen.tick < 20:
            return replace(seen, observations=others)
        free = seen.by_rank["rg_1.1"]
        died = Process(alive=False, dead_age_s=1.0 + seen.tick - 20, exit_signal="SIGKILL")
        who = replace(free.identity, incarnation="evil")
        liar = replace(free, identity=who, outcome=StateReport(who, died))
        return replace(seen, observations=(*others, liar))

    drive = Drive(SimFleet(2, 2), alter=joined).run(60)
    incident = drive.incident("dead")
    assert incident.culprits == ()
    assert "rg_1.0 of its group commits without it" in incident.verdict.reason
    assert drive.evicts == []
