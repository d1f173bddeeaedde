"""A payload's signature: what all members of one collective have in common.

Sizes count as numbers of elements: a backend moves elements and knows no shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from monitor.flight_recorder.counts import UNKNOWN_SIZE, counts_of, swapped
from monitor.flight_recorder.job import Payload
from monitor.flight_recorder.ops import (
    REDUCING,
    ROOTED,
    SIZELESS,
    dtype_name,
    dtype_nbytes,
    op_name,
)

_Sizes = tuple[tuple[int, ...], ...]


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


def signature(
    recorded_op: str,
    sizes_in: _Sizes,
    sizes_out: _Sizes,
    *,
    dtype: str | None = None,
    reduce_op: str | None = None,
    root: int | None = None,
) -> Signature:
    """`signature_of` for a single entry whose group's size is not known."""
    dtypes = () if dtype is None else (dtype,)
    payload = payload_of(
        recorded_op, sizes_in, sizes_out,
        dtypes_in=dtypes, dtypes_out=dtypes, reduce_op=reduce_op, root=root,
    )  # fmt: skip
    return replace(signature_of(payload), out=())


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
