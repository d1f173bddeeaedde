"""Where the list survives a restart of the monitor: the store, as the list needs it."""

from __future__ import annotations

from typing import Protocol

from monitor.store import QuarantineEntry, QuarantineEvent, Scope


class QuarantineKeeper(Protocol):
    """Where the list survives a restart of the monitor."""

    def save_quarantine(self, entry: QuarantineEntry) -> None:
        """Write or replace one entry."""
        ...

    def drop_quarantine(self, scope: Scope, name: str) -> None:
        """Forget one entry."""
        ...

    def save_quarantine_event(self, event: QuarantineEvent) -> None:
        """Write one line of the history."""
        ...

    def drop_quarantine_event(self, event: QuarantineEvent) -> None:
        """Forget one line of the history."""
        ...

    def flush(self) -> bool:
        """Put it on disk."""
        ...
