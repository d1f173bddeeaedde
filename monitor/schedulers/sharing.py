"""Who else would be hit: a job or a pod may carry ranks of several groups. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from monitor.names import GroupName, group_of
from monitor.schedulers.protocol import Place


class Refusal(Exception):  # noqa: N818 - an answer, not an accident
    """What cannot be identified is left alone; the message is one line for a person."""


_SLURM = "slurm_job_id"
_POD = "pod_uid"


def strangers(group: GroupName, everyone: Iterable[Place]) -> tuple[Place, ...]:
    """The places of all ranks that are not of this group."""
    return tuple(place for place in everyone if group_of(place.rank) != group)


def in_job(others: Sequence[Place], job: str, step: str | None) -> str | None:
    """Why a job (or one step of it) cannot be ended for a group alone; None when it can.

    A rank that tells no place may be anywhere; one that is known to be in a pod is not in Slurm.
    """
    for other in others:
        told = other.labels.get(_SLURM)
        if told is None and _POD not in other.labels:
            return f"{other.rank} does not tell its place and may run in job {job} too"
        if told != job:
            continue
        if step is None:
            return f"job {job} carries {other.rank} too"
        theirs = other.labels.get("slurm_step_id")
        if theirs == step:
            return f"step {job}.{step} carries {other.rank} too"
    return None


def in_pod(others: Sequence[Place], uid: str, hosts: Iterable[str]) -> str | None:
    """Why a pod cannot be deleted for a group alone; None when it can. It stands on one of these
    hosts, so that a rank elsewhere is in another pod even if it tells nothing.
    """
    near = frozenset(hosts)
    for other in others:
        told = other.labels.get(_POD)
        if told == uid:
            return f"pod {uid} carries {other.rank} too"
        if told is None and _SLURM not in other.labels and other.host in near:
            return f"{other.rank} does not tell its place and may run in pod {uid} too"
    return None
