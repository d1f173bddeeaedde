"""What must survive the monitor: SQLite in WAL mode, one file.

Theory of operation. Every write is an idempotent upsert or delete by primary key. It goes into
`_pending` (the latest value for each key wins); a thread of its own writes all of `_pending` in
one transaction whenever `flush` asks, and `flush` waits for it, but not for ever. When the disk
is full or gone the transaction fails, is counted, and the writes stay pending for the next
flush; when it hangs, so does that one thread. Nothing is lost while the process lives. Only
opening the store raises: a monitor that cannot remember does not start.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from monitor.incident import Incident, incident_from_json, incident_to_json
from monitor.names import GroupName, Host, IncidentId, RankName, ReplicaId
from monitor.policy import Decision, Evict
from monitor.snapshot import EvictionProgress, Rung, RungOutcome

SCHEMA: Final = 1
RESOLVED_KEPT: Final = 5000
"""Resolved incidents kept; older ones are deleted at start. About 4 KiB each."""

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS incidents (
    id TEXT PRIMARY KEY, state TEXT NOT NULL, first_seen_s REAL NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS transitions (
    incident_id TEXT, at_s REAL, to_state TEXT, reason TEXT NOT NULL,
    PRIMARY KEY (incident_id, at_s, to_state));
CREATE TABLE IF NOT EXISTS decisions (
    incident_id TEXT, at_s REAL, action TEXT, guard TEXT, reason TEXT NOT NULL,
    body TEXT NOT NULL, PRIMARY KEY (incident_id, at_s, action));
CREATE TABLE IF NOT EXISTS evictions (
    incident_id TEXT, asked_s REAL, body TEXT NOT NULL, PRIMARY KEY (incident_id, asked_s));
CREATE TABLE IF NOT EXISTS quarantine (
    host TEXT PRIMARY KEY, reason TEXT NOT NULL, author TEXT NOT NULL, since_s REAL NOT NULL,
    until_s REAL, incident_id TEXT);
CREATE TABLE IF NOT EXISTS targets (rank TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS notices (
    sink TEXT, key TEXT, body TEXT NOT NULL, PRIMARY KEY (sink, key));
"""

FLUSH_S: Final = 1.0
"""Longer waits for slower disks; shorter keeps the tick on time when the disk hangs."""

Key = tuple[str, tuple[Any, ...]]
"""Table and primary key."""


class StoreError(Exception):
    """The store cannot be opened; the message is one line for a person."""


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A decision as it is remembered."""

    incident_id: IncidentId
    at_s: float
    action: str
    """`evict` or `hold`."""
    guard: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """A host to which no group may come back."""

    host: Host
    reason: str
    author: str
    """`lightkeeper`, or who asked for it."""
    since_s: float
    until_s: float | None
    """None: until a person releases it."""
    incident_id: IncidentId | None


@dataclass(frozen=True, slots=True)
class Remembered:
    """Everything that an earlier monitor left."""

    incidents: tuple[Incident, ...] = ()
    """Newest first."""
    decisions: tuple[DecisionRow, ...] = ()
    evictions: tuple[EvictionProgress, ...] = ()
    quarantine: tuple[QuarantineEntry, ...] = ()
    targets: tuple[Mapping[str, Any], ...] = ()
    notices: tuple[tuple[str, str, Mapping[str, Any]], ...] = ()
    """Sink, key, and what it was told."""


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
        self._guard = _claim(path)
        try:
            self._db = _open(path)
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
                    _write(self._db, table, dict(key), row)
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
        )


def _claim(path: Path) -> IO[str]:
    """A lock file beside the store: two monitors on one store would both evict."""
    lock = path.with_name(path.name + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        guard = lock.open("a+")
    except OSError as exc:
        raise StoreError(f"cannot write store {path}: {exc.strerror}") from exc
    try:
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        guard.close()
        raise StoreError(f"store {path} is in use by another monitor") from exc
    return guard


def _open(path: Path) -> sqlite3.Connection:
    if path.is_dir():
        raise StoreError(f"store {path} is a directory, expected a file")
    if path.exists() and not os.access(path, os.W_OK):
        raise StoreError(f"cannot write store {path}: permission denied")
    try:
        db = sqlite3.connect(path, timeout=0.25, check_same_thread=False)
    except sqlite3.Error as exc:
        raise StoreError(f"cannot open store {path}: {exc}") from exc
    try:
        _prepare(db, path)
    except sqlite3.Error as exc:
        db.close()
        raise StoreError(
            f"cannot use store {path}: {exc} (move it away to start with an empty one)"
        ) from exc
    except StoreError:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version not in (0, SCHEMA):
        raise StoreError(
            f"store {path} has schema {version}, this lightkeeper writes {SCHEMA}: "
            "use the version that wrote it, or another --store"
        )
    (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise sqlite3.DatabaseError(f"damaged: {verdict}")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")  # a power cut may lose the last second, no more
    db.executescript(_TABLES)
    with db:  # a write that proves that the disk takes one
        db.execute(f"PRAGMA user_version = {SCHEMA}")
        db.execute(
            "DELETE FROM incidents WHERE id IN (SELECT id FROM incidents"
            " WHERE state = 'resolved' ORDER BY first_seen_s DESC LIMIT -1 OFFSET ?)",
            (RESOLVED_KEPT,),
        )
        for table in ("transitions", "decisions", "evictions"):
            db.execute(
                f"DELETE FROM {table} WHERE incident_id NOT IN (SELECT id FROM incidents)"  # noqa: S608
                " AND incident_id NOT LIKE 'manual-%'"
            )


def _write(
    db: sqlite3.Connection, table: str, key: Mapping[str, Any], row: Mapping[str, Any] | None
) -> None:
    """One upsert or delete; table and column names are this module's own, never a caller's."""
    if row is None:
        where = " AND ".join(f"{name} = ?" for name in key)
        db.execute(f"DELETE FROM {table} WHERE {where}", tuple(key.values()))  # noqa: S608
        return
    columns = {**key, **row}
    marks = ", ".join("?" * len(columns))
    db.execute(
        f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) VALUES ({marks})",  # noqa: S608
        tuple(columns.values()),
    )


def eviction_to_json(progress: EvictionProgress) -> dict[str, Any]:
    """An eviction in plain JSON types, for the store and the API."""
    return {
        "incident_id": progress.incident_id,
        "group": progress.group,
        "replica_id": progress.replica_id,
        "asked_s": progress.asked_s,
        "rungs": [
            {
                "rung": str(rung.rung),
                "started_s": rung.started_s,
                "finished_s": rung.finished_s,
                "detail": rung.detail,
            }
            for rung in progress.rungs
        ],
        "gone_s": progress.gone_s,
        "left_quorum_s": progress.left_quorum_s,
        "failed": progress.failed,
    }


def eviction_from_json(body: Mapping[str, Any]) -> EvictionProgress:
    """Inverse of `eviction_to_json`."""
    replica_id = body["replica_id"]
    return EvictionProgress(
        incident_id=IncidentId(body["incident_id"]),
        group=GroupName(body["group"]),
        replica_id=None if replica_id is None else ReplicaId(replica_id),
        asked_s=body["asked_s"],
        rungs=tuple(
            RungOutcome(
                rung=Rung(rung["rung"]),
                started_s=rung["started_s"],
                finished_s=rung["finished_s"],
                detail=rung["detail"],
            )
            for rung in body["rungs"]
        ),
        gone_s=body["gone_s"],
        left_quorum_s=body["left_quorum_s"],
        failed=body["failed"],
    )
