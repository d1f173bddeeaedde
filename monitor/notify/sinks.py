"""The sinks: what each is sent. Pure: nothing is asked or sent here."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from monitor.notify.notices import Ending, Event, Notice, Status

SIGNATURE: Final = "X-Lightkeeper-Signature"
_SLACK_TEXT: Final = 2900
"""Slack refuses a section of more than 3,000 characters."""
_ALERT_NAMES: Final = {
    Event.INCIDENT: "LightkeeperIncident",
    Event.EVICTION_FAILED: "LightkeeperEvictionFailed",
    Event.HELD: "LightkeeperHeld",
    Event.TEST: "LightkeeperTest",
}


@dataclass(frozen=True, slots=True)
class Message:
    """A notice on its way: it fires, or how it ended."""

    notice: Notice
    at_s: float
    ended: Ending | None = None

    @property
    def status(self) -> Status:
        """Firing until it has ended."""
        return Status.FIRING if self.ended is None else Status.RESOLVED


@dataclass(frozen=True, slots=True)
class Post:
    """One HTTP request."""

    url: str = field(repr=False)
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class Sink(Protocol):
    """Where messages go."""

    @property
    def name(self) -> str:
        """For people, logs and metrics; holds no secret."""
        ...

    @property
    def resend_s(self) -> float | None:
        """What still fires is sent again after so long; None: once is enough."""
        ...

    @property
    def at_once(self) -> int:
        """Messages in one request."""
        ...

    def takes(self, message: Message, /) -> bool:
        """Whether this sink is told of it at all."""
        ...

    def post(self, messages: Sequence[Message]) -> Post:
        """The request for these."""
        ...


@dataclass(frozen=True, slots=True)
class Webhook:
    """One JSON object a message; signed if there is a secret. docs/notify.md has the fields."""

    name: str
    url: str = field(repr=False)
    secret: str | None = field(default=None, repr=False)
    resend_s: float | None = None
    at_once: int = 1

    def takes(self, message: Message) -> bool:
        """Everything that begins; of what ends the incidents."""
        return message.ended is None or message.notice.lasting

    def post(self, messages: Sequence[Message]) -> Post:
        """The body is signed as it is sent: HMAC-SHA256, hexadecimal."""
        (message,) = messages
        notice, ended = message.notice, message.ended
        key = notice.id(message.status)
        body = _dump(
            {
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
            }
        )
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        if self.secret is not None:
            headers[SIGNATURE] = sign(self.secret, body)
        return Post(self.url, body, headers)


def sign(secret: str, body: bytes) -> str:
    """What a receiver computes to know that the message is ours."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class Slack:
    """An incoming webhook of Slack's, or of what speaks the same (Mattermost, Rocket.Chat ...)."""

    name: str
    url: str = field(repr=False)
    resend_s: float | None = None
    at_once: int = 1

    def takes(self, message: Message) -> bool:
        """Everything that begins; of what ends the incidents."""
        return message.ended is None or message.notice.lasting

    def post(self, messages: Sequence[Message]) -> Post:
        """`text` is what a notification shows, `blocks` what the channel does."""
        (message,) = messages
        notice, ended = message.notice, message.ended
        icon = ":white_check_mark:" if ended else _ICONS.get(notice.severity, ":warning:")
        word = "resolved" if ended else notice.severity
        head = f"{icon} *{_slack(notice.title, 300)}* ({word})"
        said = _slack(notice.text if ended is None else f"Resolved: {ended.reason}", _SLACK_TEXT)
        facts = [f"since {_moment(notice.since_s)}", *_facts(notice)]
        if notice.url:
            facts.append(f"<{_slack(notice.url, 500)}|{_slack(notice.incident_id, 200)}>")
        body = {
            "text": f"{_slack(notice.title, 300)} ({word}): {said}"[:_SLACK_TEXT],
            "blocks": [
                {"type": "section", "text": {"type": "mrkdwn", "text": head}},
                {"type": "section", "text": {"type": "plain_text", "text": _plain(said)}},
                {"type": "context", "elements": [{"type": "mrkdwn", "text": " · ".join(facts)}]},
            ],
        }
        return Post(self.url, _dump(body), {"Content-Type": "application/json"})


_ICONS: Final = {"critical": ":rotating_light:", "warning": ":warning:"}


def _facts(notice: Notice) -> list[str]:
    groups = notice.labels.get("replica_group")
    return [f"group {_slack(groups, 300)}"] if groups else []


def _slack(text: str, at_most: int) -> str:
    """Slack's three escapes; without them a name could be a mention of everybody."""
    line = " ".join(text.split())
    line = line if len(line) <= at_most else line[: at_most - 1] + "…"
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _plain(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


@dataclass(frozen=True, slots=True)
class Alertmanager:
    """Prometheus' Alertmanager, API v2: it groups, silences and routes by labels.

    An alert ends by itself `expire_s` after it was last sent, so that a monitor that died does not
    leave one firing for ever; what still fires is sent again four times as often.
    """

    name: str
    url: str = field(repr=False)
    """Of the Alertmanager, without `/api/v2/alerts`."""
    authorization: str | None = field(default=None, repr=False)
    labels: Mapping[str, str] = field(default_factory=dict)
    """Of this monitor, on every alert."""
    expire_s: float = 300.0
    at_once: int = 64

    @property
    def resend_s(self) -> float:
        """Often enough that three lost ones in a row end nothing."""
        return self.expire_s / 4

    def takes(self, _: Message, /) -> bool:
        """Everything: an alert has to be ended."""
        return True

    def post(self, messages: Sequence[Message]) -> Post:
        """All in one list."""
        headers = {"Content-Type": "application/json"}
        if self.authorization is not None:
            headers["Authorization"] = self.authorization
        body = _dump([self._alert(one) for one in messages])
        return Post(self.url.rstrip("/") + "/api/v2/alerts", body, headers)

    def _alert(self, message: Message) -> dict[str, Any]:
        notice, ended = message.notice, message.ended
        ends_s = message.at_s + self.expire_s if ended is None else ended.at_s
        note = {} if ended is None else {"resolution": ended.reason}
        alert = {
            "labels": {
                **{name: value for name, value in notice.labels.items() if value},
                **self.labels,
                "alertname": _ALERT_NAMES[notice.event],
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


def rfc3339(at_s: float) -> str:
    """UTC to the millisecond."""
    at = datetime.fromtimestamp(at_s, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _moment(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _dump(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
