"""Which incidents somebody asks for: by time, kind and group, or by how its id begins. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from monitor.detectors.verdict import Kind
from monitor.incident import Incident, State

_SPAN: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhdw]?)")
OPEN: Final = "open"
_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


class ChoiceError(ValueError):
    """One line for a person: what was asked for cannot be looked up."""


class NoSuchIncidentError(ChoiceError):
    """Nothing begins so."""


def span_s(text: str) -> float:
    """Seconds of `90s`, `15m`, `12h`, `7d`, `2w`; a plain number is seconds.

    Raises:
        ChoiceError: it is none of these.
    """
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise ChoiceError(f"since is {text!r}, expected a span such as 90s, 15m, 12h, 7d or 2w")
    return float(found[1]) * _UNITS[found[2]]


@dataclass(frozen=True, slots=True)
class Choice:
    """What is asked for; None: all."""

    since_s: float | None = None
    """Unix time: incidents that were still open then, or began later."""
    kind: Kind | None = None
    group: str | None = None
    state: str | None = None
    """A `State`, or `open`: all but resolved."""

    @classmethod
    def of(
        cls,
        since: str | None,
        kind: str | None,
        group: str | None,
        now_s: float,
        state: str | None = None,
    ) -> Choice:
        """From the words of a person.

        Raises:
            ChoiceError: one of them means nothing.
        """
        since_s = None if not since else now_s - span_s(since)
        if kind and kind not in list(Kind):
            raise ChoiceError(f"kind is {kind[:60]!r}, expected one of {', '.join(Kind)}")
        if state and state not in (OPEN, *State):
            states = ", ".join((OPEN, *State))
            raise ChoiceError(f"state is {state[:60]!r}, expected one of {states}")
        return cls(since_s, Kind(kind) if kind else None, group or None, state or None)

    def takes(self, one: Incident) -> bool:
        """Whether an incident is asked for."""
        if self.kind is not None and one.kind is not self.kind:
            return False
        if self.group is not None and self.group not in one.groups:
            return False
        if self.state is not None and self.state not in (one.state, OPEN if one.open else ""):
            return False
        ended_s = math.inf if one.open else max(one.last_seen_s, one.milestones.first_seen_s)
        return self.since_s is None or ended_s >= self.since_s

    def among(self, incidents: Iterable[Incident]) -> list[Incident]:
        """Those that are asked for, in their order."""
        return [one for one in incidents if self.takes(one)]


def find(incidents: Sequence[Incident], prefix: str) -> Incident:
    """The incident whose id this is, or begins so if no other does.

    Raises:
        ChoiceError: several begin so; `NoSuchIncidentError`: none does.
    """
    found = [one for one in incidents if one.id.startswith(prefix)]
    exact = [one for one in found if one.id == prefix]
    if len(exact or found) == 1:
        return (exact or found)[0]
    if not found or not prefix:
        raise NoSuchIncidentError(f"no such incident: {prefix}")
    some = ", ".join(one.id for one in found[:5]) + (" ..." if len(found) > 5 else "")
    raise ChoiceError(f"{len(found)} incidents begin with {prefix}: {some}")
