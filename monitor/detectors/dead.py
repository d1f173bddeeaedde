"""Dead processes and lost hosts (class D).

A WorkerServer that cannot be reached is no dead rank: it may be the server that is gone. A
process is dead when its WorkerServer says so. A host is taken for lost only when every
WorkerServer of a group is silent and the group's heartbeat, a second channel, is stale too.
"""

from __future__ import annotations

from monitor.detectors.verdict import Confidence, Kind, Verdict
from monitor.detectors.waits import WaitGraph
from monitor.detectors.wording import listed, plural, seconds
from monitor.history import FINISHED_PHASE, History, RankTrack, inside_own_group
from monitor.names import GroupName


def dead(history: History, graph: WaitGraph) -> tuple[Verdict, ...]:
    """One verdict for each replica group that lost a process; culprits are the first to go."""
    if _job_ended(history):
        return ()
    found: list[Verdict] = []
    for group, members in history.groups().items():
        gone = [
            track
            for track in members
            if _gone(track) and not _finished(track) and not _being_replaced(track, members)
        ]
        if gone:
            found.append(_verdict(history, graph, group, gone))
        elif _host_lost(history, group, members):
            found.append(_lost(history, graph, group, members))
    return tuple(found)


def _gone(track: RankTrack) -> bool:
    return track.fresh is not None and not track.fresh.process.alive


def _finished(track: RankTrack) -> bool:
    """Whether a rank had said that its training was over; without phases, by its exit status."""
    if track.doing == FINISHED_PHASE:
        return True
    return not track.phased and track.report is not None and track.report.process.exit_code == 0


def _job_ended(history: History) -> bool:
    """Whether the whole job ended at about one time: not a fault, as far as it can be told."""
    tracks = [track for track in history.present() if track.report is not None]
    died_s = [track.died_s for track in tracks if track.died_s is not None]
    together = len(died_s) == len(tracks) > 0
    return together and max(died_s) - min(died_s) <= history.config.job_end_s


def _verdict(
    history: History, graph: WaitGraph, group: GroupName, gone: list[RankTrack]
) -> Verdict:
    own = [track for track in gone if not _waited_for_another(track, gone)] or gone
    first_s = min(_died_s(history, track) for track in own)
    slack_s = history.config.death_slack_s
    first = [track for track in own if _died_s(history, track) - first_s <= slack_s]
    culprits = tuple(t.rank for t in first if not _taken_along(history, t, first))
    followed = tuple(track.rank for track in gone if track.rank not in culprits)
    victims = tuple(sorted({*graph.victims(culprits), *followed}))
    alive = [t for t in history.groups()[group] if t.fresh is not None and not _gone(t)]
    still = "runs" if len(alive) == 1 else "run"
    rest = f"; {listed([t.rank for t in alive])} of its group still {still}"
    return Verdict(
        kind=Kind.DEAD,
        culprits=culprits,
        groups=(group,),
        reason=f"the {plural(culprits, 'process', 'processes')} of {listed(culprits)} "
        f"{plural(culprits, 'is', 'are')} gone for {seconds(history.now_s - first_s)}, "
        f"in phase {_phase(gone[0])!r}"
        + (rest if alive else "")
        + (f"; {listed(victims)} {plural(victims, 'waits', 'wait')} for it" if victims else ""),
        confidence=Confidence.CERTAIN,
        since_s=first_s,
        victims=victims,
        evidence={"host": ", ".join(history.hosts(culprits))}
        | {t.rank: f"pid {t.identity.pid} on {t.identity.host} is gone" for t in gone},
        signature=f"dead:{culprits[0]}",
    )


def _being_replaced(track: RankTrack, members: tuple[RankTrack, ...]) -> bool:
    """Whether its group was started again since it died: its own successor is on the way."""
    died_s = track.died_s
    return died_s is not None and any(
        other.predecessor is not None and other.first_seen_s > died_s for other in members
    )


def _waited_for_another(track: RankTrack, gone: list[RankTrack]) -> bool:
    """Whether a rank died inside a collective that another dead one had not entered."""
    if track.report is None:
        return False
    for head in track.report.heads:
        if not inside_own_group(head, track):
            continue  # each rank's group across replica groups is another one
        for other in gone:
            there = () if other.report is None else other.report.heads
            if any(h.name == head.name and h.enqueued < head.inside for h in there):
                return True
    return False


def _taken_along(history: History, track: RankTrack, first: list[RankTrack]) -> bool:
    """Whether a launcher's SIGTERM ended it once another of its group had died of something else.

    The order alone is too close to tell; the signal says the same.
    """
    return _asked_to_end(track) and any(
        not _asked_to_end(other) and _died_s(history, other) <= _died_s(history, track)
        for other in first
    )


def _asked_to_end(track: RankTrack) -> bool:
    """Whether SIGTERM ended it, as far as that is known."""
    return track.report is not None and track.report.process.exit_signal == "SIGTERM"


def _died_s(history: History, track: RankTrack) -> float:
    return history.now_s if track.died_s is None else track.died_s


def _phase(track: RankTrack) -> str:
    return "?" if track.step is None else track.step.phase


def _host_lost(history: History, group: GroupName, members: tuple[RankTrack, ...]) -> bool:
    limit_s = history.config.host_lost_s
    silent = all(
        track.silent_since_s is not None
        and history.now_s - track.silent_since_s >= limit_s
        and track.report is not None
        and not _finished(track)
        for track in members
    )
    age_s = history.heartbeat_age_s(group)
    return silent and age_s is not None and age_s >= limit_s


def _lost(
    history: History, graph: WaitGraph, group: GroupName, members: tuple[RankTrack, ...]
) -> Verdict:
    culprits = tuple(track.rank for track in members)
    since_s = min(t.silent_since_s for t in members if t.silent_since_s is not None)
    return Verdict(
        kind=Kind.DEAD,
        culprits=culprits,
        groups=(group,),
        reason=f"no WorkerServer of {group} answers for {seconds(history.now_s - since_s)} and "
        "its heartbeat is stale: its host is lost",
        confidence=Confidence.LIKELY,
        since_s=since_s,
        victims=graph.victims(culprits),
        evidence={"host": ", ".join(history.hosts(culprits))}
        | {track.rank: "unreachable" for track in members},
        signature=f"dead:{culprits[0]}",
    )
