"""Notices from incidents, decisions and evictions, and the request for each sink.

Pure: nothing is asked or sent here.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Final
from urllib.parse import quote, urlsplit

from lightkeeper.monitor.act.http import Answer, Question
from lightkeeper.monitor.model.eviction import Decision, Eviction, Guard, rulings, taken_up
from lightkeeper.monitor.model.incident import Incident, State, oldest_first
from lightkeeper.monitor.model.names import IncidentId, shown_url
from lightkeeper.monitor.model.plain import readable
from lightkeeper.monitor.model.units import sentence
from lightkeeper.monitor.model.verdict import Severity
from lightkeeper.monitor.model.wording import face_of, listed, rfc3339, title_of
from lightkeeper.monitor.model.work import Work

# -- notices -----------------------------------------------------------------------------------

PASSING: Final = frozenset(
    {Guard.ALREADY_GONE, Guard.NOT_WORTH_IT, Guard.IN_FLIGHT, Guard.COOL_DOWN, Guard.WATCH_ONLY}
)
"""Guards that end by themselves or leave nothing to do: they page nobody."""
BY_HAND_S: Final = 3600.0
"""A failed eviction by hand ended its own incident, so its notice stands for this long."""


class Event(StrEnum):
    INCIDENT = "incident"
    EVICTION_FAILED = "eviction_failed"
    HELD = "held"  # a guard stands in the way until a person decides
    TEST = "test"


class Status(StrEnum):
    """In Alertmanager's words."""

    FIRING = "firing"
    ACKNOWLEDGED = "acknowledged"  # it fires, and a person has it; not in Alertmanager
    RESOLVED = "resolved"


@readable
@dataclass(frozen=True, slots=True)
class Notice:
    """One thing that a person should know."""

    key: str
    """Deduplicates notices. For an incident it is the fingerprint."""
    event: Event
    incident_id: str
    severity: Severity
    """`critical`: training stands still, or a person has to decide; `warning`: it is slow, or
    unclear; `info`."""
    title: str
    text: str
    since_s: float
    labels: Mapping[str, str] = field(default_factory=dict)
    """Few and stable: pagers group and silence by them."""
    url: str = ""
    incident: Mapping[str, Any] = field(default_factory=dict)
    """A few facts for programs."""
    work: str = ""
    """Who acknowledged it, and to whom it is assigned; a change of it is sent."""
    muted: bool = False
    """By a silence: it is not sent, and it has not ended."""
    links: Mapping[str, str] = field(default_factory=dict)
    """To what others know: name -> URL."""

    def id(self, status: Status) -> str:
        """The idempotency key: the same message has the same key, also when it is sent again."""
        text = f"{self.key}\n{status}\n{self.severity}\n{self.since_s:.3f}"
        text += f"\n{self.work}" if self.work else ""
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class NoticeFacts:
    """The input for notices."""

    now_s: float
    incidents: Sequence[Incident]
    decisions: Mapping[IncidentId, Sequence[Decision]]
    ahead_s: float = 0.0
    """How far the wall clock is ahead of the monitor's."""
    work: Work = field(default_factory=Work)
    links: Callable[[Incident], Mapping[str, str]] = lambda _: {}


def notices(facts: NoticeFacts, *, url: str, hold_s: float) -> dict[str, Notice]:
    """What a person should know now, by key.

    `url`: of the monitor, as people reach it. `hold_s`: a guard must stand this long, and an
    eviction have failed: the incident of a group that had restarted ends meanwhile.
    """
    standing: dict[str, Notice] = {}
    by_id = {incident.id: incident for incident in facts.incidents}
    fired = (i for i in facts.incidents if i.state in (State.FIRING, State.EVICTING))
    for incident in sorted(fired, key=oldest_first):
        if facts.work.of(incident).resolved is not None:
            continue
        fires = _fires(incident, facts, url)
        standing.setdefault(fires.key, fires)
        held = _held(fires, incident, facts, hold_s)
        if held is not None:
            standing.setdefault(held.key, held)
    for incident_id, rows in facts.decisions.items():
        for latest in taken_up(rows)[-1:]:
            failed = _failed(latest, by_id.get(incident_id), facts.now_s, url, hold_s)
            if failed is not None:
                standing[failed.key] = failed
    for key, notice in standing.items():
        accused = by_id.get(IncidentId(notice.incident_id))
        if accused is not None and facts.work.silence_of(accused, facts.now_s) is not None:
            standing[key] = replace(notice, muted=True)
    return standing


def _fires(incident: Incident, facts: NoticeFacts, url: str) -> Notice:
    title, work = title_of(incident), facts.work.of(incident)
    face = face_of(incident, facts.decisions.get(incident.id, ()), incident.last_seen_s)
    by = None if work.acknowledged is None else work.acknowledged.author
    return Notice(
        key=incident.fingerprint,
        event=Event.INCIDENT,
        incident_id=incident.id,
        severity=incident.severity,
        title=title if incident.suspects or incident.groups else f"lightkeeper: {title}",
        text=f"{face}. {sentence(work.says)}" if work.says else str(face),
        since_s=incident.milestones.firing_s or incident.milestones.first_seen_s,
        labels=_labels(incident),
        url=page_of(url, incident.id),
        incident={
            **_incident_facts(incident), "acknowledged_by": by, "assignee": work.assignee or None,
        },
        work=work.says,
        links=facts.links(incident),
    )  # fmt: skip


def _held(fires: Notice, incident: Incident, facts: NoticeFacts, hold_s: float) -> Notice | None:
    """The guard that the last decision met, if only a person can lift it."""
    rows = rulings(facts.decisions.get(incident.id, ()))
    if incident.state is not State.FIRING or not rows or not incident.groups:
        return None  # an incident that accuses nobody is itself the page
    row = rows[-1]
    if row.guard is None or row.guard in PASSING or facts.now_s - row.at_s < hold_s:
        return None
    return replace(
        fires,
        key=f"held {row.guard} {incident.fingerprint}",
        event=Event.HELD,
        severity=max(fires.severity, Severity.WARNING, key=LOUDNESS.index),
        title=f"{listed(incident.groups, 8)}: nobody is evicted, a person has to decide",
        since_s=row.at_s,
        labels={**fires.labels, "guard": str(row.guard)},
    )


def _failed(
    progress: Eviction, incident: Incident | None, now_s: float, url: str, hold_s: float
) -> Notice | None:
    if progress.failed is None or now_s - (progress.ended_s or progress.asked_s) < hold_s:
        return None
    over = now_s - progress.asked_s > BY_HAND_S if incident is None else not incident.open
    if over:
        return None
    labels = {"replica_group": progress.group} if incident is None else _labels(incident)
    return Notice(
        key=f"eviction failed {progress.incident_id} {progress.asked_s:.3f}",
        event=Event.EVICTION_FAILED,
        incident_id=progress.incident_id,
        severity=Severity.CRITICAL,
        title=f"{progress.group}: its eviction failed",
        text=progress.failed,
        since_s=progress.asked_s,
        labels=labels,
        url=page_of(url, progress.incident_id),
        incident={} if incident is None else _incident_facts(incident),
    )


LOUDNESS: Final = tuple(Severity)


def louder(now: Notice, before: Notice) -> bool:
    """True if a notice got worse since it was sent."""
    return LOUDNESS.index(now.severity) > LOUDNESS.index(before.severity)


def page_of(url: str, incident_id: str) -> str:
    return f"{url}/incidents/{quote(incident_id, safe='')}" if url else ""


def _labels(incident: Incident) -> dict[str, str]:
    return {"kind": str(incident.kind), "replica_group": ",".join(incident.groups[:8])}


def _incident_facts(incident: Incident) -> dict[str, Any]:
    return {
        "id": incident.id,
        "kind": str(incident.kind),
        "culprits": list(incident.culprits),
        "candidates": list(incident.candidates),
        "groups": list(incident.groups),
        "victims": list(incident.verdict.victims[:100]),
        "confidence": str(incident.verdict.confidence),
        "fingerprint": incident.fingerprint,
        "first_seen_s": incident.milestones.first_seen_s,
    }


@dataclass(frozen=True, slots=True)
class NoticeEnding:
    at_s: float
    reason: str


def ending(notice: Notice, facts: NoticeFacts) -> NoticeEnding:
    """Why a notice no longer stands."""
    now_s = facts.now_s
    for incident in facts.incidents:
        if incident.id != notice.incident_id:
            continue
        if incident.ended_s is not None:
            return NoticeEnding(incident.ended_s, incident.resolution or "over")
        if (person := facts.work.of(incident).resolved) is not None:
            return NoticeEnding(person.at_s, person.says)
        if notice.event is Event.INCIDENT:
            return NoticeEnding(now_s, f"it is another's fault: {incident.verdict.reason}")
        return NoticeEnding(now_s, "over")
    return NoticeEnding(now_s, "over; the monitor does not remember how")


# -- sinks -------------------------------------------------------------------------------------

TIMEOUT_S: Final = 10.0
ANSWER_MAX_BYTES: Final = 64 * 1024
SIGNATURE: Final = "X-Lightkeeper-Signature"
_PLACES: Final = ("url", "permalink", "html_url")
_LINK: Final = re.compile(r"https?://[!-~]{1,500}")


@dataclass(frozen=True, slots=True)
class Message:
    """A notice to be sent: it fires, or it has ended."""

    notice: Notice
    at_s: float
    ended: NoticeEnding | None = None

    @property
    def status(self) -> Status:
        if self.ended is not None:
            return Status.RESOLVED
        by = self.notice.incident.get("acknowledged_by")
        return Status.ACKNOWLEDGED if by else Status.FIRING

    def by_the_wall(self, ahead_s: float) -> Message:
        """The message in wall-clock time, which receivers compare with their own clocks. `ahead_s`:
        how far that is ahead of the monitor's clock, see `Clock.ahead_s`.
        """
        ended = self.ended and replace(self.ended, at_s=self.ended.at_s + ahead_s)
        notice = replace(self.notice, since_s=self.notice.since_s + ahead_s)
        return Message(notice, self.at_s + ahead_s, ended)


@dataclass(frozen=True, slots=True)
class Sink(ABC):
    at_once: ClassVar[int] = 1
    """Messages in one request."""
    name: str
    """For people, logs and metrics; holds no secret."""
    url: str = field(repr=False)

    @property
    def resend_s(self) -> float | None:
        """A notice that still fires is sent again after this time, and every end is sent. None: it
        is sent once, and only the ends of incidents are sent.
        """
        return None

    def link(self, message: Message, answer: Answer) -> str:  # noqa: ARG002 - of each
        """Where a person finds the message that got this answer; empty: nowhere that is known."""
        return ""

    @abstractmethod
    def post(self, messages: Sequence[Message]) -> Question:
        """The request that carries these messages."""


@dataclass(frozen=True, slots=True)
class Webhook(Sink):
    """One JSON object a message; signed if there is a secret. docs/alerts.md has the fields."""

    secret: str | None = field(default=None, repr=False)

    def post(self, messages: Sequence[Message]) -> Question:
        """The body is signed as it is sent: HMAC-SHA256, hexadecimal."""
        (message,) = messages
        notice, ended = message.notice, message.ended
        key = notice.id(message.status)
        body = {
            "schema": 1,
            "id": key,
            "event": str(notice.event),
            "status": str(message.status),
            "key": notice.key,
            "severity": notice.severity,
            "title": notice.title,
            "text": notice.text,
            "since_s": notice.since_s,
            "ended_s": None if ended is None else ended.at_s,
            "resolution": None if ended is None else ended.reason,
            "sent_s": message.at_s,
            "url": notice.url or None,
            "labels": dict(notice.labels),
            "incident": dict(notice.incident) or None,
            "links": dict(notice.links),
        }
        post = _post(self.url, body, {"Idempotency-Key": key})
        if self.secret is None or post.body is None:
            return post
        return replace(post, headers={**post.headers, SIGNATURE: sign(self.secret, post.body)})

    def link(self, message: Message, answer: Answer) -> str:  # noqa: ARG002
        """The URL in a JSON answer, in which `send` has put dots for secrets."""
        said = answer.json_object
        place = next((said[key] for key in _PLACES if isinstance(said.get(key), str)), "")
        return place if _LINK.fullmatch(place) and "..." not in place else ""


def sign(secret: str, body: bytes) -> str:
    """What a receiver computes to verify a message."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class Alertmanager(Sink):
    """Prometheus' Alertmanager, API v2: it groups, silences and routes by labels. `url` does not
    include `/api/v2/alerts`.

    An alert ends by itself `expire_s` after it was last sent, so that a monitor that died leaves
    none firing forever. A notice that still fires is sent four times within that time.
    """

    at_once: ClassVar[int] = 64
    authorization: str | None = field(default=None, repr=False)
    labels: Mapping[str, str] = field(default_factory=dict)
    """This monitor's own labels, on every alert."""
    expire_s: float = 300.0

    @property
    def resend_s(self) -> float:
        """Often enough that three lost requests in a row do not end an alert."""
        return self.expire_s / 4

    def post(self, messages: Sequence[Message]) -> Question:
        """All in one list."""
        headers = {} if self.authorization is None else {"Authorization": self.authorization}
        alerts = [self._alert(message) for message in messages]
        return _post(self.url.rstrip("/") + "/api/v2/alerts", alerts, headers)

    def link(self, message: Message, answer: Answer) -> str:  # noqa: ARG002
        """Its own page, with this incident's alerts."""
        chosen = quote(f'{{incident="{message.notice.incident_id}"}}', safe="")
        path = urlsplit(self.url).path.rstrip("/")
        return f"{shown_url(self.url)}{path}/#/alerts?filter={chosen}"

    def _alert(self, message: Message) -> dict[str, Any]:
        notice, ended = message.notice, message.ended
        ends_s = message.at_s + self.expire_s if ended is None else ended.at_s
        note = {} if ended is None else {"resolution": ended.reason}
        if notice.links:
            note["links"] = "\n".join(f"{name}: {url}" for name, url in notice.links.items())
        alert = {
            "labels": {
                **{name: value for name, value in notice.labels.items() if value},
                **self.labels,
                "alertname": "Lightkeeper" + notice.event.title().replace("_", ""),
                "severity": notice.severity,
                "incident": notice.incident_id,
            },
            "annotations": {"summary": notice.title, "description": notice.text, **note},
            "startsAt": rfc3339(notice.since_s),
            "endsAt": rfc3339(max(ends_s, notice.since_s)),
        }
        if notice.url:
            alert["generatorURL"] = notice.url
        return alert


def _post(url: str, body: Any, headers: Mapping[str, str]) -> Question:
    raw = json.dumps(body, separators=(",", ":")).encode()
    headers = {"Content-Type": "application/json", **headers}
    return Question(url, TIMEOUT_S, ANSWER_MAX_BYTES, "POST", body=raw, headers=headers)
