"""What recoveries take, by replica group, as its ranks report it.

Ranks of a group work at the same time: seconds are those of the slowest, bytes are added up. What
was not done yet, or is not known, is left out. Of the groups' present processes only: whole
distributions are on the ranks' own pages (`lightkeeper_rank_checkpoint_load_seconds` ...).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric

from monitor.metrics.gauge import gauge
from monitor.names import GroupName
from monitor.view import View
from worker_server.wire import StepState, Took

_GROUP: Final = ("replica_group",)
_SECONDS: Final = (
    ("staging", "last_checkpoint_staging", "made a checkpoint ready for another group"),
    ("load", "last_checkpoint_load", "loaded a checkpoint from another group"),
    ("apply", "last_checkpoint_apply", "took over what it had loaded"),
    ("reconfigure", "last_reconfigure", "built the process groups of a new quorum"),
)


def recoveries(view: View) -> Iterator[Metric]:
    """Heals, attempts without a commit, and how long the last of each part took."""
    groups = _steps(view)
    failures = CounterMetricFamily(
        "lightkeeper_group_commit_failures",
        "Attempts of the group's present processes that ended without a commit.",
        labels=_GROUP,
    )
    heals = CounterMetricFamily(
        "lightkeeper_group_heals",
        "States of other groups that the group's present processes took over.",
        labels=_GROUP,
    )
    for group, steps in groups.items():
        failures.add_metric((group,), max(step.commit_failures for step in steps))
        if any(step.times for step in steps):  # else it is not TorchFT, or does not tell
            heals.add_metric((group,), max(_took(step, "apply").done for step in steps))
    yield from (failures, heals)
    for part, name, text in _SECONDS:
        rows = [
            ((str(group),), max(_took(step, part).last_s for step in steps))
            for group, steps in groups.items()
            if any(part in step.times for step in steps)
        ]
        yield gauge(f"group_{name}_seconds", f"Seconds in which the group last {text}.",
                    _GROUP, rows)  # fmt: skip
    loaded = [
        ((str(group),), float(sum(_took(step, "load").last_bytes for step in steps)))
        for group, steps in groups.items()
        if any(_took(step, "load").last_bytes for step in steps)
    ]
    text = "Bytes of the checkpoint that the group last loaded, all its ranks together."
    yield gauge("group_last_checkpoint_load_bytes", text, _GROUP, loaded)


def _steps(view: View) -> dict[GroupName, list[StepState]]:
    """What the ranks of each group report, sorted by group."""
    found: dict[GroupName, list[StepState]] = {}
    for seen in view.snapshot.observations:
        if seen.report is not None and seen.report.step is not None:
            found.setdefault(seen.identity.group, []).append(seen.report.step)
    return dict(sorted(found.items()))


def _took(step: StepState, part: str) -> Took:
    return step.times.get(part, Took())
