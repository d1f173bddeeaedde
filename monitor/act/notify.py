"""Messages people: each sink has a log of what it got and a worker that delivers.

The tick hands over the notices that stand (`Notifier.push`) and waits for nobody. A sink's
`NotificationLog` decides what the sink gets next, and the store keeps it over a restart. A failing
sink is retried with backoff; it delays no other.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from prometheus_client import CollectorRegistry

from lightkeeper.monitor.act.http import Answer, Fetcher, FetchError
from lightkeeper.monitor.act.notices import (
    BY_HAND_S,
    Event,
    Message,
    Notice,
    NoticeFacts,
    Sink,
    Status,
    ending,
    louder,
    notices,
)
from lightkeeper.monitor.background import TROUBLE_AFTER, BackgroundWorker, backoff_s
from lightkeeper.monitor.metric import KEPT
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.names import without_secrets
from lightkeeper.monitor.model.plain import from_plain, readable, to_plain
from lightkeeper.monitor.store.store import Store

log = logging.getLogger(__name__)

QUEUE: Final = 256
"""Messages that may wait for one sink; nobody reads more one by one."""


Standing = Mapping[str, Notice]
"""The notices that every sink should have been sent by now."""


@readable
@dataclass(frozen=True, slots=True)
class Row:
    """One notice that was sent, or that was given up."""

    notice: Notice
    sent_s: float
    dropped: bool = False
    """Never delivered: its end is not sent either."""


class NotificationLog:
    """The rows of one sink. `keep` stores a row (None: deletes it)."""

    def __init__(
        self, sink: Sink, keep: Callable[[str, Mapping[str, Any] | None], None], give_up_s: float
    ) -> None:
        self._sink = sink
        self._keep = keep
        self._give_up_s = give_up_s
        self._rows: dict[str, Row] = {}
        self._since: dict[str, float] = {}
        """When each waiting message began to wait."""

    def restore(self, key: str, body: Mapping[str, Any]) -> None:
        """Load a row that an earlier monitor wrote; a row that cannot be read is deleted."""
        try:
            self._rows[key] = from_plain(Row, body)
        except ValueError:
            self._keep(key, None)

    def due(self, standing: Standing, facts: NoticeFacts) -> tuple[list[Message], int]:
        """The messages to send now, oldest first, and how many were given up just now."""
        waiting: dict[str, Message] = {}
        for key, notice in standing.items():
            message = self._begun(key, notice, facts.now_s)
            if message is not None:
                waiting[key] = message
        for key, row in list(self._rows.items()):
            if key in standing or self._stands_on(row, facts):
                continue
            once = self._sink.resend_s is None and row.notice.event is not Event.INCIDENT
            if row.dropped or once:
                self._forget(key)
            else:
                ends = ending(row.notice, facts)
                waiting[key] = Message(row.notice, facts.now_s, ends)
        self._since = {key: self._since.get(key, facts.now_s) for key in waiting}
        order = sorted(waiting, key=lambda key: (self._since[key], waiting[key].notice.since_s))
        fresh = [key for key in order if facts.now_s - self._since[key] <= self._give_up_s]
        sendable = dict.fromkeys(fresh[:QUEUE])
        given_up = [waiting[key] for key in order if key not in sendable]
        self._give_up(given_up, facts.now_s)
        return [waiting[key] for key in sendable], len(given_up)

    def _begun(self, key: str, notice: Notice, now_s: float) -> Message | None:
        """The message for a notice that stands, if it has to be sent now, or again."""
        row, again_s, sounds = self._rows.get(key), self._sink.resend_s, not notice.muted
        if row is None:
            return Message(notice, now_s) if sounds else None
        if row.dropped:
            return None
        if sounds and louder(notice, row.notice):
            return Message(notice, now_s)
        due = again_s is not None and now_s - row.sent_s >= again_s  # or it would end there
        if not due and (notice.muted or notice.work == row.notice.work):
            return None
        sent = replace(  # labels, severity and beginning make the alert: they stay
            row.notice, title=notice.title, text=notice.text, work=notice.work,
            incident=notice.incident,
        )  # fmt: skip
        return Message(sent, now_s)

    def _stands_on(self, row: Row, facts: NoticeFacts) -> bool:
        """True if a row stays until its incident ends, though its notice no longer stands.

        So a guard that comes and goes is reported once for each incident, as is a failed eviction.
        """
        if row.notice.event is Event.INCIDENT:
            return False
        for incident in facts.incidents:
            if incident.id == row.notice.incident_id:
                closed = facts.work.of(incident).resolved is not None
                return incident.open and not (closed and row.notice.event is Event.HELD)
        return facts.now_s - row.notice.since_s <= BY_HAND_S

    def _give_up(self, messages: Iterable[Message], now_s: float) -> None:
        """Drop messages that are too old to be news, or too many; they are never sent."""
        for message in messages:
            if message.ended is not None:
                self._forget(message.notice.key)
            elif message.notice.key not in self._rows:
                self.put(message.notice, now_s, dropped=True)

    def settled(self, messages: Iterable[Message], *, dropped: bool = False) -> None:
        """Record that these were delivered; `dropped`: that the sink will never take them."""
        for message in messages:
            self._since.pop(message.notice.key, None)
            if message.ended is None:
                self.put(message.notice, message.at_s, dropped=dropped)
            else:
                self._forget(message.notice.key)

    def put(self, notice: Notice, sent_s: float, *, dropped: bool = False) -> None:
        """Set a row. Sending again changes only the time, which is not worth a write."""
        sent = self._rows.get(notice.key)
        row = self._rows[notice.key] = Row(notice, sent_s, dropped)
        same = sent is not None and sent.dropped == dropped and notice.work == sent.notice.work
        if sent is None or not same or louder(notice, sent.notice):
            self._keep(notice.key, to_plain(row))

    def _forget(self, key: str) -> None:
        if self._rows.pop(key, None) is not None:
            self._keep(key, None)


_FIRST_S: Final = 1.0
_LONGEST_S: Final = 300.0
"""Between two tries: a sink that comes back gets its messages within five minutes."""
_BAD_MESSAGE: Final = frozenset({400, 413, 422})
"""The message is at fault, so sending it again does not help. Any other failure may pass: a token
that was revoked, a channel that was archived."""
_LOOK_AGAIN_S: Final = 5.0
"""How often a worker checks for messages to send again; sooner if the sink resends faster."""


def send(fetcher: Fetcher, sink: Sink, messages: Sequence[Message]) -> Answer:
    """Send messages in one request.

    Raises:
        FetchError: no answer; like the answer it never shows the URL, which may be the secret.
    """
    question = sink.post(messages)
    try:
        answer = fetcher.ask(question)
    except FetchError as exc:
        raise FetchError(exc.failure, without_secrets(question.url, exc.detail)) from None
    said = without_secrets(question.url, answer.body.decode(errors="replace"))
    return replace(answer, body=said.encode())


MESSAGES: Final = KEPT.counter("notifications",
    "Messages to people, by sink and outcome: sent, failed (tried again), dropped.",
    ("sink", "outcome"), series="≤ 3 a sink",
    absent="none since the start")  # fmt: skip
PENDING: Final = KEPT.gauge("notifications_pending", "Messages that wait for a sink.", ("sink",),
    series="1 a sink", absent="no sink is configured")  # fmt: skip


class DeliveryWorker:
    """Delivers to one sink. Close it when done."""

    def __init__(
        self,
        sink: Sink,
        store: Store,
        fetcher: Fetcher,
        metrics: CollectorRegistry,
        *,
        give_up_s: float,
        sent: Callable[[str, str, str], object],
        first_s: float = _FIRST_S,
    ) -> None:
        """`sent` gets incident, sink and URL of a message; `first_s` is the wait after the first
        failure.
        """
        self._sent = sent
        self.sink = sink
        self.log = NotificationLog(sink, partial(store.save_notice, sink.name), give_up_s)
        self._flush = store.flush
        self._fetcher = fetcher
        self._messages, self._pending = MESSAGES.on(metrics), PENDING.on(metrics)
        self._first_s = first_s
        self._failures = 0
        self._failure: str | None = None
        """The sink's latest error while it keeps failing."""
        self._retry = 0.0
        """Monotonic time before which a failing sink is not tried, even for news."""
        self._look_again_s = min(_LOOK_AGAIN_S, (sink.resend_s or _LOOK_AGAIN_S) / 2)
        self._latest: tuple[Standing, NoticeFacts, float] | None = None
        """With the monotonic time at which it came: the tick may stand still."""
        self._worker = BackgroundWorker(f"notify {sink.name}", self._work, after_crash_s=_LONGEST_S)
        self._worker.start()

    def push(self, standing: Standing, facts: NoticeFacts) -> None:
        """Hand over what the sink should have now; never waits."""
        before, self._latest = self._latest, (standing, facts, time.monotonic())
        if before is None or _news(before[0]) != _news(standing):
            self._worker.wake()

    def trouble(self) -> str | None:
        """Why messages do not arrive, one sentence; None while they do."""
        crash = self._worker.crash
        return self._failure if crash is None else f"notify {self.sink.name} {crash}"

    def close(self) -> None:
        self._worker.close()

    def _work(self) -> float | None:
        """Send what is due; returns the seconds until the next try."""
        now = time.monotonic()
        if self._latest is None:
            return None
        if now < self._retry:
            return self._retry - now
        standing, facts, came = self._latest
        failed = self._deliver(standing, replace(facts, now_s=facts.now_s + now - came))
        if failed is None:
            self._flush()
            return self._look_again_s
        self._retry = time.monotonic() + failed
        return failed

    def _deliver(self, standing: Standing, facts: NoticeFacts) -> float | None:
        """Send all that is due, in batches; returns as `_send` does."""
        messages, given_up = self.log.due(standing, facts)
        self._count("dropped", given_up)
        pending = self._pending.labels(self.sink.name)
        pending.set(len(messages))
        while messages and not self._worker.closing:
            batch, messages = messages[: self.sink.at_once], messages[self.sink.at_once :]
            failed = self._send(batch, facts.ahead_s)
            if failed is not None:
                return failed
            pending.set(len(messages))
        return None

    def _send(self, batch: Sequence[Message], ahead_s: float) -> float | None:
        """Send one batch. None: it is settled; else how long to wait before the next try."""
        try:
            timed = [message.by_the_wall(ahead_s) for message in batch]
            answer = send(self._fetcher, self.sink, timed)
        except FetchError as exc:
            return self._failed(str(exc), None)
        if 200 <= answer.status < 300:
            self.log.settled(batch)
            self._flush()
            self._count("sent", len(batch))
            for message in batch:
                first = message.status is Status.FIRING and message.notice.event is Event.INCIDENT
                if first and (url := self.sink.link(message, answer)):
                    self._sent(message.notice.incident_id, self.sink.name, url)
            self._failures, self._failure = 0, None
            return None
        if answer.status in _BAD_MESSAGE and len(batch) > 1:  # the others must still be sent
            waits_s = (self._send([message], ahead_s) for message in batch)
            return next((wait_s for wait_s in waits_s if wait_s is not None), None)
        if answer.status in _BAD_MESSAGE:
            log.warning("notify %s refuses a message: %s", self.sink.name, answer.summary)
            self.log.settled(batch, dropped=True)
            self._count("dropped", len(batch))
            return None
        return self._failed(answer.summary, answer.retry_after_s)

    def _failed(self, why: str, retry_after_s: float | None) -> float:
        self._count("failed", 1)
        self._failures += 1
        if self._failures >= TROUBLE_AFTER:
            sentence = f"notify {self.sink.name}: {why}"
            if self._failure is None:
                log.warning("%s", sentence)
            self._failure = sentence
        wait_s = backoff_s(self._failures, self._first_s, _LONGEST_S) * random.uniform(0.8, 1.2)  # noqa: S311 - several monitors should not try in step
        return max(wait_s, min(retry_after_s or 0.0, _LONGEST_S))

    def _count(self, outcome: str, number: int) -> None:
        if number:
            self._messages.labels(self.sink.name, outcome).inc(number)


def _news(standing: Standing) -> dict[str, str]:
    """What is compared between pushes: a change wakes the worker at once."""
    return {key: f"{n.severity} {n.muted} {n.work}" for key, n in standing.items()}


class Notifier:
    """Hands every tick to every sink's worker. Close it when done."""

    def __init__(
        self,
        sinks: Sequence[Sink],
        *,
        fetcher: Fetcher,
        store: Store,
        metrics: CollectorRegistry,
        config: KeeperConfig,
        url: str,
        remembered: Iterable[tuple[str, str, Mapping[str, Any]]] = (),
        sent: Callable[[str, str, str], object] = lambda *_: None,
        first_s: float = 1.0,
    ) -> None:
        self._hold_s, self._url = config.notify_hold_s, url
        give_up_s = config.notify_give_up_s
        self._workers = tuple(
            DeliveryWorker(
                sink, store, fetcher, metrics, give_up_s=give_up_s, sent=sent, first_s=first_s
            )
            for sink in sinks
        )
        logs = {worker.sink.name: worker.log for worker in self._workers}
        for name, key, body in remembered:
            if name in logs:
                logs[name].restore(key, body)
            else:
                store.save_notice(name, key, None)  # a sink no longer configured

    def push(self, facts: NoticeFacts) -> None:
        """One tick; never waits for a sink."""
        standing = notices(facts, url=self._url, hold_s=self._hold_s)
        for worker in self._workers:
            worker.push(standing, facts)

    def troubles(self) -> tuple[str, ...]:
        """Failing sinks, one sentence each."""
        troubles = (worker.trouble() for worker in self._workers)
        return tuple(trouble for trouble in troubles if trouble is not None)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
