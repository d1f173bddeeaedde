"""The SQLite file: claimed, opened, checked, and written row by row."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

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
CREATE TABLE IF NOT EXISTS audit (
    incident_id TEXT, part TEXT, body TEXT NOT NULL, PRIMARY KEY (incident_id, part));
"""


class StoreError(Exception):
    """The store cannot be opened; the message is one line for a person."""


def claim(path: Path) -> IO[str]:
    """A lock file beside the store: two monitors on one store would both evict.

    Raises:
        StoreError: it cannot be written, or another monitor holds it.
    """
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


def open_file(path: Path) -> sqlite3.Connection:
    """The database, made if there is none.

    Raises:
        StoreError: it cannot be written, is not ours, or is damaged.
    """
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
        for table in ("transitions", "decisions", "evictions", "audit"):
            db.execute(
                f"DELETE FROM {table} WHERE incident_id NOT IN (SELECT id FROM incidents)"  # noqa: S608
                " AND incident_id NOT LIKE 'manual-%'"
            )


def write_row(
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
