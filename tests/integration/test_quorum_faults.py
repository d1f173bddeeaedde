"""A real group that heals in a loop, and a real Lighthouse that stops: told, and told apart."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

pytest.importorskip("torchft")

from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.service import Options, Service
from tests import sidecars
from tests.incidents import fired
from tests.nursery import nursery
from tests.ports import free_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(170)]


@dataclass
class Job:
    """Three groups, their Lighthouse, and a monitor that only looks."""

    folder: Path
    url: str
    lighthouse_pid: int

    def snapshot(self) -> dict[str, Any]:
        return requests.get(f"{self.url}/v1/snapshot", timeout=5).json()

    def incident(self, kind: str, state: str) -> dict[str, Any] | None:
        body = requests.get(f"{self.url}/v1/incidents", timeout=5).json()
        incidents = [incident for incident in body["incidents"] if incident["kind"] == kind]
        return next((incident for incident in incidents if incident["state"] == state), None)

    def certain(self, kind: str) -> dict[str, Any] | None:
        incident = self.incident(kind, "firing")
        return incident if incident and incident["confidence"] == "certain" else None

    def kinds(self) -> set[str]:
        body = requests.get(f"{self.url}/v1/incidents", timeout=5).json()
        return {incident["kind"] for incident in fired(body["incidents"])}


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("lag")
    config = KeeperConfig(observe=True, lighthouse_away_s=4.0)
    port = free_port()  # the ranks have to know it before it can know the Lighthouse's
    words = ["-m", "tests.integration.lagging_groups", folder, f"http://127.0.0.1:{port}"]
    (said := folder / "said").touch()
    environ = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", **sidecars.forked()}
    ranks = nursery("torch").start(words, environ, out=said)
    stop = threading.Event()
    try:
        lines = wait_for(lambda: said.read_text().splitlines(), within_s=60, what="a Lighthouse")
        lighthouse = json.loads(lines[0])
        bind, store = f"127.0.0.1:{port}", folder / "monitor.db"
        with Service(
            Options(config, bind, store, lighthouse["address"], token="secret")
        ) as service:
            loop = threading.Thread(target=service.run, args=(stop,))
            loop.start()
            made = Job(folder, service.url, lighthouse["pid"])
            try:
                wait_for(lambda: _whole(made), within_s=90, what="three groups commit")
                yield made
            finally:
                stop.set()
                loop.join(10)
    finally:
        ranks.kill()  # and with it its forks
        ranks.wait()


def _whole(job: Job) -> bool:
    try:
        groups = job.snapshot()["groups"]
    except (requests.RequestException, KeyError):
        return False
    return len(groups) == 3 and all((group["commits"] or 0) >= 5 for group in groups)


def test_a_loop_of_heals_and_a_lighthouse_that_stops_are_told_and_told_apart(job: Job) -> None:
    assert job.kinds() == set()
    _a_group_whose_attempts_fail_heals_in_a_loop_and_only_it_is_named(job)
    _a_lighthouse_that_stops_accuses_nobody_and_the_job_goes_on_after_it(job)


def _a_group_whose_attempts_fail_heals_in_a_loop_and_only_it_is_named(job: Job) -> None:
    errs = job.folder / "rg_1.errs"
    errs.touch()
    lagging = wait_for(
        lambda: job.certain("replica_lag"), within_s=60, what="the loop of rg_1 is certain"
    )
    errs.unlink()
    assert lagging["culprits"] == ["rg_1.0"]
    assert "rg_1 heals in a loop" in lagging["reason"]
    assert lagging["severity"] == "warning"
    assert {row["guard"] for row in lagging["decisions"]} <= {"spared", "observe"}
    assert job.kinds() == {"replica_lag"}


def _a_lighthouse_that_stops_accuses_nobody_and_the_job_goes_on_after_it(job: Job) -> None:
    before = {row["rank"]: row["commits"] for row in job.snapshot()["ranks"]}
    os.kill(job.lighthouse_pid, signal.SIGSTOP)
    try:
        away = wait_for(
            lambda: (
                (incident := job.incident("lighthouse_away", "firing"))
                and incident["severity"] == "critical"
                and incident
            ),
            within_s=40,
            what="the Lighthouse is away and the job stands",
        )
    finally:
        os.kill(job.lighthouse_pid, signal.SIGCONT)
    assert (away["culprits"], away["decisions"]) == ([], [])
    wait_for(
        lambda: job.incident("lighthouse_away", "resolved"), within_s=30, what="it answers again"
    )
    wait_for(
        lambda: all(
            (row["commits"] or 0) > before[row["rank"]] + 5 for row in job.snapshot()["ranks"]
        ),
        within_s=30,
        what="every group commits again",
    )
    assert job.kinds() == {"replica_lag", "lighthouse_away"}
