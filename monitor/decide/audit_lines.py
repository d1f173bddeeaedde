"""The lines of the audit log: who did what when, and why. Pure.

Every line has `at` (UTC), `at_s`, `event`, `by`, `what`, `why` and `incident` (null where there is
none); some have more. Keys may be added.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from monitor.decide.rules import Reload
from monitor.model.eviction import (
    Change,
    DecisionRow,
    DecisionState,
    Eviction,
    QuarantineEvent,
    Scope,
)
from monitor.model.incident import Incident, State
from monitor.model.observation import Pause
from monitor.store.audit_log import OURSELVES, Line, line

_PROBLEMS_KEPT: Final = 20
"""Of a policy that is refused: the file may be a large one of another kind."""


def decision(row: DecisionRow, group: str) -> Iterator[Line]:
    """What was decided, and what came of it."""
    what, told = f"{row.action} {group}".strip(), {"guard": row.guard, "attempt": row.attempt}
    by, why, incident = row.author, row.reason, row.incident_id
    match row.state:
        case DecisionState.HELD | DecisionState.DECIDED:
            yield line(row.at_s, "decision", by, what, why, incident=incident, **told)
        case DecisionState.CARRIED_OUT:  # its rungs say so
            return
        case DecisionState.CONFIRMED | DecisionState.FAILED | DecisionState.ABANDONED:
            at_s = row.at_s if row.ended_s is None else row.ended_s
            what, why = f"{what} {row.state}", row.outcome or why
            yield line(at_s, "decision", by, what, why, incident=incident, **told)


def moves(before: Incident | None, after: Incident) -> Iterator[Line]:
    """States that an incident entered: firing and what comes after it."""
    known = set() if before is None else {(step.at_s, step.to) for step in before.story}
    for step in after.story:
        if (step.at_s, step.to) not in known and step.to in (State.FIRING, State.RESOLVED):
            what = f"{after.kind} {', '.join(after.groups) or 'nobody'} {step.to}"
            yield line(step.at_s, "incident", OURSELVES, what, step.reason, incident=after.id)


def rungs(before: Eviction | None, after: Eviction, now_s: float) -> Iterator[Line]:
    """Rungs that began or ended, and how the eviction ended."""
    by, incident, group = after.author, after.incident_id, after.group
    told = {} if before is None else {(r.rung, r.started_s): r for r in before.rungs}
    for rung in after.rungs:
        old, over_s = told.get((rung.rung, rung.started_s)), rung.finished_s
        if old is not None and (old.finished_s is not None or over_s is None):
            continue
        at_s, how = (rung.started_s, "began") if over_s is None else (over_s, "ended")
        result = None if rung.result is None else str(rung.result)
        what = f"{rung.rung} {group} {how}"
        yield line(at_s, "rung", by, what, rung.detail, incident=incident, result=result)
    for name, what, why in (
        ("gone_s", "gone", "every accused process is gone"),
        ("left_quorum_s", "left", "a quorum without it is seen"),
    ):
        at_s = getattr(after, name)
        if at_s is not None and (before is None or getattr(before, name) is None):
            yield line(at_s, "eviction", by, f"{group} {what}", why, incident=incident)
    if after.failed is not None and (before is None or before.failed != after.failed):
        what = f"eviction of {group} failed"
        yield line(now_s, "eviction", by, what, after.failed, incident=incident)


def quarantine(event: QuarantineEvent) -> Iterator[Line]:
    """What happened to the list; what incidents say of a host is told with the incident."""
    if event.change not in (Change.ACCUSED, Change.EVICTED):
        group = "group " if event.scope is Scope.GROUP else ""
        what = f"quarantine {group}{event.name} {event.change}"
        yield line(
            event.at_s, "quarantine", event.author, what, event.reason,
            incident=event.incident_id, until_s=event.until_s,
        )  # fmt: skip


def paused(before: Pause | None, after: Pause | None, now_s: float) -> Iterator[Line]:
    """The big red switch."""
    if before == after:
        return
    if after is not None:
        yield line(
            after.since_s, "pause", after.author, "paused", after.reason, until_s=after.until_s
        )
    elif before is not None:
        expired = before.until_s is not None and before.until_s <= now_s
        by, why = (OURSELVES, "its time is over") if expired else ("a person", "resumed")
        yield line(now_s, "pause", by, "resumed", why)


def reload(seen: Reload) -> Line:
    """The policy was read anew, or was not."""
    file = "no file" if seen.path is None else str(seen.path)
    told: dict[str, Any] = {"file": file, "load": seen.number}
    if seen.problems:
        why = f"{len(seen.problems)} wrong: " + "; ".join(seen.problems[:_PROBLEMS_KEPT])
        return line(seen.at_s, "policy", seen.by, "reload refused", why, changed=None, **told)
    keys = ", ".join(seen.changed) or "nothing changed"
    return line(seen.at_s, "policy", seen.by, "reloaded", keys, changed=dict(seen.changed), **told)
