"""The Lighthouse as seen from here and by the ranks: away, back too late, another one, or without
the ranks' requests.

Accuses no rank. A Lighthouse that does not answer this monitor: the job continues (only this
monitor cannot reach it), or the job stands too (nobody commits, and ranks wait where they wait for
a quorum: without a Lighthouse none forms, and TorchFT ends the ranks when their quorum timeout
passes, 60 s by default), or it is unknown which. A standstill with another visible reason is not
blamed on the Lighthouse.

A Lighthouse that is back does not free the waiting ranks by itself: with TorchFT 0.2.0 a quorum
request in progress when it went is lost, and without `TORCHFT_QUORUM_RETRIES` nobody repeats it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from lightkeeper.monitor.detect.dead import over
from lightkeeper.monitor.detect.endings import End, end_of
from lightkeeper.monitor.detect.graph import WaitGraph
from lightkeeper.monitor.detect.history import History
from lightkeeper.monitor.detect.intake import HEARTBEAT_TIMEOUT_S
from lightkeeper.monitor.detect.links import Edge
from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.model.names import GroupName, RankName
from lightkeeper.monitor.model.observation import NO_ANSWER
from lightkeeper.monitor.model.units import counted
from lightkeeper.monitor.model.verdict import Confidence, Kind, RankStanding, Verdict
from lightkeeper.monitor.model.wording import does, listed, rfc3339, seconds
from lightkeeper.worker_server.wire import WAIT_QUORUM, Trouble


def lighthouse_silent(history: History, graph: WaitGraph) -> Iterable[Verdict]:
    """A Lighthouse that does not answer, or is back too late; accuses nobody. The victims are the
    ranks that stand still for it.
    """
    since_s, away = history.away_since_s, history.away
    if since_s is None or away is None:
        yield from _in_vain(history, graph)
        return
    if history.now_s - since_s < history.config.lighthouse_away_s or not _needed(history, since_s):
        return
    victims = _standing(history, graph, since_s)
    commit_s = _since_commit_s(history, history.present())
    reason = (
        f"the Lighthouse does not answer for {seconds(history.now_s - since_s)}"
        f" ({away.reason}); {_effect(history, graph, victims)}"
        f"{_STUCK if NO_ANSWER in away.reason else ''}"
    )
    evidence = {
        "Lighthouse": away.reason,
        "last commit": f"{seconds(max(0.0, commit_s))} ago" if commit_s < math.inf else "none seen",
    }
    yield _away_verdict(history, reason, since_s, victims, evidence)


_STUCK: Final = (
    "; its port accepts and nothing answers: see whether anybody reads its log, as a full pipe "
    "stops it (RUST_LOG=warn), or whether its process is stopped"
)
_BROKEN_S: Final = 4.0
_BROKEN_APART_S: Final = 8.6
"""Where a rank's kernel gets no answer from the Lighthouse: longer than a flap of 8 s."""
_APART_S: Final = 10.0
"""Without a heartbeat for this long a group is not known to this Lighthouse: twice its timeout."""


APART: Final = "apart"


def apart(history: History) -> Iterable[Verdict]:
    """Groups whose ranks answer, and which the Lighthouse does not hear: one verdict each.

    A group that still commits trains by itself, under another Lighthouse. One that waits for its
    quorum gets no answer, while the others train on without it.
    """
    groups = () if history.lighthouse is None else history.groups()
    verdicts = [verdict for group in groups for verdict in _judge_apart(history, group)]
    most = 2 * len(verdicts) > len(history.groups()) and any(v.culprits for v in verdicts)
    return [_reached_by_few(history, verdicts)] if most else verdicts


def _reached_by_few(history: History, verdicts: Sequence[Verdict]) -> Verdict:
    """If most groups are cut off, that is the Lighthouse or the network: nobody is accused. After a
    flap their kernels try again one by one, each after as long as the flap took.
    """
    since_s = min(verdict.since_s for verdict in verdicts)
    broken = next(verdict for verdict in verdicts if verdict.culprits)
    groups = len(history.groups())
    who = f"{len(verdicts)} of {groups} groups do not reach"
    who = "no rank reaches" if len(verdicts) == groups else who
    whom = "nobody" if len(verdicts) == groups else "them"
    reason = (
        f"{who} the Lighthouse, which answers this monitor and has heard of {whom} for "
        f"{seconds(history.now_s - since_s)}: {broken.reason}"
    )
    waiting = tuple(t.rank for t in history.present() if t.waits_in == WAIT_QUORUM)
    return _away_verdict(history, reason, since_s, waiting, {"Lighthouse": "answers this monitor"})


def _judge_apart(history: History, group: GroupName) -> Iterable[Verdict]:
    members = history.groups()[group]
    unheard_s = _unheard_s(history, group, members)
    broken = _broken(history, members)
    least_s = _BROKEN_APART_S if broken and history.expired_for_s(group) else _APART_S
    if unheard_s < least_s or not all(map(_runs, members)) or (broken and _flapped(history)):
        return
    commit_s = _since_commit_s(history, members)
    others_s = _since_commit_s(history, [t for t in history.present() if t.group != group])
    waits_s = min((t.stall_s for t in members if t.waits_in == WAIT_QUORUM), default=0.0)
    if broken:
        reason = f"{group} cannot reach the Lighthouse: {broken[0].sentence()}, and the Lighthouse "
        reason += f"has not heard of it for {seconds(unheard_s)}"
        spare = "its ranks are well: what is between them and the Lighthouse is not"
    elif commit_s < min(unheard_s, _APART_S):
        reason = f"{group} trains alone: it commits, and this Lighthouse has not heard of it for "
        reason += f"{seconds(unheard_s)}{_theirs(members)}. Its weights drift from the others'"
        spare = "it follows another Lighthouse: an eviction would not bring it to this one"
    elif others_s < waits_s and waits_s >= _APART_S:
        reason = f"{group} asks for a quorum for {seconds(waits_s)} and is not heard: the "
        reason += f"Lighthouse had no heartbeat of it for {seconds(unheard_s)}, and the others "
        reason += f"train on without it{_theirs(members)}"
        spare = "its ranks are well: what is between them and the Lighthouse is not"
    else:
        return
    yield Verdict(
        kind=Kind.REPLICA_LAG,
        culprits=tuple(track.rank for track in members) if broken else (),
        groups=(group,),
        reason=reason,
        confidence=Confidence.CERTAIN,
        since_s=history.now_s - unheard_s,
        evidence={"Lighthouse": f"no heartbeat of {group} for {seconds(unheard_s)}"},
        spare=spare,
        signature=APART,
    )


def _flapped(history: History) -> bool:
    """True if the Lighthouse was away and came back so recently that kernels need not have tried
    again: they wait twice as long each time, so up to as long as it was away.
    """
    over = history.flap
    return over is not None and history.now_s - over.until_s < over.until_s - over.since_s + 2.0


def _broken(history: History, members: Iterable[RankTrack]) -> list[Edge]:
    """Their connections to the Lighthouse that get no answer."""
    edges = chain.from_iterable(history.links.of(track.rank) for track in members)
    to_it = (edge for edge in edges if edge.connection.use == "lighthouse")
    dead = (edge for edge in to_it if edge.connection.trouble is not Trouble.SHUT)
    return [edge for edge in dead if edge.connection.for_s >= _BROKEN_S]


def _unheard_s(history: History, group: GroupName, members: Sequence[RankTrack]) -> float:
    """For how long the Lighthouse has not heard of a group; 0 where it has no Manager."""
    if history.replica_id(group) is None:
        return 0.0
    seen_s = history.now_s - max(track.first_seen_s for track in members)
    age_s = history.heartbeat_age_s(group)
    return seen_s if age_s is None else min(age_s, seen_s)


def _since_commit_s(history: History, tracks: Iterable[RankTrack]) -> float:
    """Since the last commit of any of them; infinite if there was none."""
    commits = (track.last_commit_s for track in tracks if track.last_commit_s is not None)
    return history.now_s - max(commits, default=-math.inf)


def _theirs(members: Sequence[RankTrack]) -> str:
    """`; it asks the Lighthouse at HOST:PORT`, if known."""
    address = next((t.report.lighthouse for t in members if t.report and t.report.lighthouse), None)
    return f"; it asks the Lighthouse at {address}" if address is not None else ""


def _runs(track: RankTrack) -> bool:
    """True if its process lives, and no signal, tracer or held GIL stops it."""
    process = None if track.fresh is None else track.fresh.process
    if process is None or not process.alive or process.stopped:
        return False
    return process.tracer is None and (process.interpreter_age_s or 0.0) < HEARTBEAT_TIMEOUT_S


def _in_vain(history: History, graph: WaitGraph) -> Iterable[Verdict]:
    """It is back, and all ranks still wait for requests from before."""
    over = history.unfollowed()
    if over is None or graph.roots:
        return
    waiting = _waiting(history, graph)
    if not waiting or len(waiting) < len(history.present()):
        return
    away_s, back_s = over.until_s - over.since_s, history.now_s - over.until_s
    absence = f"away for {seconds(away_s)}" if away_s > 0 else "started anew"
    reason = (
        f"the Lighthouse was {absence} and is back for {seconds(back_s)}, but nobody has "
        f"committed since: {does(waiting, 'waits')} for a quorum asked for before. Unless TorchFT "
        "asks again (TORCHFT_QUORUM_RETRIES), it ends them at their quorum timeout, 60 s by default"
    )
    evidence = {"Lighthouse": "it counts its quorums anew" if over.anew else "it answers again"}
    yield _away_verdict(history, reason, over.since_s, waiting, evidence)


def _away_verdict(
    history: History,
    reason: str,
    since_s: float,
    victims: tuple[RankName, ...],
    evidence: dict[str, str],
) -> Verdict:
    """Accuses nobody; that it stops the job is likely at best."""
    answer = sum(track.fresh is not None for track in history.present())
    return Verdict(
        kind=Kind.LIGHTHOUSE_AWAY,
        reason=reason,
        confidence=Confidence.LIKELY if victims else Confidence.CERTAIN,
        since_s=since_s,
        victims=victims,
        evidence=evidence | {"ranks": f"{answer} of {len(history.present())} answer this monitor"},
        signature="lighthouse_away",
    )


def _needed(history: History, since_s: float) -> bool:
    """True if a rank misses it: one that may live, or that has ended since, perhaps of it."""
    asked, together_s = over(history), since_s + history.config.job_end_s
    return any(
        track.died_s is None
        or track.death_s > (since_s if end_of(track) in (End.PEERS, End.UNKNOWN) else together_s)
        for track in history.present()
        if track.rank not in asked
    )


def _goes_on(history: History) -> bool:
    """True if the last commit is more recent than the longest limit for standing still."""
    spans = (history.hang_after_s(track) for track in history.present())
    most_s = max(spans, default=history.config.stall_floor_s)
    return _since_commit_s(history, history.present()) < most_s


def _standing(history: History, graph: WaitGraph, since_s: float) -> tuple[RankName, ...]:
    """Ranks that wait for a quorum, or ended waiting, in a job that nothing else holds up."""
    if _goes_on(history) or graph.roots:
        return ()
    waiting = _waiting(history, graph)
    ended = tuple(
        track.rank
        for track in history.present()
        if graph.standing[track.rank] is RankStanding.DEAD
        and track.died_s is not None
        and track.died_s > since_s
    )
    if not waiting and len(ended) < len(history.present()):
        return ()
    return tuple(sorted({*waiting, *ended}))


def _waiting(history: History, graph: WaitGraph) -> tuple[RankName, ...]:
    """Ranks that stand where they may wait for a quorum, as far as their phases show."""
    may_wait = (RankStanding.WAITING, RankStanding.UNKNOWN)
    tracks = (t for t in history.present() if graph.standing[t.rank] in may_wait)
    return tuple(track.rank for track in tracks if track.stall_s >= history.hang_after_s(track))


def _effect(history: History, graph: WaitGraph, victims: tuple[RankName, ...]) -> str:
    if victims:
        return f"the job stands: nobody commits, and {does(victims, 'waits')} for a quorum"
    if all(track.fresh is None for track in history.present()):
        if all(track.refused for track in history.present()):
            return "nor does any rank, and nobody listens there: the whole job may have been ended"
        return "nor does any rank: this monitor may be cut off"
    if _goes_on(history):
        return "the job continues: only this monitor cannot reach it"
    if graph.roots:
        return f"cannot tell if the job needs it: {does(graph.roots, 'stands')} still itself"
    return "cannot tell yet if the job can do without it"


# -- requests for a quorum that are lost ---------------------------------------------------------
#
# A group's Manager sends one request when all its ranks have asked, and it stays open until the
# quorum forms. A gate that is replaced, or a connection that dies, takes it along, and TorchFT
# reports that to no rank. The Lighthouse's page counts the requests that it has. While all ranks of
# all groups have waited for longer than this job's quorums take, no request, or fewer than groups
# whose heartbeats it hears, means lost ones. Mostly TorchFT asks again within seconds.

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
