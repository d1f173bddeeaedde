"""From paths to a job: files read side by side, each in a process that may fail alone."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from monitor.dumps.files import Source, find
from monitor.flight_recorder import dump
from monitor.flight_recorder.assemble import Record, assemble
from monitor.flight_recorder.job import NONE, Job, Problem, RankInfo
from monitor.flight_recorder.record import FlightRecordError

_WORTH_PROCESSES: Final = 24 << 20
"""Bytes; below, starting processes (0.3 s of CPU each) costs more than it saves."""
_CHUNK: Final = 8


@dataclass(frozen=True, slots=True)
class _Read:
    """What became of one file."""

    source: Source
    dump: dump.Dump | None = None
    problem: str | None = None


def load(
    paths: Sequence[Path],
    *,
    world_size: int | None = None,
    members: Mapping[str, Sequence[int]] | None = None,
    progress: Callable[[int, int], None] | None = None,
    workers: int | None = None,
) -> Job:
    """The job whose records lie under `paths`: files, folders and zips.

    A file that cannot be read is a `Problem` of the job and spoils its rank only. `progress` is
    called with how many files are done and how many there are. `workers` is the number of
    processes, by default one for each core where there is enough to do; 1 reads in this process.
    """
    sources, problems = find(paths)
    reads = []
    for done, read in enumerate(_read_all(sources, workers), 1):
        reads.append(read)
        if progress is not None:
            progress(done, len(sources))
    records, more = _choose(reads)
    job = assemble(records, world_size=world_size, members=members, problems=[*problems, *more])
    return replace(job, ranks={rank: _dated(info) for rank, info in job.ranks.items()})


def _dated(info: RankInfo) -> RankInfo:
    """With the file's date for the time at which the record was written, where nothing else says.

    A copy may be dated later, so it is an upper bound; members of a zip have no zone and no date.
    """
    if info.taken_ns != NONE or not info.path:
        return info
    try:
        return replace(info, taken_ns=os.stat(info.path).st_mtime_ns)
    except OSError:
        return info


def _read_all(sources: Sequence[Source], workers: int | None) -> Iterator[_Read]:
    """Each source read, in order; in this process where the others cannot be started."""
    if workers is None:
        enough = sum(source.size for source in sources) >= _WORTH_PROCESSES
        workers = min(len(os.sched_getaffinity(0)), len(sources)) if enough else 1
    done = 0
    if workers > 1:
        try:
            with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
                for read in pool.map(_read, sources, chunksize=_CHUNK):
                    done += 1
                    yield read
        except BrokenProcessPool:
            pass  # killed for its memory, or the main module cannot be imported again
    for source in sources[done:]:
        yield _read(source)


def _read(source: Source) -> _Read:
    """Reads one file; never raises for what is in it."""
    enabled = gc.isenabled()
    gc.disable()  # millions of small objects, none of them in a cycle: a third of the time
    try:
        found = dump.read(dump.decode(source.read()))
        if source.quorum is not None:
            found = dump.with_generation(found, source.quorum)
        return _Read(source, found)
    except FlightRecordError as exc:
        return _Read(source, problem=str(exc))
    finally:
        if enabled:
            gc.enable()


def _choose(reads: Sequence[_Read]) -> tuple[list[Record], list[Problem]]:
    """One record a rank, and what was wrong with the rest."""
    problems = []
    best: dict[int, tuple[Source, dump.Dump]] = {}
    newest = max((r.source.quorum for r in reads if r.source.quorum is not None), default=None)
    for read in reads:
        source, found = read.source, read.dump
        if found is None:
            continue
        if source.rank is None:
            problems.append(Problem(source.path, "its name does not end in a rank"))
        elif source.quorum != newest:
            problems.append(Problem(source.path, f"left out: quorum {newest} is newer"))
        elif source.rank in best:
            kept, other = _newer(best[source.rank], (source, found))
            best[source.rank] = kept
            problems.append(
                Problem(other[0].path, f"left out: {kept[0].path} is of the same rank and newer")
            )
        else:
            best[source.rank] = source, found
    alike = {source.prefix for source, _ in best.values()}
    for read in reads:
        if read.problem is not None:
            source = read.source
            # a stray file that cannot be read makes no rank, one among records does
            stray = bool(alike) and source.prefix not in alike
            lost = None if stray or source.rank in best else source.rank
            problems.append(Problem(source.path, read.problem, lost))
    return [Record(rank, d, source.path) for rank, (source, d) in best.items()], problems


def _newer(
    a: tuple[Source, dump.Dump], b: tuple[Source, dump.Dump]
) -> tuple[tuple[Source, dump.Dump], tuple[Source, dump.Dump]]:
    """The two, the one that speaks of later moments first; among equals by path."""
    first, second = sorted((a, b), key=lambda one: (-one[1].newest_ns, one[0].path))
    return first, second
