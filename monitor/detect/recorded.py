"""Who waits for whom, by the flight records, if neither phases nor heads show it.

Theory of operation. DDP's reducer calls its collectives from C++, and DTensor its own, so no head
of such a job moves in a step, and a rank that waits in one looks like a rank that pauses, unless
its stack shows the wait. Once every rank of a replica group stands still, in no collective by its
heads, for half of its allowance, the group is *quiet*, and its records are requested. A rank that
has not entered the collective others wait in, by records read while nobody moved, is missing there
as if heads had shown it; those that wait are held. All may be inside, in different calls:
`mismatch` judges that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import is_
from typing import Final

import numpy as np

from lightkeeper.monitor.detect.graph import Stuck
from lightkeeper.monitor.detect.history import History, Reading
from lightkeeper.monitor.detect.patience import allowance, undeclared
from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.model.names import GroupName, RankName
from lightkeeper.monitor.model.verdict import RankStanding
from lightkeeper.monitor.records import ring
from lightkeeper.monitor.records.analyse import analyse
from lightkeeper.monitor.records.findings import Fault, Finding
from lightkeeper.monitor.records.job import CollectiveState, Job, Problem
from lightkeeper.monitor.records.ring import RankRecord, from_answers
from lightkeeper.monitor.records.safe_pickle import FlightRecordError


@dataclass(frozen=True, slots=True)
class Opinion:
    """Findings within one replica group, and the names of their ranks."""

    job: Job
    findings: tuple[Finding, ...] = ()

    def names(self, ranks: tuple[int, ...]) -> tuple[RankName, ...]:
        """Names of ranks, sorted."""
        return tuple(sorted(RankName(self.job.name(rank)) for rank in ranks))

    @property
    def accusing(self) -> tuple[tuple[Finding, tuple[RankName, ...]], ...]:
        """The findings that accuse ranks, and whom."""
        return tuple((each, self.names(each.culprits)) for each in self.findings if each.culprits)

    def involved(self, finding: Finding) -> tuple[RankName, ...]:
        """The ranks a finding accuses, or if ambiguous, all candidates; sorted."""
        return self.names(
            finding.culprits or tuple(rank for side in finding.between for rank in side)
        )


UNREAD: Final = Opinion(Job((), {}, (), (), (), {}))
"""Not every record was read: nothing is known."""


def opinion(history: History, group: GroupName, within_s: float = inf) -> Opinion:
    """What the group's records show, each read within `within_s`: an earlier one shows another
    moment. `UNREAD` while the record of a rank that can be asked is lacking, or fewer than two are
    there. Nothing is known of a rank that cannot be asked, and it is in no finding.

    Of the group alone: waits across groups are for the wait-for graph, which sees phases and
    quorums.
    """
    tracks = history.groups().get(group, ())
    readings, unseen = list[Reading](), list[RankName]()
    for track in tracks:
        reading = history.asked(track)
        if reading is not None and history.record_age_s(track.rank) < within_s:
            readings.append(reading)
        elif track.fresh is not None:
            return UNREAD
        else:
            unseen.append(track.rank)
    unseen += history.unregistered(group)
    read = sum(not reading.garbage for reading in readings)
    if read < min(2, len(readings) + len(unseen)) or not read:
        return UNREAD
    for judged, without, before in _LATELY:
        alike = len(judged) == len(readings) and without == unseen
        if alike and all(map(is_, judged, readings)):
            return before
    world = min(track.identity.world_size for track in tracks)
    latest = _opinion(readings, unseen, world)
    _LATELY.append((readings, unseen, latest))
    return latest


_LATELY: Final[deque[tuple[list[Reading], list[RankName], Opinion]]] = deque(maxlen=4)
"""Recent judgements: several ticks judge the same readings. `History` is journalled whole."""


def lane(history: History, number: int) -> tuple[RankTrack, ...]:
    """The ranks of one number in their groups: they share TorchFT's process group."""
    return tuple(t for t in history.present() if t.identity.group_rank == number)


def opinion_across(history: History, tracks: Sequence[RankTrack], since_s: float) -> Opinion:
    """What records across groups show, one rank of each; `UNREAD` if one was not read since."""
    worlds = history.groups()
    read = [
        _read(reading, len(worlds[track.group]))
        for track in tracks
        if (reading := history.reading(track)) is not None and reading.at_s >= since_s
    ]
    if len(read) < max(2, len(tracks)) or None in read:
        return UNREAD
    job = from_answers(record for record in read if record is not None)
    return Opinion(job, tuple(analyse(job).findings))


def due(
    history: History, tracks: Iterable[RankTrack], within_s: float = inf
) -> tuple[RankName, ...]:
    """Ranks to ask for their records: those without one of their standstill, or of the last
    `within_s`; when all have one, those due again. A tick reads only a limited number: in a large
    group the first would be due before the last was read.
    """
    ages_s = [(t, history.record_age_s(t.rank)) for t in tracks if t.fresh is not None]
    lacking = [t for t, age_s in ages_s if age_s > min(t.stall_s, within_s)]
    again = [t for t, age_s in ages_s if age_s > history.config.record_repeat_s]
    return tuple(track.rank for track in lacking or again)


def before_death(history: History, track: RankTrack) -> bool:
    """True if a dead rank's record was read before it died: its last call is missing."""
    read_s = history.now_s - history.record_age_s(track.rank)
    return track.died_s is not None and read_s <= track.died_s


def _read(reading: Reading, world: int) -> RankRecord | None:
    """The record's rows; None if it cannot be read, or claims that its group has more ranks."""
    if reading.garbage or reading.answer.identity.world_size > world:
        return None
    try:
        return ring.read_answer(reading.answer, taken_ns=int(reading.came_s * 1e9))
    except FlightRecordError:
        return None


def _opinion(readings: Sequence[Reading], unseen: Sequence[RankName], world: int) -> Opinion:
    """Findings from the readable records; nothing is known of the other ranks, and none is named.

    A rank that left a collective across groups with an error no longer waits there.
    """
    read = {reading.answer.identity.rank: _read(reading, world) for reading in readings}
    garbage = {name: Problem("", "garbage") for name, record in read.items() if record is None}
    garbage |= dict.fromkeys(unseen, Problem("", "cannot be asked"))
    job = from_answers((record for record in read.values() if record is not None), lost=garbage)
    between = np.array([group.generation is not None for group in job.groups], np.bool_)
    keep = (job.columns["state"] != CollectiveState.FAILED) | ~between[job.columns["group"]]
    job = replace(job, columns={name: column[keep] for name, column in job.columns.items()})
    inside = {rank for rank, name in job.names.items() if name not in garbage}
    findings = tuple(
        finding
        for finding in analyse(job).findings
        if {*finding.culprits, *finding.victims} <= inside
        and not (finding.group is not None and between[finding.group])
    )
    return Opinion(job, findings)


MISSING = (Fault.NOT_ENTERED, Fault.NOT_ENQUEUING, Fault.SILENT)
"""Findings of a rank that others wait for."""


def quiet_groups(history: History, standing: Mapping[RankName, RankStanding]) -> tuple[Stuck, ...]:
    """Replica groups in which nobody moves, one of them for long, and nothing shows why; sorted.

    The others may wait for it in C++, and have an allowance to start or to compute. A single rank
    has nobody in its group to wait for it.
    """
    return tuple(
        Stuck(
            group=group,
            process_group="",
            seq=0,
            size=len(members),
            joined=tuple(track.rank for track in members),
            stall_s=min(track.stall_s for track in members),
            recorded=True,
        )
        for group, members in history.groups().items()
        if len(members) > 1
        and all(
            standing[t.rank] is RankStanding.UNKNOWN or waits_by_stack(t, standing[t.rank])
            for t in members
        )
        and all(t.fresh is not None and t.stall_s >= history.still_after_s for t in members)
        and any(_still(history, track, standing[track.rank]) for track in members)
    )


def waits_by_stack(track: RankTrack, standing: RankStanding) -> bool:
    """True if its stack shows that it waits for others, and nothing else does."""
    elsewhere = track.waits_in is not None or track.forming is not None or track.inside_across
    return standing is RankStanding.WAITING and not elsewhere and not track.phased


def missed_by_records(
    history: History, quiet: Iterable[Stuck], standing: Mapping[RankName, RankStanding]
) -> dict[RankName, tuple[RankName, ...]]:
    """Ranks of quiet groups that their records show missing -> those waiting for them; sorted.

    A rank whose stack is in a wait for others is not the one that they wait for.
    """
    missing: dict[RankName, set[RankName]] = {}
    for stuck in quiet:
        said = opinion(history, stuck.group, within_s=stuck.stall_s)
        for finding, ranks in said.accusing:
            for rank in ranks if finding.kind in MISSING else ():
                if standing[rank] is RankStanding.UNKNOWN:
                    missing.setdefault(rank, set()).update(said.names(finding.victims))
    return {rank: tuple(sorted(waiting)) for rank, waiting in sorted(missing.items())}


def _still(history: History, track: RankTrack, standing: RankStanding) -> bool:
    """True if it has stood still for half of its allowance; in a wait it needs none."""
    if standing is RankStanding.WAITING:
        return track.stall_s >= history.hang_after_s(track)
    spans_s = [allowance(history, track).span_s]
    floor = undeclared(history, track)
    if floor is not None:
        spans_s.append(floor.span_s)
    return track.stall_s >= max(spans_s) / 2
