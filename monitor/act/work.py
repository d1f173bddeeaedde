"""Keeps what people did about incidents, in memory and in the store."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from typing import Final

from lightkeeper.monitor.clock import Clock
from lightkeeper.monitor.model.work import Work, WorkAction, WorkRow
from lightkeeper.monitor.store.store import Store

log = logging.getLogger(__name__)

ROWS_KEPT: Final = 10_000
"""Beyond, the oldest are forgotten, labels among them; silences only once they are over."""


class WorkBook:
    """Safe to use from any thread."""

    def __init__(self, clock: Clock, store: Store) -> None:
        self._clock = clock
        self._store = store
        self._lock = threading.Lock()
        self.now = Work()

    def take_over(self, rows: Iterable[WorkRow]) -> None:
        """Load what an earlier or the active monitor saved."""
        with self._lock:
            self.now = Work(tuple(rows))

    def add(self, row: WorkRow) -> WorkRow:
        """Keep a row, under an id of its own; it is in the log as well."""
        with self._lock:
            taken, name = {each.id for each in self.now.rows}, f"{row.action}-{row.at_s * 1000:.0f}"
            names = (name if number == 1 else f"{name}-{number}" for number in count(1))
            row = replace(row, id=next(name for name in names if name not in taken))
            rows = (*self.now.rows, row)
            holds = {each.id for each in self.now.silences(self._clock.now_s())}
            over = [each for each in rows if each.id not in holds]
            for old in over[: max(0, len(rows) - ROWS_KEPT)]:
                self._store.drop_work(old)
                rows = tuple(each for each in rows if each is not old)
            self.now = Work(rows)
            self._store.save_work(row)
        self._store.flush()
        about = {"incident": row.about} if row.kind else {}
        log.warning("%s: %s", row.about or row.what, row.says, extra=about)
        return row

    def sent(self, incident_id: str, receiver: str, url: str) -> None:
        """Note where a receiver has the message about an incident."""
        rows = self.now.about(incident_id)
        if not any(row.text == url and row.action is WorkAction.SENT for row in rows):
            now_s = self._clock.now_s()
            self.add(WorkRow(WorkAction.SENT, receiver, now_s, incident_id, url))
