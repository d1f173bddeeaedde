"""Slurm, by its own commands: drain a node, end the step or the job that carries a group.

Theory of operation. `scontrol update` has no condition ("only if nobody else did"), so each change
is a look, the change, and a second look to confirm it. Our drains have a reason that begins with
our mark; a node that somebody else drained or took down is left as it is. A node is given back with
UNDRAIN and not with RESUME, which would also bring back a node that is down. A group is ended by
its step if it has one; the whole job is ended only if no rank of another group is known to be, or
may be, in it. Slurm 20.11 or newer; tried with 22.05.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from lightkeeper.monitor.act.schedulers.base import (
    Check,
    Deadline,
    Ended,
    Everyone,
    Lost,
    NotDone,
    Outcome,
    Owner,
    Place,
    Scheduler,
    Why,
    mark,
    marked,
    refuse_shared_job,
)
from lightkeeper.monitor.act.testimonies import Fact, Said, read_fact, seconds_since
from lightkeeper.monitor.model.names import GroupName, Host, one_line
from lightkeeper.monitor.model.wording import listed

# -- slurm text --------------------------------------------------------------------------------
# What `scontrol show` and `sinfo` say, as values.
#
# Plain text is read, not JSON: the text is the same in 20.11 to 25.05, while JSON comes with a
# plugin that not every cluster has, in a format that changes with each release.

NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")
"""The name of one node; not a list (`a[1-9]`, `a,b`), of which Slurm would take every node."""
NUMBER: Final = re.compile(r"[0-9]{1,10}")
_REASON: Final = re.compile(r"(?P<said>.*?)(?: \[(?P<who>[^\[\]@]*)@[^\[\]]*\])?")
_SUFFIXES: Final = "*~#!%$@^-"
NOT_RESPONDING: Final = "Not responding"
"""Slurm's own reason for a node that it lost."""


def is_node(name: str) -> bool:
    """True if this can be one node. ALL is every node."""
    return NAME.fullmatch(name) is not None and name.upper() != "ALL"


@dataclass(frozen=True, slots=True)
class SlurmNode:
    name: str
    states: frozenset[str]
    reason: str
    author: str
    silent: bool = False
    """True if its slurmd does not answer, though it is not down yet."""

    @property
    def drained(self) -> bool:
        """True if nothing new starts there until somebody says so."""
        return "DRAIN" in self.states

    @property
    def down(self) -> bool:
        return bool(self.states & {"DOWN", "FAIL", "FAILING", "ERROR"})

    @property
    def by(self) -> str:
        """Who set the reason, and why, for a person."""
        who = f" by {self.author}" if self.author else ""
        return f"{who}: {self.reason}" if self.reason else f"{who}, without a reason"


def parse_node(text: str) -> SlurmNode | None:
    """The node that this text describes; None unless it is exactly one."""
    name = re.search(r"^NodeName=(\S+)", text, re.MULTILINE)
    state = re.search(r"^\s+State=(\S+)", text, re.MULTILINE)
    if name is None or state is None or text.count("NodeName=") != 1:
        return None
    reason = re.search(r"^\s+Reason=(.*)$", text, re.MULTILINE)
    parts = None if reason is None else _REASON.fullmatch(reason.group(1).strip())
    said = "" if parts is None else parts["said"]
    return SlurmNode(
        name=name.group(1),
        states=frozenset(word.rstrip(_SUFFIXES) for word in state.group(1).split("+")),
        reason="" if said in ("(null)", "none") else said,
        author="" if parts is None else parts["who"] or "",
        silent="*" in state.group(1) or "NOT_RESPONDING" in state.group(1),
    )


@dataclass(frozen=True, slots=True)
class SlurmJob:
    state: str
    name: str
    """Identifies this job alone: `12`, or `10_3` in an array. An array's last task has the array's
    own number, and `scancel` of that number ends all tasks (seen, 22.05)."""
    restarts: str
    requeues: bool
    whole: bool
    """False: a part of a heterogeneous job; ending it may end the other parts."""
    said: str = ""
    """Its state, reason and exit code as they are shown."""
    ended: str = ""
    """When it ended or, while it runs, has to."""


_SHOWN: Final = re.compile(r"\b(JobState|Reason|ExitCode)=(.*?)(?=\s+[A-Z]\w*=|\s*$)", re.MULTILINE)


def parse_job(text: str, number: str) -> SlurmJob | None:
    """The job with this number; None if the text has none. For an array's number, which is also
    its last task's, Slurm lists every task.
    """
    for block in text.split("\n\n"):
        words = _words(block)
        state = words.get("JobState")
        if words.get("JobId") != number or state is None:
            continue
        array, task = words.get("ArrayJobId"), words.get("ArrayTaskId")
        return SlurmJob(
            state=state,
            name=number if array is None or task is None else f"{array}_{task}",
            restarts=words.get("Restarts", "0"),
            requeues=words.get("Requeue") == "1" and words.get("BatchFlag") == "1",
            whole="HetJobId" not in words,
            said=", ".join(f"{key} {value}" for key, value in _SHOWN.findall(block)),
            ended=words.get("EndTime", ""),
        )
    return None


def _words(text: str) -> Mapping[str, str]:
    fields: dict[str, str] = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if equals:
            fields.setdefault(key, value)
    return fields


def node_said(line: str, now_s: float) -> Iterator[Said]:
    """What a line `NAME|STATE|TIME|REASON` of sinfo testifies; no drain of lightkeeper's does."""
    name, state, moment, reason = (*line.split("|", 3), "", "", "")[:4]
    detail = "" if reason in ("none", "(null)") else reason
    said = read_fact("Slurm", f"slurm {state}: {detail}", detail, seconds_since(moment, now_s))
    if said is not None and not detail.startswith("lightkeeper["):
        yield (name.strip(),), said


# -- slurm -------------------------------------------------------------------------------------

# Running Slurm's commands: an argument list, a deadline, no shell.

OUTPUT_MAX_CHARS: Final = 16 * 1024 * 1024
"""`sinfo` of 5,000 nodes in three partitions is a megabyte."""


@dataclass(frozen=True, slots=True)
class Ran:
    status: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return one_line(self.err or self.out, 300) or f"exit status {self.status}"


Run = Callable[[Sequence[str], float], Ran]
"""Runs an argument list within so many seconds. Raises `NotDone`."""


def run_command(argv: Sequence[str], timeout_s: float) -> Ran:
    """Run a command that is found in PATH.

    Raises:
        NotDone: it is not installed, cannot be started, or has not ended in time (it is killed).
    """
    environ = {**os.environ, "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            env=environ,
            check=False,
        )
    except FileNotFoundError as exc:
        raise NotDone(f"{argv[0]} is not installed here") from exc
    except subprocess.TimeoutExpired as exc:
        raise NotDone(f"{argv[0]} has not ended within {timeout_s:.1f} s") from exc
    except (OSError, ValueError) as exc:
        raise NotDone(f"{argv[0]} cannot be started: {exc}") from exc
    out, err = (
        text[:OUTPUT_MAX_CHARS].decode(errors="replace") for text in (done.stdout, done.stderr)
    )
    return Ran(done.returncode, out, err)


# Which steps or jobs of Slurm carry a group, and no other.


@dataclass(frozen=True, slots=True, order=True)
class SlurmTarget:
    """One step, or one job without a step, as it was when its ranks named it."""

    job: str
    step: str | None
    restarts: str

    def __str__(self) -> str:
        return f"job {self.job}" if self.step is None else f"step {self.job}.{self.step}"


def _target(place: Place) -> SlurmTarget:
    job = place.labels.get("slurm_job_id", "")
    step = place.labels.get("slurm_step_id")
    restarts = place.labels.get("slurm_restarts", "0")
    if not job:
        raise NotDone(f"{place.rank} tells no job of Slurm")
    for value in (job, restarts, *([] if step is None else [step])):
        if NUMBER.fullmatch(value) is None:
            raise NotDone(f"{place.rank} tells {value!r:.40} where a number is expected")
    return SlurmTarget(job, step, restarts)


# What `lightkeeper check scheduler` asks Slurm; nothing is changed by it.

NOBODY: Final = "lightkeeper-no-such-node"
"""Slurm checks our permission before it looks for the node (seen, 22.05), so an unknown node shows
whether we have it."""
_REFUSED: Final = re.compile(r"Invalid user id|[Pp]ermission denied")


def slurm_checks(run: Run, deadline: Deadline) -> Iterator[Check]:
    for command in ("scontrol", "scancel", "sinfo"):
        yield _try(f"{command} is there", run, [command, "--version"], deadline)
    ping = _try("slurmctld answers", run, ["scontrol", "ping"], deadline)
    yield replace(ping, ok=ping.ok and " UP" in ping.said)
    argv = ["scontrol", "update", f"NodeName={NOBODY}", "State=UNDRAIN"]
    drain = _try("nodes may be drained", run, argv, deadline)
    if "Invalid node name" in drain.said:
        yield replace(drain, ok=True, said="this user may update nodes")
    else:
        who = " (needs SlurmUser, root, an operator or administrator)"
        said = drain.said + (who if _REFUSED.search(drain.said) else "")
        yield replace(drain, ok=False, said=said)


def _try(what: str, run: Run, argv: Sequence[str], deadline: Deadline) -> Check:
    try:
        ran = run(argv, deadline.left_s())
    except NotDone as exc:
        return Check(what, False, str(exc))
    return Check(what, ran.status == 0, ran.said)


REASON_MAX_CHARS: Final = 240
_LOOK_AGAIN_S: Final = 0.5
_PATIENT_SHARE: Final = 0.5
"""A step that was asked to end is killed when less than this share of the time is left: Slurm
itself waits 30 s (KillWait) between SIGTERM and SIGKILL."""


_ENDING: Final = "COMPLETING"
_ALIVE: Final = frozenset({"RUNNING", _ENDING, "SUSPENDED", "STOPPED"})


class Removal(StrEnum):
    """How a job that carries one group alone, and has no step, is ended."""

    CANCEL = "cancel"
    REQUEUE = "requeue"


class Slurm(Scheduler):
    """The cluster that this machine's `scontrol` talks to."""

    name = "slurm"
    every_s = 30.0
    """Each look loads slurmctld; its manual asks for few."""

    def __init__(
        self,
        everyone: Everyone,
        owner: Owner,
        *,
        removal: Removal = Removal.CANCEL,
        run: Run = run_command,
    ) -> None:
        super().__init__(everyone, owner)
        self._removal = removal
        self._run = run

    def checks(self, timeout_s: float) -> Sequence[Check]:
        return tuple(slurm_checks(self._run, self._deadline(timeout_s)))

    def close(self) -> None:
        """Nothing is kept open."""

    def testimonies(self, _hosts: Collection[Host], timeout_s: float) -> Iterable[Said]:
        ran = self._run(["sinfo", "-h", "-N", "-o", "%N|%T|%H|%E"], timeout_s)
        if ran.status != 0:
            raise NotDone(ran.said)
        for line in ran.out.splitlines():
            yield from node_said(line, time.time())

    def _reach(self, deadline: Deadline) -> Outcome:
        self._must(["scontrol", "ping"], deadline)
        return Outcome(True, "")

    def ends(self, places: Sequence[Place], timeout_s: float) -> Iterator[Ended]:
        deadline = self._deadline(timeout_s)
        for place in places:
            try:
                target = _target(place)
            except NotDone:
                continue
            said = read_fact("Slurm", *self._end_fact(place, target, deadline))
            if said is not None:
                yield place, said

    def _end_fact(self, place: Place, target: SlurmTarget, deadline: Deadline) -> Fact:
        """How the job or step of a group that left or fell silent ended."""
        job = self._show(target, deadline)
        if job is None:
            return "end slurm UNKNOWN", f"Slurm does not know {target} any more", 0.0
        detail = f"job {job.name}, {job.said}"
        if job.restarts != target.restarts:
            return "end slurm REQUEUED", detail, 0.0
        if job.state not in _ALIVE or job.state == _ENDING:
            return f"end slurm {job.state}", detail, seconds_since(job.ended, time.time())
        name = Host(place.labels.get("slurm_node") or place.host)
        node = self._node(name, deadline) if is_node(name) else None
        if node is not None and (node.down or node.silent):
            return "end slurm NODE_FAIL", f"{name} does not answer Slurm;{node.by}", 0.0
        if target.step is not None and not self._has_step(f"{job.name}.{target.step}", deadline):
            return "end slurm STEP", f"{target} has ended and the job runs on", 0.0
        return "end runs", f"its {target} runs" + " and its node is up" * (node is not None), 0.0

    # -- nodes ---------------------------------------------------------------------------------

    def _cordon(self, host: Host, why: Why, deadline: Deadline) -> Outcome:
        """Drain the node, unless somebody else has drained it or taken it down."""
        said = marked(self._owner(), why, REASON_MAX_CHARS)
        node = self._node(host, deadline)
        if self._is_ours(node):
            return Outcome(True, f"{host} is drained already{node.by}")
        if node.drained or (node.down and node.reason != NOT_RESPONDING):
            how = "drained" if node.drained else "down"
            return Outcome(True, f"{host} is {how}{node.by}; left as it is", ours=False)
        self._must(["scontrol", "update", f"NodeName={host}", "State=DRAIN", f"Reason={said}"],
                   deadline)  # fmt: skip
        node = self._node(host, deadline)
        if not node.drained:
            raise NotDone(f"scontrol took it and the node is {'+'.join(sorted(node.states))}")
        return Outcome(True, f"drained {host}: {node.reason}", ours=self._is_ours(node))

    def _uncordon(self, host: Host, reason: str, deadline: Deadline) -> Outcome:
        """Undrain the node, if the reason on it is ours."""
        node = self._node(host, deadline)
        if not node.drained:
            return Outcome(True, f"{host} is not drained")
        if not self._is_ours(node):
            return Outcome(True, f"{host} is drained{node.by}; left as it is", ours=False)
        self._must(["scontrol", "update", f"NodeName={host}", "State=UNDRAIN"], deadline)
        node = self._node(host, deadline)
        if self._is_ours(node):
            raise NotDone("scontrol took it and the node is drained still")
        still = " (and down)" if node.down else ""
        return Outcome(True, f"undrained {host}{still}: {reason}")

    def _cordoned(self, deadline: Deadline) -> Iterable[Host] | None:
        ours = mark(self._owner())
        said = self._run(["sinfo", "-h", "-N", "-o", "%N|%E"], deadline.left_s())
        if said.status != 0:
            return None
        pairs = (line.split("|", 1) for line in said.out.splitlines() if "|" in line)
        return (Host(name.strip()) for name, why in pairs if why.startswith(ours))

    def _is_ours(self, node: SlurmNode) -> bool:
        return node.drained and node.reason.startswith(mark(self._owner()))

    def _node(self, host: Host, deadline: Deadline) -> SlurmNode:
        if not is_node(host):
            raise NotDone(f"{host!r:.80} is no name of one node")
        said = self._run(["scontrol", "show", "node", host], deadline.left_s())
        node = parse_node(said.out) if said.status == 0 else None
        if node is None or node.name != host:
            raise NotDone(said.said if said.status else f"scontrol shows no node {host}")
        return node

    # -- jobs ----------------------------------------------------------------------------------

    def _remove(
        self, _group: GroupName, places: Sequence[Place], others: Sequence[Place], why: Why,
        deadline: Deadline,
    ) -> Outcome:  # fmt: skip
        """Cancel the steps, or jobs, that run only this group. A reason cannot be recorded. A job
        of a lost group is requeued if it can be: it shall come back.
        """
        targets = sorted({_target(place) for place in places}, key=str)
        for target in targets:
            refuse_shared_job(others, target.job, target.step)
        jobs = {target.job: self._job(target, deadline) for target in targets}
        down = [] if why.lost is None else self._down(places, why.lost, deadline)
        try:
            said = [self._end(target, jobs[target.job], why, deadline) for target in targets]
        except NotDone as exc:
            if not down:
                raise
            off = f"scontrol update NodeName={','.join(down)} State=DOWN Reason=lost"
            raise NotDone(f"{exc}. Slurm ends all jobs on {listed(down)} by: {off}") from exc
        return Outcome(True, "; ".join(said))

    def _down(self, places: Sequence[Place], lost: Lost, deadline: Deadline) -> list[Host]:
        """The hosts of these places that Slurm holds to be down; `lost` hears of them."""
        down = []
        for host in sorted({place.host for place in places}):
            with suppress(NotDone):  # Slurm may call it by another name
                down += [host] if self._node(host, deadline).down else []
        for host in down:
            lost.down(host)
        return down

    def _job(self, target: SlurmTarget, deadline: Deadline) -> SlurmJob | None:
        """A target's job as it runs now; None when it is gone."""
        job = self._show(target, deadline)
        if job is None or job.restarts != target.restarts:
            return None  # requeued since: what runs now is another incarnation
        return job if job.state in _ALIVE else None

    def _is_over(self, target: SlurmTarget, deadline: Deadline) -> bool:
        """True if it has ended; `restarts` rises while the old run still ends (seen, 22.05)."""
        job = self._show(target, deadline)
        if job is None or job.state not in _ALIVE:
            return True
        return job.restarts != target.restarts and job.state != _ENDING

    def _show(self, target: SlurmTarget, deadline: Deadline) -> SlurmJob | None:
        said = self._run(["scontrol", "show", "job", target.job], deadline.left_s())
        if said.status != 0:
            if "Invalid job id" in said.said:
                return None
            raise NotDone(said.said)
        job = parse_job(said.out, target.job)
        if job is None:
            raise NotDone(f"scontrol shows no job {target.job}")
        return job

    def _end(self, target: SlurmTarget, job: SlurmJob | None, why: Why, deadline: Deadline) -> str:
        if job is None:
            return f"{target} is gone"
        if target.step is not None:
            return self._end_step(target, f"{job.name}.{target.step}", deadline)
        if not job.whole:
            raise NotDone(f"{target} is a part of a heterogeneous job and has no step")
        requeues = self._removal is Removal.REQUEUE or why.lost is not None
        if requeues and not job.requeues:
            raise NotDone(f"{target} cannot be requeued (sbatch --requeue)")
        if requeues:
            argv, done = ["scontrol", "requeue", job.name], "requeued"
        else:
            argv, done = ["scancel", job.name], "cancelled"
        self._must(argv, deadline)
        while not self._is_over(target, deadline):
            said = f"{' '.join(argv)} was taken and it has not ended"
            deadline.pause(_LOOK_AGAIN_S, said)
        return f"{done} {target}"

    def _end_step(self, target: SlurmTarget, name: str, deadline: Deadline) -> str:
        if not self._has_step(name, deadline):
            return f"{target} is gone"
        self._cancel(["scancel", name], name, deadline)
        killed = False
        while self._has_step(name, deadline):
            if not killed and deadline.share_left() < _PATIENT_SHARE:
                self._cancel(["scancel", "--signal=KILL", name], name, deadline)
                killed = True
            deadline.pause(_LOOK_AGAIN_S, f"scancel {name} was taken and the step runs still")
        return f"cancelled {target}" + (" by SIGKILL" if killed else "")

    def _cancel(self, argv: Sequence[str], name: str, deadline: Deadline) -> None:
        """Run `scancel`; for a step that has just ended, "Invalid job id" is not a failure."""
        said = self._run(argv, deadline.left_s())
        if said.status != 0 and self._has_step(name, deadline):
            raise NotDone(said.said)

    def _has_step(self, name: str, deadline: Deadline) -> bool:
        said = self._run(["scontrol", "show", "step", name], deadline.left_s())
        if said.status == 0:
            return "StepId=" in said.out
        if "not found" in said.said or "Invalid job id" in said.said:
            return False
        raise NotDone(said.said)

    def _must(self, argv: Sequence[str], deadline: Deadline) -> None:
        said = self._run(argv, deadline.left_s())
        if said.status != 0:
            raise NotDone(said.said)
