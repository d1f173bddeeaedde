"""What the members of one collective have to agree on, and who of them does not.

Theory of operation. A payload is what one rank gave; its signature keeps what the collective's
semantics make equal on all members and leaves out what may differ (ALGORITHMS.md section 4).
Two payloads agree when their signatures are equal, so that a million entries are compared by
grouping signatures. What some members' records do not say (torch's say no root) is compared
between nobody.
Some rules hold only for a collective as a whole: `disagree` adds up all_to_all and counts the
roots of a gather.

The rules are those of torch.distributed.flight_recorder (`components/types.py`, `Op.match`);
docs/decisions.md lists where they differ and why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from monitor.flight_recorder.counts import UNKNOWN_SIZE, claims_root, counts_of, numbers
from monitor.flight_recorder.job import Payload
from monitor.flight_recorder.ops import (
    KNOWN,
    POINT_TO_POINT,
    SIZELESS,
    UNDECIDED,
    closes_coalesced,
    dtype_name,
    op_name,
    peers_of,
)
from monitor.flight_recorder.signature import (
    Signature,
    comparable,
    differences,
    dtype_of,
    payload_of,
    signature,
    signature_of,
    silent,
)

__all__ = [
    "POINT_TO_POINT",
    "UNKNOWN_SIZE",
    "Side",
    "Signature",
    "agree",
    "closes_coalesced",
    "comparable",
    "differences",
    "disagree",
    "dtype_name",
    "majority",
    "op_name",
    "payload_of",
    "peers_of",
    "possible",
    "signature",
    "signature_of",
    "silent",
]

_FOLLOWS: Final = frozenset({"all_gather", "reduce_scatter"})
"""What comes out follows from what goes in and the number of members."""


@dataclass(frozen=True, slots=True)
class Side:
    """Members that did the same thing, where others did something else."""

    signature: Signature
    ranks: tuple[int, ...]
    """Sorted."""


def agree(one: Payload, other: Payload, size: int = UNKNOWN_SIZE) -> bool | None:
    """Whether two members may have called these in the same collective.

    None: undecided. all_to_all may be split as it likes, of an op that nobody here knows the
    sizes mean nothing, and one record may say no sizes at all.
    """
    if one.op in POINT_TO_POINT or other.op in POINT_TO_POINT:
        return _meet(one, other)
    left, right = (signature_of(payload, size) for payload in (one, other))
    if left.op != right.op:
        return False
    left, right = comparable((left, right), size)
    if left != right or not (possible(one, size) and possible(other, size)):
        return False
    if left.counts or left.op in SIZELESS:
        return True
    free = left.op in UNDECIDED or left.op not in KNOWN
    return None if free or _sized(one) or _sized(other) else True


def possible(payload: Payload, size: int = UNKNOWN_SIZE) -> bool:
    """Whether what goes in and what comes out fit each other, as far as the record says both."""
    given, got = (frozenset(filter(None, d)) for d in (payload.dtypes_in, payload.dtypes_out))
    if given and got and given != got and payload.op in KNOWN - SIZELESS - {"gather", "scatter"}:
        return False
    if payload.op == "all_reduce" or (size != UNKNOWN_SIZE and payload.op in _FOLLOWS):
        return not counts_of(payload, size)[1]
    return True


def disagree(payloads: Mapping[int, Payload], size: int = UNKNOWN_SIZE) -> tuple[Side, ...]:
    """The sides of one collective whose members did not all do the same; empty when they did.

    The largest side comes first, then the one with the lowest rank. Where the numbers do not
    fit together and no member can be told from another, each is a side of its own; so no side
    ever has a majority that it did not earn.
    """
    by_rank = {rank: signature_of(payloads[rank], size) for rank in sorted(payloads)}
    if len({one.op for one in by_rank.values()}) == 1:
        by_rank = dict(zip(by_rank, comparable(tuple(by_rank.values()), size), strict=True))
    sides: dict[Signature, list[int]] = {}
    for rank, one in by_rank.items():
        sides.setdefault(one, []).append(rank)
    if len(sides) > 1:
        found = [Side(one, tuple(ranks)) for one, ranks in sides.items()]
        return tuple(sorted(found, key=lambda side: (-len(side.ranks), side.ranks)))
    if sides and len(payloads) == size:
        (common,) = sides
        if common.op == "all_to_all":
            return _unbalanced(payloads, common)
        if common.op in ("gather", "scatter") and common.root is None:
            return _roots(payloads, common)
    return ()


def majority(sides: Iterable[Side], size: int) -> Side | None:
    """The side that more than half of all `size` members are on; None: cannot tell."""
    return next((side for side in sides if 2 * len(side.ranks) > size), None)


# -- parts ---------------------------------------------------------------------------------


def _sized(payload: Payload) -> bool:
    return bool(payload.sizes_in or payload.sizes_out)


def _unbalanced(payloads: Mapping[int, Payload], common: Signature) -> tuple[Side, ...]:
    """all_to_all: what all give together is what all get together (`check_size_alltoall`)."""
    totals = {
        rank: tuple(sum(numbers(sizes)) for sizes in (one.sizes_in, one.sizes_out))
        for rank, one in sorted(payloads.items())
        if one.sizes_in and one.sizes_out
    }
    given, got = (sum(total[n] for total in totals.values()) for n in (0, 1))
    if len(totals) < len(payloads) or given == got:
        return ()
    return tuple(
        Side(replace(common, counts=total[:1], out=total[1:]), (rank,))
        for rank, total in totals.items()
    )


def _roots(payloads: Mapping[int, Payload], common: Signature) -> tuple[Side, ...]:
    """gather, scatter: the root alone has the list of all members' tensors."""
    claims = {rank: claims_root(payload) for rank, payload in sorted(payloads.items())}
    roots = [rank for rank, claim in claims.items() if claim]
    if len(roots) == 1 or len(payloads) == 1 or not all(map(_sized, payloads.values())):
        return ()
    if roots:
        return tuple(Side(replace(common, root=rank), (rank,)) for rank in roots)
    return tuple(Side(common, (rank,)) for rank in claims)


def _meet(one: Payload, other: Payload) -> bool | None:
    """Whether a send and a recv are the two ends of one transfer."""
    if "batch_isend_irecv" in (one.op, other.op):
        return None
    if {one.op, other.op} != {"send", "recv"}:
        return False
    send, recv = (one, other) if one.op == "send" else (other, one)
    ends = peers_of(send.recorded), peers_of(recv.recorded)
    if None not in ends and ends[0] != ends[1]:
        return False
    given, got = numbers(send.sizes_in or send.sizes_out), numbers(recv.sizes_out or recv.sizes_in)
    left, right = dtype_of(send), dtype_of(recv)
    if left is not None and right is not None and left != right:
        return False
    if not (given and got):
        return None
    return given == got
