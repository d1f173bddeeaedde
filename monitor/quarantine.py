"""The deny list that the Lighthouse lacks: hosts to which no replica group may come back.

A launcher asks `admission` before it (re)starts a group; the first rung of an eviction adds the
culprit's host before the group is gone, so that the launcher is refused in time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from monitor.clock import Clock
from monitor.names import Host
from monitor.store import QuarantineEntry


class QuarantineKeeper(Protocol):
    """Where the list survives a restart of the monitor."""

    def save_quarantine(self, entry: QuarantineEntry) -> None:
        """Write or replace one entry."""
        ...

    def drop_quarantine(self, host: Host) -> None:
        """Forget one entry."""
        ...

    def flush(self) -> bool:
        """Put it on disk."""
        ...


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a group may start on a host, and why."""

    admit: bool
    reason: str
    until_s: float | None = None


class Quarantine:
    """The list. Safe to use from any thread."""

    def __init__(self, clock: Clock, keeper: QuarantineKeeper) -> None:
        self._clock = clock
        self._keeper = keeper
        self._lock = threading.Lock()
        self._entries: dict[Host, QuarantineEntry] = {}

    def restore(self, entries: Sequence[QuarantineEntry]) -> None:
        """Take over what an earlier monitor had saved."""
        with self._lock:
            self._entries.update({entry.host: entry for entry in entries})

    def take_over(self, entries: Sequence[QuarantineEntry]) -> None:
        """The list as the store has it, instead of ours."""
        with self._lock:
            self._entries = {entry.host: entry for entry in entries}

    def add(self, entry: QuarantineEntry) -> None:
        """Quarantine a host, or change its entry; on disk when this returns, if it takes it."""
        with self._lock:
            self._entries[entry.host] = entry
            self._keeper.save_quarantine(entry)
        self._keeper.flush()

    def release(self, host: Host) -> bool:
        """Let a host in again; False when it was not quarantined."""
        with self._lock:
            found = self._entries.pop(host, None) is not None
            if found:
                self._keeper.drop_quarantine(host)
        self._keeper.flush()
        return found

    def get(self, host: Host) -> QuarantineEntry | None:
        """The entry of a host, unless its time is over."""
        with self._lock:
            entry = self._entries.get(host)
        if entry is None or (entry.until_s is not None and entry.until_s <= self._clock.now_s()):
            return None
        return entry

    def active(self) -> tuple[QuarantineEntry, ...]:
        """Entries in force, sorted by host; those whose time is over are dropped."""
        now_s = self._clock.now_s()
        with self._lock:
            for entry in list(self._entries.values()):
                if entry.until_s is not None and entry.until_s <= now_s:
                    del self._entries[entry.host]
                    self._keeper.drop_quarantine(entry.host)
            return tuple(self._entries[host] for host in sorted(self._entries))

    def admission(self, host: Host) -> Admission:
        """Whether a launcher may start a group on this host."""
        entry = self.get(host)
        if entry is None:
            return Admission(True, f"{host} is not quarantined")
        return Admission(
            False, f"{host} is quarantined by {entry.author}: {entry.reason}", entry.until_s
        )
