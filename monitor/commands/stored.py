"""Incidents from a store, when no monitor answers: the same answers that its API gives."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from monitor.audit.books import books_of
from monitor.audit.by_hand import with_by_hand
from monitor.audit.choose import Choice, ChoiceError, find
from monitor.audit.totals import totals_to_json
from monitor.commands.errors import FAILED, USAGE, CommandError
from monitor.config import KeeperConfig
from monitor.names import IncidentId
from monitor.pipeline import TickResult
from monitor.snapshot import LighthouseAway, Snapshot
from monitor.store import DecisionRow, Remembered, Store, StoreError
from monitor.store.place import parse_place
from monitor.view import SCHEMA, View, case_of, incident_json


class Stored:
    """What a store holds. Nothing is written to it.

    Raises:
        CommandError: there is none, or it cannot be read.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._view = _view(_read(str(args.store)))
        try:
            self._choice = Choice.of(args.since, args.kind, args.group, self._view.snapshot.now_s)
        except ChoiceError as exc:
            raise CommandError(f"--{exc}", USAGE) from exc

    def one(self, prefix: str) -> dict[str, Any]:
        """As `GET /v1/incidents/ID`.

        Raises:
            CommandError: none, or several begin so.
        """
        try:
            return {
                "schema": SCHEMA,
                **incident_json(self._view, find(self._view.incidents, prefix)),
            }
        except ChoiceError as exc:
            raise CommandError(str(exc), FAILED) from exc

    def listed(self, limit: int) -> dict[str, Any]:
        """As `GET /v1/incidents`."""
        found = self._choice.among(self._view.incidents)[: max(1, limit)]
        return {"schema": SCHEMA, "incidents": [incident_json(self._view, one) for one in found]}

    def totals(self) -> dict[str, Any]:
        """As `GET /v1/audit`."""
        fired = [one for one in self._view.incidents if one.milestones.firing_s is not None]
        cases = [case_of(self._view, one) for one in self._choice.among(fired)]
        now_s = self._view.snapshot.now_s
        return {"schema": SCHEMA, **totals_to_json(cases, self._choice.since_s, now_s)}


def _read(text: str) -> Remembered:
    try:
        place = parse_place(text)
        if place.path is not None and not place.path.is_file():
            raise CommandError(f"no store at {place.path}", FAILED)
        store = Store(place)
    except StoreError as exc:
        raise CommandError(str(exc), FAILED) from exc
    try:
        store.follow()  # a monitor may be writing there
        return store.remembered()
    except StoreError as exc:
        raise CommandError(str(exc), FAILED) from exc
    finally:
        store.close()


def _view(found: Remembered) -> View:
    now_s = time.time()
    decisions: dict[IncidentId, Sequence[DecisionRow]] = {}
    for row in found.decisions:
        decisions[row.incident_id] = (*decisions.get(row.incident_id, ()), row)
    books = books_of(found, KeeperConfig())
    return View(
        snapshot=Snapshot(now_s, 0, 0.0, (), LighthouseAway("read from a store")),
        result=TickResult(now_s),
        observe=False,
        incidents=with_by_hand(found.incidents, decisions, books),
        decisions=decisions,
        evictions={one.incident_id: one for one in found.evictions},
        books=books,
    )
