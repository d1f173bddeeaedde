"""Goodput: rank-seconds that trained, those that did not by cause, and what evictions saved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import Metric

from monitor.metrics.definition import counter
from monitor.metrics.scene import Scene

_NO_ACCOUNT: Final = "no account of such an incident is complete since this monitor started"

EFFECTIVE = counter(
    "effective_rank_seconds",
    "Rank-seconds that went into committed steps at the job's usual pace, since this monitor "
    "looks.",
)
INEFFECTIVE = counter(
    "ineffective_rank_seconds",
    "Rank-seconds that did not, by cause: the kind of the incident that stood, recovering, "
    "starting, checkpoint, evaluation, compile, failed_commit, unexplained.",
    ("cause",), series="at most 16", absent="causes that cost nothing since this monitor looks",
)  # fmt: skip
LOST = counter(
    "lost_rank_seconds",
    "Rank-seconds that waited for faults, at least, once their accounts are complete.",
    ("kind",), series="at most 9", absent=_NO_ACCOUNT,
)  # fmt: skip
SAVED = counter(
    "saved_rank_seconds",
    "Rank-seconds that evictions saved, at least, by lightkeeper's own account.",
    ("kind",), series="at most 9", absent=_NO_ACCOUNT,
)  # fmt: skip
SPENT = counter(
    "spent_rank_seconds",
    "Rank-seconds that evictions cost more than they may have saved, at most.",
    ("kind",), series="at most 9", absent=_NO_ACCOUNT,
)  # fmt: skip
UNACCOUNTED = counter(
    "unaccounted_incidents",
    "Incidents of which it cannot be told what they lost or what their eviction saved.",
    ("kind", "what"), series="at most 9 x 2", absent=_NO_ACCOUNT,
)  # fmt: skip

DEFINITIONS: Final = (EFFECTIVE, INEFFECTIVE, LOST, SAVED, SPENT, UNACCOUNTED)


def export(scene: Scene) -> Iterator[Metric]:
    """What is read from the view; accounts are counted when they are complete."""
    spent = scene.view.spent
    yield EFFECTIVE.value(spent.effective_s)
    yield INEFFECTIVE.each(sorted(spent.ineffective_s.items()))
