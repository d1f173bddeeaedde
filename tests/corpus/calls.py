"""What a simulated rank's program consists of: calls of collectives, work, and waiting."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tests.changed import replace

BYTES = {"Float": 4, "BFloat16": 2, "Half": 2, "Int": 4, "Long": 8, "Double": 8, "Byte": 1}
"""Bytes of an element by the name that c10::toString gives its type."""
SAME_WIDTH = {"Float": "Int", "Int": "Float", "BFloat16": "Half", "Half": "BFloat16",
              "Long": "Double", "Double": "Long"}  # fmt: skip


@dataclass(frozen=True)
class Team:
    """A process group: index, torch's name and description, and global ranks by group rank."""

    index: int
    name: str
    desc: str
    members: tuple[int, ...]


Sizes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Call:
    """One collective, send or recv of one rank."""

    op: str
    """As recorded after the backend's prefix: `_all_gather_base`."""
    team: int
    sizes_in: Sizes
    sizes_out: Sizes
    dtype: str
    site: str
    """`file.py:12 function`."""
    wire: tuple[object, ...]
    """What all members must have in common for the transfer to work: op and bytes, and the root."""
    peer: int | None = None
    """Group rank of the other side."""
    sends: bool = False
    root: int | None = None
    waited: bool = True
    """Whether the rank's compute stream waits for it at once (else at `Join`)."""
    mark: str = ""
    """Name of the fault that was put here."""

    @property
    def p2p(self) -> bool:
        return self.peer is not None

    def shown(self) -> tuple[object, ...]:
        """What the record tells of it, as far as the members must agree on it."""
        sizes: tuple[object, ...] = (self.sizes_in, self.sizes_out)
        return (self.op, () if self.op == "all_to_all" else sizes, self.dtype)

    def with_dtype(self, dtype: str) -> Call:
        scale = BYTES[dtype] / BYTES[self.dtype]
        count = int(self.wire[1] * scale)  # type: ignore[operator]
        return replace(self, dtype=dtype, wire=(self.wire[0], count, *self.wire[2:]))


@dataclass(frozen=True)
class Batch:
    """Sends and recvs that are launched as one (batch_isend_irecv)."""

    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Compute:
    """A kernel of the rank's own (with gloo: work of its CPU)."""

    ms: float
    fate: str = ""
    """`hang`: it never ends; `error`: it fails, and so does every later query of an event."""
    mark: str = ""


@dataclass(frozen=True)
class Join:
    """The compute stream waits for the last call of a group (with gloo: the CPU does)."""

    team: int


@dataclass(frozen=True)
class Sync:
    """The CPU waits for the GPU, as `loss.item()` does."""


@dataclass(frozen=True)
class Halt:
    """The CPU does not go on: data loader, exception, held GIL, stopped or dead process."""

    mark: str


Step = Call | Batch | Compute | Join | Sync | Halt


@dataclass
class Programs:
    """What every rank of a job does."""

    teams: tuple[Team, ...]
    steps: dict[int, list[Step]] = field(default_factory=dict)
    starts: dict[int, list[int]] = field(default_factory=dict)
    """Index at which each training step begins, by rank."""


def _wire(op: str, count: int, dtype: str, root: int | None = None) -> tuple[object, ...]:
    return (op, count * BYTES[dtype], root)


def same_size(
    op: str, team: int, shape: tuple[int, ...], dtype: str, site: str, *, root: int | None = None
) -> Call:
    """all_reduce, broadcast, reduce: in and out are alike."""
    return Call(op, team, (shape,), (shape,), dtype, site,
                _wire(op, math.prod(shape), dtype, root), root=root)  # fmt: skip


def gather_base(team: int, n: int, shape: tuple[int, ...], dtype: str, site: str) -> Call:
    out = (shape[0] * n, *shape[1:])
    op = "_all_gather_base"
    return Call(op, team, (shape,), (out,), dtype, site, _wire(op, math.prod(shape), dtype))


def scatter_base(team: int, n: int, shape: tuple[int, ...], dtype: str, site: str) -> Call:
    big = (shape[0] * n, *shape[1:])
    op = "_reduce_scatter_base"
    return Call(op, team, (big,), (shape,), dtype, site, _wire(op, math.prod(shape), dtype))


def all_to_all(team: int, rows: tuple[int, int], width: int, dtype: str, site: str) -> Call:
    """Each member sends and receives as many rows as the router chose."""
    return Call("all_to_all", team, ((rows[0], width),), ((rows[1], width),), dtype, site,
                ("all_to_all", width * BYTES[dtype], None))  # fmt: skip


def point_to_point(
    team: int, peer: int, shape: tuple[int, ...], dtype: str, site: str, *, sends: bool
) -> Call:
    """NCCL records the tensor as input and as output on both sides."""
    return Call("send" if sends else "recv", team, (shape,), (shape,), dtype, site,
                _wire("p2p", math.prod(shape), dtype), peer=peer, sends=sends)  # fmt: skip
