"""The database: opens and checks it, and writes batches of rows under the fence of a lease.

SQLite for one host, PostgreSQL for several, through SQLAlchemy Core. This module is imported only
when a store is opened: importing SQLAlchemy takes as long as importing the rest of the monitor.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    URL,
    Column,
    ColumnElement,
    Connection,
    Double,
    Engine,
    Integer,
    MetaData,
    Table,
    Text,
    and_,
    bindparam,
    create_engine,
    delete,
    event,
    exc,
    insert,
    inspect,
    make_url,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from lightkeeper.monitor.model.eviction import Fence
from lightkeeper.monitor.model.names import one_line
from lightkeeper.monitor.store.place import Gone, LeaseRow, StoreError, StorePlace

# -- tables ------------------------------------------------------------------------------------
# `records` holds all that is remembered, one value a row as JSON; `lease` says which monitor acts.

SCHEMA: Final = 6

METADATA: Final = MetaData()

RECORDS: Final = Table(
    "records", METADATA,
    Column("kind", Text, primary_key=True), Column("key", Text, primary_key=True),
    Column("at_s", Double, nullable=False), Column("body", Text, nullable=False),
)  # fmt: skip
LEASE: Final = Table(
    "lease", METADATA, Column("scope", Text, primary_key=True),
    *(Column(name, Integer, nullable=False) for name in ("epoch", "beat", "writes")),
    Column("holder", Text), Column("url", Text), Column("since_s", Double),
    Column("ttl_s", Double, nullable=False),
)  # fmt: skip
VERSION: Final = Table("lightkeeper_schema", METADATA, Column("version", Integer, primary_key=True))
"""Has one row in PostgreSQL; a SQLite file has its own field for the version (`user_version`)."""
DECISIONS: Final = "decisions"
TARGETS: Final = "targets"
"""Kinds that are written in their own way."""


# -- migrate -----------------------------------------------------------------------------------

_LOCK: Final = 0x6C6B  # "lk": of two monitors that start at once, only one makes the tables
_OPEN_MS: Final = 5000
"""How long a starting monitor waits while another one prepares the same file."""
_AGAIN_S: Final = 0.02
_TARGETS_AT_ONCE: Final = 250
"""Targets written in one transaction, which takes about 25 ms."""
_PAUSE_S: Final = 0.02
"""Pause between two such transactions; a process waiting for the file retries within 0.1 s."""
SCOPE: Final = "fleet"
"""One store serves one fleet, and has one lease."""


def prepare(engine: Engine, place: StorePlace) -> None:
    """Make the tables that are missing.

    Raises:
        StoreError: not ours, or of another schema.
        sqlalchemy.exc.SQLAlchemyError: the database says no.
    """
    if place.path is None:
        with engine.begin() as db:
            db.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            made = inspect(db).has_table(VERSION.name)
            _refuse_others(place, (db.scalar(select(VERSION.c.version)) if made else None) or 0)
            _make(db)
            db.execute(delete(VERSION))
            db.execute(insert(VERSION).values(version=SCHEMA))
        return None
    until_s = time.monotonic() + _OPEN_MS / 1000
    while True:
        try:
            return _prepare_file(engine, place)
        except exc.OperationalError as error:
            # another monitor prepares it: SQLite does not wait while the journal mode changes; or
            # one still has the side files of a store that was moved away, and is about to let go
            passes = any(words in str(error.orig) for words in ("locked", _IO_ERROR))
            if not passes or time.monotonic() >= until_s:
                raise
            engine.dispose()
            time.sleep(_AGAIN_S)


def _prepare_file(engine: Engine, place: StorePlace) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
        _refuse_others(place, int(db.exec_driver_sql("PRAGMA user_version").scalar_one()))
        verdict = db.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
        _refuse_foreign(place, inspect(db).get_table_names())
        if verdict != "ok":
            raise StoreError(f"cannot use store {place}: damaged: {verdict}{_MOVE}")
        db.exec_driver_sql("PRAGMA journal_mode = WAL")
        with _alone(db):
            _make(db)
            # this also proves that the disk accepts a write
            db.exec_driver_sql(f"PRAGMA user_version = {SCHEMA}")


@contextmanager
def _alone(db: Connection) -> Iterator[None]:
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


def _refuse_others(place: StorePlace, version: int) -> None:
    if version not in (0, SCHEMA):
        raise StoreError(
            f"store {place} has schema {version}, this lightkeeper writes {SCHEMA}: "
            "use the version that wrote it, or another --store"
        )


def _refuse_foreign(place: StorePlace, tables: Sequence[str]) -> None:
    if tables and VERSION.name not in tables:
        some = one_line(", ".join(sorted(tables)), 100)
        raise StoreError(f"cannot use store {place}: another program's database (it has {some})")


# -- database ----------------------------------------------------------------------------------

log = logging.getLogger(__name__)

Row = tuple[float, str]
"""What rows of its kind are ordered by, and the value as JSON."""
Key = tuple[str, str]
"""Kind, and what identifies it among those."""

_SIDES: Final = ("-wal", "-shm", "-journal")
"""SQLite's own files beside a database: it would follow links there, too."""
_IO_ERROR: Final = "disk I/O error"
_MOVE: Final = " (move it away to start with an empty one)"
_HINTS: Final = {
    "malformed": _MOVE,
    _IO_ERROR: ": the disk fails, or another monitor runs on a file that was moved from here (stop "
    "it first)",
}
"""What a person may do, by a part of SQLite's message."""
_BUSY_S: Final = 0.25
_POSTGRES: Final = {
    # a monitor that is stopped in the middle of a transaction must not hold its locks forever
    "statement_timeout": 2000,
    "lock_timeout": 1500,
    "idle_in_transaction_session_timeout": 2000,
}
"""Milliseconds. All are below the lease's 5 s, so a handover never waits for a dead monitor."""
_CONNECT: Final = {
    "connect_timeout": 2,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 3000,
    "application_name": "lightkeeper",
}


_BAD_ROW: Final = (exc.DataError, exc.IntegrityError, exc.ProgrammingError, exc.InterfaceError)


class BadRow(StoreError):  # noqa: N818 - an answer, not an accident
    """A row of the batch can never be stored."""


class Database:
    """A database. Safe to use from any thread; close it when done.

    Raises:
        StoreError: it cannot be used.
    """

    def __init__(self, place: StorePlace) -> None:
        self.place = place
        self._file: tuple[int, int] | None = None
        self.gone: str | None = None
        """That its file was moved or deleted, since that was seen."""
        path = place.path
        self.engine = _postgres_engine(place) if path is None else _file_engine(place, path)
        try:
            prepare(self.engine, place)
        except StoreError:
            self.close()
            raise
        except exc.SQLAlchemyError as error:
            self.close()
            said = message_of(error)
            hint = next((hint for words, hint in _HINTS.items() if words in said), "")
            raise StoreError(f"cannot use store {place}: {said}{hint}") from None
        self._file = self._at_its_place()

    def _at_its_place(self) -> tuple[int, int] | None:
        """Which file has the store's name; None: none, or no file is the store."""
        try:
            there = None if self.place.path is None else self.place.path.lstat()
        except OSError:
            return None
        return None if there is None else (there.st_dev, there.st_ino)

    def _expect_file(self) -> None:
        """Check that what is written goes where the next monitor will look for it.

        Raises:
            Gone: it does not.
        """
        self.gone = None
        if self._file is not None and self._at_its_place() != self._file:
            self.gone = f"store {self.place} was moved or deleted: start this monitor again"
            self.engine.dispose()  # lets go of the side files, which the next one needs
            raise Gone(self.gone)

    @property
    def lease(self) -> LeaseTable:
        return LeaseTable(self)

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """One transaction; SQLite itself also writes to a file that was moved or deleted.

        Raises:
            Gone: its file was moved or deleted, before or meanwhile.
            BadRow: a value cannot be stored.
            StoreError: the database says no otherwise, or is away.
        """
        self._expect_file()
        try:
            with self.engine.begin() as db:
                yield db
        except _BAD_ROW as error:
            raise BadRow(message_of(error)) from None
        except exc.SQLAlchemyError as error:
            raise StoreError(message_of(error)) from None
        self._expect_file()

    def write(self, batch: Mapping[Key, Row | None], fence: Fence | None) -> tuple[Key, ...]:
        """Upsert or delete rows in one transaction; returns the keys of rows that cannot be stored.

        Targets follow in small transactions: one of 100,000 rows would block the lease's renewal.

        Raises:
            StoreError: `fence` is given and is not the lease's any more; the database says no, or
                is away.
        """
        targets = [at for at in batch if at[0] == TARGETS]
        first = {at: row for at, row in batch.items() if at[0] != TARGETS}
        bad = self._write_together(first, fence) if first else ()
        for start in range(0, len(targets), _TARGETS_AT_ONCE):
            if start or first:
                time.sleep(_PAUSE_S)
            some = targets[start : start + _TARGETS_AT_ONCE]
            bad += self._write_together({at: batch[at] for at in some}, fence)
        return bad

    def _write_together(
        self, batch: Mapping[Key, Row | None], fence: Fence | None
    ) -> tuple[Key, ...]:
        try:
            with self.begin() as db:
                self._check(db, batch, fence)
                _write_rows(db, batch)
        except BadRow:
            return self._write_singly(batch, fence)
        return ()

    def _write_singly(
        self, batch: Mapping[Key, Row | None], fence: Fence | None
    ) -> tuple[Key, ...]:
        """Write each row on its own: one bad row must not block the others forever."""
        bad: list[Key] = []
        with self.begin() as db:
            self._check(db, batch, fence)
            for key, row in batch.items():
                try:
                    with db.begin_nested():
                        _write_rows(db, {key: row})
                except exc.OperationalError:
                    raise
                except exc.SQLAlchemyError as error:
                    log.warning("the store refuses a row of %s: %s", key[0], message_of(error))
                    bad.append(key)
        return tuple(bad)

    def _check(self, db: Connection, batch: Mapping[Key, Row | None], fence: Fence | None) -> None:
        decided = any(kind == DECISIONS for kind, _ in batch)
        if decided and self.place.path is not None:
            # a decision survives even a power cut; the rest may lose its last second
            db.exec_driver_sql("PRAGMA synchronous = FULL")
        if fence is None:
            return
        wrote = update(LEASE).where(_held_under(fence)).values(writes=LEASE.c.writes + 1)
        if db.execute(wrote).rowcount != 1:
            raise StoreError("another monitor holds the lease: nothing is written from here")

    def rows(self, kind: str) -> list[str]:
        """The values of a kind as JSON, in their order.

        Raises:
            StoreError: the database says no, or is away.
        """
        c = RECORDS.c
        with self.begin() as db:
            asked = select(c.body).where(c.kind == kind).order_by(c.at_s, c.key)
            return [body for (body,) in db.execute(asked)]


def message_of(error: exc.SQLAlchemyError) -> str:
    """The database's error message on one line, without statement, values or URL."""
    said = getattr(error, "orig", None) or error
    if isinstance(error, exc.StatementError) and not isinstance(error, exc.DBAPIError):
        said = f"{type(error.orig).__name__}: a value that cannot be stored"
    return one_line(said, 300)


def _write_rows(db: Connection, batch: Mapping[Key, Row | None]) -> None:
    """Write rows together: a statement for each took most of the time."""
    gone = [
        {"_kind": kind, "_key": _storable(key)} for (kind, key), row in batch.items() if row is None
    ]
    rows = [
        {"kind": kind, "key": _storable(key), "at_s": row[0], "body": row[1]}
        for (kind, key), row in batch.items()
        if row is not None
    ]
    if gone:
        db.execute(_DELETE, gone)
    if rows:
        db.execute(_UPSERTS[db.dialect.name], rows)


_DELETE: Final = delete(RECORDS).where(
    and_(RECORDS.c.kind == bindparam("_kind"), RECORDS.c.key == bindparam("_key"))
)
_UPSERTS: Final = {  # both dialects have the same upsert, in separate modules
    name: (made := insert(RECORDS)).on_conflict_do_update(
        index_elements=RECORDS.primary_key,
        set_={"at_s": made.excluded.at_s, "body": made.excluded.body},
    )
    for name, insert in (("postgresql", postgresql.insert), ("sqlite", sqlite.insert))
}


def _storable(value: str) -> str:
    """Replace NUL, which PostgreSQL refuses, and lone surrogates, which no database stores."""
    return value.replace("\0", "\ufffd").encode(errors="replace").decode()


def _file_engine(place: StorePlace, path: Path) -> Engine:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot write store {path}: {error.strerror}") from error
    files = (path, *(path.with_name(f"{path.name}{side}") for side in _SIDES))
    _refuse_odd(files)
    _refuse_others_content(place, path)
    for file in files:
        _close_to_others(file, create=file == path)
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        connect_args={"timeout": _BUSY_S, "check_same_thread": False},
        pool_timeout=1.0,
    )

    @event.listens_for(engine, "checkout")
    def _on_checkout(connection: Any, _record: Any, _proxy: Any) -> None:
        # a power cut loses one second at most
        connection.execute("PRAGMA synchronous = NORMAL")

    return engine


def _refuse_odd(files: Sequence[Path]) -> None:
    """Follow no link and open no device: only a regular file can be ours.

    Raises:
        StoreError: one of them is something else.
    """
    for file in files:
        try:
            mode = file.lstat().st_mode
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StoreError(f"cannot use store {file}: {error.strerror}") from None
        if not stat.S_ISREG(mode):
            what = "a link" if stat.S_ISLNK(mode) else "no regular file"
            what = "Is a directory" if stat.S_ISDIR(mode) else what
            raise StoreError(f"cannot use store {file}: {what}, expected a file of ours")


def _refuse_others_content(place: StorePlace, path: Path) -> None:
    """Read what is in the file, without a change, lock or file beside it.

    Raises:
        StoreError: another program's.
    """
    if not path.exists():
        return
    if not os.access(path, os.W_OK):
        raise StoreError(f"cannot write store {path}: permission denied")
    url = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(url, uri=True)) as db:
            tables = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            _refuse_foreign(place, [name for (name,) in tables])
    except sqlite3.DatabaseError as error:
        if "malformed" not in str(error):  # half may still be in its -wal: who opens it will see
            raise StoreError(f"cannot use store {path}: {error}{_MOVE}") from None


def _close_to_others(file: Path, *, create: bool) -> None:
    """Let only its owner access a file of ours, even an existing one."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(file, flags | (os.O_CREAT if create else 0), 0o600)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"cannot write store {file}: {error.strerror}") from None
    try:
        with contextlib.suppress(OSError):  # owned by somebody else: not ours to change
            os.fchmod(fd, 0o600)
    finally:
        os.close(fd)


def _postgres_engine(place: StorePlace) -> Engine:
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


# -- lease -------------------------------------------------------------------------------------


class LeaseTable:
    """The one row of the lease. Any method raises `StoreError` if the database fails or is away."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self) -> LeaseRow:
        c = LEASE.c
        row = select(c.epoch, c.beat, c.writes, c.holder, c.url, c.since_s, c.ttl_s)
        with self._saying("cannot be read"), self._database.begin() as db:
            return LeaseRow(*db.execute(row.where(_FLEET)).one())

    def take(self, seen: LeaseRow, holder: str, url: str, since_s: float, ttl_s: float) -> bool:
        """Take the lease; False: its row has changed since it was seen."""
        return self._changed(
            and_(_FLEET, LEASE.c.epoch == seen.epoch, LEASE.c.beat == seen.beat),
            epoch=seen.epoch + 1, beat=seen.beat + 1, holder=holder, url=url, since_s=since_s,
            ttl_s=ttl_s,
        )  # fmt: skip

    def renew(self, fence: Fence) -> bool:
        """Renew the lease; False: another monitor holds it."""
        return self._changed(_held_under(fence), beat=LEASE.c.beat + 1)

    def give_back(self, fence: Fence) -> bool:
        """Release the lease; False: another monitor holds it."""
        return self._changed(_held_under(fence), beat=LEASE.c.beat + 1, holder=None, url=None)

    def _changed(self, where: ColumnElement[bool], **values: object) -> bool:
        with self._saying("takes no writes"), self._database.begin() as db:
            return db.execute(update(LEASE).where(where).values(**values)).rowcount == 1

    @property
    def gone(self) -> str | None:
        """That the store was moved or deleted, since that was seen."""
        return self._database.gone

    @contextmanager
    def _saying(self, what: str) -> Iterator[None]:
        try:
            yield
        except Gone:
            raise
        except StoreError as error:
            raise StoreError(f"the store {self._database.place} {what}: {error}") from None


_FLEET: Final = LEASE.c.scope == SCOPE


def _held_under(fence: Fence) -> ColumnElement[bool]:
    return and_(_FLEET, LEASE.c.holder == fence.holder, LEASE.c.epoch == fence.epoch)
