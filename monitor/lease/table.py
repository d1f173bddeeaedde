"""The row of the lease: read, taken, renewed and given back, each in one statement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitor.lease.grip import LeaseRow
from monitor.store import Fence

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from monitor.store.database import Database


class LeaseTable:
    """Of one database. Every call may raise `StoreError`: the database says no, or is away."""

    def __init__(self, database: Database) -> None:
        # with the store, which has imported sqlalchemy by now
        from sqlalchemy import and_, select, update  # noqa: PLC0415

        from monitor.store.migrate import SCOPE  # noqa: PLC0415
        from monitor.store.tables import LEASE  # noqa: PLC0415

        self._database = database
        self._t = LEASE
        self._and, self._select = and_, select
        self._mine = LEASE.c.scope == SCOPE
        self._update = update(LEASE)

    def read(self) -> LeaseRow:
        """The row as it is."""
        t = self._t
        asked = self._select(
            t.c.epoch, t.c.beat, t.c.writes, t.c.holder, t.c.url, t.c.since_s, t.c.ttl_s
        ).where(self._mine)
        with self._database.begin() as db:
            return LeaseRow(*db.execute(asked).one())

    def take(self, seen: LeaseRow, holder: str, url: str, since_s: float, ttl_s: float) -> bool:
        """Take it, if it is still as it was seen."""
        t = self._t
        same = self._and(self._mine, t.c.epoch == seen.epoch, t.c.beat == seen.beat)
        return self._changed(
            same,
            epoch=seen.epoch + 1, beat=seen.beat + 1, holder=holder, url=url, since_s=since_s,
            ttl_s=ttl_s,
        )  # fmt: skip

    def renew(self, fence: Fence) -> bool:
        """One more beat; False when it is another's by now."""
        return self._changed(self._held(fence), beat=self._t.c.beat + 1)

    def give_back(self, fence: Fence) -> bool:
        """Nobody's, from now on."""
        return self._changed(self._held(fence), beat=self._t.c.beat + 1, holder=None, url=None)

    def _held(self, fence: Fence) -> ColumnElement[bool]:
        t = self._t
        return self._and(self._mine, t.c.holder == fence.holder, t.c.epoch == fence.epoch)

    def _changed(self, where: ColumnElement[bool], **values: object) -> bool:
        with self._database.begin() as db:
            return db.execute(self._update.where(where).values(**values)).rowcount == 1
