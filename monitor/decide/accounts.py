"""The account of one incident: who decided, what came of it, what it cost. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lightkeeper.monitor.model.eviction import KEEPER, Decision, Eviction, Guard, rulings, taken_up
from lightkeeper.monitor.model.incident import Incident, State
from lightkeeper.monitor.model.verdict import Kind
from lightkeeper.monitor.model.work import Work

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
    """True if it can no longer change."""

    @property
    def evicted(self) -> bool:
        """True if an eviction was asked for."""
        return self.outcome in ("evicted", "evicting", "failed")

    @property
    def cost(self) -> str:
        return "cannot tell" if self.lost is None else f"at least {self.lost:.0f} rank-seconds"


def account(
    incident: Incident, rows: Sequence[Decision], lost: float | None, now_s: float
) -> IncidentAccount:
    """`rows`: its decisions, oldest first; `lost`: its cost in rank-seconds; None: not known."""
    ruled = rulings(rows)
    marks = incident.milestones
    asked = marks.evict_asked_s is not None or bool(taken_up(rows))
    by, why = _decided(incident, ruled, asked=asked)
    back = marks.survivor_commit_s is not None and marks.rejoined_s is not None
    over = incident.ended_s is not None and now_s - incident.ended_s > AFTERMATH_S
    return IncidentAccount(
        decided_by=by,
        why=why,
        outcome=_outcome(incident, ruled, asked=asked),
        lost=lost,
        final=over or (back and not incident.open),
    )


def _decided(incident: Incident, rows: Sequence[Decision], *, asked: bool) -> tuple[str, str]:
    """Who decided, and why."""
    evicts = [row for row in rows if isinstance(row, Eviction)]
    if evicts and evicts[-1].author != KEEPER:
        return evicts[-1].author, evicts[-1].reason
    if evicts or asked:
        confidence = incident.verdict.confidence
        return KEEPER, f"{incident.kind} is evicted when it fires, {confidence}, and no guard holds"
    if not rows:
        return "nobody", "nothing was to be decided"
    guard, why = rows[-1].guard, rows[-1].reason
    return "nobody", why if guard is Guard.WATCH_ONLY else f"held by {guard}: {why}"


def _outcome(incident: Incident, rows: Sequence[Decision], *, asked: bool) -> str:
    if asked:
        failed = any(eviction.failed is not None for eviction in taken_up(rows)[-1:])
        return "failed" if failed else "evicting" if incident.open else "evicted"
    if rows and rows[-1].action == "would_evict":
        return "observed"
    if guards := {row.guard for row in rows if row.action == "hold"}:
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
    """Incidents whose cost is not known: they are counted, not taken for zero."""


def totals_of(accounts: Sequence[IncidentAccount]) -> Totals:
    """The sum of these accounts, of incidents that fired."""
    lost = [each.lost for each in accounts if each.lost is not None]
    evictions = sum(each.evicted for each in accounts)
    return Totals(len(accounts), evictions, round(sum(lost), 1), len(accounts) - len(lost))


# -- choose ------------------------------------------------------------------------------------

_SPAN: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhdw]?)")
OPEN: Final = "open"
_NO_WORK: Final = Work()
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


WORDS: Final = ("since", "kind", "group", "state", "run")
"""What incidents can be chosen by. State: a `State`, or `open`: all but resolved."""


def choose(
    incidents: Iterable[Incident], words: Mapping[str, str], now_s: float, work: Work = _NO_WORK
) -> list[Incident]:
    """The incidents that a person asks for, in their order. `words`: of `WORDS`, what was typed.
    Those that a person has resolved, by `work`, are not `open`.

    Raises:
        ChoiceError: one of them is not valid.
    """
    since, kind, group, state, run = (words.get(name, "") for name in WORDS)
    since_s = now_s - span_s(since) if since else -math.inf
    for name, word, valid in (("kind", kind, (*Kind,)), ("state", state, (OPEN, *State))):
        if word and word not in valid:
            raise ChoiceError(f"{name} is {word[:60]!r}, expected one of {', '.join(valid)}")

    def fits(incident: Incident) -> bool:
        last_s = max(incident.last_seen_s, incident.milestones.first_seen_s)
        return (
            (incident.open or last_s >= since_s)
            and kind in ("", incident.kind)
            and (not group or group in incident.groups)
            and (state in ("", incident.state) or (state == OPEN and _is_open(incident, work)))
            and run in ("", incident.run)
        )

    return [incident for incident in incidents if fits(incident)]


def _is_open(incident: Incident, work: Work) -> bool:
    return incident.open and work.of(incident).resolved is None


def find_incident(incidents: Sequence[Incident], prefix: str) -> Incident:
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
