"""Requests for a quorum that are lost: all groups ask for one, and the Lighthouse lacks some. Pure.

Accuses nobody. A group's Manager sends one request when all its ranks have asked, and it stays open
until the quorum forms. A gate or Lighthouse that is replaced, or a connection that dies, takes it
along, and TorchFT reports that to no rank: they wait until their quorum timeout ends them. The
Lighthouse's page counts the requests that it has. While all ranks of all groups have waited for
longer than this job's quorums take, a count of none, or lower than that of the groups whose
heartbeats it hears, means lost requests. Where TorchFT asks again (`TORCHFT_QUORUM_RETRIES`) that
is over within seconds, and nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from lightkeeper.monitor.detect.history import History
from lightkeeper.monitor.detect.intake import HEARTBEAT_TIMEOUT_S
from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.model.names import GroupName
from lightkeeper.monitor.model.verdict import Confidence, Kind, Verdict
from lightkeeper.monitor.model.wording import counted, listed, rfc3339, seconds
from lightkeeper.worker_server.wire import WAIT_QUORUM, Trouble

_LEAST_S: Final = 5.0
"""TorchFT asks again after about a second, and a dead connection is shut after four."""
_LONGER: Final = 2.0
_AROUND_S: Final = 10.0
"""What was replaced so long before all began to wait may have taken their requests along."""


def quorum_lost(history: History) -> tuple[Verdict, ...]:
    """At most one verdict; its victims are all ranks."""
    tracks, view = history.present(), history.lighthouse
    waited_s, groups = _all_ask_s(history), len(history.groups())
    if waited_s is None or view is None or view.requests is None:
        return ()
    if view.requests and view.requests >= sum(_heard(history, group) for group in history.groups()):
        return ()  # of a group that is not heard `apart` tells
    if waited_s < max(_LEAST_S, _LONGER * max(map(_usual_s, tracks))) or history.unfollowed():
        return ()
    has = f"{view.requests} of {groups} requests" if view.requests else "nobody's request"
    brief = f"{counted(len(tracks), 'rank')} of {counted(groups, 'group')} ask for a quorum"
    since_s = history.now_s - waited_s
    reason = (
        f"all {brief} for {seconds(waited_s)}, and the Lighthouse has {has}: what is missing was "
        f"lost{_with_what(history, since_s)}. "
    )
    return (
        Verdict(
            kind=Kind.QUORUM_LOST,
            reason=reason + ". ".join([*_connections(history), _end(history, tracks)]),
            brief=f"{brief}, and the Lighthouse has {has}",
            confidence=Confidence.CERTAIN,
            since_s=since_s,
            victims=tuple(track.rank for track in tracks),
            evidence={"Lighthouse": view.status},
            signature="quorum_lost",
        ),
    )


def _all_ask_s(history: History) -> float | None:
    """For how long every rank of every group has asked for a quorum; None: one does not."""
    tracks, least_s = history.present(), math.inf
    for track in tracks:
        step = track.step
        if track.fresh is None or track.waits_in != WAIT_QUORUM or step is None:
            return None
        least_s = min(least_s, step.waits_s or 0.0)
    whole = tracks and not any(map(history.unregistered, history.groups()))
    return least_s if whole else None


def _heard(history: History, group: GroupName) -> bool:
    age_s = history.heartbeat_age_s(group)
    return age_s is not None and age_s < HEARTBEAT_TIMEOUT_S


def _usual_s(track: RankTrack) -> float:
    """How long a quorum of this rank takes, on average."""
    took = None if track.step is None else track.step.times.get("quorum")
    return took.sum_s / took.done if took is not None and took.done else 0.0


def _with_what(history: History, since_s: float) -> str:
    """What was replaced then."""
    gate_s, flap = history.gate_began_s, history.flap
    if gate_s is not None and gate_s > since_s - _AROUND_S:
        return f" with the gate, which was replaced at {_clock(gate_s)}"
    if flap is not None and flap.until_s > since_s - _AROUND_S:
        return f" with the Lighthouse, which was away until {_clock(flap.until_s)}"
    return ""


def _clock(at_s: float) -> str:
    return f"{rfc3339(at_s)[11:19]} UTC"


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
        yield f"{dead[first].sentence()}{also}"


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
