"""Injected faults: break one rank at one step, once, in a known way.

A JSON file says what to break; every rank checks it once per step (one `stat`):

    echo '{"id": "one", "kind": "hang", "rank": "rg_1.0", "step": 30}' > faults.json

A fault fires once in the life of a job, whatever restarts: before it acts, a marker
`FILE.fired/ID` is written to disk. `slow` and `nan` are properties of a host: a rank of the same
number that starts later on the host named in the marker has them from its first step; one on
another host does not. To reset everything, remove `FILE.fired`.

A kind of your own is a Python function, `package.module:function`; it is called inside the rank
with the trainer's `Rank` and the fault.

This module has the faults and the files; `injector` breaks things, inside the rank. No torch here:
a launcher checks and injects without it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from lightkeeper.worker_server.wire import split_rank_name

FIRST_PHASE: Final = "data"
PHASES: Final = (FIRST_PHASE, "forward", "backward", "communication", "optimizer")
"""Where a fault may strike: when that phase begins, outside any collective."""

KINDS: Final[Mapping[str, str]] = {
    "hang": "a rank sleeps outside any collective, forever",
    "gil": "a rank holds the interpreter lock in C, forever",
    "stop": "a rank is stopped (SIGSTOP)",
    "crash": "a rank is killed (SIGKILL)",
    "slow": "a rank is several times slower from then on (found after a minute)",
    "mismatch": "a rank calls another collective than its peers (2 ranks a group)",
    "nan": "a rank's gradient holds NaN from then on",
    "corrupt": "a bit of a rank's weights flips silently",
    "mismatch:size": "a rank brings another size than its peers: gloo aborts (2 ranks a group)",
}
LASTING: Final = frozenset({"slow", "nan"})
"""Properties of a host: ranks that start there later have them."""


class FaultError(ValueError):
    """An invalid fault, or one that this rank cannot have; the message is one line."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    id: str
    """Names the marker: letters, digits and `._:@-`."""
    kind: str
    """One of `KINDS`, or `package.module:function`."""
    rank: str
    """The rank it hits, such as `rg_1.0`."""
    step: int | None = None
    """First step at which it fires; None = at the next step."""
    factor: float = 5.0
    """For `slow`; a kind of your own may take it for what it likes."""
    phase: str = FIRST_PHASE
    """When it strikes: as this phase begins."""

    def __post_init__(self) -> None:
        split_rank_name(self.rank)
        for right, wrong in (
            (re.fullmatch(r"\w[\w.:@-]*", self.id),
             "id: use letters, digits and ._:@-, a letter or digit first"),
            (self.kind in KINDS or re.fullmatch(r"[\w.]+\.\w+:\w+", self.kind),
             f"unknown kind {self.kind!r} (known: {', '.join(KINDS)})"),
            (self.step is None or self.step >= 0, f"step {self.step} is below 0"),
            (1 < self.factor < 1e6, f"factor {self.factor:g} is not above 1"),
            (self.phase in PHASES, f"unknown phase {self.phase!r} (known: {', '.join(PHASES)})"),
        ):  # fmt: skip
            if not right:
                raise FaultError(wrong)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker(PlannedFault):
    """The record on disk of a fault that fired, at `step`."""

    host: str
    time: float
    """Unix seconds, just before the fault acted."""


# -- from JSON to faults and back, and the files --------------------------------------------------


def parse_fault(data: Any) -> PlannedFault:
    """A fault from JSON; the keys are those of `PlannedFault`.

    Raises:
        FaultError: what is wrong, in one line.
    """
    try:
        if unknown := set(data) - set(PlannedFault.__match_args__):
            raise FaultError(f"unknown keys: {', '.join(map(str, sorted(unknown)))}")
        return msgspec.convert(data, PlannedFault)
    except (TypeError, ValueError) as error:  # msgspec's, and ours
        name = data.get("id") if isinstance(data, Mapping) else None
        raise FaultError(f"fault {name!r}: {error}") from None


def inject(path: Path, *faults: PlannedFault) -> None:
    """Write `faults` into the fault file; ranks see them at their next step."""
    _write(path, json.dumps([asdict(fault) for fault in faults]))


def markers(path: Path) -> list[Marker]:
    """What fired so far, oldest first; `path` is the fault file."""
    files = marker_folder(path).glob("[!.]*")
    decoded = [msgspec.json.decode(file.read_bytes(), type=Marker) for file in files]
    return sorted(decoded, key=lambda marker: (marker.time, marker.id))


def write_marker(path: Path, marker: Marker) -> None:
    """Record that a fault fires; `path` is the fault file."""
    _write(marker_folder(path) / marker.id, json.dumps(asdict(marker)))


def marker_folder(path: Path) -> Path:
    return path.with_name(path.name + ".fired")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{os.getpid()}")
    half.write_text(text + "\n")
    half.replace(path)
