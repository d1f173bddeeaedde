"""Thresholds of incidents, of the policy and of the monitor's doubt of itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from monitor.config.range import DAY, Range


@dataclass(frozen=True)
class Deciding:
    """How long an incident lasts, and what keeps an eviction back."""

    __slots__ = ()  # the fields lie in `KeeperConfig`

    # -- incidents -------------------------------------------------------------------------
    clear_s: float = 3.0
    """A fault not seen for so long, its ranks progressing, has passed by itself."""
    straggler_clear_s: float = 30.0
    """The same for a straggler, which is seen by windows only."""
    lag_clear_s: float = 60.0
    """A replica lag whose last turn is so long ago, and that is not seen for half as long, has
    ended: a loop has turns that last seconds to a minute."""
    keep_resolved_s: float = 3600.0
    """Resolved incidents are shown, and their signatures remembered, for so long."""
    follow_s: float = 600.0
    """Milestones of an evicted group are awaited for so long."""

    # -- policy ----------------------------------------------------------------------------
    min_replicas: int = 1
    """Healthy participating groups that must remain after an eviction."""
    budget_per_hour: int = 4
    """Evictions in any hour. Higher lets a monitor bug do more harm."""
    budget_per_group: int = 0
    """The same for one group; 0: none of its own. Lower leaves a group that keeps failing to a
    person sooner."""
    cool_down_s: float = 20.0
    """Between two evictions: a quorum needs the heartbeat timeout (5 s) plus its tick, a
    restarted group 17 to 20 s to contribute (facts/torchft.md)."""
    breaker_share: float = 1 / 3
    """Share of the groups that may be accused at once before nobody is evicted (at least 1)."""
    # The monitor's own health: monitor.self_health.
    lateness_ticks: float = 2.0
    """A tick this many ticks late is the monitor's own sickness."""
    unreachable_share: float = 0.2
    """More targets silent in one tick, at least 2 and on 2 hosts, is the monitor's own sickness."""
    starved_share: float = 0.5
    """A thread of the monitor that waits for a core for more of a tick makes it doubt itself: half
    of a tick is near the deadline of a sweep (0.8 of it). Lower doubts on every busy host."""
    eviction_cost_s: float = 15.0
    """What heal and restart cost, until an eviction of this job has been measured; a straggler goes
    once it has cost more (ski rental)."""
    eviction_ack_s: float = 10.0
    """An eviction decided and not taken up by the evictor within so long is decided again."""
    eviction_deadline_s: float = 90.0
    """An eviction without effect for so long has failed. A Lighthouse kill of a stopped group
    takes 30 s to fail by itself."""
    program_bug_after: int = 1
    """Evictions for one signature that came back on another host, before the program is blamed."""
    crash_loop_after: int = 1
    """Evictions for one signature, wherever it came back, before a person has to look."""
    crash_loop_memory_s: float = 3600.0
    """For so long after its end an eviction counts for these two. Longer holds a fault that hosts
    caused, shorter forgets a program's that takes its time."""


RANGES: Final[Mapping[str, Range]] = {
    "clear_s": (0, 3600),
    "straggler_clear_s": (0, 3600),
    "lag_clear_s": (0, DAY),
    "keep_resolved_s": (60, 30 * DAY),
    "follow_s": (0, DAY),
    "min_replicas": (1, 1e6),
    "budget_per_hour": (0, 1e6),
    "budget_per_group": (0, 1e6),
    "cool_down_s": (0, DAY),
    "breaker_share": (0, 1),
    "lateness_ticks": (0.1, 1000),
    "unreachable_share": (0, 1),
    "starved_share": (0, 1),
    "eviction_cost_s": (0, DAY),
    "eviction_ack_s": (1, 3600),
    "eviction_deadline_s": (1, 3600),
    "program_bug_after": (1, 1000),
    "crash_loop_after": (1, 1000),
    "crash_loop_memory_s": (0, 90 * DAY),
}
