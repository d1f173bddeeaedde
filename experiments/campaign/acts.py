"""Faults of the campaign that the product's injector does not have, as kinds of our own.

Each is called inside the rank, as `experiments.campaign.acts:NAME`. `factor` means how many times
as slow, and of a pause its seconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

import torch
import torch.distributed as dist

from lightkeeper.trainer.injector import call_instead
from lightkeeper.trainer.model import Batches

# -- ends ---------------------------------------------------------------------------------------


def segfault(*_: object) -> None:
    """Reads address 0 in C."""
    ctypes.string_at(0)


def abort(*_: object) -> None:
    """As C++ libraries do when they give up."""
    os.abort()


class InjectedError(RuntimeError):
    """Nobody catches it."""


def error(_rank: Any, fault: Any) -> NoReturn:
    raise InjectedError(f"fault {fault.id!r}")


# -- hangs and pauses ---------------------------------------------------------------------------


def busy(*_: object) -> None:
    """Python loops instead of sleeping."""
    while True:
        pass


def lock(*_: object) -> None:
    """Takes a lock that it holds already."""
    held = threading.Lock()
    held.acquire()
    held.acquire()


def file(*_: object) -> None:
    """Reads from a pipe that nobody writes to."""
    reader, _writer = os.pipe()
    os.read(reader, 1)


def pause_sleep(_rank: Any, fault: Any) -> None:
    time.sleep(fault.factor)


def pause_declared(rank: Any, fault: Any) -> None:
    with rank.reporter.phase("compile"):
        time.sleep(fault.factor)


def pause_gil(_rank: Any, fault: Any) -> None:
    """A C call holds the GIL meanwhile."""
    ctypes.PyDLL(None).usleep(int(fault.factor * 1e6))


def pause_busy(_rank: Any, fault: Any) -> None:
    _until(fault.factor, lambda: None)


def pause_gc(_rank: Any, fault: Any) -> None:
    """Collects garbage all the time, which holds the GIL too."""
    # A collection holds the GIL for about 30 ms: the pause must end in time on a busy core.
    garbage: list[Any] = [[] for _ in range(200_000)]
    _until(fault.factor, gc.collect)
    garbage.clear()


def _until(seconds: float, act: Callable[[], object]) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        act()


# -- slow ---------------------------------------------------------------------------------------


def slow_data(rank: Any, fault: Any) -> None:
    """From now on its steps lose as much time while they load data as `slow` would cost."""
    rank.batches = _SlowBatches(rank.batches, rank.pace, fault.factor)


class _SlowBatches:
    def __init__(self, batches: Batches, pace: Any, factor: float) -> None:
        self.draw_unseen = batches.draw_unseen
        self._batches, self._pace, self._factor = batches, pace, factor

    def draw(self, step: int) -> tuple[Any, Any]:
        time.sleep(self._pace.usual_s() * (self._factor - 1.0))
        return self._batches.draw(step)


_FAIR_BYTES_PER_S: Final = 8_000_000.0
"""Moves a step's gradients (1.9 MB with the defaults) in a calm step's time, 0.24 s."""
_SO_MAX_PACING_RATE: Final = 47  # asm-generic/socket.h; not in Python's socket module


def slow_link(rank: Any, fault: Any) -> None:
    """From now on it sends at 1/`factor` of a fair rate."""
    strike = rank.injector.strike

    def throttled(phase: str) -> None:
        strike(phase)
        if phase == "communication":
            throttle(fault.factor)

    rank.injector.strike = throttled


def throttle(slowness: float) -> None:
    """Pace what this process sends to 1/`slowness` of a fair rate, by the Linux kernel.

    Applies to every TCP connection open now; later ones, which TorchFT makes at each quorum, are
    not paced until the next step.
    """
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not str(Path("/proc/self/fd", name).readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    connection.getpeername()  # a listener has none
                    rate = int(_FAIR_BYTES_PER_S / slowness)
                    connection.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, rate)


# -- one collective inside the group differs ------------------------------------------------------


def dtype(rank: Any, _fault: Any) -> None:
    """Gradients summed as integers of the same bytes: gloo does not notice."""
    call_instead(rank, "reduce_scatter_single", lambda output, input, op, **more:  # noqa: A006
        dist.reduce_scatter_single(
            output=output.view(torch.int32), input=input.view(torch.int32), **more))  # fmt: skip


def root(rank: Any, _fault: Any) -> None:
    """Broadcast from another rank than the others expect, in the next step."""
    call_instead(rank, "broadcast", lambda clock, group, group_src: dist.broadcast(
        clock, group_src=group_src + 1, group=group))  # fmt: skip


def order(rank: Any, _fault: Any) -> None:
    """Two collectives on two process groups, in reverse order."""

    def later(squares: Any, group: Any) -> None:
        def both(loss: Any, **more: Any) -> None:
            dist.all_reduce(loss, **more)
            dist.all_reduce(squares, group=group)

        call_instead(rank, "all_reduce", both)

    call_instead(rank, "all_reduce", later)


def extra(rank: Any, _fault: Any) -> None:
    """The same collective one time too many."""

    def twice(squares: Any, group: Any) -> None:
        dist.all_reduce(squares, group=group)
        dist.all_reduce(squares, group=group)

    call_instead(rank, "all_reduce", twice)


def skip(rank: Any, _fault: Any) -> None:
    """Leaves a collective out: the other ranks wait for a call that never comes."""
    call_instead(rank, "all_reduce", lambda squares, group: None)


def receive(rank: Any, _fault: Any) -> None:
    """Waits for a message that nobody sends."""

    def wait(squares: Any, group: Any) -> None:
        peer = (dist.get_rank(group) + 1) % dist.get_world_size(group)
        dist.recv(torch.empty(()), group_src=peer, group=group)

    call_instead(rank, "all_reduce", wait)
