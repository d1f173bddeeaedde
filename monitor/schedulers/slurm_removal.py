"""Which steps or jobs of Slurm carry a group, and nobody else. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from monitor.names import GroupName
from monitor.schedulers.protocol import Place
from monitor.schedulers.sharing import Refusal, in_job, strangers
from monitor.schedulers.slurm_text import NUMBER


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """One step, or one job without a step, as it was when its ranks told it."""

    job: str
    step: str | None
    restarts: str

    def __str__(self) -> str:
        return f"job {self.job}" if self.step is None else f"step {self.job}.{self.step}"


def targets_of(
    group: GroupName, places: Sequence[Place], everyone: Iterable[Place]
) -> tuple[Target, ...]:
    """What has to end, each once.

    Raises:
        Refusal: a rank of the group does not tell its job, or somebody else is, or may be, there.
    """
    if not places:
        raise Refusal("no rank of it is known")
    targets = sorted({_target(place) for place in places}, key=str)
    others = strangers(group, everyone)
    for target in targets:
        obstacle = in_job(others, target.job, target.step)
        if obstacle is not None:
            raise Refusal(obstacle)
    return tuple(targets)


def _target(place: Place) -> Target:
    job = place.labels.get("slurm_job_id", "")
    step = place.labels.get("slurm_step_id")
    restarts = place.labels.get("slurm_restarts", "0")
    if not job:
        raise Refusal(f"{place.rank} tells no job of Slurm")
    for value in (job, restarts, *([] if step is None else [step])):
        if NUMBER.fullmatch(value) is None:
            raise Refusal(f"{place.rank} tells {value!r:.40} where a number is expected")
    return Target(job, step, restarts)
