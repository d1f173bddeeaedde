"""Faults on purpose: break one rank at one step, once, in a way that is known beforehand.

Two sources say what to break: the environment, `LIGHTKEEPER_FAULT="hang@rg_1.0:30"`, and a
JSON file that every rank looks at once per step (one `stat`). `inject` writes that file.

A fault fires once in the life of a job, whatever restarts: before it acts, a marker
`FILE.fired/ID` is put on disk. Slowness and `nan` are properties of a host: a rank of the same
number that starts later on the host named in the marker has them from its first step, one on
another host has not. To forget everything, remove `FILE.fired`.

Here is what can be broken, and the files; `injector` is what breaks it, inside the rank.
Standard library only, so that a launcher can check and inject without importing torch.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from worker_server.wire import WireError, split_rank_name

ENVIRONMENT: Final = "LIGHTKEEPER_FAULT"
DEFAULT_FACTOR: Final = 5.0
DEFAULT_SECONDS: Final = 2.0
FIRST_PHASE: Final = "data"
PHASES: Final = (FIRST_PHASE, "forward", "backward", "communication", "optimizer")
"""Where a fault may strike: at the beginning of that phase, outside any collective."""


class Kind(StrEnum):
    """What can be broken."""

    HANG = "hang"
    """Python sleeps (or loops) for ever outside any collective; other threads go on."""
    GIL = "gil"
    """A C call holds the GIL for ever: no Python thread of the process runs again."""
    STOP = "stop"
    """SIGSTOP: nothing of the process runs, its heartbeats end too."""
    CRASH = "crash"
    """SIGKILL: gone without a word."""
    SEGFAULT = "segfault"
    """Reads address 0 in C."""
    ABORT = "abort"
    """abort(), as C++ libraries do when they give up."""
    RAISE = "raise"
    """An exception that nobody catches."""
    SLOW = "slow"
    """From now on the rank's own work takes `factor` times as long."""
    SLOW_DATA = "slow-data"
    """The same, lost while it loads data."""
    SLOW_LINK = "slow-link"
    """From now on it sends with 1/`factor` of the rate that moves the gradients in one step."""
    MISMATCH = "mismatch"
    """One collective inside the group differs from what the other ranks call."""
    NAN = "nan"
    """From now on the rank's gradient holds a NaN before anybody else sees it."""
    CORRUPT = "corrupt"
    """One bit of one weight flips after a commit, and nobody is told."""
    LOSS_SPIKE = "loss_spike"
    """The loss that the rank reports is `factor` times as high for a while; its gradient is not."""
    PAUSE = "pause"
    """Stands still for `seconds`, then goes on: no fault, and nobody may be accused of it."""


class Variant(StrEnum):
    """How a fault of a kind differs from others of its kind."""

    SLEEP = "sleep"
    BUSY = "busy"
    """Python loops instead of sleeping."""

    OP = "op"
    """all_gather where the others call all_reduce."""
    SIZE = "size"
    """all_reduce of half the elements."""
    DTYPE = "dtype"
    """all_reduce of the same bytes, taken for integers: gloo does not notice."""
    ROOT = "root"
    """broadcast from another rank than the others expect."""
    ORDER = "order"
    """Two collectives on two process groups, the other way round."""
    EXTRA = "extra"
    """The same collective once more than the others."""
    SKIP = "skip"
    """Leaves a collective out."""
    RECEIVE = "receive"
    """Waits for a message that nobody sends."""

    DECLARED = "declared"
    """Sleeps in phase `compile`."""
    GIL = "gil"
    """A C call holds the GIL meanwhile."""
    GC = "gc"
    """Collects garbage all the time, which holds the GIL too."""


_V = Variant
VARIANTS: Final[Mapping[Kind, tuple[Variant, ...]]] = MappingProxyType(
    {
        Kind.HANG: (_V.SLEEP, _V.BUSY),
        Kind.MISMATCH: (
            _V.OP, _V.SIZE, _V.DTYPE, _V.ROOT, _V.ORDER, _V.EXTRA, _V.SKIP, _V.RECEIVE,
        ),
        Kind.PAUSE: (_V.SLEEP, _V.DECLARED, _V.BUSY, _V.GIL, _V.GC),
    }
)  # fmt: skip
"""Variants of a kind; the first is meant where none is said."""
SLOW_KINDS: Final = frozenset({Kind.SLOW, Kind.SLOW_DATA, Kind.SLOW_LINK})
LASTING: Final = SLOW_KINDS | {Kind.NAN}
"""Properties of a host: what starts there later has them too."""
SPIKE_STEPS: Final = 60
"""How long a loss spike lasts: several polls at 1 Hz and 0.2 s a step."""
_WITH_FACTOR: Final = SLOW_KINDS | {Kind.LOSS_SPIKE}
_EVERY_PHASE: Final = frozenset(Kind) - LASTING - {Kind.MISMATCH, Kind.CORRUPT, Kind.LOSS_SPIKE}


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
    """Of the slow kinds and `loss_spike`."""
    variant: Variant | None = None
    """None: the first of its kind."""
    phase: str = FIRST_PHASE
    """At whose beginning it strikes; slowness and mismatches have no choice."""
    seconds: float = DEFAULT_SECONDS
    """Of `pause`."""

    @property
    def how(self) -> Variant | None:
        """The variant that is meant; None for a kind that has none."""
        return self.variant or next(iter(VARIANTS.get(self.kind, ())), None)

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
        if not 0 < self.seconds <= 3600:
            raise FaultError(f"fault {self.id!r}: seconds {self.seconds:g} is not in 0 to 3600")
        if self.phase not in PHASES:
            raise FaultError(
                f"fault {self.id!r}: unknown phase {self.phase!r} (known: {', '.join(PHASES)})"
            )
        if self.phase != FIRST_PHASE and self.kind not in _EVERY_PHASE:
            raise FaultError(f"fault {self.id!r}: {self.kind} takes no phase")


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
    phase: str = FIRST_PHASE
    variant: str | None = None


# -- from text and JSON to faults and back --------------------------------------------------

_SPEC: Final = re.compile(
    r"(?P<kind>[^@]+)@(?P<rank>[^:@]+)(?::(?P<step>[^:]+))?(?::(?P<phase>.+))?"
)
_HELP: Final = (
    "expected kind[:arg]@rank[:step[:phase]], such as hang@rg_1.0:30:forward or slow:5@rg_2.0:12"
)


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
    if match["phase"] is not None:
        data["phase"] = match["phase"]
    return parse_fault(data)


def parse_fault(data: Any) -> Fault:
    """A fault from JSON: `{"id", "kind", "rank", "step": null | N, "factor": 5.0, ...}`.

    The keys are those of `Fault`. `kind` may carry its argument, as in `mismatch:size`,
    `slow:5` or `pause:8`: a variant or a number, whichever the kind has.

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
    if name not in tuple(Kind):
        raise FaultError(f"fault {data['id']!r}: unknown kind {name!r} (known: {', '.join(Kind)})")
    kind = Kind(name)
    if written and kind not in VARIANTS and kind not in _WITH_FACTOR:
        raise FaultError(f"fault {data['id']!r}: {name!r} takes no argument")
    step = data.get("step")
    if step is not None and (type(step) is not int):
        raise FaultError(f"fault {data['id']!r}: step {step!r} is not a whole number")
    phase = data.get("phase", FIRST_PHASE)
    if not isinstance(phase, str):
        raise FaultError(f"fault {data['id']!r}: phase {phase!r} is not a text")
    told = dict(data)
    if written:
        told[_argument(kind, written)] = written
    return Fault(
        id=data["id"],
        kind=kind,
        rank=data["rank"],
        step=step,
        factor=_number(told, "factor", DEFAULT_FACTOR) if kind in _WITH_FACTOR else DEFAULT_FACTOR,
        variant=_variant(told, kind),
        phase=phase,
        seconds=_number(told, "seconds", DEFAULT_SECONDS),
    )


def _argument(kind: Kind, written: str) -> str:
    """What a kind's argument means."""
    if kind in _WITH_FACTOR:
        return "factor"
    is_number = kind is Kind.PAUSE and not written.isalpha()
    return "seconds" if is_number else "variant"


def _number(data: Mapping[str, Any], key: str, default: float) -> float:
    value = data.get(key, default)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise FaultError(f"fault {data['id']!r}: {key} {value!r} is not a number") from None


def _variant(data: Mapping[str, Any], kind: Kind) -> Variant | None:
    known, value = VARIANTS.get(kind, ()), data.get("variant")
    if not known or value is None:
        return None
    if value not in known:
        raise FaultError(
            f"fault {data['id']!r}: unknown {kind} {value!r} (known: {', '.join(known)})"
        )
    return Variant(value)


def inject(path: Path, *faults: Fault) -> None:
    """Put `faults` into the fault file; the ranks see them at their next step."""
    _write(path, json.dumps([asdict(fault) for fault in faults]))


def markers(path: Path) -> list[Marker]:
    """What fired so far, oldest first; `path` is the fault file."""
    found = [_read_marker(marker) for marker in fired(path).glob("[!.]*")]
    return sorted(found, key=lambda marker: (marker.time, marker.id))


def mark(path: Path, marker: Marker) -> None:
    """Note that a fault fires; `path` is the fault file."""
    _write(fired(path) / marker.id, json.dumps(asdict(marker)))


def fired(path: Path) -> Path:
    """The folder of the markers."""
    return path.with_name(path.name + ".fired")


def _read_marker(path: Path) -> Marker:
    data = json.loads(path.read_text())
    return Marker(**{**data, "kind": Kind(data["kind"])})


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{os.getpid()}")
    half.write_text(text + "\n")
    half.replace(path)
