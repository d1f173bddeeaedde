"""How each rank looks in one tick, in one word for people. Pure; no decision rests on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from monitor.detectors.verdict import Kind
from monitor.detectors.waits import Standing, WaitGraph
from monitor.history import FINISHED_PHASE, History, RankTrack
from monitor.incident import Incident, State
from monitor.names import GroupName, RankName
from worker_server.wire import LONG_PHASES


class RankHealth(StrEnum):
    """How a rank looks in one tick."""

    HEALTHY = "healthy"
    WAITING = "waiting"  # held up by others
    STALLED = "stalled"  # alone, and not progressing; or to blame for a standstill
    DEAD = "dead"
    UNREACHABLE = "unreachable"
    STARTING = "starting"  # attached, not through its first commits
    LATE = "late"  # no commit for longer than a hang needs, and it is not known yet why
    SLOW = "slow"  # to blame for a pace that holds the others up
    CORRUPT = "corrupt"  # to blame for numbers that are wrong
    TRACED = "traced"  # a debugger or profiler holds it


WORST_FIRST: Final = (
    RankHealth.DEAD, RankHealth.UNREACHABLE, RankHealth.STALLED, RankHealth.CORRUPT,
    RankHealth.TRACED, RankHealth.SLOW, RankHealth.STARTING, RankHealth.LATE, RankHealth.WAITING,
    RankHealth.HEALTHY,
)  # fmt: skip
_FOR: Final = {
    Kind.STRAGGLER: RankHealth.SLOW,
    Kind.REPLICA_LAG: RankHealth.SLOW,
    Kind.STATE_CORRUPT: RankHealth.CORRUPT,
}
"""What a culprit that lives is called; of any other kind `stalled`."""


def rank_health(
    history: History,
    graph: WaitGraph | None,
    incidents: Iterable[Incident] = (),
    victims: Mapping[RankName, GroupName] | None = None,
) -> dict[RankName, RankHealth]:
    """Of every rank that is registered.

    Args:
        history: with this tick in it.
        graph: None when it could not be built.
        incidents: open ones, oldest first: who is to blame is never called healthy.
        victims: of the open incidents, those that have not moved on.
    """
    blamed: dict[RankName, RankHealth] = {}
    for incident in incidents:
        if incident.state is State.PENDING:
            continue
        for rank in incident.culprits:
            track = history.tracks.get(rank)
            if track is not None and track.identity.incarnation in incident.incarnations:
                found = _FOR.get(incident.kind, RankHealth.STALLED)
                blamed[rank] = min(found, blamed.get(rank, found), key=WORST_FIRST.index)
    return {t.rank: _of(history, graph, t, blamed, victims or {}) for t in history.present()}


def _of(  # noqa: PLR0911
    history: History,
    graph: WaitGraph | None,
    track: RankTrack,
    blamed: Mapping[RankName, RankHealth],
    victims: Mapping[RankName, GroupName],
) -> RankHealth:
    report, rank = track.fresh, track.rank
    if report is None:
        return RankHealth.UNREACHABLE
    if not report.process.alive:
        return RankHealth.DEAD
    if report.process.tracer is not None:
        return RankHealth.TRACED
    if rank in blamed:
        return blamed[rank]
    if graph is not None and rank in graph.roots:
        return RankHealth.STALLED
    if track.doing == FINISHED_PHASE:
        return RankHealth.HEALTHY
    if rank in victims:
        return RankHealth.WAITING
    if history.starting(track):
        return RankHealth.STARTING
    standing = Standing.ALONE if graph is None else graph.standing[rank]
    waits = standing in (Standing.HELD, Standing.WAITING)
    if waits and track.stall_s >= history.config.stall_floor_s / 2:
        return RankHealth.WAITING
    return RankHealth.LATE if _late(history, track) else RankHealth.HEALTHY


def _late(history: History, track: RankTrack) -> bool:
    """Whether its next commit is due for longer than a rank may stand still."""
    age_s = None if track.step is None else track.step.last_commit_age_s
    if age_s is None or track.doing in LONG_PHASES:
        return False
    return age_s > history.hang_after_s(track)
