"""What the flight records of a replica group say, by the analysis of `lightkeeper analyze`.

The detectors look at heads and phases every tick; only on suspicion are records there, and then
the same code judges them that judges a folder of dumps offline.
"""

from __future__ import annotations

from dataclasses import dataclass

from monitor.analysis.analyse import analyse
from monitor.analysis.finding import Confidence, Finding
from monitor.flight_recorder import ring_rows
from monitor.flight_recorder.job import Job
from monitor.flight_recorder.ring_job import from_answers
from monitor.history import History
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
    answers = [history.answer(track) for track in tracks]
    known = [answer for answer in answers if answer is not None]
    if not known or len(known) < len(tracks) or len(tracks) < tracks[0].identity.world_size:
        return None
    taken_ns = int(history.now_s * 1e9)
    job = from_answers(ring_rows.read(answer, taken_ns=taken_ns) for answer in known)
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
