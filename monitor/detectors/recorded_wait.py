"""Who waits for whom where neither phases nor heads show it: by the flight records.

Theory of operation. DDP's reducer calls its collectives from C++, so no head of such a job moves in
a step, and a rank that waits in one looks like a rank that pauses. Once every rank of a replica
group stands still, in no collective by its heads, for half of what it is allowed, the group is
*quiet*, and its records are asked for. Who has not entered what others wait in, by records that
were read while nobody moved, is missing there as if heads had shown it; those who wait are held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from monitor.analysis.finding import Fault
from monitor.detectors.patience import allowance, undeclared
from monitor.detectors.recorded import opinion, sure
from monitor.detectors.standing import Standing
from monitor.history import History, RankTrack
from monitor.names import GroupName, RankName

MISSING = (Fault.NOT_ENTERED, Fault.NOT_ENQUEUING, Fault.SILENT)
"""Findings of a rank that others wait for."""


def quiet_groups(history: History, standing: Mapping[RankName, Standing]) -> tuple[GroupName, ...]:
    """Replica groups in which nobody moves and nothing tells why; sorted.

    Of one rank alone there is nobody in the group to wait for it.
    """
    return tuple(
        group
        for group, members in history.groups().items()
        if len(members) > 1
        and all(standing[t.rank] is Standing.UNKNOWN and _still(history, t) for t in members)
    )


def missed_by_records(
    history: History, quiet: Iterable[GroupName]
) -> dict[RankName, tuple[RankName, ...]]:
    """Ranks of quiet groups that their records show missing -> those who wait for them; sorted."""
    found: dict[RankName, set[RankName]] = {}
    for group in quiet:
        if not all(_read_since(history, track) for track in history.groups()[group]):
            continue
        said = opinion(history, group)
        if said is None:
            continue
        for one in said.findings:
            if sure(one) and one.kind in MISSING:
                for rank in said.names(one.culprits):
                    found.setdefault(rank, set()).update(said.names(one.victims))
    return {rank: tuple(sorted(waiting)) for rank, waiting in sorted(found.items())}


def _still(history: History, track: RankTrack) -> bool:
    """Whether it stands still for half of what it is allowed."""
    if track.fresh is None or track.stall_s < history.config.stall_floor_s / 2:
        return False  # nobody is allowed less; most are asked no further
    spans_s = [allowance(history, track).span_s]
    floor = undeclared(history, track)
    if floor is not None:
        spans_s.append(floor.span_s)
    return track.stall_s >= max(spans_s) / 2


def _read_since(history: History, track: RankTrack) -> bool:
    age_s = history.record_age_s(track.rank)
    return age_s is not None and age_s < track.stall_s
