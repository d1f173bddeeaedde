"""The database: opened, checked, and written row by row, each batch under the fence of a lease.

SQLite for one host, PostgreSQL for several, through SQLAlchemy Core. Imported only when a store is
opened: SQLAlchemy takes as long to import as all the rest of the monitor.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    and_,
    create_engine,
    delete,
    event,
    exc,
    make_url,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from monitor.store.migrate import SCOPE, prepare
from monitor.store.place import Place, StoreError
from monitor.store.rows import Fence
from monitor.store.tables import DECISIONS, EVICTIONS, INCIDENTS, LEASE, METADATA, TRANSITIONS

log = logging.getLogger(__name__)

RESOLVED_KEPT: Final = 5000
"""Resolved incidents kept; older ones are deleted at start. About 4 KiB each."""

Row = Mapping[str, Any]
Key = tuple[str, tuple[Any, ...]]
"""Table and primary key."""

_BUSY_S: Final = 0.25
_POSTGRES: Final = {
    # a monitor that is stopped in the middle of a transaction holds its locks: not for ever
    "statement_timeout": 2000,
    "lock_timeout": 1500,
    "idle_in_transaction_session_timeout": 2000,
}
"""Milliseconds. All are below the lease's 5 s, so that a handover need not wait for the dead."""
_CONNECT: Final = {
    "connect_timeout": 2,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 3000,
    "application_name": "lightkeeper",
}


class Fenced(StoreError):  # noqa: N818 - an answer, not an accident
    """Another monitor holds the lease: nothing was written."""


class Database:
    """A database, from any thread. Close it when done.

    Raises:
        StoreError: it cannot be used.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._engine = _file_engine(place) if place.path is not None else _postgres_engine(place)
        try:
            prepare(self._engine, place)
        except StoreError:
            self.close()
            raise
        except exc.SQLAlchemyError as error:
            self.close()
            hint = " (move it away to start with an empty one)" if place.path is not None else ""
            raise StoreError(f"cannot use store {place}: {told(error)}{hint}") from None

    @property
    def engine(self) -> Engine:
        """For who needs more than batches: the lease, and tests."""
        return self._engine

    def close(self) -> None:
        """Let go of all connections."""
        self._engine.dispose()

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """One transaction.

        Raises:
            StoreError: the database says no, or is away.
        """
        try:
            with self._engine.begin() as db:
                yield db
        except exc.SQLAlchemyError as error:
            raise StoreError(told(error)) from None

    def write(self, batch: Mapping[Key, Row | None], fence: Fence | None) -> tuple[Key, ...]:
        """Upserts and deletes in one transaction; returns rows that no database would take.

        Raises:
            Fenced: `fence` is given and is not the lease's any more.
            StoreError: the database says no, or is away.
        """
        try:
            with self._engine.begin() as db:
                self._check(db, batch, fence)
                for (table, key), row in batch.items():
                    _write_row(db, table, dict(key), row)
        except (exc.DataError, exc.IntegrityError, exc.ProgrammingError, exc.InterfaceError):
            return self._write_singly(batch, fence)
        except exc.SQLAlchemyError as error:
            raise StoreError(told(error)) from None
        return ()

    def _write_singly(
        self, batch: Mapping[Key, Row | None], fence: Fence | None
    ) -> tuple[Key, ...]:
        """One bad row must not keep the others waiting for ever."""
        bad: list[Key] = []
        with self.begin() as db:
            self._check(db, batch, fence)
            for (table, key), row in batch.items():
                try:
                    with db.begin_nested():
                        _write_row(db, table, dict(key), row)
                except exc.OperationalError:
                    raise
                except exc.SQLAlchemyError as error:
                    log.warning("the store refuses a row of %s: %s", table, told(error))
                    bad.append((table, key))
        return tuple(bad)

    def _check(self, db: Connection, batch: Mapping[Key, Row | None], fence: Fence | None) -> None:
        if self.place.path is not None and any(table == DECISIONS.name for table, _ in batch):
            # a decision survives even a power cut; the rest may lose its last second
            db.exec_driver_sql("PRAGMA synchronous = FULL")
        if fence is None:
            return
        mine = and_(
            LEASE.c.scope == SCOPE, LEASE.c.holder == fence.holder, LEASE.c.epoch == fence.epoch
        )
        if db.execute(update(LEASE).where(mine).values(writes=LEASE.c.writes + 1)).rowcount != 1:
            raise Fenced("another monitor holds the lease: nothing is written from here")

    def rows(self, table: str, *columns: str, order: str) -> list[tuple[Any, ...]]:
        """All rows of a table, in the order of a column (`-column`: falling).

        Raises:
            StoreError: the database says no, or is away.
        """
        made = METADATA.tables[table]
        by = made.c[order.removeprefix("-")]
        asked = select(*(made.c[name] for name in columns))
        asked = asked.order_by(by.desc() if order.startswith("-") else by, *made.primary_key)
        with self.begin() as db:
            return [tuple(row) for row in db.execute(asked)]

    def prune(self) -> None:
        """Delete what is too old to be kept.

        Raises:
            StoreError: the database says no, or is away.
        """
        kept = (
            select(INCIDENTS.c.id)
            .where(INCIDENTS.c.state == "resolved")
            .order_by(INCIDENTS.c.first_seen_s.desc())
            .limit(RESOLVED_KEPT)
        )
        with self.begin() as db:
            old = and_(INCIDENTS.c.state == "resolved", INCIDENTS.c.id.not_in(kept))
            db.execute(delete(INCIDENTS).where(old))
            for table in (TRANSITIONS, DECISIONS, EVICTIONS):
                orphan = and_(
                    table.c.incident_id.not_in(select(INCIDENTS.c.id)),
                    table.c.incident_id.not_like("manual-%"),
                )
                db.execute(delete(table).where(orphan))


def told(error: exc.SQLAlchemyError) -> str:
    """What the database said, on one line: no statement, no values, no URL."""
    said = getattr(error, "orig", None) or error
    if isinstance(error, exc.StatementError) and not isinstance(error, exc.DBAPIError):
        said = f"{type(error.orig).__name__}: a value that cannot be stored"
    return " ".join(str(said).split())[:300]


def _write_row(db: Connection, table: str, key: Row, row: Row | None) -> None:
    made = METADATA.tables[table]
    if row is None:
        db.execute(delete(made).where(and_(*(made.c[name] == key[name] for name in key))))
        return
    values = {name: _storable(value) for name, value in {**key, **row}.items()}
    # both spell it alike, in modules of their own
    insert = postgresql.insert if db.dialect.name == "postgresql" else sqlite.insert
    made_new = insert(made).values(values)
    db.execute(
        made_new.on_conflict_do_update(
            index_elements=list(key), set_={name: made_new.excluded[name] for name in row}
        )
    )


def _storable(value: Any) -> Any:
    """PostgreSQL takes no NUL, and no database half a surrogate pair."""
    if not isinstance(value, str):
        return value
    return value.replace("\0", "\ufffd").encode(errors="replace").decode()


def _file_engine(place: Place) -> Engine:
    path = place.path
    assert path is not None  # noqa: S101 - the caller asked
    if path.is_dir():
        raise StoreError(f"store {path} is a directory, expected a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot write store {path}: {error.strerror}") from error
    if path.exists() and not os.access(path, os.W_OK):
        raise StoreError(f"cannot write store {path}: permission denied")
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        connect_args={"timeout": _BUSY_S, "check_same_thread": False},
        pool_timeout=1.0,
    )

    @event.listens_for(engine, "checkout")
    def _on_checkout(connection: Any, _record: Any, _proxy: Any) -> None:
        # a power cut may lose the last second, no more
        connection.execute("PRAGMA synchronous = NORMAL")

    return engine


def _postgres_engine(place: Place) -> Engine:
    try:
        import psycopg  # noqa: F401, PLC0415 - an extra: most monitors write to a file
    except ImportError:
        raise StoreError(
            "--store postgresql:// needs psycopg: pip install 'lightkeeper[postgres]'"
        ) from None
    try:
        url = make_url(place.url)
    except (exc.ArgumentError, ValueError):
        raise StoreError(
            "--store is not postgresql://USER@HOST:PORT/DATABASE (a password with @, / or : "
            "is written %40, %2F, %3A, or better in PGPASSFILE)"
        ) from None
    said = url.query.get("options", "")
    limits = " ".join(f"-c {name}={value}" for name, value in _POSTGRES.items())
    options = f"{said if isinstance(said, str) else ' '.join(said)} {limits}".strip()
    return create_engine(
        url.difference_update_query(["options"]),
        connect_args={**_CONNECT, "options": options},
        pool_pre_ping=True,
        pool_timeout=1.0,
        hide_parameters=True,
    )
