"""Who holds the fleet back: how long each works and waits in a step, and how far it stands out."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Final

from prometheus_client.core import Metric

from monitor.decide.step_times import Tempo
from monitor.metrics.definition import GROUP, RANK, gauge
from monitor.metrics.scene import Scene
from monitor.model.names import GroupName, group_of, split_rank_name

_NO_TEMPO: Final = "who committed nothing within the last 15 s"
_NOBODY: Final = "no rank committed within the last 15 s"

RANK_BUSY = gauge(
    "rank_busy_seconds",
    "Mean seconds a step in which the rank did not wait for others, last window.",
    RANK, series="R", absent=_NO_TEMPO,
)  # fmt: skip
RANK_WAIT = gauge(
    "rank_wait_seconds",
    "Mean seconds a step in which the rank waited for others, last window.",
    RANK, series="R", absent=_NO_TEMPO,
)  # fmt: skip
FLEET_BUSY = gauge(
    "fleet_busy_seconds",
    "Seconds a step in which ranks did not wait, over all ranks: min, median, p99 and max.",
    ("stat",), series="4", absent=_NOBODY,
)  # fmt: skip
GROUP_BUSY = gauge(
    "group_busy_seconds", "Seconds a step that the longest working rank of the group worked.",
    GROUP, series="G", absent=_NO_TEMPO,
)  # fmt: skip
GROUP_WAIT = gauge(
    "group_wait_seconds", "Seconds a step that the ranks of the group waited, their median.",
    GROUP, series="G", absent=_NO_TEMPO,
)  # fmt: skip
GROUP_SKEW = gauge(
    "group_busy_skew_ratio",
    "How many times the median of all ranks of the fleet the longest working rank of the group "
    "worked.",
    GROUP, series="G", absent=_NO_TEMPO,
)  # fmt: skip

DEFINITIONS: Final = (RANK_BUSY, RANK_WAIT, FLEET_BUSY, GROUP_BUSY, GROUP_WAIT, GROUP_SKEW)


def export(scene: Scene) -> Iterator[Metric]:
    """Everything of this file."""
    tempos = scene.view.tempos
    named = []
    for rank in scene.busy:
        group, number = split_rank_name(rank)
        named.append(((str(group), str(number)), tempos[rank]))
    yield RANK_BUSY.rows([(labels, tempo.busy_s) for labels, tempo in named])
    yield RANK_WAIT.rows([(labels, tempo.wait_s) for labels, tempo in named])
    busy = sorted(tempo.busy_s for tempo in tempos.values())
    usual_s = median(busy) if busy else 0.0
    yield FLEET_BUSY.each(_spread(busy, usual_s))
    members: dict[GroupName, list[Tempo]] = {}
    for rank, tempo in tempos.items():
        members.setdefault(group_of(rank), []).append(tempo)
    told = [(one.group, members[one.group]) for one in scene.told_groups if one.group in members]
    longest = [(group, max(tempo.busy_s for tempo in ranks)) for group, ranks in told]
    yield GROUP_BUSY.each(longest)
    yield GROUP_WAIT.each((group, median(one.wait_s for one in ranks)) for group, ranks in told)
    yield GROUP_SKEW.each((group, busy_s / usual_s) for group, busy_s in longest if usual_s > 0)


def _spread(busy: list[float], usual_s: float) -> Iterator[tuple[str, float]]:
    """Of sorted seconds; the p99 is a rank's own, the nearest from above."""
    if busy:
        yield "min", busy[0]
        yield "median", usual_s
        yield "p99", busy[-(-99 * len(busy) // 100) - 1]
        yield "max", busy[-1]
