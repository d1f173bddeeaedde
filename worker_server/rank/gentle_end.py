"""The end of this rank's work on its devices, before an eviction ends its process.

Theory of operation. A process that dies while kernels of a neighbour read its memory over NVLink
makes the switch report errors, and clusters cordon the host for them (ai2cm/ace#1398, #1438). What
the kernels do decides how to end them: waiting ones may be aborted, as TorchFT does at its timeout
(ace#1425), moving ones may not. So a rank that trains is asked to park: at the end of its step it
waits for its device and stays there. Then, as in a rank that stands, every process group on a
device is aborted. Groups on the CPU have no kernels and are left alone. Never tried on a GPU.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from lightkeeper.worker_server.wire import ON_CPU

_STAYS_S: Final = 60.0
"""A parked rank that nobody ends trains on after this long."""

groups_now: Callable[[], Iterable[tuple[Any, object]]] = tuple
"""TorchFT's groups of this process and their quorums; set by who watches TorchFT."""


class _Parking:
    """A request to stay at the end of the step."""

    def __init__(self) -> None:
        self.until_s = time.monotonic() + _STAYS_S
        self.reached = threading.Event()


_parking: _Parking | None = None


def at_step() -> None:
    """Between two steps, in the program's own thread: stays here if that was asked for."""
    global _parking  # noqa: PLW0603
    if (parking := _parking) is None:
        return
    with contextlib.suppress(Exception):
        if (torch := sys.modules.get("torch")) and torch.accelerator.is_available():
            torch.accelerator.synchronize()
    parking.reached.set()
    while _parking is parking and time.monotonic() < parking.until_s:
        time.sleep(0.05)
    _parking = None


def end(*, park: bool, wait_s: float) -> str:
    """Park if asked to, then abort the groups on devices; returns what was done. Never raises.

    Args:
        park: wait for the end of the step first: the rank trains.
        wait_s: for that end.
    """
    global _parking  # noqa: PLW0603
    done = []
    if park:
        _parking = _Parking()
        if _parking.reached.wait(wait_s):
            done.append("parked between two steps")
        else:
            _parking = None
            done.append(f"came to no end of a step within {wait_s:g} s")
    return ", ".join([*done, *(tuple(_abort_all()) or ("has no kernels to end",))])


def _abort_all() -> Iterable[str]:
    ways = [(group, "getBackendName", "abort") for group, _ in groups_now()]
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")  # never imported for this
    with contextlib.suppress(Exception):
        if c10d is not None and c10d.is_initialized():  # torch's own, all together
            ways.append((c10d, "get_backend", "_abort_process_group"))
    aborted = 0
    for owner, backend, abort in ways:
        try:
            if on_device(str(getattr(owner, backend)())):
                getattr(owner, abort)()
                aborted += 1
        except Exception as exc:  # noqa: BLE001  the process is ended all the same
            yield f"abort failed: {exc!r:.100}"
    if aborted:
        yield f"aborted {aborted} process group{'s' * (aborted != 1)}"


def on_device(backend: str) -> bool:
    """True if any part of a backend such as `cpu:gloo,cuda:nccl` runs as kernels on a device."""
    parts = (part.rpartition(":")[2].rpartition("-")[2] for part in backend.lower().split(","))
    return any(part not in ON_CPU for part in parts)
