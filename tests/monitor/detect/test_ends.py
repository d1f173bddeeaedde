"""How a group ended, by the scheduler: the first sentence, who is accused, who is not believed."""

from __future__ import annotations

import pytest

from lightkeeper.monitor.act.testimonies import read_fact
from lightkeeper.monitor.decide.pipeline import Pipeline
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.observation import Snapshot
from lightkeeper.monitor.model.verdict import TAKEN, Confidence
from lightkeeper.monitor.model.wording import rfc3339
from lightkeeper.worker_server import wire
from tests.changed import replace
from tests.monitor.fleet import START_S, Drive, SimFleet, at, crash, ended_by, raises, silent
from tests.monitor.fleet.told import Alter
from tests.monitor.journal.tape import Tape

LEFT_S = 20


def said(fact: str, detail: str = "", witness: str = "Kubernetes") -> wire.Testimony:
    made = read_fact(witness, fact, detail, 0.0)
    assert made is not None
    return made


def by_the_scheduler(row: wire.Testimony, *ranks: str) -> Alter:
    """It says so of these ranks one second after they went."""

    def alter(seen: Snapshot) -> Snapshot:
        for_s = seen.now_s - START_S - LEFT_S
        now = replace(row, for_s=max(0.0, for_s))
        return seen if for_s < 1 else replace(seen, ends=dict.fromkeys(ranks, now))

    return alter


def gone(row: wire.Testimony | None, until_s: int = 60) -> Drive:
    """A group of one rank is gone, with its WorkerServer."""
    script = [at(LEFT_S, crash("rg_1.0")), at(LEFT_S, silent("rg_1.0", 300.0))]
    alter = (lambda seen: seen) if row is None else by_the_scheduler(row, "rg_1.0")
    return Drive(SimFleet(3, 1, script), alter=alter).run(until_s)


LEFT = rfc3339(START_S + LEFT_S)[11:19] + " UTC"
TARGET = "end pod condition DisruptionTarget=True "
NAMED = "rg_1 on host-rg_1"


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        pytest.param(
            said(TARGET + "EvictionByEvictionAPI", "Eviction API: evicting"),
            "was drained: Eviction API: evicting", id="drained",
        ),
        pytest.param(
            said(TARGET + "PreemptionByScheduler", "for a pod of higher priority"),
            "was preempted: for a pod of higher priority", id="preempted",
        ),
        pytest.param(
            said("end exit OOMKilled", "container train, OOMKilled, exit code 137"),
            "ran out of memory: container train, OOMKilled, exit code 137", id="out of memory",
        ),
        pytest.param(
            said("end deleted"), "was deleted: somebody deleted its pod, and nothing tells who",
            id="deleted",
        ),
        pytest.param(
            said(TARGET + "TerminationByKubelet", "low on resource: memory"),
            "was evicted by the kubelet of its node: low on resource: memory", id="pressure",
        ),
        pytest.param(
            said(TARGET + "DeletionByTaintManager", "node not ready"),
            "was deleted for a taint of its node: node not ready", id="taint",
        ),
        pytest.param(
            said(TARGET + "ByAliens", "they took it"),
            "was ended with the reason ByAliens: they took it", id="an unknown reason is quoted",
        ),
        pytest.param(
            said("end gone node"), "went with its node, which was taken from the cluster",
            id="the node is gone",
        ),
        pytest.param(
            said("end slurm PREEMPTED", "job 12", "Slurm"), "was preempted: job 12",
            id="preempted by Slurm",
        ),
        pytest.param(
            said("end slurm TIMEOUT", "job 12", "Slurm"), "came to its time limit: job 12",
            id="its time was over",
        ),
        pytest.param(
            said("end slurm CANCELLED", "by 1000", "Slurm"), "was cancelled: by 1000",
            id="cancelled",
        ),
        pytest.param(
            said("end slurm OUT_OF_MEMORY", "job 12", "Slurm"), "ran out of memory: job 12",
            id="out of memory, by Slurm",
        ),
        pytest.param(
            said("end slurm REVOKED", "job 12", "Slurm"), "was ended by Slurm as REVOKED: job 12",
            id="an unknown state is quoted",
        ),
    ],
)  # fmt: skip
def test_who_was_taken_away_is_told_so_and_nobody_is_accused(row, sentence) -> None:
    drive = gone(row)
    incident = drive.incident("dead")
    verdict = incident.verdict
    assert verdict.reason.startswith(f"{NAMED} {sentence} ({row.witness}, at {LEFT}); no Worker")
    assert "lost" not in verdict.reason
    assert (verdict.culprits, verdict.confidence) == ((), Confidence.UNSURE)
    assert drive.accused() == set()
    assert not drive.evicts
    assert drive.fired[incident.id] < 30.0
    assert TAKEN in verdict.evidence


def test_a_lost_node_stays_the_lost_host_since_when_its_cluster_says_so() -> None:
    verdict = (
        gone(
            said(
                "end node condition Ready=Unknown NodeStatusUnknown",
                "Kubelet stopped posting node status.",
            )
        )
        .incident("dead")
        .verdict
    )
    assert verdict.reason.startswith(
        "host host-rg_1 is lost: its node is not ready: Kubelet stopped posting node status. "
        f"(Kubernetes, since {LEFT}); no WorkerServer of rg_1 answers for 17 s, "
        "and the heartbeat of rg_1 is stale"
    )
    assert verdict.culprits == ("rg_1.0",)
    assert verdict.evidence["scheduler"].startswith("Kubernetes: its node is not ready")


def test_a_pod_that_runs_on_a_node_that_is_ready_is_frozen_once_a_lost_node_would_be_seen() -> None:
    row = said("end runs", "its pod runs and its node is ready")
    early = gone(row, 60).incident("dead").verdict
    assert early.reason.startswith(
        "rg_1 on host-rg_1 does not answer: it is frozen, or its node is lost and Kubernetes has "
        "not noticed yet (its pod runs and its node is ready, it says); no WorkerServer of rg_1"
    )
    (late,) = [i.verdict for i in gone(row, 110).last.incidents if i.kind == "dead"]
    assert late.reason.startswith(
        "rg_1 on host-rg_1 is frozen: its pod runs and its node is ready (Kubernetes), and "
        "nothing in it answers; no WorkerServer of rg_1"
    )
    assert late.culprits == ("rg_1.0",)


UNKNOWN = said("end node condition Ready=Unknown", "Kubelet stopped posting node status.")


def test_what_the_scheduler_says_of_a_lost_group_after_its_eviction_is_in_the_story() -> None:
    """The verdict that was acted on stands, also with a replay; our own deletion is no news."""
    runs = by_the_scheduler(said("end runs", "its pod runs and its node is ready"), "rg_1.0")
    ours = by_the_scheduler(said("end ours"), "rg_1.0")
    lost = by_the_scheduler(UNKNOWN, "rg_1.0")

    def alter(seen: Snapshot) -> Snapshot:
        for_s = seen.now_s - START_S - LEFT_S
        alters = runs if for_s < 34 else ours if for_s < 40 else lost
        return replace(alters(seen), schedulers=True)

    script = [at(LEFT_S, crash("rg_1.0")), at(LEFT_S, silent("rg_1.0", 300.0))]
    fleet = SimFleet(3, 1, script)
    fleet.evictor_works = False
    config = KeeperConfig()
    tape = Tape(Pipeline(config), config)
    drive = Drive(fleet, config, pipeline=tape, alter=alter).run(70)
    incident = drive.incident("dead")
    ((asked_s, evict),) = drive.evicts
    assert (evict.group, evict.lost is not None, asked_s < LEFT_S + 34) == ("rg_1", True, True)
    rows = [(line.at_s - START_S, line.reason) for line in incident.story if line.to == "scheduler"]
    news = "Kubernetes: its node is not ready: Kubelet stopped posting node status."
    assert rows == [(LEFT_S + 40, news)]
    assert "it is frozen, or its node is lost" in incident.verdict.reason
    tape.check()


def test_a_missing_group_of_a_lost_node_is_told_so() -> None:
    from tests.monitor.fleet.told import unregistered

    row, left = by_the_scheduler(UNKNOWN, "rg_1.0"), unregistered("rg_1.0")

    def alter(seen: Snapshot) -> Snapshot:
        return row(seen if seen.now_s - START_S < LEFT_S + 2 else left(seen))

    script = [at(LEFT_S, crash("rg_1.0"))]
    reason = Drive(SimFleet(3, 1, script), alter=alter).run(130).incident("absent").verdict.reason
    assert reason.startswith(
        "host host-rg_1 is lost: its node is not ready: Kubelet stopped posting node status. ("
    )


def test_a_pod_that_is_reported_deleted_and_answers_is_well() -> None:
    row = by_the_scheduler(said("end deleted"), "rg_1.0")
    assert Drive(SimFleet(3, 1), alter=row).run(60).kinds() == []


def test_an_exception_of_its_own_is_its_end_whatever_the_scheduler_says() -> None:
    script = [at(LEFT_S, raises("rg_1.0", "KeyError: 'ema'", of_peers=False))]
    row = by_the_scheduler(said("end deleted"), "rg_1.0")
    verdict = Drive(SimFleet(3, 1, script), alter=row).run(40).incident("dead").verdict
    assert "KeyError: 'ema'" in verdict.reason
    assert "deleted" not in verdict.reason
    assert verdict.culprits == ("rg_1.0",)


def test_a_rank_that_was_asked_to_end_in_a_drain_was_drained() -> None:
    script = [at(LEFT_S, ended_by("rg_1.0", "SIGTERM"))]
    row = by_the_scheduler(
        said(TARGET + "EvictionByEvictionAPI", "Eviction API: evicting"), "rg_1.0"
    )
    drive = Drive(SimFleet(3, 1, script), alter=row).run(40)
    reason = drive.incident("dead").verdict.reason
    assert reason.startswith(f"{NAMED} was drained: ")
    assert "; rank rg_1.0 died 6.0 s ago: asked to end by SIGTERM" in reason
    assert drive.accused() == set()


def test_the_rest_of_a_group_that_lost_a_drained_rank_goes_and_no_host_is_blamed() -> None:
    def drive(row: wire.Testimony | None) -> Drive:
        lost = at(24, crash("rg_1.0")), at(24, silent("rg_1.0", 300.0))
        fleet = SimFleet(3, 2, [*lost])
        for rank in fleet.ranks():
            rank.host = f"{rank.group}-{rank.index}"
        alter = (lambda seen: seen) if row is None else by_the_scheduler(row, "rg_1.0")
        return Drive(fleet, alter=alter).run(60)

    ((_, evict),) = drive(said("end deleted")).evicts
    assert (evict.group, evict.quarantine) == ("rg_1", ())
    assert "rg_1.0 on rg_1-0 was deleted" in evict.reason


def test_a_group_that_is_missing_was_drained() -> None:
    from tests.monitor.fleet.told import unregistered

    row = by_the_scheduler(said(TARGET + "PreemptionByScheduler", "for another"), "rg_1.0")
    script = [at(LEFT_S, crash("rg_1.0"))]
    left = unregistered("rg_1.0")

    def alter(seen: Snapshot) -> Snapshot:
        return row(seen if seen.now_s - START_S < LEFT_S + 2 else left(seen))

    reason = Drive(SimFleet(3, 1, script), alter=alter).run(130).incident("absent").verdict.reason
    assert reason.startswith("rg_1 was preempted: for another (Kubernetes, at ")
    assert "rg_1 has been gone for " in reason


def test_what_the_scheduler_said_is_journalled_and_replayed_to_the_same() -> None:
    config = KeeperConfig()
    tape = Tape(Pipeline(config), config, turn_every=30)
    script = [at(LEFT_S, crash("rg_1.0")), at(LEFT_S, silent("rg_1.0", 300.0))]
    row = by_the_scheduler(said("end deleted"), "rg_1.0")
    drive = Drive(SimFleet(3, 1, script), config, pipeline=tape, alter=row).run(50)
    assert "was deleted" in drive.incident("dead").verdict.reason
    tape.check()
