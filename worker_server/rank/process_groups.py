"""Process groups while they are made: which one the rank is creating, where its members meet, and
after how long it gives up.

`init_process_group`, `new_group` and `split_group` are replaced by wrappers that leave a note in
the page while a call runs: a rank that stands in one waits for the other members, and the note says
for which. All ranks call `new_group` in the same order, also for groups that they are not in, so
the outermost calls are counted; two ranks in different ones have left one out. `new_subgroups` and
DeviceMesh call these functions.

A group's timeout is read from its backend's options, in the thread that created the group or has
changed its timeout. Calls by a name that user code imported before the attach are not seen.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import json
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from lightkeeper.worker_server.harmless import warn
from lightkeeper.worker_server.rank import collectives, exchange
from lightkeeper.worker_server.rank.collectives import Recorder
from lightkeeper.worker_server.rank.page import layout

_INIT: Final = "init_process_group"
_SPLIT: Final = "split_group"
_CALLS: Final = (_INIT, "new_group", _SPLIT)
_SET_TIMEOUT: Final = "_set_pg_timeout"
"""What torchtitan calls after its first step."""
_EARLIER: Final = 4
"""Calls that are noted beside the one that runs: which one a rank left out shows there."""
_RANKS_MOST: Final = 256
"""No members of a larger group are listed."""


class _Here(threading.local):
    """True if this thread is inside of such a call: they call each other."""

    inside = False


_here = _Here()
_numbers = itertools.count(1)
_made: deque[tuple[tuple[int, ...], int]] = deque(maxlen=_EARLIER)
"""Members and site of the last calls that were counted."""
_timeouts_s: dict[str, float] = {}
"""The shortest one, by whose groups they are: torch's or TorchFT's."""
_originals: dict[str, Callable[..., Any]] = {}


def install() -> None:
    """Note into the page of the current recorder from now on; repeated calls patch only once."""
    global _numbers  # noqa: PLW0603  the wrappers outlive any one attach
    _numbers = itertools.count(1)
    _made.clear()
    _timeouts_s.clear()
    _note_timeouts()
    if _originals:
        return
    mesh = sys.modules.get("torch.distributed.device_mesh")  # it has imported these by name
    for name in (*_CALLS, _SET_TIMEOUT):
        original = getattr(c10d, name, None)
        if original is None:
            continue  # another torch
        _originals[name] = original
        wrapper = _resetting(original) if name == _SET_TIMEOUT else _noted(name, original)
        for module in (c10d, dist, mesh):
            if getattr(module, name, None) is original:
                setattr(module, name, wrapper)


def _noted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def creating(*args: Any, **kwargs: Any) -> Any:
        recorder = collectives.current()
        if recorder is None or _here.inside or torch.compiler.is_dynamo_compiling():
            return original(*args, **kwargs)
        try:
            _here.inside = True
            _begin(recorder, name, signature, args, kwargs)
            with exchange.opening_within():
                group = original(*args, **kwargs)
        finally:
            _here.inside = False
            _write(recorder, "")
        _note_timeouts(None if name == _INIT else group)
        return group

    return creating


def _resetting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def resetting(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        _note_timeouts()
        return result

    return resetting


# -- the note -------------------------------------------------------------------------------------


def _begin(
    recorder: Recorder, name: str, signature: inspect.Signature, args: Any, kwargs: Any
) -> None:
    """Never raises: wrong arguments are torch's concern."""
    try:
        values = signature.bind(*args, **kwargs).arguments
        # not all ranks call it then
        alone = bool(values.get("use_local_synchronization"))
        nth = 0 if name == _INIT or alone else next(_numbers)
        ranks = () if name == _INIT else _members(name, values)
        site = recorder.site(sys._getframe(2))
        note = {
            "call": name,
            "nth": nth,
            "ranks": ranks,
            "store": _store_address(name, values),
            "site": site,
            "earlier": tuple(_made),
        }
        if nth:
            _made.append((ranks, site))
        _write(recorder, json.dumps(note, separators=(",", ":")))
    except Exception:  # noqa: BLE001  torch goes on without a note
        return


def _write(recorder: Recorder, note: str) -> None:
    try:
        recorder.page.write_note(layout.NOTE_FORMING, note)
    except Exception as exc:  # noqa: BLE001  nothing may reach training
        warn(f"lightkeeper does not see new process groups: {exc!r}")


def _members(name: str, values: dict[str, Any]) -> tuple[int, ...]:
    """The members asked for, in the default group's ranks."""
    ranks = values.get("ranks")
    if name == _SPLIT:
        parent: Any = values.get("parent_pg") or c10d._world.default_pg
        mine = (ranks for ranks in values["split_ranks"] if parent.rank() in ranks)
        ranks = [c10d.get_global_rank(parent, rank) for rank in next(mine, ())]
    if not isinstance(ranks, Collection) or len(ranks) > _RANKS_MOST:
        return ()  # reading an iterator would use it up
    return tuple(sorted(map(int, ranks)))


def _store_address(name: str, values: dict[str, Any]) -> str | None:
    """Where the members meet: all ranks of the job, or those of a group."""
    world: Any = c10d._world
    store = values.get("store") if name == _INIT else world.pg_map[world.default_pg][1]
    if store is None:
        method = urlsplit(values.get("init_method") or "env://")
        if method.scheme != "env":
            return method.netloc or None
        host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    else:
        while isinstance(store, c10d.PrefixStore):
            store = store.underlying_store
        host, port = getattr(store, "host", None), getattr(store, "port", None)  # a TCPStore's
    return f"{host}:{port}" if host and port else None


# -- timeouts -------------------------------------------------------------------------------------


def limit(whose: str, timeouts: Iterable[Any]) -> None:
    """Collectives of these groups end by themselves after the shortest of these timeouts."""
    recorder = collectives.current()
    in_seconds = [seconds for seconds in map(to_seconds, timeouts) if seconds is not None]
    if recorder is not None and in_seconds:
        _timeouts_s[whose] = min(in_seconds)
        shortest_s = min(_timeouts_s.values())
        recorder.page.write_timeout(layout.W_TIMEOUT_COLLECTIVE, shortest_s)


def to_seconds(timeout: Any) -> float | None:
    """A timedelta or a number in seconds; None: it is neither, or never ends anything."""
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None


def _note_timeouts(new: Any = None) -> None:
    """Note a new group's timeouts, or those of all groups again. Never raises."""
    with contextlib.suppress(Exception):
        if new is None:
            timeouts = [timeout for group in c10d._world.pg_map for timeout in _timeouts_of(group)]
        else:
            timeouts = [*_timeouts_of(new), _timeouts_s.get("torch")]
        limit("torch", timeouts)


def _timeouts_of(group: Any) -> Iterable[Any]:
    """Its backends' timeouts; nothing is created for it."""
    for device in getattr(group, "_device_types", ()):
        options = None
        with contextlib.suppress(Exception):  # a backend of somebody else's
            options = group._get_backend(device).options
        yield getattr(options, "_timeout", None)
