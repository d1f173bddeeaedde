"""From paths to a job: files are read in parallel processes, and a bad file spoils only itself.

Folders, zips and evidence bundles are searched for records (`find`); if a rank has several, one is
chosen (`of_answers`, `of_dumps`). The monitor writes an evidence bundle's manifest
(`act.bundles`), and it may be read here years later: keys may have been added, nothing raises.
"""

from __future__ import annotations

import contextlib
import gc
import json
import lzma
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec

from lightkeeper.monitor.model.names import RankName, split_rank_name
from lightkeeper.monitor.model.plain import from_plain, readable
from lightkeeper.monitor.records import ring
from lightkeeper.monitor.records.dump import (
    Dump,
    Record,
    assemble,
    decode,
    of_one_run,
    read_dump,
    with_generation,
)
from lightkeeper.monitor.records.job import COPIED_NS, MOMENTS, NONE, Job, Problem, RankInfo
from lightkeeper.monitor.records.ring import RankRecord, from_answers
from lightkeeper.monitor.records.safe_pickle import FlightRecordError
from lightkeeper.worker_server.wire import WireError, parse_flight_record

# -- where records are -------------------------------------------------------------------------

MAX_FILE: Final = 128 << 20
MAX_ZIP: Final = 16 << 30
"""Of all members unpacked: a small hostile zip may unpack for days."""
MAX_ALL: Final = 64 << 30
MAX_SOURCES: Final = 1 << 18
"""Files and members of zips: 16,384 ranks have far fewer."""
BROKEN_ZIP: Final = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, NotImplementedError, RuntimeError,
    EOFError, ValueError, OverflowError,
)  # fmt: skip
_ENDS: Final = (".json", ".pickle", ".pkl")
_RANK: Final = re.compile(
    r"(?<!local)(?<!local[_-])rank[_=-]?(?P<named>\d{1,9})(?!\d)|(?<!\d)(?P<last>\d{1,9})$",
    re.IGNORECASE,
)
_OTHER_END: Final = re.compile(r"\.[a-z]\w*$", re.IGNORECASE)
_QUORUM: Final = re.compile(r"_quorum_(\d{1,18})$")
"""TorchFT's folder of one quorum: PREFIX_quorum_ID/RANK (torchft/manager.py, _update_fr_path)."""


@dataclass(frozen=True, slots=True)
class DumpFile:
    """One file, or one member of a zip."""

    path: str
    """For people: `bundle.zip/rank_3` for a member."""
    file: str
    member: str | None = None
    size: int = 0
    named: bool = False
    """True if the user named this file itself: then it must be a record."""
    whose: RankName | None = None
    """The rank according to the evidence bundle's manifest."""
    taken_ns: int | None = None
    """When it was answered, according to the manifest; Unix time."""

    @property
    def rank(self) -> int | None:
        """From the file's name; a WorkerServer's answer contains its rank."""
        return rank_of(self.path.rpartition("/")[2])

    @property
    def quorum(self) -> int | None:
        """From the folder's name."""
        match = _QUORUM.search(self.path.rpartition("/")[0])
        return None if match is None else int(match[1])

    @property
    def prefix(self) -> str:
        """The path up to the rank: the same for all ranks of one job."""
        folder, _, name = self.path.rpartition("/")
        match = _rank_in(_stem(name))
        return f"{folder}/{_stem(name) if match is None else name[: match.start()]}"

    @property
    def rank_name(self) -> RankName | None:
        """The rank's name from the file's: `rg_1.0` for `bundle.zip/rg_1.0.json`."""
        name = self.whose or RankName(_stem(self.path.rpartition("/")[2]))
        try:
            split_rank_name(name)
        except ValueError:
            return None
        return name

    def read(self, bundle: zipfile.ZipFile | None = None) -> bytes:
        """The whole file; `bundle` is the zip that it is a member of.

        Raises:
            FlightRecordError: unreadable or too large.
        """
        try:
            with (
                open(self.file, "rb") if bundle is None else bundle.open(self.member or "") as file
            ):
                data = file.read(MAX_FILE + 1)
        except OSError as exc:
            raise FlightRecordError(exc.strerror or str(exc)) from exc
        except BROKEN_ZIP as exc:
            raise FlightRecordError(f"broken zip: {exc}") from exc
        if len(data) > MAX_FILE:
            raise FlightRecordError(f"more than {MAX_FILE} bytes")
        return data


class TooMuchError(Exception):
    """More than is ever read: judging only a part might accuse the wrong rank."""


def find_records(paths: Sequence[Path]) -> tuple[list[DumpFile], list[Problem]]:
    """All files under `paths` that may be records, sorted, each once; and what cannot be opened.

    In a folder or a zip, files count that end in .json, or whose name without its ending contains
    a rank. A file that the user named always counts.

    Raises:
        TooMuchError: too many files, or too many bytes in all.
    """
    sources: dict[str, DumpFile] = {}
    problems: list[Problem] = []
    for path in paths:
        for file, named in _files(path, problems):
            try:
                for source in _in_file(file, named=named):
                    key = os.path.realpath(source.file) + "\0" + (source.member or "")
                    sources.setdefault(key, source)
                    if len(sources) > MAX_SOURCES:
                        raise TooMuchError(f"more than {MAX_SOURCES:,} files")
            except (OSError, *BROKEN_ZIP) as exc:
                problems.append(_problem(file, exc))
    if sum(source.size for source in sources.values()) > MAX_ALL:
        raise TooMuchError(f"more than {MAX_ALL >> 30} GiB")
    return sorted(sources.values(), key=lambda source: source.path), problems


def _files(path: Path, problems: list[Problem]) -> Iterator[tuple[Path, bool]]:
    """Files under a path, and whether the user named them."""
    if not path.is_dir():
        yield path, True
        return
    unread: list[OSError] = []
    for folder, folders, names in os.walk(path, onerror=unread.append):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if _may_be(name) or name.endswith(".zip"):
                yield Path(folder, name), False
    problems += [_problem(Path(exc.filename or path), exc) for exc in unread]


def _problem(path: Path, exc: Exception) -> Problem:
    reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
    return Problem(str(path), reason)


def _in_file(path: Path, *, named: bool) -> Iterator[DumpFile]:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("neither a file nor a folder")
    if path.suffix == ".zip" or (named and zipfile.is_zipfile(path)):
        with zipfile.ZipFile(path) as bundle:
            members = [
                info
                for info in bundle.infolist()
                if not info.is_dir() and _may_be(info.filename.rpartition("/")[2])
            ]
        if sum(info.file_size for info in members) > MAX_ZIP:
            raise ValueError(f"a zip of more than {MAX_ZIP >> 30} GiB")
        for info in members:
            yield DumpFile(f"{path}/{info.filename}", str(path), info.filename, info.file_size)
    else:
        yield DumpFile(str(path), str(path), size=status.st_size, named=named)


def rank_of(name: str) -> int | None:
    """The rank in a file's name: 3 for `_dump_3`, `dump_rank3_node1.json`, `rank_3.pkl`."""
    match = _rank_in(_stem(name))
    return None if match is None else int(match["named"] or match["last"])


def _rank_in(stem: str) -> re.Match[str] | None:
    """The `rank3` in a name, else the number at its end."""
    matches = list(_RANK.finditer(stem))
    named = next((match for match in matches if match["named"]), None)
    if named is not None and not _OTHER_END.search(stem):
        return named
    return next((match for match in matches if match["last"]), None)


def _stem(name: str) -> str:
    end = next((end for end in _ENDS if name.lower().endswith(end)), "")
    return name[: len(name) - len(end)]


def _may_be(name: str) -> bool:
    if name.startswith("."):
        return False
    return name.lower().endswith(".json") or rank_of(name) is not None


# -- which of them count -----------------------------------------------------------------------

_ONE_IN: Final = 16
"""If fewer than one in this many ranks has a record, the numbers are something else (a pid), and
their gaps mean nothing. Lower: one host's records of a large job say nothing about the others."""


K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Read:
    """The result of reading one file."""

    source: DumpFile
    dump: Dump | None = None
    answer: RankRecord | None = None
    """Of a WorkerServer."""
    problem: str | None = None

    @property
    def newest_ns(self) -> int:
        """When it was taken, as far as is known: a dump's latest time."""
        if self.dump is None:
            return NONE if self.answer is None else self.answer.taken_ns
        return max(int(self.dump.columns[name].max(initial=NONE)) for name in MOMENTS)


def of_answers(
    reads: Sequence[Read], members: Mapping[str, Sequence[int]] | None, problems: Sequence[Problem]
) -> Job:
    """The job of the WorkerServers' answers among `reads`; the newest of each rank."""
    best: dict[RankName, Read] = {}
    complaints = list(problems)
    lost: dict[RankName, Problem] = {}
    for read in reads:
        if read.answer is not None:
            _keep_newer(best, read.answer.record.identity.rank, read, complaints)
        elif read.dump is not None:
            complaints.append(
                Problem(read.source.path, "left out: answers of WorkerServers say more")
            )
        elif read.problem is not None:
            problem = Problem(read.source.path, read.problem)
            named = read.source.rank_name
            if named is None:
                complaints.append(problem)
            else:
                lost[named] = problem
    complaints += [lost.pop(name) for name in best if name in lost]
    answers = (read.answer for read in best.values() if read.answer is not None)
    return from_answers(answers, lost=lost, members=members, problems=complaints)


def _keep_newer(best: dict[K, Read], rank: K, read: Read, problems: list[Problem]) -> None:
    """Keep the newer one of two records of a rank."""
    reads = [read] if rank not in best else [best[rank], read]
    best[rank], *older = sorted(reads, key=lambda each: (-each.newest_ns, each.source.path))
    why = f"left out: {best[rank].source.path} is of the same rank and newer"
    problems += [Problem(each.source.path, why) for each in older]


def of_dumps(reads: Sequence[Read]) -> tuple[list[Record], list[Problem]]:
    """One record per rank, and what was wrong with the rest.

    Only TorchFT's newest quorum counts: otherwise a rank's record of an older one would be
    compared with its peers' of the newer.
    """
    problems: list[Problem] = []
    best: dict[int, Read] = {}
    newest = max((r.source.quorum for r in reads if r.source.quorum is not None), default=None)
    for read in (read for read in reads if read.dump is not None):
        source = read.source
        if source.rank is None:
            problems.append(Problem(source.path, "its name tells no rank"))
        elif source.quorum != newest:
            problems.append(Problem(source.path, f"left out: quorum {newest} is newer"))
        else:
            _keep_newer(best, source.rank, read, problems)
    alike = {read.source.prefix for read in best.values()}
    for read in reads:
        if read.problem is not None:
            source = read.source
            # an unreadable stray file is not counted as a rank, one among records is
            stray = bool(alike) and source.prefix not in alike
            lost = None if stray or source.rank in best else source.rank
            problems.append(Problem(source.path, read.problem, lost))
    kept = [Record(rank, r.dump, r.source.path) for rank, r in best.items() if r.dump is not None]
    return kept, problems


def gaps(records: Sequence[Record]) -> frozenset[int]:
    """Ranks missing from the records' numbers: ranks are numbered from 0.

    None with TorchFT's quorums: a rank that is not in the newest is not missing.
    """
    numbers = {r.rank for r in records}
    quorums = any(group.generation is not None for r in records for group in r.dump.groups)
    world = max(numbers, default=-1) + 1
    return frozenset(() if quorums or world > _ONE_IN * len(numbers) else range(world)) - numbers


# -- an evidence bundle's manifest -------------------------------------------------------------

NAME: Final = "manifest.json"
FORMAT: Final = "lightkeeper-evidence"
SCHEMA: Final = 1
RECORD: Final = "flight_recorder"
"""The part that the analysis reads."""
MAX_BYTES: Final = 16 << 20
"""160 parts per moment take about 60 KiB."""


_When = Annotated[float, msgspec.Meta(ge=0, lt=1e10)]
"""Unix time by the monitor's clock."""


class SavedPart(msgspec.Struct, frozen=True):
    """One answer of one rank's WorkerServer, or why there is none."""

    rank: RankName
    part: str
    status: str
    file: str | None = None
    """Member of the zip; None if no usable answer came."""
    taken_s: _When | None = None
    """When it was answered."""
    error: str | None = None


class SavedMoment(msgspec.Struct, frozen=True):
    """One time at which all ranks concerned were asked."""

    name: str = msgspec.field(name="moment")
    began_s: _When
    parts: tuple[SavedPart, ...] = ()

    @property
    def records(self) -> tuple[SavedPart, ...]:
        """The flight records that were received."""
        return tuple(part for part in self.parts if part.part == RECORD and part.file is not None)

    @property
    def lost(self) -> tuple[SavedPart, ...]:
        """The flight records that were not received."""
        return tuple(part for part in self.parts if part.part == RECORD and part.file is None)


@readable
class Manifest(msgspec.Struct, frozen=True):
    """What an evidence bundle contains."""

    format: str
    id: str
    moments: tuple[SavedMoment, ...] = ()
    incident: Mapping[str, Any] = {}
    """As `monitor.model.incident.incident_to_json` wrote it; empty where there is none yet."""

    @property
    def latest_s(self) -> float:
        """When ranks were last asked."""
        return max((moment.began_s for moment in self.moments), default=0.0)

    def chosen(self) -> SavedMoment | None:
        """The moment with the most flight records; of several, the latest.

        Records of two moments are never mixed: a rank that was asked earlier than its peers
        would seem to be behind them.
        """
        answered = [moment for moment in self.moments if moment.records]
        return max(answered, key=lambda moment: (len(moment.records), moment.began_s), default=None)


def read_manifest(file: str) -> Manifest | None:
    """The manifest of this zip; None if it is not an evidence bundle."""
    try:
        with zipfile.ZipFile(file) as bundle, bundle.open(NAME) as member:
            return parse_manifest(json.loads(member.read(MAX_BYTES)))
    except (OSError, KeyError, RecursionError, *BROKEN_ZIP):
        return None


def parse_manifest(data: Any) -> Manifest | None:
    """The manifest in this JSON; None if it is not ours, or damaged."""
    try:
        manifest = from_plain(Manifest, data)
    except ValueError:
        return None
    return manifest if manifest.format == FORMAT else None


# -- evidence bundles among the zips -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bundle:
    """One evidence bundle, and the moment whose flight records are used."""

    path: str
    manifest: Manifest
    moment: SavedMoment | None

    @property
    def records(self) -> dict[str | None, SavedPart]:
        """Member of the zip -> the flight record in it."""
        return {} if self.moment is None else {p.file: p for p in reversed(self.moment.records)}

    @property
    def lost(self) -> Iterator[Read]:
        """Ranks that were asked for a flight record in the chosen moment and gave none."""
        if self.moment is not None:
            for part in self.moment.lost:
                path = f"{self.path}/{self.moment.name}/{part.rank}"
                problem = f"no flight record: {part.error or part.status}"
                yield Read(DumpFile(path, self.path, whose=part.rank), problem=problem)


def bundle_in(paths: Sequence[Path]) -> Bundle | None:
    """The latest evidence bundle among these files and folders."""
    return _open_bundles(find_records(paths)[0])[1]


def _open_bundles(sources: list[DumpFile]) -> tuple[list[DumpFile], Bundle | None, list[Problem]]:
    """What remains to be read, the latest bundle, and what is left out.

    Of the latest bundle the flight records of one moment remain, with the manifest's dates.
    Earlier bundles are left out: otherwise a rank's record of one incident would be compared
    with its peers' of another.
    """
    named = dict.fromkeys(source.file for source in sources if source.member == NAME)
    bundles = [
        Bundle(file, manifest, manifest.chosen())
        for file in named
        if (manifest := read_manifest(file)) is not None
    ]
    if not bundles:
        return sources, None, []
    latest = max(bundles, key=lambda bundle: (bundle.manifest.latest_s, bundle.path))
    chosen: list[DumpFile] = []
    files, records = {bundle.path for bundle in bundles}, latest.records
    for source in sources:
        if source.file not in files:
            chosen.append(source)
        elif source.file == latest.path and source.member in records:
            part = records[source.member]
            taken_ns = None if part.taken_s is None else int(part.taken_s * 1e9)
            chosen.append(replace(source, whose=part.rank, taken_ns=taken_ns))
    why = f"left out: {latest.path} is of a later incident"
    return chosen, latest, [Problem(b.path, why) for b in bundles if b is not latest]


# -- load --------------------------------------------------------------------------------------

_WORTH_A_PROCESS: Final = 64 << 20
"""Bytes per process: about a second of reading pickles; starting one takes half a second."""
_CHUNK: Final = 8


def load_job(
    paths: Sequence[Path],
    *,
    world_size: int | None = None,
    members: Mapping[str, Sequence[int]] | None = None,
    progress: Callable[[int, int], None] | None = None,
    workers: int | None = None,
) -> Job:
    """The job whose records lie under `paths`: files, folders and zips.

    A file that cannot be read is a `Problem` of the job and spoils only its rank. `progress` is
    called with the number of files done and the total. `workers` is the number of processes, by
    default one per core if there is enough to do; 1 reads in this process.
    """
    files, problems = find_records(paths)
    sources, bundle, left_out = _open_bundles(files)
    reads = [] if bundle is None else list(bundle.lost)
    problems += left_out
    for done, read in enumerate(_read_all(sources, workers), 1):
        reads.append(read)
        if progress is not None:
            progress(done, len(sources))
    if any(read.answer is not None for read in reads):
        return of_answers(reads, members, problems)
    records, more = of_dumps(reads)
    records, older = of_one_run(records)
    job = assemble(
        records,
        world_size=world_size,
        members=members,
        problems=[*problems, *more, *older],
        gaps=() if world_size else gaps(records),
    )
    last_ns = max(int(job.columns[name].max(initial=NONE)) for name in MOMENTS)
    return replace(job, ranks={rank: _dated(info, last_ns) for rank, info in job.ranks.items()})


def _dated(info: RankInfo, last_ns: int) -> RankInfo:
    """`info` dated by its file, where nothing else says when the record was written.

    A copy may be dated later: a date hours after all times in the records is ignored. Members of a
    zip have no time zone and get no date.
    """
    if info.taken_ns != NONE or not info.path:
        return info
    try:
        dated_ns = os.stat(info.path).st_mtime_ns
    except OSError:
        return info
    return replace(info, taken_ns=dated_ns) if dated_ns - last_ns < COPIED_NS else info


def _read_all(sources: Sequence[DumpFile], workers: int | None) -> Iterator[Read]:
    """Each source read, in order; in this process if the others cannot be started."""
    if workers is None:
        enough = sum(source.size for source in sources) // _WORTH_A_PROCESS
        workers = min(len(os.sched_getaffinity(0)), enough)
    done = 0
    try:
        if workers > 1:
            with (
                contextlib.suppress(BrokenProcessPool),  # out of memory, or cannot import
                ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool,
            ):
                for read in pool.map(_read, sources, chunksize=_CHUNK):
                    done += 1
                    yield read
        for source in sources[done:]:
            yield _read(source)
    finally:
        _opened.cache_clear()


@lru_cache(1)
def _opened(file: str) -> zipfile.ZipFile:
    """A zip, kept open between its members: listing 60,000 takes half a second."""
    try:
        return zipfile.ZipFile(file)
    except (OSError, *BROKEN_ZIP) as exc:
        raise FlightRecordError(f"broken zip: {exc}") from exc


def _read(source: DumpFile) -> Read:
    """Reads one file; never raises because of its content."""
    enabled = gc.isenabled()
    gc.disable()  # for millions of small objects, none in a cycle, it takes a third of the time
    try:
        raw = source.read(_opened(source.file) if source.member else None)
        data = decode(raw)
        if "identity" in data and "schema" in data:
            return _read_answer(source, data)
        dump = read_dump(data)
        if source.quorum is not None:
            dump = with_generation(dump, source.quorum)
        return Read(source, dump)
    except FlightRecordError as exc:
        return Read(source, problem=str(exc))
    finally:
        if enabled:
            gc.enable()


def _read_answer(source: DumpFile, data: Mapping[str, Any]) -> Read:
    """A WorkerServer's answer; answers without a record, as found in bundles, are skipped."""
    if "ring" not in data and not source.named and source.whose is None:
        return Read(source)
    try:
        record = parse_flight_record(data)
    except WireError as exc:
        raise FlightRecordError(f"not a WorkerServer's flight record: {exc}") from exc
    taken_ns = NONE if source.taken_ns is None else source.taken_ns
    return Read(source, answer=ring.read_answer(record, source.path, taken_ns))
