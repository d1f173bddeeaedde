"""What the flight records of a replica group say, by the analysis of `lightkeeper analyze`.

The detectors look at heads and phases every tick; only on suspicion are records there, and then
the same code judges them that judges a folder of dumps offline.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Final

import numpy as np

from monitor.analysis.analyse import analyse
from monitor.analysis.finding import Confidence, Finding
from monitor.flight_recorder import ring_rows
from monitor.flight_recorder.job import Job, State
from monitor.flight_recorder.ring_job import from_answers
from monitor.history import History, RankTrack, Reading
from monitor.names import GroupName, RankName


@dataclass(frozen=True, slots=True)
class Opinion:
    """Findings within one replica group, and whom their numbers mean."""

    job: Job
    findings: tuple[Finding, ...]

    def names(self, ranks: tuple[int, ...]) -> tuple[RankName, ...]:
        """Ranks by their names, sorted."""
        return tuple(sorted(RankName(self.job.name(rank)) for rank in ranks))


def opinion(history: History, group: GroupName) -> Opinion | None:
    """What the group's records say; None as long as a member's is not at hand.

    Of the group alone: what waits across groups is the wait-for graph's to judge, which sees
    phases and quorums.
    """
    tracks = history.groups().get(group, ())
    readings = (history.reading(track) for track in tracks)
    known = tuple(held for held in readings if held is not None)
    if not known or len(known) < len(tracks) or len(tracks) < tracks[0].identity.world_size:
        return None
    for held, before in _LATELY:
        if len(held) == len(known) and all(map(is_, held, known)):
            return before
    found = _opinion(known)
    _LATELY.append((known, found))
    return found


_LATELY: Final[deque[tuple[tuple[Reading, ...], Opinion]]] = deque(maxlen=4)
"""Judged lately: the same readings are asked about for some ticks, and say the same."""


def lane(history: History, number: int) -> tuple[RankTrack, ...]:
    """The ranks of one number in their groups: they share TorchFT's process group."""
    return tuple(t for t in history.present() if t.identity.group_rank == number)


def across(history: History, tracks: Sequence[RankTrack], since_s: float) -> Opinion | None:
    """What records across groups say, one rank of each; None as long as one was not read since."""
    known = [history.reading(track) for track in tracks]
    if len(known) < 2 or any(held is None or held.at_s < since_s for held in known):
        return None
    job = from_answers(
        ring_rows.read(held.answer, taken_ns=int(held.at_s * 1e9))
        for held in known
        if held is not None
    )
    return Opinion(job, tuple(analyse(job).findings))


def unread(history: History, tracks: Sequence[RankTrack], since_s: float) -> tuple[RankName, ...]:
    """Of these, whose record was not read since then."""
    return tuple(
        track.rank
        for track in tracks
        if (held := history.reading(track)) is None or held.at_s < since_s
    )


def _opinion(known: tuple[Reading, ...]) -> Opinion:
    """A rank that got out of a collective across groups with an error waits there no more."""
    job = from_answers(ring_rows.read(held.answer, taken_ns=int(held.at_s * 1e9)) for held in known)
    between = np.array([group.generation is not None for group in job.groups], np.bool_)
    keep = (job.columns["state"] != State.FAILED) | ~between[job.columns["group"]]
    job = replace(job, columns={name: column[keep] for name, column in job.columns.items()})
    inside = {rank for rank, name in job.names.items()}
    found = tuple(
        one
        for one in analyse(job).findings
        if {*one.culprits, *one.victims} <= inside and not _across(job, one)
    )
    return Opinion(job, found)


def sure(found: Finding) -> bool:
    """Whether it accuses anybody."""
    return bool(found.culprits) and found.confidence is not Confidence.UNSURE


def _across(job: Job, one: Finding) -> bool:
    return one.group is not None and job.groups[one.group].generation is not None
