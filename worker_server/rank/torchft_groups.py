"""Collectives across replica groups: what goes through TorchFT's process groups, in the ring.

Theory of operation. The methods of torchft's process groups are wrapped where a class defines them;
of nested groups only the outermost call writes an entry, under the innermost group. With each
quorum's `configure` the sequence ids of a group restart at 1 and every entry carries the quorum id,
so that one (quorum, sequence) is one collective on all replica groups.

An entry is open until the work was waited for. torchft's own works are left as they are: their
classes' `wait` looks for the entry attached to the work. A work of torch's C++ is returned inside a
`WatchedWork`, as torch.distributed's are. An error that TorchFT swallows is taken from
`Manager.report_error`. What is still open when the group is configured again was given up.

What a thread of torchft's does (a checkpoint over `PGTransport`) is recorded, but holds up nobody.
Failures in here stay in here.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist

from lightkeeper.worker_server.rank import collectives
from lightkeeper.worker_server.rank.collectives import OpenCall, Recorder
from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.rank.page.writer import CallRow, GroupRow
from lightkeeper.worker_server.wire import ACROSS

_HUNG: Final = "_lightkeeper_entries"
_QUORUM_MOST: Final = 2**48


class _Method(NamedTuple):
    """How to read one method of a process group: its parameters, and what they mean."""

    name: str
    op: str
    order: str
    inputs: str = ""
    outputs: str = ""
    peer: str = ""


_METHODS = (
    _Method("allreduce", "all_reduce", "tensors opts", "tensors", "tensors"),
    _Method("allreduce_coalesced", "all_reduce_coalesced", "tensors opts", "tensors", "tensors"),
    _Method("allgather", "all_gather", "output_tensors input_tensor opts",
            "input_tensor", "output_tensors"),
    _Method("allgather_into_tensor_coalesced", "all_gather_into_tensor_coalesced",
            "output_tensors input_tensors opts", "input_tensors", "output_tensors"),
    _Method("alltoall_base", "all_to_all_single",
            "output_buffer input_buffer output_split_sizes input_split_sizes opts",
            "input_buffer", "output_buffer"),
    _Method("barrier", "barrier", "opts"),
    _Method("broadcast", "broadcast", "tensor_list opts", "tensor_list", "tensor_list"),
    _Method("reduce_scatter", "reduce_scatter", "output_tensors input_tensors opts",
            "input_tensors", "output_tensors"),
    _Method("reduce_scatter_tensor_coalesced", "reduce_scatter_tensor_coalesced",
            "output_tensors input_tensors opts", "input_tensors", "output_tensors"),
    _Method("send", "send", "tensors dst_rank tag", "tensors", peer="dst_rank"),
    _Method("recv", "recv", "tensors src_rank tag", outputs="tensors", peer="src_rank"),
)  # fmt: skip
_REDUCING: Final = frozenset({"allreduce", "allreduce_coalesced", "reduce_scatter",
                              "reduce_scatter_tensor_coalesced"})  # fmt: skip
_SILENT: Final = frozenset({"ProcessGroupDummy"})
"""Groups of one that discard everything."""
_DONE: Final = frozenset({"_DummyWork"})
"""Works that are done when created; they keep their type."""
_DELEGATES: Final = frozenset({("ManagedProcessGroup", "allreduce")})
"""Calls `Manager.allreduce`, which waits for the quorum before it sends anything."""


class ThreadState(threading.local):
    """What this thread does in torchft."""

    managed: list[OpenGroupCall] | None = None
    """Entries that one `Manager.allreduce` made; None outside of it."""
    waiting = False
    swallowed: BaseException | None = None
    """An error that TorchFT hid from the caller while it waited."""
    background = False
    """The thread is torchft's own: what it waits for holds up no training loop."""
    votes_early = False
    """In `should_commit`, where the quorum may not be there yet."""
    begins: Callable[[Any], None] | None = None
    """To be called once the quorum is there: then the exchange begins."""
    asking: tuple[object, float, bool] | None = None
    """A Manager that asks for a quorum, since when, and whether the waits shown are its own."""
    timed = False
    """In a call that is timed."""


this_thread = ThreadState()


class OpenGroupCall(OpenCall):
    """A call in flight; the group keeps it while it is open."""

    __slots__ = ("_open_entries",)

    def __init__(
        self, recorder: Recorder, row: CallRow, ticket: int, seq: int, group: _Group
    ) -> None:
        super().__init__(recorder, row, ticket, seq)
        self._open_entries = group.open_entries
        self._open_entries[ticket] = self

    def hold(self) -> None:
        """The rank waits for the work from now on."""
        if not this_thread.background and self._ticket in self._open_entries:
            super().hold()

    def complete(self, error: BaseException | None) -> None:
        """Write the exit, once."""
        if self._open_entries.pop(self._ticket, None) is not None:
            super().complete(error)


@dataclass(slots=True)
class _Group:
    """One process group of torchft's."""

    alive: Callable[[], Any]
    number: int
    row: GroupRow
    quorum: int | None
    open_entries: dict[int, OpenGroupCall] = field(default_factory=dict)

    @property
    def flags(self) -> int:
        """The async bit, and the quorum."""
        quorum = -1 if self.quorum is None else self.quorum
        return 1 | (quorum + 1) << layout.RING_QUORUM_SHIFT


_groups: dict[int, _Group] = {}
_kind: type | None = None


def forget_groups() -> None:
    """Another page is written from now on."""
    _groups.clear()


def install(module: Any) -> None:
    """Wrap the groups that `torchft.process_group` defines, and later subclasses."""
    global _kind  # noqa: PLW0603  known when torchft is imported
    _kind = module.ProcessGroup
    collectives.leave_to(module.ProcessGroup, module.__file__.rpartition("/")[0])
    for cls in _family(module.ProcessGroup):
        _wrap_class(cls)
    module.ProcessGroup.__init_subclass__ = classmethod(_newcomer_of(module.ProcessGroup))
    for name in ("_BabyWork", "_WorkAcceleratorTimeout", "_ErrorSwallowingWork"):
        if hasattr(module, name):
            wrap_wait(getattr(module, name), "wait")


def _family(cls: type[Any]) -> Iterable[type[Any]]:
    for heir in cls.__subclasses__():
        yield heir
        yield from _family(heir)


def _newcomer_of(kind: type[Any]) -> Callable[..., None]:
    def __init_subclass__(cls: type[Any], /, **kwargs: Any) -> None:  # noqa: N807
        super(kind, cls).__init_subclass__(**kwargs)
        _wrap_class(cls)

    return __init_subclass__


def _wrap_class(cls: type) -> None:
    if cls.__name__ in _SILENT:
        return
    for method in _METHODS:
        original = cls.__dict__.get(method.name)
        if callable(original) and (cls.__name__, method.name) not in _DELEGATES:
            setattr(cls, method.name, _wrap(method, original))


def _wrap(method: _Method, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = collectives.current()
        if recorder is None or recorder.inside.depth:
            return original(self, *args, **kwargs)
        entry = _enter(recorder, self, method, args, kwargs)
        if entry is None:
            return original(self, *args, **kwargs)
        recorder.inside.depth = 1
        try:
            work = original(self, *args, **kwargs)
        except BaseException as exc:
            entry.complete(exc)
            raise
        finally:
            recorder.inside.depth = 0
        return _follow(entry, work)

    return recorded


def _follow(entry: OpenGroupCall, work: Any) -> Any:
    """The call returned; waiting for the work completes the entry."""
    if this_thread.managed is not None:
        this_thread.managed.append(entry)
        return work
    if not isinstance(work, dist.Work) or type(work).__name__ in _DONE:
        entry.complete(None)
        return work
    if hasattr(work, "__dict__") and type(work) not in _watched:  # a class written in Python
        wrap_wait(type(work), "wait")
    if hang(work, [entry]):
        return work
    return collectives.watch(work, entry)


# -- who and what ------------------------------------------------------------------------------


def _enter(
    recorder: Recorder, pg: Any, method: _Method, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> OpenGroupCall | None:
    try:
        group = _group(recorder, pg)
        values = {**dict(zip(method.order.split(), args, strict=False)), **kwargs}
        sent = _tensors(values[method.inputs]) if method.inputs else []
        received = _tensors(values[method.outputs]) if method.outputs else []
        what = (
            tuple(tensor.shape for tensor in sent),
            tuple(tensor.shape for tensor in received),
            next((tensor.dtype for tensor in (*sent, *received)), None),
        )
        opts = values.get("opts")
        reduce_op = layout.NO_STRING
        if method.name in _REDUCING:
            reduce_op = recorder.reduce_op(getattr(opts, "reduceOp", opts))
        root = getattr(opts, "rootRank", None) if method.name == "broadcast" else None
        root = layout.NONE if root is None else int(root)
        if group is None:
            return None
        row: CallRow = group.row
        tag = layout.NONE
        if method.peer:
            root, tag = int(values[method.peer]), int(values["tag"])
            row = recorder.transfer_row(group.row, root, tag, sends=bool(method.inputs))
    except Exception:  # noqa: BLE001  wrong arguments: torchft will report them
        return None
    ticket_and_seq = recorder.enter_read(row, group.flags, method.op, what, reduce_op, root, tag)
    if ticket_and_seq is None:
        return None
    if len(group.open_entries) >= layout.RING_SLOTS:  # never waited for, and gone from the ring
        with contextlib.suppress(RuntimeError):  # another thread changed it: at the next call
            group.open_entries.pop(next(iter(group.open_entries), -1), None)
    return OpenGroupCall(recorder, row, *ticket_and_seq, group)


def is_native(pg: Any) -> bool:
    """True if a Manager was given a group of torch's own (torch >= 2.14)."""
    return isinstance(pg, dist.ProcessGroup) and _kind is not None and not isinstance(pg, _kind)


def begin_allreduce(pg: Any, tensor: torch.Tensor, reduce_op: object) -> OpenGroupCall | None:
    """The entry of an all-reduce on a group of torch's own."""
    recorder = collectives.current()
    if recorder is None:
        return None
    return _enter(recorder, pg, _METHODS[0], ([tensor], reduce_op), {})


def innermost_group(pg: Any) -> Any:
    inner = getattr(pg, "_pg", None)
    while _kind is not None and isinstance(inner, _kind):
        pg, inner = inner, getattr(inner, "_pg", None)
    return pg


def timeout_of(manager: Any) -> Any:
    """After how long the Manager's group gives up; None: it does not say."""
    return getattr(innermost_group(getattr(manager, "_pg", None)), "_timeout", None)


def living_groups() -> list[tuple[Any, object]]:
    """The groups that there are now, each with the quorum for which it is configured."""
    groups = ((group.alive(), group.quorum) for group in list(_groups.values()))
    return [(pg, quorum) for pg, quorum in groups if pg is not None]


def _group(recorder: Recorder, pg: Any) -> _Group | None:
    pg = innermost_group(pg)
    group = _groups.get(id(pg))
    if group is not None and group.alive() is pg:
        return group
    for key in [key for key, group in _groups.items() if group.alive() is None]:
        del _groups[key]
    taken = {group.number for group in _groups.values()}
    number = next(n for n in range(1, layout.MAX_GROUPS + 2) if n not in taken)
    inner = getattr(pg, "_pg", None)
    size = inner.size() if type(inner) is dist.ProcessGroup else 0
    name = ACROSS if number == 1 else f"{ACROSS}.{number}"
    row = recorder.page.group_row(name, size)
    if row is None:
        return None
    with contextlib.suppress(Exception):  # a user's own group may have no name
        collectives.backends.add(str(pg.getBackendName()).rpartition("-")[2])
    if row.enqueued:  # of a group that is gone
        row = recorder.page.restart_group(row, size)
    quorum = getattr(pg, "_quorum_id", None)
    group = _Group(weakref.ref(pg), number, row, quorum if isinstance(quorum, int) else None)
    _groups[id(pg)] = group
    return group


def group_configured(pg: Any, size: int, quorum: int | None) -> None:
    """The group is configured for a new quorum; what was open before is given up.

    Without a Manager `quorum` may be an id of 63 random bits, which has no order.
    """
    quorum = None if quorum is None or quorum > _QUORUM_MOST else quorum
    recorder = collectives.current()
    group = None if recorder is None else _group(recorder, pg)
    if recorder is None or group is None:
        return
    why = RuntimeError(f"given up: the group was configured for quorum {quorum}")
    for entry in list(group.open_entries.values()):
        entry.complete(why)
    group.row = recorder.page.restart_group(group.row, size)
    group.quorum = quorum


def failed(pg: Any, error: BaseException) -> None:
    """TorchFT swallows this error; it belongs to the call that has been open longest."""
    if this_thread.waiting:
        this_thread.swallowed = error
    elif this_thread.managed is None and not this_thread.background:
        group = _groups.get(id(innermost_group(pg)))
        oldest = next(iter(group.open_entries.values()), None) if group is not None else None
        if oldest is not None:
            oldest.complete(error)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in _tensors(item)]


# -- works -------------------------------------------------------------------------------------

_watched: set[type] = set()


def hang(work: Any, entries: list[OpenGroupCall]) -> bool:
    """Let a work of torchft's complete these entries; False for another kind of work."""
    if type(work) not in _watched:
        return False
    setattr(work, _HUNG, entries)
    return True


def wrap_wait(
    cls: type, name: str, owner: Callable[[Any], Any] = lambda work: work, *, blocks: bool = True
) -> None:
    """Let this method of a work (or of what belongs to one) complete the work's entries."""
    original = cls.__dict__.get(name)
    if not callable(original):
        return
    _watched.add(cls)

    @functools.wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        entries = getattr(owner(self), _HUNG, None)
        if not entries or this_thread.waiting:
            return original(self, *args, **kwargs)
        if blocks:
            for entry in entries:
                entry.hold()
        this_thread.waiting = True
        error: BaseException | None = None
        try:
            if blocks:
                collectives.begin_wait()
            return original(self, *args, **kwargs)
        except BaseException as exc:
            error = exc
            raise
        finally:
            this_thread.waiting = False
            if blocks:
                collectives.end_wait()
            error, this_thread.swallowed = error or this_thread.swallowed, None
            for entry in entries:
                entry.complete(error)

    setattr(cls, name, wait)
