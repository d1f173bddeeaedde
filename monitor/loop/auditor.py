"""The audit log: what its lines say, and who writes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from lightkeeper.monitor.decide.rules import Reload
from lightkeeper.monitor.model.eviction import (
    Change,
    DecisionRow,
    Eviction,
    EvictionState,
    Hold,
    QuarantineEvent,
    Scope,
)
from lightkeeper.monitor.model.incident import Incident, State
from lightkeeper.monitor.model.names import IncidentId
from lightkeeper.monitor.model.observation import Pause, Snapshot
from lightkeeper.monitor.model.verdict import Kind
from lightkeeper.monitor.store.audit_log import OURSELVES, Line, LogFile, line

# -- lines --------------------------------------------------------------------------------------

# Who did what, when and why. Every line has `at` (UTC), `at_s`, `event`, `by`, `what`, `why` and
# `incident` (null where there is none); some have more. Keys may be added.

_PROBLEMS_KEPT: Final = 20
"""Of a refused policy: the file may be a large one of another kind."""


def decision(row: DecisionRow, group: str) -> Iterator[Line]:
    """What was decided, and the outcome; in between its rungs say how far it is."""
    what, details = f"{row.action} {group}".strip(), {"guard": row.guard, "attempt": row.attempt}
    by, why, incident = row.author, row.reason, row.incident_id
    at_s = row.at_s
    if isinstance(row, Eviction) and not row.open:
        at_s = row.at_s if row.ended_s is None else row.ended_s
        what, why = f"{what} {row.state}", row.outcome or why
    elif isinstance(row, Eviction) and row.state is not EvictionState.DECIDED:
        return
    yield line(at_s, "decision", by, what, why, incident=incident, **details)


def moves(before: Incident | None, after: Incident) -> Iterator[Line]:
    """States that an incident entered: firing and resolved."""
    new = after.story[0 if before is None else len(before.story) :]
    for step in () if after.kind is Kind.BY_HAND else new:  # its decision has lines
        if step.to in (State.FIRING, State.RESOLVED):
            what = f"{after.kind} {', '.join(after.groups) or 'nobody'} {step.to}"
            yield line(step.at_s, "incident", OURSELVES, what, step.reason, incident=after.id)


def rungs(before: Eviction | None, after: Eviction, now_s: float) -> Iterator[Line]:
    """Rungs that began or ended, and how the eviction ended."""
    write = partial(line, by=after.author, incident=after.incident_id)
    earlier = before or Eviction(after.incident_id, after.group, after.replica_id, after.asked_s)
    began = {(rung.rung, rung.started_s): rung for rung in earlier.rungs}
    for rung in after.rungs:
        old, over_s = began.get((rung.rung, rung.started_s)), rung.finished_s
        if old is None or (old.finished_s is None and over_s is not None):
            at_s, how = (rung.started_s, "began") if over_s is None else (over_s, "ended")
            what, result = f"{rung.rung} {after.group} {how}", rung.result and str(rung.result)
            yield write(at_s, "rung", what=what, why=rung.detail, result=result)
    if after.gone_s is not None and earlier.gone_s is None:
        what, why = f"{after.group} gone", "every accused process is gone"
        yield write(after.gone_s, "eviction", what=what, why=why)
    if after.left_quorum_s is not None and earlier.left_quorum_s is None:
        what, why = f"{after.group} left", "a quorum without it is seen"
        yield write(after.left_quorum_s, "eviction", what=what, why=why)
    if after.failed not in (None, earlier.failed):
        what, why = f"eviction of {after.group} failed", after.failed
        yield write(now_s, "eviction", what=what, why=why)


def quarantine(event: QuarantineEvent) -> Iterator[Line]:
    """A change of the list; accusations and evictions of a host are logged with the incident."""
    if event.change not in (Change.ACCUSED, Change.EVICTED):
        group = "group " if event.scope is Scope.GROUP else ""
        what = f"quarantine {group}{event.name} {event.change}"
        yield line(
            event.at_s, "quarantine", event.author, what, event.reason,
            incident=event.incident_id, until_s=event.until_s,
        )  # fmt: skip


def paused(before: Pause | None, after: Pause | None, now_s: float) -> Iterator[Line]:
    """Evictions were paused or resumed."""
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
    """The policy was reloaded, or the reload was refused."""
    file = "no file" if seen.path is None else str(seen.path)
    load: dict[str, Any] = {"file": file, "load": seen.number}
    if seen.problems:
        why = f"{len(seen.problems)} wrong: " + "; ".join(seen.problems[:_PROBLEMS_KEPT])
        return line(seen.at_s, "policy", seen.by, "reload refused", why, changed=None, **load)
    keys = ", ".join(seen.changed) or "nothing changed"
    return line(seen.at_s, "policy", seen.by, "reloaded", keys, changed=dict(seen.changed), **load)


# -- auditor ------------------------------------------------------------------------------------

_LOG_S: Final = 0.5
"""How long an eviction waits for its line in the log."""


class Auditor:
    def __init__(self, log: LogFile | None = None) -> None:
        self._log = log
        self._pause: Pause | None = None
        self._looked = False
        """Whether the earlier pause is known: a restart is not logged as a change of it."""

    def took_place(
        self,
        snapshot: Snapshot,
        changed: Sequence[Incident],
        before: Mapping[IncidentId, Incident],
    ) -> None:
        """Log one tick: changed incidents, the pause."""
        entries = [
            entry for incident in changed for entry in moves(before.get(incident.id), incident)
        ]
        if self._looked:
            entries += paused(self._pause, snapshot.pause, snapshot.now_s)
        self._pause, self._looked = snapshot.pause, True
        entries.sort(key=lambda line: float(line["at_s"]))
        self._write(entries)

    def evicting(self, before: Eviction | None, after: Eviction, now_s: float) -> None:
        """Log the progress of an eviction."""
        self._write(rungs(before, after, now_s))

    def decided(self, row: DecisionRow, incident: Incident | None) -> None:
        """Log a decision, or its progress; an eviction waits until its line is written."""
        evict = row.would if isinstance(row, Hold) else row
        groups = () if incident is None else incident.groups
        group = ", ".join(groups) if evict is None else evict.group
        self._write(decision(row, group), wait=row.state is EvictionState.DECIDED)

    def quarantined(self, event: QuarantineEvent) -> None:
        """Log a change of the quarantine list. Called from any thread, during the change."""
        self._write(quarantine(event))

    def reloaded(self, seen: Reload) -> None:
        """Log a reload of the policy, refused or not. Called from any thread."""
        self._write([reload(seen)], wait=True)

    @property
    def lines_waiting(self) -> int:
        return 0 if self._log is None else self._log.waiting

    def troubles(self) -> Iterator[str]:
        if self._log is not None and self._log.trouble is not None:
            yield self._log.trouble

    def _write(self, entries: Iterable[Line], *, wait: bool = False) -> None:
        if self._log is not None:
            self._log.put(*entries)
            if wait:
                self._log.flush(_LOG_S)
