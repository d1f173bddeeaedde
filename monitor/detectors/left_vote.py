"""A rank that goes on to the next step without its vote (class H2 in TorchFT's own calls).

Theory of operation. A group's Manager asks for a quorum once all of the group's ranks have, and
answers a commit vote once all have voted. With some in the quorum and others in the vote nobody
gets out: those in the quorum have left the vote out, mostly by a `continue` or a swallowed
exception. Where they are the majority the others vote once too often.
"""

from __future__ import annotations

from monitor.detectors.verdict import Confidence, Kind, Verdict
from monitor.detectors.waits import Standing, WaitGraph
from monitor.detectors.wording import listed, plural, seconds
from monitor.history import History, RankTrack
from worker_server.wire import WAIT_COMMIT, WAIT_QUORUM


def left_vote(history: History, graph: WaitGraph) -> tuple[Verdict, ...]:
    """One verdict for each replica group that is torn so."""
    judged = (_judge(history, graph, members) for members in history.groups().values())
    return tuple(verdict for verdict in judged if verdict is not None)


def _judge(history: History, graph: WaitGraph, members: tuple[RankTrack, ...]) -> Verdict | None:
    still = [
        track
        for track in members
        if graph.standing[track.rank] is Standing.WAITING
        and track.stall_s >= history.hang_after_s(track)
    ]
    ahead = tuple(track.rank for track in still if track.waits_in == WAIT_QUORUM)
    voting = tuple(track.rank for track in still if track.waits_in == WAIT_COMMIT)
    if not ahead or not voting:
        return None
    still_s = min(t.stall_s for t in still if t.rank in (*ahead, *voting))
    culprits = ahead if len(ahead) <= len(voting) else voting
    others = tuple(r for r in graph.victims(culprits) if r not in (*ahead, *voting))
    return Verdict(
        kind=Kind.MISMATCH,
        culprits=culprits,
        groups=(members[0].group,),
        reason=f"{listed(ahead)} {plural(ahead, 'waits', 'wait')} in the quorum of the next step, "
        f"{listed(voting)} in the commit vote of this one, for {seconds(still_s)}: "
        + (
            f"{listed(ahead)} left the vote out, as after a `continue` or a swallowed exception"
            if culprits is ahead
            else f"{listed(voting)} {plural(voting, 'votes', 'vote')} once more than the others"
        ),
        confidence=Confidence.LIKELY,
        since_s=history.now_s - still_s,
        victims=tuple(sorted({*ahead, *voting, *others} - set(culprits))),
        evidence={"source": "TorchFT's own calls, as the WorkerServers saw them"},
        signature="mismatch:commit vote",
    )
