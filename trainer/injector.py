"""Inside the rank: checks once per step whether to break this rank, and breaks it.

See `faults` for what can be broken and how to ask for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lightkeeper.trainer.faults import (
    FIRST_PHASE,
    LASTING,
    SLOW_KINDS,
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


def _hang(fault: PlannedFault) -> NoReturn:
    while True:
        match fault.how:
            case Variant.BUSY:
                pass
            case Variant.LOCK:
                lock = threading.Lock()
                lock.acquire()
                with lock:
                    pass
            case Variant.FILE:
                reader, _writer = os.pipe()
                with open(reader, "rb") as file:
                    file.read()
            case _:
                time.sleep(1.0)


def _hold_gil(_fault: PlannedFault) -> NoReturn:
    c_library = ctypes.PyDLL(None)  # PyDLL, unlike CDLL, keeps the GIL during the call
    while True:
        c_library.sleep(0x7FFF_FFFF)


def _raise(fault: PlannedFault) -> NoReturn:
    raise InjectedError(f"fault {fault.id!r}")


def _pause(fault: PlannedFault) -> None:
    until = time.monotonic() + fault.seconds
    match fault.how:
        case Variant.BUSY:
            while time.monotonic() < until:
                pass
        case Variant.GIL:
            ctypes.PyDLL(None).usleep(int(fault.seconds * 1e6))
        case Variant.GC:
            # A collection holds the GIL for about 30 ms: the pause must end in time on a busy core.
            garbage: list[Any] = [[] for _ in range(200_000)]
            while time.monotonic() < until:
                gc.collect()
            del garbage
        case _:
            time.sleep(fault.seconds)


ACTS: Final[Mapping[FaultKind, Act]] = {
    FaultKind.HANG: _hang,
    FaultKind.GIL: _hold_gil,
    FaultKind.STOP: lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    FaultKind.CRASH: lambda _: os.kill(os.getpid(), signal.SIGKILL),
    FaultKind.SEGFAULT: lambda _: ctypes.string_at(0),
    FaultKind.ABORT: lambda _: os.abort(),
    FaultKind.RAISE: _raise,
    FaultKind.PAUSE: _pause,
}
"""What a fault does immediately; the other kinds change how the rank continues."""


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Injector:
    """What to break in this rank; called at the beginning of every phase."""

    def __init__(
        self,
        rank: str,
        *,
        world_size: int,
        stages: int = 1,
        host: str | None = None,
        file: Path | None = None,
        acts: Mapping[FaultKind, Act] = ACTS,
        declare: Callable[[str], AbstractContextManager[Any]] = nullcontext,
        say: Callable[[str], None] = _say,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`declare` reports a phase to the keeper, as `Reporter.phase` does."""
        self.slowness = dict.fromkeys(sorted(SLOW_KINDS), 1.0)
        """How many times as long as measured this rank must take, by kind."""
        self.nan = False
        """Whether this rank's gradient must hold a NaN."""
        self._rank = rank
        self._world_size = world_size
        self._stages = stages
        self._host = host or socket.gethostname()
        self._file = file
        self._acts = acts
        self._declare = declare
        self._say = say
        self._clock = clock
        self._stat: tuple[int, int, int] | None = None
        self._wanted: list[PlannedFault] = []
        self._armed: list[PlannedFault] = []
        self._step = 0
        self._mismatch: Variant | None = None
        self._corruption = False
        self._spikes: tuple[float, int] = (1.0, 0)
        self._inherit()

    @property
    def slow_factor(self) -> float:
        """Of the rank's own work."""
        return self.slowness[FaultKind.SLOW]

    def poll(self, step: int) -> None:
        """Fire what is due at `step`, now or in a later phase; may not return."""
        if self._file is None:
            return
        self._read_if_changed(self._file)
        self._step = step
        self._armed = [
            fault
            for fault in self._wanted
            if fault.rank == self._rank
            and (fault.step is None or step >= fault.step)
            and not (fired(self._file) / fault.id).exists()
        ]
        self.strike(FIRST_PHASE)

    def strike(self, phase: str) -> None:
        """`phase` begins: fire what was deferred to it; may not return."""
        for fault in tuple(self._armed):
            if fault.phase == phase:
                self._armed.remove(fault)
                self._fire(fault)

    def take_mismatch(self, *variants: Variant) -> Variant | None:
        """How the next collective inside the group must differ; given once.

        With `variants`, only if it is one of them.
        """
        if variants and self._mismatch not in variants:
            return None
        variant, self._mismatch = self._mismatch, None
        return variant

    def take_corruption(self) -> bool:
        """Whether a bit of the weights must flip now; True once."""
        corruption, self._corruption = self._corruption, False
        return corruption

    def take_spike(self) -> float:
        """Factor on the reported loss of this step."""
        factor, left = self._spikes
        self._spikes = factor, max(0, left - 1)
        return factor if left else 1.0

    def _fire(self, fault: PlannedFault) -> None:
        assert self._file is not None  # noqa: S101 - it was read
        refused = None
        if fault.kind is FaultKind.MISMATCH and self._world_size < 2:
            refused = "a mismatch needs a replica group of at least 2 ranks"
        elif fault.how is Variant.FEWER and self._stages < 2:
            refused = "only a stage of a pipeline (--pipeline) has micro-batches to send"
        marker = Marker(
            fault.id, fault.kind, self._rank, self._host, self._step, self._clock(), fault.factor,
            refused, fault.phase, fault.how,
        )  # fmt: skip
        mark(self._file, marker)
        if refused:
            self._say(f"{self._rank}: error: fault {fault.id!r} refused: {refused}")
            return
        self._say(f"{self._rank}: fault {fault.id!r} ({fault.kind}) fires at step {self._step}")
        match fault.kind:
            case kind if kind in LASTING:
                self._suffer(kind, fault.factor)
            case FaultKind.MISMATCH:
                self._mismatch = fault.how
            case FaultKind.CORRUPT:
                self._corruption = True
            case FaultKind.LOSS_SPIKE:
                self._spikes = fault.factor, SPIKE_STEPS
            case kind:
                declared = fault.how is Variant.DECLARED
                with self._declare("compile") if declared else nullcontext():
                    self._acts[kind](fault)

    def _suffer(self, kind: FaultKind, factor: float) -> None:
        """Start a lasting fault."""
        if kind is FaultKind.NAN:
            self.nan = True
        else:
            self.slowness[kind] = max(self.slowness[kind], factor)

    def _inherit(self) -> None:
        """Apply earlier faults of this host."""
        _, number = split_rank_name(self._rank)
        for marker in markers(self._file) if self._file else ():
            same_place = marker.host == self._host and split_rank_name(marker.rank)[1] == number
            if marker.kind in LASTING and same_place:
                self._suffer(marker.kind, marker.factor)
                why = f"as fault {marker.id!r} left it"
                self._say(f"{self._rank}: {marker.kind} on {self._host}, {why}")

    def _read_if_changed(self, file: Path) -> None:
        try:
            now = os.stat(file)
        except FileNotFoundError:
            self._stat, self._wanted = None, []
            return
        stat = (now.st_mtime_ns, now.st_size, now.st_ino)
        if stat == self._stat:
            return
        self._stat = stat
        try:
            data = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            self._say(f"{self._rank}: error: fault file {file}: {error}")
            return
        self._wanted = []
        for item in data if isinstance(data, list) else [data]:
            try:
                self._wanted.append(parse_fault(item))
            except FaultError as error:
                self._say(f"{self._rank}: error: {error}")


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


def reduce_wrongly(squares: Tensor, loss: Tensor, intra: Intra, variant: Variant) -> None:
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
