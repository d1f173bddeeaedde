"""The monitor itself: its ticks, its eyes, its detectors, and whether it trusts them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import Metric

from monitor.detect.self_health import Condition
from monitor.metrics.definition import counter, gauge, histogram
from monitor.metrics.scene import Scene

TICK_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

BUILD = gauge("build_info", "1, with the version.", ("version",))
TICKS = histogram(
    "tick_duration_seconds", "Seconds from the start of a tick to its end.", buckets=TICK_BUCKETS,
    series="13",
)  # fmt: skip
LATENESS = gauge("tick_lateness_seconds", "How much later than planned the last tick began.")
POLL_FAILURES = counter(
    "poll_failures", "Polls of a rank that gave no report, by reason.", ("reason",),
    series="at most 6", absent="none failed for it since this monitor started",
)  # fmt: skip
DETECTOR_FAILURES = counter(
    "detector_failures", "Crashes of a detector; its kind of fault is unknown meanwhile.",
    ("detector",), series="at most one a detector", absent="it never crashed",
)  # fmt: skip
PART_FAILURES = counter(
    "part_failures", "Crashes of a part of the monitor's own loop.", ("part",),
    series="at most one a part", absent="it never crashed",
)  # fmt: skip
DETECTOR_UP = gauge(
    "detector_up",
    "1 while the detector works; 0: it crashed in the last tick, its fault is unknown.",
    ("detector",), series="one a detector",
)  # fmt: skip
SELF_HEALTH = gauge(
    "self_health", "1 for the state of the monitor's own health, 0 for the others.", ("state",),
    series="7",
)  # fmt: skip
SCALE = gauge(
    "self_health_scale",
    "What thresholds are multiplied by because the monitor doubts itself; 1 when well.",
)

DEFINITIONS: Final = (
    BUILD, TICKS, LATENESS, POLL_FAILURES, DETECTOR_FAILURES, PART_FAILURES, DETECTOR_UP,
    SELF_HEALTH, SCALE,
)  # fmt: skip


def export(scene: Scene) -> Iterator[Metric]:
    """What the monitor knows of itself."""
    result = scene.view.result
    yield DETECTOR_UP.each(sorted(result.detectors.items()))
    yield SELF_HEALTH.each((one, one is result.health.state) for one in Condition)
    yield SCALE.value(result.health.scale)
