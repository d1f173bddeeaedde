"""Writes the audit log: who did what, when and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from lightkeeper.monitor.decide import audit as lines
from lightkeeper.monitor.decide.rules import Reload
from lightkeeper.monitor.model.eviction import (
    DecisionRow,
    DecisionState,
    Eviction,
    QuarantineEvent,
)
from lightkeeper.monitor.model.incident import Incident
from lightkeeper.monitor.model.names import IncidentId
from lightkeeper.monitor.model.observation import Pause, Snapshot
from lightkeeper.monitor.store.audit_log import Line, LogFile

_LOG_S: Final = 0.5
"""How long an eviction waits for its line in the log."""


class Auditor:
    def __init__(self, log: LogFile | None = None) -> None:
        self._log = log
        self._pause: Pause | None = None
        self._looked = False
        """Whether the earlier pause is known: a restart is not logged as a change of it."""

    def took_place(
        self,
        snapshot: Snapshot,
        changed: Sequence[Incident],
        before: Mapping[IncidentId, Incident],
    ) -> None:
        """Log one tick: changed incidents, the pause."""
        entries = [
            entry
            for incident in changed
            for entry in lines.moves(before.get(incident.id), incident)
        ]
        if self._looked:
            entries += lines.paused(self._pause, snapshot.pause, snapshot.now_s)
        self._pause, self._looked = snapshot.pause, True
        entries.sort(key=lambda line: float(line["at_s"]))
        self._write(entries)

    def evicting(self, before: Eviction | None, after: Eviction, now_s: float) -> None:
        """Log the progress of an eviction."""
        self._write(lines.rungs(before, after, now_s))

    def decided(self, row: DecisionRow, incident: Incident | None) -> None:
        """Log a decision, or its progress; an eviction waits until its line is written."""
        groups = "" if incident is None else ", ".join(incident.groups)
        group = str(row.body.get("group", groups))
        self._write(lines.decision(row, group), wait=row.state is DecisionState.DECIDED)

    def quarantined(self, event: QuarantineEvent) -> None:
        """Log a change of the quarantine list. Called from any thread, during the change."""
        self._write(lines.quarantine(event))

    def reloaded(self, seen: Reload) -> None:
        """Log a reload of the policy, refused or not. Called from any thread."""
        self._write([lines.reload(seen)], wait=True)

    @property
    def lines_waiting(self) -> int:
        return 0 if self._log is None else self._log.waiting

    def troubles(self) -> Iterator[str]:
        if self._log is not None and self._log.trouble is not None:
            yield self._log.trouble

    def _write(self, entries: Iterable[Line], *, wait: bool = False) -> None:
        if self._log is not None:
            self._log.put(*entries)
            if wait:
                self._log.flush(_LOG_S)
