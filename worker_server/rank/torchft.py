"""TorchFT without a line of code: steps, health, times and collectives, as soon as it is imported.

Every Manager is observed; its `start_quorum` begins a step and its `should_commit` ends one, unless
the training loop itself reports (`reporter` decides). Only plain attributes are read, and nothing
is called that TorchFT would not call. Methods are wrapped where a class defines them, and keep
their signatures; a name that this version of torchft lacks is skipped, with one warning if it
matters; any failure in here ends in one warning.

What the training thread waits in: `quorum` while it is in `Manager.wait_quorum`, which all that
needs a quorum calls, or in a `start_quorum` that finds the previous quorum not done; `commit` in
`should_commit` once the quorum is there; nothing else in these two, because they apply loaded
states and synchronize with a device. Of works, `wait()` counts: torchft 0.2.0's DDP waits in its
communication hook, so that is seen, whether backward runs the hook in the training thread (CPU) or
in one of autograd's. Waits in C++ alone are not seen: torch's own DDP within the group, a hook that
returns a future without having waited for it, and, where `wait()` only orders streams (NCCL),
whatever synchronizes with the device first.

What TorchFT's parts take (staging, loading and applying a state, quorums, new process groups) is
timed from outside. A call that fails is not counted; of nested calls the outermost is. The quorum's
time runs from the start of `_async_quorum` to the first thing that follows the answer (configuring
the group, staging or loading a checkpoint, the end): the client itself is Rust, and is left alone.
The training thread applies a loaded state, and may have to wait for the load first: that wait
counts as the load's.

Gradients are checked for non-finite numbers where TorchFT averages them, without a call by the
user. A tensor given to `Manager.allreduce` is checked before it goes (`local`), and some again at
the commit vote (`exchanged`): who was first is known only before the exchange. A check reads 64
numbers, so a NaN in a few of a large tensor may pass once; what comes from the loss is in all of
them. Eight tensors are checked, and all where that takes less than 0.3 % of a step (5 us each, 100
where caches are cold); of more, each attempt checks others. Not checked: tensors on an accelerator
(reading one makes the rank wait, or needs a copy and an event in its stream), small ones (metrics
may hold an Inf for good reasons), subclasses of Tensor, and anything once a GradScaler is used,
which makes an Inf on purpose. `StepState.gradients_watched` says whether gradients are checked.
`LIGHTKEEPER_GRADIENTS=0` turns it off.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, perf_counter_ns, thread_time_ns
from typing import Any, Concatenate, Final, ParamSpec, TypeGuard
from urllib.parse import urlsplit

import torch
import torch.distributed as dist

from lightkeeper.worker_server.harmless import warn
from lightkeeper.worker_server.rank import (
    collectives,
    exchange,
    gentle_end,
    last_words,
    process_groups,
    torchft_groups,
)
from lightkeeper.worker_server.rank.loop import LOCAL, Soundness
from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.rank.page.writer import PageWriter
from lightkeeper.worker_server.rank.process_groups import to_seconds
from lightkeeper.worker_server.rank.reporter import Reporter
from lightkeeper.worker_server.rank.torch_hooks import when_imported
from lightkeeper.worker_server.rank.torchft_groups import this_thread

try:
    import numpy as np

    _numpy = True
except ImportError:  # torch goes without
    _numpy = False

_MANAGER: Final = "torchft.manager"
_GROUPS: Final = "torchft.process_group"
_WRAPPED: Final = "_lightkeeper_wrapped"

Method = Callable[..., Any]
Around = Callable[[Method, Any, tuple[Any, ...], dict[str, Any]], Any]
"""Called in place of a method, with the method, its object and the arguments."""
P = ParamSpec("P")

_observer: Observer | None = None
_patched: set[str] = set()
_unhooked: set[str] = set()
"""Names to hook that this version lacks."""


def install(reporter: Reporter) -> None:
    """Observe torchft for this reporter from now on; repeated calls patch only once."""
    global _observer  # noqa: PLW0603  the wrappers outlive any one attach
    _observer = Observer(reporter)
    torchft_groups.forget_groups()
    gentle_end.groups_now = torchft_groups.living_groups
    wrap(torch.amp.GradScaler, "scale", _scaled)
    for name, patch in ((_GROUPS, _patch_groups), (_MANAGER, _patch_manager)):
        if name not in _patched:
            _patched.add(name)
            when_imported(name, functools.partial(_try, patch, name))
    _tell_unhooked()


def tell_observer(
    act: Callable[Concatenate[Observer, P], object], *args: P.args, **kwargs: P.kwargs
) -> None:
    """Notify the observer, if anything is recorded. No error of ours may reach torchft."""
    recorder = collectives.current()
    if _observer is None or recorder is None:
        return
    try:
        act(_observer, *args, **kwargs)
    except Exception as exc:  # noqa: BLE001
        recorder.disable(exc)


def wrap(cls: type, name: str, around: Around) -> bool:
    """Replace a method where the class itself defines it; returns whether it does."""
    original = cls.__dict__.get(name)
    if callable(original) and not hasattr(original, _WRAPPED):

        @functools.wraps(original)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            return around(original, self, args, kwargs)

        setattr(wrapper, _WRAPPED, True)
        setattr(cls, name, wrapper)
    return callable(original)


def _try(patch: Callable[[Any], None], name: str) -> None:
    """Never raises: it runs inside an import."""
    try:
        patch(sys.modules[name])
    except Exception as exc:  # noqa: BLE001  training continues without us
        _unhooked.add(name)
        warn(f"lightkeeper sees no TorchFT: {exc!r}")
    _tell_unhooked()


def _miss(owner: str, names: list[str], what: str) -> None:
    """Warn once about what this version lacks, and what is not seen because of it."""
    if names:
        _unhooked.update(f"{owner}.{name}" for name in names)
        warn(
            f"lightkeeper does not know this TorchFT: its {owner} has no {', '.join(names)}, so "
            f"{what} not seen there",
        )


def _tell_unhooked() -> None:
    if _unhooked and _observer is not None:
        _observer.page.write_text(layout.W_UNHOOKED, ",".join(sorted(_unhooked)))


# -- groups --------------------------------------------------------------------------------------


def _patch_groups(module: Any) -> None:
    torchft_groups.install(module)
    formed = False
    for cls in vars(module).values():
        if isinstance(cls, type) and issubclass(cls, module.ProcessGroup):
            for name, then in (("configure", _configured), ("reconfigure", _reconfigured)):
                formed |= wrap(cls, name, _opening(timed(layout.TIME_RECONFIGURE, then)))
    _miss("ProcessGroup", [] if formed else ["reconfigure"], "new quorums' process groups are")


def _opening(around: Around) -> Around:
    """`around`, with a note of the sockets that it opens."""

    def configuring(original: Method, self: Any, args: Any, kwargs: Any) -> Any:
        store = kwargs.get("store_addr", args[0] if args else "")
        group = torchft_groups.innermost_group(self)
        with exchange.opening_across(group, store if isinstance(store, str) else ""):
            return around(original, self, args, kwargs)

    return configuring


def _configured(group: Any, _: object, args: Any, kwargs: Any) -> None:
    values = _named(("store_addr", "replica_id", "rank", "world_size", "quorum_id"), args, kwargs)
    torchft_groups.group_configured(group, values["world_size"], values.get("quorum_id"))


def _reconfigured(group: Any, _: object, args: Any, kwargs: Any) -> None:
    opts = _named(("opts",), args, kwargs)["opts"]
    torchft_groups.group_configured(group, len(opts.handles), opts.uuid)


def _manager_reconfigured(manager: Any, _: object, args: Any, kwargs: Any) -> None:
    values = _named(("communicator_id", "handles"), args, kwargs)
    torchft_groups.group_configured(manager._pg, len(values["handles"]), values["communicator_id"])


# -- the Manager ---------------------------------------------------------------------------------


def _patch_manager(module: Any) -> None:
    manager = module.Manager
    wrap(manager, "__init__", _observed_init)
    waits = {
        "start_quorum": _reported_start,
        "wait_quorum": _awaited_quorum,
        "should_commit": _reported_commit,
        "_async_quorum": _timed_quorum,
    }
    unwrapped = [name for name, make in waits.items() if not wrap(manager, name, make)]
    forms = wrap(manager, "_reconfigure_pg", timed(layout.TIME_RECONFIGURE, _manager_reconfigured))
    group = getattr(sys.modules.get(_GROUPS), "ProcessGroup", None)
    old = group is None or hasattr(group, "configure")
    missing = [] if forms or old else ["_reconfigure_pg"]
    unseen = "steps and waits are" if unwrapped else "quorums of torch's own groups are"
    _miss("Manager", [*unwrapped, *missing], unseen)
    wrap(manager, "_apply_pending_state_dict", timed_apply)
    wrap(manager, "allreduce", _gathered_allreduce)
    wrap(manager, "report_error", _seen_error)
    work, future = getattr(module, "_ManagedWork", None), getattr(module, "_ManagedFuture", None)
    if work is not None:
        torchft_groups.wrap_wait(work, "wait")
        torchft_groups.wrap_wait(work, "block_current_stream", blocks=False)
    if future is not None:
        torchft_groups.wrap_wait(future, "wait", lambda self: self._managed_work())


def _observed_init(original: Method, self: Any, args: Any, kwargs: Any) -> None:
    original(self, *args, **kwargs)
    tell_observer(Observer.observe, self)
    tell_observer(lambda seen: seen.note_lighthouse(self, _named_in(original, self, args, kwargs)))


def _speaks(manager: object) -> bool:
    """True if this Manager reports the steps: of several only the observed one does."""
    return _observer is not None and _observer.reporter.loop.manager is manager


def _reported_start(original: Method, self: Any, args: Any, kwargs: Any) -> Any:
    tell_observer(Observer.begin_step, self)
    former = getattr(self, "_quorum_future", None)
    if former is None or former.done() or not _speaks(self):
        return original(self, *args, **kwargs)
    try:
        collectives.begin_wait(layout.WAIT_QUORUM)
        return original(self, *args, **kwargs)
    finally:
        collectives.end_wait(layout.WAIT_QUORUM)


def _awaited_quorum(original: Method, self: Any, args: Any, kwargs: Any) -> Any:
    speaks = _speaks(self)
    try:
        if speaks:
            collectives.begin_wait(layout.WAIT_QUORUM)
        result = original(self, *args, **kwargs)
    finally:
        if speaks:
            collectives.end_wait(layout.WAIT_QUORUM)
            if this_thread.votes_early:
                this_thread.votes_early = False
                collectives.begin_wait(layout.WAIT_COMMIT)
    begins, this_thread.begins = this_thread.begins, None
    if begins is not None:
        tell_observer(begins)
    return result


def _reported_commit(original: Method, self: Any, args: Any, kwargs: Any) -> Any:
    committed = False
    try:
        tell_observer(lambda seen: seen.watch.vote())
        this_thread.votes_early = _speaks(self)
        committed = original(self, *args, **kwargs)
        return committed
    finally:
        this_thread.votes_early = False
        collectives.end_wait(layout.WAIT_COMMIT)
        tell_observer(Observer.end_step, self, bool(committed))


def _timed_quorum(original: Method, self: Any, args: Any, kwargs: Any) -> Any:
    this_thread.background = True
    quorum_begins(self, shown=_speaks(self))
    try:
        result = original(self, *args, **kwargs)
        quorum_ends()
    finally:
        quorum_ends(answered=False)
        this_thread.background = False
    return result


def _gathered_allreduce(original: Method, self: Any, args: Any, kwargs: Any) -> Any:
    if this_thread.managed is not None or collectives.current() is None:
        return original(self, *args, **kwargs)
    tell_observer(lambda seen: seen.watch.give(args[0] if args else kwargs.get("tensor")))
    entries: list[torchft_groups.OpenGroupCall] = []
    this_thread.managed = entries
    if torchft_groups.is_native(getattr(self, "_pg", None)):
        # a group of torch's own has no wrapped methods: record its call here
        this_thread.begins = lambda _: _begin_native(self, entries, args, kwargs)
    try:
        work = original(self, *args, **kwargs)
    except BaseException as exc:
        for entry in entries:
            entry.complete(exc)
        raise
    finally:
        this_thread.managed = this_thread.begins = None
    if entries and not torchft_groups.hang(work, entries):
        for entry in entries:
            entry.complete(_error_of(self))
    return work


def _begin_native(
    manager: Any, entries: list[torchft_groups.OpenGroupCall], args: Any, kwargs: Any
) -> None:
    values = _named(("tensor", "should_quantize", "reduce_op"), args, kwargs)
    reduce_op = values.get("reduce_op", dist.ReduceOp.AVG)
    entry = torchft_groups.begin_allreduce(manager._pg, values["tensor"], reduce_op)
    if entry is not None:
        entries.append(entry)


def _seen_error(original: Method, self: Any, args: Any, kwargs: Any) -> None:
    original(self, *args, **kwargs)
    tell_observer(Observer.note_error, self, *args, **kwargs)


def _scaled(original: Method, self: Any, args: Any, kwargs: Any) -> Any:
    """A GradScaler's overflows are no fault."""
    if getattr(self, "_enabled", True):
        tell_observer(lambda seen: seen.watch.stop())
    return original(self, *args, **kwargs)


def _error_of(manager: Any) -> BaseException | None:
    errored = getattr(manager, "_errored", None)
    original = getattr(errored, "original_exception", errored)
    return original if isinstance(original, BaseException) else None


def _named_in(original: Method, self: Any, args: Any, kwargs: Any) -> str | None:
    """The Lighthouse named when a Manager was made; else TorchFT asks the environment's."""
    named = inspect.signature(original).bind(self, *args, **kwargs).arguments
    return named.get("lighthouse_addr") or os.environ.get("TORCHFT_LIGHTHOUSE")


def _host_and_port(address: str) -> str:
    """HOST:PORT of a URL or of `HOST:PORT`; empty if it is neither."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        return parts.netloc.rpartition("@")[2] if parts.port else ""
    except ValueError:
        return ""


def _named(names: tuple[str, ...], args: tuple[Any, ...], kwargs: Any) -> dict[str, Any]:
    return {**dict(zip(names, args, strict=False)), **kwargs}


# -- times -----------------------------------------------------------------------------------------

_ITEMS_MAX: Final = 200_000
"""Parts of a state, containers included; walking through more is not worth the time."""

Span = tuple[float, float]


class Observer:
    """What one attach sees of torchft. Any thread may call: each Manager has its own."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.page = reporter.page
        self.watch = GradientWatch(reporter.loop.soundness, reporter.page)
        self._steps = reporter.from_source("torchft")
        self._lock = threading.Lock()
        self._timeouts_of = 0
        """The Manager, by its id, whose timeouts are published."""
        self._loaded: dict[int, tuple[float, int]] = {}
        """Transport -> when its last load was over, and its bytes; until it is applied."""

    def observe(self, manager: object) -> None:
        self.reporter.observe_manager(manager)
        self.page.tell_waits()
        self._note_timeouts(manager)

    def _note_timeouts(self, manager: Any) -> None:
        """Publish after how long the Manager gives up."""
        self._timeouts_of = id(manager)
        usual = getattr(manager, "_timeout", None)
        for word, timeout in (
            (layout.W_TIMEOUT_QUORUM, getattr(manager, "_quorum_timeout", None)),
            (layout.W_TIMEOUT_COMMIT, usual),
        ):
            if (seconds := to_seconds(timeout)) is not None:
                self.page.write_timeout(word, seconds)
        # `Manager.allreduce` gives up after the usual one, whatever its group's is
        process_groups.limit("torchft", [usual, torchft_groups.timeout_of(manager)])

    def note_lighthouse(self, manager: object, address: str | None) -> None:
        """Publish the address that the Manager asks for a quorum: rank 0 of a group alone does."""
        if address and getattr(manager, "_group_rank", 0) == 0:
            self.page.write_text(layout.W_LIGHTHOUSE, _host_and_port(address))

    def begin_step(self, manager: Any) -> None:
        """The Manager asks for a quorum."""
        last_words.keep_hidden_error(None)
        time_transport(getattr(manager, "_checkpoint_transport", None))
        if _speaks(manager):
            if self._timeouts_of != id(manager):  # made before the attach
                self._note_timeouts(manager)
                self.note_lighthouse(manager, os.environ.get("TORCHFT_LIGHTHOUSE"))
            self._steps.begin_step(manager._step)

    def end_step(self, manager: Any, committed: bool) -> None:
        """TorchFT has counted a committed step already; a heal has changed its number."""
        if _speaks(manager):
            self._steps.end_step(manager._step - committed, committed=committed)

    def note_error(self, manager: Any, e: Exception) -> None:
        """The Manager hides an error from the program."""
        last_words.keep_hidden_error(e)
        torchft_groups.failed(manager._pg, e)

    def add(self, kind: int, owner: object, span: Span, nbytes: int = 0) -> None:
        begin_s, end_s = span
        self.page.add_time(kind, end_s - begin_s, nbytes)
        if kind == layout.TIME_LOAD:
            with self._lock:
                self._loaded[id(owner)] = end_s, nbytes

    def applied(self, manager: Any, begin_s: float, end_s: float) -> None:
        """Count an applied state, if one was loaded."""
        with self._lock:
            loaded = self._loaded.pop(id(getattr(manager, "_checkpoint_transport", None)), None)
        if loaded is not None:
            loaded_s, nbytes = loaded
            self.add(layout.TIME_APPLY, manager, (max(begin_s, loaded_s), end_s), nbytes)


_transports: set[type] = set()
"""Classes with timed methods."""


def timed(kind: int, then: Callable[[Any, Any, Any, Any], int | None]) -> Around:
    """Count calls as this kind, the outermost of nested ones, unless they fail.

    `then` gets the object, the result and the arguments; it returns the bytes moved.
    """

    def around(original: Method, self: Any, args: Any, kwargs: Any) -> Any:
        quorum_ends()
        if this_thread.timed:
            return original(self, *args, **kwargs)
        begin_s = monotonic()
        try:
            this_thread.timed = True  # in here: an interrupt must not leave it set
            result = original(self, *args, **kwargs)
        finally:
            this_thread.timed = False
        span = begin_s, monotonic()
        tell_observer(
            lambda seen: seen.add(kind, self, span, then(self, result, args, kwargs) or 0)
        )
        return result

    return around


def time_transport(transport: object) -> None:
    """Users bring their own transports: the class is known once a Manager has one."""
    if type(transport) in _transports:
        return
    _transports.add(type(transport))
    for cls in type(transport).__mro__:
        wrap(cls, "send_checkpoint", timed(layout.TIME_STAGING, _staged_bytes))
        wrap(
            cls,
            "recv_checkpoint",
            timed(layout.TIME_LOAD, lambda _, state, *__: state_bytes(state)),
        )


def _staged_bytes(_: object, __: object, args: Any, kwargs: Any) -> int:
    return state_bytes(_named(("dst_ranks", "step", "state_dict"), args, kwargs).get("state_dict"))


def timed_apply(original: Method, self: Any, args: Any, kwargs: Any) -> Any:
    """Around the Manager's `_apply_pending_state_dict`."""
    begin_s = monotonic()
    result = original(self, *args, **kwargs)
    tell_observer(Observer.applied, self, begin_s, monotonic())
    return result


def state_bytes(state: object) -> int:
    """Bytes of the tensors in dicts, lists and tuples, each storage once: what is handed over.

    0 if unknown. Containers are walked as their built-in base class, so that no method of the
    user's runs.
    """
    try:
        return sum(_storages(state).values())
    except Exception:  # noqa: BLE001  tensors of odd kinds have no storage; the time counts still
        return 0


def _storages(state: object) -> dict[int, int]:
    """Bytes by address."""
    sizes: dict[int, int] = {}
    open_values = [state]
    for _ in range(_ITEMS_MAX):
        if not open_values:
            return sizes
        value = open_values.pop()
        if isinstance(value, dict):
            open_values.extend(dict.values(value))
        elif isinstance(value, list):
            open_values.extend(list.__iter__(value))
        elif isinstance(value, tuple):
            open_values.extend(tuple.__iter__(value))
        elif isinstance(value, torch.Tensor):
            storage = getattr(value, "_local_tensor", value).untyped_storage()  # of a DTensor: ours
            sizes[storage.data_ptr()] = storage.nbytes()
    return {}


def quorum_begins(manager: object, *, shown: bool = True) -> None:
    """In this thread a Manager asks for a quorum now; `shown`: the page's waits are its own."""
    this_thread.asking = manager, monotonic(), shown
    if shown:
        tell_observer(lambda seen: seen.page.ask_quorum(True))


def quorum_ends(*, answered: bool = True) -> None:
    """The thread's request for a quorum is over; without an answer it is not counted."""
    asking, this_thread.asking = this_thread.asking, None
    if asking is None:
        return
    manager, begin_s, shown = asking
    if shown:
        tell_observer(lambda seen: seen.page.ask_quorum(False))
    if answered:
        tell_observer(Observer.add, layout.TIME_QUORUM, manager, (begin_s, monotonic()))


# -- gradients ------------------------------------------------------------------------------------

ENVIRONMENT: Final = "LIGHTKEEPER_GRADIENTS"
_SAMPLE: Final = 64
"""Numbers per tensor; through numpy, which does not release the GIL meanwhile."""
_LEAST: Final = 1024
_LOOKS: Final = 8
"""Per attempt, however short, before the exchange."""
_LOOKS_AFTER: Final = 2
_SHARE: Final = 0.003
"""Share of the time between two votes; CPU time, because waiting for a core costs nobody."""
_NUMPY: Final = (torch.float32, torch.float64, torch.float16)
_EXCHANGED: Final = layout.PLACES[-1]


@dataclass(eq=False)
class GradientWatch:
    """Checks gradients for `Soundness`. Never raises, and keeps no tensor alive."""

    soundness: Soundness
    page: PageWriter

    def __post_init__(self) -> None:
        self._on = os.environ.get(ENVIRONMENT) != "0"
        self._calls = self._looks = self._spent_ns = self._turn = 0
        self._every = self._most = _LOOKS
        self._voted_ns = perf_counter_ns()
        self._given: list[weakref.ref[torch.Tensor]] = []

    def give(self, tensor: object) -> None:
        """The rank gives this tensor to the others now."""
        if not self._on:
            return
        try:
            if not _usable(tensor):
                return
            call, self._calls = self._calls, self._calls + 1
            if (call + self._turn) % self._every or self._looks >= self._most:
                return
            self._look(tensor, LOCAL)
            if not self._given:
                self.page.watch_gradients(on=True)
            if len(self._given) < _LOOKS_AFTER:
                self._given.append(weakref.ref(tensor))
        except Exception as exc:  # noqa: BLE001  nothing may reach training
            self.stop(f"lightkeeper does not look at gradients any more: {exc!r}")

    def vote(self) -> None:
        """The rank votes on the commit: whatever it gave has come back."""
        if not self._on:
            return
        try:
            for reference in self._given:
                tensor = reference()  # the program may have freed or replaced what is in it
                if _usable(tensor) and tensor.untyped_storage().nbytes():
                    self._look(tensor, _EXCHANGED)
        except Exception as exc:  # noqa: BLE001
            self.stop(f"lightkeeper does not look at gradients any more: {exc!r}")
        if self._looks:
            now_ns = perf_counter_ns()
            allowed_ns = _SHARE * (now_ns - self._voted_ns)
            self._voted_ns = now_ns
            self._most = max(_LOOKS, int(allowed_ns * (self._looks - 1) / max(1, self._spent_ns)))
            self._every = -(-self._calls // self._most) or 1
        self._turn += 1
        self._calls = self._looks = self._spent_ns = 0
        self._given.clear()

    def stop(self, why: str | None = None) -> None:
        if self._on:
            self._on = False
            self._given.clear()
            self.page.watch_gradients(on=False)
            if why is not None:
                warn(why)

    def _look(self, tensor: torch.Tensor, where: str) -> None:
        began_ns = thread_time_ns()
        self.soundness.look(None, 0.0 if sample_is_finite(tensor) else float("nan"), where)
        if self._looks:  # not the first, which finds cold caches
            self._spent_ns += thread_time_ns() - began_ns
        self._looks += 1


def _usable(tensor: object) -> TypeGuard[torch.Tensor]:
    """True if it is a large plain tensor on the CPU."""
    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        return False
    if not tensor.is_cpu or not tensor.is_floating_point() or tensor.numel() < _LEAST:
        return False
    if tensor.layout is not torch.strided or torch.compiler.is_compiling():
        return False
    return tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)


def sample_is_finite(tensor: torch.Tensor) -> bool:
    """True if a sample of a usable tensor is finite."""
    step = tensor.numel() // _SAMPLE
    if _numpy and tensor.dtype in _NUMPY and tensor.is_contiguous():
        numbers = (tensor.detach() if tensor.requires_grad else tensor).numpy().reshape(-1)
        return bool(np.isfinite(numbers[::step]).all())
    sample = tensor.detach().as_strided((_SAMPLE,), (step,))
    return bool((sample * 0).sum().item() == 0)  # NaN and Inf give NaN
