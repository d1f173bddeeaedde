"""Participants that no WorkerServer reports: they take part, and may be who is waited for. Pure.

Theory of operation. Whoever beats at the Lighthouse is waited for by every quorum, seen or not: a
group without WorkerServers, or a second life of one that is seen (its launcher died and left its
ranks behind; the id that nobody reports is the older one). If all ranks that are seen wait and
exactly one participant is unseen, it is the root, by elimination. It bears the name of its group
and the beginning of its uuid, so that to put it out never means the processes that are seen.
"""

from __future__ import annotations

from typing import Final

from monitor.detectors.sentence import waits_in
from monitor.detectors.verdict import Confidence, Kind, Verdict
from monitor.detectors.waits import Standing, WaitGraph
from monitor.detectors.wording import listed, plural, seconds
from monitor.history import History
from monitor.names import GroupName, ReplicaId, group_of_replica, rank_name, unseen_name

_WAITS: Final = (Standing.WAITING, Standing.HELD)
_SHOWN: Final = 4


def unseen(history: History, graph: WaitGraph) -> tuple[Verdict, ...]:
    """Those whom nobody reports, in one verdict; another for the one that alone is missing."""
    found = history.unseen()
    root = _root(history, graph, found)
    rest = tuple(one for one in found if one != root)
    told = (_told(history, rest),) if rest else ()
    return told if root is None else (*told, _missing(history, graph, root))


def _root(history: History, graph: WaitGraph, found: tuple[ReplicaId, ...]) -> ReplicaId | None:
    """The one that all who are seen wait for."""
    tracks = [t for t in history.present() if graph.standing[t.rank] is not Standing.DEAD]
    if len(found) != 1 or not tracks or history.away is not None:
        return None
    waits = all(
        graph.standing[track.rank] in _WAITS
        and track.stall_s >= max(history.hang_after_s(track), history.config.witnessed_floor_s)
        and not (track.step is not None and track.step.healing)
        for track in tracks
    )
    across = any(graph.standing[track.rank] is Standing.WAITING for track in tracks)
    complete = any(stuck.complete for stuck in graph.stuck)
    return found[0] if waits and across and not complete else None


def _told(history: History, rest: tuple[ReplicaId, ...]) -> Verdict:
    """They take part and harm nobody so far."""
    return Verdict(
        kind=Kind.UNSEEN,
        culprits=(),
        groups=(),
        reason="; ".join(_who(history, one) for one in rest[:_SHOWN])
        + (f"; and {len(rest) - _SHOWN} more" if len(rest) > _SHOWN else "")
        + "; should one hang, only the Lighthouse's kill, a gate or a scheduler can put it out",
        confidence=Confidence.CERTAIN,
        since_s=min(map(history.unseen_since_s, rest)),
        evidence={"Lighthouse": f"{listed(rest)} beat, and no rank reports them"},
        signature="unseen",
    )


def _who(history: History, replica_id: ReplicaId) -> str:
    group = group_of_replica(replica_id)
    here = seconds(history.now_s - history.unseen_since_s(replica_id))
    name = unseen_name(replica_id)
    if any(track.died_s is None for track in history.groups().get(group, ())):
        return (
            f"{group} trains twice: beside the ranks that are seen {name} takes part for {here}, "
            "a life of it that its launcher has lost"
        )
    return f"{name} takes part for {here}, and no WorkerServer reports it"


def _missing(history: History, graph: WaitGraph, replica_id: ReplicaId) -> Verdict:
    """All who are seen wait for it."""
    victims = tuple(sorted(r for r, s in graph.standing.items() if s in _WAITS))
    still_s = min(history.tracks[victim].stall_s for victim in victims)
    group = GroupName(unseen_name(replica_id))
    return Verdict(
        kind=Kind.NOT_ENTERED,
        culprits=(rank_name(group, 0),),
        groups=(group,),
        reason=f"{group_of_replica(replica_id)} hangs where nobody can look: "
        f"{listed(victims)} {plural(victims, 'waits', 'wait')}{waits_in(history, victims)} for "
        f"{seconds(still_s)}, and it alone has not come; {_who(history, replica_id)}",
        confidence=Confidence.LIKELY,
        since_s=history.now_s - still_s,
        victims=victims,
        evidence={
            "Lighthouse": f"{replica_id} beats, and no rank reports it",
            "source": "elimination: every rank that is seen waits",
        },
    )
