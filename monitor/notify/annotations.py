"""What stands on Grafana's dashboards: incidents, evictions and holds, as regions of time. Pure.

Unlike a message an annotation is a record: what began and ended while Grafana was away is told too.
So this says what should stand there, from what is remembered anyway, and the ledger sends the
difference. A restart finds the ids that Grafana gave in the store, and adds nothing twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any, Final

from monitor.audit.case import Case, sound_evictions, sound_rows
from monitor.audit.intervals import hold_spans
from monitor.incident import Incident
from monitor.notify.ledger import Wanted
from monitor.notify.notices import PASSING, Ending, Event, Known, Notice, page_of
from monitor.notify.sinks import Message, Post
from monitor.policy import Guard
from monitor.snapshot import EvictionProgress
from monitor.store import DecisionRow

AT_ONCE: Final = 256
"""Annotations that one round sends; the others wait for the next."""
_TAG_MAX_CHARS: Final = 100
"""Grafana's column has no room for more."""
_TEXT_MAX_CHARS: Final = 2000


@dataclass(frozen=True, slots=True)
class Grafana:
    """A Grafana, reached with a service account's token."""

    name: str
    url: str
    """Its root."""
    token: str
    dashboard: str | None = None
    """UID of the only dashboard on which they stand; None: on all that ask for the tag."""
    resend_s: float | None = None
    at_once: int = 1

    def __repr__(self) -> str:
        return f"Grafana({self.name!r})"

    def takes(self, _: Message, /) -> bool:
        """Everything that `annotations` makes."""
        return True

    def post(self, messages: Sequence[Message]) -> Post:
        """Make an annotation, or change the one that it is already."""
        (message,) = messages
        notice, ended = message.notice, message.ended
        body: dict[str, Any] = {
            "time": round(notice.since_s * 1000),
            "text": _text(notice, ended),
            "tags": [tag[:_TAG_MAX_CHARS] for tag in _tags(notice)],
        }
        if ended is not None:
            body["timeEnd"] = max(body["time"], round(ended.at_s * 1000))
        path = "/api/annotations" + ("" if message.ref is None else f"/{message.ref}")
        if message.ref is None and self.dashboard is not None:
            body["dashboardUID"] = self.dashboard
        return Post(
            self.url.rstrip("/") + path,
            json.dumps(body, separators=(",", ":")).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"},
            method="POST" if message.ref is None else "PATCH",
        )


def _tags(notice: Notice) -> list[str]:
    labels = notice.labels
    groups = [group for group in labels.get("replica_group", "").split(",") if group]
    some = [labels.get("kind", ""), labels.get("guard", ""), *groups, notice.incident_id]
    found = ["lightkeeper", str(notice.event), *(tag for tag in some if tag)]
    return list(dict.fromkeys(found))


def _text(notice: Notice, ended: Ending | None) -> str:
    """Grafana shows HTML in it: what comes from ranks is escaped."""
    words = [notice.title, notice.text] + ([] if ended is None else [ended.reason])
    told = [escape(" ".join(word.split()))[:_TEXT_MAX_CHARS] for word in words if word]
    if notice.url:
        told.append(f'<a href="{escape(notice.url)}">{escape(notice.incident_id)}</a>')
    return "<br>".join(told)


# -- what should stand there ---------------------------------------------------------------------


def standing(known: Known, *, url: str, hold_s: float, keep_s: float) -> dict[str, Message]:
    """By key; what ended longer than `keep_s` ago is not looked at any more."""
    evictions: dict[str, list[EvictionProgress]] = {}
    for progress in sound_evictions(known.evictions):
        evictions.setdefault(progress.incident_id, []).append(progress)
    found: list[Message] = []
    for one in known.incidents:
        mine = evictions.pop(one.id, ())
        case = Case(one, known.now_s, sound_rows(known.decisions.get(one.id, ())))
        over = case.ended_s is not None and case.ended_s < known.now_s - keep_s
        if one.milestones.firing_s is not None and not over:
            found += _of_incident(case, url, hold_s, mine)
    for by_hand in evictions.values():
        for progress in by_hand:
            message = _eviction(progress, None, known.now_s, url)
            asked = _asked(known.decisions.get(progress.incident_id, ()))
            found.append(replace(message, notice=replace(message.notice, text=asked)))
    return {one.notice.key: one for one in found if _recent(one, known.now_s - keep_s)}


def _recent(one: Message, since_s: float) -> bool:
    return one.ended is None or one.ended.at_s >= since_s


def _of_incident(
    case: Case, url: str, hold_s: float, evictions: Iterable[EvictionProgress]
) -> Iterator[Message]:
    one, ended_s = case.incident, case.ended_s
    ended = None if ended_s is None else Ending(ended_s, one.resolution or "over")
    base = Notice(
        key=f"incident {one.id}",
        event=Event.INCIDENT,
        incident_id=one.id,
        severity=one.severity.value,
        title=f"{', '.join(one.culprits[:8]) or 'nobody'}: {one.kind.replace('_', ' ')}",
        text=one.verdict.reason,
        since_s=one.milestones.first_seen_s,
        labels={"kind": str(one.kind), "replica_group": ",".join(one.groups[:8])},
        url=page_of(url, one.id),
    )
    yield Message(base, case.now_s, ended)
    for span in hold_spans(case):
        until_s = case.now_s if span.end_s is None else span.end_s
        if until_s - span.start_s < hold_s or span.guard in _PASSING or not one.groups:
            continue
        held = replace(
            base,
            key=f"held {one.id} {span.guard} {span.start_s:.3f}",
            event=Event.HELD,
            title=f"{', '.join(one.groups)}: nobody is evicted ({span.guard})",
            text=span.reason,
            since_s=span.start_s,
            labels={**base.labels, "guard": span.guard},
        )
        over = None if span.end_s is None else Ending(span.end_s, "")
        yield Message(held, case.now_s, over)
    for progress in evictions:
        yield _eviction(progress, one, case.now_s, url)


def _asked(rows: Sequence[DecisionRow]) -> str:
    """Who asked for an eviction by hand, and why."""
    decided = [row for row in rows if row.action == "evict"]
    row = decided[-1] if decided else None
    return f"{row.author} asked for it: {row.reason}" if row else "a person asked for it"


_PASSING: Final = frozenset(str(guard) for guard in PASSING | {Guard.OBSERVE})
"""Guards that page nobody, and observe mode, which would mark every minute."""


def _eviction(progress: EvictionProgress, one: Incident | None, now_s: float, url: str) -> Message:
    rungs = ", ".join(str(rung.rung) for rung in progress.rungs)
    ends_s = progress.left_quorum_s or progress.gone_s
    ended = None
    if progress.failed is not None:
        at_s = max((rung.finished_s or rung.started_s for rung in progress.rungs), default=0.0)
        ended = Ending(max(at_s, progress.asked_s), f"failed: {progress.failed}")
    elif ends_s is not None:
        ended = Ending(ends_s, f"out, by {rungs}" if rungs else "out")
    notice = Notice(
        key=f"eviction {progress.incident_id} {progress.of_s:.3f}",
        event=Event.EVICTION,
        incident_id=progress.incident_id,
        severity="warning",
        title=f"{progress.group} is evicted",
        text="" if one is None else one.verdict.reason,
        since_s=progress.asked_s,
        labels={
            "kind": "by_hand" if one is None else str(one.kind),
            "replica_group": progress.group,
        },
        url=page_of(url, progress.incident_id),
    )
    return Message(notice, now_s, ended)


# -- what stands there ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Row:
    digest: str
    ref: str | None
    """The annotation's id; None: Grafana will never take it."""


class AnnotationLedger:
    """What this Grafana was told. `keep` writes a row down (None: forget it)."""

    def __init__(self, keep: Callable[[str, Mapping[str, Any] | None], None]) -> None:
        self._keep = keep
        self._rows: dict[str, _Row] = {}
        self._waiting: set[str] = set()

    def restore(self, key: str, body: Mapping[str, Any]) -> None:
        """A row that an earlier monitor wrote; one that cannot be read is forgotten."""
        try:
            ref = body["ref"]
            self._rows[key] = _Row(str(body["digest"]), None if ref is None else str(int(ref)))
        except (KeyError, TypeError, ValueError):
            self._keep(key, None)

    def due(self, known: Wanted) -> tuple[list[Message], int]:
        """What to send, the oldest first; and how many were given up since the last round."""
        wanted = known.annotations
        found: list[Message] = []
        for key, message in wanted.items():
            row = self._rows.get(key)
            if row is None:
                found.append(message)
            elif row.ref is not None and row.digest != _digest(message):
                found.append(replace(message, ref=row.ref))
        for key in [key for key in self._rows if key not in wanted]:
            self._forget(key)
        lost = len(self._waiting - wanted.keys())
        found.sort(key=lambda one: (one.notice.since_s, one.notice.key))
        self._waiting = {one.notice.key for one in found}
        return found[:AT_ONCE], lost

    def sent(self, messages: Iterable[Message], answer: bytes) -> None:
        """These stand there now."""
        for message in messages:
            self._put(message, message.ref or _id_of(answer))

    def refused(self, messages: Iterable[Message]) -> None:
        """Grafana will never take these."""
        for message in messages:
            self._put(message, None)

    def settled(self, messages: Iterable[Message], status: int) -> bool:
        """Whether a failure is none: somebody deleted the annotation, and it stays deleted."""
        gone = status == 404 and all(message.ref is not None for message in messages)
        if gone:
            self.refused(messages)
        return gone

    def _put(self, message: Message, ref: str | None) -> None:
        key = message.notice.key
        self._waiting.discard(key)
        self._rows[key] = row = _Row(_digest(message), ref)
        self._keep(key, {"digest": row.digest, "ref": row.ref})

    def _forget(self, key: str) -> None:
        del self._rows[key]
        self._keep(key, None)


def _digest(message: Message) -> str:
    """Of what is worth a change: not the text of a fault that goes on, which counts seconds."""
    ended = None if message.ended is None else (f"{message.ended.at_s:.3f}", message.ended.reason)
    told = json.dumps([_tags(message.notice), message.notice.title, ended])
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _id_of(answer: bytes) -> str | None:
    """Grafana's id of a new annotation; None where it told none, so that nothing can change it."""
    try:
        return str(int(json.loads(answer)["id"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
