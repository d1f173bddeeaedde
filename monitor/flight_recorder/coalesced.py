"""Several calls issued as one: NCCL's coalesced operations, and sends that meet receives.

NCCL records each call of a coalesced operation as an entry of its own under one sequence id and
closes it with an entry without sizes. The whole is compared, not its parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from monitor.flight_recorder.job import Payload
from monitor.flight_recorder.semantics import (
    POINT_TO_POINT,
    agree,
    closes_coalesced,
    op_name,
)


def fold(parts: Sequence[Payload]) -> Payload:
    """One payload for the entries of one coalesced operation, in their order, its end included.

    An uneven all_gather keeps what comes out and an uneven reduce_scatter what goes in: that is
    equal on all members. Calls of one op become that op over many tensors; a mixture is named
    `all_reduce+broadcast` and its sizes stay undecided. Sends and receives differ on every member
    by their nature and become `batch_isend_irecv`, which agrees with nothing and contradicts
    nothing; `pair_up` compares those. Of an operation whose first entries may have been overwritten
    nothing can be said: do not fold it.

    Raises:
        ValueError: no entries.
    """
    if not parts:
        raise ValueError("a coalesced operation has at least one entry")
    end = parts[-1]
    closed = closes_coalesced(end.recorded)
    calls = parts[:-1] if closed else parts
    if not calls or (len(parts) == 1):
        return end
    ops = list(dict.fromkeys(call.op for call in calls))
    whole = op_name(end.recorded) if closed else "coalesced"
    if any(op in POINT_TO_POINT for op in ops):
        return Payload(op="batch_isend_irecv", recorded=end.recorded)
    uneven = whole != "coalesced"
    given, got = (whole != "all_gather", whole != "reduce_scatter") if uneven else (True, True)
    return Payload(
        op=whole if uneven else "+".join(ops),
        recorded=end.recorded,
        sizes_in=tuple(chain.from_iterable(c.sizes_in for c in calls)) if given else (),
        sizes_out=tuple(chain.from_iterable(c.sizes_out for c in calls)) if got else (),
        dtypes_in=tuple(chain.from_iterable(c.dtypes_in for c in calls)),
        dtypes_out=tuple(chain.from_iterable(c.dtypes_out for c in calls)),
    )


@dataclass(frozen=True, slots=True)
class Transfer:
    """One send or receive of one rank."""

    rank: int
    peer: int
    """In the same numbering as `rank`: of the job or of the group."""
    payload: Payload

    @property
    def way(self) -> tuple[int, int]:
        """From, to."""
        ends = (self.rank, self.peer)
        return ends if self.payload.op == "send" else ends[::-1]


@dataclass(frozen=True, slots=True)
class Pairing:
    """Which transfers meet; numbers are places in the sequence that was given."""

    met: tuple[tuple[int, int], ...] = ()
    """(send, receive)"""
    clashing: tuple[tuple[int, int], ...] = ()
    """(send, receive) that are each other's turn and differ in size or dtype."""
    unanswered: tuple[int, ...] = ()


def pair_up(transfers: Sequence[Transfer]) -> Pairing:
    """Match sends with receives, first with first on each way from one rank to another.

    Between two ways the order is free; on one way it is not: NCCL and gloo deliver in order
    (rule 3 of torch's `match_coalesced_groups`).
    """
    ways: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
    for place, transfer in enumerate(transfers):
        sends, receives = ways.setdefault(transfer.way, ([], []))
        (sends if transfer.payload.op == "send" else receives).append(place)
    met: list[tuple[int, int]] = []
    clashing: list[tuple[int, int]] = []
    unanswered: list[int] = []
    for _, (sends, receives) in sorted(ways.items()):
        for send, receive in zip(sends, receives, strict=False):
            fits = agree(transfers[send].payload, transfers[receive].payload)
            (clashing if fits is False else met).append((send, receive))
        shared = min(len(sends), len(receives))
        unanswered += [*sends[shared:], *receives[shared:]]
    return Pairing(tuple(met), tuple(clashing), tuple(sorted(unanswered)))
