"""A plain torch.distributed job that only attached is diagnosed from its heads and records."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import sidecars
from tests.monitor.process import Monitor, environment
from tests.nursery import nursery
from tests.ports import free_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

JOB = Path(__file__).with_name("plain_job.py")
RANKS = 4


@contextlib.contextmanager
def plain_job(monitor: Monitor, fault: Path, folder: Path) -> Iterator[None]:
    master = free_port()
    ranks = [
        nursery("torch").start(
            [JOB, fault],
            environment(
                RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank), REPLICA_GROUP="job",
                MASTER_ADDR="127.0.0.1", MASTER_PORT=str(master), GLOO_SOCKET_IFNAME="lo",
                LIGHTKEEPER_MONITOR=monitor.url, LIGHTKEEPER_RUN_DIR=str(folder),
                LIGHTKEEPER_ATTACH="1", **sidecars.forked(),
            ),
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    try:
        yield
    finally:
        for rank in ranks:
            rank.kill()
        for rank in ranks:
            rank.wait(20)


def healthy(monitor: Monitor) -> bool:
    ranks = monitor.get("/v1/snapshot")["ranks"]
    return len(ranks) == RANKS and all(rank["health"] == "healthy" for rank in ranks)


def fired(monitor: Monitor, kind: str) -> dict[str, Any] | None:
    for item in monitor.get("/v1/incidents")["incidents"]:
        if item["kind"] == kind and any(line["to"] == "firing" for line in item["story"]):
            return item
    return None


def test_the_slow_rank_of_a_plain_job_that_only_attached_is_named(tmp_path):
    """Which rank hangs of such a job is asked in tests/examples/test_ddp.py."""
    order = tmp_path / "fault"
    port = free_port()
    monitor = Monitor(
        "--store", str(tmp_path / "monitor.db"), "--observe",
        "--set", "undeclared_floor_s=5", "--set", "record_repeat_s=4", "--set", "restart_quiet_s=4",
        port=port,
    )  # fmt: skip
    try:
        monitor.ready()
        with plain_job(monitor, order, tmp_path / "run"):
            wait_for(lambda: healthy(monitor), within_s=120, what="all ranks healthy")
            assert monitor.get("/v1/incidents")["incidents"] == []
            order.write_text("slow 2")
            item = wait_for(lambda: fired(monitor, "straggler"), within_s=200, what="it is named")
    finally:
        monitor.end()
    assert item["culprits"] == ["job.2"]
    assert "flight records, times of the calls" in item["evidence"]["source"]
