"""Slurm's commands as functions, with the words and the traps of 22.05 (see test_real_slurm)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from lightkeeper.monitor.act.schedulers.base import Deadline, NotDone, Place, Scheduler
from lightkeeper.monitor.act.schedulers.slurm import Ran, Removal, Slurm
from tests.monitor.act.schedulers.conformance import NODE, OTHER, OWNER, World, place_of


@dataclass
class FakeNode:
    name: str
    states: set[str] = field(default_factory=lambda: {"IDLE"})
    reason: str = ""
    who: str = "root"

    def text(self) -> str:
        reason = (
            f"   Reason={self.reason} [{self.who}@2026-11-22T02:14:39]\n" if self.reason else ""
        )
        state = "+".join(sorted(self.states, key=lambda flag: flag == "DRAIN"))
        return (
            f"NodeName={self.name} Arch=x86_64 CoresPerSocket=1 \n"
            f"   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A\n"
            f"   Partitions=main \n{reason}\n\n"
        )

    def row(self) -> str:
        since = "2026-11-22T02:14:39" if self.reason else "Unknown"
        state = {"DRAIN": "drained", "DOWN": "down"}.get(max(self.states - {"IDLE"}, default=""))
        return f"{self.name}|{state or 'idle'}|{since}|{self.reason or 'none'}"


@dataclass
class FakeJob:
    number: str
    steps: set[str]
    state: str = "RUNNING"
    restarts: int = 0
    array: str | None = None
    task: str | None = None
    het: bool = False
    requeue: bool = True
    deaf: set[str] = field(default_factory=set)
    """Steps that end by SIGKILL only."""

    def text(self) -> str:
        array = f" ArrayJobId={self.array} ArrayTaskId={self.task}" if self.array else ""
        het = " HetJobId=7 HetJobOffset=0" if self.het else ""
        return (
            f"JobId={self.number}{array}{het} JobName=train\n   JobState={self.state} Reason=None\n"
            f"   Requeue={int(self.requeue)} Restarts={self.restarts} BatchFlag=1 Reboot=0\n\n"
        )


class FakeTime:
    """Seconds that pass when somebody waits."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def deadline(self, timeout_s: float) -> Deadline:
        return Deadline(timeout_s, lambda: self.now_s, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class FakeSlurm:
    """One controller."""

    def __init__(self) -> None:
        self.time = FakeTime()
        self.nodes = {name: FakeNode(name) for name in (NODE, OTHER)}
        self.jobs: dict[str, FakeJob] = {}
        self.asked: list[list[str]] = []
        self.down = self.hanging = self.powerless = False
        self.stuck = False
        """Whether a step ends by nothing: its node is lost."""

    def run(self, argv: Sequence[str], timeout_s: float) -> Ran:  # noqa: C901
        assert timeout_s > 0
        assert all("\n" not in word for word in argv)
        self.asked.append(list(argv))
        if self.hanging:
            self.time.sleep(timeout_s)
            raise NotDone(f"{argv[0]} has not ended within {timeout_s:.1f} s")
        if argv[1:] == ["--version"]:
            return Ran(0, "slurm-wlm 22.05.8\n", "")
        if self.down:
            return Ran(1, "", "error: Unable to contact slurm controller (connect failure)\n")
        match list(argv):
            case ["scontrol", "ping"]:
                return Ran(0, "Slurmctld(primary) at head is UP\n", "")
            case ["scontrol", "show", "node", name]:
                return self._show_node(name)
            case ["scontrol", "show", "job", number]:
                return self._show_job(number)
            case ["scontrol", "show", "step", name]:
                return self._show_step(name)
            case ["scontrol", "update", *words]:
                return self._update(dict(word.split("=", 1) for word in words))
            case ["scontrol", "requeue", name]:
                return self._requeue(name)
            case ["scancel", *options, name]:
                return self._cancel(name, kill="--signal=KILL" in options)
            case ["sinfo", "-h", "-N", "-o", "%N|%E"]:
                lines = [f"{node.name}|{node.reason or 'none'}" for node in self.nodes.values()]
                return Ran(0, "\n".join(lines * 2) + "\n", "")  # once a partition
            case ["sinfo", "-h", "-N", "-o", "%N|%T|%H|%E"]:
                rows = [node.row() for node in self.nodes.values()]
                return Ran(0, "\n".join(rows * 2) + "\n", "")
        raise AssertionError(argv)

    def _show_node(self, name: str) -> Ran:
        if name.upper() == "ALL":
            return Ran(0, "".join(node.text() for node in self.nodes.values()), "")
        if name not in self.nodes:
            return Ran(1, f"Node {name} not found\n", "")
        return Ran(0, self.nodes[name].text(), "")

    def _show_job(self, number: str) -> Ran:
        jobs = [job for job in self.jobs.values() if number in (job.number, job.array)]
        if not jobs:
            return Ran(1, "", "slurm_load_jobs error: Invalid job id specified\n")
        return Ran(0, "".join(job.text() for job in jobs), "")

    def _show_step(self, name: str) -> Ran:
        job, step = self._step(name)
        if job is None or step not in job.steps:
            return Ran(1, f"Job step {name} not found\n", "")
        return Ran(0, f"StepId={name} UserId=0\n   State=RUNNING Partition=main\n\n", "")

    def _step(self, name: str) -> tuple[FakeJob | None, str]:
        head, _, step = name.partition(".")
        return self._named(head), step

    def _named(self, name: str) -> FakeJob | None:
        for job in self.jobs.values():
            if name in (f"{job.array}_{job.task}" if job.array else "", job.number):
                return job
        return None

    def _update(self, words: dict[str, str]) -> Ran:
        if self.powerless:
            return Ran(1, "", "slurm_update error: Invalid user id\n")
        node = self.nodes.get(words["NodeName"])
        if node is None:
            return Ran(1, "", "slurm_update error: Invalid node name specified\n")
        if words["State"] == "DRAIN":
            node.states.add("DRAIN")
            node.reason, node.who = words["Reason"], "slurm"
        else:
            assert words["State"] == "UNDRAIN"
            node.states.discard("DRAIN")
            if "DOWN" not in node.states:
                node.reason = ""
        return Ran(0, "", "")

    def _requeue(self, name: str) -> Ran:
        job = self._named(name)
        assert job is not None
        job.state, job.steps, job.restarts = "PENDING", set(), job.restarts + 1
        return Ran(0, "", "")

    def _cancel(self, name: str, *, kill: bool) -> Ran:
        if "." in name:
            job, step = self._step(name)
            if job is None or step not in job.steps:
                said = f"scancel: error: Kill job error on job step id {name}: Invalid job id\n"
                return Ran(225, "", said)
            if not self.stuck and (kill or step not in job.deaf):
                job.steps.discard(step)
            return Ran(0, "", "")
        for task in self.jobs.values():  # the number of an array ends all of its tasks
            if name in (task.number, task.array, f"{task.array}_{task.task}") and (
                task.array is None or name != task.number or task.number == task.array
            ):
                task.state, task.steps = "CANCELLED", set()
        return Ran(0, "", "")


class SlurmWorld(World):
    """A fake controller, and steps of one job."""

    ends = ("context", "runs"), ("context", "exited")

    def __init__(self, removal: Removal = Removal.CANCEL) -> None:
        super().__init__()
        self.slurm = FakeSlurm()
        self.slurm.jobs["12"] = FakeJob("12", set())
        self.scheduler = self._made(OWNER, removal)
        self._steps = itertools.count()

    def _made(self, owner: str, removal: Removal = Removal.CANCEL) -> Slurm:
        slurm = Slurm(self.everyone, lambda: owner, removal=removal, run=self.slurm.run)
        slurm._deadline = self.slurm.time.deadline
        return slurm

    def start(self, rank: str, host: str, beside: Place | None = None) -> Place:
        step = str(next(self._steps)) if beside is None else beside.labels["slurm_step_id"]
        self.slurm.jobs["12"].steps.add(step)
        labels = {"slurm_job_id": "12", "slurm_step_id": step, "slurm_node": host}
        place = place_of(rank, host, labels)
        self.places.append(place)
        return place

    def renew(self, place: Place) -> Place:
        """A requeued job has the same number, and its steps too."""
        job = self.slurm.jobs["12"]
        job.restarts += 1
        new = place_of(place.rank, place.host, {**place.labels, "slurm_restarts": "1"})
        self.places[:] = [new]
        return new

    def runs(self, place: Place) -> bool:
        return place.labels["slurm_step_id"] in self.slurm.jobs["12"].steps

    def admits(self, host: str) -> bool:
        return not self.slurm.nodes[host].states & {"DRAIN", "DOWN"}

    def admin_keeps_out(self, host: str) -> None:
        node = self.slurm.nodes[host]
        node.states.add("DRAIN")
        node.reason, node.who = "bad DIMM [ticket 7]", "alice"

    def admin_lets_in(self, host: str) -> None:
        self.slurm.nodes[host].states.discard("DRAIN")
        self.slurm.nodes[host].reason = ""

    def by_admin(self, host: str) -> bool:
        node = self.slurm.nodes[host]
        return "DRAIN" in node.states and node.reason == "bad DIMM [ticket 7]"

    def testifies(self, host: str) -> list[tuple[str, str, str]]:
        return [(host, "leaving", "drained")]

    def other_owner(self) -> Scheduler:
        return self._made("other")

    def break_off(self) -> None:
        self.slurm.down = True

    def hang(self) -> None:
        self.slurm.hanging = True
