"""The normal form: what every detector reads, whatever wrote it down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from monitor.flight_recorder.semantics import (
    POINT_TO_POINT,
    Signature,
    dtype_name,
    op_name,
    signature,
)
from monitor.names import RankName

__all__ = [
    "POINT_TO_POINT",
    "Entry",
    "EntryState",
    "FlightRecordError",
    "RankRecord",
    "Signature",
    "Source",
    "dtype_name",
    "op_name",
    "signature",
]


class FlightRecordError(ValueError):
    """A record that cannot be read; the message says what is wrong with it."""


class Source(StrEnum):
    """Who wrote a record down; each leaves other things out."""

    RING = "ring"  # the WorkerServer's own ring: call site, nth, root, enter and exit
    TORCH = "torch"  # torch's recorder: states and times with NCCL, neither with gloo


class EntryState(StrEnum):
    """How far a collective got, as far as its writer can tell."""

    SCHEDULED = "scheduled"
    STARTED = "started"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class Entry:
    """One collective of one rank."""

    process_group: str
    seq: int
    """Counted from 1 in its process group."""
    signature: Signature
    state: EntryState
    nth: int | None = None
    """Position among this process group's collectives in one attempt of a step, from 0."""
    step: int | None = None
    attempt: int | None = None
    site: str | None = None
    entered_age_s: float | None = None
    left_age_s: float | None = None
    error: str | None = None

    @property
    def unfinished(self) -> bool:
        """Whether the rank did not get out of it, or got out with an error."""
        return self.state is not EntryState.COMPLETED or self.error is not None


@dataclass(frozen=True, slots=True)
class RankRecord:
    """The collectives of one rank, oldest first, without point-to-point operations."""

    rank: RankName
    incarnation: str
    source: Source
    entries: tuple[Entry, ...]
    members: Mapping[str, tuple[int, ...]]
    """Process group -> group ranks, as far as the rank knows."""
    dropped: int = 0
    """Entries overwritten before they could be read."""

    def at(self, process_group: str, seq: int) -> Entry | None:
        """The entry of one collective, or None when it is not recorded."""
        for entry in reversed(self.entries):
            if entry.seq == seq and entry.process_group == process_group:
                return entry
        return None

    def of(self, process_group: str) -> tuple[Entry, ...]:
        """The entries of one process group, oldest first."""
        return tuple(entry for entry in self.entries if entry.process_group == process_group)
