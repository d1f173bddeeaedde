"""What is worth a message. Pure: from incidents, decisions and evictions to notices."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final
from urllib.parse import quote

from monitor.incident import Incident, State
from monitor.names import IncidentId
from monitor.policy import Guard
from monitor.snapshot import EvictionProgress
from monitor.store import DecisionRow
from monitor.view import face_of

PASSING: Final = frozenset(
    {
        Guard.ALREADY_GONE, Guard.NOT_WORTH_IT, Guard.IN_FLIGHT, Guard.COOL_DOWN,
        Guard.MAINTENANCE,
    }
)  # fmt: skip
"""Guards that end by themselves or mean that nothing is left to do: nobody is paged for them."""
BY_HAND_S: Final = 3600.0
"""A failed eviction by hand has no incident that would resolve it: it is told for so long."""


class Event(StrEnum):
    """What a notice is about."""

    INCIDENT = "incident"
    EVICTION_FAILED = "eviction_failed"
    HELD = "held"  # a guard stands in the way until a person decides
    TEST = "test"


class Status(StrEnum):
    """As Alertmanager calls it."""

    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing that a person should know."""

    key: str
    """Same thing, same key: nobody is told twice. Of an incident its fingerprint."""
    event: Event
    incident_id: str
    severity: str
    """`critical`: training stands, or a person has to decide; `warning`: it is slow, or unclear;
    `info`."""
    title: str
    text: str
    since_s: float
    labels: Mapping[str, str] = field(default_factory=dict)
    """Few and stable: pagers group and silence by them."""
    url: str = ""
    incident: Mapping[str, Any] = field(default_factory=dict)
    """A few facts for programs."""

    @property
    def lasting(self) -> bool:
        """Whether its end is worth a message of its own."""
        return self.event is Event.INCIDENT

    def id(self, status: Status) -> str:
        """The same for the same message, also when it is sent again: the idempotency key."""
        told = f"{self.key}\n{status}\n{self.severity}\n{self.since_s:.3f}"
        return hashlib.sha256(told.encode()).hexdigest()[:32]


def notice_to_json(notice: Notice) -> dict[str, Any]:
    """Plain JSON types, for the store."""
    return {**asdict(notice), "event": str(notice.event)}


def notice_from_json(data: Mapping[str, Any]) -> Notice:
    """Inverse of `notice_to_json`.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    if data["severity"] not in LOUDNESS:
        raise ValueError("no severity")
    return Notice(**{**data, "event": Event(data["event"])})


@dataclass(frozen=True, slots=True)
class Known:
    """All that one tick knows."""

    now_s: float
    incidents: Sequence[Incident]
    decisions: Mapping[IncidentId, Sequence[DecisionRow]]
    evictions: Iterable[EvictionProgress]


def notices(known: Known, *, url: str, hold_s: float) -> dict[str, Notice]:
    """What a person should know now, by key.

    `url`: of the monitor, as people reach it. `hold_s`: a guard must stand for so long.
    """
    found: dict[str, Notice] = {}
    by_id = {one.id: one for one in known.incidents}
    fired = [one for one in known.incidents if one.state in (State.FIRING, State.EVICTING)]
    for one in sorted(fired, key=lambda i: (i.milestones.first_seen_s, i.id)):
        notice = _fires(one, known, url)
        found.setdefault(notice.key, notice)
        held = _held(one, known, url, hold_s)
        if held is not None:
            found.setdefault(held.key, held)
    for progress in known.evictions:
        failed = _failed(progress, by_id.get(progress.incident_id), known.now_s, url)
        if failed is not None:
            found[failed.key] = failed
    return found


def _fires(one: Incident, known: Known, url: str) -> Notice:
    return Notice(
        key=one.fingerprint,
        event=Event.INCIDENT,
        incident_id=one.id,
        severity=one.severity.value,
        title=f"{', '.join(one.culprits[:8]) or 'lightkeeper'}: {one.kind.replace('_', ' ')}",
        text=str(face_of(one, known.decisions.get(one.id, ()), one.last_seen_s)),
        since_s=one.milestones.firing_s or one.milestones.first_seen_s,
        labels=_labels(one),
        url=page_of(url, one.id),
        incident=_facts(one),
    )


def _held(one: Incident, known: Known, url: str, hold_s: float) -> Notice | None:
    """The guard that the last decision met, if only a person can lift it."""
    rows = known.decisions.get(one.id, ())
    if one.state is not State.FIRING or not rows or rows[-1].guard is None or not one.groups:
        return None  # of what accuses nobody the incident itself is the page
    row = rows[-1]
    if row.guard in PASSING or known.now_s - row.at_s < hold_s:
        return None
    return Notice(
        key=f"held {row.guard} {one.fingerprint}",
        event=Event.HELD,
        incident_id=one.id,
        severity=max(one.severity.value, "warning", key=LOUDNESS.index),
        title=f"{', '.join(one.groups) or 'lightkeeper'}: nobody is evicted, "
        "a person has to decide",
        text=str(face_of(one, rows, one.last_seen_s)),
        since_s=row.at_s,
        labels={**_labels(one), "guard": str(row.guard)},
        url=page_of(url, one.id),
        incident=_facts(one),
    )


def _failed(
    progress: EvictionProgress, one: Incident | None, now_s: float, url: str
) -> Notice | None:
    """An eviction that failed, for as long as it matters."""
    if progress.failed is None:
        return None
    over = now_s - progress.asked_s > BY_HAND_S if one is None else not one.open
    if over:
        return None
    labels = {"replica_group": progress.group} if one is None else _labels(one)
    return Notice(
        key=f"eviction failed {progress.incident_id} {progress.asked_s:.3f}",
        event=Event.EVICTION_FAILED,
        incident_id=progress.incident_id,
        severity="critical",
        title=f"{progress.group}: its eviction failed",
        text=progress.failed,
        since_s=progress.asked_s,
        labels=labels,
        url=page_of(url, progress.incident_id),
        incident={} if one is None else _facts(one),
    )


LOUDNESS: Final = ("info", "warning", "critical")


def louder(now: Notice, before: Notice) -> bool:
    """Whether a notice got worse since it was told: that is news."""
    return LOUDNESS.index(now.severity) > LOUDNESS.index(before.severity)


def page_of(url: str, incident_id: str) -> str:
    """The incident's page at the monitor."""
    return f"{url}/incidents/{quote(incident_id, safe='')}" if url else ""


def _labels(one: Incident) -> dict[str, str]:
    return {"kind": str(one.kind), "replica_group": ",".join(one.groups[:8])}


def _facts(one: Incident) -> dict[str, Any]:
    return {
        "id": one.id,
        "kind": str(one.kind),
        "culprits": list(one.culprits),
        "groups": list(one.groups),
        "victims": list(one.verdict.victims[:100]),
        "confidence": str(one.verdict.confidence),
        "fingerprint": one.fingerprint,
        "first_seen_s": one.milestones.first_seen_s,
    }


@dataclass(frozen=True, slots=True)
class Ending:
    """How a notice ended."""

    at_s: float
    reason: str


def ending(notice: Notice, incidents: Iterable[Incident], now_s: float) -> Ending:
    """Why a notice that stood stands no more."""
    for one in incidents:
        if one.id != notice.incident_id:
            continue
        if not one.open:
            at_s = one.story[-1].at_s if one.story else one.last_seen_s
            over = [line.at_s for line in one.story if line.to == State.RESOLVED]
            return Ending(over[-1] if over else at_s, one.resolution or "over")
        if notice.event is Event.INCIDENT:
            return Ending(now_s, f"it is another's fault: {one.verdict.reason}")
        return Ending(now_s, "over")
    return Ending(now_s, "over; the monitor does not remember how")
