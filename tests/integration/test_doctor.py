"""`lightkeeper doctor` beside healthy ranks has nothing to say, on one host and on two."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.integration.hosts import Host, three_hosts
from tests.monitor.lighthouses import installations, lighthouse_process
from tests.monitor.process import TOKEN, Monitor, environment
from tests.ports import free_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PLAIN = """
import time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
gradient = torch.ones(8)
while True:
    dist.all_reduce(gradient)
    time.sleep(0.05)
"""
TORCHFT = """
import os, time
import torch, torch.distributed as dist
from torchft.manager import Manager
from torchft.process_group import ProcessGroupGloo
weights, port = torch.zeros(3), int(os.environ["MASTER_PORT"])
store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
manager = Manager(
    pg=ProcessGroupGloo(), load_state_dict=lambda state: weights.copy_(state["w"]),
    state_dict=lambda: {"w": weights.clone()}, min_replica_size=1,
    replica_id="train_" + os.environ["REPLICA_GROUP_ID"],
)
while True:
    manager.start_quorum()
    gradient = torch.ones(3)
    manager.allreduce(gradient).wait()
    if manager.should_commit():
        weights += gradient
    time.sleep(0.05)
"""


class Job:
    """A launcher on each host (TorchFT: of a group each), and the monitor on one more."""

    def __init__(self, folder: Path, monitor_host: str, hosts: tuple[Host, ...]) -> None:
        self.folder, self.monitor_host, self.hosts = folder, monitor_host, hosts
        self.launchers = list[subprocess.Popen[bytes]]()
        port = free_port()
        self.own = {
            "LIGHTKEEPER_MONITOR": f"http://{monitor_host}:{port}", "LIGHTKEEPER_TOKEN": TOKEN,
            "LIGHTKEEPER_LINGER_S": "0", "LIGHTKEEPER_MEND_TORCHFT": "1", "OMP_NUM_THREADS": "1",
            "RUST_LOG": "error", "GLOO_SOCKET_IFNAME": "eth0" if hosts[0].before else "lo",
        }  # fmt: skip
        words = ("--bind", f"{monitor_host}:{port}", "--tick", "0.5", "--observe")
        self.monitor = Monitor(*words, "--store", str(folder / "store"), port=port, **self.own)
        self.monitor.url = self.own["LIGHTKEEPER_MONITOR"]
        self.monitor.ready()

    def environ(self, host: Host, **more: str) -> dict[str, str]:
        run_dir = self.folder / f"r{self.hosts.index(host)}"  # short: there are sockets in it
        return environment(**self.own, LIGHTKEEPER_RUN_DIR=str(run_dir), **more)

    def start(self, host: Host, script: str, *options: str, **more: str) -> None:
        path = self.folder / "train.py"
        path.write_text(script)
        launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "1") if options else ()
        command = [
            *host.before, sys.executable, "-m", "lightkeeper", "run", "--", sys.executable,
            *launcher, *options, str(path),
        ]  # fmt: skip
        with (self.folder / f"{len(self.launchers)}.err").open("wb") as said:
            self.launchers.append(
                subprocess.Popen(
                    command, cwd=self.folder, stderr=said, env=self.environ(host, **more)
                )
            )

    def is_green(self, *ranks: str) -> None:
        """All train in one run; each host's doctor sees the ranks there, and finds nothing wrong.

        Args:
            ranks: a launcher's, in the order of the launches; these went over the hosts in turn.
        """
        wait_for(partial(self._trains, *ranks), within_s=90, what=f"{ranks} are healthy")
        [run] = self.monitor.get("/v1/runs")["runs"]
        assert run["ranks"] == len(ranks)
        of_machine = {"versions", "run directory", "ptrace"}
        for number, host in enumerate(self.hosts):
            findings = wait_for(partial(self._examined, host), within_s=60, what="all is answered")
            wrong = [row for row in findings if row["state"] != "ok"]
            assert [row for row in wrong if row["check"] not in of_machine] == []
            seen = {row["where"] for row in findings if row["check"] == "monitor sees the ranks"}
            assert seen == set(ranks[number :: len(self.hosts)])

    def _trains(self, *ranks: str) -> bool:
        rows = self.monitor.get("/v1/ranks")["ranks"]
        said = (path.read_text() for path in sorted(self.folder.glob("*.err")))
        assert {launcher.poll() for launcher in self.launchers} == {None}, "\n".join(said)
        return {row["rank"]: row["health"] for row in rows} == dict.fromkeys(ranks, "healthy")

    def _examined(self, host: Host) -> list[dict[str, Any]] | None:
        """What `lightkeeper doctor` says there, once torch's part of each rank is up."""
        done = subprocess.run(
            [*host.before, sys.executable, "-m", "lightkeeper", "doctor", "--format", "json"],
            env=self.environ(host), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        findings = json.loads(done.stdout)["findings"]
        return None if "unknown" in {row["state"] for row in findings} else findings

    def end(self) -> None:
        for process in (*self.launchers, self.monitor.process):
            process.terminate()
        for launcher in self.launchers:
            launcher.wait(60)
        self.monitor.end()


@contextmanager
def job(folder: Path, *, hosts: int) -> Iterator[Job]:
    """What is to be examined there, and all of it is ended."""
    with ExitStack() as ends:
        here, others = Host("127.0.0.1"), tuple[Host, ...]()
        if hosts > 1:
            here, *others = ends.enter_context(three_hosts(folder))
        made = Job(folder, here.address, tuple(others) or (here,))
        ends.callback(made.end)
        yield made


def test_a_plain_job_on_two_hosts(tmp_path: Path) -> None:
    with job(tmp_path, hosts=2) as launch:
        for number, host in enumerate(launch.hosts):
            launch.start(
                host, PLAIN, "--nnodes", "2", "--node-rank", str(number),
                "--master-addr", "host1", "--master-port", "29600",
            )  # fmt: skip
        launch.is_green("job.0", "job.1")


def test_torchft(tmp_path: Path) -> None:
    with job(tmp_path, hosts=1) as launch, lighthouse_process(
        installations()["0.2.0"], tmp_path / "torchft_lighthouse", free_port(),
        bind=launch.monitor_host, min_replicas=1, join_timeout_ms=5000, heartbeat_timeout_ms=1500,
    ) as url:  # fmt: skip
        for number in range(2):
            (host,) = launch.hosts  # torchrun is on the two hosts: without it a group is its rank
            launch.start(
                host, TORCHFT, TORCHFT_LIGHTHOUSE=url, REPLICA_GROUP_ID=str(number), RANK="0",
                WORLD_SIZE="1", LIGHTKEEPER_ATTACH="1", MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(free_port()),
            )  # fmt: skip
        launch.is_green("train_0.0", "train_1.0")
