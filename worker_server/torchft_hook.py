"""TorchFT without a line of code: steps, health, times and collectives, as soon as it is imported.

Every Manager that is made is observed; its `start_quorum` begins a step and its `should_commit`
ends one, unless the training loop itself reports (`voice` decides). Plain attributes are read, and
no method is called that waits. Wrappers keep signatures; a name that this version of torchft does
not have is left out; whatever goes wrong in here ends in one warning.

The quorum's time is that from the start of `_async_quorum` to the first thing that follows the
answer (configuring the group, staging or loading a checkpoint, the end): the client itself is
Rust, and is left alone.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from worker_server import collectives, torchft_groups
from worker_server.complaint import complain
from worker_server.page import layout
from worker_server.reporter import Reporter, Source
from worker_server.torch_hook import when_imported
from worker_server.torchft_groups import scene

_MANAGER: Final = "torchft.manager"
_GROUPS: Final = "torchft.process_group"
_CONFIGURE: Final = ("store_addr", "replica_id", "rank", "world_size", "quorum_id")
_WRAPPED: Final = "_lightkeeper_wrapped"

_reporter: Reporter | None = None
_steps: Source | None = None
_patched: set[str] = set()


class _Clock(threading.local):
    """What is being timed in this thread."""

    quorum_s: float | None = None
    inside = False


_clock = _Clock()


def install(reporter: Reporter) -> None:
    """Observe torchft for this reporter from now on; patches once, whoever calls again."""
    global _reporter, _steps  # the wrappers outlive any one attach
    _reporter, _steps = reporter, reporter.from_source("torchft")
    torchft_groups.forget()
    for name, patch in ((_GROUPS, _patch_groups), (_MANAGER, _patch_manager)):
        if name not in _patched:
            _patched.add(name)
            when_imported(name, functools.partial(_try, patch, name))


def _try(patch: Callable[[Any], None], name: str) -> None:
    """Never raises: it runs inside an import."""
    try:
        patch(sys.modules[name])
    except Exception as exc:  # noqa: BLE001  training goes on without us
        complain(f"lightkeeper sees no TorchFT: {exc!r}", stacklevel=5)


def _on() -> bool:
    return _reporter is not None and collectives.current() is not None


def _safely(act: Callable[..., None], *args: Any) -> None:
    """Nothing of ours may reach torchft."""
    try:
        if _on():
            act(*args)
    except Exception as exc:  # noqa: BLE001
        recorder = collectives.current()
        if recorder is not None:
            recorder.disable(exc)


def _wrap(cls: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a method where the class itself defines it."""
    original = cls.__dict__.get(name)
    if callable(original) and not hasattr(original, _WRAPPED):
        wrapper = functools.wraps(original)(make(original))
        setattr(wrapper, _WRAPPED, True)
        setattr(cls, name, wrapper)


# -- groups --------------------------------------------------------------------------------------


def _patch_groups(module: Any) -> None:
    torchft_groups.install(module)
    for cls in vars(module).values():
        if isinstance(cls, type) and issubclass(cls, module.ProcessGroup):
            _wrap(cls, "configure", _timed_configure)


def _timed_configure(original: Callable[..., Any]) -> Callable[..., Any]:
    def configure(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _clock.inside:
            return original(self, *args, **kwargs)
        result = _timed(layout.TIME_RECONFIGURE, original, self, args, kwargs)
        values = {**dict(zip(_CONFIGURE, args, strict=False)), **kwargs}
        _safely(torchft_groups.configured, self, values.get("world_size"), values.get("quorum_id"))
        return result

    return configure


# -- times ---------------------------------------------------------------------------------------


def _timed(
    kind: int, original: Callable[..., Any], self: Any, args: tuple[Any, ...], kwargs: Any
) -> Any:
    """The outermost of nested calls counts; a failed one does not."""
    _quorum_is_there()
    if _clock.inside:
        return original(self, *args, **kwargs)
    started_s = monotonic()
    try:
        _clock.inside = True  # in here: an interrupt must not leave it set
        result = original(self, *args, **kwargs)
    finally:
        _clock.inside = False
    _safely(_add_time, kind, monotonic() - started_s)
    return result


def _add_time(kind: int, seconds: float) -> None:
    if _reporter is not None:
        _reporter.page.add_time(kind, seconds)


def _quorum_is_there() -> None:
    started_s, _clock.quorum_s = _clock.quorum_s, None
    if started_s is not None:
        _safely(_add_time, layout.TIME_QUORUM, monotonic() - started_s)


def _times(kind: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
            return _timed(kind, original, self, args, kwargs)

        return timed

    return make


def _time_transport(transport: object) -> None:
    """Users bring transports of their own: the class is known when a Manager has one."""
    for cls in type(transport).__mro__:
        _wrap(cls, "send_checkpoint", _times(layout.TIME_STAGING))
        _wrap(cls, "recv_checkpoint", _times(layout.TIME_LOAD))


# -- the Manager ---------------------------------------------------------------------------------


def _patch_manager(module: Any) -> None:
    manager = module.Manager
    _wrap(manager, "__init__", _observed_init)
    _wrap(manager, "start_quorum", _reported_start)
    _wrap(manager, "should_commit", _reported_commit)
    _wrap(manager, "_async_quorum", _timed_quorum)
    _wrap(manager, "allreduce", _gathered_allreduce)
    _wrap(manager, "report_error", _seen_error)
    work, future = getattr(module, "_ManagedWork", None), getattr(module, "_ManagedFuture", None)
    if work is not None:
        torchft_groups.wrap_wait(work, "wait")
        torchft_groups.wrap_wait(work, "block_current_stream", blocks=False)
    if future is not None:
        torchft_groups.wrap_wait(future, "wait", lambda self: self._managed_work())


def _observed_init(original: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        _safely(_observe, self)

    return __init__


def _observe(manager: Any) -> None:
    if _reporter is not None:
        _reporter.observe_manager(manager)
    _time_transport(getattr(manager, "_checkpoint_transport", None))


def _reported_start(original: Callable[..., Any]) -> Callable[..., Any]:
    def start_quorum(self: Any, *args: Any, **kwargs: Any) -> Any:
        _safely(_begin, self)
        return original(self, *args, **kwargs)

    return start_quorum


def _begin(manager: Any) -> None:
    if _steps is not None and _speaks(manager):
        _steps.begin_step(manager._step)


def _reported_commit(original: Callable[..., Any]) -> Callable[..., Any]:
    def should_commit(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            committed = original(self, *args, **kwargs)
        except BaseException:
            _safely(_end, self, False)
            raise
        _safely(_end, self, committed)
        return committed

    return should_commit


def _end(manager: Any, committed: bool) -> None:
    """A committed step has been counted already; one that healed has changed its number."""
    if _steps is not None and _speaks(manager):
        _steps.end_step(manager._step - bool(committed), committed=bool(committed))


def _speaks(manager: object) -> bool:
    """Of several Managers the one that is observed gives the steps."""
    return _reporter is not None and _reporter.loop.manager is manager


def _timed_quorum(original: Callable[..., Any]) -> Callable[..., Any]:
    def _async_quorum(self: Any, *args: Any, **kwargs: Any) -> Any:
        scene.background = True
        _clock.quorum_s = monotonic()
        try:
            result = original(self, *args, **kwargs)
            _quorum_is_there()
        finally:
            _clock.quorum_s = None
            scene.background = False
        return result

    return _async_quorum


def _gathered_allreduce(original: Callable[..., Any]) -> Callable[..., Any]:
    def allreduce(self: Any, *args: Any, **kwargs: Any) -> Any:
        if scene.managed is not None or not _on():
            return original(self, *args, **kwargs)
        entries: list[torchft_groups.Entry] = []
        scene.managed = entries
        try:
            work = original(self, *args, **kwargs)
        except BaseException as exc:
            for entry in entries:
                entry.complete(exc)
            raise
        finally:
            scene.managed = None
        if entries and not torchft_groups.hang(work, entries):
            for entry in entries:
                entry.complete(_error_of(self))
        return work

    return allreduce


def _seen_error(original: Callable[..., Any]) -> Callable[..., Any]:
    def report_error(self: Any, e: Exception) -> None:
        original(self, e)
        _safely(torchft_groups.failed, self._pg, e)

    return report_error


def _error_of(manager: Any) -> BaseException | None:
    errored = getattr(manager, "_errored", None)
    original = getattr(errored, "original_exception", errored)
    return original if isinstance(original, BaseException) else None
