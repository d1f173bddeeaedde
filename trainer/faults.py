"""Injected faults: break one rank at one step, once, in a known way.

A JSON file says what to break; every rank checks it once per step (one `stat`):

    echo '{"id": "one", "kind": "hang", "rank": "rg_1.0", "step": 30}' > faults.json

A fault fires once in the life of a job, whatever restarts: before it acts, a marker
`FILE.fired/ID` is written to disk. Slowness and `nan` are properties of a host: a rank of the same
number that starts later on the host named in the marker has them from its first step; one on
another host does not. To reset everything, remove `FILE.fired`.

This module has the faults and the files; `injector` breaks things, inside the rank. No torch here:
a launcher checks and injects without it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec

from lightkeeper.worker_server.wire import split_rank_name

FIRST_PHASE: Final = "data"
PHASES: Final = (FIRST_PHASE, "forward", "backward", "communication", "optimizer")
"""Where a fault may strike: when that phase begins, outside any collective."""


class FaultKind(StrEnum):
    HANG = "hang"
    """Python sleeps (or loops) forever outside any collective; other threads run."""
    GIL = "gil"
    """A C call holds the GIL forever: no Python thread of the process runs again."""
    STOP = "stop"
    """SIGSTOP: the whole process stops, heartbeats included."""
    CRASH = "crash"
    """SIGKILL: ends without warning."""
    SEGFAULT = "segfault"
    """Reads address 0 in C."""
    ABORT = "abort"
    """abort(), as C++ libraries do when they give up."""
    RAISE = "raise"
    """An exception that nobody catches."""
    SLOW = "slow"
    """From now on the rank's own work takes `factor` times as long."""
    SLOW_DATA = "slow-data"
    """The same, while it loads data."""
    SLOW_LINK = "slow-link"
    """From now on it sends at 1/`factor` of the rate that moves the gradients in one step."""
    MISMATCH = "mismatch"
    """One collective inside the group differs from what the other ranks call."""
    NAN = "nan"
    """From now on the rank's gradient holds a NaN, before any exchange."""
    CORRUPT = "corrupt"
    """One bit of one weight flips silently after a commit."""
    LOSS_SPIKE = "loss_spike"
    """The loss that the rank reports is `factor` times as high for a while, not its gradient."""
    PAUSE = "pause"
    """Stands still for `seconds`, then continues: not a failure, nobody may be accused."""


class Variant(StrEnum):
    """A variant of a kind of fault."""

    SLEEP = "sleep"
    BUSY = "busy"
    """Python loops instead of sleeping."""
    LOCK = "lock"
    """Takes a lock that it holds already."""
    FILE = "file"
    """Reads from a pipe that nobody writes to."""

    OP = "op"
    """all_gather where the others call all_reduce."""
    SIZE = "size"
    """all_reduce of half the elements."""
    DTYPE = "dtype"
    """all_reduce of the same bytes as integers: gloo does not notice."""
    ROOT = "root"
    """broadcast from another rank than the others expect."""
    ORDER = "order"
    """Two collectives on two process groups, in reverse order."""
    EXTRA = "extra"
    """The same collective one time too many."""
    SKIP = "skip"
    """Leaves a collective out."""
    RECEIVE = "receive"
    """Waits for a message that nobody sends."""
    FEWER = "fewer"
    """A stage of a pipeline neither sends nor receives the last micro-batch of a step."""

    DECLARED = "declared"
    """Sleeps in phase `compile`."""
    GIL = "gil"
    """A C call holds the GIL meanwhile."""
    GC = "gc"
    """Collects garbage all the time, which holds the GIL too."""


_V = Variant
VARIANTS: Final[Mapping[FaultKind, tuple[Variant, ...]]] = {
    FaultKind.HANG: (_V.SLEEP, _V.BUSY, _V.LOCK, _V.FILE),
    FaultKind.MISMATCH: (
        _V.OP, _V.SIZE, _V.DTYPE, _V.ROOT, _V.ORDER, _V.EXTRA, _V.SKIP, _V.RECEIVE, _V.FEWER,
    ),
    FaultKind.PAUSE: (_V.SLEEP, _V.DECLARED, _V.BUSY, _V.GIL, _V.GC),
}  # fmt: skip
"""Variants of a kind; the first is the default."""
SLOW_KINDS: Final = frozenset({FaultKind.SLOW, FaultKind.SLOW_DATA, FaultKind.SLOW_LINK})
LASTING: Final = SLOW_KINDS | {FaultKind.NAN}
"""Properties of a host: ranks that start there later have them."""
SPIKE_STEPS: Final = 60
"""Length of a loss spike: several polls at 1 Hz and 0.2 s a step."""
_WITH_FACTOR: Final = SLOW_KINDS | {FaultKind.LOSS_SPIKE}
_EVERY_PHASE: Final = (
    frozenset(FaultKind) - LASTING - {FaultKind.MISMATCH, FaultKind.CORRUPT, FaultKind.LOSS_SPIKE}
)


class FaultError(ValueError):
    """An invalid fault; the message is one line and names the mistake."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    id: str
    """Names the marker: letters, digits and `._:@-`."""
    kind: FaultKind
    rank: str
    """The rank it hits, such as `rg_1.0`."""
    step: int | None = None
    """First step at which it fires; None = at the next step."""
    factor: float = 5.0
    """Of the slow kinds and `loss_spike`."""
    variant: Variant | None = None
    """None: the first of its kind."""
    phase: str = FIRST_PHASE
    """When it strikes: as this phase begins; slowness and mismatches have no choice."""
    seconds: float = 2.0
    """Of `pause`."""

    @property
    def how(self) -> Variant | None:
        """The variant in effect; None for a kind without variants."""
        return self.variant or next(iter(VARIANTS.get(self.kind, ())), None)

    def __post_init__(self) -> None:
        split_rank_name(self.rank)
        for right, wrong in (
            (re.fullmatch(r"\w[\w.:@-]*", self.id),
             "id: use letters, digits and ._:@-, a letter or digit first"),
            (self.step is None or self.step >= 0, f"step {self.step} is below 0"),
            (1 < self.factor < 1e6, f"factor {self.factor:g} is not above 1"),
            (0 < self.seconds <= 3600, f"seconds {self.seconds:g} is not in 0 to 3600"),
            (self.phase in PHASES, f"unknown phase {self.phase!r} (known: {', '.join(PHASES)})"),
            (self.phase == FIRST_PHASE or self.kind in _EVERY_PHASE, f"{self.kind} takes no phase"),
        ):  # fmt: skip
            if not right:
                raise FaultError(wrong)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker(PlannedFault):
    """The record on disk of a fault that fired, at `step`."""

    host: str
    time: float
    """Unix seconds, just before the fault acted."""
    refused: str | None = None
    """Why the fault did not act; None when it did."""


# -- from JSON to faults and back, and the files --------------------------------------------------


def parse_fault(data: Any) -> PlannedFault:
    """A fault from JSON: `{"id", "kind", "rank", "step": null | N, "factor": 5.0, ...}`.

    The keys are those of `PlannedFault`. `kind` may carry its argument, as in `mismatch:size`,
    `slow:5` or `pause:8`: a variant or a number, depending on the kind.

    Raises:
        FaultError: what is wrong, in one line.
    """
    said = dict(data) if isinstance(data, Mapping) else {}
    name, _, argument = str(said.get("kind")).partition(":")
    try:
        if argument:
            said |= {"kind": name, _meaning(name, argument): argument}
        if name not in tuple(FaultKind):
            raise FaultError(f"unknown kind {name!r} (known: {', '.join(FaultKind)})")
        variant, variants = said.get("variant"), VARIANTS.get(FaultKind(name), ())
        if variant not in (None, *variants):
            names = ", ".join(variants) or "none"
            raise FaultError(f"{name} knows no variant {variant!r} (known: {names})")
        return msgspec.convert(said, PlannedFault, strict=False)
    except ValueError as error:  # msgspec's, and ours
        raise FaultError(f"fault {said.get('id')!r}: {error}") from None


def _meaning(kind: str, argument: str) -> str:
    """The fault's key for its kind's argument."""
    if kind in _WITH_FACTOR:
        return "factor"
    if kind == FaultKind.PAUSE and not argument.isalpha():
        return "seconds"
    return "variant"


def inject(path: Path, *faults: PlannedFault) -> None:
    """Write `faults` into the fault file; ranks see them at their next step."""
    _write(path, json.dumps([asdict(fault) for fault in faults]))


def markers(path: Path) -> list[Marker]:
    """What fired so far, oldest first; `path` is the fault file."""
    files = fired(path).glob("[!.]*")
    decoded = [msgspec.json.decode(file.read_bytes(), type=Marker) for file in files]
    return sorted(decoded, key=lambda marker: (marker.time, marker.id))


def mark(path: Path, marker: Marker) -> None:
    """Record that a fault fires; `path` is the fault file."""
    _write(fired(path) / marker.id, json.dumps(asdict(marker)))


def fired(path: Path) -> Path:
    """The folder of the markers."""
    return path.with_name(path.name + ".fired")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{os.getpid()}")
    half.write_text(text + "\n")
    half.replace(path)
