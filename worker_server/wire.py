"""The wire between a WorkerServer and whoever reads it: paths, schema, types, parsing.

Standard library only: the monitor imports this module and nothing else of `worker_server`.

All durations are seconds and are *ages at the moment the answer was made*, measured on the
rank's own host with the monotonic clock. No wall-clock time crosses the wire, so clocks of
two hosts never have to agree.

Unknown keys are ignored (a newer sidecar may say more); a missing or ill-typed key is a
`WireError`; a missing optional value is `None` and is never confused with zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NewType

SCHEMA: Final = 1

PATH_STATE: Final = "/v1/state"
PATH_FLIGHT_RECORDER: Final = "/v1/flight_recorder"
PATH_STACKS: Final = "/v1/stacks"
PATH_WAIT_COUNTERS: Final = "/v1/wait_counters"
PATH_EVICT: Final = "/v1/evict"
PATH_HEALTHZ: Final = "/healthz"
PATH_METRICS: Final = "/metrics"

# Paths of the monitor that a sidecar and a launcher call.
PATH_REGISTER: Final = "/v1/register"
PATH_ADMISSION: Final = "/v1/admission"

GroupName = NewType("GroupName", str)
"""Stable name of a replica group, such as `rg_1`: the replica id without its uuid."""
ReplicaId = NewType("ReplicaId", str)
"""What the Lighthouse knows a group by, such as `rg_1:1f0c...`; new at every start."""
RankName = NewType("RankName", str)
"""Replica group and group rank, such as `rg_1.0`; unique in a job, stable over restarts."""
Host = NewType("Host", str)

WAITING_PHASE: Final = "communication"
"""The one phase in which a rank waits for others; in every other phase it works alone."""

LONG_PHASES: Final = frozenset({"checkpoint", "evaluation", "compile", "init"})
"""Declared phases that may last for minutes in a healthy job."""


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
    if not dot or not group or not rank.isdecimal():
        raise WireError(f"not a rank name: {name!r} (expected GROUP.RANK, such as rg_0.1)")
    return GroupName(group), int(rank)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a rank is. Fixed for the life of its process."""

    job: str
    group: GroupName
    group_rank: int
    world_size: int
    """Ranks in the replica group."""
    host: Host
    """Where the group runs, as its launcher names it: what quarantine speaks of."""
    pid: int
    incarnation: str
    """Differs between any two processes that ever bore this rank's name."""

    @property
    def rank(self) -> RankName:
        """Name of the rank in the job."""
        return rank_name(self.group, self.group_rank)


@dataclass(frozen=True, slots=True)
class Process:
    """The operating system's view of the rank process; needs no cooperation of the rank."""

    alive: bool
    state: str | None
    """Letter of /proc/PID/stat: R, S, D, T (stopped), t (traced), Z; None once it is gone."""
    threads: int | None = None
    rss_bytes: int | None = None
    dead_age_s: float | None = None
    interpreter_age_s: float | None = None
    """Since the rank's interpreter last ran a Python thread; grows while the GIL is held."""


@dataclass(frozen=True, slots=True)
class StepState:
    """What the rank reports of itself."""

    step: int
    """Step that the rank works on: TorchFT's step where there is a Manager."""
    attempt: int
    """Steps begun in the life of this process, retries included; only grows."""
    progress: int
    """Phase changes in the life of this process; only grows. Unchanged means no progress."""
    phase: str
    phase_age_s: float
    commits: int
    """Steps committed in the life of this process."""
    last_commit_age_s: float | None = None
    """None before the first commit of this process."""
    replica_id: ReplicaId | None = None
    quorum_id: int | None = None
    participants: int | None = None
    healing: bool = False
    errored: bool = False
    loss: float | None = None
    """None when none was reported, or when it is not finite (see `loss_finite`)."""
    loss_finite: bool = True
    tokens: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds spent in each phase since the process started, finished phases only; only grows."""


@dataclass(frozen=True, slots=True)
class GroupHead:
    """Where a rank stands in one process group of the collective ring."""

    name: str
    size: int
    enqueued: int
    """Sequence id of the last collective entered, counted from 1; 0 when there was none."""
    completed: int
    """Sequence id of the last collective left."""
    op: str
    age_s: float
    """Since the last collective was entered (while unfinished) or left."""
    inside: int = 0
    """Sequence id of the collective in which the rank's thread is held now; 0: in none. One that
    was launched with async_op=True holds it only while it waits for the work."""


@dataclass(frozen=True, slots=True)
class StateReport:
    """The answer of `GET /v1/state`."""

    identity: Identity
    process: Process
    step: StepState | None
    """None when the rank attached and never reported a step."""
    heads: tuple[GroupHead, ...] = ()


@dataclass(frozen=True, slots=True)
class RingEntry:
    """One collective as the rank's own ring saw it."""

    group: str
    seq: int
    op: str
    """Name in torch.distributed: all_reduce, all_gather, broadcast, send, barrier ..."""
    sizes_in: tuple[tuple[int, ...], ...] = ()
    sizes_out: tuple[tuple[int, ...], ...] = ()
    dtype: str | None = None
    reduce_op: str | None = None
    root: int | None = None
    """Root of a rooted collective, or the peer of a point-to-point operation."""
    step: int | None = None
    attempt: int | None = None
    nth: int | None = None
    """Position among the collectives of this group in this attempt of the step, from 0."""
    site: str | None = None
    """Call site in the user's code, `file.py:line`."""
    enter_age_s: float = 0.0
    exit_age_s: float | None = None
    """None while the rank is inside (or did not live to leave)."""
    error: str | None = None
    is_async: bool = False
    """Started with async_op=True: the rank is inside until the work's wait() returns, and an
    absent exit may also mean that wait() was never called."""


@dataclass(frozen=True, slots=True)
class FlightRecord:
    """The answer of `GET /v1/flight_recorder`: the ring and torch's own record, side by side."""

    identity: Identity
    alive: bool
    members: Mapping[str, tuple[int, ...]]
    """Process group -> group ranks of its members, as far as the rank knows."""
    ring: tuple[RingEntry, ...]
    """Oldest first."""
    dropped: int
    """Entries that the ring has overwritten."""
    torch: Mapping[str, Any] | None
    """Torch's own JSON record (`fr_trace_json`), untouched; None when it cannot be had."""
    torch_age_s: float | None = None
    torch_error: str | None = None


@dataclass(frozen=True, slots=True)
class Registration:
    """The body of `POST /v1/register`: a WorkerServer asks to be polled for a while."""

    identity: Identity
    url: str
    lease_s: float
    age_s: float | None = None
    """Since the rank attached: of two incarnations of one rank, the younger one lives."""


def to_json(value: StateReport | FlightRecord | Registration) -> dict[str, Any]:
    """Plain JSON types with `"schema"`; what is None is left out.

    The state of a rank with 8 groups has to fit into 1 KiB: group heads travel as rows
    `[name, size, enqueued, unfinished, op, age_s]` (and `inside`, where it is neither the last one
    entered nor, with nothing unfinished, none), durations are cut to milliseconds (in
    heads to ten of them), and flags that have their usual value are left out. Other answers
    carry microseconds.
    """
    if not isinstance(value, StateReport):
        return {"schema": SCHEMA, **_plain(asdict(value), 6)}
    plain = _plain(asdict(value), 3)
    plain["heads"] = [_head_row(head) for head in value.heads]
    if value.step is not None:
        step = plain["step"]
        for key, usual in _USUAL.items():
            if step[key] is usual:
                del step[key]
        if value.step.loss is not None:  # a small loss keeps its digits
            step["loss"] = float(f"{value.step.loss:.6g}")
    return {"schema": SCHEMA, **plain}


_USUAL: Final = {"healing": False, "errored": False, "loss_finite": True}


def _plain(value: Any, digits: int) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item, digits) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item, digits) for item in value]
    return round(value, digits) if isinstance(value, float) else value


# -- parsing: every value that came over a network passes through here ----------------------

_MISSING: Final = object()
_HEAD_KEYS: Final = ("name", "size", "enqueued", "unfinished", "op", "age_s")


def _get(data: Any, key: str, kinds: tuple[type, ...], default: Any = _MISSING) -> Any:
    if not isinstance(data, Mapping):
        raise WireError(f"expected an object around {key!r}, got {type(data).__name__}")
    value = data.get(key)
    if value is None:
        if default is _MISSING:
            raise WireError(f"missing key {key!r}")
        return default
    if isinstance(value, bool) and bool not in kinds:
        raise WireError(f"{key!r} is a bool, expected {kinds[0].__name__}")
    if not isinstance(value, kinds):
        raise WireError(f"{key!r} is {type(value).__name__}, expected {kinds[0].__name__}")
    return value


def _str(data: Any, key: str, default: Any = _MISSING) -> Any:
    return _get(data, key, (str,), default)


def _int(data: Any, key: str, default: Any = _MISSING) -> Any:
    return _get(data, key, (int,), default)


def _bool(data: Any, key: str, default: Any = _MISSING) -> Any:
    return _get(data, key, (bool,), default)


def _float(data: Any, key: str, default: Any = _MISSING) -> Any:
    value = _get(data, key, (float, int), default)
    if value is default:
        return value
    try:
        number = float(value)
    except OverflowError as exc:
        raise WireError(f"{key!r} is a number of more than 300 digits") from exc
    if not math.isfinite(number):
        raise WireError(f"{key!r} is {number}, expected a finite number")
    return number


def _seconds(data: Any, key: str, default: Any = _MISSING) -> Any:
    value = _float(data, key, default)
    if value is not default and value < 0:
        raise WireError(f"{key!r} is {value}, expected seconds >= 0")
    return value


def _check_schema(data: Any) -> None:
    schema = _int(data, "schema")
    if schema != SCHEMA:
        raise WireError(f"schema {schema} is not {SCHEMA}: upgrade the older side")


def parse_identity(data: Any) -> Identity:
    """Who a rank is, checked.

    Raises:
        WireError: a key is missing or ill-typed, or the rank lies outside its world.
    """
    group_rank, world_size = _int(data, "group_rank"), _int(data, "world_size")
    if not 0 <= group_rank < world_size:
        raise WireError(f"group_rank {group_rank} is outside a world of {world_size}")
    return Identity(
        job=_str(data, "job"),
        group=GroupName(_str(data, "group")),
        group_rank=group_rank,
        world_size=world_size,
        host=Host(_str(data, "host")),
        pid=_int(data, "pid"),
        incarnation=_str(data, "incarnation"),
    )


def _parse_process(data: Any) -> Process:
    return Process(
        alive=_bool(data, "alive"),
        state=_str(data, "state", None),
        threads=_int(data, "threads", None),
        rss_bytes=_int(data, "rss_bytes", None),
        dead_age_s=_seconds(data, "dead_age_s", None),
        interpreter_age_s=_seconds(data, "interpreter_age_s", None),
    )


def _parse_step(data: Any) -> StepState:
    seconds = _get(data, "seconds", (Mapping,), {})
    replica_id = _str(data, "replica_id", None)
    return StepState(
        step=_int(data, "step"),
        attempt=_int(data, "attempt"),
        progress=_int(data, "progress"),
        phase=_str(data, "phase"),
        phase_age_s=_seconds(data, "phase_age_s"),
        commits=_int(data, "commits"),
        last_commit_age_s=_seconds(data, "last_commit_age_s", None),
        replica_id=None if replica_id is None else ReplicaId(replica_id),
        quorum_id=_int(data, "quorum_id", None),
        participants=_int(data, "participants", None),
        healing=_bool(data, "healing", False),
        errored=_bool(data, "errored", False),
        loss=_float(data, "loss", None),
        loss_finite=_bool(data, "loss_finite", True),
        tokens=_int(data, "tokens", 0),
        seconds={str(name): _seconds(seconds, name) for name in seconds},
    )


def _head_row(head: GroupHead) -> list[Any]:
    unfinished = head.enqueued - head.completed
    row = [head.name, head.size, head.enqueued, unfinished, head.op, round(head.age_s, 2)]
    usual = head.enqueued if unfinished else 0
    return row if head.inside == usual else [*row, head.inside]


def _parse_head(row: Any) -> GroupHead:
    if not isinstance(row, list | tuple) or len(row) < len(_HEAD_KEYS):
        raise WireError(f"a head is not a row of {len(_HEAD_KEYS)} values")
    data = dict(zip((*_HEAD_KEYS, "inside"), row, strict=False))
    enqueued, unfinished = _int(data, "enqueued"), _int(data, "unfinished")
    inside = _int(data, "inside", enqueued if unfinished else 0)
    if not 0 <= inside <= enqueued:
        raise WireError(f"'inside' is {inside}, expected 0 to {enqueued}")
    return GroupHead(
        name=_str(data, "name"),
        size=_int(data, "size"),
        enqueued=enqueued,
        completed=enqueued - unfinished,
        op=_str(data, "op"),
        age_s=_seconds(data, "age_s"),
        inside=inside,
    )


def parse_state(data: Any) -> StateReport:
    """The answer of `GET /v1/state`, checked.

    Raises:
        WireError: not this schema; the message names the first key that is wrong.
    """
    _check_schema(data)
    step = _get(data, "step", (Mapping,), None)
    return StateReport(
        identity=parse_identity(_get(data, "identity", (Mapping,))),
        process=_parse_process(_get(data, "process", (Mapping,))),
        step=None if step is None else _parse_step(step),
        heads=tuple(_parse_head(head) for head in _get(data, "heads", (list, tuple), ())),
    )


def _shapes(data: Any, key: str) -> tuple[tuple[int, ...], ...]:
    shapes = _get(data, key, (list, tuple), ())
    for shape in shapes:
        if not isinstance(shape, list | tuple) or not all(type(n) is int for n in shape):
            raise WireError(f"{key!r} is not a list of lists of numbers")
    return tuple(tuple(shape) for shape in shapes)


def _parse_entry(data: Any) -> RingEntry:
    return RingEntry(
        group=_str(data, "group"),
        seq=_int(data, "seq"),
        op=_str(data, "op"),
        sizes_in=_shapes(data, "sizes_in"),
        sizes_out=_shapes(data, "sizes_out"),
        dtype=_str(data, "dtype", None),
        reduce_op=_str(data, "reduce_op", None),
        root=_int(data, "root", None),
        step=_int(data, "step", None),
        attempt=_int(data, "attempt", None),
        nth=_int(data, "nth", None),
        site=_str(data, "site", None),
        enter_age_s=_seconds(data, "enter_age_s"),
        exit_age_s=_seconds(data, "exit_age_s", None),
        error=_str(data, "error", None),
        is_async=_bool(data, "is_async", False),
    )


def parse_flight_record(data: Any) -> FlightRecord:
    """The answer of `GET /v1/flight_recorder`, checked; torch's part is passed on untouched.

    Raises:
        WireError: not this schema; the message names the first key that is wrong.
    """
    _check_schema(data)
    members = _get(data, "members", (Mapping,), {})
    for name in members:
        _shapes({name: [members[name]]}, name)
    return FlightRecord(
        identity=parse_identity(_get(data, "identity", (Mapping,))),
        alive=_bool(data, "alive"),
        members={str(name): tuple(ranks) for name, ranks in members.items()},
        ring=tuple(_parse_entry(entry) for entry in _get(data, "ring", (list, tuple))),
        dropped=_int(data, "dropped", 0),
        torch=_get(data, "torch", (Mapping,), None),
        torch_age_s=_seconds(data, "torch_age_s", None),
        torch_error=_str(data, "torch_error", None),
    )


def parse_registration(data: Any) -> Registration:
    """The body of `POST /v1/register`, checked.

    Raises:
        WireError: not this schema, or a URL that is not http(s).
    """
    _check_schema(data)
    url = _str(data, "url")
    if not url.startswith(("http://", "https://")):
        raise WireError(f"'url' is {url!r}, expected http:// or https://")
    return Registration(
        identity=parse_identity(_get(data, "identity", (Mapping,))),
        url=url.rstrip("/"),
        lease_s=_seconds(data, "lease_s"),
        age_s=_seconds(data, "age_s", None),
    )
