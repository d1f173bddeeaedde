"""Keeps the books of every incident while it happens, counts them, and writes the audit log."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from monitor.audit import lines
from monitor.audit.account import Account, account
from monitor.audit.books import FACTS, REVIEW, Books, books_of, by_incident
from monitor.audit.case import Terms
from monitor.audit.facts import (
    facts_of,
    facts_to_json,
    with_return,
)
from monitor.audit.logfile import LogFile
from monitor.audit.review import Review, review_to_json
from monitor.incident import Incident
from monitor.metrics import Instruments
from monitor.names import IncidentId
from monitor.snapshot import EvictionProgress, Pause, Snapshot
from monitor.store import DecisionRow, DecisionState, QuarantineEvent, Remembered

BY_HAND: Final = "manual-"
"""How the ids of evictions begin that a person asked for."""
_LOG_S: Final = 0.5
"""An eviction waits for its line in the log no longer."""


class Desk(Protocol):
    """Where the books are kept."""

    def save_audit(self, incident_id: IncidentId, part: str, body: Mapping[str, Any]) -> None:
        """Write one part of one incident's books."""
        ...


class Auditor:
    """The books. One thread ticks; reviews come from any."""

    def __init__(
        self,
        desk: Desk,
        instruments: Instruments,
        terms: Terms,
        remembered: Remembered,
        log: LogFile | None = None,
    ) -> None:
        self._desk = desk
        self._instruments = instruments
        self._log = log
        self._lock = threading.Lock()
        self._books = books_of(remembered, terms)
        self._open: set[IncidentId] = set()
        """Incidents whose account may still change."""
        self._settled: set[IncidentId] = set()
        """Those of which nothing can change but by a review."""
        self._known: dict[tuple[IncidentId, float], EvictionProgress] = {
            (one.incident_id, one.of_s): one for one in remembered.evictions
        }

        self._told: tuple[str, float | None] | None = None
        self._pause: Pause | None = None
        self._looked = False
        """Whether it is known what was paused before: a restart presses no switch."""

    @property
    def books(self) -> Books:
        """As they stand."""
        return self._books

    def took_place(
        self,
        snapshot: Snapshot,
        changed: Sequence[Incident],
        before: Mapping[IncidentId, Incident],
    ) -> None:
        """One tick: what changed, how evictions go on, whether it is paused."""
        for incident in changed:
            self._note(snapshot, incident)
        found: list[lines.Line] = []
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
        self._write(list(lines.decision(row, group)), wait=row.state is DecisionState.DECIDED)

    def quarantined(self, event: QuarantineEvent) -> None:
        """The list changed: from any thread, and in the middle of that."""
        told = event.id, event.until_s
        if told == self._told:  # said twice: the second time when its end was known
            return
        self._told = told
        self._write(list(lines.quarantine(event)), wait=False)

    def adopt(self, remembered: Remembered) -> None:
        """Go on from what the store holds: at the start, and from another monitor."""
        with self._lock:
            self._books = books_of(remembered, self._books.terms)
            self._open, self._settled = set(), set()
            self._known = {(one.incident_id, one.of_s): one for one in remembered.evictions}

    def review(self, incident_id: IncidentId, said: Review) -> None:
        """A person judged."""
        with self._lock:
            reviews = {**self._books.reviews, incident_id: said}
            self._books = replace(self._books, reviews=reviews)
        self._desk.save_audit(incident_id, REVIEW, review_to_json(said))
        self._write([lines.review(incident_id, said)], wait=True)

    def count(
        self,
        incidents: Iterable[Incident],
        decisions: Mapping[IncidentId, Sequence[DecisionRow]],
        now_s: float,
    ) -> None:
        """Count each account once, when nothing of it can change any more.

        Those that were complete when this monitor started were counted by an earlier one.
        """
        for incident in incidents:
            if incident.milestones.firing_s is None or incident.id in self._settled:
                continue
            one = account(self._books.case(incident, decisions.get(incident.id, ()), now_s))
            if not one.final:
                self._open.add(incident.id)
                continue
            self._settled.add(incident.id)
            if incident.id in self._open:
                self._tell(incident, one)
        self._forget(incidents)

    def troubles(self) -> Iterator[str]:
        """What is wrong with the log."""
        if self._log is not None and self._log.trouble is not None:
            yield self._log.trouble

    # -- inside -------------------------------------------------------------------------------

    def _note(self, snapshot: Snapshot, incident: Incident) -> None:
        """What nobody could tell later: ranks and hosts at firing, hosts at the return."""
        if incident.milestones.firing_s is None:
            return
        known = self._books.facts.get(incident.id)
        facts = known
        if facts is None and incident.open:
            facts = facts_of(snapshot, incident)
        if facts is not None and not facts.back_on and incident.milestones.rejoined_s is not None:
            facts = with_return(facts, snapshot, incident)
        if facts is not None and facts != known:
            with self._lock:
                noted = {**self._books.facts, incident.id: facts}
                self._books = replace(self._books, facts=noted)
            self._desk.save_audit(incident.id, FACTS, facts_to_json(facts))

    def _evictions(self, snapshot: Snapshot) -> Iterator[lines.Line]:
        changed = False
        for progress in snapshot.evictions:
            key = progress.incident_id, progress.of_s
            old = self._known.get(key)
            if old == progress:
                continue
            changed, self._known[key] = True, progress
            by = "a person" if progress.incident_id.startswith(BY_HAND) else lines.OURSELVES
            yield from lines.rungs(old, progress, by, snapshot.now_s)
        if changed:
            with self._lock:
                self._books = replace(self._books, evictions=by_incident(self._known.values()))

    def _write(self, found: Sequence[lines.Line], *, wait: bool) -> None:
        if self._log is not None:
            self._log.put(*found)
            if wait:
                self._log.flush(_LOG_S)

    def _tell(self, incident: Incident, one: Account) -> None:
        weight = self._books.terms.weight
        self._instruments.count_account(
            str(incident.kind),
            lost=None if one.lost.low is None else one.lost.low / weight,
            saved=None if one.saved.low is None else one.saved.low / weight,
        )

    def _forget(self, incidents: Iterable[Incident]) -> None:
        """Books of incidents that nobody shows any more; the store keeps them."""
        shown = {incident.id for incident in incidents}
        self._open &= shown - self._settled
        self._settled &= shown
        books = self._books
        gone = [key for key in (*books.facts, *books.reviews) if key not in shown]
        keys = [key for key in self._known if key[0] not in shown]
        keys = [key for key in keys if not key[0].startswith(BY_HAND)]
        for key in keys:
            del self._known[key]
        if gone or keys:
            with self._lock:
                self._books = replace(
                    self._books,
                    facts={key: one for key, one in self._books.facts.items() if key in shown},
                    reviews={key: one for key, one in self._books.reviews.items() if key in shown},
                    evictions=by_incident(self._known.values()),
                )
