"""The witness of sends and receives: each end waits for the other, by what both have posted. Pure.

Both ends count by (group, peer, tag), so a number means the same transfer on both. The end that has
posted fewer is waited for. Batched calls hold a rank while it waits for their works.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lightkeeper.monitor.detect.graph import Stuck
from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.model.names import GroupName, RankName
from lightkeeper.monitor.model.verdict import RankStanding
from lightkeeper.worker_server.wire import TransferHead


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
