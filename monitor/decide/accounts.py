"""The account of one incident: who decided, what came of it, what it cost. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from lightkeeper.monitor.model.eviction import KEEPER, DecisionRow, Eviction, Guard, Hold
from lightkeeper.monitor.model.incident import Incident, State
from lightkeeper.monitor.model.verdict import Kind

AFTERMATH_S: Final = 600.0
"""How long after its end something may still be learned of an incident: `follow_s` by default."""

# -- account -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IncidentAccount:
    decided_by: str
    """`lightkeeper`, a person, or `nobody`."""
    why: str
    """The rule, or the guard that held."""
    outcome: str
    """One of `evicted`, `evicting`, `failed`, `observed` (would have been evicted), `held`,
    `watched` (there is no Lighthouse), `passed`, `open`."""
    lost: float | None
    """Rank-seconds that the ledger booked on it (`rank_seconds`); None: not known."""
    final: bool
    """Whether it can no longer change."""

    @property
    def evicted(self) -> bool:
        """Whether an eviction was asked for."""
        return self.outcome in ("evicted", "evicting", "failed")

    @property
    def cost(self) -> str:
        return "cannot tell" if self.lost is None else f"at least {self.lost:.0f} rank-seconds"


def account(
    incident: Incident,
    rows: Sequence[DecisionRow],
    lost: float | None,
    now_s: float,
) -> IncidentAccount:
    """The account of this incident.

    Args:
        incident: as it is now.
        rows: its decisions, oldest first.
        lost: what it cost, in rank-seconds; None: not known.
        now_s: unix time.
    """
    evicts = [row for row in rows if isinstance(row, Eviction)]
    holds = [row for row in rows if isinstance(row, Hold)]
    tried = [eviction for eviction in evicts if eviction.taken_up]
    asked = incident.milestones.evict_asked_s is not None or bool(tried)
    by, why = "nobody", "nothing was to be decided"
    if evicts or asked:
        confidence = incident.verdict.confidence
        by = evicts[-1].author if evicts else KEEPER
        why = f"{incident.kind} is evicted when it fires, {confidence}, and no guard holds"
        why = why if by == KEEPER else evicts[-1].reason
    elif holds:
        guard, why = holds[-1].guard, holds[-1].reason
        why = why if guard is Guard.WATCH_ONLY else f"held by {guard}: {why}"
    marks = incident.milestones
    back = marks.survivor_commit_s is not None and marks.rejoined_s is not None
    over = incident.ended_s is not None and now_s - incident.ended_s > AFTERMATH_S
    return IncidentAccount(
        decided_by=by,
        why=why,
        outcome=_tried(incident, tried) if asked else _outcome(incident, holds),
        lost=lost,
        final=over or (back and not incident.open),
    )


def _tried(incident: Incident, evictions: Sequence[Eviction]) -> str:
    if evictions and evictions[-1].failed is not None:
        return "failed"
    return "evicting" if incident.open else "evicted"


def _outcome(incident: Incident, holds: Sequence[Hold]) -> str:
    """What came of it where no eviction was asked for."""
    if holds and holds[-1].would is not None:
        return "observed"
    if guards := {hold.guard for hold in holds}:
        return "watched" if guards == {Guard.WATCH_ONLY} else "held"
    return "open" if incident.open else "passed"


@dataclass(frozen=True, slots=True)
class Totals:
    """What some incidents came to."""

    incidents: int
    """Those that fired."""
    evictions: int
    lost: float
    """Rank-seconds, at least."""
    unknown: int
    """How many have a cost that is not known: they are counted, not taken for zero."""


def totals_of(accounts: Sequence[IncidentAccount]) -> Totals:
    """The sum of these accounts, of incidents that fired."""
    lost = [each.lost for each in accounts if each.lost is not None]
    evictions = sum(each.evicted for each in accounts)
    return Totals(len(accounts), evictions, round(sum(lost), 1), len(accounts) - len(lost))


# -- choose ------------------------------------------------------------------------------------

_SPAN: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhdw]?)")
OPEN: Final = "open"
_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


class ChoiceError(ValueError):
    """What was asked for cannot be looked up; one line for a person."""


class NoSuchIncidentError(ChoiceError):
    """No incident id begins with this."""


def span_s(text: str) -> float:
    """Seconds of `90s`, `15m`, `12h`, `7d`, `2w`; a plain number is seconds.

    Raises:
        ChoiceError: it is none of these.
    """
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise ChoiceError(f"since is {text!r}, expected a span such as 90s, 15m, 12h, 7d or 2w")
    return float(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which incidents are asked for; None: all."""

    since_s: float | None = None
    """Unix time: incidents that were still open then, or began later."""
    kind: Kind | None = None
    group: str | None = None
    state: str | None = None
    """A `State`, or `open`: all but resolved."""
    run: str | None = None
    """That they began in."""

    @classmethod
    def of(
        cls,
        since: str | None,
        kind: str | None,
        group: str | None,
        now_s: float,
        *,
        state: str | None = None,
        run: str | None = None,
    ) -> Choice:
        """From what a person typed.

        Raises:
            ChoiceError: one of them is not valid.
        """
        since_s = None if not since else now_s - span_s(since)
        if kind and kind not in list(Kind):
            raise ChoiceError(f"kind is {kind[:60]!r}, expected one of {', '.join(Kind)}")
        if state and state not in (OPEN, *State):
            states = ", ".join((OPEN, *State))
            raise ChoiceError(f"state is {state[:60]!r}, expected one of {states}")
        kinds = Kind(kind) if kind else None
        return cls(since_s, kinds, group or None, state or None, run or None)

    def takes(self, incident: Incident) -> bool:
        if self.kind is not None and incident.kind is not self.kind:
            return False
        if self.group is not None and self.group not in incident.groups:
            return False
        if self.run is not None and self.run != incident.run:
            return False
        states = (incident.state, OPEN) if incident.open else (incident.state,)
        if self.state is not None and self.state not in states:
            return False
        ended_s = max(incident.last_seen_s, incident.milestones.first_seen_s)
        return self.since_s is None or incident.open or ended_s >= self.since_s

    def among(self, incidents: Iterable[Incident]) -> list[Incident]:
        """The incidents asked for, in their order."""
        return [incident for incident in incidents if self.takes(incident)]


def find(incidents: Sequence[Incident], prefix: str) -> Incident:
    """The incident with this id, or the only one whose id begins with it.

    Raises:
        ChoiceError: several do; `NoSuchIncidentError`: none does.
    """
    near = [incident for incident in incidents if incident.id.startswith(prefix)]
    exact = [incident for incident in near if incident.id == prefix]
    if len(exact or near) == 1:
        return (exact or near)[0]
    if not near or not prefix:
        raise NoSuchIncidentError(f"no such incident: {prefix}")
    names = ", ".join(incident.id for incident in near[:5]) + (" ..." if len(near) > 5 else "")
    raise ChoiceError(f"{len(near)} incidents begin with {prefix}: {names}")
