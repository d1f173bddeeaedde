"""The normal form: what every detector reads, whatever wrote it down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from monitor.flight_recorder.signature import Signature


class FlightRecordError(ValueError):
    """A record that cannot be read; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One collective of one rank."""

    process_group: str
    seq: int
    """Counted from 1 in its process group."""
    signature: Signature
    left: bool
    """Whether the rank got out of it."""
    nth: int | None = None
    """Position among this process group's collectives in one attempt of a step, from 0."""
    attempt: int | None = None
    site: str | None = None
    error: str | None = None

    @property
    def unfinished(self) -> bool:
        """Whether the rank did not get out of it, or got out with an error."""
        return not self.left or self.error is not None


@dataclass(frozen=True, slots=True)
class RankRecord:
    """The collectives of one rank, oldest first, without point-to-point operations."""

    incarnation: str
    entries: tuple[Entry, ...]
    members: Mapping[str, tuple[int, ...]]
    """Process group -> group ranks, as far as the rank knows."""

    def at(self, process_group: str, seq: int) -> Entry | None:
        """The entry of one collective, or None when it is not recorded."""
        for entry in reversed(self.entries):
            if entry.seq == seq and entry.process_group == process_group:
                return entry
        return None

    def of(self, process_group: str) -> tuple[Entry, ...]:
        """The entries of one process group, oldest first."""
        return tuple(entry for entry in self.entries if entry.process_group == process_group)
