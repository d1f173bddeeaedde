"""Rows as they lie in the tables, turned into what is remembered. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from monitor.model.eviction import (
    DecisionRow,
    Eviction,
    QuarantineEntry,
    QuarantineEvent,
    Remembered,
    row_of,
)
from monitor.model.incident import incident_from_json
from monitor.model.plain import from_plain

T = TypeVar("T")

Rows = Callable[..., Sequence[tuple[Any, ...]]]
"""`rows(table, *columns, order=column)`: all rows of a table, `-column` falling."""


def remembered(rows: Rows) -> tuple[Remembered, int]:
    """What the tables hold, and how many rows cannot be read: no reason to forget the others."""
    bad = 0

    def read(table: str, make: Callable[..., T], *keys: str, order: str) -> tuple[T, ...]:
        nonlocal bad
        made = []
        for *key, body in rows(table, *keys, "body", order=order):
            try:
                made.append(make(*key, json.loads(body)))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                bad += 1
        return tuple(made)

    holds = read("holds", partial(from_plain, DecisionRow), order="at_s")
    evictions = read("evictions", partial(from_plain, Eviction), order="asked_s")
    decisions = (*holds, *map(row_of, evictions))
    found = Remembered(
        incidents=read("incidents", incident_from_json, order="-first_seen_s"),
        decisions=tuple(sorted(decisions, key=lambda row: (row.at_s, row.incident_id))),
        evictions=evictions,
        quarantine=read("quarantine_entries", partial(from_plain, QuarantineEntry), order="scope"),
        quarantine_events=read(
            "quarantine_events", partial(from_plain, QuarantineEvent), order="at_s"
        ),
        targets=read("targets", dict, order="rank"),
        notices=read("notices", lambda *row: row, "sink", "key", order="key"),
        audit=read("audit", lambda *row: row, "incident_id", "part", order="incident_id"),
        switches=dict(rows("switches", "name", "body", order="name")),
    )
    return found, bad
