"""What one WorkerServer's answer holds, row by row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from monitor.flight_recorder import dump
from monitor.flight_recorder.job import NONE, Payload, State
from worker_server.wire import ACROSS, FlightRecord


class GroupKey(NamedTuple):
    """A process group as one rank speaks of it."""

    name: str
    places: tuple[int, ...] = ()
    """Group ranks of its members within the replica group, when known."""
    quorum: int | None = None
    age: int = 0
    """How many newer ones of the same name there are, where sequence ids began again."""

    @property
    def across(self) -> bool:
        """Whether it spans replica groups."""
        return self.name.partition(".")[0] == ACROSS


@dataclass(frozen=True, slots=True)
class Row:
    """One collective of one rank; ranks are those of the replica group."""

    group: GroupKey
    seq: int
    payload: Payload
    state: State
    op_id: int = NONE
    record: int = NONE
    site: str | None = None
    p2p: bool = False
    peer: int = NONE
    created_ns: int = NONE
    started_ns: int = NONE
    completed_ns: int = NONE
    torch_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """One rank's record in both forms."""

    record: FlightRecord
    path: str = ""
    ring: tuple[Row, ...] = ()
    torch: tuple[Row, ...] = ()
    """In the groups of the ring, as far as they can be told to be the same."""
    dumps: tuple[tuple[dump.Dump, tuple[GroupKey, ...]], ...] = ()
    """Torch's records, and their groups in the ring's terms."""
    taken_ns: int = NONE
    problem: str | None = None
    """Of each group of `dump` the ring's."""
    alone: frozenset[int] = field(default=frozenset())
    """Record ids of torch's that no entry of the ring explains."""
