"""Inside the rank: checks once per step whether to break this rank, and breaks it.

See `faults` for what can be broken and how to ask for it.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import pkgutil
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from lightkeeper.trainer.faults import (
    FIRST_PHASE,
    LASTING,
    FaultError,
    Marker,
    PlannedFault,
    marker_folder,
    markers,
    parse_fault,
    write_marker,
)
from lightkeeper.trainer.model import local
from lightkeeper.worker_server.wire import split_rank_name

Rank = Any
"""The trainer's `Rank`, whose module imports this one."""

# -- what a fault does --------------------------------------------------------------------------


def _hang(_rank: Rank, _fault: PlannedFault) -> NoReturn:
    while True:
        time.sleep(1.0)


def _hold_gil(_rank: Rank, _fault: PlannedFault) -> NoReturn:
    c_library = ctypes.PyDLL(None)  # PyDLL, unlike CDLL, keeps the GIL during the call
    while True:
        c_library.sleep(0x7FFF_FFFF)


def _slow(rank: Rank, fault: PlannedFault) -> None:
    rank.pace.slowness = max(rank.pace.slowness, fault.factor)


def _spoil(rank: Rank, _fault: PlannedFault) -> None:
    """The gradient holds a NaN before any exchange, because the loss is one."""
    rank.network.register_forward_hook(
        lambda _module, _inputs, result: result * math.nan if torch.is_grad_enabled() else result
    )


def _corrupt(rank: Rank, _fault: PlannedFault) -> None:
    """After the next commit one bit of one weight flips, unnoticed by the rank."""
    weights = [local(next(rank.network.parameters()).data).view(-1).view(torch.int32)]

    def flip(*_: object) -> None:
        while weights:
            weights.pop()[0] ^= 1 << 20  # in the mantissa: the number changes little

    rank.optimizer.register_step_post_hook(flip)


def call_instead(rank: Rank, name: str, wrong: Callable[..., Any]) -> None:
    """The rank's next call of this collective of torch.distributed is that of `wrong`.

    Raises:
        FaultError: the rank has no peer in its replica group.
    """
    if rank.intra is None:
        raise FaultError("a mismatch needs a replica group of at least 2 ranks")
    right = getattr(dist, name)

    def instead(*args: Any, **kwargs: Any) -> Any:
        setattr(dist, name, right)
        return wrong(*args, **kwargs)

    setattr(dist, name, instead)


def _gather(squares: Tensor, group: dist.ProcessGroup) -> None:
    gathered = [torch.empty_like(squares) for _ in range(dist.get_world_size(group))]
    dist.all_gather(gathered, squares, group=group)


def _reduce_half(squares: Tensor, group: dist.ProcessGroup) -> None:
    dist.all_reduce(squares.flatten()[: squares.numel() // 2], group=group)


_ACTS: Final[Mapping[str, Callable[[Rank, PlannedFault], object]]] = {
    "hang": _hang,
    "gil": _hold_gil,
    "stop": lambda _rank, _fault: os.kill(os.getpid(), signal.SIGSTOP),
    "crash": lambda _rank, _fault: os.kill(os.getpid(), signal.SIGKILL),
    "slow": _slow,
    "nan": _spoil,
    "corrupt": _corrupt,
    "mismatch": lambda rank, _fault: call_instead(rank, "all_reduce", _gather),
    "mismatch:size": lambda rank, _fault: call_instead(rank, "all_reduce", _reduce_half),
}


def act(rank: Rank, fault: PlannedFault) -> None:
    """Break this rank; may not return.

    Raises:
        FaultError: this rank cannot have the fault.
        Exception: what a kind of your own raises, or its import.
    """
    (_ACTS.get(fault.kind) or pkgutil.resolve_name(fault.kind))(rank, fault)


# -- when it acts -------------------------------------------------------------------------------


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass(eq=False)
class Injector:
    """When to break this rank; called at the beginning of every phase."""

    rank: str
    host: str = ""
    file: Path | None = None
    act: Callable[[PlannedFault], object] = lambda _: None
    """Breaks the rank; may not return."""
    _: KW_ONLY
    say: Callable[[str], None] = _say
    clock: Callable[[], float] = time.time
    _stat: tuple[int, int, int] | None = field(default=None, init=False)
    _wanted: list[PlannedFault] = field(default_factory=list, init=False)
    _armed: list[PlannedFault] = field(default_factory=list, init=False)
    _step: int = field(default=0, init=False)

    def inherit(self) -> None:
        """Apply earlier faults of this host; called once the rank is whole."""
        _, number = split_rank_name(self.rank)
        for marker in markers(self.file) if self.file else ():
            same_place = marker.host == self.host and split_rank_name(marker.rank)[1] == number
            if marker.kind in LASTING and same_place:
                self.act(marker)
                why = f"as fault {marker.id!r} left it"
                self.say(f"{self.rank}: {marker.kind} on {self.host}, {why}")

    def poll(self, step: int) -> None:
        """Fire what is due at `step`, now or in a later phase; may not return."""
        if self.file is None:
            return
        self._read_if_changed(self.file)
        self._step = step
        self._armed = [
            fault
            for fault in self._wanted
            if fault.rank == self.rank
            and (fault.step is None or step >= fault.step)
            and not (marker_folder(self.file) / fault.id).exists()
        ]
        self.strike(FIRST_PHASE)

    def strike(self, phase: str) -> None:
        """`phase` begins: fire what was deferred to it; may not return."""
        for fault in tuple(self._armed):
            if fault.phase == phase:
                self._armed.remove(fault)
                self._fire(fault)

    def _fire(self, fault: PlannedFault) -> None:
        assert self.file is not None  # noqa: S101 - it was read
        planned = {**asdict(fault), "step": self._step}
        write_marker(self.file, Marker(**planned, host=self.host, time=self.clock()))
        self.say(f"{self.rank}: fault {fault.id!r} ({fault.kind}) fires at step {self._step}")
        try:
            self.act(fault)
        except FaultError as error:
            self.say(f"{self.rank}: error: fault {fault.id!r} refused: {error}")

    def _read_if_changed(self, file: Path) -> None:
        try:
            now = os.stat(file)
            if (stat := (now.st_mtime_ns, now.st_size, now.st_ino)) == self._stat:
                return
            self._stat = stat
            data = json.loads(file.read_text())
        except FileNotFoundError:
            self._stat, data = None, []
        except (OSError, ValueError) as error:
            self.say(f"{self.rank}: error: fault file {file}: {error}")
            return
        self._wanted = []
        for item in data if isinstance(data, list) else [data]:
            try:
                self._wanted.append(parse_fault(item))
            except FaultError as error:
                self.say(f"{self.rank}: error: {error}")


# -- slow -----------------------------------------------------------------------------------

_WINDOW: Final = 5
"""The measured work is the median of this many steps: one hiccup does not scale up."""


@dataclass(eq=False)
class WorkStretcher:
    """Stretches the work of each step: its forward and backward pass on the wall clock.

    It sleeps at the start of the forward phase, where slow hardware would also lose time: up to a
    minimum (`--step-time`), so that a demo fleet runs at a calm pace on two cores, and by a factor
    (fault `slow`).
    """

    step_time_s: float = 0.0
    _: KW_ONLY
    slowness: float = 1.0
    """How many times as long as measured the work must take."""
    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    _work_s: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW), init=False)
    _began = 0.0

    def begin_work(self) -> None:
        """Sleep the missing time, then measure from here."""
        stretched_s = self.usual_s() * self.slowness
        if stretched_s > self._measured_s():
            self.sleep(stretched_s - self._measured_s())
        self._began = self.clock()

    def end_work(self) -> None:
        self._work_s.append(self.clock() - self._began)

    def usual_s(self) -> float:
        """A step's work time when nothing is slow."""
        return max(self.step_time_s, self._measured_s())

    def _measured_s(self) -> float:
        return median(self._work_s) if self._work_s else 0.0
