"""Keeps what the account of an incident needs while it happens, and writes the audit log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from lightkeeper.monitor.decide import audit as lines
from lightkeeper.monitor.decide.accounts import facts_of, hosts_of
from lightkeeper.monitor.decide.audit import FACTS, IncidentAudit, audit_of, by_incident
from lightkeeper.monitor.decide.rules import Reload
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import (
    DecisionRow,
    DecisionState,
    Eviction,
    QuarantineEvent,
    Remembered,
)
from lightkeeper.monitor.model.incident import Incident
from lightkeeper.monitor.model.names import IncidentId
from lightkeeper.monitor.model.observation import Pause, Snapshot
from lightkeeper.monitor.model.plain import to_plain
from lightkeeper.monitor.store.audit_log import Line, LogFile
from lightkeeper.monitor.store.store import Store

_LOG_S: Final = 0.5
"""How long an eviction waits for its line in the log."""


class Auditor:
    def __init__(
        self,
        store: Store,
        config: KeeperConfig,
        log: LogFile | None = None,
    ) -> None:
        self._store = store
        self._log = log
        self._audit = IncidentAudit(config=config)
        self._known: dict[tuple[IncidentId, float], Eviction] = {}
        self._pause: Pause | None = None
        self._looked = False
        """Whether the earlier pause is known: a restart is not logged as a change of it."""

    @property
    def audit(self) -> IncidentAudit:
        return self._audit

    def took_place(
        self,
        snapshot: Snapshot,
        changed: Sequence[Incident],
        before: Mapping[IncidentId, Incident],
    ) -> None:
        """Record one tick: changed incidents, progress of evictions, the pause."""
        for incident in changed:
            if incident.milestones.firing_s is not None:
                self._note(snapshot, incident)
        entries: list[Line] = []
        for incident in changed:
            entries += lines.moves(before.get(incident.id), incident)
        entries += self._evictions(snapshot)
        if self._looked:
            entries += lines.paused(self._pause, snapshot.pause, snapshot.now_s)
        self._pause, self._looked = snapshot.pause, True
        entries.sort(key=lambda line: float(line["at_s"]))
        self._write(entries, wait=False)

    def decided(self, row: DecisionRow, incident: Incident | None) -> None:
        """Log a decision, or its progress; an eviction waits until its line is written."""
        groups = "" if incident is None else ", ".join(incident.groups)
        group = str(row.body.get("group", groups))
        self._write(list(lines.decision(row, group)), wait=row.state is DecisionState.DECIDED)

    def quarantined(self, event: QuarantineEvent) -> None:
        """Log a change of the quarantine list. Called from any thread, during the change."""
        self._write(list(lines.quarantine(event)), wait=False)

    def reloaded(self, seen: Reload) -> None:
        """Log a reload of the policy, refused or not. Called from any thread."""
        self._write([lines.reload(seen)], wait=True)

    def adopt(self, remembered: Remembered) -> None:
        """Continue from what the store holds: at the start, and after another monitor."""
        self._audit = audit_of(remembered, self._audit.config)
        self._known = {eviction.key: eviction for eviction in remembered.taken_up}

    @property
    def lines_waiting(self) -> int:
        return 0 if self._log is None else self._log.waiting

    def troubles(self) -> Iterator[str]:
        if self._log is not None and self._log.trouble is not None:
            yield self._log.trouble

    # -- inside -------------------------------------------------------------------------------

    def _note(self, snapshot: Snapshot, incident: Incident) -> None:
        """Note what cannot be seen later: ranks and hosts at first, hosts when groups return."""
        key, back_s = incident.id, incident.milestones.rejoined_s
        before = facts = self._audit.facts.get(key)
        if facts is None and incident.open:
            facts = facts_of(snapshot, incident.groups)
        if facts is not None and not facts.back_on and back_s is not None:
            facts = replace(facts, back_on=hosts_of(snapshot, incident.groups))
        if facts is not None and facts != before:
            self._audit = replace(self._audit, facts={**self._audit.facts, key: facts})
            self._store.save_audit(key, FACTS, to_plain(facts))

    def _evictions(self, snapshot: Snapshot) -> Iterator[Line]:
        changed = False
        for eviction in snapshot.evictions:
            old = self._known.get(eviction.key)
            if old == eviction:
                continue
            changed, self._known[eviction.key] = True, eviction
            yield from lines.rungs(old, eviction, snapshot.now_s)
        if changed:
            self._audit = replace(self._audit, evictions=by_incident(self._known.values()))

    def _write(self, entries: Sequence[Line], *, wait: bool) -> None:
        if self._log is not None:
            self._log.put(*entries)
            if wait:
                self._log.flush(_LOG_S)

    def forget(self, incidents: Iterable[Incident]) -> None:
        """Drop the notes on incidents that are no longer shown; the store keeps them."""
        shown = {incident.id for incident in incidents}
        audit = self._audit
        unshown = [key for key in audit.facts if key not in shown]
        keys = [
            key
            for key, eviction in self._known.items()
            if key[0] not in shown and not eviction.by_hand
        ]
        for key in keys:
            del self._known[key]
        if unshown or keys:
            self._audit = replace(
                audit,
                facts={key: facts for key, facts in audit.facts.items() if key in shown},
                evictions=by_incident(self._known.values()),
            )
