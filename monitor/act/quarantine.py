"""Hosts and groups that may not come back: the list, its history, and what incidents say of hosts.
Also the pause switch: while it is pressed, nobody is evicted except by hand.

A launcher asks `admission` before it (re)starts a group. An eviction adds the culprit's host before
the group is gone, so that the launcher is refused in time.

Theory of operation. `_entries` is what is in force, `_events` is what happened. Each change updates
both, and both are with the store when a call returns. lightkeeper never shortens an entry in force
and never takes over a person's; a person may change everything. An entry that lightkeeper adds for
a host lasts as long as the host's record asks for (`model.quarantine.length_s`). An incident
accuses hosts (`accusations`) once it fires and is sure of its culprits; an unsure one, or one whose
verdict says that an eviction would not help, accuses none.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from lightkeeper.monitor.clock import Clock
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import (
    KEEPER,
    Change,
    Decision,
    Eviction,
    QuarantineEntry,
    QuarantineEvent,
    Scope,
)
from lightkeeper.monitor.model.incident import Incident, State
from lightkeeper.monitor.model.names import GroupName, Host, IncidentId, group_of
from lightkeeper.monitor.model.observation import Pause
from lightkeeper.monitor.model.plain import from_plain, to_plain
from lightkeeper.monitor.model.quarantine import HostRecord, length_s, note_on, records
from lightkeeper.monitor.model.units import grouped
from lightkeeper.monitor.store.store import Store

log = logging.getLogger(__name__)

# -- the answer to a launcher ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to a launcher: may a group start on a host, and why."""

    admit: bool
    reason: str
    until_s: float | None = None
    """None: until a person releases it."""
    entries: tuple[QuarantineEntry, ...] = ()
    """The entries that refuse the group."""


def refusal_words(entry: QuarantineEntry) -> str:
    """Why a launcher is refused."""
    what = f"group {entry.name}" if entry.scope is Scope.GROUP else entry.name
    note = f" ({entry.note})" if entry.note else ""
    return f"{what} is quarantined by {entry.author}: {entry.reason}{note}"


# -- the list ----------------------------------------------------------------------------------


NAME_EVENTS: Final = 500
"""The newest events of each name are kept; more would say nothing new about it."""
_SLACK_S: Final = 7 * 86_400.0
"""Events are kept this long beyond the window in which they count, for people."""
_FRESH_S: Final = 5.0
"""Records are rebuilt after this time, or when something happens."""

_Key = tuple[Scope, str]


class Quarantine:
    """The quarantine list and its history. Safe to use from any thread."""

    def __init__(self, clock: Clock, store: Store, config: KeeperConfig | None = None) -> None:
        self._clock = clock
        self._store = store
        self._config = config or KeeperConfig()
        self._lock = threading.RLock()
        self._entries: dict[_Key, QuarantineEntry] = {}
        self._events: dict[_Key, list[QuarantineEvent]] = {}
        self._records: Mapping[Host, HostRecord] | None = None
        self._made_s = 0.0

    def take_over(
        self, entries: Sequence[QuarantineEntry], events: Sequence[QuarantineEvent]
    ) -> None:
        """Replace the list and its history by the store's."""
        with self._lock:
            self._entries = {_key(entry): entry for entry in entries}
            self._events = grouped(((event.scope, event.name), event) for event in events)
            self._records = None

    # -- changing -----------------------------------------------------------------------------

    def add(self, entry: QuarantineEntry) -> QuarantineEntry:
        """Quarantine a host or a group, or change its entry; returns the entry then in force.

        It is on disk when this returns, if the disk works. An entry by `KEEPER` says how long a
        *first* quarantine lasts; the host's record may ask for longer.
        """
        with self._lock:
            self._expire()
            entry = self._with_evidence(entry)
            old = self._entries.get(_key(entry))
            if entry.author == KEEPER:
                entry = self._by_keeper(entry, old)
            else:
                shorter = old is not None and _later(old.until_s, entry.until_s)
                change = Change.SHORTENED if shorter else Change.EXTENDED
                self._append(self._event(entry, Change.ADDED if old is None else change))
                entry = entry if old is None else replace(entry, since_s=old.since_s)
            if entry != old:
                self._entries[_key(entry)] = entry
                self._store.save_quarantine(entry)
        self._store.flush()
        return entry

    def release(
        self, name: str, scope: Scope = Scope.HOST, *, author: str = "a person", reason: str = ""
    ) -> str | None:
        """Release a host or a group; returns a sentence about it, None if not quarantined."""
        with self._lock:
            self._expire()
            entry = self._entries.pop((scope, name), None)
            if entry is None:
                return None
            self._store.drop_quarantine(scope, name)
            now_s = self._clock.now_s()
            why = reason or f"it was in quarantine for: {entry.reason}"
            self._append(QuarantineEvent(now_s, Change.RELEASED, name, why, author, scope))
        self._store.flush()
        return f"{name} may come back"

    def take(self, events: Iterable[QuarantineEvent]) -> None:
        """Record what incidents say about hosts; known accusations are not repeated."""
        with self._lock:
            for event in events:
                history = self._events.get((event.scope, event.name), ())
                if all(past.id != event.id for past in history):
                    self._append(event)

    # -- asking -------------------------------------------------------------------------------

    def get(self, name: str, scope: Scope = Scope.HOST) -> QuarantineEntry | None:
        """The entry of a host or a group, unless its time is over."""
        with self._lock:
            entry = self._entries.get((scope, name))
        return entry if entry and _later(entry.until_s, self._clock.now_s()) else None

    def active(self) -> tuple[QuarantineEntry, ...]:
        """Hosts in quarantine now, sorted; those whose time is over are dropped."""
        return self._in_force(Scope.HOST)

    def groups(self) -> tuple[QuarantineEntry, ...]:
        return self._in_force(Scope.GROUP)

    def admission(self, host: Host, group: GroupName | None = None) -> Admission:
        """Say if a launcher may start this group on this host."""
        asked = (self.get(host), None if group is None else self.get(group, Scope.GROUP))
        entries = tuple(entry for entry in asked if entry is not None)
        if not entries:
            return Admission(True, f"{host} is not quarantined")
        ends = [entry.until_s for entry in entries]
        dated = [end for end in ends if end is not None]
        until_s = max(dated) if len(dated) == len(ends) else None
        return Admission(False, "; ".join(map(refusal_words, entries)), until_s, entries)

    def history(self, name: str, scope: Scope = Scope.HOST) -> tuple[QuarantineEvent, ...]:
        with self._lock:
            self._expire()
            events = sorted(self._events.get((scope, name), ()), key=lambda event: event.at_s)
        return tuple(events[::-1])

    def records(self) -> Mapping[Host, HostRecord]:
        """The record of every known host."""
        with self._lock:
            now_s = self._clock.now_s()
            if self._records is None or now_s - self._made_s > _FRESH_S:
                self._forget(now_s)
                events = tuple(chain.from_iterable(self._events.values()))
                self._records, self._made_s = records(events, now_s, self._config), now_s
            return self._records

    # -- inside -------------------------------------------------------------------------------

    def _by_keeper(self, entry: QuarantineEntry, old: QuarantineEntry | None) -> QuarantineEntry:
        """The entry in force after lightkeeper adds this one; also appends the event."""
        first_s = None if entry.until_s is None else entry.until_s - entry.since_s
        if entry.scope is Scope.HOST:
            counts = () if old is not None else (self._event(entry, Change.ADDED),)
            events = (*chain.from_iterable(self._events.values()), *counts)
            host, by_host = Host(entry.name), records(events, self._clock.now_s(), self._config)
            record = by_host.get(host, HostRecord(host))
            lasts_s = length_s(record, first_s, self._config)
            until_s = None if lasts_s is None else entry.since_s + lasts_s
            note = note_on(record, entry.since_s, self._config)
            entry = replace(entry, until_s=until_s, note=note)
        if old is None:
            self._append(self._event(entry, Change.ADDED))
            return entry
        if not _later(entry.until_s, old.until_s):
            return old
        self._append(self._event(entry, Change.EXTENDED))
        if old.author != KEEPER:
            return replace(old, until_s=entry.until_s)
        return replace(entry, since_s=old.since_s)

    def _with_evidence(self, entry: QuarantineEntry) -> QuarantineEntry:
        """The entry, with the kind and findings of the incident that it names."""
        if entry.incident_id is None or entry.kind is not None:
            return entry
        for event in chain.from_iterable(self._events.values()):
            if event.incident_id == entry.incident_id and event.change is Change.ACCUSED:
                return replace(entry, kind=event.kind, findings=event.findings)
        return entry

    def _event(self, entry: QuarantineEntry, change: Change) -> QuarantineEvent:
        return QuarantineEvent(
            at_s=self._clock.now_s() if change is not Change.ADDED else entry.since_s,
            change=change,
            name=entry.name,
            reason=entry.reason,
            author=entry.author,
            scope=entry.scope,
            until_s=entry.until_s,
            incident_id=entry.incident_id,
            kind=entry.kind,
            findings=entry.findings,
        )

    def _append(self, event: QuarantineEvent) -> None:
        history = self._events.setdefault((event.scope, event.name), [])
        history[:] = [past for past in history if past.id != event.id]
        history.append(event)
        self._store.save_quarantine_event(event)
        while len(history) > NAME_EVENTS:
            self._store.drop_quarantine_event(history.pop(0))
        self._records = None

    def _in_force(self, scope: Scope) -> tuple[QuarantineEntry, ...]:
        with self._lock:
            self._expire()
            names = sorted(name for kind, name in self._entries if kind is scope)
            return tuple(self._entries[scope, name] for name in names)

    def _expire(self) -> None:
        now_s = self._clock.now_s()
        for key, entry in list(self._entries.items()):
            if entry.until_s is not None and entry.until_s <= now_s:
                del self._entries[key]
                self._store.drop_quarantine(entry.scope, entry.name)
                why = f"its time was over: {entry.reason}"
                self._append(
                    QuarantineEvent(
                        entry.until_s, Change.EXPIRED, entry.name, why, scope=entry.scope
                    )
                )

    def _forget(self, now_s: float) -> None:
        """Drop events that are too old to count; a name in quarantine keeps all of them."""
        since_s = now_s - self._config.lemon_window_days * 86_400.0 - _SLACK_S
        for key, events in list(self._events.items()):
            if key in self._entries:
                continue
            for event in [event for event in events if event.at_s < since_s]:
                events.remove(event)
                self._store.drop_quarantine_event(event)
            if not events:
                del self._events[key]


def _key(entry: QuarantineEntry) -> _Key:
    return entry.scope, entry.name


def _later(until_s: float | None, than_s: float | None) -> bool:
    """None is forever."""
    return than_s is not None and (until_s is None or until_s > than_s)


# -- what incidents say of hosts ---------------------------------------------------------------

FINDINGS_MAX_CHARS: Final = 400
_NO_NODE: Final = "pod:"
"""Prefix of the host of a rank whose node is not known (`rank.identity`): it is not a host."""


def accusations(
    changed: Sequence[Incident], before: Mapping[IncidentId, Incident], now_s: float
) -> Iterator[QuarantineEvent]:
    """Accuse the hosts of the culprits of incidents that have just become certain.

    `before`: the same incidents as they were before this tick.
    """
    for incident in changed:
        old = before.get(incident.id)
        if _certain(incident) and not (old is not None and _certain(old)):
            yield from _events_of(incident, Change.ACCUSED, now_s)


def evictions(
    decisions: Sequence[Decision], incident: Callable[[IncidentId], Incident | None], now_s: float
) -> Iterator[QuarantineEvent]:
    """Events for the hosts of culprits whose eviction was decided; by hand, nobody is accused."""
    for decision in decisions:
        blamed = incident(decision.incident_id) if isinstance(decision, Eviction) else None
        if blamed is not None:
            yield from _events_of(blamed, Change.EVICTED, now_s)


def _certain(incident: Incident) -> bool:
    return incident.state in (State.FIRING, State.EVICTING) and incident.verdict.accuses


def _events_of(incident: Incident, change: Change, now_s: float) -> Iterator[QuarantineEvent]:
    verdict = incident.verdict
    wide = any(group_of(rank) not in incident.groups for rank in verdict.victims)
    hosts = incident.hosts if incident.culprits else ()
    for host in (host for host in hosts if not host.startswith(_NO_NODE)):
        yield QuarantineEvent(
            at_s=now_s,
            change=change,
            name=host,
            reason=verdict.reason,
            incident_id=incident.id,
            kind=str(incident.kind),
            findings=findings_of(incident),
            signature=incident.signature,
            wide=wide,
            testified=verdict.evidence.get("machine", "") if host in verdict.blamed else "",
        )


def findings_of(incident: Incident) -> str:
    text = "; ".join(f"{source}: {seen}" for source, seen in incident.verdict.evidence.items())
    line = " ".join(text.split())
    return line if len(line) <= FINDINGS_MAX_CHARS else line[: FINDINGS_MAX_CHARS - 3] + "..."


# -- the pause ---------------------------------------------------------------------------------


SWITCH: Final = "pause"
"""The pause's name in the store."""


class PauseSwitch:
    """Holds the pause, and the last one after its end. Safe to use from any thread."""

    def __init__(self, clock: Clock, store: Store) -> None:
        self._clock = clock
        self._store = store
        self._lock = threading.Lock()
        self.last: Pause | None = None

    def take_over(self, body: str | None) -> None:
        """Load what an earlier monitor saved; if that cannot be read, evictions are paused."""
        try:
            pause = None if body is None else from_plain(Pause, json.loads(body))
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            log.warning("the saved pause cannot be read (%s): paused until resumed", exc)
            pause = Pause("a saved pause cannot be read", "lightkeeper", self._clock.now_s(), None)
        with self._lock:
            self.last = pause

    def press(self, reason: str, author: str, hours: float | None) -> Pause:
        """Evict nobody from now on; pressed again, it replaces the pause."""
        now_s = self._clock.now_s()
        until_s = None if hours is None else now_s + hours * 3600.0
        pause = self._keep(Pause(reason, author, now_s, until_s))
        self._store.flush()
        log.warning("paused by %s: %s", author, reason)
        return pause

    def release(self, author: str) -> Pause | None:
        """End the pause and return it; None when there was none."""
        if (pause := self.current()) is not None:
            pause = self._end(pause, author)
            self._store.flush()
        return pause

    def current(self) -> Pause | None:
        """The pause that holds now."""
        pause = self.last
        if pause is None or pause.ended_s is not None:
            return None
        if pause.until_s is None or self._clock.now_s() < pause.until_s:
            return pause
        self._end(pause, "its time")
        return None

    def _end(self, pause: Pause, by: str) -> Pause:
        log.warning("the pause by %s is over (%s): ended by %s", pause.author, pause.reason, by)
        return self._keep(replace(pause, ended_s=self._clock.now_s(), ended_by=by))

    def _keep(self, pause: Pause) -> Pause:
        with self._lock:
            self.last = pause
            self._store.save_switch(SWITCH, json.dumps(to_plain(pause)))
        return pause

    def why(self) -> str | None:
        """Why nobody is evicted now, in a few words; None while nothing is paused."""
        pause = self.current()
        return None if pause is None else f"paused by {pause.author}: {pause.reason}"
