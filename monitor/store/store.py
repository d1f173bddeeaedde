"""The store of what must survive the monitor: a SQLite file in WAL mode, or PostgreSQL.

Theory of operation. Every write is an idempotent upsert or delete by primary key. It goes into
`_pending`, where the latest value for each key wins. On `flush`, the writer thread writes all of
`_pending` in one transaction (targets in several); `flush` waits for it, but not forever. If the
disk is full or gone, or the database is away, the transaction fails and is counted, and the writes
stay pending for the next flush. If it hangs, only the writer thread hangs. Nothing is lost while
the process lives. Only opening and reading raise: a monitor without memory does not start.

Of several monitors only one writes: the one whose `Fence` the lease shows. The transaction that
writes checks this. `follow` makes this monitor a reader: its writes are dropped as they come.
`lead` makes it the writer, with nothing pending from before. Without either it writes unfenced.
"""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lightkeeper.monitor.background import BackgroundWorker
from lightkeeper.monitor.model.eviction import (
    Decision,
    Eviction,
    Fence,
    Hold,
    QuarantineEntry,
    QuarantineEvent,
    Release,
    Remembered,
    Scope,
)
from lightkeeper.monitor.model.incident import Incident, incident_from_json, incident_to_json
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.plain import from_plain, to_plain
from lightkeeper.monitor.model.run import RESOLUTIONS, Run, TrendPoint
from lightkeeper.monitor.model.work import WorkRow
from lightkeeper.monitor.store.place import StoreError, StorePlace, parse_place

if TYPE_CHECKING:
    from lightkeeper.monitor.store.database import Database, Key, Row


T = TypeVar("T")

log = logging.getLogger(__name__)

RESOLVED_KEPT: Final = 5000
"""Resolved incidents kept, about 4 KiB each; a monitor that takes over deletes older ones."""
RUNS_KEPT: Final = 200
FLUSH_S: Final = 1.0
"""How long `flush` waits. Longer suits slow disks; shorter keeps the tick on time if one hangs."""


class Store:
    """The store. Safe to use from any thread; close it when done."""

    def __init__(self, place: StorePlace | Path | str) -> None:
        """Open or make the store.

        Raises:
            StoreError: it cannot be written, is not ours, or is damaged.
        """
        # importing sqlalchemy takes as long as all the rest; commands that open no store need none
        from lightkeeper.monitor.store.database import Database  # noqa: PLC0415

        self.place = parse_place(place)
        self.errors = 0
        """Since the start: failed flushes, and rows that could not be written or read."""
        self.last_error: str | None = None
        self._changed = threading.Condition()
        self._pending: dict[Key, Row | None] = {}
        self._asked = 0
        self._done = 0
        self._muted = False
        self._fence: Fence | None = None
        self.database: Database = Database(self.place)
        self._writer = BackgroundWorker(
            "store", self._write, after_crash_s=FLUSH_S, to_the_end=True
        )
        self._writer.start()

    def close(self) -> None:
        """Write what is pending and close the database."""
        self.flush()
        self._writer.close(FLUSH_S)
        if not self._writer.alive:
            self.database.close()

    @property
    def pending(self) -> int:
        with self._changed:
            return len(self._pending)

    # -- who writes ---------------------------------------------------------------------------

    def follow(self) -> int:
        """Only read from now on; returns how many pending writes are dropped."""
        with self._changed:
            dropped, self._pending = len(self._pending), {}
            self._muted, self._fence, self.last_error = True, None, None
        return dropped

    def lead(self, fence: Fence) -> Remembered:
        """Write from now on, under this fence; returns what the store holds.

        Raises:
            StoreError: it cannot be read: this monitor does not lead.
        """
        self.follow()
        saved = self.remembered()
        with self._changed:
            self._muted, self._fence = False, fence
        return self._drop_old(saved)

    # -- writing ------------------------------------------------------------------------------

    def save_incidents(self, incidents: Sequence[Incident]) -> None:
        for incident in incidents:
            first_s = incident.milestones.first_seen_s
            self._put("incidents", incident.id, incident_to_json(incident), first_s)

    def save_decision(self, row: Decision) -> None:
        """Remember a decision, or how far it got: `flush` before acting on it."""
        self._put("decisions", _key(row), {"action": row.action, **to_plain(row)}, row.at_s)

    def save_quarantine(self, entry: QuarantineEntry) -> None:
        self._put("quarantine", f"{entry.scope}/{entry.name}", to_plain(entry))

    def drop_quarantine(self, scope: Scope, name: str) -> None:
        self._put("quarantine", f"{scope}/{name}", None)

    def save_quarantine_event(self, event: QuarantineEvent) -> None:
        self._put("quarantine_events", event.id, to_plain(event), event.at_s)

    def drop_quarantine_event(self, event: QuarantineEvent) -> None:
        self._put("quarantine_events", event.id, None)

    def save_target(self, rank: RankName, body: Mapping[str, Any]) -> None:
        self._put("targets", rank, body)

    def drop_target(self, rank: RankName) -> None:
        self._put("targets", rank, None)

    def save_notice(self, sink: str, key: str, body: Mapping[str, Any] | None) -> None:
        """Remember what a sink got; None forgets it."""
        self._put("notices", f"{sink} {key}", None if body is None else (sink, key, body))

    def save_work(self, row: WorkRow) -> None:
        self._put("work", row.id, to_plain(row), row.at_s)

    def drop_work(self, row: WorkRow) -> None:
        self._put("work", row.id, None)

    def save_run(self, run: Run) -> None:
        self._put("runs", run.id, to_plain(run), run.began_s)

    def save_trend(self, name: str, point: TrendPoint) -> None:
        """Remember a point at this resolution in place of the one that has grown too old."""
        every_s, kept = RESOLUTIONS[name]
        key = f"{name} {int(point.at_s // every_s) % kept}"
        self._put("trend", key, (name, to_plain(point)), point.at_s)

    def save_switch(self, name: str, setting: str | None) -> None:
        """Remember the setting of a switch; None forgets it."""
        self._put("switches", name, None if setting is None else (name, setting))

    def _put(self, kind: str, key: str, value: Any, at_s: float = 0.0) -> None:
        row = None if value is None else (at_s, json.dumps(value))
        with self._changed:
            if not self._muted:
                self._pending[kind, key] = row

    def flush(self, wait_s: float = FLUSH_S) -> bool:
        """Write what is pending; False: it stays pending, because the disk fails or is too slow."""
        with self._changed:
            if not self._pending:
                return True
            self._asked += 1
            ticket = self._asked
            self._writer.wake()
            written = self._changed.wait_for(lambda: self._done >= ticket, wait_s)
            if not written:
                self.last_error = f"the disk has not answered for {wait_s:g} s"
            return written and self.last_error is None

    def _write(self) -> None:
        """Write what is pending if `flush` has asked for it; runs in the writer's thread."""
        with self._changed:
            if self._asked == self._done:
                return
            asked, batch, fence = self._asked, dict(self._pending), self._fence
        problem: str | None = None
        refused: tuple[Key, ...] = ()
        try:
            refused = self.database.write(batch, fence) if batch else ()
        except StoreError as exc:
            problem = str(exc)
        except Exception as exc:  # a bug must not end the thread: writes would stop
            log.exception("the store crashed")
            problem = f"{type(exc).__name__}: {exc}"
        with self._changed:
            self._done, self.last_error = asked, problem
            self.errors += len(refused) + (problem is not None)
            if problem is None:
                for key, row in batch.items():
                    if self._pending.get(key) is row:  # not changed meanwhile
                        self._pending.pop(key, None)
            self._changed.notify_all()

    # -- reading ------------------------------------------------------------------------------

    def remembered(self) -> Remembered:
        """Everything that was saved; rows that cannot be read are counted and left out.

        Raises:
            StoreError: the database cannot be read.
        """
        read = self._read
        try:
            return Remembered(
                incidents=read("incidents", incident_from_json)[::-1],
                decisions=read("decisions", _decision),
                quarantine=read("quarantine", partial(from_plain, QuarantineEntry)),
                quarantine_events=read("quarantine_events", partial(from_plain, QuarantineEvent)),
                targets=read("targets", dict),
                notices=read("notices", lambda row: (row[0], row[1], dict(row[2]))),
                runs=read("runs", partial(from_plain, Run))[::-1],
                work=read("work", partial(from_plain, WorkRow)),
                trend=read("trend", lambda row: (str(row[0]), from_plain(TrendPoint, row[1]))),
                switches=dict(read("switches", lambda row: (row[0], str(row[1])))),
            )
        except StoreError as exc:
            raise StoreError(f"cannot read store {self.place}: {exc}") from exc

    def _read(self, kind: str, make: Callable[[Any], T]) -> tuple[T, ...]:
        values = []
        for body in self.database.rows(kind):
            try:
                values.append(make(json.loads(body)))
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                self.errors += 1
        return tuple(values)

    def _drop_old(self, saved: Remembered) -> Remembered:
        """Delete old resolved incidents, old runs, and decisions older than all that are left."""
        over = [incident for incident in saved.incidents if not incident.open]  # newest first
        old = {incident.id for incident in over[RESOLVED_KEPT:]}
        first_s = min((i.milestones.first_seen_s for i in over[:RESOLVED_KEPT]), default=-math.inf)
        incidents = tuple(incident for incident in saved.incidents if incident.id not in old)
        ids = {incident.id for incident in incidents}
        decisions = tuple(
            row for row in saved.decisions if row.incident_id in ids or row.at_s >= first_s
        )
        for incident_id in old:
            self._put("incidents", incident_id, None)
        for key in {*map(_key, saved.decisions)} - {*map(_key, decisions)}:
            self._put("decisions", key, None)
        for run in saved.runs[RUNS_KEPT:]:
            self._put("runs", run.id, None)
        return replace(saved, incidents=incidents, decisions=decisions, runs=saved.runs[:RUNS_KEPT])


def _key(row: Decision) -> str:
    return f"{row.incident_id} {row.at_s} {row.action}"


def _decision(body: Mapping[str, Any]) -> Decision:
    kind: type[Decision] = {"evict": Eviction, "release": Release}.get(body["action"], Hold)
    return from_plain(kind, body)
