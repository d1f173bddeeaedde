"""Requests for a quorum that are lost: all groups ask for one, and the Lighthouse lacks some. Pure.

Accuses nobody. A group's Manager sends one request when all its ranks have asked, and it stays open
until the quorum forms. A gate that is replaced, or a connection that dies, takes it along, and
TorchFT reports that to no rank. The Lighthouse's page counts the requests that it has. While all
ranks of all groups have waited for longer than this job's quorums take, no request, or fewer than
groups whose heartbeats it hears, means lost ones. Mostly TorchFT asks again within seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from lightkeeper.monitor.detect.history import History
from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.model.units import counted
from lightkeeper.monitor.model.verdict import Confidence, Kind, Verdict
from lightkeeper.monitor.model.wording import listed, rfc3339, seconds
from lightkeeper.worker_server.wire import WAIT_QUORUM, Trouble

_LEAST_S: Final = 5.0
"""TorchFT asks again after about a second, and a dead connection is shut after four."""
_LONGER: Final = 2.0
_AROUND_S: Final = 10.0
"""What was replaced so long before all began to wait may have taken their requests along."""


def quorum_lost(history: History) -> Iterator[Verdict]:
    """Lost requests for a quorum; the victims are all ranks."""
    tracks, view = history.present(), history.lighthouse
    waited_s, groups = _all_ask_s(history), len(history.groups())
    if waited_s is None or view is None or view.requests is None:
        return
    heard = sum(not history.expired_for_s(group) for group in history.groups())
    if view.requests and view.requests >= heard:
        return  # of a group that is not heard `apart` tells
    if waited_s < max(_LEAST_S, _LONGER * max(map(_usual_s, tracks))) or history.unfollowed():
        return
    has = f"{view.requests} of {groups} requests" if view.requests else "nobody's request"
    brief = f"{counted(len(tracks), 'rank')} of {counted(groups, 'group')} ask for a quorum"
    since_s = history.now_s - waited_s
    reason = (
        f"all {brief} for {seconds(waited_s)}, and the Lighthouse has {has}: what is missing was "
        f"lost{_with_what(history, since_s)}. "
    )
    yield Verdict(
        kind=Kind.QUORUM_LOST,
        reason=reason + ". ".join([*_connections(history), _end(history, tracks)]),
        brief=f"{brief}, and the Lighthouse has {has}",
        confidence=Confidence.CERTAIN,
        since_s=since_s,
        victims=tuple(track.rank for track in tracks),
        evidence={"Lighthouse": view.status},
        signature="quorum_lost",
    )


def _all_ask_s(history: History) -> float | None:
    """For how long every rank of every group has asked for a quorum; None: one does not."""
    tracks, groups = history.present(), history.groups()
    if any(map(history.unregistered, groups)) or any(t.waits_in != WAIT_QUORUM for t in tracks):
        return None
    return min((track.step.waits_s or 0.0 for track in tracks if track.step), default=None)


def _usual_s(track: RankTrack) -> float:
    """How long a quorum of this rank takes, on average."""
    took = None if track.step is None else track.step.times.get("quorum")
    return took.sum_s / took.done if took is not None and took.done else 0.0


def _with_what(history: History, since_s: float) -> str:
    """What was replaced then."""
    gate_s = history.gate_began_s
    if gate_s is None or gate_s < since_s - _AROUND_S:
        return ""
    return f" with the gate, which was replaced at {rfc3339(gate_s)[11:19]} UTC"


def _connections(history: History) -> Iterator[str]:
    """What the ranks' kernels say, and what was done about it."""
    edges = [edge for edge in history.links.edges if edge.connection.use == "lighthouse"]
    shut = {edge.rank for edge in edges if edge.connection.trouble is Trouble.SHUT}
    if shut:
        yield f"Dead connections of {listed(sorted(shut))} were shut, so that TorchFT asks again"
    dead = {edge.rank: edge for edge in edges if edge.rank not in shut}
    if dead:
        first, *others = sorted(dead)
        also = f" ({listed(others)} too)" if others else ""
        yield f"The kernel says: {dead[first].sentence()}{also}"


def _end(history: History, tracks: Sequence[RankTrack]) -> str:
    """When TorchFT ends them, and what that costs."""
    left_s = min(track.limit_s - (track.step.waits_s or 0.0) for track in tracks if track.step)
    when = f" in {seconds(max(0.0, left_s))}" if math.isfinite(left_s) else ""
    step = history.progress.step
    since = f" of its {step + 1:,} steps" if step >= 0 else ""
    return (
        f"Without an answer their quorum timeout ends all of them{when}, and the job goes back to "
        f"its last checkpoint, or loses all{since}"
    )
