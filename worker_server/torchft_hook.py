"""TorchFT without a line of code: steps, health, times and collectives, as soon as it is imported.

Every Manager that is made is observed; its `start_quorum` begins a step and its `should_commit`
ends one, unless the training loop itself reports (`voice` decides). Plain attributes are read, and
no method is called that waits. Wrappers keep signatures; a name that this version of torchft does
not have is left out, and said once where it is one that matters; whatever goes wrong in here ends
in one warning. What is timed, and how, is in `torchft_times`.

What the training thread waits in: `quorum` while it is inside of `Manager.wait_quorum`, which all
that needs a quorum goes through, or in a `start_quorum` that finds the former quorum not done;
`commit` inside of `should_commit` once the quorum is there; nothing else in these two, for they
apply loaded states and synchronize with a device. Of works, `wait()` counts: torchft 0.2.0's DDP
waits in its communication hook, so that is seen, whether backward runs the hook in the training
thread (CPU) or in one of autograd's. Not seen is what waits in C++ alone: torch's own DDP within
the group, a hook that returns a future without having waited for it, and, where `wait()` only
orders streams (NCCL), whatever synchronizes with the device first.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any, Final

import torch.distributed as dist

from worker_server import collectives, gradients, last_words, torchft_groups, torchft_times
from worker_server.complaint import complain
from worker_server.gradients import GradientWatch
from worker_server.page import layout
from worker_server.reporter import Reporter, Source
from worker_server.torch_hook import when_imported
from worker_server.torchft_groups import scene
from worker_server.torchft_times import (
    on,
    safely,
    time_transport,
    timed_apply,
    timed_configure,
    wrap,
)

_MANAGER: Final = "torchft.manager"
_GROUPS: Final = "torchft.process_group"

_reporter: Reporter | None = None
_steps: Source | None = None
_watch: GradientWatch | None = None
_patched: set[str] = set()
_unhooked: set[str] = set()
"""What this version does not have under a name that is known here."""


def install(reporter: Reporter) -> None:
    """Observe torchft for this reporter from now on; patches once, whoever calls again."""
    global _reporter, _steps, _watch  # noqa: PLW0603  the wrappers outlive any one attach
    _reporter, _steps = reporter, reporter.from_source("torchft")
    torchft_times.install(reporter)
    torchft_groups.forget()
    _watch = None
    if reporter.loop.soundness is not None and os.environ.get(gradients.ENVIRONMENT) != "0":
        _watch = GradientWatch(reporter.loop.soundness, reporter.page)
    if "scaler" not in _patched:
        _patched.add("scaler")
        gradients.mind_scalers(_stop_watch)
    for name, patch in ((_GROUPS, _patch_groups), (_MANAGER, _patch_manager)):
        if name not in _patched:
            _patched.add(name)
            when_imported(name, functools.partial(_try, patch, name))
    _tell_unhooked(reporter)


def _stop_watch() -> None:
    if _watch is not None:
        _watch.stop()


def _try(patch: Callable[[Any], None], name: str) -> None:
    """Never raises: it runs inside an import."""
    try:
        patch(sys.modules[name])
    except Exception as exc:  # noqa: BLE001  training goes on without us
        _unhooked.add(name)
        complain(f"lightkeeper sees no TorchFT: {exc!r}", stacklevel=5)
    if _reporter is not None:
        _tell_unhooked(_reporter)


def _miss(owner: str, names: list[str], what: str) -> None:
    """Say once what this version does not have, and what is not seen for it."""
    if names:
        _unhooked.update(f"{owner}.{name}" for name in names)
        complain(
            f"lightkeeper does not know this TorchFT: its {owner} has no {', '.join(names)}, so "
            f"{what} not seen there",
            stacklevel=7,
        )


def _tell_unhooked(reporter: Reporter) -> None:
    if _unhooked:
        reporter.page.write_unhooked(",".join(sorted(_unhooked)))


# -- groups --------------------------------------------------------------------------------------


def _patch_groups(module: Any) -> None:
    torchft_groups.install(module)
    formed = False
    for cls in vars(module).values():
        if isinstance(cls, type) and issubclass(cls, module.ProcessGroup):
            formed |= wrap(cls, "configure", timed_configure(_configured))  # torchft <= 0.2.0
            formed |= wrap(cls, "reconfigure", timed_configure(_reconfigured))
    _miss("ProcessGroup", [] if formed else ["reconfigure"], "new quorums' process groups are")


def _configured(group: Any, *args: Any, **kwargs: Any) -> None:
    names = ("store_addr", "replica_id", "rank", "world_size", "quorum_id")
    values = {**dict(zip(names, args, strict=False)), **kwargs}
    torchft_groups.configured(group, values["world_size"], values.get("quorum_id"))


def _reconfigured(group: Any, opts: Any) -> None:
    torchft_groups.configured(group, len(opts.handles), opts.uuid)


def _manager_reconfigured(manager: Any, communicator_id: int, handles: Any) -> None:
    torchft_groups.configured(manager._pg, len(handles), communicator_id)


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
    unknown = [name for name, make in waits.items() if not wrap(manager, name, make)]
    forms = wrap(manager, "_reconfigure_pg", timed_configure(_manager_reconfigured))
    group = getattr(sys.modules.get(_GROUPS), "ProcessGroup", None)
    old = group is None or hasattr(group, "configure")
    lost = [] if forms or old else ["_reconfigure_pg"]
    what = "steps and waits are" if unknown else "quorums of torch's own groups are"
    _miss("Manager", [*unknown, *lost], what)
    wrap(manager, "_apply_pending_state_dict", timed_apply)
    wrap(manager, "allreduce", _gathered_allreduce)
    wrap(manager, "report_error", _seen_error)
    work, future = getattr(module, "_ManagedWork", None), getattr(module, "_ManagedFuture", None)
    if work is not None:
        torchft_groups.wrap_wait(work, "wait")
        torchft_groups.wrap_wait(work, "block_current_stream", blocks=False)
    if future is not None:
        torchft_groups.wrap_wait(future, "wait", lambda self: self._managed_work())


def _observed_init(original: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        safely(_observe, self)

    return __init__


def _observe(manager: Any) -> None:
    if _reporter is not None:
        _reporter.observe_manager(manager)
        _reporter.page.tell_waits()


def _reported_start(original: Callable[..., Any]) -> Callable[..., Any]:
    def start_quorum(self: Any, *args: Any, **kwargs: Any) -> Any:
        safely(_begin, self)
        former = getattr(self, "_quorum_future", None)
        if former is None or former.done() or not _speaks(self):
            return original(self, *args, **kwargs)
        try:
            collectives.begin_wait(layout.WAIT_QUORUM)
            return original(self, *args, **kwargs)
        finally:
            collectives.end_wait(layout.WAIT_QUORUM)

    return start_quorum


def _awaited_quorum(original: Callable[..., Any]) -> Callable[..., Any]:
    def wait_quorum(self: Any, *args: Any, **kwargs: Any) -> Any:
        speaks = _speaks(self)
        try:
            if speaks:
                collectives.begin_wait(layout.WAIT_QUORUM)
            result = original(self, *args, **kwargs)
        finally:
            if speaks:
                collectives.end_wait(layout.WAIT_QUORUM)
                if scene.vote is torchft_groups.Vote.AHEAD:
                    scene.vote = torchft_groups.Vote.NOW
                    collectives.begin_wait(layout.WAIT_COMMIT)
        begins, scene.begins = scene.begins, None
        if begins is not None:
            safely(begins)
        return result

    return wait_quorum


def _begin(manager: Any) -> None:
    last_words.keep(None)
    time_transport(getattr(manager, "_checkpoint_transport", None))
    if _steps is not None and _speaks(manager):
        _steps.begin_step(manager._step)


def _reported_commit(original: Callable[..., Any]) -> Callable[..., Any]:
    def should_commit(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if _watch is not None and on():
                _watch.vote()
            scene.vote = torchft_groups.Vote.AHEAD if _speaks(self) else None
            committed = original(self, *args, **kwargs)
        except BaseException:
            safely(_end, self, False)
            raise
        finally:
            scene.vote = None
            collectives.end_wait(layout.WAIT_COMMIT)
        safely(_end, self, committed)
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
        torchft_times.quorum_begins(self, told=_speaks(self))
        try:
            result = original(self, *args, **kwargs)
            torchft_times.quorum_is_there()
        finally:
            torchft_times.quorum_is_over()
            scene.background = False
        return result

    return _async_quorum


def _gathered_allreduce(original: Callable[..., Any]) -> Callable[..., Any]:
    def allreduce(self: Any, *args: Any, **kwargs: Any) -> Any:
        if scene.managed is not None or not on():
            return original(self, *args, **kwargs)
        if _watch is not None:
            _watch.give(args[0] if args else kwargs.get("tensor"))
        entries: list[torchft_groups.Entry] = []
        scene.managed = entries
        if torchft_groups.is_native(getattr(self, "_pg", None)):
            # it is torch's, none of whose methods is wrapped: this is where it is called
            scene.begins = functools.partial(_begin_native, self, entries, args, kwargs)
        try:
            work = original(self, *args, **kwargs)
        except BaseException as exc:
            for entry in entries:
                entry.complete(exc)
            raise
        finally:
            scene.managed = scene.begins = None
        if entries and not torchft_groups.hang(work, entries):
            for entry in entries:
                entry.complete(_error_of(self))
        return work

    return allreduce


def _begin_native(
    manager: Any, entries: list[torchft_groups.Entry], args: tuple[Any, ...], kwargs: Any
) -> None:
    values = {**dict(zip(("tensor", "should_quantize", "reduce_op"), args, strict=False)), **kwargs}
    reduce_op = values.get("reduce_op", dist.ReduceOp.AVG)
    entry = torchft_groups.begin_allreduce(manager._pg, values["tensor"], reduce_op)
    if entry is not None:
        entries.append(entry)


def _seen_error(original: Callable[..., Any]) -> Callable[..., Any]:
    def report_error(self: Any, e: Exception) -> None:
        original(self, e)
        safely(last_words.keep, e)
        safely(torchft_groups.failed, self._pg, e)

    return report_error


def _error_of(manager: Any) -> BaseException | None:
    errored = getattr(manager, "_errored", None)
    original = getattr(errored, "original_exception", errored)
    return original if isinstance(original, BaseException) else None
