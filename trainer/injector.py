"""Inside the rank: looks once per step whether this rank is to be broken, and breaks it.

See `faults` for what can be broken and how it is asked for. Standard library only.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NoReturn

from trainer.faults import (
    ENVIRONMENT,
    FIRST_PHASE,
    LASTING,
    SLOW_KINDS,
    SPIKE_STEPS,
    Fault,
    FaultError,
    Kind,
    Marker,
    Variant,
    fired,
    mark,
    markers,
    parse_fault,
)
from worker_server.wire import split_rank_name

Act = Callable[[Fault], None]


class InjectedError(RuntimeError):
    """What `raise` raises."""


def _hang(fault: Fault) -> NoReturn:
    while True:
        if fault.how is not Variant.BUSY:
            time.sleep(1.0)


def _hold_gil(_fault: Fault) -> NoReturn:
    c_library = ctypes.PyDLL(None)  # PyDLL, unlike CDLL, keeps the GIL during the call
    while True:
        c_library.sleep(0x7FFF_FFFF)


def _stop(_fault: Fault) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _crash(_fault: Fault) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _segfault(_fault: Fault) -> None:
    ctypes.string_at(0)


def _abort(_fault: Fault) -> None:
    os.abort()


def _raise(fault: Fault) -> NoReturn:
    raise InjectedError(f"fault {fault.id!r}")


def _pause(fault: Fault) -> None:
    until = time.monotonic() + fault.seconds
    match fault.how:
        case Variant.BUSY:
            while time.monotonic() < until:
                pass
        case Variant.GIL:
            ctypes.PyDLL(None).usleep(int(fault.seconds * 1e6))
        case Variant.GC:
            # Some 30 ms of GIL a collection: on a busy core the pause must still end in time.
            garbage: list[Any] = [[] for _ in range(200_000)]
            while time.monotonic() < until:
                gc.collect()
            del garbage
        case _:
            time.sleep(fault.seconds)


ACTS: Final[Mapping[Kind, Act]] = MappingProxyType(
    {
        Kind.HANG: _hang,
        Kind.GIL: _hold_gil,
        Kind.STOP: _stop,
        Kind.CRASH: _crash,
        Kind.SEGFAULT: _segfault,
        Kind.ABORT: _abort,
        Kind.RAISE: _raise,
        Kind.PAUSE: _pause,
    }
)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _undeclared(_phase: str) -> AbstractContextManager[Any]:
    return nullcontext()


class Injector:
    """What is to be broken in this rank; asked at the beginning of every phase."""

    def __init__(
        self,
        rank: str,
        *,
        world_size: int,
        host: str | None = None,
        file: Path | None = None,
        planned: Sequence[Fault] = (),
        acts: Mapping[Kind, Act] = ACTS,
        declare: Callable[[str], AbstractContextManager[Any]] = _undeclared,
        say: Callable[[str], None] = _say,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`declare` tells the keeper of a phase, as `StepReporter.phase` does."""
        self.slowness = dict.fromkeys(sorted(SLOW_KINDS), 1.0)
        """How many times longer than measured this rank has to take, by kind."""
        self.nan = False
        """Whether this rank's gradient is to hold a NaN."""
        self._rank = rank
        self._world_size = world_size
        self._host = host or socket.gethostname()
        self._file = file
        self._planned = tuple(planned)
        self._acts = acts
        self._declare = declare
        self._say = say
        self._clock = clock
        self._seen: tuple[int, int, int] | None = None
        self._from_file: tuple[Fault, ...] = ()
        self._armed: list[tuple[Fault, int]] = []
        self._mismatch: Variant | None = None
        self._corruption = False
        self._spikes: tuple[float, int] = (1.0, 0)
        if planned and file is None:
            raise FaultError(
                f"{ENVIRONMENT} needs --fault-file FILE: markers in FILE.fired/ keep a fault "
                "from firing again after a restart"
            )
        self._inherit()

    @property
    def slow_factor(self) -> float:
        """Of the rank's own work."""
        return self.slowness[Kind.SLOW]

    def poll(self, step: int) -> None:
        """Fire what is due at `step`, now or at a later phase of it; may not return."""
        if self._file is None:
            return
        self._read_if_changed(self._file)
        self._armed = [
            (fault, step)
            for fault in (*self._planned, *self._from_file)
            if fault.rank == self._rank
            and (fault.step is None or step >= fault.step)
            and not self._marker_of(fault).exists()
        ]
        self.strike(FIRST_PHASE)

    def strike(self, phase: str) -> None:
        """`phase` begins: fire what was put off until then; may not return."""
        for fault, step in tuple(self._armed):
            if fault.phase == phase:
                self._armed.remove((fault, step))
                self._fire(fault, step)

    def take_mismatch(self, *variants: Variant) -> Variant | None:
        """How the next collective inside the group has to differ; asked once.

        With `variants`, only when it is one of them.
        """
        if variants and self._mismatch not in variants:
            return None
        variant, self._mismatch = self._mismatch, None
        return variant

    def take_corruption(self) -> bool:
        """Whether a bit of the weights has to flip now; asked once."""
        corruption, self._corruption = self._corruption, False
        return corruption

    def take_spike(self) -> float:
        """How many times higher the loss of this step is to be reported."""
        factor, left = self._spikes
        self._spikes = factor, max(0, left - 1)
        return factor if left else 1.0

    def _fire(self, fault: Fault, step: int) -> None:
        refused = None
        if fault.kind is Kind.MISMATCH and self._world_size < 2:
            refused = "a mismatch needs a replica group of at least 2 ranks"
        if self._file is not None:
            mark(
                self._file,
                Marker(
                    fault.id, fault.kind, self._rank, self._host, step, self._clock(),
                    fault.factor, refused, fault.phase, fault.how,
                ),
            )  # fmt: skip
        if refused:
            self._say(f"{self._rank}: error: fault {fault.id!r} refused: {refused}")
            return
        self._say(f"{self._rank}: fault {fault.id!r} ({fault.kind}) fires at step {step}")
        self._act(fault)

    def _act(self, fault: Fault) -> None:
        match fault.kind:
            case Kind.SLOW | Kind.SLOW_DATA | Kind.SLOW_LINK:
                self.slowness[fault.kind] = max(self.slowness[fault.kind], fault.factor)
            case Kind.MISMATCH:
                self._mismatch = fault.how
            case Kind.NAN:
                self.nan = True
            case Kind.CORRUPT:
                self._corruption = True
            case Kind.LOSS_SPIKE:
                self._spikes = fault.factor, SPIKE_STEPS
            case Kind.PAUSE if fault.how is Variant.DECLARED:
                with self._declare("compile"):
                    self._acts[fault.kind](fault)
            case _:
                self._acts[fault.kind](fault)

    def _marker_of(self, fault: Fault) -> Path:
        assert self._file is not None  # noqa: S101
        return fired(self._file) / fault.id

    def _inherit(self) -> None:
        if self._file is None:
            return
        _, number = split_rank_name(self._rank)
        for marker in markers(self._file):
            same_place = marker.host == self._host and split_rank_name(marker.rank)[1] == number
            if marker.kind not in LASTING or not same_place:
                continue
            left = f"on {self._host}, as fault {marker.id!r} left it"
            if marker.kind is Kind.NAN:
                self.nan = True
                self._say(f"{self._rank}: its gradients are NaN {left}")
            else:
                self.slowness[marker.kind] = max(self.slowness[marker.kind], marker.factor)
                self._say(f"{self._rank}: {marker.factor:g} times slower {left}")

    def _read_if_changed(self, file: Path) -> None:
        try:
            now = os.stat(file)
        except FileNotFoundError:
            self._seen, self._from_file = None, ()
            return
        seen = (now.st_mtime_ns, now.st_size, now.st_ino)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            data = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            self._say(f"{self._rank}: error: fault file {file}: {error}")
            return
        self._from_file = tuple(self._parse_each(data if isinstance(data, list) else [data]))

    def _parse_each(self, items: Sequence[Any]) -> list[Fault]:
        faults = []
        for item in items:
            try:
                faults.append(parse_fault(item))
            except FaultError as error:
                self._say(f"{self._rank}: error: {error}")
        return faults
