"""Rows as they lie in the tables, turned into what is remembered. Pure.

One row that cannot be read is no reason to forget the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from monitor.model.eviction import (
    DecisionRow,
    DecisionState,
    QuarantineEntry,
    QuarantineEvent,
    Remembered,
    eviction_from_json,
)
from monitor.model.incident import incident_from_json
from monitor.model.names import IncidentId
from monitor.model.plain import from_plain

_T = TypeVar("_T")

Rows = Callable[..., Sequence[tuple[Any, ...]]]
"""`rows(table, *columns, order=column)`: all rows of a table, `-column` falling."""


def remembered(rows: Rows) -> tuple[Remembered, int]:
    """What the tables hold, and how many rows cannot be read."""
    bad = 0

    def read(found: Sequence[tuple[Any, ...]], make: Callable[..., _T]) -> tuple[_T, ...]:
        nonlocal bad
        made = []
        for row in found:
            try:
                made.append(make(*row))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                bad += 1
        return tuple(made)

    decisions = rows(
        "decisions", "incident_id", "at_s", "action", "guard", "reason", "state", "author", "epoch",
        "attempt", "ended_s", "outcome", "body", order="at_s",
    )  # fmt: skip
    lines = read(decisions, _decision)
    notices = rows("notices", "sink", "key", "body", order="key")
    found = Remembered(
        incidents=read(
            rows("incidents", "body", order="-first_seen_s"),
            lambda body: incident_from_json(json.loads(body)),
        ),
        decisions=lines,
        evictions=read(
            rows("evictions", "body", order="asked_s"),
            lambda body: eviction_from_json(json.loads(body)),
        ),
        quarantine=read(
            rows("quarantine_entries", "body", order="scope"),
            lambda body: from_plain(QuarantineEntry, json.loads(body)),
        ),
        quarantine_events=read(
            rows("quarantine_events", "body", order="at_s"),
            lambda body: from_plain(QuarantineEvent, json.loads(body)),
        ),
        targets=read(rows("targets", "body", order="rank"), json.loads),
        notices=read(notices, lambda sink, key, body: (sink, key, json.loads(body))),
        audit=read(
            rows("audit", "incident_id", "part", "body", order="incident_id"),
            lambda incident_id, part, body: (IncidentId(incident_id), part, json.loads(body)),
        ),
        switches=dict(rows("switches", "name", "body", order="name")),
    )
    return found, bad


def _decision(*row: Any) -> DecisionRow:
    incident_id, at_s, action, guard, reason, state, *more, body = row
    return DecisionRow(
        incident_id, at_s, action, guard, reason, DecisionState(state), *(*more, json.loads(body))
    )
