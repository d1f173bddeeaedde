"""Process groups that ranks are creating: who waits for whom at a job's start. Pure.

Theory of operation. Every rank of a job has to call `new_group` for every group, in the same order,
also for groups that it is no member of. So the number of the call says which group a rank is at,
and the members it asked for say whether it means the same one. Ranks that create a group wait for
all others that do not (a store, then the members' connections). Ranks that create different groups
at one number show that one of them has left a call out, and so does a rank that works on while
others create a group that it has not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lightkeeper.monitor.detect.graph import By
from lightkeeper.monitor.detect.history import History
from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.model.names import GroupName, RankName
from lightkeeper.monitor.model.units import grouped
from lightkeeper.monitor.model.verdict import Confidence, Kind, Verdict
from lightkeeper.monitor.model.wording import does, listed, seconds
from lightkeeper.worker_server.wire import Forming

_SHOWN: Final = 8


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
    by: By = By.GROUP
    """The witness of the wait."""


def forming_waits(history: History) -> Iterator[Team]:
    """The process groups that are being created, by replica group, number and members."""
    for group, members in history.groups().items():
        creating = [(track, track.forming) for track in members if track.forming is not None]
        calls = grouped(
            ((call.call == "init_process_group", call.nth, call.ranks), (track, call))
            for track, call in creating
        )
        for _, inside in sorted(calls.items()):
            joined = tuple(track.rank for track, _ in inside)
            yield Team(
                group=group,
                joined=joined,
                absent=tuple(track.rank for track in members if track.rank not in joined),
                forming=inside[0][1],
                stall_s=min(forming.age_s for _, forming in inside),
            )


_STARTS_S: Final = 30.0
"""Ranks of one job come to `init_process_group` this far apart in a healthy start: each imports
torch first (16 CPU s, facts/trainer.md). Only then is a store that all wait for reported."""


def forming(history: History) -> Iterator[Verdict]:
    """Ranks that create different process groups, or all wait for one store; a verdict a group."""
    teams = grouped((team.group, team) for team in forming_waits(history))
    for group, of_group in teams.items():
        yield from _judge(history, group, of_group)


def _judge(history: History, group: GroupName, teams: list[Team]) -> Iterator[Verdict]:
    members = history.groups()[group]
    stands_s = min(team.stall_s for team in teams)
    ranks = [rank for team in teams for rank in team.joined]
    # has gone on to collectives, and waits in one for those that create a group
    apart = [t for t in members if t.rank not in ranks and t.inside_own]
    if len(teams) > 1 or apart:
        if stands_s >= max(history.hang_after_s(history.tracks[rank]) for rank in ranks):
            yield _differ(history, group, teams, apart, stands_s)
    elif len(ranks) == len(members) >= members[0].identity.world_size and stands_s >= _STARTS_S:
        yield _all_wait(history.now_s, group, teams[0], stands_s)


def _differ(
    history: History, group: GroupName, teams: list[Team], apart: list[RankTrack], stands_s: float
) -> Verdict:
    """Sides that do not mean the same group: the smaller one has left a call out, if one is."""
    gone_on = tuple(track.rank for track in apart)
    sides = [side for side in (*(team.joined for team in teams), gone_on) if side]
    everyone = {rank for side in sides for rank in side}
    largest = max(sides, key=len)
    odd = tuple(sorted(everyone - set(largest)))
    clear = 2 * len(largest) > history.groups()[group][0].identity.world_size
    culprits = odd if clear else tuple(sorted(everyone))
    return Verdict(
        kind=Kind.MISMATCH,
        culprits=culprits,
        groups=(group,),
        reason=_said(teams, gone_on, stands_s)
        + (
            f"{listed(odd)} left out the one {_left_out(teams, largest, odd)}"
            if clear
            else "one side left a call out, or makes one more"
        ),
        confidence=Confidence.LIKELY if clear else Confidence.UNSURE,
        since_s=history.now_s - stands_s,
        victims=tuple(sorted(everyone - set(odd) if clear else everyone)),
        evidence={
            rank: "; ".join(
                [*(_of(c.ranks, c.site) for c in team.forming.earlier), _call(team.forming)]
            )
            for team in teams
            for rank in team.joined[:_SHOWN]
        },
        signature="mismatch:new_group",
    )


def _said(teams: list[Team], gone_on: tuple[RankName, ...], stands_s: float) -> str:
    """Where each side stands, and what the rule is."""
    said = [f"{does(team.joined, 'is')} in {_call(team.forming)}" for team in teams]
    if gone_on:
        said.append(f"{does(gone_on, 'has')} moved on to a collective")
    return (
        f"{'; '.join(said)}, for {seconds(stands_s)}. Every rank has to call new_group for every "
        "group, in the same order, even for groups that it is not in: "
    )


def _left_out(teams: list[Team], right: tuple[RankName, ...], odd: tuple[RankName, ...]) -> str:
    """The first call of the larger side that the smaller one has not made there."""
    theirs = next((_numbered(t.forming) for t in teams if t.joined == right), {})
    ours = next((_numbered(t.forming) for t in teams if set(t.joined) <= set(odd)), {})
    first = next((n for n in sorted(theirs) if n in ours and theirs[n][0] != ours[n][0]), None)
    return "for which they wait" if first is None else theirs[first][1]


def _numbered(forming: Forming) -> dict[int, tuple[tuple[int, ...], str]]:
    """Number of a call -> its members and the call for people, the present one included."""
    made = [(row.ranks, _of(row.ranks, row.site)) for row in forming.earlier]
    first = forming.nth - len(made)
    made.append((forming.ranks, _of(forming.ranks, forming.site)))
    return dict(enumerate(made, first))


def _all_wait(now_s: float, group: GroupName, team: Team, stands_s: float) -> Verdict:
    """All are in the same call, and it does not end: the store, or the network between them."""
    store = team.forming.store
    where = f" for the store at {store}" if store is not None else ""
    return Verdict(
        kind=Kind.DEADLOCK,
        reason=f"all {len(team.joined)} ranks of {group} wait in {_call(team.forming)}{where} for "
        f"{seconds(stands_s)}, and nobody is missing: the store does not answer, or they do not "
        "reach each other",
        since_s=now_s - stands_s,
        victims=team.joined,
        evidence={} if store is None else {"store": store},
        signature="deadlock:forming",
    )


def _call(forming: Forming) -> str:
    """`call 1 of new_group, of ranks 1 and 2 (train.py:10)`."""
    if not forming.nth:
        return f"{forming.call}{_site(forming.site)}"
    return f"call {forming.nth} of {forming.call}, {_of(forming.ranks, forming.site)}"


def _of(ranks: tuple[int, ...], site: str | None) -> str:
    """`of ranks 1 and 2 (train.py:10)`."""
    who = f"ranks {listed([str(rank) for rank in ranks])}" if ranks else "all ranks"
    return f"of {who}{_site(site)}"


def _site(site: str | None) -> str:
    return "" if site is None else f" ({site})"
