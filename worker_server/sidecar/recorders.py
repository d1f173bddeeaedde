"""Torch's flight recorders of one rank: which exist, and the last answer of each.

Theory of operation. Each backend has its own recorder, and torch's control plane a handler for
each: `fr_trace_json` (gloo's; since torch 2.15 every backend's by `?backend=`),
`dump_nccl_trace_json` in CUDA builds, `torchcomms_fr_trace_json`. The list is requested each time,
because libraries are loaded late. They are asked one after the other; one that does not answer
does not affect the others. A torch without `?backend=` gives gloo's again: the duplicate is
dropped.
"""

from __future__ import annotations

import http.client
import json
import re
import select
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final, TypeVar

from msgspec import Struct, ValidationError, convert, field
from msgspec.structs import astuple

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.run_dir import RankFiles
from lightkeeper.worker_server.sidecar import SilentError
from lightkeeper.worker_server.wire import ACROSS, GroupHead, Shapes

# -- Client of torch's control plane in the rank: HTTP over a unix socket -------------------------
# Only handlers that need no GIL are called, so abandoned requests never pile up in the rank. One
# that still does not answer holds a thread of the rank's server: its connection is kept, and the
# handler is not asked again before that answer has come.

_MAX_BYTES: Final = 64 * 1024 * 1024
_CHUNK_BYTES: Final = 1024 * 1024
_LIST: Final = ""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("rank", timeout=timeout_s)
        self._path = path
        self.since_s = monotonic()

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))

    def has_answered(self) -> bool:
        """True if data, or at least the end, has come meanwhile."""
        return self.sock is None or bool(select.select([self.sock], [], [], 0)[0])


class ControlPlane:
    """Asks the control plane that listens on `path`, if there is one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._unanswered: dict[str, _UnixConnection] = {}

    def handlers(self) -> frozenset[str]:
        """The handlers that this torch has.

        Raises:
            SilentError: no control plane, no answer in time, or not a list.
        """
        names = self._ask_json(_LIST, 0.5, "GET")  # with `ask` within 3 s, as evidence waits
        if not isinstance(names, list):
            raise SilentError("/handler/: not a list")
        return frozenset(name for name in names if isinstance(name, str))

    def ask(self, question: str, timeout_s: float = 2.0) -> dict[str, Any]:
        """The answer to a request such as `fr_trace_json?backend=nccl`.

        Raises:
            SilentError: no control plane, no answer in time, or no JSON object.
        """
        answer = self._ask_json(question, timeout_s, "POST")
        if not isinstance(answer, dict):
            raise SilentError(f"{question}: not an object")
        return answer

    def _ask_json(self, question: str, timeout_s: float, method: str) -> Any:
        with self._lock:
            body = self._ask(question, timeout_s, method)
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as exc:
            raise SilentError(f"{question}: not JSON: {exc}") from exc

    def _ask(self, question: str, timeout_s: float, method: str) -> bytes:
        name = question or "/handler/"
        earlier = self._unanswered.pop(question, None)
        if earlier is not None and not earlier.has_answered():
            self._unanswered[question] = earlier
            age_s = monotonic() - earlier.since_s
            raise SilentError(f"{name}: no answer for {age_s:.0f} s; not asked again")
        if earlier is not None:
            earlier.close()
        if not self._path.exists():
            why = "torch.distributed is not imported, or it is over"
            if not RankFiles(self._path.with_suffix(".page")).socket_fits:
                why = "the path of its socket is too long: set a shorter LIGHTKEEPER_RUN_DIR"
            raise SilentError(f"torch's control plane is not up ({why})")
        connection = _UnixConnection(self._path, timeout_s)
        try:
            connection.request(method, f"/handler/{question}", headers={"Connection": "close"})
            body = self._read(connection, connection.since_s + timeout_s)
        except TimeoutError as exc:
            self._unanswered[question] = connection
            raise SilentError(f"{name}: no answer within {timeout_s:g} s") from exc
        except (OSError, http.client.HTTPException, SilentError) as exc:
            connection.close()
            problem = str(exc) if isinstance(exc, SilentError) else repr(exc)
            raise SilentError(f"{name}: {problem}") from exc
        connection.close()
        return body

    @staticmethod
    def _read(connection: _UnixConnection, deadline_s: float) -> bytes:
        """The whole body; the deadline also holds if it arrives in drops."""
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise SilentError(f"HTTP {response.status}")
        parts: list[bytes] = []
        size = 0
        while part := response.read1(_CHUNK_BYTES):
            parts.append(part)
            size += len(part)
            if size > _MAX_BYTES:
                raise SilentError(f"more than {_MAX_BYTES >> 20} MiB")
            if monotonic() > deadline_s:
                raise TimeoutError
        return b"".join(parts)


# -- the recorders --------------------------------------------------------------------------------

# Where the rank stands in process groups, by torch's own recorders: NCCL's above all.
#
# Theory of operation. A recorder's status has three counts for each process group: collectives
# that the host enqueued, that the device started, and that it completed. A group's name and size
# come from the recorder's entries and its configuration. A reading without entries is cheap; it
# uses names and sizes from the last one that had them. Left out are groups without a name and
# TorchFT's (the ring has those, with quorums), groups of one, and groups with point-to-point
# calls, which torch counts in the same place. A count that stays unfinished while the rank makes
# progress for long belongs to a group that was aborted.
#
# Pure; what is not understood is ignored.

_STALE_S: Final = 30.0
"""An older reading gives no heads; of a dead rank, one older than its death by so much."""
_ABANDONED_S: Final = 60.0
_MOST: Final = 10**18
_DIGITS: Final = re.compile(r"\d{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Group:
    name: str
    size: int
    last: tuple[int, str]
    """Sequence id and operation of its newest entry."""


@dataclass(frozen=True, slots=True)
class _Head:
    group: _Group
    counts: _Counts
    since_s: float
    read_s: float


class _Counts(Struct, frozen=True):
    """One process group's sequence ids, as numbers or strings; -1: none."""

    enqueued: int = field(default=0, name="last_enqueued_collective")
    started: int = field(default=0, name="last_started_collective")
    completed: int = field(default=0, name="last_completed_collective")


class RecordedHeads:
    """Heads by all recorders of a rank; times are monotonic. One thread writes, any may read."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, _Group | None]] = {}
        """By question and torch's number of the process group; None: left out."""
        self._heads: dict[tuple[str, str], _Head] = {}

    def take(self, question: str, record: Mapping[str, Any], now_s: float, moved_s: float) -> None:
        """A recorder's reading, with or without entries; `moved_s`: when the rank last moved.

        A group seen for the first time is taken to stand since `moved_s`.
        """
        groups = self._groups.setdefault(question, {})
        if "entries" in record:
            groups.update(_groups(record))
        heads = {key: head for key, head in self._heads.items() if key[0] != question}
        for number, counts in _statuses(record):
            group = groups.get(number)
            if group is None:
                continue
            before = self._heads.get((question, number))
            since_s = min(now_s, moved_s)
            if before is not None:
                since_s = before.since_s if before.counts == counts else now_s
            heads[question, number] = _Head(group, counts, since_s, now_s)
        self._heads = heads

    def by_now(
        self, now_s: float, moved_s: float, ended_s: float | None = None
    ) -> tuple[GroupHead, ...]:
        """The heads; `moved_s`: when anything else of the rank last moved, `ended_s`: it died."""
        last_s = now_s if ended_s is None else ended_s
        by_name = {
            head.group.name: _on_the_wire(head, now_s)
            for _, head in sorted(self._heads.items())
            if last_s - head.read_s <= _STALE_S
            and not (_unfinished(head) and moved_s - head.since_s > _ABANDONED_S)
        }
        return tuple(by_name.values())


def _unfinished(head: _Head) -> bool:
    return head.counts.enqueued > head.counts.completed


def _on_the_wire(head: _Head, now_s: float) -> GroupHead:
    enqueued, started, completed = astuple(head.counts)
    seq, op = head.group.last
    return GroupHead(
        name=head.group.name,
        size=head.group.size,
        enqueued=enqueued,
        unfinished=enqueued - completed,
        op=op if seq == enqueued else "",
        age_s=max(0.0, now_s - head.since_s),
        held=completed + 1 if _unfinished(head) else 0,
        started=started,
        read_age_s=max(0.0, now_s - head.read_s),
    )


def _statuses(record: Mapping[str, Any]) -> Iterator[tuple[str, _Counts]]:
    """Plausible counts only: nothing is completed before it was enqueued."""
    statuses = record.get("pg_status")
    for number, status in statuses.items() if isinstance(statuses, Mapping) else ():
        with suppress(ValidationError):
            stated = astuple(convert(status, _Counts, strict=False))
            counts = _Counts(*(max(0, n) for n in stated))
            if 0 < counts.enqueued == max(stated) < _MOST:
                yield str(number), counts


def _groups(record: Mapping[str, Any]) -> dict[str, _Group | None]:
    """The process groups that have entries, by torch's number."""
    groups: dict[str, _Group | None] = {}
    for _, entry in by_record_id(torch_entries(record)):
        key, seq = str(entry.pg_id), entry.collective_seq_id
        if entry.pg_id is None or seq is None or not entry.profiling_name:
            continue
        if groups.get(key, ...) is None:
            continue
        backend = entry.profiling_name.rpartition(":")[0] or "torch"
        name, size = _named(entry.process_group), _size(record, entry.process_group)
        if entry.is_p2p is not False or name is None or size < 2:
            groups[key] = None
        else:
            groups[key] = _Group(f"{backend}:{name}", size, (seq, entry.call))
    return groups


def _named(names: tuple[str, ...] | None) -> str | None:
    """A name that all ranks of the group have, unique in this rank; None: unknown, or TorchFT's."""
    if names is None or len(names) != 2 or not names[0]:
        return None
    name, desc = names
    if name.startswith(ACROSS) or desc.startswith(ACROSS):
        return None
    if desc == WORLD:
        return desc
    return f"{desc}/{name}" if desc not in ("", "undefined") else name


def _size(record: Mapping[str, Any], names: tuple[str, ...] | None) -> int:
    """Number of member ranks, by the recorder's configuration; 0: not known."""
    groups = record.get("pg_config")
    group = groups.get(names[0]) if isinstance(groups, Mapping) and names else None
    ranks = group.get("ranks") if isinstance(group, Mapping) else None
    return len(_DIGITS.findall(ranks)) if isinstance(ranks, str) else 0


_T = TypeVar("_T")

MAIN: Final = "fr_trace_json"
_ITS_BACKEND: Final = "gloo"
_OTHERS: Final = ("dump_nccl_trace_json", "torchcomms_fr_trace_json")
_HEADERS: Final = {"dump_nccl_trace_json": "dump_nccl_trace_json?includecollectives=false"}
"""Requests for a recorder's status without its entries."""
_HEADER_DUTY: Final = 0.001
"""Share of one CPU of the rank that they may cost."""
_BACKEND: Final = re.compile(r"\w{1,32}", re.ASCII)
_BACKENDS_MOST: Final = 8


@dataclass(frozen=True, slots=True)
class Kept:
    """One recorder's last answer."""

    record: Mapping[str, Any] | None = None
    taken_s: float = 0.0
    """Monotonic; 0: never."""
    cost_s: float = 0.0
    entered: int = 0
    """Collectives that the rank had entered by then."""
    error: str | None = None
    """Why there is no newer one."""

    @property
    def age_s(self) -> float | None:
        """Since the answer; None: never."""
        return monotonic() - self.taken_s if self.taken_s else None


@dataclass(eq=False)
class Recorders:
    """Asks, and keeps the answers for when the rank is dead."""

    plane: ControlPlane
    process: Callable[[], wire.Process]
    backends: Callable[[], Iterable[str]]

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._ignores_backend = False
        """This torch has no `?backend=`."""
        self.kept: dict[str, Kept] = {MAIN: Kept()}
        """By question."""
        self.heads = RecordedHeads()
        """By all but the main one: gloo's status comes only with all of its entries."""
        self._next_s = self._moved_s = 0.0

    def refresh(self, max_age_s: float, entered: int) -> None:
        """Ask recorders whose last answer is older; never raises."""
        with self._lock:
            due_s = monotonic() - max_age_s
            if all(kept.taken_s > due_s for kept in self.kept.values()):
                return
            try:
                handlers = self._asked(self.plane.handlers)
            except SilentError as exc:
                why = str(exc)
                self.kept = {name: replace(kept, error=why) for name, kept in self.kept.items()}
                return
            backends = () if self._ignores_backend else self.backends()
            every = dict.fromkeys([MAIN, *questions(handlers, backends)])
            for question in every:
                kept = self.kept.get(question, Kept())
                if kept.taken_s <= due_s:
                    self.kept[question] = self._refreshed(question, kept, handlers, entered)
            for question in filter(self._is_mains, every):
                del self.kept[question]
                self._ignores_backend = True

    @property
    def blind(self) -> bool:
        """True if some heads come only with a full record."""
        return not self.kept.keys() <= {MAIN, *_HEADERS}

    def look(self, moved_s: float) -> None:
        """Read the cheap heads again; called once a second, never raises.

        `moved_s`: when the rank's own threads last moved.
        """
        self._moved_s = moved_s
        with self._lock:
            started_s = monotonic()
            if started_s < self._next_s:
                return
            with suppress(SilentError):
                for question in self.kept.keys() & _HEADERS.keys():
                    header = self._asked(partial(self.plane.ask, _HEADERS[question]))
                    self.heads.take(question, header, monotonic(), moved_s)
            self._next_s = monotonic() + (monotonic() - started_s) / _HEADER_DUTY

    def _refreshed(self, question: str, kept: Kept, handlers: frozenset[str], entered: int) -> Kept:
        if question.partition("?")[0] not in handlers:
            return replace(kept, error=f"this torch has no {question}")
        started_s = monotonic()
        try:
            record = self._asked(lambda: self.plane.ask(question))
        except SilentError as exc:
            return replace(kept, error=str(exc))
        done_s = monotonic()
        if question != MAIN:
            self.heads.take(question, record, done_s, self._moved_s)
        return Kept(record, done_s, done_s - started_s, entered)

    def _asked(self, ask: Callable[[], _T]) -> _T:
        """The answer, if the rank can give one."""
        process = self.process()
        if not process.alive:
            raise SilentError("the rank is dead")
        if process.state == "T":
            raise SilentError("the rank is stopped (state T): it was not asked")
        return ask()

    def _is_mains(self, question: str) -> bool:
        """True if a torch without `?backend=` gave the main record again."""
        if not question.startswith(f"{MAIN}?"):
            return False
        marks, main_marks = (_marks(self.kept[name].record) for name in (question, MAIN))
        return not marks.isdisjoint(main_marks)


def questions(handlers: Iterable[str], backends: Iterable[str]) -> Iterator[str]:
    """The requests for every record of a control plane with these handlers."""
    if MAIN in handlers:
        names = [name for name in backends if _BACKEND.fullmatch(name) and name != _ITS_BACKEND]
        yield from (f"{MAIN}?backend={name}" for name in names[:_BACKENDS_MOST])
    yield from (name for name in _OTHERS if name in handlers)


def _marks(record: Mapping[str, Any] | None) -> set[tuple[int, int]]:
    """Marks that no two recorders share: each has its own count, and stamps are in ns."""
    return {
        (n, e.time_created_ns) for n, e in by_record_id(torch_entries(record)) if e.time_created_ns
    }


# -- One record of torch's -------------------------------------------------------------------------
# Entries of torch's own flight recorders, as far as they are understood.
#
# They come over a socket from a library that changes: one that does not parse is passed on
# unchanged, and takes no part.

WORLD: Final = "default_pg"
"""What torch calls the default group."""
_SAME: Final = re.compile("_|sparse|into|tensor|single|coalesced|base|oop")
_DTYPES: Final[Mapping[str, str]] = {
    "float": "float32", "double": "float64", "half": "float16", "int": "int32", "long": "int64",
    "short": "int16", "char": "int8", "byte": "uint8",
}  # fmt: skip


class TorchEntry(Struct):
    """One collective, with torch's names for the fields."""

    record_id: int | None = None
    profiling_name: str = ""
    time_created_ns: int | None = None
    time_discovered_completed_ns: int | None = None
    process_group: tuple[str, ...] | None = None
    pg_id: int | None = None
    collective_seq_id: int | None = None
    input_sizes: Shapes | None = None
    output_sizes: Shapes | None = None
    input_dtypes: tuple[str, ...] | None = None
    output_dtypes: tuple[str, ...] | None = None
    state: str | None = None
    retired: bool | None = None
    is_p2p: bool | None = None
    duration_ms: float | None = None

    @property
    def call(self) -> str:
        """`all_reduce` of `gloo:all_reduce`, `send` of `nccl:send 0->1`."""
        return self.profiling_name.rpartition(":")[2].partition(" ")[0]

    @property
    def names(self) -> tuple[str, ...]:
        """The process group's; TorchFT's are nameless."""
        return tuple(filter(None, self.process_group or ()))

    @property
    def dtype(self) -> str | None:
        """The first tensor's, as torch's Python calls it."""
        first = next(iter(self.input_dtypes or self.output_dtypes or ()), None)
        name = None if first is None else first.rpartition(".")[2].lower()
        return None if name is None else _DTYPES.get(name, name)

    @property
    def over(self) -> bool:
        """True if torch says that it is over."""
        return self.retired is True or self.state == "completed"


def kind_of(call: str) -> str:
    """One kind for all names that torch has for it: `_allgather_base`, `all_gather_single` ..."""
    return _SAME.sub("", call.lower())


def torch_entries(record: Mapping[str, Any] | None) -> Iterator[tuple[Any, TorchEntry | None]]:
    """Each entry, raw and parsed; None: not understood."""
    entries = record.get("entries") if isinstance(record, Mapping) else None
    for entry in entries if isinstance(entries, list | tuple) else ():
        try:
            yield entry, convert(entry, TorchEntry)
        except ValidationError:
            yield entry, None


def by_record_id(
    entries: Iterable[tuple[Any, TorchEntry | None]],
) -> Iterator[tuple[int, TorchEntry]]:
    """Entries that are understood and have a record id."""
    for _, entry in entries:
        if entry is not None and entry.record_id is not None:
            yield entry.record_id, entry
