"""Debian's slurmctld and slurmd on loopback, in a folder of their own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.ports import free_port
from tests.waiting import wait_for

NODES = ("node1", "node2")
PROGRAMS = ("slurmctld", "slurmd", "scontrol", "scancel", "sbatch", "srun", "squeue")


def missing() -> str | None:
    """Why there is no real Slurm here; None when there is."""
    if os.environ.get("LIGHTKEEPER_SLURM_TESTS") != "1":
        return "opt in with LIGHTKEEPER_SLURM_TESTS=1 (starts slurmctld and slurmd on loopback)"
    absent = [name for name in PROGRAMS if _program(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (apt-get install slurm-wlm)"
    if os.geteuid() != 0:
        return "slurmd needs root"
    return None


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Cluster:
    """A running cluster of two nodes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self.environ = {**os.environ, "SLURM_CONF": str(self.conf), "LC_ALL": "C"}
        self.environ["PATH"] += ":/usr/sbin:/sbin"

    def ask(self, *argv: str, timeout_s: float = 20.0) -> str:
        """What a command of Slurm's says."""
        done = subprocess.run(
            argv,
            check=False,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd="/tmp",
        )
        assert done.returncode == 0, f"{argv}: {done.stdout} {done.stderr}"
        return done.stdout

    def state(self, node: str) -> str:
        for word in self.ask("scontrol", "show", "node", node, "-o").split():
            if word.startswith("State="):
                return word.removeprefix("State=")
        raise AssertionError(node)

    def reason(self, node: str) -> str:
        text = self.ask("scontrol", "show", "node", node)
        reasons = [line for line in text.splitlines() if line.strip().startswith("Reason=")]
        return reasons[0].strip().removeprefix("Reason=") if reasons else ""

    def submit(self, script: str, *options: str) -> str:
        """The number of a new job."""
        path = self.folder / "job.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        out = self.folder / "job-%j.out"
        return self.ask("sbatch", "--parsable", f"--output={out}", *options, str(path)).strip()

    def job_state(self, job: str) -> str:
        text = self.ask("scontrol", "show", "job", job)
        return text.partition("JobState=")[2].split()[0]

    def steps(self, job: str) -> set[str]:
        return set(self.ask("squeue", "-h", "-s", "-j", job, "-o", "%i").split())


def _config(folder: Path) -> str:
    lines = [
        "ClusterName=lightkeeper", f"SlurmctldHost={socket.gethostname()}(127.0.0.1)",
        f"SlurmctldPort={free_port()}", "AuthType=auth/none", "CredType=cred/none",
        "MpiDefault=none",
        "SlurmUser=root", "SlurmdUser=root", "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none", "ReturnToService=1", "SchedulerType=sched/builtin",
        "SelectType=select/cons_tres", "SelectTypeParameters=CR_Core", "KillWait=2",
        "SchedulerParameters=batch_sched_delay=0,sched_interval=1",
        "SlurmctldTimeout=30", "SlurmdTimeout=30", "CommunicationParameters=NoAddrCache",
        f"StateSaveLocation={folder}/state", f"SlurmctldPidFile={folder}/ctld.pid",
        f"SlurmdPidFile={folder}/slurmd-%n.pid", f"SlurmdSpoolDir={folder}/spool-%n",
        f"SlurmctldLogFile={folder}/ctld.log", f"SlurmdLogFile={folder}/slurmd-%n.log",
        "AccountingStorageType=accounting_storage/none", "JobCompType=jobcomp/none",
        "SwitchType=switch/none", "JobAcctGatherType=jobacct_gather/none",
        "SlurmdParameters=config_overrides", "RebootProgram=/bin/true",
    ]  # fmt: skip
    lines += [
        f"NodeName={node} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 "
        f"Port={free_port()} CPUs=4 RealMemory=100 State=UNKNOWN"
        for node in NODES
    ]
    lines.append(f"PartitionName=main Nodes={','.join(NODES)} Default=YES MaxTime=10 State=UP")
    return "\n".join(lines) + "\n"


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Up, with all nodes idle; down again at the end."""
    for name in ("state", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    made = Cluster(folder)
    made.conf.write_text(_config(folder))
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
    with ExitStack() as stack:
        for argv in (["slurmctld", "-D"], *(["slurmd", "-D", "-N", node] for node in NODES)):
            path = _program(argv[0])
            assert path is not None
            log = stack.enter_context((folder / f"{'-'.join(argv)}.out").open("wb"))
            process = subprocess.Popen(
                [path, *argv[1:]], env=made.environ, stdout=log, stderr=log, cwd=folder
            )
            stack.callback(_end, process)
        wait_for(lambda: _idle(made), within_s=30, what=f"idle nodes, see {folder}")
        yield made


def _idle(made: Cluster) -> bool:
    try:
        return all(made.state(node) == "IDLE" for node in NODES)
    except AssertionError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)
