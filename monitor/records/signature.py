"""What the members of one collective have to agree on, and who of them does not.

Theory of operation. A payload is what one rank gave; its signature keeps what the collective's
semantics make equal on all members and leaves out what may differ (ALGORITHMS.md section 4).
Sizes count as numbers of elements: a backend moves elements and knows no shapes. Two payloads
agree when their signatures are equal, so that a million entries are compared by grouping
signatures. What some members' records do not say (torch's say no root) is compared between nobody.
Some rules hold only for a collective as a whole: `disagree` adds up all_to_all and counts the
roots of a gather.

A record may be incomplete: the ring cuts off long lists of shapes, NCCL's all_to_all of lists
records the first tensor only, its gather and scatter stand in an undefined tensor where only the
root has a list. A number that cannot be relied on is left out and never compared.

The rules are those of torch.distributed.flight_recorder (`components/types.py`, `Op.match`);
docs/decisions.md lists where they differ and why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

from monitor.records.job import Payload
from monitor.records.ops import REDUCING, ROOTED, SIZELESS, dtype_name, dtype_nbytes, op_name

UNKNOWN_SIZE: Final = 0
"""For `size`, where the members of a group are not known, or only some of them (inferred)."""

_Counts = tuple[int, ...]
_Sizes = tuple[_Counts, ...]


def numbers(sizes: _Sizes) -> _Counts:
    """Elements of each tensor; a scalar has one."""
    return tuple(prod(size) for size in sizes)


def counts_of(payload: Payload, size: int) -> tuple[_Counts, _Counts]:
    """Element counts that are equal on all members: what goes in, and what comes out.

    The second is empty where it follows from the first and `size`; when it is not and `size` is
    known, the payload contradicts itself.
    """
    given, got = numbers(payload.sizes_in), numbers(payload.sizes_out)
    match payload.op:
        case "all_reduce" | "broadcast" | "reduce":
            differs = len(given) == len(got) and given != got
            return given or got, got if differs else ()
        case "all_gather":
            return _gathered(given, got, size)
        case "reduce_scatter":
            return _scattered(given, got, size)
        case "gather" | "scatter":
            received = payload.op == "scatter" and not swapped(payload)
            return (got if received else given), ()
        case _:
            return (), ()


def claims_root(payload: Payload) -> bool:
    """Of gather and scatter: whether this member holds the list that only the root has."""
    given, got = numbers(payload.sizes_in), numbers(payload.sizes_out)
    held = got if payload.op == "gather" or swapped(payload) else given
    return len(held) > 1 or sum(held) > 0


def swapped(payload: Payload) -> bool:
    """Of scatter: whether what the member gets stands where what it gives should.

    ProcessGroupNCCL::scatter hands its outputs to the recorder as inputs and the other way
    round, gloo's does not. The root's list has a tensor for each member.
    """
    given, got = numbers(payload.sizes_in), numbers(payload.sizes_out)
    return payload.op == "scatter" and len(given) == 1 and (len(got) != 1 or got == (0,))


def _gathered(given: _Counts, got: _Counts, size: int) -> tuple[_Counts, _Counts]:
    """Each gives the same, and gets that times `size`; uneven: all get the same list."""
    if not given:
        return got, ()
    if len(given) == 1 and len(got) > 1:
        if size not in (UNKNOWN_SIZE, len(got)):
            return ((), ()) if _uneven(got) else (given, ())
        if _uneven(got):
            return got, ()
        got = (sum(got),)
    if len(given) != len(got) or (size and got == tuple(count * size for count in given)):
        return given, ()
    return given, got


def _scattered(given: _Counts, got: _Counts, size: int) -> tuple[_Counts, _Counts]:
    """Each gets its share of what all give equally; uneven: all give the same list."""
    if len(got) == 1 and len(given) > 1:
        if size not in (UNKNOWN_SIZE, len(given)):
            return (), ()
        if _uneven(given):
            return given, ()
        given = (sum(given),)
    if len(given) != len(got) or (size and given == tuple(count * size for count in got)):
        return given, ()
    return given, got


def _uneven(counts: _Counts) -> bool:
    return len(set(counts)) > 1


@dataclass(frozen=True, slots=True)
class Signature:
    """What all members of one collective must agree on; what may differ is left out."""

    op: str
    counts: tuple[int, ...] = ()
    """Element counts that the collective's semantics make equal on every member."""
    dtype: str | None = None
    reduce_op: str | None = None
    root: int | None = None
    out: tuple[int, ...] = ()
    """Element counts of what comes out, where they do not follow from `counts`."""

    def __str__(self) -> str:
        parts = [self.op]
        if self.counts:
            parts.append("of " + "+".join(str(count) for count in self.counts))
        if self.out:
            parts.append("into " + "+".join(str(count) for count in self.out))
        if self.dtype is not None:
            parts.append(self.dtype)
        if self.reduce_op is not None:
            parts.append(self.reduce_op)
        if self.root is not None:
            parts.append(f"root {self.root}")
        return " ".join(parts)


def payload_of(
    recorded: str,
    sizes_in: _Sizes = (),
    sizes_out: _Sizes = (),
    *,
    dtypes_in: Iterable[str] = (),
    dtypes_out: Iterable[str] = (),
    reduce_op: str | None = None,
    root: int | None = None,
) -> Payload:
    """A payload with all names in normal form, from what a record says."""
    return Payload(
        op=op_name(recorded),
        recorded=recorded,
        sizes_in=sizes_in,
        sizes_out=sizes_out,
        dtypes_in=tuple(dtype_name(one) or "" for one in dtypes_in),
        dtypes_out=tuple(dtype_name(one) or "" for one in dtypes_out),
        reduce_op=reduce_name(reduce_op),
        root=root,
    )


def signature_of(payload: Payload, size: int = UNKNOWN_SIZE) -> Signature:
    """What a payload's collective has to have in common, in a group of `size` members."""
    op = payload.op
    counts, out = counts_of(payload, size)
    return Signature(
        op=op,
        counts=counts,
        dtype=None if op in SIZELESS else dtype_of(payload),
        reduce_op=payload.reduce_op if op in REDUCING else None,
        root=payload.root if op in ROOTED else None,
        out=out,
    )


def silent(one: Signature, other: Signature) -> bool:
    """Whether two differing calls may complete together and leave wrong numbers behind.

    So it is when both move the same bytes: int32 beside float32, or MAX beside SUM (seen with
    gloo, facts/torch_debug_plane.md section 3).
    """
    if one == other or one.op != other.op or one.root != other.root:
        return False
    weight = _weight(one)
    return weight is not None and weight == _weight(other)


def comparable(signatures: Sequence[Signature], size: int = UNKNOWN_SIZE) -> tuple[Signature, ...]:
    """The same, of one op, without what some of them do not say: nobody differs by silence."""
    blank: dict[str, Any] = {
        name: None
        for name in ("dtype", "reduce_op", "root")
        if any(getattr(one, name) is None for one in signatures)
    }
    if not all(one.counts for one in signatures):
        blank |= {"counts": (), "out": ()}
    elif size == UNKNOWN_SIZE and not all(one.out for one in signatures):
        blank["out"] = ()
    return tuple(replace(one, **blank) for one in signatures)


def dtype_of(payload: Payload) -> str | None:
    """Of all tensors when they are the same, else of each in order."""
    gets = payload.op == "scatter" and not swapped(payload)
    pair = (payload.dtypes_in, payload.dtypes_out)
    first, second = (_defined(one) for one in (pair[::-1] if gets else pair))
    names = first or second
    return None if not names else names[0] if len(set(names)) == 1 else "+".join(names)


def _defined(names: Iterable[str]) -> tuple[str, ...]:
    """Without the stand-ins for tensors that only a root has."""
    return tuple(name for name in names if name)


def _weight(signature: Signature) -> tuple[int, ...] | None:
    """Bytes of each tensor, or of one element where sizes are free."""
    width = None if signature.dtype is None else dtype_nbytes(signature.dtype)
    if width is None:
        return None
    return tuple(count * width for count in signature.counts or (1,))


def reduce_name(recorded: str | None) -> str | None:
    """One name for one reduction: `ReduceOp.SUM`, `<RedOpType.SUM: 0>` and `sum` are the same."""
    return None if recorded is None else recorded.rpartition(".")[2].strip("<>: ").lower()


@dataclass(frozen=True, slots=True)
class CallSide:
    """Members that did the same thing, where others did something else."""

    signature: Signature
    ranks: tuple[int, ...]
    """Sorted."""


def disagree(payloads: Mapping[int, Payload], size: int = UNKNOWN_SIZE) -> tuple[CallSide, ...]:
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
        found = [CallSide(one, tuple(ranks)) for one, ranks in sides.items()]
        return tuple(sorted(found, key=lambda side: (-len(side.ranks), side.ranks)))
    if sides and len(payloads) == size:
        (common,) = sides
        if common.op == "all_to_all":
            return _unbalanced(payloads, common)
        if common.op in ("gather", "scatter") and common.root is None:
            return _roots(payloads, common)
    return ()


def _sized(payload: Payload) -> bool:
    return bool(payload.sizes_in or payload.sizes_out)


def _unbalanced(payloads: Mapping[int, Payload], common: Signature) -> tuple[CallSide, ...]:
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
        CallSide(replace(common, counts=total[:1], out=total[1:]), (rank,))
        for rank, total in totals.items()
    )


def _roots(payloads: Mapping[int, Payload], common: Signature) -> tuple[CallSide, ...]:
    """gather, scatter: the root alone has the list of all members' tensors."""
    claims = {rank: claims_root(payload) for rank, payload in sorted(payloads.items())}
    roots = [rank for rank, claim in claims.items() if claim]
    if len(roots) == 1 or len(payloads) == 1 or not all(map(_sized, payloads.values())):
        return ()
    if roots:
        return tuple(CallSide(replace(common, root=rank), (rank,)) for rank in roots)
    return tuple(CallSide(common, (rank,)) for rank in claims)
