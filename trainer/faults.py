"""Faults on purpose: break one rank at one step, once, in a way that is known beforehand.

Two sources say what to break: the environment, `LIGHTKEEPER_FAULT="hang@rg_1.0:30"`, and a
JSON file that every rank looks at once per step (one `stat`). `inject` writes that file.

A fault fires once in the life of a job, whatever restarts: before it acts, a marker
`FILE.fired/ID` is put on disk. `slow` and `nan` are properties of a host: a rank of the same
number that starts later on the host named in the marker has them from its first step, one on
another host has not. To forget everything, remove `FILE.fired`.

Standard library only, so that a launcher can check and inject without importing torch.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NoReturn

from worker_server.wire import WireError, split_rank_name

ENVIRONMENT: Final = "LIGHTKEEPER_FAULT"
DEFAULT_FACTOR: Final = 5.0


class Kind(StrEnum):
    """What can be broken."""

    HANG = "hang"
    """Python sleeps for ever outside any collective; other threads go on."""
    GIL = "gil"
    """A C call holds the GIL for ever: no Python thread of the process runs again."""
    STOP = "stop"
    """SIGSTOP: nothing of the process runs, its heartbeats end too."""
    CRASH = "crash"
    """SIGKILL: gone without a word."""
    SLOW = "slow"
    """From now on the rank's own work takes `factor` times as long."""
    MISMATCH = "mismatch"
    """One collective inside the group differs from what the other ranks call."""
    NAN = "nan"
    """From now on the rank's gradient holds a NaN before anybody else sees it."""
    CORRUPT = "corrupt"
    """One bit of one weight flips after a commit, and nobody is told."""
    LOSS_SPIKE = "loss_spike"
    """The loss that the rank reports is `factor` times as high for a while; its gradient is not."""


SPIKE_STEPS: Final = 60
"""How long a loss spike lasts: several polls at 1 Hz and 0.2 s a step."""
_LASTING: Final = frozenset({Kind.SLOW, Kind.NAN})
"""Properties of a host: what starts there later has them too."""
_WITH_FACTOR: Final = frozenset({Kind.SLOW, Kind.LOSS_SPIKE})


class Variant(StrEnum):
    """How a mismatched collective differs."""

    OP = "op"
    """all_gather where the others call all_reduce."""
    SIZE = "size"
    """all_reduce of half the elements."""


class FaultError(ValueError):
    """A fault that cannot be understood; the message is one line and names the mistake."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault to inject."""

    id: str
    """Names the marker: letters, digits and `._:@-`."""
    kind: Kind
    rank: str
    """Whom it hits, such as `rg_1.0`."""
    step: int | None = None
    """First step at which it fires; None = at the next step, whichever that is."""
    factor: float = DEFAULT_FACTOR
    """Of `slow` and `loss_spike`."""
    variant: Variant = Variant.OP
    """Of `mismatch`."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w[\w.:@-]*", self.id):
            raise FaultError(
                f"fault id {self.id!r}: use letters, digits and ._:@-, a letter or digit first"
            )
        try:
            split_rank_name(self.rank)
        except WireError as error:
            raise FaultError(f"fault {self.id!r}: {error}") from error
        if self.step is not None and self.step < 0:
            raise FaultError(f"fault {self.id!r}: step {self.step} is below 0")
        if not 1 < self.factor < 1e6:
            raise FaultError(f"fault {self.id!r}: factor {self.factor:g} is not above 1")


@dataclass(frozen=True, slots=True)
class Marker:
    """What is left on disk by a fault that fired."""

    id: str
    kind: Kind
    rank: str
    host: str
    step: int
    time: float
    """Unix seconds, taken just before the fault acted."""
    factor: float = DEFAULT_FACTOR
    refused: str | None = None
    """Why the fault did not act; None when it did."""


# -- from text and JSON to faults and back --------------------------------------------------

_SPEC: Final = re.compile(r"(?P<kind>[^@]+)@(?P<rank>[^:@]+)(?::(?P<step>.+))?")
_HELP: Final = "expected kind[:arg]@rank[:step], such as hang@rg_1.0:30 or slow:5@rg_2.0:12"


def parse_specs(text: str) -> tuple[Fault, ...]:
    """The faults of `LIGHTKEEPER_FAULT`: specs separated by commas; the spec is also the id.

    Raises:
        FaultError: the first spec that is wrong.
    """
    return tuple(_parse_spec(spec.strip()) for spec in text.split(",") if spec.strip())


def _parse_spec(spec: str) -> Fault:
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise FaultError(f"fault {spec!r}: {_HELP}")
    data: dict[str, Any] = {"id": spec, "kind": match["kind"], "rank": match["rank"]}
    if match["step"] not in {None, "now"}:
        if not match["step"].isdecimal():
            raise FaultError(f"fault {spec!r}: step {match['step']!r} is not a number")
        data["step"] = int(match["step"])
    return parse_fault(data)


def parse_fault(data: Any) -> Fault:
    """A fault from JSON: `{"id", "kind", "rank", "step": null | N, "factor": 5.0}`.

    `kind` may carry its argument, as in `mismatch:size`.

    Raises:
        FaultError: what is wrong, in one line.
    """
    if not isinstance(data, Mapping):
        raise FaultError(
            f"a fault is {type(data).__name__}, expected an object with id, kind, rank"
        )
    for key in ("id", "kind", "rank"):
        if not isinstance(data.get(key), str):
            raise FaultError(f"fault {data.get('id')!r}: {key!r} is missing or not a text")
    name, _, written = data["kind"].partition(":")
    if written and name not in {*_WITH_FACTOR, Kind.MISMATCH}:
        raise FaultError(f"fault {data['id']!r}: {name!r} takes no argument")
    if name not in tuple(Kind):
        raise FaultError(f"fault {data['id']!r}: unknown kind {name!r} (known: {', '.join(Kind)})")
    kind = Kind(name)
    step = data.get("step")
    if step is not None and (type(step) is not int):
        raise FaultError(f"fault {data['id']!r}: step {step!r} is not a whole number")
    return Fault(
        id=data["id"],
        kind=kind,
        rank=data["rank"],
        step=step,
        factor=_factor(data, written) if kind in _WITH_FACTOR else DEFAULT_FACTOR,
        variant=_variant(data, written) if kind is Kind.MISMATCH else Variant.OP,
    )


def _factor(data: Mapping[str, Any], written: str) -> float:
    value = written or data.get("factor", DEFAULT_FACTOR)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise FaultError(f"fault {data['id']!r}: factor {value!r} is not a number") from None


def _variant(data: Mapping[str, Any], written: str) -> Variant:
    value = written or data.get("variant", Variant.OP)
    if value not in tuple(Variant):
        raise FaultError(f"fault {data['id']!r}: unknown mismatch {value!r} (known: op, size)")
    return Variant(value)


def inject(path: Path, *faults: Fault) -> None:
    """Put `faults` into the fault file; the ranks see them at their next step."""
    _write(path, json.dumps([asdict(fault) for fault in faults]))


def markers(path: Path) -> list[Marker]:
    """What fired so far, oldest first; `path` is the fault file."""
    found = [_read_marker(marker) for marker in _fired(path).glob("[!.]*")]
    return sorted(found, key=lambda marker: (marker.time, marker.id))


def _fired(path: Path) -> Path:
    return path.with_name(path.name + ".fired")


def _read_marker(path: Path) -> Marker:
    data = json.loads(path.read_text())
    return Marker(**{**data, "kind": Kind(data["kind"])})


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{os.getpid()}")
    half.write_text(text + "\n")
    half.replace(path)


# -- inside the rank ------------------------------------------------------------------------


def _hang() -> NoReturn:
    while True:
        time.sleep(1.0)


def _hold_gil() -> NoReturn:
    c_library = ctypes.PyDLL(None)  # PyDLL, unlike CDLL, keeps the GIL during the call
    while True:
        c_library.sleep(0x7FFF_FFFF)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


ACTS: Final[Mapping[Kind, Callable[[], None]]] = MappingProxyType(
    {Kind.HANG: _hang, Kind.GIL: _hold_gil, Kind.STOP: _stop, Kind.CRASH: _crash}
)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Injector:
    """Looks once per step whether this rank is to be broken, and breaks it."""

    def __init__(
        self,
        rank: str,
        *,
        world_size: int,
        host: str | None = None,
        file: Path | None = None,
        planned: Sequence[Fault] = (),
        acts: Mapping[Kind, Callable[[], None]] = ACTS,
        say: Callable[[str], None] = _say,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.slow_factor = 1.0
        """How many times longer than measured this rank's work has to take."""
        self.nan = False
        """Whether this rank's gradient is to hold a NaN."""
        self._rank = rank
        self._world_size = world_size
        self._host = host or socket.gethostname()
        self._file = file
        self._planned = tuple(planned)
        self._acts = acts
        self._say = say
        self._clock = clock
        self._seen: tuple[int, int, int] | None = None
        self._from_file: tuple[Fault, ...] = ()
        self._mismatch: Variant | None = None
        self._corruption = False
        self._spikes: tuple[float, int] = (1.0, 0)
        if planned and file is None:
            raise FaultError(
                f"{ENVIRONMENT} needs --fault-file FILE: markers in FILE.fired/ keep a fault "
                "from firing again after a restart"
            )
        self._inherit()

    def poll(self, step: int) -> None:
        """Fire what is due at `step`; may not return."""
        if self._file is None:
            return
        self._read_if_changed(self._file)
        for fault in (*self._planned, *self._from_file):
            due = fault.step is None or step >= fault.step
            if fault.rank == self._rank and due and not self._marker_of(fault).exists():
                self._fire(fault, step)

    def take_mismatch(self) -> Variant | None:
        """How the next collective inside the group has to differ; asked once."""
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
        marker = Marker(
            fault.id, fault.kind, self._rank, self._host, step, self._clock(), fault.factor, refused
        )
        _write(self._marker_of(fault), json.dumps(asdict(marker)))
        if refused:
            self._say(f"{self._rank}: error: fault {fault.id!r} refused: {refused}")
            return
        self._say(f"{self._rank}: fault {fault.id!r} ({fault.kind}) fires at step {step}")
        self._act(fault)

    def _act(self, fault: Fault) -> None:
        match fault.kind:
            case Kind.SLOW:
                self.slow_factor = max(self.slow_factor, fault.factor)
            case Kind.MISMATCH:
                self._mismatch = fault.variant
            case Kind.NAN:
                self.nan = True
            case Kind.CORRUPT:
                self._corruption = True
            case Kind.LOSS_SPIKE:
                self._spikes = fault.factor, SPIKE_STEPS
            case _:
                self._acts[fault.kind]()

    def _marker_of(self, fault: Fault) -> Path:
        assert self._file is not None  # noqa: S101
        return _fired(self._file) / fault.id

    def _inherit(self) -> None:
        if self._file is None:
            return
        _, number = split_rank_name(self._rank)
        for marker in markers(self._file):
            same_place = marker.host == self._host and split_rank_name(marker.rank)[1] == number
            if marker.kind not in _LASTING or not same_place:
                continue
            left = f"on {self._host}, as fault {marker.id!r} left it"
            if marker.kind is Kind.SLOW:
                self.slow_factor = max(self.slow_factor, marker.factor)
                self._say(f"{self._rank}: {marker.factor:g} times slower {left}")
            else:
                self.nan = True
                self._say(f"{self._rank}: its gradients are NaN {left}")

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
