"""What must survive the monitor: SQLite in WAL mode, one file.

Theory of operation. Every write is an idempotent upsert or delete by primary key. It goes into
`_pending` (the latest value for each key wins); a thread of its own writes all of `_pending` in
one transaction whenever `flush` asks, and `flush` waits for it, but not for ever. When the disk
is full or gone the transaction fails, is counted, and the writes stay pending for the next
flush; when it hangs, so does that one thread. Nothing is lost while the process lives. Only
opening the store raises: a monitor that cannot remember does not start.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from monitor.incident import Incident, incident_from_json, incident_to_json
from monitor.names import Host, IncidentId, RankName
from monitor.policy import Decision, Evict
from monitor.snapshot import EvictionProgress
from monitor.store.file import StoreError, claim, open_file, write_row
from monitor.store.rows import (
    DecisionRow,
    QuarantineEntry,
    Remembered,
    eviction_from_json,
    eviction_to_json,
)

FLUSH_S: Final = 1.0
"""Longer waits for slower disks; shorter keeps the tick on time when the disk hangs."""

Key = tuple[str, tuple[Any, ...]]
"""Table and primary key."""


class Store:
    """The store. Safe to use from any thread; close it when done."""

    def __init__(self, path: Path) -> None:
        """Open or make the store.

        Raises:
            StoreError: it cannot be written, is not ours, is damaged, or is in use.
        """
        self.path = path
        self.errors = 0
        """Flushes that failed since the start."""
        self.last_error: str | None = None
        self._changed = threading.Condition()
        self._pending: dict[Key, Mapping[str, Any] | None] = {}
        self._asked = 0
        self._done = 0
        self._closing = False
        self._disk = threading.Lock()
        self._guard = claim(path)
        try:
            self._db = open_file(path)
        except BaseException:
            self._guard.close()
            raise
        self._writer = threading.Thread(target=self._write_on, name="store", daemon=True)
        self._writer.start()

    def close(self) -> None:
        """Write what is pending and let go of the file."""
        self.flush()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._writer.join(FLUSH_S)
        if not self._writer.is_alive():
            self._db.close()
            self._guard.close()

    @property
    def pending(self) -> int:
        """Writes that wait for a working disk."""
        with self._changed:
            return len(self._pending)

    # -- writing ------------------------------------------------------------------------------

    def save_incidents(self, incidents: Sequence[Incident]) -> None:
        """Remember incidents and their stories."""
        for incident in incidents:
            body = json.dumps(incident_to_json(incident))
            row = {
                "state": str(incident.state),
                "first_seen_s": incident.milestones.first_seen_s,
                "body": body,
            }
            self._put("incidents", {"id": incident.id}, row)
            for line in incident.story:
                key = {"incident_id": incident.id, "at_s": line.at_s, "to_state": line.to}
                self._put("transitions", key, {"reason": line.reason})

    def save_decision(self, decision: Decision, at_s: float) -> DecisionRow:
        """Remember a decision; `flush` before it is carried out."""
        guard = None if isinstance(decision, Evict) else str(decision.guard)
        action = "evict" if isinstance(decision, Evict) else "hold"
        row = DecisionRow(decision.incident_id, at_s, action, guard, decision.reason)
        body: dict[str, Any] = {}
        if isinstance(decision, Evict):
            body = {
                "group": decision.group,
                "replica_id": decision.replica_id,
                "quarantine": list(decision.quarantine),
            }
        self._put(
            "decisions",
            {"incident_id": row.incident_id, "at_s": at_s, "action": action},
            {"guard": guard, "reason": row.reason, "body": json.dumps(body)},
        )
        return row

    def save_eviction(self, progress: EvictionProgress) -> None:
        """Remember how far an eviction came."""
        key = {"incident_id": progress.incident_id, "asked_s": progress.asked_s}
        self._put("evictions", key, {"body": json.dumps(eviction_to_json(progress))})

    def save_quarantine(self, entry: QuarantineEntry) -> None:
        """Remember a quarantined host."""
        row = {
            "reason": entry.reason,
            "author": entry.author,
            "since_s": entry.since_s,
            "until_s": entry.until_s,
            "incident_id": entry.incident_id,
        }
        self._put("quarantine", {"host": entry.host}, row)

    def drop_quarantine(self, host: Host) -> None:
        """Forget a quarantined host."""
        self._put("quarantine", {"host": host}, None)

    def save_target(self, rank: RankName, body: Mapping[str, Any]) -> None:
        """Remember a target."""
        self._put("targets", {"rank": rank}, {"body": json.dumps(body)})

    def drop_target(self, rank: RankName) -> None:
        """Forget a target."""
        self._put("targets", {"rank": rank}, None)

    def save_notice(self, sink: str, key: str, body: Mapping[str, Any] | None) -> None:
        """Remember what a sink was told; None forgets it."""
        row = None if body is None else {"body": json.dumps(body)}
        self._put("notices", {"sink": sink, "key": key}, row)

    def save_audit(self, incident_id: IncidentId, part: str, body: Mapping[str, Any]) -> None:
        """Remember what an incident's account needs."""
        key = {"incident_id": incident_id, "part": part}
        self._put("audit", key, {"body": json.dumps(body)})

    def _put(self, table: str, key: Mapping[str, Any], row: Mapping[str, Any] | None) -> None:
        with self._changed:
            self._pending[table, tuple(key.items())] = row

    def flush(self, wait_s: float = FLUSH_S) -> bool:
        """Write what is pending; False when the disk has not taken it (it stays pending)."""
        with self._changed:
            if not self._pending:
                return True
            self._asked += 1
            mine = self._asked
            self._changed.notify_all()
            written = self._changed.wait_for(lambda: self._done >= mine, wait_s)
            if not written:
                self.last_error = f"the disk has not answered for {wait_s:g} s"
            return written and self.last_error is None

    def _write_on(self) -> None:
        """The writer thread."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._asked > self._done)
                if self._asked == self._done:
                    return
                asked, batch = self._asked, dict(self._pending)
            problem = self._try(batch)
            with self._changed:
                self._done, self.last_error = asked, problem
                self.errors += problem is not None
                if problem is None:
                    for key, row in batch.items():
                        if self._pending.get(key) is row:  # not changed meanwhile
                            self._pending.pop(key, None)
                self._changed.notify_all()

    def _try(self, batch: Mapping[Key, Mapping[str, Any] | None]) -> str | None:
        """One transaction; why it failed."""
        try:
            with self._disk, self._db:
                for (table, key), row in batch.items():
                    write_row(self._db, table, dict(key), row)
        except sqlite3.Error as exc:
            return str(exc)
        return None

    # -- reading, at start --------------------------------------------------------------------

    def remembered(self) -> Remembered:
        """Everything that was saved before.

        Raises:
            StoreError: the file cannot be read.
        """
        try:
            with self._disk:
                return self._remembered()
        except sqlite3.Error as exc:
            raise StoreError(f"cannot read store {self.path}: {exc}") from exc

    def _remembered(self) -> Remembered:
        def rows(sql: str) -> list[tuple[Any, ...]]:
            return self._db.execute(sql).fetchall()

        incidents = []
        for (body,) in rows("SELECT body FROM incidents ORDER BY first_seen_s DESC, id DESC"):
            try:
                incidents.append(incident_from_json(json.loads(body)))
            except (ValueError, KeyError, TypeError):
                self.errors += 1  # one unreadable row is no reason to forget the others
        return Remembered(
            incidents=tuple(incidents),
            decisions=tuple(
                DecisionRow(IncidentId(row[0]), *row[1:])
                for row in rows(
                    "SELECT incident_id, at_s, action, guard, reason FROM decisions ORDER BY at_s"
                )
            ),
            evictions=tuple(
                eviction_from_json(json.loads(body))
                for (body,) in rows("SELECT body FROM evictions ORDER BY asked_s")
            ),
            quarantine=tuple(
                QuarantineEntry(*row)
                for row in rows(
                    "SELECT host, reason, author, since_s, until_s, incident_id"
                    " FROM quarantine ORDER BY host"
                )
            ),
            targets=tuple(json.loads(b) for (b,) in rows("SELECT body FROM targets ORDER BY rank")),
            notices=tuple(
                (sink, key, json.loads(body))
                for sink, key, body in rows("SELECT sink, key, body FROM notices ORDER BY key")
            ),
            audit=tuple(
                (IncidentId(incident_id), part, json.loads(body))
                for incident_id, part, body in rows(
                    "SELECT incident_id, part, body FROM audit ORDER BY incident_id, part"
                )
            ),
        )
