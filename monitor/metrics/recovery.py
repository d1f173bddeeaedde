"""What recoveries take, by replica group, as its ranks report it.

Ranks of a group work at the same time: seconds are those of the slowest, bytes are added up. What
was not done yet, or is not known, is left out. Of the groups' present processes only: whole
distributions are on the ranks' own pages (`lightkeeper_rank_checkpoint_load_seconds` ...).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import Metric

from monitor.metrics.definition import GROUP, Definition, counter, gauge
from monitor.metrics.scene import Scene
from monitor.model.names import GroupName
from worker_server.wire import StepState, Took

_NOT_YET: Final = "the group did not do it yet, or is not TorchFT"

FAILURES = counter(
    "group_commit_failures",
    "Attempts of the group's present processes that ended without a commit.",
    GROUP, series="G", absent="no rank of the group answers, or none reports steps",
)  # fmt: skip
HEALS = counter(
    "group_heals", "States of other groups that the group's present processes took over.", GROUP,
    series="G", absent=_NOT_YET,
)  # fmt: skip
STAGING = gauge(
    "group_last_checkpoint_staging_seconds",
    "Seconds in which the group last made a checkpoint ready for another group.",
    GROUP, series="G", absent=_NOT_YET,
)  # fmt: skip
LOAD = gauge(
    "group_last_checkpoint_load_seconds",
    "Seconds in which the group last loaded a checkpoint from another group.",
    GROUP, series="G", absent=_NOT_YET,
)  # fmt: skip
APPLY = gauge(
    "group_last_checkpoint_apply_seconds",
    "Seconds in which the group last took over what it had loaded.",
    GROUP, series="G", absent=_NOT_YET,
)  # fmt: skip
RECONFIGURE = gauge(
    "group_last_reconfigure_seconds",
    "Seconds in which the group last built the process groups of a new quorum.",
    GROUP, series="G", absent=_NOT_YET,
)  # fmt: skip
LOADED = gauge(
    "group_last_checkpoint_load_bytes",
    "Bytes of the checkpoint that the group last loaded, all its ranks together.",
    GROUP, series="G", absent=_NOT_YET,
)  # fmt: skip

_SECONDS: Final[tuple[tuple[str, Definition], ...]] = (
    ("staging", STAGING), ("load", LOAD), ("apply", APPLY), ("reconfigure", RECONFIGURE),
)  # fmt: skip

DEFINITIONS: Final = (FAILURES, HEALS, STAGING, LOAD, APPLY, RECONFIGURE, LOADED)


def export(scene: Scene) -> Iterator[Metric]:
    """Heals, attempts without a commit, and how long the last of each part took."""
    groups = _steps(scene)
    yield FAILURES.each((g, max(one.commit_failures for one in s)) for g, s in groups.items())
    torchft = {group: steps for group, steps in groups.items() if any(s.times for s in steps)}
    yield HEALS.each((g, max(_took(one, "apply").done for one in s)) for g, s in torchft.items())
    for part, definition in _SECONDS:
        yield definition.each(
            (group, max(_took(step, part).last_s for step in steps))
            for group, steps in torchft.items()
            if any(part in step.times for step in steps)
        )
    loaded = ((g, sum(_took(one, "load").last_bytes for one in s)) for g, s in torchft.items())
    yield LOADED.each((group, nbytes or None) for group, nbytes in loaded)


def _steps(scene: Scene) -> dict[GroupName, list[StepState]]:
    """What the ranks of each group report, sorted by group."""
    found = {
        group: [one.step for one in seen if one.step is not None]
        for group, seen in scene.observed.items()
    }
    return {group: steps for group, steps in found.items() if steps}


def _took(step: StepState, part: str) -> Took:
    return step.times.get(part, Took(0))
