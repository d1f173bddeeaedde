"""Makes the tables in a new database; refuses one of another schema, and says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import Connection, Engine, delete, insert, inspect, select, text

from monitor.store.place import Place, StoreError
from monitor.store.tables import LEASE, METADATA, SCHEMA, VERSION

_LOCK: Final = 0x6C6B  # "lk": of two monitors that start at once one makes the tables
_OPEN_MS: Final = 5000
"""How long one that starts waits for the other."""
SCOPE: Final = "fleet"
"""One store serves one fleet, and has one lease."""


def prepare(engine: Engine, place: Place) -> None:
    """Make the tables that are missing.

    Raises:
        StoreError: not ours, or of another schema.
        sqlalchemy.exc.SQLAlchemyError: the database says no.
    """
    if place.path is None:
        with engine.begin() as db:
            db.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            there = inspect(db).has_table(VERSION.name)
            _refuse_others(place, (db.scalar(select(VERSION.c.version)) if there else None) or 0)
            _make(db)
            db.execute(delete(VERSION))
            db.execute(insert(VERSION).values(version=SCHEMA))
        return
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        _refuse_others(place, int(db.exec_driver_sql("PRAGMA user_version").scalar_one()))
        verdict = db.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
        if verdict != "ok":
            raise StoreError(f"cannot use store {place}: damaged: {verdict} (move it away ...)")
        db.exec_driver_sql(f"PRAGMA busy_timeout = {_OPEN_MS}")
        db.exec_driver_sql("PRAGMA journal_mode = WAL")
        with _alone(db):
            _make(db)
            # also a write that proves that the disk takes one
            db.exec_driver_sql(f"PRAGMA user_version = {SCHEMA}")


@contextmanager
def _alone(db: Connection) -> Iterator[None]:
    """One transaction."""
    db.exec_driver_sql("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.exec_driver_sql("ROLLBACK")
        raise
    db.exec_driver_sql("COMMIT")


def _make(db: Connection) -> None:
    METADATA.create_all(db)
    if db.scalar(select(LEASE.c.epoch).where(LEASE.c.scope == SCOPE)) is None:
        db.execute(insert(LEASE).values(scope=SCOPE, epoch=0, beat=0, writes=0, ttl_s=0.0))


def _refuse_others(place: Place, version: int) -> None:
    if version not in (0, SCHEMA):
        raise StoreError(
            f"store {place} has schema {version}, this lightkeeper writes {SCHEMA}: "
            "use the version that wrote it, or another --store"
        )
