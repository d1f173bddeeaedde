"""Writes torch.distributed's public collectives into the page's ring.

Each function is replaced by a thin wrapper of the same signature, in `torch.distributed` and in
`torch.distributed.distributed_c10d`. FSDP2, `torch.distributed.nn`, the `*_object` functions and
`batch_isend_irecv` call these by their module and are seen with them.

Not seen, and told as torch's alone in the merged record (`sidecar/merge`), heads do not move:
what C++ does by itself (DDP's reducer; c10d's completion hook exists for NCCL only and takes the
GIL on the watchdog's thread), functional collectives (DTensor; the compiler traces these very
functions with fake tensors), symmetric memory, and calls by a name that user code imported before
the attach (`from torch.distributed import all_reduce`): methods of a C++ class cannot be
replaced, and swapping a function's code would change what torch.compile inlines. With
`LIGHTKEEPER_ATTACH=1` or `python -m worker_server` the attach comes before any such import.

An entry is written before the call and completed after it, so that a call that never comes
back, or takes the process with it, is on record. `async_op=True` completes when the returned
work's `wait()` returns. With NCCL both mean "the host went on", not "the GPU is done".

Whatever goes wrong in here stays in here: the collective runs, and recording ends.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from worker_server.complaint import complain
from worker_server.page import layout
from worker_server.page.writer import GroupRow, PageWriter
from worker_server.reporter import Reporter

_UNNAMED = frozenset({"", "undefined"})
_MAX_CACHED = 4096
_compiling = torch.compiler.is_dynamo_compiling
_recorded_elsewhere: tuple[type, ...] = ()
"""Kinds of groups whose own methods write the entry: TorchFT's, see `torchft_groups`."""


@dataclass(frozen=True, slots=True)
class _Op:
    """How to read one function's arguments: positions of what the ring wants; None: not there."""

    name: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    root: str | None = None
    """Argument with a global rank; `group_` before it is the one with a rank of the group."""
    reduces: bool = False
    order: tuple[str, ...] = ()
    """Positional parameters; only those up to the last that is read."""


_OPS = (
    _Op("all_reduce", ("tensor",), ("tensor",), None, True, ("tensor", "op", "group", "async_op")),
    _Op("all_reduce_coalesced", ("tensors",), ("tensors",), None, True,
        ("tensors", "op", "group", "async_op")),
    _Op("broadcast", ("tensor",), ("tensor",), "src", False,
        ("tensor", "src", "group", "async_op", "group_src")),
    _Op("reduce", ("tensor",), ("tensor",), "dst", True,
        ("tensor", "dst", "op", "group", "async_op", "group_dst")),
    _Op("all_gather", ("tensor",), ("tensor_list",), None, False,
        ("tensor_list", "tensor", "group", "async_op")),
    _Op("all_gather_into_tensor", ("input_tensor",), ("output_tensor",), None, False,
        ("output_tensor", "input_tensor", "group", "async_op")),
    _Op("all_gather_single", ("input_tensor",), ("output_tensor",), None, False,
        ("output_tensor", "input_tensor", "group", "async_op")),
    _Op("all_gather_coalesced", ("input_tensor_list",), (), None, False,
        ("output_tensor_lists", "input_tensor_list", "group", "async_op")),
    _Op("reduce_scatter", ("input_list",), ("output",), None, True,
        ("output", "input_list", "op", "group", "async_op")),
    _Op("reduce_scatter_tensor", ("input",), ("output",), None, True,
        ("output", "input", "op", "group", "async_op")),
    _Op("reduce_scatter_single", ("input",), ("output",), None, True,
        ("output", "input", "op", "group", "async_op")),
    _Op("all_to_all", ("input_tensor_list",), ("output_tensor_list",), None, False,
        ("output_tensor_list", "input_tensor_list", "group", "async_op")),
    _Op("all_to_all_single", ("input",), ("output",), None, False,
        ("output", "input", "output_split_sizes", "input_split_sizes", "group", "async_op")),
    _Op("gather", ("tensor",), ("gather_list",), "dst", False,
        ("tensor", "gather_list", "dst", "group", "async_op", "group_dst")),
    _Op("scatter", ("scatter_list",), ("tensor",), "src", False,
        ("tensor", "scatter_list", "src", "group", "async_op", "group_src")),
    _Op("barrier", (), (), None, False, ("group", "async_op")),
    _Op("monitored_barrier", (), (), None, False, ("group",)),
    _Op("send", ("tensor",), (), "dst", False, ("tensor", "dst", "group", "tag", "group_dst")),
    _Op("recv", (), ("tensor",), "src", False, ("tensor", "src", "group", "tag", "group_src")),
    _Op("isend", ("tensor",), (), "dst", False, ("tensor", "dst", "group", "tag", "group_dst")),
    _Op("irecv", (), ("tensor",), "src", False, ("tensor", "src", "group", "tag", "group_src")),
)  # fmt: skip
_ALWAYS_ASYNC = frozenset({"isend", "irecv"})
_POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv"})

_recorder: Recorder | None = None
_originals: dict[str, Callable[..., Any]] = {}


def install(reporter: Reporter) -> None:
    """Record from now on into this reporter's page. Patches once, whoever calls again."""
    global _recorder  # noqa: PLW0603  the wrappers outlive any one attach
    _recorder = Recorder(reporter)
    from worker_server import torchft_hook  # noqa: PLC0415  it records by way of this module

    torchft_hook.install(reporter)
    if _originals:
        return
    for op in _OPS:
        original = getattr(c10d, op.name, None)
        if original is None:
            continue  # another torch
        _originals[op.name] = original
        wrapper = _wrap(op, original)
        for module in (c10d, dist):
            if getattr(module, op.name, None) is original:
                setattr(module, op.name, wrapper)
    _let_p2pop_know()
    os.register_at_fork(after_in_child=_stop)


def current() -> Recorder | None:
    """Where to record now; None after a fork."""
    return _recorder


def leave_to(kind: type, folder: str) -> None:
    """Groups of this kind record themselves; frames of files in this folder are no call sites."""
    global _recorded_elsewhere, _plumbing_folders  # noqa: PLW0603
    _recorded_elsewhere = (*_recorded_elsewhere, kind)
    _plumbing_folders = (*_plumbing_folders, folder + os.sep)
    _plumbing.clear()


def _stop() -> None:
    global _recorder  # noqa: PLW0603
    _recorder = None


def _let_p2pop_know() -> None:
    """P2POp accepts torch's isend and irecv by identity: also those imported before the patch."""
    pairs = {_originals[name]: getattr(c10d, name) for name in _ALWAYS_ASYNC if name in _originals}
    made, started = c10d.P2POp.__new__, c10d.P2POp.__init__

    @functools.wraps(made)
    def new(cls: type, op: Any, *args: Any, **kwargs: Any) -> Any:
        return made(cls, pairs.get(op, op), *args, **kwargs)

    @functools.wraps(started)
    def init(self: Any, op: Any, *args: Any, **kwargs: Any) -> None:
        started(self, pairs.get(op, op), *args, **kwargs)

    c10d.P2POp.__new__ = new  # type: ignore[method-assign]
    c10d.P2POp.__init__ = init  # type: ignore[method-assign]


def _wrap(op: _Op, original: Callable[..., Any]) -> Callable[..., Any]:
    always_async = op.name in _ALWAYS_ASYNC

    @functools.wraps(original)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        # torch.compile rewrites collectives by identity: show it the original
        if _compiling():
            return original(*args, **kwargs)
        recorder = _recorder
        entry = None if recorder is None else recorder.enter(op, args, kwargs)
        if entry is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as exc:
            entry.leave(exc)
            raise
        if result is not None and (always_async or entry.is_async):
            return entry.watch(result)
        entry.leave(None)
        return result

    return recorded


class Entry:
    """A collective on its way; `leave` completes it once."""

    __slots__ = ("_open", "_recorder", "_row", "_seq", "_ticket", "is_async")

    def __init__(
        self, recorder: Recorder, row: GroupRow, ticket: int, seq: int, is_async: bool
    ) -> None:
        self._recorder = recorder
        self._row = row
        self._ticket = ticket
        self._seq = seq
        self._open = True
        self.is_async = is_async

    def leave(self, error: BaseException | None) -> None:
        """The call, or the work's wait, came back."""
        self._recorder.inside.depth = 0
        self.complete(error)

    def watch(self, work: Any) -> Any:
        """The call came back with a work that is waited for later."""
        self._recorder.inside.depth = 0
        if not isinstance(work, dist.Work):
            return work
        try:
            return WatchedWork(work, self)
        except Exception as exc:  # noqa: BLE001  nothing may reach training
            self._recorder.disable(exc)
            return work

    def hold(self) -> None:
        """The rank waits for the work from now on, unless it is known to be done."""
        if not self._open:
            return
        try:
            self._recorder.page.hold(self._row, self._seq)
        except Exception as exc:  # noqa: BLE001  nothing may reach training
            self._recorder.disable(exc)

    def complete(self, error: BaseException | None) -> None:
        """Write the exit, unless that was done."""
        if not self._open:
            return
        self._open = False
        try:
            page = self._recorder.page
            text = page.intern(describe(error), is_error=True) if error is not None else 0
            page.leave(self._row, self._ticket, self._seq, text)
        except Exception as exc:  # noqa: BLE001
            self._recorder.disable(exc)


def describe(error: BaseException) -> str:
    """In one line, as the ring keeps it."""
    return " ".join(f"{type(error).__name__}: {error}".split())


class Watched(Protocol):
    """What a work tells of its waiting."""

    def hold(self) -> None:
        """The rank waits from now on."""

    def complete(self, error: BaseException | None) -> None:
        """It need not wait any more."""


class WatchedWork(dist.Work):
    """The work of a collective, which tells the ring when it was waited for."""

    def __init__(self, work: Any, entry: Watched) -> None:
        super().__init__()
        self._work = work
        self._entry = entry

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """As the work's own; the entry is left when it returns."""
        self._entry.hold()
        try:
            result = self._work.wait(*args, **kwargs)
        except BaseException as exc:
            self._entry.complete(exc)
            raise
        self._entry.complete(None)
        return result

    def is_completed(self) -> Any:
        """As the work's own; the entry is left when it is true."""
        done = self._work.is_completed()
        if done:
            self._entry.complete(None)
        return done


def _forward(name: str) -> Callable[..., Any]:
    def method(self: WatchedWork, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._work, name)(*args, **kwargs)

    method.__name__ = name
    return method


for _name in dir(dist.Work):
    if not _name.startswith("__") and _name not in WatchedWork.__dict__ and _name != "unbox":
        setattr(WatchedWork, _name, _forward(_name))


class _Inside(threading.local):
    """Whether this thread is inside a recorded call: torch's functions call each other."""

    depth = 0


@dataclass(frozen=True, slots=True)
class Call:
    """What the ring wants to know of a call."""

    op: str
    sizes_in: Any = ()
    sizes_out: Any = ()
    dtype: Any = None
    reduces: bool = False
    reduce_op: Any = None
    root: int = layout.NONE


class Recorder:
    """Turns calls into ring entries."""

    def __init__(self, reporter: Reporter) -> None:
        self.inside = _Inside()
        self.page: PageWriter = reporter.page
        self._facts = reporter.loop.facts
        self._rows: dict[int, tuple[Callable[[], Any], GroupRow | None]] = {}
        self._sites: dict[tuple[CodeType, int], int] = {}
        self._shapes: dict[tuple[Any, Any], bytes] = {}
        self._texts: dict[Any, int] = {}
        self._reduce_ops: dict[Any, int] = {}
        self._on = True

    def disable(self, why: BaseException) -> None:
        """Record no collectives any more; steps are still reported."""
        if not self._on:
            return
        self._on = False
        complain(f"lightkeeper lost the collectives: {why!r}", stacklevel=5)

    def enter(self, op: _Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry | None:
        """Write the entry; None when this call is not recorded."""
        inside = self.inside
        if inside.depth or not self._on:
            return None
        try:
            values = dict(zip(op.order, args, strict=False)) if args else {}
            if kwargs:
                values.update(kwargs)
            row = self._row(values.get("group"))
            if row is None:
                return None
            is_async = op.name in _ALWAYS_ASYNC or bool(values.get("async_op"))
            sizes_in, dtype_in = _sizes(values, op.inputs)
            sizes_out, dtype_out = _sizes(values, op.outputs)
            root = _root(op, values) if op.root else layout.NONE
        except Exception:  # noqa: BLE001  wrong arguments: torch will tell the caller
            return None
        try:
            ticket, seq = self.page.enter(
                row,
                self._text(op.name),
                self._text(dtype_in or dtype_out) if dtype_in or dtype_out else layout.NO_STRING,
                self._reduce_op(values.get("op")) if op.reduces else layout.NO_STRING,
                root,
                self._facts.step,
                self._facts.attempt,
                self._site(),
                is_async,
                self._shape_text(sizes_in, sizes_out),
            )
        except Exception as exc:  # noqa: BLE001  nothing may reach training
            self.disable(exc)
            return None
        inside.depth = 1
        return Entry(self, row, ticket, seq, is_async)

    def enter_read(self, row: GroupRow, call: Call, flags: int) -> tuple[int, int] | None:
        """Write the entry of a call that somebody else has read; None when it is not recorded."""
        if not self._on:
            return None
        try:
            return self.page.enter(
                row,
                self._text(call.op),
                self._text(call.dtype) if call.dtype else layout.NO_STRING,
                self._reduce_op(call.reduce_op) if call.reduces else layout.NO_STRING,
                call.root,
                self._facts.step,
                self._facts.attempt,
                self._site(),
                flags,
                self._shape_text(call.sizes_in, call.sizes_out),
            )
        except Exception as exc:  # noqa: BLE001  nothing may reach training
            self.disable(exc)
            return None

    # -- who ---------------------------------------------------------------------------------

    def _row(self, group: Any) -> GroupRow | None:
        if group is None:
            group = dist.GroupMember.WORLD
            if group is None:  # not initialized: the call will say so itself
                return None
        known = self._rows.get(id(group))
        if known is not None and known[0]() is group:
            return known[1]
        row = self._new_row(group)
        with contextlib.suppress(TypeError):  # no weak references: named anew each time
            self._rows[id(group)] = weakref.ref(group), row
        return row

    def _new_row(self, group: Any) -> GroupRow | None:
        if group is dist.GroupMember.NON_GROUP_MEMBER or isinstance(group, _recorded_elsewhere):
            return None
        members = tuple(c10d._world.pg_group_ranks.get(group, ()))
        world = dist.GroupMember.WORLD
        name = "default" if group is world else _group_name(group)
        # a group of torchft's waits for the quorum when it is asked for its size
        size = len(members) or (group.size() if type(group) is dist.ProcessGroup else 0)
        return self.page.group_row(name, size, tuple(sorted(members)))

    # -- what ----------------------------------------------------------------------------------

    def _text(self, key: Any) -> int:
        known = self._texts.get(key)
        if known is None:
            text = str(key).removeprefix("torch.")
            known = self._texts[key] = self.page.intern(text)
        return known

    def _reduce_op(self, op: Any) -> int:
        if op is None:
            return self._text("SUM")
        kind = getattr(op, "op", op)  # an options object has it wrapped, with a factor
        known = self._reduce_ops.get(kind)
        if known is None:
            text = str(kind).rpartition(".")[2].rstrip(">")[:32]
            known = self._reduce_ops[kind] = self.page.intern(text)
        return known

    def _shape_text(self, sizes_in: Any, sizes_out: Any) -> bytes:
        key = sizes_in, sizes_out
        known = self._shapes.get(key)
        if known is None:
            if len(self._shapes) >= _MAX_CACHED:
                self._shapes.clear()
            known = layout.encode_shapes(
                [tuple(size) for size in sizes_in], [tuple(size) for size in sizes_out]
            )
            self._shapes[key] = known
        return known

    # -- where ----------------------------------------------------------------------------------

    def _site(self) -> int:
        """The nearest frame outside of torch, torchft and this package."""
        frame: FrameType | None = sys._getframe(3)  # enter <- recorded <- the caller
        while frame is not None:
            code = frame.f_code
            if not _is_plumbing(code):
                key = code, frame.f_lineno
                known = self._sites.get(key)
                if known is None:
                    if len(self._sites) >= _MAX_CACHED:
                        self._sites.clear()
                    text = f"{_short(code.co_filename)}:{frame.f_lineno}"
                    known = self._sites[key] = self.page.intern(text)
                return known
            frame = frame.f_back
        return layout.NO_STRING


_plumbing_folders: tuple[str, ...] = (
    "<",
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(__file__) + os.sep,
    contextlib.__file__,  # a profiler's range around a function of torchft's
)
_plumbing: dict[CodeType, bool] = {}


def _is_plumbing(code: CodeType) -> bool:
    known = _plumbing.get(code)
    if known is None:
        known = _plumbing[code] = code.co_filename.startswith(_plumbing_folders)
    return known


def _short(path: str) -> str:
    """The file's own name, with its folder when there is one: enough to find it by eye."""
    return os.sep.join(path.split(os.sep)[-2:])


def _group_name(group: Any) -> str:
    for attribute in ("group_desc", "group_name"):
        name = None
        with contextlib.suppress(Exception):  # a group that torch does not know raises
            name = getattr(group, attribute)
        if isinstance(name, str) and name not in _UNNAMED:
            return name
    return type(group).__name__


def _sizes(values: dict[str, Any], names: tuple[str, ...]) -> tuple[Any, Any]:
    """Shapes of the named arguments, and the dtype of the first tensor."""
    for name in names:
        value = values.get(name)
        if value is None:
            continue
        if isinstance(value, torch.Tensor):
            return (value.shape,), value.dtype
        shapes = tuple([item.shape for item in value])
        return shapes, value[0].dtype if shapes else None
    return (), None


def _root(op: _Op, values: dict[str, Any]) -> int:
    """Rank in the job's default group: the one that all members agree on."""
    root = values.get(op.root or "")
    if root is not None:
        return int(root)
    local = values.get(f"group_{op.root}")
    if local is None:
        return layout.NONE if op.name in _POINT_TO_POINT else 0
    group = values.get("group")
    return int(local) if group is None else int(c10d.get_global_rank(group, local))
