"""What people do about incidents: acknowledge, assign, comment, resolve, label, silence. Pure.

Theory of operation. Each act is one `WorkRow`, which is never changed; what holds now follows from
the rows in their order. None of them reaches the judgement. A `resolve` closes an incident for
people: messages about it end, and the counts of open incidents leave it out. The fault stays as
it was: it is judged, held or evicted as if nobody had said anything, and only the tracker ends it,
on evidence. If it is seen again after that, it is a new incident, which nobody has resolved. An
`ack` opens a resolved incident again. Both are about the accusation as it was: if the incident
names others by now, nobody has acknowledged or resolved that. A `silence` mutes messages about what
it matches, until its time is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Final

from lightkeeper.monitor.model.incident import Incident
from lightkeeper.monitor.model.names import IncidentId
from lightkeeper.monitor.model.plain import Moment, readable, to_plain
from lightkeeper.monitor.model.units import grouped


class WorkAction(StrEnum):
    ACK = "ack"
    ASSIGN = "assign"
    COMMENT = "comment"
    RESOLVE = "resolve"
    LABEL = "label"
    SENT = "sent"  # a receiver answered where its message is
    SILENCE = "silence"
    UNSILENCE = "unsilence"


_DONE: Final = {
    "ack": "acknowledged", "assign": "assigned to ", "comment": "commented",
    "resolve": "resolved", "label": "labelled ", "sent": "taken", "silence": "silenced",
    "unsilence": "silence ended",
}  # fmt: skip
_LABEL: Final = {None: "", True: "right", False: "wrong"}
MATCHERS: Final = ("kind", "group", "host", "rank", "run")
"""What a silence can match."""


@readable
@dataclass(frozen=True, slots=True)
class WorkRow:
    """One act of one person, or a message's place."""

    action: WorkAction
    author: str
    """Who the client says it is; of `sent` the receiver."""
    at_s: Moment
    about: str = ""
    """The incident; of `unsilence` the silence that ends."""
    text: str = ""
    """Comment or reason; of `sent` the URL."""
    to: str = ""
    """Whom it is assigned to."""
    right: bool | None = None
    """Of a label: whether the accusation was right."""
    kind: str = ""
    """The incident's: labels are counted by kind, also once the incident is forgotten."""
    match: Mapping[str, str] = field(default_factory=dict)
    """Of a silence, by `MATCHERS`: a name, or a pattern such as `rack7-*`. All must match."""
    until_s: Moment | None = None
    """When a silence ends."""
    fingerprint: str = ""
    """The incident's: whom it accused then."""
    id: str = ""

    @property
    def says(self) -> str:
        """`resolved by ann: the disk is changed`."""
        why = f": {self.text}" if self.text else ""
        return f"{_DONE[self.action]}{self.to}{_LABEL[self.right]} by {self.author}{why}"

    @property
    def what(self) -> str:
        """`kind=dead host=rack7-*`."""
        return " ".join(f"{name}={self.match[name]}" for name in MATCHERS if name in self.match)

    def matches(self, incident: Incident) -> bool:
        """True if a silence covers all that the incident accuses, and not only a part."""
        names: Mapping[str, Sequence[str]] = {
            "kind": (incident.kind,), "group": incident.groups, "host": incident.hosts,
            "rank": incident.suspects, "run": (incident.run,),
        }  # fmt: skip
        return bool(self.match) and all(
            names.get(key) and all(name == only or fnmatchcase(name, only) for name in names[key])
            for key, only in self.match.items()
        )


@dataclass(frozen=True, slots=True)
class IncidentWork:
    """The work on one incident."""

    rows: Sequence[WorkRow] = ()
    """Oldest first."""
    fingerprint: str = ""
    """The incident's."""

    def last(self, *actions: WorkAction) -> WorkRow | None:
        return next((row for row in reversed(self.rows) if row.action in actions), None)

    def _stands(self, action: WorkAction) -> WorkRow | None:
        row = self.last(WorkAction.ACK, WorkAction.RESOLVE)
        stands = row is not None and row.action is action and row.fingerprint == self.fingerprint
        return row if stands else None

    @property
    def acknowledged(self) -> WorkRow | None:
        return self._stands(WorkAction.ACK)

    @property
    def resolved(self) -> WorkRow | None:
        """By a person: the fault may still be there."""
        return self._stands(WorkAction.RESOLVE)

    @property
    def assignee(self) -> str:
        """Empty: nobody."""
        row = self.last(WorkAction.ASSIGN)
        return "" if row is None else row.to

    @property
    def right(self) -> bool | None:
        """Whether the accusation was right; None: nobody has said."""
        row = self.last(WorkAction.LABEL)
        return None if row is None else row.right

    @property
    def says(self) -> str:
        """How it stands, in a few words; empty: nobody has done anything."""
        row = self.acknowledged or self.resolved
        assigned = f"assigned to {self.assignee}" if self.assignee else ""
        return "; ".join(filter(None, ("" if row is None else row.says, assigned)))

    def to_json(self) -> dict[str, Any]:
        return {
            "acknowledged_by": None if self.acknowledged is None else self.acknowledged.author,
            "resolved_by": None if self.resolved is None else self.resolved.author,
            "assignee": self.assignee or None,
            "right": self.right,
            "says": self.says,
            "rows": [to_plain(row) for row in self.rows],
        }


@dataclass(frozen=True)  # no slots: a cached property needs `__dict__`
class Work:
    """All of it."""

    rows: tuple[WorkRow, ...] = ()
    """Oldest first."""

    @cached_property
    def _by_incident(self) -> Mapping[str, list[WorkRow]]:
        return grouped((row.about, row) for row in self.rows)

    def about(self, name: IncidentId | str) -> Sequence[WorkRow]:
        return self._by_incident.get(name, ())

    def of(self, incident: Incident) -> IncidentWork:
        return IncidentWork(self.about(incident.id), incident.fingerprint)

    @cached_property
    def _silences(self) -> Sequence[tuple[WorkRow, float]]:
        """Those that nobody ended, and until when."""
        ended = {row.about for row in self.rows if row.action is WorkAction.UNSILENCE}
        some = ((row, row.until_s) for row in self.rows if row.id not in ended)
        return [(row, until_s) for row, until_s in some if until_s is not None]

    def silences(self, now_s: float) -> tuple[WorkRow, ...]:
        """Those that hold now, oldest first."""
        return tuple(row for row, until_s in self._silences if now_s < until_s)

    def silence_of(self, incident: Incident, now_s: float) -> WorkRow | None:
        """The silence that mutes messages about an incident now."""
        return next((row for row in self.silences(now_s) if row.matches(incident)), None)

    @cached_property
    def labels(self) -> Mapping[str, Counter[bool]]:
        """Kind of fault -> how many accusations were right, and how many wrong: each incident by
        its last label.
        """
        last = {row.about: row for row in self.rows if row.right is not None}
        by_kind = grouped((row.kind, bool(row.right)) for row in last.values())
        return {kind: Counter(by_kind[kind]) for kind in sorted(by_kind)}
