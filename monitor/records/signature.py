"""Names of collectives; what their members have to agree on, and who does not.

Theory of operation. A payload is what one rank passed to a collective. Its signature keeps what
the collective's semantics make equal on all members and omits what may differ (ALGORITHMS.md
section 4). Sizes are compared as element counts: a backend moves elements and knows no shapes. Two
payloads agree when their signatures are equal, so a million entries are compared by grouping
signatures. What some members' records lack (torch's have no root) is not compared at all
(`divergence`). Some rules hold only for a collective as a whole: `odd_whole` adds up all_to_all and
counts the roots of a gather.

A record may be incomplete: the ring cuts off long lists of shapes, NCCL's all_to_all of lists
records only the first tensor, its gather and scatter put an undefined tensor where only the root
has a list. A number that is not reliable is left out and never compared.

The rules are those of torch.distributed.flight_recorder (`components/types.py`, `Op.match`);
docs/decisions.md lists where ours differ and why.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from lightkeeper.monitor.records.job import Payload

# -- Names of collectives and dtypes: one for each, whatever wrote the record ---------------------
# A family is what the backend has to move, not the function that was called. One rank in
# `all_gather` and another in `all_gather_into_tensor` issue the same transfer and complete.

_VARIANT: Final = re.compile(r"(_base|_into_tensor|_tensor|_single|_v|_oop|_coalesced){1,3}$")
"""Endings that only say how the tensors are passed."""
_FAMILY: Final[Mapping[str, str]] = {
    "allreduce": "all_reduce",
    "sparse_all_reduce": "all_reduce_sparse",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "all_reduce_barrier": "barrier",
    "isend": "send",
    "irecv": "recv",
    "recvanysource": "recv",
}
"""Recorded, lower case, without its ending -> family. Names of ProcessGroupNCCL.cpp,
ProcessGroupGloo.cpp, torchcomms and TorchFT as torch 2.13 and torchft 0.2.0 write them. An
uneven all_gather of NCCL is one `_broadcast_oop` per member, then `nccl:ALLGATHER_coalesced`; an
uneven reduce_scatter `_reduce_oop`s, then `nccl:REDUCE_SCATTER_coalesced`; any other group of calls
ends in `nccl:coalesced`."""

POINT_TO_POINT: Final = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv"})
REDUCING: Final = frozenset({"all_reduce", "reduce", "reduce_scatter"})
ROOTED: Final = frozenset({"broadcast", "reduce", "gather", "scatter"})
SIZELESS: Final = frozenset({"barrier", "monitored_barrier", "coalesced", "split", "new_window"})
"""Their payloads need not agree: a barrier's one element is the backend's own."""
_DTYPES: Final[Mapping[str, str]] = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "int": "int32",
    "long": "int64",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
    "complexhalf": "complex32",
    "complexfloat": "complex64",
    "complexdouble": "complex128",
}
_UNDEFINED: Final = frozenset({"undefined", ""})
_ODD_WIDTHS: Final[Mapping[str, int]] = {"bool": 1, "quint4x2": 1, "quint2x4": 1}
_BITS = re.compile(r"[a-z]+?(?P<bits>\d+)(_\w+)?")
_PEERS = re.compile(r"\S+ (?P<left>\d+)(?P<arrow>->|<-)(?P<right>\d+)")


def op_name(recorded: str) -> str:
    """One name for one collective: `nccl:_all_gather_base` and `all_gather` are the same."""
    name = recorded.rpartition(":")[2].split(" ")[0].lower()
    family = _VARIANT.sub("", name.removeprefix("_"))
    return _FAMILY.get(family, family)


def closes_coalesced(recorded: str) -> bool:
    """True if this entry only ends a coalesced operation, whose parts stand before it."""
    name = recorded.rpartition(":")[2]
    # NCCL writes no such entry for other ops, but endCoalescing would spell it the same way
    return name == "coalesced" or (name.endswith("_coalesced") and name[0].isupper())


def peers_of(recorded: str) -> tuple[int, int] | None:
    """Group ranks (from, to) in `nccl:send 0->1` and `nccl:recv 1<-0`; None: not in the name."""
    match = _PEERS.fullmatch(recorded)
    if match is None:
        return None
    left, right = int(match["left"]), int(match["right"])
    return (left, right) if match["arrow"] == "->" else (right, left)


def dtype_name(recorded: str | None) -> str | None:
    """One name for one dtype: `torch.float32`, `Float` and `float32` are the same.

    None where there is none: NCCL records an undefined tensor for the side that only the
    root of a gather or scatter has.
    """
    if recorded is None:
        return None
    name = recorded.rpartition(".")[2].lower()
    return None if name in _UNDEFINED else _DTYPES.get(name, name)


def dtype_nbytes(dtype: str) -> int | None:
    """Bytes of one element, by the name that `dtype_name` gives; None: not known."""
    if dtype in _ODD_WIDTHS:
        return _ODD_WIDTHS[dtype]
    match = _BITS.fullmatch(dtype)
    return None if match is None else max(1, int(match["bits"]) // 8)


# -- signatures -----------------------------------------------------------------------------------

UNKNOWN_SIZE: Final = 0
"""For `size`, where the members of a group are unknown or only partly known (inferred)."""

_Counts = tuple[int, ...]
_Sizes = tuple[_Counts, ...]


def numbers(sizes: _Sizes) -> _Counts:
    """Elements of each tensor; a scalar has one."""
    return tuple(prod(size) for size in sizes)


def counts_of(payload: Payload, size: int) -> tuple[_Counts, _Counts]:
    """Element counts that are equal on all members: inputs, then outputs.

    The outputs are empty where they follow from the inputs and `size`; if they are not empty
    and `size` is known, the payload contradicts itself.
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
    """For gather and scatter: whether this member holds the list that only the root has."""
    given, got = numbers(payload.sizes_in), numbers(payload.sizes_out)
    held = got if payload.op == "gather" or swapped(payload) else given
    return len(held) > 1 or sum(held) > 0


def swapped(payload: Payload) -> bool:
    """For scatter: whether inputs and outputs are recorded in each other's place.

    ProcessGroupNCCL::scatter passes its outputs to the recorder as inputs and vice versa;
    gloo's does not. The root's list has a tensor for each member.
    """
    given, got = numbers(payload.sizes_in), numbers(payload.sizes_out)
    return payload.op == "scatter" and len(given) == 1 and (len(got) != 1 or got == (0,))


def _gathered(given: _Counts, got: _Counts, size: int) -> tuple[_Counts, _Counts]:
    """Each gives the same and gets `size` times that; if uneven, all get the same list."""
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
    """All give the same and each gets its share; if uneven, all give the same list."""
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
    """What all members of one collective must agree on."""

    op: str
    counts: tuple[int, ...] = ()
    """Element counts that the collective's semantics make equal on every member."""
    dtype: str | None = None
    reduce_op: str | None = None
    root: int | None = None
    out: tuple[int, ...] = ()
    """Element counts of the outputs, where they do not follow from `counts`."""

    def __str__(self) -> str:
        counts = (("of", self.counts), ("into", self.out))
        sizes = (f"{word} {'+'.join(map(str, each))}" for word, each in counts if each)
        root = None if self.root is None else f"root {self.root}"
        return " ".join(filter(None, (self.op, *sizes, self.dtype, self.reduce_op, root)))


def payload_of(
    recorded: str,
    sizes_in: _Sizes = (),
    sizes_out: _Sizes = (),
    *,
    dtypes_in: Iterable[str] = (),
    dtypes_out: Iterable[str] = (),
    reduce_op: str | None = None,
    root: int | None = None,
    tag: int = 0,
) -> Payload:
    """A payload with all names in normal form, from recorded values."""
    return Payload(
        op=op_name(recorded),
        recorded=recorded,
        sizes_in=sizes_in,
        sizes_out=sizes_out,
        dtypes_in=tuple(dtype_name(dtype) or "" for dtype in dtypes_in),
        dtypes_out=tuple(dtype_name(dtype) or "" for dtype in dtypes_out),
        # `ReduceOp.SUM`, `<RedOpType.SUM: 0>` and `sum` are the same
        reduce_op=reduce_op and reduce_op.rpartition(".")[2].strip("<>: ").lower(),
        root=root,
        tag=tag,
    )


def signature_of(payload: Payload, size: int = UNKNOWN_SIZE) -> Signature:
    """What a payload must have in common with its peers', in a group of `size` members."""
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


def differs_silently(signature: Signature, other: Signature) -> bool:
    """True if two differing calls may complete together and leave wrong numbers behind.

    They may when both move the same bytes: int32 and float32, or MAX and SUM (seen with gloo,
    facts/torch_debug_plane.md section 3).
    """
    if signature == other or signature.op != other.op or signature.root != other.root:
        return False
    weight = _weight(signature)
    return weight is not None and weight == _weight(other)


def dtype_of(payload: Payload) -> str | None:
    """The one dtype of all tensors, else the dtypes in order, joined by `+`."""
    gets = payload.op == "scatter" and not swapped(payload)
    pair = (payload.dtypes_in, payload.dtypes_out)
    # without the placeholders for tensors that only a root has
    first, second = (tuple(filter(None, dtypes)) for dtypes in (pair[::-1] if gets else pair))
    names = first or second
    return None if not names else names[0] if len(set(names)) == 1 else "+".join(names)


def _weight(signature: Signature) -> tuple[int, ...] | None:
    """Bytes of each tensor, or of one element where sizes are free."""
    width = None if signature.dtype is None else dtype_nbytes(signature.dtype)
    if width is None:
        return None
    return tuple(count * width for count in signature.counts or (1,))


def odd_whole(payloads: Mapping[int, Payload], size: int) -> dict[int, Signature]:
    """By rank the signature of each member involved if a collective is wrong only as a whole.

    Empty if it is not. All `payloads` have one signature: members of an all_to_all or a gather
    may give different amounts, so no single member can be blamed.
    """
    if len(payloads) != size:
        return {}
    common = signature_of(next(iter(payloads.values())), size)
    match common.op:
        case "all_to_all":
            return _unbalanced(payloads, common)
        case "gather" | "scatter" if common.root is None:
            return _roots(payloads, common)
        case _:
            return {}


def _unbalanced(payloads: Mapping[int, Payload], common: Signature) -> dict[int, Signature]:
    """all_to_all: the totals given and received must be equal (`check_size_alltoall`)."""
    totals = {
        rank: tuple(sum(numbers(sizes)) for sizes in (payload.sizes_in, payload.sizes_out))
        for rank, payload in sorted(payloads.items())
        if payload.sizes_in and payload.sizes_out
    }
    given, got = (sum(total[n] for total in totals.values()) for n in (0, 1))
    if len(totals) < len(payloads) or given == got:
        return {}
    return {r: replace(common, counts=total[:1], out=total[1:]) for r, total in totals.items()}


def _roots(payloads: Mapping[int, Payload], common: Signature) -> dict[int, Signature]:
    """gather, scatter: only the root has the list of all members' tensors."""
    claims = {rank: claims_root(payload) for rank, payload in sorted(payloads.items())}
    roots = [rank for rank, claim in claims.items() if claim]
    if (
        len(roots) == 1
        or len(payloads) == 1
        or not all(given.sizes_in or given.sizes_out for given in payloads.values())
    ):
        return {}
    return {rank: replace(common, root=rank) for rank in roots} or dict.fromkeys(claims, common)
