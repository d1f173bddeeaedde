"""The zip of one incident: a manifest, and a folder for each moment with one for each rank."""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, Final

from monitor.dumps.manifest import FORMAT, NAME, SCHEMA
from monitor.evidence.parts import Part
from monitor.evidence.shelf import safe_name
from monitor.evidence.whom import NAMED, Whom

_LEVEL: Final = 6


class MomentName(StrEnum):
    """When everybody was asked, oldest first."""

    JUDGED = "judged"  # nobody was asked: the records that the detectors had
    FIRING = "firing"  # when the incident began to fire: the first one is kept
    EVICTION = "eviction"  # right before an eviction: the latest one is kept


@dataclass(frozen=True, slots=True)
class Moment:
    """What came of one asking."""

    name: MomentName
    began_s: float
    ended_s: float
    whom: Whom
    parts: Sequence[Part]
    fleet: bytes | None = None
    fleet_told: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Content:
    """All that a bundle says beside its moments."""

    id: str
    incident: Mapping[str, Any] | None
    eviction: Mapping[str, Any] | None
    version: str
    written_s: float


def filler(
    content: Content, moments: Sequence[Moment], before: Path | None
) -> Callable[[IO[bytes]], None]:
    """What writes the zip: these moments, and those of the former bundle that stay."""

    def fill(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as bundle:
            told: list[dict[str, Any]] = []
            problems: list[str] = []
            eviction = content.eviction
            if before is not None:
                old, problem = _carry_over(before, bundle, {one.name for one in moments})
                told += [one for one in old.get("moments", []) if isinstance(one, dict)]
                eviction = eviction or old.get("eviction")
                problems += [] if problem is None else [problem]
            told += [_write(bundle, one) for one in moments]
            told.sort(key=lambda one: one.get("began_s", 0.0))
            manifest = {
                "format": FORMAT,
                "schema": SCHEMA,
                "written_by": f"lightkeeper {content.version}",
                "written_s": content.written_s,
                "id": content.id,
                "incident": content.incident,
                "eviction": eviction,
                "moments": told,
                "problems": problems,
            }
            _member(bundle, NAME, _dump(manifest), content.written_s)

    return fill


def _carry_over(
    before: Path, bundle: zipfile.ZipFile, replaced: set[MomentName]
) -> tuple[dict[str, Any], str | None]:
    """Copy what stays of the former bundle; its manifest, and what was wrong with it."""
    try:
        with zipfile.ZipFile(before) as old:
            manifest: Any = json.loads(old.read(NAME))
            kept = [one for one in manifest["moments"] if one["moment"] not in replaced]
            for one in kept:
                files = [part["file"] for part in one["parts"]] + [one["fleet"].get("file")]
                for name in filter(None, files):
                    bundle.writestr(old.getinfo(name), old.read(name), zipfile.ZIP_DEFLATED)
            return {**manifest, "moments": kept}, None
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, RecursionError,
            NotImplementedError, RuntimeError, zipfile.BadZipFile) as exc:  # fmt: skip
        return {}, f"the earlier bundle was damaged and is left out: {type(exc).__name__}: {exc}"


def _write(bundle: zipfile.ZipFile, moment: Moment) -> dict[str, Any]:
    """One moment's files; what the manifest says of it."""
    fleet: dict[str, Any] = {**moment.fleet_told, "file": None}
    if moment.fleet is not None:
        fleet["file"] = f"{moment.name}/fleet.json"
        _member(bundle, fleet["file"], moment.fleet, moment.ended_s)
    parts = []
    for part in moment.parts:
        file = None
        if part.body is not None:
            file = f"{moment.name}/{safe_name(part.rank)}/{part.kind.file}"
            _member(bundle, file, part.body, part.taken_s or moment.ended_s)
        parts.append(_part(part, file))
    left_out = moment.whom.left_out
    return {
        "moment": str(moment.name),
        "began_s": moment.began_s,
        "ended_s": moment.ended_s,
        "ranks": [one.rank for one in moment.whom.asked],
        "left_out": len(left_out),
        "left_out_ranks": list(left_out[:NAMED]),
        "fleet": fleet,
        "parts": parts,
    }


def _part(part: Part, file: str | None) -> dict[str, Any]:
    return {
        "rank": part.rank,
        "part": part.kind.name,
        "status": str(part.status),
        "file": file,
        "bytes": None if part.body is None else len(part.body),
        "taken_s": part.taken_s,
        "seconds": None if part.seconds is None else round(part.seconds, 4),
        "age_s": part.age_s,
        "error": part.error,
    }


def _member(bundle: zipfile.ZipFile, name: str, body: bytes, at_s: float) -> None:
    info = zipfile.ZipInfo(name, _zip_date(at_s))
    info.external_attr = 0o600 << 16
    bundle.writestr(info, body, zipfile.ZIP_DEFLATED)


def _zip_date(at_s: float) -> tuple[int, int, int, int, int, int]:
    """UTC; a zip knows no zone and no year before 1980."""
    at = time.gmtime(max(at_s, 315_532_800.0))
    return (at.tm_year, at.tm_mon, at.tm_mday, at.tm_hour, at.tm_min, at.tm_sec)


def _dump(body: Any) -> bytes:
    return json.dumps(body, indent=1).encode()
