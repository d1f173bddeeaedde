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

from collections.abc import Mapping
from dataclasses import dataclass, replace

from monitor.flight_recorder.counts import UNKNOWN_SIZE, claims_root, numbers
from monitor.flight_recorder.job import Payload
from monitor.flight_recorder.signature import Signature, comparable, signature_of


@dataclass(frozen=True, slots=True)
class Side:
    """Members that did the same thing, where others did something else."""

    signature: Signature
    ranks: tuple[int, ...]
    """Sorted."""


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
