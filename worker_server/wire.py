"""The wire between a WorkerServer and its readers: paths, names, types, parsing.

The monitor imports this and `http_server` from `worker_server`, and nothing else. What travels is
described once, by the annotations below: they carry the bounds and alone define what is valid.
msgspec validates network input against them, and the OpenAPI document is generated from them
and from the docstrings. A field without a default is required.

All durations are seconds and are *ages at the moment the answer was made*, measured on the
rank's own host with the monotonic clock. No wall-clock time crosses the wire, so clocks of
two hosts never have to agree.

Unknown keys are ignored (a newer sidecar may say more); a missing or ill-typed key is a
`WireError`; a missing optional value is `None` and is never confused with zero. Most answers are
valid at once. Any other is read again without what this version can ignore: nulls, which mean
that nothing was said, and extra cells that a newer side added to a row.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass, replace
from enum import StrEnum
from functools import cache, cached_property
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    NewType,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from msgspec import DecodeError, Meta, Raw, Struct, ValidationError, convert, structs
from msgspec.json import Decoder, decode

SCHEMA: Final = 1
UNNAMED: Final = "job"
"""What a WorkerServer calls a job, or a group, that nobody named."""

PATH_STATE: Final = "/v1/state"
PATH_FLIGHT_RECORDER: Final = "/v1/flight_recorder"
PATH_STACKS: Final = "/v1/stacks"
HEADER_AGE: Final = "X-Age-Seconds"
"""How old the stacks are that a WorkerServer answers."""
PATH_STEPS: Final = "/v1/steps"
PATH_LAST_WORDS: Final = "/v1/last_words"
PATH_HOST: Final = "/v1/host"
PATH_OPENAPI: Final = "/openapi.json"
PATH_NETWORK: Final = "/v1/network"
PATH_MACHINE: Final = "/v1/machine"
PATH_EVICT: Final = "/v1/evict"
PATH_RELEASE: Final = "/v1/release"
PATH_HEALTHZ: Final = "/healthz"
PATH_METRICS: Final = "/metrics"

# Paths of the monitor that a sidecar and a launcher call.
PATH_REGISTER: Final = "/v1/register"
PATH_ADMISSION: Final = "/v1/admission"
PATH_GATE: Final = "/lightkeeper"  # of a gate, where its groups connect
GATE_ANSWER: Final = b"lightkeeper gate\n"

GroupName = NewType("GroupName", str)
"""Stable name of a replica group, such as `rg_1`: the replica id without its uuid."""
ReplicaId = NewType("ReplicaId", str)
"""What the Lighthouse knows a group by, such as `rg_1:1f0c...`; new at every start."""
RankName = NewType("RankName", str)
"""Replica group and group rank, such as `rg_1.0`; unique in a job, stable across restarts."""
Host = NewType("Host", str)

WAITING_PHASE: Final = "communication"
"""The one phase in which a rank waits for others; in every other phase it works alone."""

LONG_PHASES: Final = frozenset({"checkpoint", "evaluation", "compile", "init"})
"""Declared phases that may last for minutes in a healthy job."""

FINISHED_PHASE: Final = "finished"
"""Phase of a rank whose training is over: it may then stand still or end."""

SOURCE_REPORTER: Final = "reporter"
"""Steps and phases that the training loop itself reports: only these phases keep the rule that a
rank waits for others in `communication` and nowhere else. Other sources (a framework's callback,
an optimizer's hook) know the step, but their phases may include waiting."""

WAIT_QUORUM: Final = "quorum"
"""Waits for TorchFT's quorum: for every group that has not asked for it."""
WAIT_HEAL: Final = "heal"
"""Waits although there is a quorum: for new process groups or another group's weights."""
WAIT_COMMIT: Final = "commit"
"""Waits for the commit vote: for the other ranks of its own group."""

RING_CALLS: Final = 1024
"""How many collectives a rank's own record holds: the newest."""

TIMES: Final = ("staging", "load", "apply", "reconfigure")
"""Parts of TorchFT's recovery that a state times: the donor prepares its state, the healing rank
loads it, its training thread applies it; process groups of a new quorum are built.
"""

ACROSS: Final = "torchft"
"""Prefix of process groups that span replica groups: their members are replica ranks, and
waiting in them is waiting for other groups."""


PLACE_KEYS_MAX: Final = 16
PLACE_KEY_MAX_CHARS: Final = 64
PLACE_VALUE_MAX_CHARS: Final = 128
"""`Identity.place`'s: polled every second, so kept to a few short words."""
TRACKERS: Final = (
    "wandb_run", "wandb_project", "wandb_entity", "mlflow_run", "mlflow_experiment",
    "tensorboard_dir",
)  # fmt: skip
"""What a rank may say of the runs of experiment trackers to which it writes."""
WORD_MAX_CHARS: Final = 256
LINE_MAX_CHARS: Final = 300
"""An exception's, a function's or a file name's: it becomes part of a sentence."""
_RANK_MAX_DIGITS: Final = 19
NUMBER_MAX: Final = 1e100
"""The largest number that is not a time: its square is finite too."""

Whole = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e10)]
"""At most what 64 bits of nanoseconds hold. No bound lets NaN through."""
Number = Annotated[float, Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]
Amount = Annotated[float, Meta(ge=0.0, le=NUMBER_MAX)]
Shapes = tuple[tuple[Count, ...], ...]


class WireError(ValueError):
    """An answer that does not follow this schema; the message names the key."""


def rank_name(group: str, group_rank: int) -> RankName:
    """Name of a rank in the job, `group.group_rank`."""
    return RankName(f"{group}.{group_rank}")


def split_rank_name(name: str) -> tuple[GroupName, int]:
    """Inverse of `rank_name`.

    Raises:
        WireError: `name` does not end in a dot and a number.
    """
    group, dot, rank = name.rpartition(".")
    if not dot or not group or not rank.isdecimal() or len(rank) > _RANK_MAX_DIGITS:
        raise WireError(f"not a rank name: {name!r} (expected GROUP.RANK, such as rg_0.1)")
    return GroupName(group), int(rank)


def printable_line(text: str) -> str:
    """A short text for a sentence: one line, without control characters."""
    plain = "".join(char if char.isprintable() else " " for char in text[:LINE_MAX_CHARS])
    return plain.strip() or "?"


def _keep_lines(value: object, *names: str) -> None:
    for name in names:
        if (text := getattr(value, name)) is not None:
            object.__setattr__(value, name, printable_line(text))


_PlaceKey = Annotated[str, Meta(max_length=PLACE_KEY_MAX_CHARS)]
_Word = Annotated[str, Meta(max_length=WORD_MAX_CHARS)]
_PlaceValue = Annotated[str, Meta(max_length=PLACE_VALUE_MAX_CHARS)]
_Few = Meta(max_length=64)
"""Each row costs the monitor time; an honest rank says 16 of these at most."""
_Members = Annotated[tuple[Count, ...], Meta(max_length=256)]


@dataclass(frozen=True)  # no slots: they leave no room for a cached property
class Identity:
    """Who a rank is. Fixed for the life of its process."""

    job: str
    group: GroupName
    group_rank: Count
    world_size: Annotated[int, Meta(ge=0, le=2**20)]
    """Ranks in the replica group."""
    host: Host
    """Where the group runs, as its launcher names it; quarantine uses this name."""
    pid: Whole
    incarnation: str
    """Differs between any two processes that ever had this rank's name."""
    place: Annotated[Mapping[_PlaceKey, _PlaceValue], Meta(max_length=PLACE_KEYS_MAX)] = field(
        default_factory=dict, hash=False
    )
    """Where a scheduler put it: slurm_job_id, slurm_step_id, pod, namespace, node ...; empty when
    there is none, or it is not known."""
    launched_as: GroupName | None = None
    """The launcher's name of the group if its TorchFT Manager uses another one; then `group` is
    the Manager's. None: they agree, or there is no Manager."""

    def __post_init__(self) -> None:
        if not 0 <= self.group_rank < self.world_size:
            raise WireError(f"group_rank {self.group_rank} is outside a world of {self.world_size}")
        if not all(key.isprintable() and value.isprintable() for key, value in self.place.items()):
            raise WireError("'place' is no plain text")

    @cached_property
    def rank(self) -> RankName:
        return rank_name(self.group, self.group_rank)

    @cached_property
    def life(self) -> tuple[GroupName, int, str]:
        """The rank and its incarnation."""
        return self.group, self.group_rank, self.incarnation


@dataclass(frozen=True, slots=True)
class Tracer:
    """A process that traces another: a debugger, strace, or a profiler that pauses it."""

    pid: Whole
    name: str
    """Its executable, such as `gdb`."""

    def __post_init__(self) -> None:
        _keep_lines(self, "name")


@dataclass(frozen=True, slots=True)
class Frame:
    """A place in a program."""

    function: str
    """With its class if known: `Deadlock.log_step`."""
    file: str
    """The last part of its path, such as `train.py`."""
    line: Whole

    def __post_init__(self) -> None:
        _keep_lines(self, "function", "file")

    def __str__(self) -> str:
        """`Deadlock.log_step (train.py:66)`."""
        return f"{self.function} ({self.file}:{self.line})"


class _Words(StrEnum):
    """Words of this version; one of a newer WorkerServer is read as the last of them."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return [*cls][-1] if isinstance(value, str) else None


class Doing(_Words):
    """What the innermost frames of a stack are known to do."""

    LOCK = "lock"  # waits for a lock, a queue or another thread
    SLEEP = "sleep"
    IO = "io"  # reads, writes or opens a file, a pipe or a socket
    DATA = "data"  # waits for the next batch of a data loader
    PROCESS = "process"  # waits for another process
    COLLECTIVE = "collective"  # waits for other ranks: a collective, a transfer, a quorum
    STORE = "store"  # waits for a key of a store, or for the store itself
    GROUP = "group"  # creates a process group: waits for its other members
    COMPILE = "compile"
    SAVE = "save"  # writes or reads a checkpoint
    EVALUATE = "evaluate"
    START = "start"  # imports modules, or downloads
    UNKNOWN = ""


@dataclass(frozen=True, slots=True)
class Witness:
    """Where the main thread, or the one it waits for, stands in a rank without progress."""

    frame: Frame
    """The innermost frame of the user's code; the innermost of all if none is the user's."""
    doing: Doing
    samples: Count
    """Consecutive samples that found the same frame at the same line."""
    same_s: Seconds
    """From the first of these samples to the last."""
    age_s: Seconds
    """Since the last sample."""
    call: str | None = None
    """The function that this frame calls, such as `new_group` or `acquire`, if Python shows it."""
    thread: str | None = None
    """The thread's name, where the main one waits for it."""
    error: str | None = None
    """An error of its own since its last commit that TorchFT hid from the program, and where."""

    def __post_init__(self) -> None:
        _keep_lines(self, "call", "thread", "error")


@dataclass(frozen=True, slots=True)
class Ending:
    """How a dead process ended, as far as it is known."""

    sentence: str
    """As in `/v1/last_words`, cut to one short line."""
    exception: str | None = None
    """`RuntimeError: shape mismatch: expected 65, got 64`; None: no exception is known."""
    frame: Frame | None = None
    """Where it was raised: the innermost frame of the user's code."""
    of_peers: bool | None = None
    """True if it was raised by what waits for other ranks (torch.distributed, TorchFT, gloo, NCCL),
    by its frames and its type, and not by the rank's own code. None: that is not known."""
    detail: str | None = None
    """What its host adds to the exception (`port 29500 is taken by python3 (pid 4711)`), or to the
    signal (`the OOM killer ended 1`)."""

    @property
    def raised(self) -> str:
        """The exception's type, as Python names it; empty: none is known."""
        return "" if self.exception is None else self.exception.partition(":")[0]

    def __post_init__(self) -> None:
        _keep_lines(self, "sentence", "exception", "detail")


class Process(Struct, frozen=True, gc=False):
    """The operating system's view of the rank process; needs no cooperation from the rank."""

    alive: bool
    state: str | None = None
    """Letter of /proc/PID/stat: R, S, D, T (stopped), t (traced), Z; None once it is gone."""
    threads: Count | None = None
    rss_bytes: Count | None = None
    dead_age_s: Seconds | None = None
    exit_code: Whole | None = None
    """A dead process's that ended by itself, if known."""
    exit_signal: str | None = None
    """Name of the signal that ended it, such as SIGKILL, if known."""
    interpreter_age_s: Seconds | None = None
    """Since the rank's interpreter last ran a Python thread; grows while the GIL is held. None also
    while it exits."""
    tracer: Tracer | None = None
    """What traces it now, other than its own WorkerServer. A tracer delays the process whatever its
    state says, and is no fault of the process."""
    cores: Amount | None = None
    """Cores used by all threads together; like the next three, over the last 5 s."""
    starved: Amount | None = None
    """Share of the time in which one of its threads was ready to run and got no core."""
    bytes_s: Amount | None = None
    """Bytes per second read and written by system calls, mostly without those of sockets."""
    wakes_s: Amount | None = None
    """Times a second that its training thread came to a core: often while a socket brings bytes."""
    handles_sigterm: bool | None = None
    """True if the program has a handler of its own for SIGTERM: it may then end with any exit code
    though it was asked to end. None: not known."""

    @property
    def stopped(self) -> bool:
        """True if a signal or a tracer stops it at this moment."""
        return self.state in ("T", "t")

    @property
    def traced(self) -> bool:
        """True if a tracer stops it: a debugger, or for milliseconds who takes its stacks."""
        return self.state == "t"


@dataclass(frozen=True, slots=True)
class Spoilt:
    """Numbers that were not finite: the latest run of them, and how many there were."""

    first_step: Whole
    """Step at which this run began."""
    where: str
    """Where it was seen first: `local`, in the rank's own loss or gradient before any exchange;
    `group`, after an exchange within the replica group; `exchanged`, in what came back from the
    other groups. At a later step, it may come from what others committed."""
    age_s: Seconds
    """Since the run began."""
    run: Count
    """Consecutive attempts that were not finite, up to the last; 0: it is finite again."""
    attempts: Count
    """Attempts that were not finite in the life of this process; only grows."""


@dataclass(frozen=True, slots=True)
class Prints:
    """Fingerprints of the weights after commits: equal weights, equal fingerprints."""

    lane: Whole
    """What was hashed, as a number: shard, shapes, dtypes, settings. Only equal lanes compare."""
    lineage: Count
    """How often the weights were replaced (a heal, a checkpoint); older rows are dropped."""
    rows: Annotated[tuple[tuple[Whole, Whole, Count], ...], _Few]
    """(committed step, value, part of the weights), oldest first."""


class Took(NamedTuple):
    """Time and bytes of a repeated operation; travels as a row of these numbers."""

    done: Count
    """How often."""
    sum_s: Seconds = 0.0
    last_s: Seconds = 0.0
    sum_bytes: Count = 0
    """The transferred tensors' bytes; 0 if there are none or they cannot be counted."""
    last_bytes: Count = 0


class StepState(Struct, frozen=True, gc=False):
    """What the rank reports. On the wire, flags with their usual value are left out."""

    step: Whole
    """Step that the rank works on: TorchFT's step if there is a Manager."""
    attempt: Count
    """Steps begun in the life of this process, retries included; only grows."""
    progress: Count
    """Phase changes in the life of this process; only grows. Unchanged means no progress."""
    phase: _Word
    phase_age_s: Seconds
    commits: Count
    """Steps committed in the life of this process."""
    last_commit_age_s: Seconds | None = None
    """None before the first commit of this process."""
    replica_id: Annotated[ReplicaId, Meta(max_length=WORD_MAX_CHARS)] | None = None
    quorum_id: Whole | None = None
    participants: Count | None = None
    healing: bool = False
    errored: bool = False
    loss: Number | None = None
    """None when none was reported, or when it is not finite (see `loss_finite`)."""
    loss_finite: bool = True
    tokens: Whole = 0
    seconds: Annotated[Mapping[_Word, Seconds], _Few] = {}
    """Seconds spent in each phase since the process started, finished phases only; only grows."""
    committed_step: Whole | None = None
    """Number of the last committed step; None before the first of this process. Left out on the
    wire if it is the expected one: `step` between two attempts (attempt == commits +
    commit_failures), else the one before `step`."""
    commit_failures: Count = 0
    """Attempts that ended without a commit in the life of this process; only grows."""
    held_s: Seconds | None = None
    """Part of `seconds` in which collectives held the rank although its phase was not a waiting
    one: FSDP's are within forward and backward. Finished collectives only; only grows.
    None: its WorkerServer does not report it."""
    tags: Annotated[tuple[_Word, ...], _Few] = ()
    """What the rank says it does besides its phase: `evaluation`, `warmup` ..."""
    counters: Annotated[Mapping[_Word, Number], _Few] = {}
    """The user's own counters, at most 16; only grow."""
    source: str = SOURCE_REPORTER
    """Who reports the steps: `reporter`, `torchft`, a framework's callback ..."""
    spoilt: Spoilt | None = None
    """None: every number checked was finite."""
    prints: Prints | None = None
    """None: none was taken (since the last heal)."""
    times: Annotated[Mapping[_Word, Took], _Few] = {}
    """Time and bytes of TorchFT's parts in the life of this process, by name (staging, load, apply,
    reconfigure); only those that happened."""
    local_steps: Count = 0
    """Steps of the optimizer that no vote of their own followed, in the life of this process: with
    LocalSGD and DiLoCo all but the last of each round. Only grows."""
    waits_in: str | None = None
    """What the rank's main thread waits in now, whatever its phase: `quorum`, `heal` or `commit`.
    Collectives are in the heads. None: in none of these."""
    waits_s: Seconds | None = None
    """For how long."""
    waited_s: Seconds | None = None
    """Seconds in the life of this process in which its main thread waited for others: inside
    collectives, for works, quorums and commit votes; finished waits only. Only grows. None: its
    source of steps does not report it."""
    gradients_watched: bool = False
    """Gradients are checked before others receive them: unless `spoilt` says otherwise, those of
    the committed steps were finite."""

    @property
    def steps(self) -> int:
        """Steps begun in the life of this process, local ones included."""
        return self.attempt + self.local_steps

    @property
    def made(self) -> int:
        """Those of `steps` that were committed or local."""
        return self.commits + self.local_steps

    @property
    def trained_s(self) -> float:
        """Seconds in the life of this process, long phases left out; finished phases only."""
        return sum(s for phase, s in self.seconds.items() if phase not in LONG_PHASES)

    @property
    def made_age_s(self) -> float | None:
        """Seconds since the last commit or local step; None before the first.

        A local step begins a phase. Others begin later, so that this may be too little by the rest
        of a step, or by the wait for the groups.
        """
        age_s = self.last_commit_age_s
        if self.local_steps:
            return self.phase_age_s if age_s is None else min(self.phase_age_s, age_s)
        return age_s


def expected_committed_step(step: StepState) -> int | None:
    """The last committed step as the other fields imply it; only a different one is sent.

    While an attempt is open it is the step before, between two attempts the one that ended.
    """
    if not step.commits:
        return None
    between = step.attempt == step.commits + step.commit_failures
    return step.step if between else step.step - 1


class StepRow(Struct, array_like=True, frozen=True):
    """One finished attempt of a step; travels as a row of these values: a thousand are read every
    second.

    The seconds are by phase, between the end of the previous attempt and this end.
    """

    attempt: Count
    step: Whole
    committed: Annotated[int, Meta(ge=0, le=1)]
    end_age_s: Seconds
    duration_s: Seconds
    seconds: Mapping[str, Seconds]


@dataclass(frozen=True, slots=True)
class StepLog:
    """Finished attempts of steps: the answer of `GET /v1/steps`."""

    identity: Identity
    alive: bool
    rows: tuple[StepRow, ...]
    """Oldest first."""
    dropped: Count = 0
    """Attempts after `since` that were overwritten before they were read."""


class GroupHead(Struct, array_like=True, frozen=True, gc=False):
    """Where a rank stands in one process group, by the collective ring or by a torch recorder;
    travels as a row of these values.

    In the ring `enqueued` is both the last enqueued and the last started: a collective starts when
    the host enters it. With async_op=True that is when it is launched, not when the backend gets
    to it. Read from shared memory, at no cost to the rank.
    """

    name: str
    size: Count
    enqueued: Count
    """Sequence id of the last collective entered, counted from 1; 0 when there was none."""
    unfinished: Count
    """How many up to that one are unfinished."""
    op: str
    age_s: Seconds
    """Since the last collective was entered (while unfinished) or left."""
    held: Count | None = None
    """The collective that holds the rank's thread; 0: none does. None: the usual one, which is the
    last one entered while any is unfinished, else none."""
    started: Count | None = None
    """Sequence id of the last collective that the device has started, by a torch recorder."""
    read_age_s: Seconds | None = None
    """Since the torch recorder was read; None: from the ring, current."""

    def __post_init__(self) -> None:
        enqueued, unfinished, held = self.enqueued, self.unfinished, self.held
        if unfinished > enqueued or (held is not None and held > enqueued):
            raise WireError(f"heads: 'held' {held} or 'unfinished' {unfinished} of {enqueued}")
        if held is not None and held == self._usual:
            structs.force_setattr(self, "held", None)

    @property
    def completed(self) -> int:
        """Sequence id of the last collective left."""
        return self.enqueued - self.unfinished

    @property
    def inside(self) -> int:
        """Sequence id of the collective that holds the rank's thread now; 0: none. One launched
        with async_op=True holds it only while it waits for the work. By a torch recorder: the one
        that the device has not completed.
        """
        return self._usual if self.held is None else self.held

    @property
    def _usual(self) -> int:
        return self.enqueued if self.unfinished else 0


class TransferHead(Struct, array_like=True, frozen=True, gc=False):
    """Where a rank stands in its sends to one peer, or in its receives from it; travels as a row.

    Sends and receives are counted by (group, peer, tag), which both sides count alike. The numbers
    of a group's collectives say nothing about them.
    """

    group: str
    peer: Whole
    """Rank in the replica group; -1: a receive from any."""
    tag: Whole
    sends: Annotated[int, Meta(ge=0, le=1)]
    """1: sends to the peer; 0: receives from it."""
    posted: Count
    """How many the rank has begun with this peer and tag."""
    unfinished: Count
    """How many up to the last one are unfinished."""
    age_s: Seconds
    """Since the last one was begun (while unfinished) or left."""
    held: Count = 0
    """The one that holds the rank's thread now: a batched or asynchronous one only while the rank
    waits for its work. 0: none."""

    def __post_init__(self) -> None:
        if max(self.unfinished, self.held) > self.posted:
            raise WireError(f"transfers: {self.unfinished} or {self.held} of {self.posted}")


class MadeGroup(Struct, array_like=True, frozen=True, gc=False):
    """A process group that the rank has created, or was in its turn to; travels as a row."""

    ranks: _Members
    """Members asked for; empty: all, or more than are listed."""
    site: str | None = None
    """Call site in the user's code, `file.py:line`."""


class Forming(Struct, frozen=True, gc=False):
    """A process group that the rank is creating now; it waits for the other members meanwhile."""

    call: str
    """`init_process_group`, `new_group` ..."""
    nth: Count
    """Which group of this process it is, counted from 1 over its calls of `new_group` and
    `split_group`. Ranks that create the same groups in the same order have equal numbers. 0: it is
    not counted, as `init_process_group`, and groups that only their members create
    (`use_local_synchronization=True`)."""
    age_s: Seconds
    ranks: _Members = ()
    """Members asked for; empty: all, or more than 256."""
    store: str | None = None
    """Address of the store in which the members meet, `HOST:PORT`."""
    site: str | None = None
    """Call site in the user's code, `file.py:line`."""
    earlier: Annotated[tuple[MadeGroup, ...], _Few] = ()
    """The last calls of new_group before this one, oldest first: number nth - 1 is the last."""


class Trouble(_Words):
    """What is odd about a connection."""

    UNACKNOWLEDGED = "unacknowledged"  # what was sent is sent again, and nobody answers
    UNANSWERED = "unanswered"  # the peer does not answer the request to connect
    MISSING = "missing"  # the rank wants to connect, and there is no connection: refused, mostly
    SILENT = "silent"  # the rank waits for it, and nothing comes
    SLOW = "slow"  # busy sending for most of the last seconds
    SHUT = "shut"  # nobody answered, and the WorkerServer shut it so that it is opened anew
    NONE = ""


ON_CPU: Final = frozenset({"", "gloo", "mpi", "fake", "undefined"})
"""Backends of torch.distributed without kernels on a device."""
ADDRESSES_MOST: Final = 8
CONNECTIONS_MOST: Final = 8
"""A state has the odd ones."""
_End = Annotated[str, Meta(max_length=64, pattern="^[!-~]*(?!\\n)$")]
_Short = Annotated[str, Meta(max_length=32)]
Trackers = Annotated[Mapping[_Short, _Word], Meta(max_length=8)]


class Connection(Struct, array_like=True, frozen=True, gc=False):
    """One TCP connection of the rank or its children, by its kernel; travels as a row."""

    local: _End
    """`ADDRESS:PORT`."""
    peer: _End
    trouble: Trouble = Trouble.NONE
    for_s: Seconds = 0.0
    """How long; of one without trouble, since data was last sent or received."""
    use: _Short = ""
    """What it is for: `across` or `within` (a process group across or within replica groups),
    `store`, `lighthouse`; empty: not known."""
    queued: Count = 0
    """Bytes not acknowledged yet, sent or not."""
    retries: Count = 0
    """Retransmissions, probes or SYNs in a row that nobody has answered."""
    rate: Count = 0
    """Bytes a second while it was busy; of one that is not slow, of its last measured flight."""
    rtt_s: Seconds = 0.0
    busy: Amount = 0.0
    """Share of the last seconds in which it had bytes to send or under way; 0: not measured."""
    best: Count = 0
    """The highest rate of any connection of this rank to the same use, so far; 0: not measured."""

    def later(self, seconds: float) -> Connection:
        """The connection, looked at so much later."""
        return structs.replace(self, for_s=self.for_s + seconds)

    @property
    def address(self) -> str:
        """The peer's address, without its port."""
        return self.peer.rpartition(":")[0].strip("[]")


class Interface(Struct, array_like=True, frozen=True, gc=False):
    """A network interface or an InfiniBand port of the host; travels as a row."""

    name: _Short
    up: bool
    changes: Count = 0
    """How often its carrier changed, or its link went down, since the host started."""
    errors: Count = 0


class Weight(_Words):
    """What a testimony may be used for; none of them accuses anybody alone."""

    BROKEN = "broken"  # the host needs repair: named, and kept from the job
    ENDED = "ended"  # why a process ended; says nothing against the host
    SLOW = "slow"  # explains why something is slow or waits
    LEAVING = "leaving"  # drained, preempted, under maintenance: nobody's fault
    CONTEXT = "context"  # shown, decides nothing


TESTIMONIES_MOST: Final = 8
"""A state has the weightiest, then the latest."""


class Testimony(Struct, array_like=True, frozen=True, gc=False):
    """What one witness says against a host, or of a process on it; travels as a row."""

    witness: _Short
    """Who says so: `kernel log`, `EDAC`, `cgroup`, `NVIDIA`, `Kubernetes` ..."""
    weight: Weight
    code: _Short
    """For programs, lower case: `xid-79`, `oom-kill`, `cpu-throttled` ..."""
    text: Annotated[str, Meta(max_length=200)]
    """For people, without host and time: `GPU 3: Xid 79, fallen off the bus`."""
    age_s: Seconds = 0.0
    """Since it was last so."""
    for_s: Seconds = 0.0
    """Since it was first so."""
    device: _Short = ""
    """`GPU 3`, `nvme0n1`, `eth0`; empty: the host."""
    pids: Annotated[tuple[Count, ...], Meta(max_length=8)] = ()
    """Processes it concerns, in the witness's PID namespace; empty: all of the host."""
    count: Count = 1
    """How often since the witness began."""

    def later(self, seconds: float) -> Testimony:
        """The testimony, so much later."""
        return structs.replace(self, age_s=self.age_s + seconds, for_s=self.for_s + seconds)


@dataclass(frozen=True, slots=True)
class MachineReport:
    """What the machine itself says: the answer of `GET /v1/machine`."""

    host: Host
    age_s: Seconds
    """Since the witnesses' process wrote it; it writes every second."""
    witnesses: Mapping[str, str] = field(default_factory=dict)
    """Each witness of the host, and why it cannot read its source; empty: it reads."""
    testimonies: tuple[Testimony, ...] = ()
    """All that is known, weightiest first; at most 128."""
    error: str | None = None
    """Why there are no witnesses; None: they are heard."""
    identity: Identity | None = None
    """The rank whose WorkerServer answers."""


@dataclass(frozen=True, slots=True)
class NetworkReport:
    """The rank's connections and its host's interfaces: the answer of `GET /v1/network`."""

    identity: Identity
    alive: bool
    age_s: Seconds
    """Since the kernel was asked; of a dead rank, the last look before its end."""
    addresses: tuple[str, ...]
    """The host's, without loopback."""
    connections: tuple[Connection, ...]
    """Odd ones first; at most 512."""
    interfaces: tuple[Interface, ...] = ()
    error: str | None = None
    """Why the kernel cannot be asked; None: it answers."""


class StateReport(Struct, frozen=True, gc=False):
    """Where the rank stands: the answer of `GET /v1/state`."""

    identity: Identity
    process: Process
    step: StepState | None = None
    """None when the rank has attached but never reported a step."""
    heads: Annotated[tuple[GroupHead, ...], Meta(max_length=1024)] = ()
    witness: Witness | None = None
    """None while it makes progress, and if no stacks could be taken. Of a dead rank the last one
    before its end, if it did not move after it."""
    ending: Ending | None = None
    """None while it lives."""
    unhooked: Annotated[tuple[_Word, ...], _Few] = ()
    """Functions missing from this version of TorchFT, such as `Manager.start_quorum`: what they
    did is not seen. Left out if there are none."""
    transfers: Annotated[tuple[TransferHead, ...], Meta(max_length=256)] = ()
    """Sends and receives, by peer and tag; left out if there are none."""
    forming: Forming | None = None
    """None: it is creating no process group."""
    timeouts: Annotated[Mapping[_Word, Seconds], _Few] = {}
    """What ends a wait by itself -> after how long, as the program configured it: `collective`
    (the shortest of its process groups), `quorum`, `commit`. Only what is known."""
    lighthouse: str | None = None
    """Address of the Lighthouse that this rank's Manager asks, `HOST:PORT`. None: it asks none, as
    rank 0 asks for its whole group, or it is not known."""
    addresses: Annotated[tuple[_End, ...], Meta(max_length=ADDRESSES_MOST)] = ()
    """Its host's, without loopback; others know its connections by them."""
    connections: Annotated[tuple[Connection, ...], Meta(max_length=CONNECTIONS_MOST)] = ()
    """The odd ones; left out if there are none."""
    kernels: bool = False
    """True if it has process groups whose collectives are kernels on a device, as NCCL's are."""
    machine: Annotated[tuple[Testimony, ...], Meta(max_length=TESTIMONIES_MOST)] = ()
    """What its host's witnesses say of the host and of this rank; left out if that is nothing."""
    trackers: Trackers = {}
    """Runs of experiment trackers to which it writes, for links; left out if none are known."""


@dataclass(frozen=True, slots=True)
class RingEntry:
    """One collective, send or receive as the rank's own ring saw it."""

    group: str
    seq: Count
    """Counts the collectives of this group from 1; those of this direction with this peer and tag,
    if it is a send or a receive."""
    op: str
    """Name in torch.distributed: all_reduce, all_gather, broadcast, send, barrier ..."""
    sizes_in: Shapes = ()
    sizes_out: Shapes = ()
    dtype: str | None = None
    reduce_op: str | None = None
    root: Whole | None = None
    """Root of a rooted collective, or the peer of a point-to-point operation; None: none, or a
    receive from any."""
    step: Whole | None = None
    attempt: Whole | None = None
    nth: Count | None = None
    """Position among those that `seq` counts, in this attempt of the step, from 0."""
    site: str | None = None
    """Call site in the user's code, `file.py:line`."""
    enter_age_s: Seconds = field(kw_only=True)
    exit_age_s: Seconds | None = None
    """None while the rank is inside (or died inside)."""
    error: str | None = None
    is_async: bool = False
    """Started with async_op=True: the rank is inside until the work's wait() returns, and a
    missing exit may also mean that wait() was never called."""
    id: Count | None = None
    """Record id: counts up over all process groups of this process, from 1."""
    torch_ids: tuple[Whole, ...] = ()
    """`record_id`s of torch's own record that belong to this entry."""
    quorum: Whole | None = None
    """Id of the quorum for which TorchFT configured the group; sequence ids restart with each."""
    recorder: str | None = None
    """Key in `FlightRecord.recorders` that `torch_ids` refer to; None: `torch`."""
    thread: Whole | None = None
    """Native id of the thread that called it. Autograd's own threads, which run hooks while the
    training thread waits for them, count as that one."""
    tag: Whole | None = None
    """A send's or receive's."""


@dataclass(frozen=True, slots=True)
class BackendRecord:
    """The record of another of torch's flight recorders; `only` is like `torch_only`."""

    record: Mapping[str, Any] | None = None
    age_s: Seconds | None = None
    error: str | None = None
    """Why it could not be read."""
    only: tuple[Whole, ...] = ()


@dataclass(frozen=True, slots=True)
class FlightRecord:
    """The answer of `GET /v1/flight_recorder`: the ring and torch's own record, side by side.

    The ring does not see what C++ starts by itself (DDP's reducer), nor calls by a name imported
    before the attach; with NCCL an exit means that the host continued, not that the GPU is done. In
    gloo's record `state` is always 'scheduled', and `retired` also comes after a failure.
    """

    identity: Identity
    alive: bool
    members: Annotated[Mapping[str, tuple[Count, ...]], Meta(max_length=RING_CALLS)]
    """Process group -> group ranks of its members, as far as the rank knows."""
    ring: Annotated[tuple[RingEntry, ...], Meta(max_length=8 * RING_CALLS)]
    """Oldest first."""
    dropped: Count
    """Entries that the ring has overwritten."""
    torch: Mapping[str, Any] | None
    """Torch's own JSON record (`fr_trace_json`), unchanged; None if it is not available."""
    torch_age_s: Seconds | None = None
    torch_error: str | None = None
    torch_only: tuple[Whole, ...] = ()
    """`record_id`s of torch's record that match no entry of the ring: what C++ did by itself
    (DDP's reducer), and what came before the attach."""
    torch_last_age_s: Seconds | None = None
    """Since the newest entry of `torch` was created, by its wall-clock stamp; None if there is
    none, or if the clock was set since."""
    recorders: Mapping[str, BackendRecord] = field(default_factory=dict)
    """The other backends' records, by the request that torch's control plane received:
    `dump_nccl_trace_json`, `fr_trace_json?backend=nccl`, `torchcomms_fr_trace_json`."""

    @property
    def parts(self) -> tuple[tuple[str | None, BackendRecord], ...]:
        """Torch's records, by their names in the ring's entries; `torch` first."""
        main = BackendRecord(self.torch, self.torch_age_s, self.torch_error, self.torch_only)
        return ((None, main), *self.recorders.items())

    def views(self) -> Iterator[FlightRecord]:
        """For each recorder, the answer as if it were the only one, in `torch`."""
        for name, part in self.parts:
            yield replace(
                self,
                ring=tuple(
                    e if e.recorder == name else replace(e, torch_ids=()) for e in self.ring
                ),
                torch=part.record,
                torch_age_s=part.age_s,
                torch_error=part.error,
                torch_only=part.only,
                torch_last_age_s=None if name else self.torch_last_age_s,
            )


@dataclass(frozen=True, slots=True)
class Trace:
    """A text that the rank left, and its age."""

    text: str
    source: str
    """Where it was found: `faulthandler`, `sys.excepthook`, a path ..."""
    age_s: Seconds | None = None


@dataclass(frozen=True, slots=True)
class LastWords:
    """The answer of `GET /v1/last_words`: how the process ended and what it said last."""

    identity: Identity
    process: Process
    ended: str
    """One sentence: alive, announced its end, killed by SIGKILL, raised ValueError ..."""
    exception: Trace | None = None
    """The uncaught exception, with its traceback."""
    crash: Trace | None = None
    """Python stacks at a fatal signal (SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL)."""
    error_file: Trace | None = None
    """What torchelastic's `@record` wrote."""
    stderr: Trace | None = None
    """Last lines of the process's stderr, if that is a file."""
    stderr_error: str | None = None
    """Why there is no stderr tail."""


class HostEntry(Struct, frozen=True, gc=False):
    """One rank in the answer of `GET /v1/host`: its state, or why there is none."""

    rank: RankName
    url: str | None = None
    """Its own WorkerServer's; None if it has none (any more)."""
    report: StateReport | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        if self.report is None or self.rank != self.report.identity.rank:
            split_rank_name(self.rank)


@dataclass(frozen=True, slots=True)
class HostReport:
    """The answer of `GET /v1/host`: every rank of the host that shares the run directory."""

    host: Host
    entries: tuple[HostEntry, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """What only a rank of one launch can say of it: to its monitor alone, in no open answer."""

    secret: _Word = ""
    """Its incarnation is the digest of this: nobody else registers as this process."""
    launch: _Word = ""
    """Equal in all ranks of a launch and in no other launch: LIGHTKEEPER_RUN, the id that `torchrun
    --standalone` draws, a Slurm step. Empty where the launcher has none."""
    launcher: _Word = ""
    """The launcher's process on this host; empty where the parent is none."""
    meeting: _Word = ""
    """Where the ranks meet: address, port and run id of the rendezvous. Two launches may share it
    one after the other, but not at once."""
    lighthouse: _Word = ""
    """The Lighthouse that its group asks, as the launcher names it."""


def digest(text: str) -> str:
    """A short name for a secret: 64 bits of its SHA-256."""
    return sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Registration:
    """The body of `POST /v1/register`: a WorkerServer asks to be polled for a while."""

    identity: Identity
    url: str
    lease_s: Seconds
    age_s: Seconds | None = None
    """Since the rank's process began; of two incarnations of a rank, the younger one counts."""
    dead_age_s: Seconds | None = None
    """Since it died; None while it lives."""
    claim: Claim | None = None
    last: StateReport | None = None
    """How it ends, sent while it ends: its pod takes its WorkerServer along."""


# -- from a network's bytes to the types ---------------------------------------------------------

T = TypeVar("T")
_IDENTITY_USUAL_BYTES: Final = 1024
"""Longer ones are not cached."""
_Object = Mapping[str, Any]
_building: Final = threading.Lock()
_built: set[Any] = set()


def build(kind: Any) -> None:
    """Have msgspec know a type: 0.22 crashes where two threads are the first to read it."""
    if kind not in _built:
        with _building, suppress(ValidationError):
            convert(None, kind)
        _built.add(kind)


def _read(kind: type[T], data: Any, at: str = "") -> T:
    """`data` as this type; `at` says where in the answer it is."""
    build(kind)
    try:
        return convert(data, kind)
    except (ValidationError, UnicodeEncodeError):
        pass
    try:
        return convert(_trimmed(kind, data), kind)
    except (ValidationError, UnicodeEncodeError) as exc:  # a lone surrogate is no text
        raise WireError(" ".join(f"{at} {exc}".split())) from exc


def _trimmed_within(args: tuple[Any, ...], data: Any) -> Any:
    """What is longer than its bound is refused anyway."""
    most = getattr(args[-1], "max_length", None)
    too_long = most is not None and isinstance(data, list | Mapping) and len(data) > most
    return data if too_long else _trimmed(args[0], data)


def _trimmed(kind: Any, data: Any) -> Any:
    """`data` without nulls for this type's keys; a row is cut to this type's length."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Annotated, Union, UnionType):
        return _trimmed_within(args, data)
    if isinstance(data, Mapping):
        if isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, Struct)):
            return {
                name: _trimmed(hint, data[name])
                for name, hint in _hints(kind).items()
                if data.get(name) is not None
            }
        if origin is Mapping:
            return {key: _trimmed(args[1], value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        if origin is tuple and args[-1] is Ellipsis:
            return [_trimmed(args[0], item) for item in data]
        return data[: len(args or getattr(kind, "_fields", data))]
    return data


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _object(data: Any, what: str) -> _Object:
    if not isinstance(data, Mapping):
        raise WireError(f"{what}: expected an object, got {type(data).__name__}")
    return data


def _answer(data: Any) -> _Object:
    """Its keys without nulls, once its schema is checked."""
    content = {key: value for key, value in _object(data, "answer").items() if value is not None}
    schema = content.get("schema")
    if schema is None:
        raise WireError("missing key 'schema'")
    if type(schema) is not int or schema != SCHEMA:
        raise WireError(f"schema {schema!r:.20} is not {SCHEMA}: upgrade the older side")
    return content


def parse_identity(data: Any) -> Identity:
    """Who a rank is, checked.

    Raises:
        WireError: a key is missing or ill-typed, or the rank is outside its world.
    """
    return _read(Identity, data)


def parse_claim(data: Any) -> Claim:
    """What a rank says of its launch, checked."""
    return _read(Claim, data)


def parse_state(data: Any) -> StateReport:
    """The answer of `GET /v1/state`, checked."""
    return _report(_answer(data))


def _report(content: _Object) -> StateReport:
    report = _read(StateReport, content)
    if report.step is None or "committed_step" in content["step"]:
        return report
    step = structs.replace(report.step, committed_step=expected_committed_step(report.step))
    return structs.replace(report, step=step)


def parse_steps(data: Any) -> StepLog:
    """The answer of `GET /v1/steps`, checked."""
    return _read(StepLog, _answer(data))


def parse_machine(data: Any) -> MachineReport:
    """The answer of `GET /v1/machine`, checked."""
    return _read(MachineReport, _answer(data))


def parse_host(data: Any) -> HostReport:
    """The answer of `GET /v1/host`, checked."""
    content = _answer(data)
    entries = _read(tuple[dict[str, Any], ...], content.get("entries"), "entries:")
    return _read(HostReport, {**content, "entries": tuple(map(_parse_entry, entries))})


def _parse_entry(content: _Object) -> HostEntry:
    report = content.get("report")
    if report is not None:
        content = {**content, "report": _report(_object(report, "report"))}
    return _read(HostEntry, content)


class _StateCells(StateReport, frozen=True, gc=False):
    """A state as sent."""

    identity: Raw  # type: ignore[assignment]

    def report(self, identity: Identity) -> StateReport:
        """The state, with the expected committed step."""
        step = self.step
        if step is not None and step.committed_step is None:  # not shared yet: safe to set
            structs.force_setattr(step, "committed_step", expected_committed_step(step))
        return StateReport(identity, *structs.astuple(self)[1:])


class _EntryCells(Struct, gc=False):
    rank: RankName
    url: str | None = None
    report: _StateCells | None = None
    error: str | None = None


class _HostCells(Struct, gc=False):
    schema: Literal[1]
    host: Host
    entries: tuple[_EntryCells, ...]


class HostReader:
    """Reads answers of `GET /v1/host` like `parse_host`, thousands per second.

    An identity never changes in the life of a process, so it is cached by its bytes.
    """

    def __init__(self) -> None:
        build(_HostCells)
        self._hosts, self._identities = Decoder(_HostCells), Decoder(Identity)
        self._by_bytes: dict[bytes, Identity] = {}
        self.most = 1024
        """Identities to cache."""

    def read(self, body: bytes) -> HostReport:
        """An answer's body.

        Raises:
            ValueError: not JSON, or not this schema.
            RecursionError: nested too deep.
        """
        if b'"committed_step"' not in body:  # there only if it is not the expected one, or null
            try:
                cells = self._hosts.decode(body)
                return HostReport(cells.host, tuple([self._entry(row) for row in cells.entries]))
            except (DecodeError, WireError):  # the slow path accepts more
                pass
        return parse_host(decode(body))

    def _entry(self, cells: _EntryCells) -> HostEntry:
        report = cells.report
        state = None if report is None else report.report(self._identity(bytes(report.identity)))
        return HostEntry(cells.rank, cells.url, state, cells.error)

    def _identity(self, blob: bytes) -> Identity:
        identity = self._by_bytes.get(blob)
        if identity is None:
            identity = self._identities.decode(blob)
            if len(self._by_bytes) >= self.most:
                self._by_bytes.clear()
            if len(blob) <= _IDENTITY_USUAL_BYTES:
                self._by_bytes[blob] = identity
        return identity


def parse_flight_record(data: Any) -> FlightRecord:
    """The answer of `GET /v1/flight_recorder`, checked; torch's part is passed on unchanged."""
    return _read(FlightRecord, {"members": {}, "dropped": 0, "torch": None, **_answer(data)})


def parse_registration(data: Any) -> Registration:
    """The body of `POST /v1/register`, checked.

    Raises:
        WireError: not this schema, or a URL that has more than scheme, host and port (and the
            rank's name, if one server answers for many), or whose host is link-local, multicast,
            unspecified or a cloud's metadata: the monitor sends its token to that URL.
    """
    registration = _read(Registration, _answer(data))
    url = registration.url.removesuffix("/")
    if not _is_server(url.removesuffix(f"/{registration.identity.rank}")):
        raise WireError(f"'url' is {url[:200]!r}, expected http(s)://HOST:PORT of a WorkerServer")
    return replace(registration, url=url)


_SERVER: Final = re.compile(
    r"https?://(?P<host>[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:(?P<port>[0-9]{1,5}))?"
)


_METADATA: Final = frozenset(
    {"metadata", "metadata.google.internal", "instance-data", "instance-data.ec2.internal"}
    | {"fd00:ec2::254", "100.100.100.200", "168.63.129.16"}
)
"""Where clouds hand out credentials, besides the link-local addresses."""


_NAT64: Final = ip_network("64:ff9b::/96")


def routed(text: str) -> IPv4Address | IPv6Address:
    """An address, or the IPv4 one in it: mapped (RFC 4291), by NAT64 (RFC 6052) or 6to4 (RFC 3056).

    Raises:
        ValueError: not an address.
    """
    address = ip_address(text)
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _is_server(url: str) -> bool:
    match = _SERVER.fullmatch(url)
    if match is None or not 0 < int(match["port"] or 80) < 2**16:
        return False
    host = match["host"].strip("[]")
    try:
        address = routed(host)
    except ValueError:  # a name; some resolvers read a numeric ending as an address
        last = host.rstrip(".").rpartition(".")[2]
        number = last.isdigit() or last[:2].lower() == "0x"
        bracketed, name = "[" in match["host"], host.rstrip(".").lower()
        return not bracketed and not number and name not in _METADATA
    nobody = address.is_link_local or address.is_multicast or address.is_unspecified
    return not nobody and str(address) not in _METADATA


# -- and back ------------------------------------------------------------------------------------

Answer = (
    StateReport
    | StepLog
    | FlightRecord
    | LastWords
    | HostReport
    | Registration
    | NetworkReport
    | MachineReport
)

LEFT_OUT: Final[Mapping[type, Mapping[str, Any]]] = {
    Identity: {"place": {}},
    StateReport: {
        "unhooked": (), "transfers": (), "timeouts": {}, "addresses": (), "connections": (),
        "kernels": False, "machine": (), "trackers": {},
    },
    Forming: {"ranks": (), "earlier": ()},
    StepState: {
        "healing": False, "errored": False, "loss_finite": True, "commit_failures": 0, "tags": (),
        "counters": {}, "source": SOURCE_REPORTER, "times": {}, "gradients_watched": False,
        "local_steps": 0,
    },
}  # fmt: skip
"""Fields left out if they have their usual value, the default; None is always left out."""
_UNTOUCHED: Final = frozenset({"torch", "record", "sizes_in", "sizes_out", "torch_ids"})
"""Torch's records, and integers: there are thousands of entries at once."""
_EXACT: Final = frozenset({str, int, bool, type(None)})


def to_json(value: Answer) -> dict[str, Any]:
    """Plain JSON types with `"schema"`; None is left out.

    The state of a rank with 8 groups has to fit into 1 KiB, a Manager's timeouts and Lighthouse
    into 96 bytes more: heads travel as rows, durations are rounded to milliseconds (in heads to
    10 ms, in `times` to microseconds), and flags with their usual value are left out, as is an
    expected `committed_step`. Other answers have microseconds, and torch's records unchanged.
    """
    return {"schema": SCHEMA, **_object_of(value)}


def _object_of(value: Any, digits: int = 6) -> dict[str, Any]:
    digits = 3 if isinstance(value, StateReport) else digits
    content = {
        key: item if item.__class__ in _EXACT or key in _UNTOUCHED else _plain(item, digits)
        for key, usual in _usual(value.__class__)
        if (item := getattr(value, key)) is not None and item != usual
    }
    if isinstance(value, StepState):
        _shorten(content, value)
    return content


@cache
def _usual(kind: type) -> tuple[tuple[str, Any], ...]:
    """The keys of a type, each with the value at which it is left out."""
    left_out = LEFT_OUT.get(kind, {})
    return tuple((key, left_out.get(key)) for key in _hints(kind))


def _plain(value: Any, digits: int) -> Any:  # noqa: PLR0911  one case each
    if value.__class__ is float:
        return round(value, digits)
    match value:
        case Took():  # in microseconds: staging a toy's state takes a few
            return _list_of(value if value.sum_bytes else value[:3], 6)
        case tuple() | list():
            return _list_of(value, digits)
        case dict():
            return dict(zip(value, _list_of(value.values(), digits), strict=True))
        case StepRow():
            return _list_of(structs.astuple(value), digits)
        case GroupHead():
            return _head_row(value)
        case TransferHead():
            return _list_of(structs.astuple(value), 2)
        case MadeGroup() | Connection() | Interface() | Testimony():
            return _list_of(structs.astuple(value), 3)
        case str():
            return value
        case _:
            return _object_of(value, digits)


def _list_of(items: Iterable[Any], digits: int) -> list[Any]:
    return [item if item.__class__ in _EXACT else _plain(item, digits) for item in items]


def _shorten(content: dict[str, Any], step: StepState) -> None:
    expected = expected_committed_step(step)
    if step.committed_step == expected:
        content.pop("committed_step", None)
    elif step.committed_step is None:  # sent, else the expected one would be assumed
        content["committed_step"] = None
    if step.loss is not None:
        content["loss"] = float(f"{step.loss:.6g}")


def _head_row(head: GroupHead) -> list[Any]:
    row = [head.name, head.size, head.enqueued, head.unfinished, head.op, round(head.age_s, 2)]
    if head.read_age_s is not None:
        return [*row, head.inside, head.started, round(head.read_age_s, 2)]
    return row if head.held is None else [*row, head.held]
