"""The bundle of one incident: whose evidence is in it, the zip, and the folder of all bundles.

First, which ranks to ask: all of the suspects' groups, then the victims that show most. Second, the
folder: file names, atomic writes, how long bundles are kept. Third, the zip: a manifest, and a
folder for each moment, with a folder for each rank in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import quote

from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.incident import BundleView, Incident
from lightkeeper.monitor.model.names import GroupName, IncidentId, RankName, one_line
from lightkeeper.monitor.model.observation import Observation
from lightkeeper.monitor.model.units import grouped
from lightkeeper.monitor.model.verdict import Kind
from lightkeeper.monitor.records.files import FORMAT, NAME, RECORD, SCHEMA
from lightkeeper.worker_server.wire import (
    PATH_FLIGHT_RECORDER,
    PATH_LAST_WORDS,
    PATH_MACHINE,
    PATH_NETWORK,
    PATH_STACKS,
    PATH_STATE,
    PATH_STEPS,
    Identity,
    parse_identity,
)

NAMED: Final = 100
"""At most this many omitted ranks are named; the others are only counted."""

PEERS: Final = 4
"""How many of a straggler's victims are asked: enough for a median."""


@dataclass(frozen=True, slots=True)
class CaptureTargets:
    """Ranks to ask, most important first, and those that did not fit."""

    asked: tuple[Observation, ...]
    left_out: tuple[RankName, ...] = ()


def concerned(
    incident: Incident | None, groups: Iterable[GroupName], seen: Sequence[Observation], limit: int
) -> CaptureTargets:
    """Choose at most `limit` ranks: suspects, their groups, ranks in the evidence, victims.

    A straggler's victims still work: a few show the pace, and py-spy need not stop the others. Each
    group gives one victim before any gives a second: ranks that wait look alike within a group, but
    not across groups.
    """
    by_rank = {observation.rank: observation for observation in seen}
    concerns = {*groups, *(() if incident is None else incident.groups)}
    ranks = [rank for rank, state in by_rank.items() if state.identity.group in concerns]
    if incident is not None:
        verdict = incident.verdict
        shown = [RankName(name) for name in sorted(verdict.evidence) if name in by_rank]
        victims = _in_turn(by_rank[name] for name in verdict.victims if name in by_rank)
        victims = victims[:PEERS] if incident.kind is Kind.STRAGGLER else victims
        ranks = [*incident.suspects, *ranks, *shown, *victims]
    ordered = list(dict.fromkeys(ranks))
    present = [rank for rank in ordered if rank in by_rank]
    absent = [rank for rank in ordered if rank not in by_rank]
    asked = tuple(by_rank[rank] for rank in present[:limit])
    return CaptureTargets(asked, (*absent, *present[limit:]))


def _in_turn(seen: Iterable[Observation]) -> list[RankName]:
    """Ranks of several groups: the first of each, then the second of each."""
    groups = grouped((each.identity.group, each.rank) for each in seen)
    rounds = zip_longest(*(groups[name] for name in sorted(groups)))
    return [rank for turn in rounds for rank in turn if rank is not None]


_END: Final = ".zip"
_TEMPORARY: Final = ".part"
_MIB: Final = 1024 * 1024
_DAY_S: Final = 86_400.0
_NAME_MAX: Final = 150
"""A file name has 255 bytes: this leaves room for the suffix, and for programs that copy it."""


def safe_name(text: str) -> str:
    """A file name for any text: unique, without a folder, never hidden, never too long."""
    plain = quote(text, safe="", errors="surrogatepass").replace("~", "%7E")  # marks a digest
    plain = f"%{plain}" if plain.startswith(".") or not plain else plain
    if len(plain) <= _NAME_MAX:
        return plain
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:20]
    return f"{plain[: _NAME_MAX - 21]}~{digest}"


def open_new(path: Path) -> IO[bytes]:
    """Create a file that only its owner may read: stacks and last words may hold secrets."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "w+b")


class BundleDir:
    """The bundles on disk. Safe to use from any thread; disk errors are the caller's `OSError`."""

    def __init__(self, folder: Path, config: KeeperConfig) -> None:
        self.folder = folder
        self._config = config
        self._opener: Callable[[Path], IO[bytes]] = open_new
        self._files: dict[str, BundleView] = {}
        self._changed = threading.Lock()

    def open(self) -> None:
        """Make the folder and find what is in it.

        Raises:
            OSError: it cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        files = {}
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith(_TEMPORARY):
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)
                elif entry.name.endswith(_END) and entry.is_file(follow_symlinks=False):
                    stat = entry.stat(follow_symlinks=False)
                    files[entry.name] = BundleView(stat.st_size, stat.st_mtime)
        with self._changed:
            self._files = files

    def view(self, incident_id: IncidentId) -> BundleView | None:
        """The bundle of an incident; reads no disk."""
        return self._files.get(safe_name(incident_id) + _END)

    def path(self, incident_id: IncidentId) -> Path | None:
        """The path of an incident's bundle, always in this folder; None if there is none."""
        name = safe_name(incident_id) + _END
        return self.folder / name if name in self._files else None

    @property
    def nbytes(self) -> int:
        with self._changed:
            return sum(file.nbytes for file in self._files.values())

    def write(self, incident_id: IncidentId, fill: Callable[[IO[bytes]], None]) -> int:
        """Replace an incident's bundle by what `fill` writes; returns its size.

        Raises:
            OSError: it cannot be written; the former bundle is kept.
        """
        name = safe_name(incident_id) + _END
        part_file = self.folder / (name + _TEMPORARY)
        try:
            with self._opener(part_file) as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part_file, self.folder / name)
        except BaseException:
            with contextlib.suppress(OSError):
                part_file.unlink(missing_ok=True)
            raise
        stat = (self.folder / name).stat()
        with self._changed:
            self._files[name] = BundleView(stat.st_size, stat.st_mtime)
        return stat.st_size

    def tidy(self, now_s: float) -> None:
        """Delete bundles over the limits of age, count or size; the newest only for its age.

        Raises:
            OSError: one of them cannot be removed.
        """
        with self._changed:
            files = dict(self._files)
        config, count, nbytes, expired = self._config, 0, 0, []
        most, most_s = config.evidence_total_mib * _MIB, config.evidence_days * _DAY_S
        for name, file in sorted(files.items(), key=lambda item: (-item[1].written_s, item[0])):
            fits = count < config.evidence_count and nbytes + file.nbytes <= most
            young = now_s - file.written_s <= most_s
            if young and (fits or not count):
                count, nbytes = count + 1, nbytes + file.nbytes
            else:
                expired.append(name)
        for name in expired:
            (self.folder / name).unlink(missing_ok=True)
            with self._changed:
                self._files.pop(name, None)


# What a rank is asked for, and what its answers are worth.


class PartStatus(StrEnum):
    OK = "ok"
    CUT = "cut"  # the whole answer was too large; a smaller one is there
    LATE = "late"  # no full answer within the deadline
    UNREACHABLE = "unreachable"  # no answer
    REFUSED = "refused"  # answered with a status other than 200
    GARBAGE = "garbage"  # answered something that is not its schema
    STRANGER = "stranger"  # another incarnation answers: no evidence of this fault
    TOO_LARGE = "too_large"  # over the size of a part, or the bundle was full


@dataclass(frozen=True, slots=True)
class BundleKind:
    name: str
    path: str
    file: str
    max_bytes: int
    json: bool = True
    smaller: str = ""
    """Query for a smaller answer if the whole one is too large."""


KINDS: Final = (
    BundleKind("state", PATH_STATE, "state.json", _MIB // 16),
    # 2,000 entries of torch's record with stacks take about 2 MiB
    BundleKind(RECORD, PATH_FLIGHT_RECORDER, "flight_recorder.json", 8 * _MIB, smaller="?active=1"),
    BundleKind("stacks", PATH_STACKS, "stacks.txt", _MIB, json=False),
    BundleKind("last_words", PATH_LAST_WORDS, "last_words.json", _MIB),
    BundleKind("steps", PATH_STEPS, "steps.json", 2 * _MIB),
    BundleKind("network", PATH_NETWORK, "network.json", _MIB),
    BundleKind("machine", PATH_MACHINE, "machine.json", _MIB // 8),
)


@dataclass(frozen=True, slots=True)
class Part:
    """One answer, or why there is none."""

    rank: RankName
    kind: BundleKind
    status: PartStatus
    body: bytes | None = None
    taken_s: float | None = None
    """When the last byte came: Unix time, monitor's clock."""
    seconds: float | None = None
    """From asking to the last byte."""
    age_s: float | None = None
    """How much older than `taken_s` the content is, where the WorkerServer says so."""
    error: str | None = None


def weigh(part: Part, identity: Identity) -> Part:
    """Judge an answer with HTTP status 200: what this rank did not say has no body any more."""
    if part.body is None or not part.kind.json:
        return part
    try:
        data = json.loads(part.body)
        answering = parse_identity(data["identity"])
    except (KeyError, TypeError):
        error = f"no identity: {_excerpt(part.body)}"
        return replace(part, status=PartStatus.GARBAGE, body=None, error=error)
    except (ValueError, RecursionError) as exc:  # WireError is a ValueError
        error = f"{one_line(exc, 160)}: {_excerpt(part.body)}"
        return replace(part, status=PartStatus.GARBAGE, body=None, error=error)
    if (answering.rank, answering.incarnation) != (identity.rank, identity.incarnation):
        error = f"{answering.rank} pid {answering.pid} ({answering.incarnation})"[:200]
        return replace(part, status=PartStatus.STRANGER, body=None, error=error)
    age_s = _age_s(part.kind, data)
    return part if age_s is None else replace(part, age_s=age_s)


def _age_s(kind: BundleKind, data: Mapping[str, Any]) -> float | None:
    """Age of what the black box kept: since the rank died, or since torch's record was read."""
    process = data.get("process")
    age_s = data.get("torch_age_s") if kind.name == RECORD else None
    if isinstance(process, dict):
        age_s = process.get("dead_age_s")
    if not isinstance(age_s, int | float) or isinstance(age_s, bool):
        return None
    return float(age_s) if 0 <= age_s < 1e9 else None


def _excerpt(body: bytes) -> str:
    return repr(body[:80].decode(errors="replace"))


class MomentName(StrEnum):
    """When the ranks were asked, oldest first."""

    FIRING = "firing"  # when the incident began to fire: the first one is kept
    EVICTION = "eviction"  # right before an eviction: the latest one is kept


@dataclass(frozen=True, slots=True)
class Moment:
    name: MomentName
    began_s: float
    ended_s: float
    whom: CaptureTargets
    parts: Sequence[Part]


def fill(
    file: IO[bytes], manifest: Mapping[str, Any], moments: Sequence[Moment], before: Path | None
) -> None:
    """Write the zip: these moments, and the other moments of the former bundle. `manifest` holds
    what the manifest says besides moments.
    """
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bundle:
        rows: list[dict[str, Any]] = []
        problems: list[str] = []
        eviction = manifest["eviction"]
        if before is not None:
            old, problem = _carry_over(before, bundle, {moment.name for moment in moments})
            rows += [row for row in old.get("moments", []) if isinstance(row, dict)]
            eviction = eviction or old.get("eviction")
            problems += [] if problem is None else [problem]
        rows += [_write(bundle, moment) for moment in moments]
        rows.sort(key=lambda row: row.get("began_s", 0.0))
        whole = {
            "format": FORMAT, "schema": SCHEMA, **manifest, "eviction": eviction, "moments": rows,
            "problems": problems,
        }  # fmt: skip
        _member(bundle, NAME, json.dumps(whole, indent=1).encode(), manifest["written_s"])


def _carry_over(
    before: Path, bundle: zipfile.ZipFile, replaced: set[MomentName]
) -> tuple[dict[str, Any], str | None]:
    """Copy the moments of the former bundle that stay; returns its manifest and any problem."""
    try:
        with zipfile.ZipFile(before) as old:
            manifest: Any = json.loads(old.read(NAME))
            rows = [row for row in manifest["moments"] if row["moment"] not in replaced]
            for row in rows:
                for name in filter(None, (part["file"] for part in row["parts"])):
                    bundle.writestr(old.getinfo(name), old.read(name), zipfile.ZIP_DEFLATED)
            return {**manifest, "moments": rows}, None
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, RecursionError,
            NotImplementedError, RuntimeError, zipfile.BadZipFile) as exc:  # fmt: skip
        return {}, f"the earlier bundle was damaged and is left out: {type(exc).__name__}: {exc}"


def _write(bundle: zipfile.ZipFile, moment: Moment) -> dict[str, Any]:
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
        "ranks": [observation.rank for observation in moment.whom.asked],
        "left_out": len(left_out),
        "left_out_ranks": list(left_out[:NAMED]),
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
    at = time.gmtime(max(at_s, 315_532_800.0))  # UTC: a zip has no time zone, no year before 1980
    info = zipfile.ZipInfo(name, at[:6])
    info.external_attr = 0o600 << 16
    bundle.writestr(info, body, zipfile.ZIP_DEFLATED)
