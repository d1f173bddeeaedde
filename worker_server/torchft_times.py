"""What TorchFT's parts take: staging, loading and applying a state, quorums, new process groups.

Methods are wrapped where a class defines them, and timed from outside: nothing is called that
TorchFT would not call, and whatever goes wrong in here ends in one warning. A call that fails is
not counted. Of nested calls the outermost is.

The quorum's time is that from the start of `_async_quorum` to the first thing that follows the
answer (configuring the group, staging or loading a checkpoint, the end): the client itself is
Rust, and is left alone. A state that was loaded is applied by the training thread, which may have
to wait for the load first: that wait is the load's.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

import torch

from worker_server import collectives
from worker_server.episodes import Episodes, Span
from worker_server.page import layout
from worker_server.reporter import Reporter

_WRAPPED: Final = "_lightkeeper_wrapped"
_ITEMS_MAX: Final = 200_000
"""Of a state, containers included; to walk through more takes longer than it is worth."""

Method = Callable[..., Any]

_transports: set[type] = set()
"""Whose methods are timed."""


class _Clock(threading.local):
    """What is being timed in this thread."""

    asking: tuple[object, float, bool] | None = None
    """A Manager that asks for a quorum, since when, and whether the waits told are its own."""
    inside = False


class Meter:
    """What one attach has timed so far. Any thread may call: each Manager has one of its own."""

    def __init__(self, reporter: Reporter) -> None:
        self._page = reporter.page
        self.ask_quorum: Callable[[bool], None] = reporter.page.ask_quorum
        self._lock = threading.RLock()
        self._episodes = [Episodes() for _ in range(layout.MAX_TIMES)]
        self._loaded: dict[int, tuple[float, int]] = {}
        """Transport -> when its last load was over, and its bytes; until it is applied."""

    def add(self, kind: int, owner: object, span: Span, nbytes: int = 0) -> None:
        """Count a call that is over."""
        with self._lock:
            seconds, again = self._episodes[kind].take(id(owner), *span)
            self._page.add_time(kind, seconds, nbytes, again=again)
            if kind == layout.TIME_LOAD:
                self._loaded[id(owner)] = span[1], nbytes

    def applied(self, manager: Any, begin_s: float, end_s: float) -> None:
        """Count a state that was taken over, if one was loaded."""
        with self._lock:
            loaded = self._loaded.pop(id(getattr(manager, "_checkpoint_transport", None)), None)
        if loaded is not None:
            loaded_s, nbytes = loaded
            self.add(layout.TIME_APPLY, manager, (max(begin_s, loaded_s), end_s), nbytes)


_clock = _Clock()
_meter: Meter | None = None


def install(reporter: Reporter) -> None:
    """Time for this reporter from now on."""
    global _meter  # noqa: PLW0603  the wrappers outlive any one attach
    _meter = Meter(reporter)


def on() -> bool:
    """Whether anything is recorded."""
    return _meter is not None and collectives.current() is not None


def safely(act: Callable[..., None], *args: Any) -> None:
    """Nothing of ours may reach torchft."""
    try:
        if on():
            act(*args)
    except Exception as exc:  # noqa: BLE001
        recorder = collectives.current()
        if recorder is not None:
            recorder.disable(exc)


def wrap(cls: type, name: str, make: Callable[[Method], Method]) -> bool:
    """Replace a method where the class itself defines it, and say whether it does."""
    original = cls.__dict__.get(name)
    if callable(original) and not hasattr(original, _WRAPPED):
        wrapper = functools.wraps(original)(make(original))
        setattr(wrapper, _WRAPPED, True)
        setattr(cls, name, wrapper)
    return callable(original)


# -- process groups -------------------------------------------------------------------------------


def timed_configure(done: Callable[..., None]) -> Callable[[Method], Method]:
    """Wraps what makes a group anew; `done` is called with the same arguments once it is made."""

    def make(original: Method) -> Method:
        def configure(self: Any, *args: Any, **kwargs: Any) -> Any:
            def over(_: object, span: Span) -> None:
                _add(layout.TIME_RECONFIGURE, self, span)
                done(self, *args, **kwargs)

            return _timed(over, original, self, args, kwargs)

        return configure

    return make


# -- checkpoints ----------------------------------------------------------------------------------


def time_transport(transport: object) -> None:
    """Users bring transports of their own: the class is known when a Manager has one."""
    if type(transport) in _transports:
        return
    _transports.add(type(transport))
    for cls in type(transport).__mro__:
        wrap(cls, "send_checkpoint", _timed_staging)
        wrap(cls, "recv_checkpoint", _timed_load)


def _timed_staging(original: Method) -> Method:
    def send_checkpoint(self: Any, *args: Any, **kwargs: Any) -> Any:
        def over(_: object, span: Span) -> None:
            values = _named(("dst_ranks", "step", "state_dict"), args, kwargs)
            nbytes = state_bytes(values.get("state_dict"))
            _add(layout.TIME_STAGING, self, span, nbytes)

        return _timed(over, original, self, args, kwargs)

    return send_checkpoint


def _timed_load(original: Method) -> Method:
    def recv_checkpoint(self: Any, *args: Any, **kwargs: Any) -> Any:
        def over(state: object, span: Span) -> None:
            _add(layout.TIME_LOAD, self, span, state_bytes(state))

        return _timed(over, original, self, args, kwargs)

    return recv_checkpoint


def timed_apply(original: Method) -> Method:
    """Wraps the Manager's `_apply_pending_state_dict`."""

    def _apply_pending_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        begin_s = monotonic()
        result = original(self, *args, **kwargs)
        safely(_applied, self, begin_s, monotonic())
        return result

    return _apply_pending_state_dict


def _applied(manager: Any, begin_s: float, end_s: float) -> None:
    if _meter is not None:
        _meter.applied(manager, begin_s, end_s)


def state_bytes(state: object) -> int:
    """Bytes of the tensors in dicts, lists and tuples, each storage once: what is handed over.

    0 where that cannot be told. Containers are walked as what they are based on, so that no method
    of the user's runs.
    """
    try:
        return sum(_storages(state).values())
    except Exception:  # noqa: BLE001  tensors of odd kinds have no storage; the time counts still
        return 0


def _storages(state: object) -> dict[int, int]:
    """Bytes by address."""
    found: dict[int, int] = {}
    rest = [state]
    for _ in range(_ITEMS_MAX):
        if not rest:
            return found
        value = rest.pop()
        if isinstance(value, dict):
            rest.extend(dict.values(value))
        elif isinstance(value, list):
            rest.extend(list.__iter__(value))
        elif isinstance(value, tuple):
            rest.extend(tuple.__iter__(value))
        elif isinstance(value, torch.Tensor):
            storage = getattr(value, "_local_tensor", value).untyped_storage()  # of a DTensor: ours
            found[storage.data_ptr()] = storage.nbytes()
    return {}


# -- the quorum -----------------------------------------------------------------------------------


def quorum_begins(manager: object, *, told: bool = True) -> None:
    """In this thread a Manager asks for a quorum now; `told`: the waits on the page are its own."""
    _clock.asking = manager, monotonic(), told
    safely(_ask, told, True)


def quorum_is_there() -> None:
    """What this thread does now comes after the answer."""
    asking, _clock.asking = _clock.asking, None
    if asking is not None:
        manager, begin_s, told = asking
        safely(_ask, told, False)
        safely(_add, layout.TIME_QUORUM, manager, (begin_s, monotonic()))


def quorum_is_over() -> None:
    """Without an answer by now there is none, and nothing to count."""
    asking, _clock.asking = _clock.asking, None
    if asking is not None:
        safely(_ask, asking[2], False)


# -- any of them ----------------------------------------------------------------------------------


def _timed(
    over: Callable[[object, Span], None],
    original: Method,
    self: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """The outermost of nested calls counts; a failed one does not."""
    quorum_is_there()
    if _clock.inside:
        return original(self, *args, **kwargs)
    begin_s = monotonic()
    try:
        _clock.inside = True  # in here: an interrupt must not leave it set
        result = original(self, *args, **kwargs)
    finally:
        _clock.inside = False
    safely(over, result, (begin_s, monotonic()))
    return result


def _ask(told: bool, asks: bool) -> None:
    if told and _meter is not None:
        _meter.ask_quorum(asks)


def _add(kind: int, owner: object, span: Span, nbytes: int = 0) -> None:
    if _meter is not None:
        _meter.add(kind, owner, span, nbytes)


def _named(names: tuple[str, ...], args: tuple[Any, ...], kwargs: Any) -> dict[str, Any]:
    return {**dict(zip(names, args, strict=False)), **kwargs}
