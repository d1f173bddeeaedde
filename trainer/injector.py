"""Inside the rank: checks once per step whether to break this rank, and breaks it.

See `faults` for what can be broken and how to ask for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import math
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, asdict, dataclass, field
from itertools import repeat
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lightkeeper.trainer.faults import (
    FIRST_PHASE,
    LASTING,
    SPIKE_STEPS,
    VARIANTS,
    FaultError,
    FaultKind,
    Marker,
    PlannedFault,
    Variant,
    fired,
    mark,
    markers,
    parse_fault,
)
from lightkeeper.trainer.group import Intra
from lightkeeper.trainer.model import local
from lightkeeper.worker_server.wire import split_rank_name

if TYPE_CHECKING:
    from torch.distributed.pipelining import PipelineStage

Act = Callable[[PlannedFault], object]
Transfers = Callable[[int], list[dist.P2POp]]
"""What a stage sends or receives of a micro-batch."""


class InjectedError(RuntimeError):
    """What `raise` raises."""


def _hold_gil(_fault: PlannedFault) -> NoReturn:
    c_library = ctypes.PyDLL(None)  # PyDLL, unlike CDLL, keeps the GIL during the call
    while True:
        c_library.sleep(0x7FFF_FFFF)


def _raise(fault: PlannedFault) -> NoReturn:
    raise InjectedError(f"fault {fault.id!r}")


def _stand(fault: PlannedFault) -> None:
    """Python goes no further: for so many seconds, or forever."""
    until = time.monotonic() + (fault.seconds if fault.kind is FaultKind.PAUSE else math.inf)
    garbage: list[Any] = []
    if fault.how is Variant.LOCK:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    elif fault.how is Variant.FILE:
        reader, _writer = os.pipe()
        os.read(reader, 1)
    elif fault.how is Variant.GIL:
        ctypes.PyDLL(None).usleep(int(fault.seconds * 1e6))
    elif fault.how is Variant.GC:
        # A collection holds the GIL for about 30 ms: the pause must end in time on a busy core.
        garbage = [[] for _ in range(200_000)]
    while (left_s := until - time.monotonic()) > 0:
        if garbage:
            gc.collect()
        elif fault.how is not Variant.BUSY:
            time.sleep(min(1.0, left_s))


ACTS: Final[Mapping[FaultKind, Act]] = {
    FaultKind.HANG: _stand,
    FaultKind.GIL: _hold_gil,
    FaultKind.STOP: lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    FaultKind.CRASH: lambda _: os.kill(os.getpid(), signal.SIGKILL),
    FaultKind.SEGFAULT: lambda _: ctypes.string_at(0),
    FaultKind.ABORT: lambda _: os.abort(),
    FaultKind.RAISE: _raise,
    FaultKind.PAUSE: _stand,
}
"""What a fault does immediately; the other kinds change how the rank continues."""


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass(eq=False)
class Injector:
    """What to break in this rank; called at the beginning of every phase."""

    rank: str
    _: KW_ONLY
    world_size: int
    stages: int = 1
    host: str = field(default_factory=socket.gethostname)
    file: Path | None = None
    acts: Mapping[FaultKind, Act] = field(default_factory=lambda: ACTS)
    declare: Callable[[str], AbstractContextManager[Any]] = nullcontext
    """Reports a phase to the keeper, as `Reporter.phase` does."""
    say: Callable[[str], None] = _say
    clock: Callable[[], float] = time.time
    _stat: tuple[int, int, int] | None = field(default=None, init=False)
    _wanted: list[PlannedFault] = field(default_factory=list, init=False)
    _armed: list[PlannedFault] = field(default_factory=list, init=False)
    _step: int = field(default=0, init=False)
    _due: dict[FaultKind, PlannedFault] = field(default_factory=dict, init=False)
    """What `take` gives out."""
    _lasting: dict[FaultKind, float] = field(default_factory=dict, init=False)
    _spikes: Iterator[float] = field(default_factory=lambda: iter(()), init=False)

    def __post_init__(self) -> None:
        """Apply earlier faults of this host."""
        _, number = split_rank_name(self.rank)
        for marker in markers(self.file) if self.file else ():
            same_place = marker.host == self.host and split_rank_name(marker.rank)[1] == number
            if marker.kind in LASTING and same_place:
                self._suffer(marker)
                why = f"as fault {marker.id!r} left it"
                self.say(f"{self.rank}: {marker.kind} on {self.host}, {why}")

    def slowness(self, kind: FaultKind) -> float:
        """How many times as long as measured this rank must take."""
        return self._lasting.get(kind, 1.0)

    @property
    def nan(self) -> bool:
        """Whether this rank's gradient must hold a NaN."""
        return FaultKind.NAN in self._lasting

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
            and not (fired(self.file) / fault.id).exists()
        ]
        self.strike(FIRST_PHASE)

    def strike(self, phase: str) -> None:
        """`phase` begins: fire what was deferred to it; may not return."""
        for fault in tuple(self._armed):
            if fault.phase == phase:
                self._armed.remove(fault)
                self._fire(fault)

    def take(self, kind: FaultKind, *variants: Variant) -> PlannedFault | None:
        """A mismatch of one collective, or a corrupt weight, that is due now; given once.

        With `variants`, only if it is one of them.
        """
        fault = self._due.get(kind)
        if fault is None or (variants and fault.how not in variants):
            return None
        return self._due.pop(kind)

    def take_spike(self) -> float:
        """Factor on the reported loss of this step."""
        return next(self._spikes, 1.0)

    def _fire(self, fault: PlannedFault) -> None:
        assert self.file is not None  # noqa: S101 - it was read
        refused = None
        if fault.kind is FaultKind.MISMATCH and self.world_size < 2:
            refused = "a mismatch needs a replica group of at least 2 ranks"
        elif fault.how is Variant.FEWER and self.stages < 2:
            refused = "only a stage of a pipeline (--pipeline) has micro-batches to send"
        planned = {**asdict(fault), "step": self._step, "variant": fault.how}
        marker = Marker(**planned, host=self.host, time=self.clock(), refused=refused)
        mark(self.file, marker)
        if refused:
            self.say(f"{self.rank}: error: fault {fault.id!r} refused: {refused}")
            return
        self.say(f"{self.rank}: fault {fault.id!r} ({fault.kind}) fires at step {self._step}")
        if fault.kind in self.acts:
            declared = fault.how is Variant.DECLARED
            with self.declare("compile") if declared else nullcontext():
                self.acts[fault.kind](fault)
        elif fault.kind in LASTING:
            self._suffer(fault)
        elif fault.kind is FaultKind.LOSS_SPIKE:
            self._spikes = repeat(fault.factor, SPIKE_STEPS)
        else:
            self._due[fault.kind] = fault

    def _suffer(self, fault: PlannedFault) -> None:
        """Start a lasting fault."""
        self._lasting[fault.kind] = max(self.slowness(fault.kind), fault.factor)

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
    (fault `slow`). Fault `slow-data` loses the same time while loading data.
    """

    step_time_s: float = 0.0
    _: KW_ONLY
    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep
    _work_s: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW), init=False)
    _began = 0.0

    def load_data(self, slow_factor: float = 1.0) -> None:
        """Sleep for a step's work time, times `slow_factor` - 1."""
        if slow_factor > 1.0:
            self.sleep(max(self.step_time_s, self._measured_s()) * (slow_factor - 1.0))

    def begin_work(self, slow_factor: float = 1.0) -> None:
        """Sleep the missing time, then measure from here."""
        work_s = self._measured_s()
        stretched_s = max(self.step_time_s, work_s) * slow_factor
        if stretched_s > work_s:
            self.sleep(stretched_s - work_s)
        self._began = self.clock()

    def end_work(self) -> None:
        """The work of this step is done."""
        self._work_s.append(self.clock() - self._began)

    def _measured_s(self) -> float:
        return median(self._work_s) if self._work_s else 0.0


_FAIR_BYTES_PER_S: Final = 8_000_000.0
"""Moves a step's gradients (1.9 MB with the defaults) in a calm step's time, 0.24 s."""
_SO_MAX_PACING_RATE: Final = 47  # asm-generic/socket.h; not in Python's socket module


def throttle(slowness: float) -> None:
    """Pace what this process sends to 1/`slowness` of a fair rate, by the Linux kernel.

    Applies to every TCP connection open now; later ones, which TorchFT makes at each quorum, are
    not paced.
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


# -- wrong ----------------------------------------------------------------------------------

REDUCTIONS: Final = tuple(
    variant
    for variant in VARIANTS[FaultKind.MISMATCH]
    if variant not in (Variant.ROOT, Variant.FEWER)
)
"""Mismatches of `reduce_wrongly`; a wrong root needs a broadcast, the other one a pipeline."""


def reduce_wrongly(squares: Tensor, loss: Tensor, intra: Intra, variant: Variant | None) -> None:
    """Replaces: all-reduce of `squares` in `norms`, then of `loss` in `metrics`."""
    group, metrics = intra.norms, intra.metrics
    match variant:
        case Variant.OP:
            gathered = [torch.empty_like(squares) for _ in range(dist.get_world_size(group))]
            dist.all_gather(gathered, squares, group=group)
        case Variant.SIZE:
            dist.all_reduce(squares.flatten()[: squares.numel() // 2], group=group)
        case Variant.DTYPE:
            dist.all_reduce(squares.view(torch.int32), group=group)
        case Variant.ORDER:
            dist.all_reduce(loss, group=metrics)
            dist.all_reduce(squares, group=group)
            return
        case Variant.EXTRA:
            dist.all_reduce(squares, group=group)
            dist.all_reduce(squares, group=group)
        case Variant.RECEIVE:
            peer = (dist.get_rank(group) + 1) % dist.get_world_size(group)
            dist.recv(torch.empty_like(loss), group_src=peer, group=group)
        case _:  # SKIP: the other ranks wait for a call that never comes
            pass
    dist.all_reduce(loss, group=metrics)


def leave_out_last_micro_batch(stage: PipelineStage) -> None:
    """From now on the stage transfers no last micro-batch, as if its steps had one less."""

    def without_last(transfers: Transfers) -> Transfers:
        return lambda chunk: transfers(chunk) if chunk + 1 < (stage.chunks or 0) else []

    for name in ("get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops"):
        setattr(stage, name, without_last(getattr(stage, name)))


def flip_bit(network: nn.Module) -> None:
    """Silent data corruption: one bit of one weight, unnoticed by the rank."""
    weights = local(next(network.parameters()).data).view(-1).view(torch.int32)
    weights[0] ^= 1 << 20  # in the mantissa: the number changes little
