"""Makes a database ours: makes the tables, or brings those of an earlier version up to date.

Schema 1 (before two monitors could share a store) had no lease, decisions without a state, and a
quarantine of hosts only, whose rows move to a table that knows groups as well. Else a migration
only adds: tables that are missing, and columns, which are NULL in old rows. An earlier
lightkeeper refuses a store of a later schema, and says so.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Engine, delete, insert, inspect, select, text
from sqlalchemy.schema import CreateColumn

from monitor.store.place import Place, StoreError
from monitor.store.tables import (
    LEASE,
    METADATA,
    QUARANTINE,
    QUARANTINE_ENTRIES,
    SCHEMA,
    VERSION,
)

_KNOWN: Final = (1, SCHEMA)
_LOCK: Final = 0x6C6B  # "lk": of two monitors that start at once one migrates
_OPEN_MS: Final = 5000
"""How long one that starts waits for another that migrates."""
SCOPE: Final = "fleet"
"""One store serves one fleet, and has one lease."""


def prepare(engine: Engine, place: Place) -> None:
    """Make or migrate.

    Raises:
        StoreError: not ours, of a later version, or in use by an earlier one.
        sqlalchemy.exc.SQLAlchemyError: the database says no.
    """
    if place.path is None:
        with engine.begin() as db:
            db.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            there = inspect(db).has_table(VERSION.name)
            version = db.scalar(select(VERSION.c.version)) if there else None
            _bring_up(db, place, 0 if version is None else version)
            db.execute(delete(VERSION))
            db.execute(insert(VERSION).values(version=SCHEMA))
        return
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        _check_file(db, place)
        db.exec_driver_sql(f"PRAGMA busy_timeout = {_OPEN_MS}")
        db.exec_driver_sql("PRAGMA journal_mode = WAL")
        with _alone(db, place.path):
            _bring_up(db, place, _version(db))
            # also a write that proves that the disk takes one
            db.exec_driver_sql(f"PRAGMA user_version = {SCHEMA}")


def _check_file(db: Connection, place: Place) -> None:
    _refuse_others(place, _version(db))
    verdict = db.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
    if verdict != "ok":
        raise StoreError(f"cannot use store {place}: damaged: {verdict} (move it away ...)")


def _version(db: Connection) -> int:
    return int(db.exec_driver_sql("PRAGMA user_version").scalar_one())


@contextmanager
def _alone(db: Connection, path: Path) -> Iterator[None]:
    """One transaction; for schema 1 only when no monitor of that version holds the file."""
    guard = None
    if _version(db) == 1:
        guard = path.with_name(path.name + ".lock").open("a+")
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            guard.close()
            raise StoreError(
                f"store {path} is in use by a monitor of an earlier version: stop that first"
            ) from exc
    try:
        db.exec_driver_sql("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            db.exec_driver_sql("ROLLBACK")
            raise
        db.exec_driver_sql("COMMIT")
    finally:
        if guard is not None:
            guard.close()


def _bring_up(db: Connection, place: Place, version: int) -> None:
    _refuse_others(place, version)
    METADATA.create_all(db)
    seen = inspect(db)
    for table in METADATA.sorted_tables:
        known = {column["name"] for column in seen.get_columns(table.name)}
        for column in table.columns:
            if column.name not in known:
                said = CreateColumn(column).compile(dialect=db.dialect)
                db.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {said}")
    _move_hosts(db)
    if db.scalar(select(LEASE.c.epoch).where(LEASE.c.scope == SCOPE)) is None:
        db.execute(insert(LEASE).values(scope=SCOPE, epoch=0, beat=0, writes=0, ttl_s=0.0))


def _move_hosts(db: Connection) -> None:
    known = {name for (name,) in db.execute(select(QUARANTINE_ENTRIES.c.name))}
    for row in db.execute(select(QUARANTINE)).mappings().all():
        if row["host"] not in known:
            body = {"name": row["host"], "scope": "host", **row}
            key = {"scope": "host", "name": row["host"]}
            db.execute(insert(QUARANTINE_ENTRIES).values(**key, body=json.dumps(body)))
    db.execute(delete(QUARANTINE))


def _refuse_others(place: Place, version: int) -> None:
    if version not in (0, *_KNOWN):
        raise StoreError(
            f"store {place} has schema {version}, this lightkeeper writes {SCHEMA}: "
            "use the version that wrote it, or another --store"
        )
