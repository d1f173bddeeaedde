"""Slurm, by its own commands: drain a node, end the step or the job that carries a group.

Theory of operation. `scontrol update` has no condition ("only if nobody else did"), so each change
is a look, the change, and a look whether it is so. What is ours is told by the reason, which begins
with our mark; any other reason, whoever wrote it, is left as it is, and so is the node's state.
A node is given back with UNDRAIN and not with RESUME, which would also bring back a node that is
down. A group is ended by its step where it has one; the whole job goes only when no rank of another
group is known to be, or may be, in it. Slurm 20.11 or newer; tried with 22.05.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

from monitor.names import GroupName, Host, IncidentId
from monitor.schedulers import slurm_checks
from monitor.schedulers.deadline import Clockwork, Deadline, TooLate
from monitor.schedulers.protocol import Check, Everyone, Outcome, Owner, Place
from monitor.schedulers.running import Ran, Run, RunError, run
from monitor.schedulers.sharing import Refusal
from monitor.schedulers.slurm_removal import Target, targets_of
from monitor.schedulers.slurm_text import (
    NOT_RESPONDING,
    Job,
    Node,
    is_node,
    parse_job,
    parse_node,
)
from monitor.schedulers.wording import mark, marked

REASON_MAX_CHARS: Final = 240
_LOOK_AGAIN_S: Final = 0.5
_PATIENT_SHARE: Final = 0.5
"""Of the time left after which a step that was asked to end is killed: Slurm itself waits 30 s
(KillWait) between SIGTERM and SIGKILL."""


_ENDING: Final = "COMPLETING"
_ALIVE: Final = frozenset({"RUNNING", _ENDING, "SUSPENDED", "STOPPED"})


class Removal(StrEnum):
    """How a job that carries one group alone, and has no step, is ended."""

    CANCEL = "cancel"
    REQUEUE = "requeue"


class SlurmError(Exception):
    """Slurm did not do it; the message is one line for a person."""


class Slurm:
    """The cluster that `scontrol` here speaks to."""

    name = "slurm"

    def __init__(
        self,
        everyone: Everyone,
        owner: Owner,
        *,
        removal: Removal = Removal.CANCEL,
        run: Run = run,
        clockwork: Clockwork | None = None,
    ) -> None:
        """`owner` names the quarantine list whose marks are ours."""
        self._everyone = everyone
        self._owner = owner
        self._removal = removal
        self._run = run
        self._clockwork = clockwork or Clockwork()

    def cordon(
        self, host: Host, reason: str, incident_id: IncidentId | None, timeout_s: float
    ) -> Outcome:
        """Drain the node, unless it is drained or down by somebody else's hand."""

        def work(deadline: Deadline) -> Outcome:
            said = marked(self._owner(), reason, incident_id, REASON_MAX_CHARS)
            return self._drain(host, said, deadline)

        return self._within(timeout_s, work, f"{host} not drained")

    def uncordon(self, host: Host, reason: str, timeout_s: float) -> Outcome:
        """Undrain the node, if the reason on it is ours."""

        def work(deadline: Deadline) -> Outcome:
            return self._undrain(host, reason, deadline)

        return self._within(timeout_s, work, f"{host} not undrained")

    def remove(
        self,
        group: GroupName,
        places: Sequence[Place],
        reason: str,
        incident_id: IncidentId | None,
        timeout_s: float,
    ) -> Outcome:
        """Cancel the steps, or jobs, in which the group runs and nobody else."""
        del reason, incident_id  # a cancelled step has no place for them

        def work(deadline: Deadline) -> Outcome:
            targets = targets_of(group, places, self._everyone())
            jobs = {one.job: self._job(one, deadline) for one in targets}
            return Outcome(
                True, "; ".join(self._end(one, jobs[one.job], deadline) for one in targets)
            )

        return self._within(timeout_s, work, f"{group} not removed")

    def cordoned(self, timeout_s: float) -> Sequence[Host] | None:
        """The nodes whose reason begins with our mark."""
        try:
            ours = mark(self._owner())
            said = self._run(["sinfo", "-h", "-N", "-o", "%N|%E"], timeout_s)
        except Exception:  # noqa: BLE001 - whatever it is, what is ours is not known
            return None
        if said.status != 0:
            return None
        pairs = (line.split("|", 1) for line in said.out.splitlines() if "|" in line)
        return tuple(sorted({Host(name.strip()) for name, why in pairs if why.startswith(ours)}))

    def checks(self, timeout_s: float) -> Sequence[Check]:
        """Commands, controller, and whether we may."""
        return tuple(slurm_checks.checks(self._run, Deadline(timeout_s, self._clockwork)))

    def close(self) -> None:
        """Nothing is kept open."""

    def _within(
        self, timeout_s: float, work: Callable[[Deadline], Outcome], failed: str
    ) -> Outcome:
        try:
            return work(Deadline(timeout_s, self._clockwork))
        except (RunError, SlurmError, TooLate, Refusal) as exc:
            return Outcome(False, f"{failed}: {exc}")
        except Exception as exc:  # noqa: BLE001 - the registry's, or the store's
            return Outcome(False, f"{failed}: {type(exc).__name__}: {exc}")

    # -- nodes ---------------------------------------------------------------------------------

    def _drain(self, host: Host, reason: str, deadline: Deadline) -> Outcome:
        node = self._node(host, deadline)
        if self._is_ours(node):
            return Outcome(True, f"{host} is drained already{node.by}")
        if node.drained or (node.down and node.reason != NOT_RESPONDING):
            how = "drained" if node.drained else "down"
            return Outcome(True, f"{host} is {how}{node.by}; left as it is", ours=False)
        self._must(["scontrol", "update", f"NodeName={host}", "State=DRAIN", f"Reason={reason}"],
                   deadline)  # fmt: skip
        node = self._node(host, deadline)
        if not node.drained:
            raise SlurmError(f"scontrol took it and the node is {'+'.join(sorted(node.states))}")
        return Outcome(True, f"drained {host}: {node.reason}", ours=self._is_ours(node))

    def _undrain(self, host: Host, reason: str, deadline: Deadline) -> Outcome:
        node = self._node(host, deadline)
        if not node.drained:
            return Outcome(True, f"{host} is not drained")
        if not self._is_ours(node):
            return Outcome(True, f"{host} is drained{node.by}; left as it is", ours=False)
        self._must(["scontrol", "update", f"NodeName={host}", "State=UNDRAIN"], deadline)
        node = self._node(host, deadline)
        if self._is_ours(node):
            raise SlurmError("scontrol took it and the node is drained still")
        still = " (and down)" if node.down else ""
        return Outcome(True, f"undrained {host}{still}: {reason}")

    def _is_ours(self, node: Node) -> bool:
        return node.drained and node.reason.startswith(mark(self._owner()))

    def _node(self, host: Host, deadline: Deadline) -> Node:
        if not is_node(host):
            raise SlurmError(f"{host!r:.80} is no name of one node")
        said = self._run(["scontrol", "show", "node", host], deadline.left_s())
        node = parse_node(said.out) if said.status == 0 else None
        if node is None or node.name != host:
            raise SlurmError(said.said if said.status else f"scontrol shows no node {host}")
        return node

    # -- jobs ----------------------------------------------------------------------------------

    def _job(self, target: Target, deadline: Deadline) -> Job | None:
        """The job of a target as it runs now; None when it is gone."""
        job = self._show(target, deadline)
        if job is None or job.restarts != target.restarts:
            return None  # requeued since: what runs now is another incarnation
        return job if job.state in _ALIVE else None

    def _is_over(self, target: Target, deadline: Deadline) -> bool:
        """A requeued job has counted on while its old run is still ending (seen, 22.05)."""
        job = self._show(target, deadline)
        if job is None or job.state not in _ALIVE:
            return True
        return job.restarts != target.restarts and job.state != _ENDING

    def _show(self, target: Target, deadline: Deadline) -> Job | None:
        said = self._run(["scontrol", "show", "job", target.job], deadline.left_s())
        if said.status != 0:
            if "Invalid job id" in said.said:
                return None
            raise SlurmError(said.said)
        job = parse_job(said.out, target.job)
        if job is None:
            raise SlurmError(f"scontrol shows no job {target.job}")
        return job

    def _end(self, target: Target, job: Job | None, deadline: Deadline) -> str:
        if job is None:
            return f"{target} is gone"
        if target.step is not None:
            return self._end_step(target, f"{job.name}.{target.step}", deadline)
        if not job.whole:
            raise Refusal(f"{target} is a part of a heterogeneous job and has no step")
        if self._removal is Removal.REQUEUE and not job.requeues:
            raise Refusal(f"{target} cannot be requeued (sbatch --requeue)")
        word = "requeue" if self._removal is Removal.REQUEUE else "cancel"
        argv = ["scontrol", "requeue", job.name] if word == "requeue" else ["scancel", job.name]
        self._must(argv, deadline)
        self._wait(lambda: self._is_over(target, deadline), f"{word} {job.name}", deadline)
        return f"{'requeued' if word == 'requeue' else 'cancelled'} {target}"

    def _end_step(self, target: Target, name: str, deadline: Deadline) -> str:
        if not self._has_step(name, deadline):
            return f"{target} is gone"
        self._cancel(["scancel", name], name, deadline)
        killed = False
        while self._has_step(name, deadline):
            if not killed and deadline.share_left() < _PATIENT_SHARE:
                self._cancel(["scancel", "--signal=KILL", name], name, deadline)
                killed = True
            try:
                deadline.pause(_LOOK_AGAIN_S)
            except TooLate as exc:
                raise SlurmError(f"scancel {name} was taken and the step runs still") from exc
        return f"cancelled {target}" + (" by SIGKILL" if killed else "")

    def _cancel(self, argv: Sequence[str], name: str, deadline: Deadline) -> None:
        """`scancel` of what has just ended says "Invalid job id", which is no failure."""
        said = self._run(argv, deadline.left_s())
        if said.status != 0 and self._has_step(name, deadline):
            raise SlurmError(said.said)

    def _has_step(self, name: str, deadline: Deadline) -> bool:
        said = self._run(["scontrol", "show", "step", name], deadline.left_s())
        if said.status == 0:
            return "StepId=" in said.out
        if "not found" in said.said or "Invalid job id" in said.said:
            return False
        raise SlurmError(said.said)

    def _wait(self, over: Callable[[], bool], what: str, deadline: Deadline) -> None:
        while not over():
            try:
                deadline.pause(_LOOK_AGAIN_S)
            except TooLate as exc:
                raise SlurmError(f"{what} was taken and has not ended") from exc

    def _must(self, argv: Sequence[str], deadline: Deadline) -> Ran:
        said = self._run(argv, deadline.left_s())
        if said.status != 0:
            raise SlurmError(said.said)
        return said
