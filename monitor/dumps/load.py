"""From paths to a job: files read side by side, each in a process that may fail alone."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from monitor.dumps.bundle import open_bundles
from monitor.dumps.choose import Read, gaps, of_answers, of_dumps
from monitor.dumps.files import Source, find
from monitor.flight_recorder import dump, ring_rows
from monitor.flight_recorder.assemble import assemble
from monitor.flight_recorder.job import NONE, Job, RankInfo
from monitor.flight_recorder.record import FlightRecordError
from worker_server.wire import WireError, parse_flight_record

_WORTH_A_PROCESS: Final = 64 << 20
"""Bytes for each: about a second of reading pickles, where starting one costs half of one."""
_CHUNK: Final = 8


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
    found, problems = find(paths)
    opened = open_bundles(found)
    sources, reads = opened.sources, list(opened.lost)
    problems += opened.problems
    for done, read in enumerate(_read_all(sources, workers), 1):
        reads.append(read)
        if progress is not None:
            progress(done, len(sources))
    if any(read.answer is not None for read in reads):
        return of_answers(reads, members, problems)
    records, more = of_dumps(reads)
    job = assemble(
        records,
        world_size=world_size,
        members=members,
        problems=[*problems, *more],
        gaps=() if world_size else gaps(records),
    )
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


def _read_all(sources: Sequence[Source], workers: int | None) -> Iterator[Read]:
    """Each source read, in order; in this process where the others cannot be started."""
    if workers is None:
        enough = sum(source.size for source in sources) // _WORTH_A_PROCESS
        workers = min(len(os.sched_getaffinity(0)), enough)
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


def _read(source: Source) -> Read:
    """Reads one file; never raises for what is in it."""
    enabled = gc.isenabled()
    gc.disable()  # millions of small objects, none of them in a cycle: a third of the time
    try:
        raw = source.read()
        found = dump.read_alike(raw)
        if found is None:
            data = dump.decode(raw)
            if "identity" in data and "schema" in data:
                return _read_answer(source, data)
            found = dump.read(data)
        if source.quorum is not None:
            found = dump.with_generation(found, source.quorum)
        return Read(source, found)
    except FlightRecordError as exc:
        return Read(source, problem=str(exc))
    finally:
        if enabled:
            gc.enable()


def _read_answer(source: Source, data: Mapping[str, Any]) -> Read:
    """What a WorkerServer answered; its other answers lie beside records in a bundle."""
    if "ring" not in data and not source.named and source.whose is None:
        return Read(source)
    try:
        record = parse_flight_record(data)
    except WireError as exc:
        raise FlightRecordError(f"not a WorkerServer's flight record: {exc}") from exc
    taken_ns = NONE if source.taken_ns is None else source.taken_ns
    return Read(source, answer=ring_rows.read(record, source.path, taken_ns))
