"""examples/slurm on a real slurmctld: two groups and their head; a refused host is left.

apt-get install -y slurm-wlm && LIGHTKEEPER_SLURM_TESTS=1 pytest -m integration <this file>
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
import requests

from tests.examples.fleet import EXAMPLES
from tests.monitor.act.schedulers import real_slurm
from tests.ports import free_port
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(real_slurm.missing() is not None, reason=str(real_slurm.missing())),
]
ROOT = Path(__file__).parents[2]
SOON_S = 90.0
NOT_HERE = ("--gpus-per-node", "--exclusive", "--cpus-per-task", "--mem")
"""What the nodes of the tests do not have."""


def script(folder, name):
    """A copy without what the nodes do not have."""

    def fits(line):
        return not line.startswith("#SBATCH") or not any(
            directive in line for directive in NOT_HERE
        )

    lines = (EXAMPLES / "slurm" / name).read_text().splitlines(keepends=True)
    path = folder / name
    path.write_text("".join(filter(fits, lines)))
    return path


@pytest.fixture
def scene(tmp_path):
    """A cluster whose jobs find our `lightkeeper`, and stubs of TorchFT's and torch's programs."""
    stubs = {
        "lightkeeper": f'PYTHONPATH={ROOT} exec {sys.executable} -m lightkeeper.monitor.cli "$@"',
        "torchft_lighthouse": "exec sleep 600",
        "torchrun": f'echo "$REPLICA_GROUP $SLURMD_NODENAME $SLURM_STEP_ID '
        f'${{SLURM_RESTART_COUNT:-0}} $TORCHFT_LIGHTHOUSE $*" >> {tmp_path}/launches\n'
        f"[ -e {tmp_path}/finish ] || exec sleep 600",
    }
    (tmp_path / "bin").mkdir()
    for name, body in stubs.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    (tmp_path / "slurm").mkdir()
    with real_slurm.cluster(tmp_path / "slurm") as cluster:
        cluster.environ["PATH"] = f"{tmp_path / 'bin'}:{cluster.environ['PATH']}"
        cluster.environ["FLEET"] = str(tmp_path / "fleet")
        cluster.environ |= {"RANKS_PER_NODE": "2", "SLURMD_NODENAME": ""}
        ports = iter([free_port() for _ in range(4)])
        for name in ("LIGHTHOUSE_PORT", "GATE_PORT", "GATE_ADMIN_PORT", "MONITOR_PORT"):
            cluster.environ[name] = str(next(ports))
        yield cluster
        for job in cluster.ask("squeue", "-h", "-o", "%A").split():
            cluster.ask("scancel", job)
        wait_for(lambda: not cluster.ask("squeue", "-h"), within_s=60, what="no job is left")


def answers(url):
    try:
        return requests.get(url, timeout=2).ok
    except requests.RequestException:
        return False


def submit(cluster, *words):
    out = f"--output={cluster.folder}/%x-%a.out"
    return cluster.ask("sbatch", "--parsable", "--time=9", out, *words).strip()


def test_groups_run_apart_and_one_whose_host_is_refused_is_requeued_to_another(scene, tmp_path):
    fleet = tmp_path / "fleet"

    def launches():
        path = tmp_path / "launches"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split(maxsplit=5) for line in lines]

    def of(group):
        return [launch for launch in launches() if launch[0] == group]

    head = script(tmp_path, "head.sbatch")
    submit(scene, "-w", "node2", str(head), "--scheduler", "slurm", "--tick", "0.5")
    wait_for((fleet / "head.env").exists, within_s=SOON_S, what="head.env")
    settings = dict(
        shlex.split(line)[1].split("=", 1) for line in (fleet / "head.env").read_text().splitlines()
    )
    # nodes of the tests have names that no resolver knows
    for name, url in settings.items():
        settings[name] = url.replace("node2", "127.0.0.1")
    (fleet / "head.env").write_text("".join(f"export {k}={v}\n" for k, v in settings.items()))
    monitor = settings["LIGHTKEEPER_MONITOR"]

    gate = f"http://127.0.0.1:{scene.environ['GATE_ADMIN_PORT']}"
    wait_for(lambda: answers(f"{monitor}/readyz"), within_s=SOON_S, what="the monitor")
    wait_for(lambda: answers(f"{gate}/healthz"), within_s=SOON_S, what="the gate")
    assert (fleet / "token").stat().st_mode & 0o077 == 0

    group = script(tmp_path, "group.sbatch")
    array = submit(scene, "--array=0-1", str(group), "-m", "train", "--steps", "5")
    wait_for(lambda: of("rg_0") and of("rg_1"), within_s=SOON_S, what="both groups")
    first = of("rg_0")[0]
    assert first[4] == f"http://127.0.0.1:{scene.environ['GATE_PORT']}"
    assert first[5].startswith("--max-restarts=0 ")
    assert first[5].endswith("-m train --steps 5")
    assert f"--master-addr={first[1]} " in first[5]

    token = (fleet / "token").read_text().strip()
    said = requests.put(
        f"{monitor}/v1/quarantine/{first[1]}",
        json={"reason": "ECC errors"},
        headers={"Authorization": f"Bearer {token}"},
        timeout=5,
    )
    assert said.status_code == 200, said.text
    wait_for(lambda: "DRAIN" in scene.state(first[1]), within_s=SOON_S, what="drained")
    others = len(of("rg_1"))
    scene.ask("scancel", f"{array}_0.{first[2]}")  # as the monitor ends a group
    waits = f"{array}_0"
    wait_for(lambda: scene.job_state(waits) == "PENDING", within_s=SOON_S, what="requeued")
    # Slurm lets two minutes pass before a requeued job may start.
    scene.ask("scontrol", "update", f"JobId={waits}", "StartTime=now")
    wait_for(
        lambda: any(launch[1] != first[1] for launch in of("rg_0")),
        within_s=SOON_S,
        what="rg_0 on another node",
    )
    last = of("rg_0")[-1]
    assert (last[1] != first[1], last[3]) == (True, "1")  # requeued once
    assert len(of("rg_1")) == others  # and nobody else noticed
    assert len(of("rg_0")) == 2
