"""Incidents as CSV: one line each, columns as docs/audit.md has them. Pure.

A cell that a spreadsheet would take for a formula (`=`, `+`, `-`, `@`, tab, carriage return in
front) gets an apostrophe before it: reasons and names come from ranks, and people open such files
with a double click (CWE-1236). Numbers are ours and stay numbers.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from monitor.audit.account import Account, account
from monitor.audit.amounts import Amount
from monitor.audit.case import Case

COLUMNS: Final = (
    "id", "kind", "severity", "state", "outcome", "decided_by", "groups", "culprits", "confidence",
    "began", "began_s", "fire_after_s", "decide_after_s", "ask_after_s", "leave_after_s",
    "survivors_after_s", "rejoin_after_s", "guards", "rungs", "ran_on", "back_on",
    "unit", "lost_low", "lost_high", "saved_low", "saved_high",
    "review", "reviewed_by", "note", "reason", "resolution",
)  # fmt: skip
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
_MOMENTS: Final = {
    "firing": "fire_after_s",
    "decided": "decide_after_s",
    "asked": "ask_after_s",
    "left": "leave_after_s",
    "survivors": "survivors_after_s",
    "rejoined": "rejoin_after_s",
}
"""Each counted from when the fault began."""


def sheet(cases: Iterable[Case]) -> str:
    """The whole file, with a heading."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", quoting=csv.QUOTE_MINIMAL)
    writer.writeheader()
    for case in cases:
        row = _row(case, account(case))
        writer.writerow({name: _safe(value) for name, value in row.items()})
    return out.getvalue()


def _row(case: Case, one: Account) -> dict[str, Any]:
    incident, review = case.incident, case.review
    row: dict[str, Any] = {
        "id": incident.id,
        "kind": str(incident.kind),
        "severity": str(incident.severity),
        "state": str(incident.state),
        "outcome": one.outcome,
        "decided_by": one.decided_by,
        "groups": " ".join(incident.groups),
        "culprits": " ".join(incident.culprits),
        "confidence": str(incident.verdict.confidence),
        "began": _moment(case.began_s),
        "began_s": round(case.began_s, 3),
        "guards": " ".join(f"{held.guard}:{_seconds(held.seconds)}" for held in one.holds),
        "rungs": " ".join(f"{rung.rung}:{_seconds(rung.seconds)}" for rung in one.rungs),
        "ran_on": " ".join(one.ran_on),
        "back_on": " ".join(one.back_on),
        "unit": one.unit,
        "reason": incident.verdict.reason,
        "resolution": incident.resolution or "",
        **_bounds("lost", one.lost),
        **_bounds("saved", one.saved),
    }
    for part in one.intervals:
        if part.until in _MOMENTS:
            row[_MOMENTS[part.until]] = round(part.end_s - case.began_s, 3)
    if review is not None:
        row |= {"review": str(review.judgement), "reviewed_by": review.by, "note": review.note}
    return row


def _bounds(name: str, amount: Amount) -> dict[str, Any]:
    bounds = {f"{name}_low": amount.low, f"{name}_high": amount.high}
    return {key: "" if value is None else round(value, 1) for key, value in bounds.items()}


def _seconds(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}"


def _moment(at_s: float) -> str:
    try:
        return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return ""


def _safe(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    line = " ".join(value.split()) if any(mark in value for mark in "\r\n\t") else value
    return f"'{line}" if value.startswith(_FORMULA) or line.startswith(_FORMULA) else line
