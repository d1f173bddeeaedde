"""The witness of collectives and transfers, by heads: who is inside, and who has not come. Pure.

Collectives are counted by group, sends and receives by (group, peer, tag): a number means the same
call on all sides. In a pair, the end that has posted fewer is waited for. Batched calls hold a rank
while it waits for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import itemgetter

from lightkeeper.monitor.detect.graph import Stuck
from lightkeeper.monitor.detect.track import RankTrack, of_own_group
from lightkeeper.monitor.model.grouping import grouped
from lightkeeper.monitor.model.names import GroupName, RankName
from lightkeeper.monitor.model.verdict import RankStanding
from lightkeeper.worker_server.wire import TransferHead


def stuck_in(
    group: GroupName, members: tuple[RankTrack, ...], standing: Mapping[RankName, RankStanding]
) -> Iterable[Stuck]:
    """Each collective that holds a member of the group, by process group and sequence."""
    holding = grouped(
        ((head.name, head.inside), track)
        for track in members
        if standing[track.rank] is RankStanding.HELD
        for head in track.inside
        if of_own_group(head, track)
    )
    if not holding:
        return
    by_name = {track.rank: {head.name: head for head in track.heads} for track in members}
    for (name, seq), inside in sorted(holding.items(), key=itemgetter(0)):
        heads = {rank: own[name] for rank, own in by_name.items() if name in own}
        first = heads[inside[0].rank]
        complete = len(heads) >= first.size  # else any of the group may be a member
        pool = [rank for rank in by_name if rank in heads or not complete]
        yield Stuck(
            group=group,
            process_group=name,
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

    A receive from any sender waits for nobody in particular, so it is no edge.
    """
    tracks = {track.identity.group_rank: track for track in members}
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


def _counterpart(own: TransferHead, track: RankTrack, peer: RankTrack) -> TransferHead | None:
    """The peer's side of the same stream of transfers."""
    sides = () if peer.report is None else peer.report.transfers
    key = (own.group, track.identity.group_rank, own.tag, own.sends)
    return next((t for t in sides if (t.group, t.peer, t.tag, not t.sends) == key), None)
