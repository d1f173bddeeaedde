"""The normal form of a whole job's flight records: columns over the entries of all its ranks.

Theory of operation. A job of 1,024 ranks has two million entries, so an entry is a row of numpy
columns, not an object. What repeats (process groups, payloads, call sites) is stored once in a
table of the job and referred to by index. Of a record's writer (NCCL, gloo, the WorkerServer's
ring) and format only `RankInfo.backend` is kept, because each writer leaves other things out.

Rows are sorted by rank, and within a rank by the order of its calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lightkeeper.monitor.records.safe_pickle import FlightRecordError

NONE: Final = -1
"""Does not exist or was not recorded; for ranks, indices, sequence ids and times."""


MAIN_THREAD: Final = 0
"""The thread that trains. Autograd's own threads, which run hooks meanwhile, count as this one."""


class CollectiveState(IntEnum):
    """How far a collective got, as far as its writer knows."""

    UNKNOWN = 0
    """Unfinished, as far as is known; whether it began is not recorded (gloo)."""
    SCHEDULED = 1
    STARTED = 2
    COMPLETED = 3
    FAILED = 4
    """The rank left it with an error, or is known to have timed out in it."""


class Backend(IntEnum):
    """Who wrote a rank's record."""

    UNKNOWN = 0
    NCCL = 1
    GLOO = 2
    RING = 3
    """The WorkerServer's own ring."""


@dataclass(frozen=True, slots=True)
class Payload:
    """What one rank passed to one collective, as recorded."""

    op: str
    """Family name: `all_gather` for `nccl:_all_gather_base` (see `signature.op_name`)."""
    recorded: str
    """The name in the record."""
    sizes_in: tuple[tuple[int, ...], ...] = ()
    sizes_out: tuple[tuple[int, ...], ...] = ()
    dtypes_in: tuple[str, ...] = ()
    """Torch's names: `float32`."""
    dtypes_out: tuple[str, ...] = ()
    reduce_op: str | None = None
    root: int | None = None
    """Global rank; None where it is not recorded, or where the op has none."""
    tag: int = 0
    """Of a send or receive."""


@dataclass(frozen=True, slots=True)
class Group:
    """One process group of the job, the same index on every rank."""

    name: str
    """Torch's name, or one of ours where it has none; unique in the job."""
    desc: str = ""
    """The program's name for it: TENSOR_MODEL_PARALLEL_GROUP; empty if it gives none."""
    members: tuple[int, ...] = ()
    """Global ranks in the order of their group ranks; empty if unknown."""
    inferred: bool = False
    """True if `members` are only the ranks whose entries were seen: there may be more."""
    generation: int | None = None
    """TorchFT's quorum id, where each quorum makes a group of the same name."""

    @property
    def label(self) -> str:
        """For people."""
        text = f"{self.desc} ({self.name})" if self.desc and self.desc != self.name else self.name
        return text if self.generation is None else f"{text} of quorum {self.generation}"


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """What a rank's record says about one group besides its entries (torch's `pg_status`).

    NCCL writes the id of the latest call of any kind: in a group with sends it may be a p2p_seq_id.
    """

    enqueued: int = NONE
    started: int = NONE
    completed: int = NONE


@dataclass(frozen=True, slots=True)
class RankInfo:
    """One rank's record as a whole."""

    rank: int
    backend: Backend = Backend.UNKNOWN
    only_active: bool = False
    """True if completed entries were left out when it was written (stated or evident)."""
    dropped: int = 0
    """Older entries that the ring buffer had overwritten; a lower bound."""
    status: Mapping[int, GroupStatus] = field(default_factory=dict)
    """By index of the group."""
    path: str = ""
    taken_ns: int = NONE
    """When it was written, Unix time, if known."""
    alive: bool | None = None
    """True if its process was alive then; None if nobody checked."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that could not be read, while the rest was."""

    path: str
    reason: str
    rank: int | None = None
    """The rank that is silent because of it; None if unknown or none is."""


MOMENTS: Final = ("created_ns", "started_ns", "completed_ns")

COPIED_NS: Final = 7_200_000_000_000
"""A record dated this long after its last call must have been copied since, and its date is
ignored: watchdogs wait 10 to 30 minutes. Lower: a hang with a longer timeout looks undated. Higher:
copied records of a running job look like a hang."""

COLUMNS: Final[Mapping[str, Any]] = {
    "rank": np.int32,       # global rank
    "group": np.int32,      # index into Job.groups
    "seq": np.int64,        # collective_seq_id; of a point-to-point op p2p_seq_id, which is private
                            # to a rank in torch's records, and counts peer and tag in the ring
    "op_id": np.int64,      # torch's op_id: equal for the parts of one coalesced operation
    "record": np.int64,     # record_id; per process, means nothing on another rank
    "payload": np.int32,    # index into Job.payloads
    "site": np.int32,       # index into Job.sites, or NONE
    "state": np.int8,       # CollectiveState
    "p2p": np.bool_,        # point-to-point: waits for `peer` only
    "peer": np.int32,       # global rank of the other side of a send or recv, or NONE
    "thread": np.int64,     # thread that called it: MAIN_THREAD or another number; NONE if unknown
    "blocking": np.bool_,   # the call returns only when it is complete (the ring alone knows)
    "created_ns": np.int64,    # enqueued: Unix time of that rank's clock, or NONE
    "started_ns": np.int64,    # found started (NCCL: watchdog's poll, about 100 ms), or NONE
    "completed_ns": np.int64,  # found completed, or NONE
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Job:
    """All that is known about a job's collectives."""

    expected: tuple[int, ...]
    """The job's global ranks, sorted: supplied, or the union of all ranks in the records."""
    ranks: Mapping[int, RankInfo]
    """The ranks whose record was read, by global rank, in order."""
    groups: tuple[Group, ...]
    payloads: tuple[Payload, ...]
    sites: tuple[str, ...]
    """Call sites, `file.py:12 function`: the innermost frame of the program itself."""
    columns: Mapping[str, NDArray[Any]]
    """Each of `COLUMNS`, all of one length."""
    problems: tuple[Problem, ...] = ()
    names: Mapping[int, str] = field(default_factory=dict)
    """A rank's name, where that is not its number (`rg_1.0` in the monitor)."""
    hosts: Mapping[int, str] = field(default_factory=dict)
    """Host of a rank, if known."""
    gaps: tuple[int, ...] = ()
    """Silent ranks known only as gaps in the others' numbers, sorted: 2 if 0, 1, 3 are there."""

    @property
    def silent(self) -> tuple[int, ...]:
        """Expected ranks without a record, sorted."""
        return tuple(rank for rank in self.expected if rank not in self.ranks)

    def __len__(self) -> int:
        return len(self.columns["rank"])

    def name(self, rank: int) -> str:
        """For people."""
        return self.names.get(rank, str(rank))


_FOREIGN: Final = (
    "/site-packages/", "/dist-packages/", "/lib/python", "/torch/", "/torchft/",
    "/worker_server/",  # an attached rank's calls pass through our own wrappers
)  # fmt: skip
_DEEPEST: Final = 2048
"""Frames of a stack that are read: Python stops at 1,000, but a pickle may lie."""
_NAMELESS: Final = ("", "<", "??")


class Sites:
    """Numbers the call sites of one dump."""

    def __init__(self) -> None:
        self._by_frames: dict[tuple[int, ...], int] = {}
        self._by_text: dict[str, int] = {}

    @property
    def texts(self) -> tuple[str, ...]:
        """Call sites by number."""
        return tuple(self._by_text)

    def of(self, frames: Any) -> int:
        """Number of the call site of a stack, innermost frame first; NONE without one.

        Stacks share their frames (a pickle's memo), so frames are compared by identity; the caller
        keeps them alive.
        """
        if not frames:
            return NONE
        frames = frames[:_DEEPEST]
        key = tuple(map(id, frames))
        number = self._by_frames.get(key)
        if number is None:
            text = _site(frames)
            number = self._by_text.setdefault(text, len(self._by_text)) if text else NONE
            self._by_frames[key] = number
        return number


def _site(frames: Any) -> str:
    """The innermost frame of the program itself, else the innermost that has a file."""
    if not isinstance(frames, list | tuple):
        raise FlightRecordError("frames are a list")
    fallback = ""
    for frame in frames:
        name, line, function = frame.get("filename"), frame.get("line"), frame.get("name")
        if not isinstance(name, str) or not isinstance(function, str) or type(line) is not int:
            raise FlightRecordError("a frame is a file, a line and a name")
        if name.startswith(_NAMELESS[1:]) or not name:
            continue
        text = f"{name.rpartition('/')[2]}:{line} {function}"
        if name.endswith(".py") and not any(part in name for part in _FOREIGN):
            return text
        fallback = fallback or text
    return fallback
