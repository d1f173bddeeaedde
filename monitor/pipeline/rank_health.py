"""How each rank looks in one tick, in one word for people. Pure; no decision rests on it."""

from __future__ import annotations

from enum import StrEnum

from monitor.detectors.waits import Standing, WaitGraph
from monitor.history import History, RankTrack
from monitor.names import RankName


class RankHealth(StrEnum):
    """How a rank looks in one tick."""

    HEALTHY = "healthy"
    WAITING = "waiting"  # held up by others
    STALLED = "stalled"  # alone, and not progressing
    DEAD = "dead"
    UNREACHABLE = "unreachable"
    STARTING = "starting"  # attached, not through its first commits


def rank_health(history: History, graph: WaitGraph | None) -> dict[RankName, RankHealth]:
    """Of every rank that is registered; `graph` is None when it could not be built."""
    return {track.rank: _of(history, graph, track) for track in history.present()}


def _of(history: History, graph: WaitGraph | None, track: RankTrack) -> RankHealth:
    report = track.fresh
    if report is None:
        return RankHealth.UNREACHABLE
    if not report.process.alive:
        return RankHealth.DEAD
    standing = Standing.ALONE if graph is None else graph.standing[track.rank]
    if graph is not None and track.rank in graph.roots:
        return RankHealth.STALLED
    if history.starting(track):
        return RankHealth.STARTING
    waits = standing in (Standing.HELD, Standing.WAITING)
    if waits and track.stall_s >= history.config.stall_floor_s / 2:
        return RankHealth.WAITING
    return RankHealth.HEALTHY
