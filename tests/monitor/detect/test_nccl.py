"""Ranks whose collectives C++ starts on GPUs: only NCCL's recorder has them, live as offline."""

import pytest

from lightkeeper.monitor.model.verdict import Confidence
from tests.monitor.fleet import Drive, Fault, SimFleet, at, gil, hang, jam, mismatch, stop


def on_nccl(groups: int, size: int, *script, source: str | None = None) -> SimFleet:
    """Torch's DDP within each group, as in scripts that only attached."""
    fleet = SimFleet(groups, size, script, source=source, across=groups > 1)
    fleet.on_nccl = True
    return fleet


def stands(rank: str) -> Fault:
    """The GPU of a rank starts nothing any more; its thread goes on until it waits for it."""

    def do(fleet: SimFleet) -> None:
        fleet.gpu_stands.add(rank)
        fleet.jammed_until_s[fleet.rank(rank).group] = fleet.now_s + 600.0

    return do


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("phase", ["data", "forward", "backward"])
def test_who_enqueues_nothing_is_named(groups, phase):
    drive = Drive(on_nccl(groups, 3, at(20, hang("rg_0.2", phase)))).run(56)
    incident = drive.incident("not_entered")
    assert incident.culprits == ("rg_0.2",)
    assert drive.fired[incident.id] <= 52.0
    assert "flight records" in incident.verdict.evidence["source"]


def test_heads_that_are_read_only_from_ranks_that_stand_do_as_well():
    fleet = on_nccl(2, 3, at(20, hang("rg_0.2")))
    fleet.nccl_heads_after_s = 6.0
    drive = Drive(fleet).run(56)
    incident = drive.incident("not_entered")
    assert incident.culprits == ("rg_0.2",)
    assert drive.fired[incident.id] <= 53.0
    assert len(drive.seen) == 1


@pytest.mark.parametrize("fault", [stop, gil])
def test_who_is_held_up_is_named(fault):
    drive = Drive(on_nccl(2, 2, at(20, fault("rg_1.0")))).run(56)
    assert drive.incident("not_entered").culprits == ("rg_1.0",)


@pytest.mark.parametrize("groups", [1, 3])
def test_whose_gpu_is_behind_its_peers_is_named(groups):
    drive = Drive(on_nccl(groups, 3, at(20, stands("rg_0.1")))).run(56)
    incident = drive.incident("deadlock")
    assert incident.culprits == ("rg_0.1",)
    assert incident.verdict.confidence is not Confidence.UNSURE
    assert "has not begun" in incident.verdict.reason


def test_a_kernel_that_none_of_them_gets_out_of_is_the_groups():
    drive = Drive(on_nccl(1, 3, at(20, jam("rg_0", 600.0)))).run(70)
    incident = drive.incident("deadlock")
    assert incident.groups == ("rg_0",)
    assert incident.verdict.confidence is Confidence.UNSURE
    assert not drive.evicts


def test_another_size_is_a_mismatch_of_its_caller():
    drive = Drive(on_nccl(1, 3, at(20, mismatch("rg_0.1", "size")))).run(70)
    incident = drive.incident("mismatch")
    assert incident.culprits == ("rg_0.1",)
    assert incident.verdict.confidence is not Confidence.UNSURE


@pytest.mark.parametrize("source", [None, "torchft", "reporter"])
def test_healthy_ranks_pass_in_silence(source):
    assert not Drive(on_nccl(2, 3, source=source)).run(80).seen
