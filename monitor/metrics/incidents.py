"""Incidents: open ones, who is accused, how they moved and how long each stage took."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import Metric

from monitor.metrics.definition import RANK, counter, gauge, histogram
from monitor.metrics.scene import Scene
from monitor.model.incident import Incident
from monitor.model.names import Host, RankName, split_rank_name

SUSPECTS_TOLD: Final = 100
INCIDENTS_TOLD: Final = 50
_RECENT_S: Final = 3600.0
_STAGE_BUCKETS: Final = (
    0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0,
)  # fmt: skip

OPEN = gauge(
    "incidents", "Open incidents, by kind, state and severity (info, warning, critical).",
    ("kind", "state", "severity"), series="at most 9 x 3 x 3", absent="none is open",
)  # fmt: skip
FIRST_SEEN = gauge(
    "incident_first_seen_timestamp_seconds",
    "Unix time at which an incident was first seen: open ones and those of the last hour, the 50 "
    "newest. The group is the first of those accused.",
    ("incident", "kind", "severity", "state", "replica_group"),
    series="at most 50", absent="none is open or of the last hour",
)  # fmt: skip
SUSPECT = gauge(
    "rank_suspect", "1 for each culprit of an open incident, 100 at most.",
    (*RANK, "host", "kind"), series="at most 100", absent="nobody is accused",
)  # fmt: skip
TRANSITIONS = counter(
    "incident_transitions", "Incidents that entered a state.", ("kind", "to"),
    series="at most 9 x 9", absent="none did since this monitor started",
)  # fmt: skip
STAGES = histogram(
    "incident_stage_seconds",
    "Seconds of each stage of an incident: detect (first seen to firing), decide (to the order to "
    "evict), leave (from there to out of the quorum), recover (to the survivors' next commit), "
    "rejoin (to the group's return), resume (firing to as many groups as before).",
    ("stage",), buckets=_STAGE_BUCKETS, series="at most 6 x 17",
    absent="no incident came so far since this monitor started",
)  # fmt: skip
LOST_STEPS = counter(
    "lost_steps", "Attempts of other groups that did not commit for a fault, at least.", ("kind",),
    series="at most 9", absent="no incident since this monitor started",
)  # fmt: skip

DEFINITIONS: Final = (OPEN, FIRST_SEEN, SUSPECT, TRANSITIONS, STAGES, LOST_STEPS)


def export(scene: Scene) -> Iterator[Metric]:
    """What is read from the view; the counters count while it happens."""
    view = scene.view
    tally = Tally(
        (str(one.kind), str(one.state), str(one.severity)) for one in view.incidents if one.open
    )
    yield OPEN.rows([(labels, float(count)) for labels, count in sorted(tally.items())])
    since_s = view.snapshot.now_s - _RECENT_S
    recent = [one for one in view.incidents if one.open or one.milestones.first_seen_s >= since_s]
    recent.sort(key=lambda one: (not one.open, -one.milestones.first_seen_s, one.id))
    yield FIRST_SEEN.rows(
        [(_labels(one), one.milestones.first_seen_s) for one in recent[:INCIDENTS_TOLD]]
    )
    yield SUSPECT.rows([(labels, 1.0) for labels in _suspects(scene)])


def _labels(one: Incident) -> tuple[str, ...]:
    group = str(one.groups[0]) if one.groups else ""
    return one.id, str(one.kind), str(one.severity), str(one.state), group


def _suspects(scene: Scene) -> list[tuple[str, ...]]:
    accused: dict[tuple[RankName, str], Host] = {}
    for one in scene.view.incidents:
        for rank in one.culprits if one.open else ():
            host = one.hosts[0] if len(one.hosts) == 1 else Host("")
            accused[rank, str(one.kind)] = host
    found: list[tuple[str, ...]] = []
    for (rank, kind), host in sorted(accused.items())[:SUSPECTS_TOLD]:
        group, number = split_rank_name(rank)
        seen = scene.view.by_rank.get(rank)
        found.append((group, str(number), host if seen is None else seen.identity.host, kind))
    return found
