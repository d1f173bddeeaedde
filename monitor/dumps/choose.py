"""Which of the files that were read make up the job, when there are several of a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from monitor.dumps.files import Source
from monitor.flight_recorder.assemble import Record
from monitor.flight_recorder.dump import Dump
from monitor.flight_recorder.job import Job, Problem
from monitor.flight_recorder.ring_job import from_answers
from monitor.flight_recorder.ring_types import Answer
from monitor.names import RankName

_ONE_IN: Final = 16
"""Records of fewer than one rank in so many are numbered by something else (a pid), and a gap in
their numbers is none. Lower: one host's records of a large job tell nothing of the others."""


@dataclass(frozen=True, slots=True)
class Read:
    """What became of one file."""

    source: Source
    dump: Dump | None = None
    answer: Answer | None = None
    """Of a WorkerServer."""
    problem: str | None = None


def of_answers(
    reads: Sequence[Read],
    members: Mapping[str, Sequence[int]] | None,
    problems: Sequence[Problem],
) -> Job:
    """The job of the WorkerServers' answers among `reads`; the newest of each rank."""
    best: dict[RankName, Answer] = {}
    found = list(problems)
    lost: dict[RankName, Problem] = {}
    for read in reads:
        if read.answer is not None:
            name = read.answer.record.identity.rank
            kept = best.setdefault(name, read.answer)
            if kept is not read.answer:
                kept, other = sorted((kept, read.answer), key=lambda a: (-a.taken_ns, a.path))
                best[name] = kept
                found.append(_superseded(other.path, kept.path))
        elif read.dump is not None:
            found.append(Problem(read.source.path, "left out: answers of WorkerServers say more"))
        elif read.problem is not None:
            problem = Problem(read.source.path, read.problem)
            named = read.source.rank_name
            if named is None:
                found.append(problem)
            else:
                lost[named] = problem
    found += [lost.pop(name) for name in best if name in lost]
    return from_answers(best.values(), lost=lost, members=members, problems=found)


def _superseded(path: str, kept: str) -> Problem:
    return Problem(path, f"left out: {kept} is of the same rank and newer")


def of_dumps(reads: Sequence[Read]) -> tuple[list[Record], list[Problem]]:
    """One record a rank, and what was wrong with the rest.

    Of TorchFT's quorums only the newest counts: a rank's record of an older one would be held
    against peers of whom only the newer was read.
    """
    problems = []
    best: dict[int, tuple[Source, Dump]] = {}
    newest = max((r.source.quorum for r in reads if r.source.quorum is not None), default=None)
    for read in reads:
        source, found = read.source, read.dump
        if found is None:
            continue
        if source.rank is None:
            problems.append(Problem(source.path, "its name tells no rank"))
        elif source.quorum != newest:
            problems.append(Problem(source.path, f"left out: quorum {newest} is newer"))
        elif source.rank in best:
            kept, other = _newer(best[source.rank], (source, found))
            best[source.rank] = kept
            problems.append(_superseded(other[0].path, kept[0].path))
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
    a: tuple[Source, Dump], b: tuple[Source, Dump]
) -> tuple[tuple[Source, Dump], tuple[Source, Dump]]:
    """The two, the one that speaks of later moments first; among equals by path."""
    first, second = sorted((a, b), key=lambda one: (-one[1].newest_ns, one[0].path))
    return first, second


def gaps(records: Sequence[Record]) -> frozenset[int]:
    """Ranks that the others' numbers leave out: ranks are numbered from 0.

    Not of TorchFT's quorums: who was in none of the newest is no rank that is missing.
    """
    known = {record.rank for record in records}
    quorums = any(group.generation is not None for one in records for group in one.dump.groups)
    world = max(known, default=-1) + 1
    return frozenset(() if quorums or world > _ONE_IN * len(known) else range(world)) - known
