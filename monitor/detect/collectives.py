"""The witness of collectives and transfers, by heads: who is inside, and who has not come. Pure.

Collectives are counted by group, sends and receives by (group, peer, tag): a number means the same
call on all sides. In a pair, the end that has posted fewer is waited for. Batched calls hold a rank
while it waits for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

from lightkeeper.monitor.detect.graph import Stuck
from lightkeeper.monitor.detect.track import RankTrack, of_own_group
from lightkeeper.monitor.model.names import GroupName, RankName
from lightkeeper.monitor.model.units import grouped
from lightkeeper.monitor.model.verdict import RankStanding
from lightkeeper.worker_server.wire import GroupHead, TransferHead


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


def transfers_in(
    group: GroupName, members: tuple[RankTrack, ...], standing: Mapping[RankName, RankStanding]
) -> Iterable[Stuck]:
    """Each send and receive that holds a member of the group; the two ends count alike.

    A receive from any sender waits for the only rank that nothing holds; else it is no edge.
    """
    tracks = _by_number(members, standing)
    for track in members:
        if standing[track.rank] is not RankStanding.HELD:
            continue
        for own in track.held:
            peer = tracks.get(own.peer)
            if peer is None or peer is track:
                continue
            there = _counterpart(own, track, peer)
            both = there is not None and there.held == own.held
            if both and peer.identity.group_rank < track.identity.group_rank:
                continue  # yielded as the peer's
            posted = there is not None and there.posted >= own.held
            yield Stuck(
                group=group,
                process_group=own.group,
                seq=own.held,
                size=2,
                joined=(track.rank, peer.rank) if both else (track.rank,),
                absent=() if posted else (peer.rank,),
                ops=("send" if own.sends else "recv",),
                stall_s=min(track.stall_s, peer.stall_s) if both else track.stall_s,
                transfer=True,
            )


def _by_number(
    members: tuple[RankTrack, ...], standing: Mapping[RankName, RankStanding]
) -> dict[int, RankTrack]:
    """Ranks by their number in the group; by that of any sender the only one that can send."""
    free = [track for track in members if standing[track.rank] is not RankStanding.HELD]
    ranks = {track.identity.group_rank: track for track in members}
    return ranks | ({-1: free[0]} if len(free) == 1 else {})


def _counterpart(own: TransferHead, track: RankTrack, peer: RankTrack) -> TransferHead | None:
    """The peer's side of the same stream of transfers."""
    sides = () if peer.report is None else peer.report.transfers
    key = (own.group, track.identity.group_rank, own.tag, own.sends)
    return next((t for t in sides if (t.group, t.peer, t.tag, not t.sends) == key), None)
