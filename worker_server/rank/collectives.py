"""Writes torch.distributed's public collectives, sends and receives into the page's ring.

Each function is replaced by a thin wrapper of the same signature, in `torch.distributed` and in
`torch.distributed.distributed_c10d`. FSDP2, `torch.distributed.nn`, the `*_object` functions and
`batch_isend_irecv` look them up in their module, so their calls are seen.

Not seen (the merged record, `sidecar/merge`, has them from torch alone; heads do not move): what
C++ does by itself (DDP's reducer; c10d's completion hook exists for NCCL only and takes the GIL on
the watchdog's thread), functional collectives (DTensor; the compiler traces these very functions
with fake tensors), symmetric memory, and calls by a name that user code imported before the attach
(`from torch.distributed import all_reduce`): methods of a C++ class cannot be replaced, and
swapping a function's code would change what torch.compile inlines. With `LIGHTKEEPER_ATTACH=1` or
`python -m lightkeeper.worker_server` the attach comes before any such import.

Sends and receives have numbers of their own, one count for each peer and tag and direction: which
collectives a rank has called says nothing about them, and the other side counts the same ones.

An entry is written before the call and completed after it, so a call that never returns, or that
kills the process, is on record. `async_op=True` completes when the returned work's `wait()`
returns. With NCCL both mean "the host continued", not "the GPU is done".

Failures in here stay in here: the collective runs, and recording ends.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import sysconfig
import threading
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from lightkeeper.worker_server.harmless import warn
from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.rank.page.writer import (
    CallRow,
    GroupRow,
    PageWriter,
    serves_training,
)
from lightkeeper.worker_server.rank.reporter import Reporter

_UNNAMED = frozenset({"", "undefined"})
_MAX_CACHED = 4096
_compiling = torch.compiler.is_dynamo_compiling
_Tensor = torch.Tensor
backends: set[str] = set()
"""Backends of torch's groups that this process has had, and of TorchFT's."""
_recorded_elsewhere: tuple[type, ...] = ()
"""Group classes whose own methods write the entry: TorchFT's, see `torchft_groups`."""


_NOWHERE = 99
_ALWAYS_ASYNC = frozenset({"isend", "irecv"})
_ANY = -1
"""The peer of a receive from any."""
_TAG_MOST = 2**31
"""Torch passes tags as C's int."""


class _Op:
    """How to read one function's arguments: their positions, `_NOWHERE` for those it lacks."""

    __slots__ = (
        "always_async", "async_op", "group", "group_root", "input", "name", "order", "output",
        "reduce_op", "root", "same", "sends", "tag",
    )  # fmt: skip

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        sent, received = _TENSORS[name]
        self.name = name
        self.order = tuple(inspect.signature(function).parameters)
        self.group = self._place("group")
        self.async_op = self._place("async_op")
        self.always_async = name in _ALWAYS_ASYNC
        self.input = self._place(sent)
        self.output = self._place(received)
        self.same = sent == received
        self.reduce_op = self._place("op")
        self.tag = self._place("tag")  # of sends and receives alone
        self.sends = bool(sent)
        root = next((word for word in ("src", "dst") if word in self.order), "")
        self.root = self._place(root)  # a global rank
        self.group_root = self._place(f"group_{root}")  # a rank of the group

    def _place(self, parameter: str) -> int:
        return self.order.index(parameter) if parameter in self.order else _NOWHERE


_TENSORS = {
    "all_reduce": ("tensor", "tensor"),
    "all_reduce_coalesced": ("tensors", "tensors"),
    "broadcast": ("tensor", "tensor"),
    "reduce": ("tensor", "tensor"),
    "all_gather": ("tensor", "tensor_list"),
    "all_gather_into_tensor": ("input_tensor", "output_tensor"),
    "all_gather_single": ("input_tensor", "output_tensor"),
    "all_gather_coalesced": ("input_tensor_list", ""),
    "reduce_scatter": ("input_list", "output"),
    "reduce_scatter_tensor": ("input", "output"),
    "reduce_scatter_single": ("input", "output"),
    "all_to_all": ("input_tensor_list", "output_tensor_list"),
    "all_to_all_single": ("input", "output"),
    "gather": ("tensor", "gather_list"),
    "scatter": ("scatter_list", "tensor"),
    "barrier": ("", ""),
    "monitored_barrier": ("", ""),
    "send": ("tensor", ""),
    "recv": ("", "tensor"),
    "isend": ("tensor", ""),
    "irecv": ("", "tensor"),
}
"""Functions to record -> their parameters for what is sent, and for what is received."""

_recorder: Recorder | None = None
_originals: dict[str, Callable[..., Any]] = {}


def install(reporter: Reporter) -> None:
    """Record into this reporter's page from now on. Repeated calls patch only once."""
    global _recorder  # noqa: PLW0603  the wrappers outlive any one attach
    _recorder = Recorder(reporter)
    if _originals:
        return
    for name in _TENSORS:
        original = getattr(c10d, name, None)
        if original is None:
            continue  # another torch
        op = _Op(name, original)
        if op.group == _NOWHERE:
            continue  # somebody's wrapper hides the arguments
        _originals[name] = original
        wrapper = _wrap(op, original)
        for module in (c10d, dist):
            if getattr(module, name, None) is original:
                setattr(module, name, wrapper)
    _let_p2pop_know()
    os.register_at_fork(after_in_child=_stop)


def current() -> Recorder | None:
    """Where to record now; None after a fork."""
    return _recorder


def tell_backends() -> None:
    """Publish the backends in use: each has its own flight recorder."""
    if _recorder is not None:
        for config in tuple(c10d._world.pg_backend_config.values()):
            backends.update(part.rpartition(":")[2] for part in str(config).split(","))
        _recorder.page.write_text(layout.W_BACKENDS, ",".join(sorted(backends)))


def begin_wait(kind: int = layout.WAIT_COLLECTIVE) -> None:
    """From now on this thread waits for others."""
    if _recorder is not None:
        _recorder.page.begin_wait(kind)


def end_wait(kind: int = layout.WAIT_COLLECTIVE) -> None:
    if _recorder is not None:
        _recorder.page.end_wait(kind)


def leave_to(kind: type, folder: str) -> None:
    """Groups of this kind record themselves; frames of files in this folder are no call sites."""
    global _recorded_elsewhere, _torch_folders  # noqa: PLW0603
    _recorded_elsewhere = (*_recorded_elsewhere, kind)
    _torch_folders = (*_torch_folders, folder + os.sep)
    if _recorder is not None:
        _recorder.sites.clear()


def _stop() -> None:
    global _recorder  # noqa: PLW0603
    _recorder = None


def _let_p2pop_know() -> None:
    """P2POp accepts isend and irecv by identity: let it accept those from before the patch too."""
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
    @functools.wraps(original)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        # torch.compile rewrites collectives by identity: show it the original
        if _compiling():
            return original(*args, **kwargs)
        recorder = _recorder
        if recorder is None:
            return original(*args, **kwargs)
        inside = recorder.inside
        entered = None if inside.depth else recorder.enter(op, args, kwargs)
        if entered is None:
            return original(*args, **kwargs)
        row, ticket, seq, is_async = entered
        try:
            inside.depth = 1  # in the try: an interrupt must not leave it set
            if not is_async:
                recorder.page.begin_wait(layout.WAIT_COLLECTIVE)
            result = original(*args, **kwargs)
        except BaseException as exc:
            inside.depth = 0
            OpenCall(recorder, row, ticket, seq).complete(exc)
            raise
        finally:
            inside.depth = 0
            if not is_async:
                recorder.page.end_wait(layout.WAIT_COLLECTIVE)
        if is_async and result is not None:
            return watch(result, OpenCall(recorder, row, ticket, seq))
        try:
            recorder.page.leave(row, ticket, seq)
        except Exception as exc:  # noqa: BLE001  nothing may reach training
            recorder.disable(exc)
        return result

    return recorded


_Entered = tuple[CallRow, int, int, bool]
"""Row, ticket, sequence id, and whether the call returns a work to wait for."""


class OpenCall:
    """A call in flight, until it is waited for or fails; `complete` ends it once."""

    __slots__ = ("_open", "_row", "_seq", "_ticket", "recorder")

    def __init__(self, recorder: Recorder, row: CallRow, ticket: int, seq: int) -> None:
        self.recorder = recorder
        self._row = row
        self._ticket = ticket
        self._seq = seq
        self._open = True

    def hold(self) -> None:
        """The rank waits for the work from now on, unless it is known to be done."""
        if not self._open:
            return
        try:
            self.recorder.page.hold(self._row, self._seq)
        except Exception as exc:  # noqa: BLE001  nothing may reach training
            self.recorder.disable(exc)

    def complete(self, error: BaseException | None) -> None:
        """Write the exit, once."""
        if not self._open:
            return
        self._open = False
        try:
            page = self.recorder.page
            said = " ".join(f"{type(error).__name__}: {error}".split())
            text = 0 if error is None else page.intern(said, is_error=True)
            page.leave(self._row, self._ticket, self._seq, text)
        except Exception as exc:  # noqa: BLE001
            self.recorder.disable(exc)


def watch(work: Any, entry: OpenCall) -> Any:
    """Wrap the returned work: waiting for it completes the entry."""
    if not isinstance(work, dist.Work):
        return work
    try:
        return WatchedWork(work, entry)
    except Exception as exc:  # noqa: BLE001  nothing may reach training
        entry.recorder.disable(exc)
        return work


class WatchedWork(dist.Work):
    """A collective's work that completes the entry when it was waited for."""

    def __init__(self, work: Any, entry: OpenCall) -> None:
        super().__init__()
        self._work = work
        self._entry = entry

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """As the work's own; its return completes the entry."""
        self._entry.hold()
        try:
            begin_wait()
            result = self._work.wait(*args, **kwargs)
        except BaseException as exc:
            self._entry.complete(exc)
            raise
        finally:
            end_wait()
        self._entry.complete(None)
        return result

    def is_completed(self) -> Any:
        """As the work's own; True completes the entry."""
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
    """True if a thread is inside a recorded call: torch's functions call each other."""

    depth = 0

    def __init__(self) -> None:
        """Once in each thread."""
        self.thread = 0 if serves_training() else threading.get_native_id()
        """Its native id; 0: it counts as the training thread."""


_Shapes = tuple[Any, Any, Any]
"""Shapes of what goes in, of what comes out, and the dtype."""


class Recorder:
    """Turns calls into ring entries."""

    def __init__(self, reporter: Reporter) -> None:
        self.inside = _Inside()
        self.page: PageWriter = reporter.page
        self._facts = reporter.loop.facts
        self._rows: dict[int, tuple[Callable[[], Any], GroupRow | None]] = {}
        self.sites: dict[tuple[int, int], tuple[CodeType, int]] = {}
        """By id of the code (kept alive) and offset in it: hashing code reads all of it."""
        self._shapes: dict[_Shapes, tuple[bytes, int]] = {}
        self._texts: dict[Any, int] = {}
        self._reduce_ops: dict[Any, int] = {}
        self._on = True

    def disable(self, why: BaseException) -> None:
        """Stop recording collectives; steps are still reported.

        Stack or memory that was used up for a moment is the caller's, and no reason to stop.
        """
        if not self._on or isinstance(why, RecursionError | MemoryError):
            return
        self._on = False
        warn(f"lightkeeper lost the collectives: {why!r}")

    def enter(  # noqa: C901, PLR0912, PLR0915
        self, at: _Op, args: tuple[Any, ...] | list[Any], kwargs: dict[str, Any]
    ) -> _Entered | None:
        """Write the entry; None when this call is not recorded.

        One long function: each Python call is costly when the caches hold the training's data.
        """
        if not self._on:
            return None
        try:
            if kwargs:
                args = [*args, *map(kwargs.get, at.order[len(args) :])]
            count = len(args)
            group = args[at.group] if count > at.group else None
            if group is None:
                group = c10d._world.default_pg
            cached = self._rows.get(id(group))
            row = cached[1] if cached is not None and cached[0]() is group else self._row(group)
            if row is None:
                return None
            is_async = at.always_async or (count > at.async_op and bool(args[at.async_op]))
            sizes_in: Any = ()
            sizes_out: Any = ()
            dtype = None
            value = args[at.input] if count > at.input else None
            if isinstance(value, _Tensor):
                sizes_in, dtype = (value.shape,), value.dtype
            elif value is not None:
                sizes_in, dtype = _sizes(value)
            if at.same:
                sizes_out = sizes_in
            else:
                value = args[at.output] if count > at.output else None
                if isinstance(value, _Tensor):
                    sizes_out, dtype = (value.shape,), dtype or value.dtype
                elif value is not None:
                    sizes_out, dtype = _sizes(value, dtype)
            what = sizes_in, sizes_out, dtype
            shapes = self._shapes.get(what) or self._shape_text(what)
            root = tag = layout.NONE
            counted: CallRow = row
            if at.root != _NOWHERE:
                root = _root(at, args, group)
                if at.tag != _NOWHERE:
                    tag = _tag(at, args)
                    counted = self.transfer_row(row, root, tag, sends=at.sends)
        except Exception:  # noqa: BLE001  wrong arguments: torch will report them
            return None
        try:
            reduce_op = layout.NO_STRING
            if at.reduce_op != _NOWHERE:
                value = args[at.reduce_op] if count > at.reduce_op else None
                reduce_op = self._reduce_ops.get(value) or self.reduce_op(value)
            try:
                frame: FrameType | None = sys._getframe(2)  # enter <- recorded <- the caller
            except ValueError:  # called from a C++ thread
                frame = None
            facts = self._facts
            ticket, seq = self.page.enter(
                counted,
                self._texts.get(at.name) or self._text(at.name),
                shapes[1],
                reduce_op,
                root,
                facts.step,
                facts.attempt,
                self.site(frame),
                is_async,
                self.inside.thread,
                tag,
                shapes[0],
            )
        except Exception as exc:  # noqa: BLE001  nothing may reach training
            self.disable(exc)
            return None
        return counted, ticket, seq, is_async

    def enter_read(  # noqa: PLR0917
        self, row: CallRow, flags: int, op: str, what: _Shapes, reduce_op: int, root: int, tag: int
    ) -> tuple[int, int] | None:
        """Write the entry of a call already read by the caller; None if it is not recorded."""
        if not self._on:
            return None
        try:
            shapes, dtype = self._shape_text(what)
            facts, site = self._facts, self.site(sys._getframe(1))
            return self.page.enter(
                row, self._text(op), dtype, reduce_op, root, facts.step, facts.attempt, site, flags,
                self.inside.thread, tag, shapes,
            )  # fmt: skip
        except Exception as exc:  # noqa: BLE001  nothing may reach training
            self.disable(exc)
            return None

    # -- who ---------------------------------------------------------------------------------

    def _row(self, group: Any) -> GroupRow | None:
        if group is None:  # not initialized: the call itself will raise
            return None
        row = self._new_row(group)
        if len(self._rows) >= _MAX_CACHED:
            self._rows.clear()
        with contextlib.suppress(TypeError):  # no weak references: looked up each time
            self._rows[id(group)] = weakref.ref(group), row
        return row

    def _new_row(self, group: Any) -> GroupRow | None:
        if group is dist.GroupMember.NON_GROUP_MEMBER or isinstance(group, _recorded_elsewhere):
            return None
        members = tuple(c10d._world.pg_group_ranks.get(group, ()))
        world = dist.GroupMember.WORLD
        name = "default" if group is world else _group_name(group)
        # asked for its size, a group of torchft's waits for the quorum
        size = len(members) or (group.size() if type(group) is dist.ProcessGroup else 0)
        return self.page.group_row(name, size, tuple(sorted(members)))

    def transfer_row(self, group: GroupRow, peer: int, tag: int, *, sends: bool) -> CallRow:
        """What counts the sends to this peer (`layout.NONE`: any), or the receives from it.

        Raises:
            ValueError: torch will not take this tag.
        """
        if not -_TAG_MOST <= tag < _TAG_MOST:
            raise ValueError(f"tag {tag}")
        return self.page.transfer_row(
            group, _ANY if peer == layout.NONE else peer, tag, sends=sends
        )

    # -- what ----------------------------------------------------------------------------------

    def _text(self, key: Any) -> int:
        cached = self._texts.get(key)
        if cached is None:
            text = str(key).removeprefix("torch.")
            cached = self._texts[key] = self.page.intern(text)
        return cached

    def reduce_op(self, op: Any) -> int:
        """String number of its name."""
        # an options object wraps it, with a factor
        kind = "SUM" if op is None else getattr(op, "op", op)
        cached = self._reduce_ops.get(kind)
        if cached is None:
            text = str(kind).rpartition(".")[2].rstrip(">")[:32]
            cached = self._reduce_ops[kind] = self.page.intern(text)
        if op is None:
            self._reduce_ops[None] = cached
        return cached

    def _shape_text(self, what: _Shapes) -> tuple[bytes, int]:
        cached = self._shapes.get(what)
        if cached is None:
            sizes_in, sizes_out, dtype = what
            text = layout.encode_shapes(
                [tuple(size) for size in sizes_in], [tuple(size) for size in sizes_out]
            )
            cached = text, layout.NO_STRING if dtype is None else self._text(dtype)
            if len(self._shapes) >= _MAX_CACHED:
                self._shapes.clear()
            self._shapes[what] = cached
        return cached

    # -- where ----------------------------------------------------------------------------------

    def site(self, frame: FrameType | None) -> int:
        """The nearest frame of the program or of a package it uses, as `file.py:line`.

        A pool's thread may have none: then torch's own frame that says most.
        """
        sites, innermost = self.sites, frame
        while frame is not None:
            code = frame.f_code
            cached = sites.get((id(code), frame.f_lasti))
            if cached is None or cached[0] is not code:
                path = code.co_filename
                number = _PLUMBING if _is_plumbing(path) else self._number(path, frame.f_lineno)
                if len(self.sites) >= _MAX_CACHED:
                    self.sites.clear()
                cached = self.sites[id(code), frame.f_lasti] = code, number
            if cached[1] != _PLUMBING:
                return cached[1]
            frame = frame.f_back
        return self._site_in_plumbing(innermost)

    def _site_in_plumbing(self, frame: FrameType | None) -> int:
        """The outermost frame of torch's that was not only handed something to call; else the
        standard library's nearest, which handed it a function of torch's.
        """
        outermost = nearest = None
        while frame is not None:
            path = frame.f_code.co_filename
            if path.startswith(_torch_folders):
                outermost = outermost if path.endswith(_CALLING) else frame
            elif nearest is None and path.startswith(_STDLIB):
                nearest = frame
            frame = frame.f_back
        said = outermost or nearest
        if said is None:
            return layout.NO_STRING
        return self._number(said.f_code.co_filename, said.f_lineno)

    def _number(self, path: str, line: int) -> int:
        """With the file's folder: enough to find it by eye."""
        return self.page.intern(f"{os.sep.join(path.split(os.sep)[-2:])}:{line}")


_PLUMBING = -1
_torch_folders: tuple[str, ...] = (os.path.dirname(torch.__file__) + os.sep,)
"""Torch's, and TorchFT's."""
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_STDLIB = tuple(
    {
        folder + os.sep
        for file in (threading.__file__, os.path.realpath(threading.__file__))
        for folder in (os.path.dirname(file), sysconfig.get_path("stdlib"))
    }
)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
"""Within the standard library's folder, and no part of it."""
_CALLING = (
    "torch/distributed/c10d_logger.py", "torch/utils/_contextlib.py", "torch/autograd/function.py",
    "torch/nn/modules/module.py",
)  # fmt: skip
"""Decorators and hooks, which call what they are given."""


def _is_plumbing(path: str) -> bool:
    if path.startswith(("<", _OURS, *_torch_folders)):
        return True
    return path.startswith(_STDLIB) and not any(part in path for part in _INSTALLED)


def _group_name(group: Any) -> str:
    for attribute in ("group_desc", "group_name"):
        name = None
        with contextlib.suppress(Exception):  # a group that torch does not know raises
            name = getattr(group, attribute)
        if isinstance(name, str) and name not in _UNNAMED:
            return name
    return type(group).__name__


def _sizes(value: Any, dtype: Any = None) -> tuple[Any, Any]:
    """Shapes of a list of tensors, and `dtype` or that of the first."""
    if not isinstance(value, list | tuple):  # reading an iterator would use it up
        raise TypeError(f"{type(value).__name__} is no list of tensors")
    shapes = tuple([item.shape for item in value])
    return shapes, dtype or (value[0].dtype if shapes else None)


def _tag(at: _Op, args: tuple[Any, ...] | list[Any]) -> int:
    return int(args[at.tag] or 0) if len(args) > at.tag else 0


def _root(at: _Op, args: tuple[Any, ...] | list[Any], group: Any) -> int:
    """Rank in the job's default group, on which all members agree."""
    count = len(args)
    root = args[at.root] if count > at.root else None
    if root is not None:
        return int(root)
    local = args[at.group_root] if count > at.group_root else None
    if local is None:
        return 0 if at.tag == _NOWHERE else layout.NONE
    return int(c10d.get_global_rank(group, local))
