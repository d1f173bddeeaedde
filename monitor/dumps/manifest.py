"""The manifest of an evidence bundle: what stands in it, and how the loader reads it.

The monitor writes it (`monitor.evidence`), `lightkeeper analyze` reads it, maybe years later and
from a file that somebody edited: whatever cannot be read is left out, nothing raises.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from monitor.names import RankName

NAME: Final = "manifest.json"
FORMAT: Final = "lightkeeper-evidence"
SCHEMA: Final = 1
RECORD: Final = "flight_recorder"
"""The part that the analysis reads."""
MAX_BYTES: Final = 16 << 20
"""160 parts of each moment take about 60 KiB."""


@dataclass(frozen=True, slots=True)
class Part:
    """One answer of one rank's WorkerServer, or why there is none."""

    rank: RankName
    part: str
    file: str | None
    """Member of the zip; None when nothing usable came."""
    status: str
    taken_ns: int | None = None
    """When it was answered, Unix time by the monitor's clock."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """One time at which everybody concerned was asked."""

    name: str
    began_s: float
    parts: tuple[Part, ...] = ()

    @property
    def records(self) -> tuple[Part, ...]:
        """The flight records that are there."""
        return tuple(one for one in self.parts if one.part == RECORD and one.file is not None)

    @property
    def lost(self) -> tuple[Part, ...]:
        """The flight records that are not."""
        return tuple(one for one in self.parts if one.part == RECORD and one.file is None)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a bundle says of itself."""

    id: str
    moments: tuple[Moment, ...] = ()
    incident: Mapping[str, Any] = field(default_factory=dict)
    """As `monitor.incident.incident_to_json` wrote it; empty for an eviction by hand."""

    @property
    def latest_s(self) -> float:
        """When somebody was last asked."""
        return max((one.began_s for one in self.moments), default=0.0)

    def chosen(self) -> Moment | None:
        """The moment whose flight records speak: with the most of them, of equals the latest.

        Records of two moments are never mixed: a rank that was asked earlier than its peers
        would seem to be behind them.
        """
        known = [one for one in self.moments if one.records]
        return max(known, key=lambda one: (len(one.records), one.began_s), default=None)


def read_manifest(file: str) -> Manifest | None:
    """The manifest of this zip; None when it is no evidence bundle."""
    try:
        with zipfile.ZipFile(file) as bundle, bundle.open(NAME) as member:
            return parse(json.loads(member.read(MAX_BYTES)))
    except (OSError, KeyError, ValueError, EOFError, RecursionError, RuntimeError,
            NotImplementedError, zipfile.BadZipFile):  # fmt: skip
        return None


def parse(data: Any) -> Manifest | None:
    """The manifest in this JSON; None when it is none of ours."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        return None
    incident = data.get("incident")
    return Manifest(
        id=str(data.get("id", ""))[:500],
        moments=tuple(_moment(one) for one in _objects(data.get("moments"))),
        incident=incident if isinstance(incident, dict) else {},
    )


def _moment(data: Mapping[str, Any]) -> Moment:
    began_s = _number(data.get("began_s"))
    return Moment(
        name=str(data.get("moment", ""))[:100],
        began_s=0.0 if began_s is None else began_s,
        parts=tuple(_part(one) for one in _objects(data.get("parts"))),
    )


def _part(data: Mapping[str, Any]) -> Part:
    file, error, taken_s = data.get("file"), data.get("error"), _number(data.get("taken_s"))
    return Part(
        rank=RankName(str(data.get("rank", ""))),
        part=str(data.get("part", "")),
        file=file if isinstance(file, str) else None,
        status=str(data.get("status", "")),
        taken_ns=None if taken_s is None else int(taken_s * 1e9),
        error=error if isinstance(error, str) else None,
    )


def _objects(value: Any) -> Sequence[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _number(value: Any) -> float | None:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain and math.isfinite(value) and 0 <= value < 1e10 else None
