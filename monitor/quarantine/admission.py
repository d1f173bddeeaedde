"""The answer to a launcher. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.names import Host
from monitor.store import QuarantineEntry, Scope


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a group may start on a host, and why."""

    admit: bool
    reason: str
    until_s: float | None = None
    """None where nobody knows: until a person releases it."""
    entries: tuple[QuarantineEntry, ...] = ()
    """What refuses it."""


def admission(host: Host, entries: tuple[QuarantineEntry, ...]) -> Admission:
    """Whether a group may start there, with what is in force for the host and the group."""
    if not entries:
        return Admission(True, f"{host} is not quarantined")
    ends = [entry.until_s for entry in entries]
    known = [end for end in ends if end is not None]
    until_s = max(known) if len(known) == len(ends) else None
    return Admission(False, "; ".join(map(sentence, entries)), until_s, entries)


def sentence(entry: QuarantineEntry) -> str:
    """Why a launcher is refused."""
    what = f"group {entry.name}" if entry.scope is Scope.GROUP else entry.name
    note = f" ({entry.note})" if entry.note else ""
    return f"{what} is quarantined by {entry.author}: {entry.reason}{note}"
