"""The normal form: what every detector reads, whatever wrote it down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from monitor.names import RankName


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
class Signature:
    """What all members of one collective must agree on; what may differ is left out."""

    op: str
    counts: tuple[int, ...] = ()
    """Element counts that the collective's semantics make equal on every member."""
    dtype: str | None = None
    reduce_op: str | None = None
    root: int | None = None

    def __str__(self) -> str:
        parts = [self.op]
        if self.counts:
            parts.append("of " + "+".join(str(count) for count in self.counts))
        if self.dtype is not None:
            parts.append(self.dtype)
        if self.reduce_op is not None:
            parts.append(self.reduce_op)
        if self.root is not None:
            parts.append(f"root {self.root}")
        return " ".join(parts)


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


_FAMILY: Mapping[str, str] = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "_all_gather_base": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_base": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
}
POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv", "batch_isend_irecv"})
_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
_REDUCING = frozenset({"all_reduce", "reduce", "reduce_scatter"})
_BY_OUTPUT = frozenset({"scatter"})
_UNCOUNTED = frozenset({"all_to_all", "barrier", "monitored_barrier"})
_DTYPES: Mapping[str, str] = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "int": "int32",
    "long": "int64",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
}


def op_name(recorded: str) -> str:
    """One name for one collective: `nccl:_all_gather_base` and `all_gather` are the same."""
    name = recorded.rpartition(":")[2].split(" ")[0].lower()
    return _FAMILY.get(name, name)


def dtype_name(recorded: str | None) -> str | None:
    """One name for one dtype: `torch.float32`, `Float` and `float32` are the same."""
    if recorded is None:
        return None
    name = recorded.rpartition(".")[2].lower()
    return _DTYPES.get(name, name)


def signature(
    recorded_op: str,
    sizes_in: tuple[tuple[int, ...], ...],
    sizes_out: tuple[tuple[int, ...], ...],
    *,
    dtype: str | None = None,
    reduce_op: str | None = None,
    root: int | None = None,
) -> Signature:
    """What the members of a collective have to agree on.

    Equal inputs: all_reduce, broadcast, reduce, all_gather, reduce_scatter, gather. Equal
    outputs: scatter (only its root has an input). all_to_all may be split unevenly and a
    barrier carries nothing, so their sizes are left out (ALGORITHMS.md section 4).
    """
    op = op_name(recorded_op)
    sizes = sizes_out if op in _BY_OUTPUT else sizes_in
    return Signature(
        op=op,
        counts=() if op in _UNCOUNTED else tuple(prod(size) for size in sizes),
        dtype=None if op in _UNCOUNTED else dtype_name(dtype),
        reduce_op=reduce_name(reduce_op) if op in _REDUCING else None,
        root=root if op in _ROOTED else None,
    )


def reduce_name(recorded: str | None) -> str | None:
    """One name for one reduction: `ReduceOp.SUM`, `<RedOpType.SUM: 0>` and `sum` are the same."""
    return None if recorded is None else recorded.rpartition(".")[2].strip("<>: ").lower()
