"""The witness of collectives: who is inside one, and who has not come, by heads of groups. Pure.

Sends and receives have no part in it: their numbers are private to a pair, see `transfers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

from lightkeeper.monitor.detect.graph import Stuck
from lightkeeper.monitor.detect.track import RankTrack, of_own_group
from lightkeeper.monitor.model.grouping import grouped
from lightkeeper.monitor.model.names import GroupName, RankName
from lightkeeper.monitor.model.verdict import RankStanding
from lightkeeper.worker_server.wire import GroupHead


def stuck_in(
    group: GroupName, members: tuple[RankTrack, ...], standing: Mapping[RankName, RankStanding]
) -> Iterable[Stuck]:
    """Each collective that holds a member of the group, by process group and sequence."""
    joined = grouped(
        ((head.name, head.inside), track)
        for track in members
        if standing[track.rank] is RankStanding.HELD
        for head in track.inside
        if of_own_group(head, track)
    )
    if not joined:
        return
    heads = {track.rank: {head.name: head for head in track.heads} for track in members}
    for (name, seq), inside in sorted(joined.items(), key=itemgetter(0)):
        entered = {rank: by_name[name] for rank, by_name in heads.items() if name in by_name}
        yield _stuck(group, members, entered, seq, inside)


def _stuck(
    group: GroupName,
    members: Iterable[RankTrack],
    heads: Mapping[RankName, GroupHead],
    seq: int,
    inside: Sequence[RankTrack],
) -> Stuck:
    """One collective; `heads`: where the members are in its process group, as far as reported."""
    first = heads[inside[0].rank]
    pool = [track.rank for track in members]
    if len(heads) >= first.size:
        pool = [rank for rank in pool if rank in heads]
    return Stuck(
        group=group,
        process_group=first.name,
        seq=seq,
        size=first.size,
        ops=tuple(sorted({heads[track.rank].op for track in inside})),
        joined=tuple(track.rank for track in inside),
        absent=tuple(r for r in pool if r not in heads or heads[r].enqueued < seq),
        completed=tuple(r for r in pool if r in heads and heads[r].completed >= seq),
        stall_s=min(track.stall_s for track in inside),
        recorded=first.read_age_s is not None,
    )
