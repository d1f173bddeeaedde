"""What may be decided while the Lighthouse does not answer. Pure.

Theory of operation. Without a Lighthouse no quorum forms: soon everybody waits, and after TorchFT's
quorum timeout everybody ends. So a verdict counts only where a wait for the Lighthouse cannot
explain it: processes that are dead, stopped or run no Python, collectives and weights that differ,
a rank that stood still before the Lighthouse went, and one that stands in a phase of its own work
while others wait for it. And an eviction is worth asking for only where somebody else can confirm
it: the group's own WorkerServers, or a gate, which also keeps the group out when the Lighthouse is
back.
"""

from __future__ import annotations

from typing import Final

from monitor.detectors.verdict import Kind
from monitor.detectors.wording import listed
from monitor.history import FINISHED_PHASE, UNDECLARED, History, RankTrack
from monitor.incident import Incident
from monitor.snapshot import LighthouseAway, Snapshot
from worker_server.wire import LONG_PHASES, WAITING_PHASE

_NOT_ITS_WORK: Final = frozenset({WAITING_PHASE, "quorum", "init", UNDECLARED, FINISHED_PHASE})
"""Phases in which a rank may wait for a quorum, as far as anybody can tell."""
_LOOK_S: Final = 3.0
"""A look at the Lighthouse takes at most so long: it may have gone that much, and a tick, before it
was seen to be away."""


def missing_without(history: History, snapshot: Snapshot, incident: Incident) -> str | None:
    """What is missing to judge and confirm an eviction without a Lighthouse; None: nothing is."""
    away = snapshot.lighthouse
    if not isinstance(away, LighthouseAway) or not incident.groups:
        return None
    if not away.missed and not snapshot.gate_up:
        return "nor is there a gate"
    members = [t for group in incident.groups for t in history.groups().get(group, ())]
    if members and all(track.died_s is not None for track in members):
        return "every process of it is gone, and nothing else shows whether its heartbeat goes on"
    explained = _explained(history, incident)
    if explained is not None:
        return explained
    unseen = [track.rank for track in members if track.fresh is None]
    if snapshot.gate_up or (members and not unseen):
        return None
    return f"nor {listed(tuple(unseen) or incident.culprits)}: nobody could confirm an eviction"


def _explained(history: History, incident: Incident) -> str | None:
    """How the Lighthouse's absence may explain what an incident says; None when it cannot."""
    match incident.kind:
        case Kind.DEAD | Kind.MISMATCH | Kind.DEADLOCK | Kind.STATE_CORRUPT:
            return None
        case Kind.STRAGGLER | Kind.REPLICA_LAG | Kind.LIGHTHOUSE_AWAY | Kind.UNSEEN | Kind.BY_HAND:
            return "the pace of a job without quorums says nothing"
        case Kind.NOT_ENTERED:
            found = {rank: history.tracks.get(rank) for rank in incident.culprits}
            waits = [r for r, t in found.items() if not t or not _by_itself(history, incident, t)]
            return f"{listed(tuple(waits))} may wait for it" if waits else None


def _by_itself(history: History, incident: Incident, track: RankTrack) -> bool:
    """Whether a rank stands still for another reason than the Lighthouse."""
    fresh, since_s = track.fresh, history.away_since_s
    if fresh is None:
        return False
    silent_s = fresh.process.interpreter_age_s
    frozen = silent_s is not None and silent_s >= history.hang_after_s(track)
    if history.stopped(track) or frozen:
        return True
    margin_s = history.config.tick_s + _LOOK_S
    if since_s is not None and history.now_s - track.stall_s < since_s - margin_s:
        return True  # it stood before the Lighthouse went
    working = track.phased and track.doing not in _NOT_ITS_WORK and track.doing not in LONG_PHASES
    return working and not history.starting(track) and bool(incident.verdict.victims)
