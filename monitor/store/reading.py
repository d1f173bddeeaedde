"""Rows as they lie in the tables, turned into what is remembered. Pure.

One row that cannot be read is no reason to forget the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from monitor.incident import incident_from_json
from monitor.names import IncidentId
from monitor.store.rows import (
    DecisionRow,
    DecisionState,
    Remembered,
    entry_from_row,
    event_from_row,
    eviction_from_json,
)

_T = TypeVar("_T")


class Rows(Protocol):
    """All rows of a table in the order of a column."""

    def __call__(self, table: str, *columns: str, order: str) -> Sequence[tuple[Any, ...]]:
        """The values of these columns, row by row."""
        ...


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
        "decisions", "incident_id", "at_s", "action", "guard", "reason", "body", "state", "author",
        "epoch", "attempt", "ended_s", "outcome", order="at_s",
    )  # fmt: skip
    notices = rows("notices", "sink", "key", "body", order="key")
    found = Remembered(
        incidents=read(
            rows("incidents", "body", order="-first_seen_s"),
            lambda body: incident_from_json(json.loads(body)),
        ),
        decisions=read(decisions, _decision),
        evictions=read(
            rows("evictions", "body", order="asked_s"),
            lambda body: eviction_from_json(json.loads(body)),
        ),
        quarantine=read(
            rows("quarantine_entries", "body", order="scope"),
            lambda body: entry_from_row(json.loads(body)),
        ),
        quarantine_events=read(
            rows("quarantine_events", "body", order="at_s"),
            lambda body: event_from_row(json.loads(body)),
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


def _decision(  # noqa: PLR0917 - a row of the table
    incident_id: str, at_s: float, action: str, guard: str | None, reason: str, body: str,
    state: str | None, author: str | None, epoch: int | None, attempt: int | None,
    ended_s: float | None, outcome: str | None,
) -> DecisionRow:  # fmt: skip
    """Schema 1 knew no states: its evictions are held against what their rows say, elsewhere."""
    if state is None:
        state = "carried_out" if action == "evict" else "held"
    return DecisionRow(
        IncidentId(incident_id), at_s, action, guard, reason,
        state=DecisionState(state), author=author or "lightkeeper", epoch=epoch or 0,
        attempt=attempt or 1, ended_s=ended_s, outcome=outcome or "", body=json.loads(body or "{}"),
    )  # fmt: skip
