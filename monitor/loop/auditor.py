"""Keeps the books of every incident while it happens, counts them, and writes the audit log."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from monitor.decide import audit_lines as lines
from monitor.decide.accounts import (
    AFTERMATH,
    FACTS,
    AuditedIncident,
    FleetFacts,
    IncidentAccount,
    IncidentAudit,
    account,
    audit_of,
    begun,
    by_incident,
    facts_of,
    facts_of_groups,
    followed,
    return_to,
)
from monitor.decide.rules import Reload
from monitor.metrics import Instruments
from monitor.model.config import KeeperConfig
from monitor.model.eviction import DecisionRow, DecisionState, Eviction, QuarantineEvent, Remembered
from monitor.model.incident import Incident
from monitor.model.names import MANUAL, GroupName, IncidentId
from monitor.model.observation import Pause, Snapshot
from monitor.model.plain import to_plain
from monitor.model.verdict import Kind
from monitor.store.audit_log import OURSELVES, Line, LogFile
from monitor.store.store import Store

_LATE_S: Final = 30.0
"""The fleet that an eviction by hand found is counted so soon, or not at all."""
_LOG_S: Final = 0.5
"""An eviction waits for its line in the log no longer."""


class Auditor:
    """The audit."""

    def __init__(
        self,
        store: Store,
        instruments: Instruments,
        config: KeeperConfig,
        remembered: Remembered,
        log: LogFile | None = None,
    ) -> None:
        self._store = store
        self._instruments = instruments
        self._log = log
        self._lock = threading.Lock()
        self._audit = audit_of(remembered, config)
        self._open: set[IncidentId] = set()
        """Incidents whose account may still change."""
        self._settled: set[IncidentId] = set()
        """Those of which nothing can change."""
        self._known: dict[tuple[IncidentId, float], Eviction] = {
            (one.incident_id, one.of_s): one for one in remembered.taken_up
        }

        self._authors: dict[IncidentId, str] = {}
        """Who asked for an eviction by hand."""
        self._accused: dict[GroupName, IncidentId] = {}
        """Groups that an open incident accuses."""
        self._told: tuple[str, float | None] | None = None
        self._pause: Pause | None = None
        self._looked = False
        """Whether it is known what was paused before: a restart presses no switch."""

    @property
    def audit(self) -> IncidentAudit:
        """As they stand."""
        return self._audit

    def took_place(
        self,
        snapshot: Snapshot,
        changed: Sequence[Incident],
        before: Mapping[IncidentId, Incident],
    ) -> None:
        """One tick: what changed, how evictions go on, whether it is paused."""
        for incident in changed:
            self._note(snapshot, incident)
        for progress in snapshot.evictions:
            if progress.incident_id.startswith(MANUAL):
                self._note_by_hand(snapshot, progress)
        found: list[Line] = []
        for incident in changed:
            found += lines.moves(before.get(incident.id), incident)
        found += self._evictions(snapshot)
        if self._looked:
            found += lines.paused(self._pause, snapshot.pause, snapshot.now_s)
        self._pause, self._looked = snapshot.pause, True
        found.sort(key=lambda line: float(line["at_s"]))
        self._write(found, wait=False)

    def decided(self, row: DecisionRow, incident: Incident | None) -> None:
        """A decision, or how far one came; an eviction waits for the line of its own."""
        groups = "" if incident is None else ", ".join(incident.groups)
        group = str(row.body.get("group", groups))
        if incident is None and row.action == "evict":
            self._authors[row.incident_id] = row.author
        self._write(list(lines.decision(row, group)), wait=row.state is DecisionState.DECIDED)

    def quarantined(self, event: QuarantineEvent) -> None:
        """The list changed: from any thread, and in the middle of that."""
        told = event.id, event.until_s
        if told == self._told:  # said twice: the second time when its end was known
            return
        self._told = told
        self._write(list(lines.quarantine(event)), wait=False)

    def reloaded(self, seen: Reload) -> None:
        """The policy was read anew, or refused: from any thread."""
        self._write([lines.reload(seen)], wait=True)

    def adopt(self, remembered: Remembered) -> None:
        """Go on from what the store holds: at the start, and from another monitor."""
        with self._lock:
            self._audit = audit_of(remembered, self._audit.config)
            self._open, self._settled = set(), set()
            self._known = {(one.incident_id, one.of_s): one for one in remembered.taken_up}

    def count(
        self,
        incidents: Iterable[Incident],
        decisions: Mapping[IncidentId, Sequence[DecisionRow]],
        now_s: float,
    ) -> None:
        """Count each account once, when nothing of it can change any more.

        Those that were complete when this monitor started were counted by an earlier one.
        """
        self._accused = {
            group: one.id
            for one in incidents
            if one.open and one.kind is not Kind.BY_HAND
            for group in one.groups
        }
        for incident in incidents:
            if incident.milestones.firing_s is None or incident.id in self._settled:
                continue
            case = self._audit.case(incident, decisions.get(incident.id, ()), now_s)
            one = account(case)
            if not one.final:
                self._open.add(incident.id)
                continue
            self._settled.add(incident.id)
            if incident.id in self._open:
                self._tell(case, one)
        self._forget(incidents)

    @property
    def lines_waiting(self) -> int:
        """Lines that the log has not written yet."""
        return 0 if self._log is None else self._log.waiting

    def troubles(self) -> Iterator[str]:
        """What is wrong with the log."""
        if self._log is not None and self._log.trouble is not None:
            yield self._log.trouble

    # -- inside -------------------------------------------------------------------------------

    def _note(self, snapshot: Snapshot, incident: Incident) -> None:
        """What nobody could tell later: ranks and hosts at firing, hosts at the return."""
        if incident.milestones.firing_s is None:
            return
        known = self._audit.facts.get(incident.id)
        facts = known
        if facts is None and incident.open:
            facts = facts_of(snapshot, incident, self._came_of(snapshot, incident))
        if facts is not None and not facts.back_on and incident.milestones.rejoined_s is not None:
            facts = return_to(facts, snapshot, incident.groups)
        if facts is not None and facts != known:
            self._keep_facts(incident.id, facts)

    def _note_by_hand(self, snapshot: Snapshot, progress: Eviction) -> None:
        """The same of an eviction that a person asked for, which no incident follows."""
        key, audit = progress.incident_id, self._audit
        facts, known = audit.facts.get(key), audit.aftermaths.get(key)
        if facts is None:
            if snapshot.now_s - progress.asked_s > _LATE_S:
                return  # of an earlier version: the fleet of then cannot be told from today's
            within = self._accused.get(progress.group)
            facts = facts_of_groups(snapshot, {progress.group}, within)
            self._keep_facts(key, facts)
        if known is not None and (known.over or snapshot.now_s > self._until_s(progress)):
            return
        after = followed(known or begun(snapshot, progress), snapshot, progress)
        if after != known:
            with self._lock:
                noted = {**self._audit.aftermaths, key: after}
                self._audit = replace(self._audit, aftermaths=noted)
            self._store.save_audit(key, AFTERMATH, to_plain(after))
        if after.rejoined_s is not None and not facts.back_on:
            self._keep_facts(key, return_to(facts, snapshot, {progress.group}))

    def _came_of(self, snapshot: Snapshot, incident: Incident) -> IncidentId | None:
        """The eviction by hand that a fault of the same group came of: its processes died, then."""
        for one in snapshot.evictions:
            after = self._audit.aftermaths.get(one.incident_id)
            back = after is not None and after.rejoined_s is not None
            mine = one.incident_id.startswith(MANUAL) and incident.groups == (one.group,)
            began_s = incident.milestones.first_seen_s
            if mine and not back and one.asked_s <= began_s <= self._until_s(one):
                return one.incident_id
        return None

    def _until_s(self, progress: Eviction) -> float:
        return progress.asked_s + self._audit.config.follow_s

    def _keep_facts(self, incident_id: IncidentId, facts: FleetFacts) -> None:
        with self._lock:
            noted = {**self._audit.facts, incident_id: facts}
            self._audit = replace(self._audit, facts=noted)
        self._store.save_audit(incident_id, FACTS, to_plain(facts))

    def _evictions(self, snapshot: Snapshot) -> Iterator[Line]:
        changed = False
        for progress in snapshot.evictions:
            key = progress.incident_id, progress.of_s
            old = self._known.get(key)
            if old == progress:
                continue
            changed, self._known[key] = True, progress
            by = self._author(progress.incident_id)
            yield from lines.rungs(old, progress, by, snapshot.now_s)
        if changed:
            with self._lock:
                self._audit = replace(self._audit, evictions=by_incident(self._known.values()))

    def _author(self, incident_id: IncidentId) -> str:
        if not incident_id.startswith(MANUAL):
            return OURSELVES
        return self._authors.get(incident_id, "a person")

    def _write(self, found: Sequence[Line], *, wait: bool) -> None:
        if self._log is not None:
            self._log.put(*found)
            if wait:
                self._log.flush(_LOG_S)

    def _tell(self, case: AuditedIncident, one: IncidentAccount) -> None:
        self._instruments.count_account(
            str(case.incident.kind), lost=one.lost.low, saved=one.saved.low
        )

    def _forget(self, incidents: Iterable[Incident]) -> None:
        """IncidentAudit of incidents that nobody shows any more; the store keeps them."""
        shown = {incident.id for incident in incidents}
        self._open &= shown - self._settled
        self._settled &= shown
        audit = self._audit
        gone = [key for key in audit.facts if key not in shown]
        keys = [key for key in self._known if key[0] not in shown]
        keys = [key for key in keys if not key[0].startswith(MANUAL)]
        for key in keys:
            del self._known[key]
        if gone or keys:
            with self._lock:
                self._audit = replace(
                    self._audit,
                    facts={key: one for key, one in self._audit.facts.items() if key in shown},
                    aftermaths={k: one for k, one in self._audit.aftermaths.items() if k in shown},
                    evictions=by_incident(self._known.values()),
                )
