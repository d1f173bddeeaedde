"""What one sink was told, and what it should be told next. Pure: no clock, no thread, no disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from monitor.incident import Incident
from monitor.notify.notices import (
    BY_HAND_S,
    Ending,
    Event,
    Notice,
    ending,
    louder,
    notice_from_json,
    notice_to_json,
)
from monitor.notify.sinks import Message, Sink

QUEUE: Final = 256
"""Messages that may wait for one sink; more is a storm that nobody reads one by one."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What everybody should know now."""

    now_s: float
    notices: Mapping[str, Notice]
    incidents: tuple[Incident, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One notice that was sent, or that was given up."""

    notice: Notice
    sent_s: float
    dropped: bool = False
    """Never delivered: then its end is nobody's business either."""


class Ledger:
    """The rows of one sink. `keep` writes a row down (None: forget it)."""

    def __init__(
        self, sink: Sink, keep: Callable[[str, Mapping[str, Any] | None], None], give_up_s: float
    ) -> None:
        self._sink = sink
        self._keep = keep
        self._give_up_s = give_up_s
        self._rows: dict[str, Row] = {}
        self._since: dict[str, float] = {}
        """When each message that waits began to wait."""

    def restore(self, key: str, body: Mapping[str, Any]) -> None:
        """A row that an earlier monitor wrote; one that cannot be read is forgotten."""
        try:
            row = Row(
                notice_from_json(body["notice"]), float(body["sent_s"]), bool(body["dropped"])
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            self._keep(key, None)
        else:
            self._rows[key] = row

    def due(self, wanted: Wanted) -> tuple[list[Message], int]:
        """What should be sent now, the oldest first; and how many were given up just now."""
        waiting: dict[str, Message] = {}
        for key, notice in wanted.notices.items():
            message = self._begun(key, notice, wanted.now_s)
            if message is not None:
                waiting[key] = message
        for key, row in list(self._rows.items()):
            if key in wanted.notices or self._stands_on(row, wanted):
                continue
            ended = Message(row.notice, wanted.now_s, self._end(row, wanted))
            if row.dropped or not self._sink.takes(ended):
                self._forget(key)
            else:
                waiting[key] = ended
        self._since = {key: self._since.get(key, wanted.now_s) for key in waiting}
        given_up = self._give_up(waiting, wanted.now_s)
        order = sorted(waiting, key=lambda key: (self._since[key], waiting[key].notice.since_s))
        return [waiting[key] for key in order if key not in given_up], len(given_up)

    def _begun(self, key: str, notice: Notice, now_s: float) -> Message | None:
        """What stands and was not sent yet, or has to be sent again."""
        row = self._rows.get(key)
        if row is None:
            return Message(notice, now_s)
        if not row.dropped and louder(notice, row.notice):
            return Message(notice, now_s)
        again_s = self._sink.resend_s
        if row.dropped or again_s is None or now_s - row.sent_s < again_s:
            return None
        known = row.notice  # labels, severity and beginning make the alert: they stay
        return Message(replace(known, title=notice.title, text=notice.text), now_s)

    def _stands_on(self, row: Row, wanted: Wanted) -> bool:
        """A guard that comes and goes is told once for each incident, and so is a failed eviction.

        A sink that is told of endings has them ended with their incident too.
        """
        if row.notice.event is Event.INCIDENT:
            return False
        mine = [one for one in wanted.incidents if one.id == row.notice.incident_id]
        young = wanted.now_s - row.notice.since_s <= BY_HAND_S
        return any(one.open for one in mine) or (not mine and young)

    def _end(self, row: Row, wanted: Wanted) -> Ending:
        return ending(row.notice, wanted.incidents, wanted.now_s)

    def _give_up(self, waiting: Mapping[str, Message], now_s: float) -> set[str]:
        """Too old to be news, or too many: those are dropped, and never sent."""
        fresh = [key for key in waiting if now_s - self._since[key] <= self._give_up_s]
        fresh.sort(key=lambda key: (self._since[key], waiting[key].notice.since_s))
        gone = {key for key in waiting if key not in fresh} | set(fresh[QUEUE:])
        for key in gone:
            if waiting[key].ended is not None:
                self._forget(key)
            elif key not in self._rows:
                self.put(waiting[key].notice, now_s, dropped=True)
        return gone

    def sent(self, messages: Iterable[Message]) -> None:
        """These were delivered."""
        for message in messages:
            self._since.pop(message.notice.key, None)
            if message.ended is None:
                self.put(message.notice, message.at_s)
            else:
                self._forget(message.notice.key)

    def refused(self, messages: Iterable[Message]) -> None:
        """The sink will never take these."""
        for message in messages:
            self._since.pop(message.notice.key, None)
            if message.ended is None:
                self.put(message.notice, message.at_s, dropped=True)
            else:
                self._forget(message.notice.key)

    def put(self, notice: Notice, sent_s: float, *, dropped: bool = False) -> None:
        """Write a row; sending again changes only when, which is not worth a write."""
        known = self._rows.get(notice.key)
        self._rows[notice.key] = Row(notice, sent_s, dropped)
        if known is None or known.dropped != dropped or louder(notice, known.notice):
            body = {"notice": notice_to_json(notice), "sent_s": sent_s, "dropped": dropped}
            self._keep(notice.key, body)

    def _forget(self, key: str) -> None:
        if self._rows.pop(key, None) is not None:
            self._keep(key, None)
