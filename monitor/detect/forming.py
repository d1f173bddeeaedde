"""Process groups that ranks are creating: who waits for whom at a job's start. Pure.

Theory of operation. Every rank of a job has to call `new_group` for every group, in the same order,
also for groups that it is no member of. So the number of the call says which group a rank is at,
and the members it asked for say whether it means the same one. Ranks that create a group wait for
all others that do not (a store, then the members' connections). Ranks that create different groups
at one number show that one of them has left a call out, and so does a rank that works on while
others create a group that it has not.
"""

from __future__ import annotations

from dataclasses import dataclass

from monitor.detect.history import History
from monitor.detect.track import RankTrack
from monitor.model.names import GroupName, RankName
from worker_server.wire import Forming


@dataclass(frozen=True, slots=True)
class Team:
    """Ranks of one replica group that create the same process group."""

    group: GroupName
    joined: tuple[RankName, ...]
    absent: tuple[RankName, ...]
    """Ranks of the replica group that create another group, or none."""
    forming: Forming
    """As the first of them reports it."""
    stall_s: float


def forming_waits(history: History) -> tuple[Team, ...]:
    """The process groups that are being created, by replica group, number and members."""
    teams: list[Team] = []
    for group, members in history.groups().items():
        calls: dict[tuple[object, ...], list[tuple[RankTrack, Forming]]] = {}
        for track in members:
            if (forming := track.forming) is not None:
                key = forming.call == "init_process_group", forming.nth, forming.ranks
                calls.setdefault(key, []).append((track, forming))
        for _, inside in sorted(calls.items()):
            joined = tuple(track.rank for track, _ in inside)
            teams.append(
                Team(
                    group=group,
                    joined=joined,
                    absent=tuple(track.rank for track in members if track.rank not in joined),
                    forming=inside[0][1],
                    stall_s=min(forming.age_s for _, forming in inside),
                )
            )
    return tuple(teams)
