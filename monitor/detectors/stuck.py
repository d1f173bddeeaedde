"""Unfinished collectives of a replica group, by the heads of its ranks: who is in, who is not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from monitor.detectors.standing import Standing
from monitor.history import RankTrack, inside_own_group
from monitor.names import GroupName, RankName


@dataclass(frozen=True, slots=True)
class Stuck:
    """An unfinished collective of one replica group's process group."""

    group: GroupName
    process_group: str
    seq: int
    size: int
    ops: tuple[str, ...]
    """Names under which its members entered it, sorted."""
    joined: tuple[RankName, ...]
    """Inside it now."""
    absent: tuple[RankName, ...]
    """Of the members known, those that have not entered it."""
    completed: tuple[RankName, ...]
    """Those that are through with it."""
    stall_s: float
    """At least so long no one inside moved."""
    recorded: bool = False
    """By heads of torch's recorder: no ring has its entries."""

    @property
    def complete(self) -> bool:
        """Whether every member is inside, or has been: nobody is waited for."""
        return not self.absent


def stuck_in(
    group: GroupName, members: tuple[RankTrack, ...], standing: Mapping[RankName, Standing]
) -> Iterable[Stuck]:
    """Each collective in which a member of the group stands, by process group and sequence."""
    held = [track for track in members if standing[track.rank] is Standing.HELD]
    if not held:
        return
    heads = {
        track.rank: {head.name: head for head in track.report.heads}
        for track in members
        if track.report is not None
    }
    names = sorted(
        {
            head.name
            for track in held
            for head in heads[track.rank].values()
            if inside_own_group(head, track)
        }
    )
    for name in names:
        inside = [
            t for t in held if name in heads[t.rank] and inside_own_group(heads[t.rank][name], t)
        ]
        for seq in sorted({heads[track.rank][name].inside for track in inside}):
            joined = [t for t in inside if heads[t.rank][name].inside == seq]
            size = heads[joined[0].rank][name].size
            knowing = [t for t in members if name in heads.get(t.rank, {})]
            pool = knowing if len(knowing) >= size else members
            absent = tuple(
                track.rank
                for track in pool
                if name not in heads.get(track.rank, {}) or heads[track.rank][name].enqueued < seq
            )
            completed = tuple(
                track.rank
                for track in pool
                if name in heads.get(track.rank, {}) and heads[track.rank][name].completed >= seq
            )
            yield Stuck(
                group=group,
                process_group=name,
                seq=seq,
                size=size,
                ops=tuple(sorted({heads[track.rank][name].op for track in joined})),
                joined=tuple(track.rank for track in joined),
                absent=absent,
                completed=completed,
                stall_s=min(track.stall_s for track in joined),
                recorded=heads[joined[0].rank][name].read_age_s is not None,
            )
