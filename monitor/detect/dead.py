"""Dead processes, lost hosts (class D), and a Lighthouse that does not answer.

Theory of operation. A death may follow from another one: torchft's DDP ends survivors when a peer
dies inside an all-reduce, and TorchFT's timeouts end ranks that wait. So a group that has not
committed since a rank of another group died, and that shows no reason of its own for its end, died
of that: it is a victim, and the first death is blamed, even once all are gone. A job is taken for
finished, and nothing is reported, when all ranks end at about the same time and alike.

A WorkerServer that cannot be reached is no dead rank: the server itself may be gone. A process is
dead when its WorkerServer says so. Hosts count as lost only when every WorkerServer there is silent
and the group's heartbeat, a second channel, is stale too; where other hosts of the group still
answer, the Manager must have been on a silent one, and all that answer stand still.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Final

from monitor.detect.history import History
from monitor.detect.patience import allowance
from monitor.detect.track import FINISHED_PHASE, RankTrack, inside_own_group
from monitor.detect.waits import WaitGraph
from monitor.detect.wording import named as ranks_named
from monitor.detect.wording import of_death, waits_for, why_it_died
from monitor.model.names import GroupName, RankName
from monitor.model.observation import stopped
from monitor.model.verdict import Confidence, Kind, RankStanding, Verdict
from monitor.model.wording import listed, plural, seconds

_OWN_SIGNALS: Final = frozenset({"SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE"})
_SHOWN: Final = 8
_SEEN_LATE_S: Final = 1.0
"""How much later than another WorkerServer one on a busy host may see a death: it exceeded
`death_slack_s` at a load of 8 on two cores (2026-11-24). Launchers wait longer between SIGTERM and
SIGKILL."""


def dead(history: History, graph: WaitGraph) -> tuple[Verdict, ...]:
    """One verdict for each replica group that lost a process; culprits are the first to die."""
    lost = {
        group: gone
        for group, members in history.groups().items()
        if (gone := [t for t in members if _lost_for_good(t, members)])
    }
    if _ended_alike(history):
        return _for_all(history, lost)
    follows = _followers(history, lost)
    verdicts = [
        _verdict(history, graph, group, gone, follows)
        for group, gone in lost.items()
        if group not in follows
    ]
    verdicts += [
        _lost(history, graph, group, away)
        for group, members in history.groups().items()
        if group not in lost and (away := _on_lost_hosts(history, group, members))
    ]
    return tuple(verdicts)


def _followers(
    history: History, lost: Mapping[GroupName, list[RankTrack]]
) -> dict[GroupName, GroupName]:
    """Groups that died of another group's death -> that group, which may be back by now."""
    follows: dict[GroupName, GroupName] = {}
    for first_s, root in sorted((at_s, group) for group, at_s in history.fallen_s.items()):
        if root in follows:
            continue
        for group, gone in lost.items():
            died_s = min(track.death_s for track in gone)
            own = any(_on_its_own(t) or (t.last_commit_s or 0.0) > first_s for t in gone)
            if group != root and group not in follows and first_s < died_s and not own:
                follows[group] = root
    return follows


def _on_its_own(track: RankTrack) -> bool:
    """Whether its end shows a cause of its own, and not a peer that is gone."""
    ending = track.ending
    if ending is not None and ending.exception is not None:
        return not (ending.of_peers is True or _stopped(track))
    return _signal(track) in _OWN_SIGNALS


def over(history: History) -> frozenset[RankName]:
    """Ranks that ended without a fault: work done, or the whole job was asked to end."""
    gone = [track for track in history.present() if _gone(track)]
    alike = bool(gone) and _ended_alike(history)
    return frozenset(t.rank for t in gone if _finished(t) or (alike and _stopped(t)))


def _gone(track: RankTrack) -> bool:
    return track.fresh is not None and not track.fresh.process.alive


def _finished(track: RankTrack) -> bool:
    """Whether a rank had reported the end of its training; without phases, by its exit status."""
    if track.doing == FINISHED_PHASE:
        return True
    return not track.phased and track.report is not None and track.report.process.exit_code == 0


def _ended_alike(history: History) -> bool:
    """Whether all ranks ended at about the same time, all with a reason of their own or none."""
    tracks = [track for track in history.present() if track.report is not None]
    died_s = [track.died_s for track in tracks if track.died_s is not None]
    if len(died_s) < len(tracks) or not tracks:
        return False
    own = sum(map(_on_its_own, tracks))
    return own in (0, len(tracks)) and max(died_s) - min(died_s) <= history.config.job_end_s


def _for_all(history: History, lost: Mapping[GroupName, list[RankTrack]]) -> tuple[Verdict, ...]:
    """Reported without accusing anybody if the job raised; an end without an error is no fault."""
    gone = sorted((t for tracks in lost.values() for t in tracks), key=attrgetter("death_s"))
    raised = [track for track in gone if of_death(track)]
    if not raised:
        return ()
    first_s = gone[0].death_s
    return (
        Verdict(
            kind=Kind.DEAD,
            culprits=(),
            groups=(),
            reason=f"all {len(gone)} ranks of the job ended within "
            f"{seconds(gone[-1].death_s - first_s)}, {seconds(history.now_s - first_s)} "
            f"ago: {raised[0].rank} by {why_it_died(raised[0])}",
            confidence=Confidence.UNSURE,
            since_s=first_s,
            victims=tuple(sorted(track.rank for track in gone)),
            evidence={t.rank: why_it_died(t) or "how is not known" for t in gone[:_SHOWN]},
            signature=of_death(raised[0]),
        ),
    )


def _verdict(
    history: History,
    graph: WaitGraph,
    group: GroupName,
    gone: list[RankTrack],
    follows: Mapping[GroupName, GroupName],
) -> Verdict:
    own = [track for track in gone if not _waited_for_another(track, gone)] or gone
    first_s = min(track.death_s for track in own)
    slack_s = history.config.death_slack_s
    first = [track for track in own if track.death_s - first_s <= slack_s]
    late, named = _seen_late(own, first), first
    if late:
        named = late
    elif not all(map(_asked_to_end, first)):
        # a launcher's SIGTERM took them along: the order alone is too close to decide
        named = [track for track in first if not _asked_to_end(track)]
    culprits = tuple(track.rank for track in named)
    died = [track.rank for track in gone if track.rank not in culprits]
    died += [
        track.rank
        for other, root in follows.items() if root == group
        for track in history.groups()[other] if _gone(track)
    ]  # fmt: skip
    waiting = tuple(rank for rank in graph.victims(culprits) if rank not in died)
    alive = [t for t in history.groups()[group] if t.fresh is not None and not _gone(t)]
    still = "runs" if len(alive) == 1 else "run"
    # a job that is asked to end is gone by then: ranks that are left wait forever
    stranded = bool(alive and waiting) and history.now_s - first_s >= history.config.job_end_s
    confidence = Confidence.LIKELY if late else Confidence.CERTAIN
    if (all(map(_asked_to_end, gone)) and not stranded) or all(map(_gave_up, named)):
        confidence = Confidence.UNSURE
    if "SIGKILL" in map(_signal, late):  # a launcher may have sent it after seeing the first
        confidence = Confidence.UNSURE
    clauses = [_died(history, named, first_s)]
    if alive:
        clauses.append(f"{listed([t.rank for t in alive])} of its group still {still}")
    if died:
        clauses.append(f"{listed(sorted(died))} ended after it")
    if waiting:
        clauses.append(waits_for(history, waiting, culprits))
    return Verdict(
        kind=Kind.DEAD,
        culprits=culprits,
        groups=(group,),
        reason="; ".join(clauses),
        brief=clauses[0],
        confidence=confidence,
        since_s=first_s,
        victims=tuple(sorted({*waiting, *died})),
        evidence={"host": ", ".join(history.hosts(culprits))}
        | {t.rank: f"pid {t.identity.pid} on {t.identity.host} is gone" for t in gone},
        signature=of_death(named[0]),
        settled=any(map(_on_its_own, named)),
    )


def _seen_late(gone: list[RankTrack], first: list[RankTrack]) -> list[RankTrack]:
    """Ranks that must have died before the first, though their WorkerServer saw it later.

    The first died because a peer was gone, or was asked to end, and another of its group died by
    itself right after. A launcher that ends the rest of a group mostly uses SIGTERM, and waits long
    enough.
    """
    if not all(_gave_up(track) or _asked_to_end(track) for track in first):
        return []
    until_s = min(track.death_s for track in first) + _SEEN_LATE_S
    return [t for t in gone if _on_its_own(t) and t.death_s <= until_s]


def _died(history: History, tracks: list[RankTrack], first_s: float) -> str:
    ranks = [track.rank for track in tracks]
    why = next(filter(None, map(why_it_died, tracks)), "")
    ago_s = history.now_s - first_s
    when = f"died {seconds(ago_s)} ago" if ago_s >= 1 else "just died"
    sentence = f"{ranks_named(ranks)} {when}"
    if why:
        return f"{sentence}: {why}"
    phase = f" in phase {tracks[0].doing!r}," if tracks[0].phased else ""
    return f"{sentence},{phase} how is not known"


def _lost_for_good(track: RankTrack, members: tuple[RankTrack, ...]) -> bool:
    """Whether it died and its group has not restarted since: no successor is on the way."""
    died_s = track.died_s
    return (
        _gone(track)
        and not _finished(track)
        and died_s is not None
        and not any(
            other.predecessor is not None and other.first_seen_s > died_s for other in members
        )
    )


def _waited_for_another(track: RankTrack, gone: list[RankTrack]) -> bool:
    """Whether a rank died inside a collective that another dead one had not entered."""
    return any(
        head.name == awaited.name and head.enqueued < awaited.inside
        for awaited in track.heads
        if inside_own_group(awaited, track)  # each rank's group across groups is a different one
        for other in gone
        for head in other.heads
    )


def _gave_up(track: RankTrack) -> bool:
    """Whether a wait for a rank that did not come, or is gone, ended it."""
    return track.ending is not None and track.ending.of_peers is True


def _asked_to_end(track: RankTrack) -> bool:
    """Whether SIGTERM or Ctrl-C ended it, as far as known; the sender is unknown."""
    return _signal(track) == "SIGTERM" or _stopped(track)


def _stopped(track: RankTrack) -> bool:
    """Whether it was asked to end and had raised nothing before."""
    return track.report is not None and stopped(track.report.process, track.report.ending)


def _signal(track: RankTrack) -> str | None:
    return None if track.report is None else track.report.process.exit_signal


def _on_lost_hosts(
    history: History, group: GroupName, members: tuple[RankTrack, ...]
) -> tuple[RankTrack, ...]:
    """Ranks on lost hosts, the host of the group's Manager among them; mostly empty."""
    limit_s = history.config.host_lost_s
    age_s = history.heartbeat_age_s(group)
    if age_s is None or age_s < limit_s:
        return ()
    silent = tuple(
        track
        for track in members
        if track.silent_since_s is not None
        and history.now_s - track.silent_since_s >= limit_s
        and track.report is not None
        and not _finished(track)
    )
    lost = {track.rank for track in silent}
    others = [track for track in members if track.rank not in lost]
    stands = all(
        track.fresh is not None
        and not _finished(track)
        and track.stall_s >= allowance(history, track).span_s
        for track in others
    )
    manager = any(track.identity.group_rank == 0 for track in silent)
    apart = {t.identity.host for t in silent}.isdisjoint(t.identity.host for t in others)
    return silent if not others or (manager and apart and stands) else ()


def _lost(
    history: History, graph: WaitGraph, group: GroupName, gone: tuple[RankTrack, ...]
) -> Verdict:
    culprits = tuple(track.rank for track in gone)
    since_s = min(t.silent_since_s for t in gone if t.silent_since_s is not None)
    others = tuple(t.rank for t in history.groups()[group] if t.rank not in culprits)
    who = listed(culprits) if others else group
    reason = (
        f"no WorkerServer of {who} answers for {seconds(history.now_s - since_s)} and the "
        f"heartbeat of {group} is stale: {plural(history.hosts(culprits), 'its', 'their')} "
        f"{plural(history.hosts(culprits), 'host is', 'hosts are')} lost"
    )
    if others:
        reason += f"; {listed(others)} of the group {plural(others, 'stands', 'stand')}"
    return Verdict(
        kind=Kind.DEAD,
        culprits=culprits,
        groups=(group,),
        reason=reason,
        confidence=Confidence.LIKELY,
        since_s=since_s,
        victims=tuple(sorted({*graph.victims(culprits), *others})),
        evidence={"host": ", ".join(history.hosts(culprits))}
        | {track.rank: "unreachable" for track in gone},
        signature="",
    )


# -- Lighthouse away: it does not answer us, and whether the job can do without it ----------------
# Accuses no rank. Three cases: the job continues (only this monitor cannot reach the Lighthouse);
# the job stands too (nobody commits, and ranks wait where they wait for a quorum: without a
# Lighthouse none forms, and TorchFT ends the ranks when their quorum timeout passes, 60 s by
# default); or it is unknown which. A standstill with another visible reason is not blamed on the
# Lighthouse.
#
# A Lighthouse that is back does not free the waiting ranks: with TorchFT 0.2.0 a quorum request
# in progress when it went is lost, nobody repeats it, and all ranks end after the quorum timeout
# (seen in every run of the campaign, evidence/campaign.md).


def lighthouse_away(history: History, graph: WaitGraph) -> tuple[Verdict, ...]:
    """At most one verdict, without culprits; its victims are the ranks that stand still for it."""
    since_s, away = history.away_since_s, history.away
    if since_s is None or away is None:
        return _in_vain(history, graph)
    if history.now_s - since_s < history.config.lighthouse_away_s:
        return ()
    victims = _standing(history, graph, since_s)
    commit_s = _last_commit_s(history)
    reason = (
        f"the Lighthouse does not answer for {seconds(history.now_s - since_s)}"
        f" ({away.reason}); {_effect(history, graph, victims)}"
    )
    evidence = {
        "Lighthouse": away.reason,
        "last commit": "none seen"
        if commit_s is None
        else f"{seconds(max(0.0, history.now_s - commit_s))} ago",
    }
    return (_away_verdict(history, reason, since_s, victims, evidence),)


def _in_vain(history: History, graph: WaitGraph) -> tuple[Verdict, ...]:
    """It is back, and all ranks still wait for requests from before."""
    over = history.unfollowed()
    if over is None or graph.roots:
        return ()
    waiting = tuple(t.rank for t in history.present() if _waits(history, graph, t))
    if not waiting or len(waiting) < len(history.present()):
        return ()
    away_s, back_s = over.until_s - over.since_s, history.now_s - over.until_s
    absence = f"away for {seconds(away_s)}" if away_s > 0 else "started anew"
    reason = (
        f"the Lighthouse was {absence} and is back for {seconds(back_s)}, but nobody has "
        f"committed since: {listed(waiting)} {plural(waiting, 'waits', 'wait')} for a quorum "
        "asked for before, which TorchFT does not ask for again: it ends them at their quorum "
        "timeout, 60 s by default"
    )
    evidence = {"Lighthouse": "it counts its quorums anew" if over.anew else "it answers again"}
    return (_away_verdict(history, reason, over.since_s, waiting, evidence),)


def _away_verdict(
    history: History,
    reason: str,
    since_s: float,
    victims: tuple[RankName, ...],
    evidence: dict[str, str],
) -> Verdict:
    """Accuses nobody; that it stops the job is likely at best."""
    ranks = f"{_answering(history)} of {len(history.present())} answer this monitor"
    return Verdict(
        kind=Kind.LIGHTHOUSE_AWAY,
        culprits=(),
        groups=(),
        reason=reason,
        confidence=Confidence.LIKELY if victims else Confidence.CERTAIN,
        since_s=since_s,
        victims=victims,
        evidence=evidence | {"ranks": ranks},
        signature="lighthouse_away",
    )


def _answering(history: History) -> int:
    return sum(track.fresh is not None for track in history.present())


def _last_commit_s(history: History) -> float | None:
    commits = (track.last_commit_s for track in history.present())
    return max((at_s for at_s in commits if at_s is not None), default=None)


def _goes_on(history: History) -> bool:
    """Whether the last commit is more recent than the longest limit for standing still."""
    commit_s = _last_commit_s(history)
    spans = (history.hang_after_s(track) for track in history.present())
    most_s = max(spans, default=history.config.stall_floor_s)
    return commit_s is not None and history.now_s - commit_s < most_s


def _standing(history: History, graph: WaitGraph, since_s: float) -> tuple[RankName, ...]:
    """Ranks that wait for a quorum, or ended waiting, in a job that nothing else holds up."""
    if _goes_on(history) or graph.roots:
        return ()
    waiting = tuple(t.rank for t in history.present() if _waits(history, graph, t))
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


def _waits(history: History, graph: WaitGraph, track: RankTrack) -> bool:
    """Whether a rank stands where it may wait for a quorum, as far as its phases show."""
    may_wait = graph.standing[track.rank] in (RankStanding.WAITING, RankStanding.UNKNOWN)
    return may_wait and track.stall_s >= history.hang_after_s(track)


def _effect(history: History, graph: WaitGraph, victims: tuple[RankName, ...]) -> str:
    if victims:
        return (
            f"the job stands: nobody commits, and {listed(victims)} "
            f"{plural(victims, 'waits', 'wait')} for a quorum"
        )
    if not _answering(history):
        return "nor does any rank: this monitor may be cut off"
    if _goes_on(history):
        return "the job goes on: only this monitor cannot reach it"
    if graph.roots:
        return f"whether the job needs it cannot be told: {listed(graph.roots)} stands still itself"
    return "whether the job can do without it cannot be told yet"
