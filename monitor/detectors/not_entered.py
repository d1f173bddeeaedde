"""Hangs (class H1): a rank that stands still by itself while others wait for it.

One that somebody traces is told as well, and accused of nothing: who looks holds it up.
"""

from __future__ import annotations

from monitor.detectors.sentence import hangs, looks, named, waits_for
from monitor.detectors.signature import of_hang
from monitor.detectors.verdict import Confidence, Kind, Verdict
from monitor.detectors.waits import SELF_HELD, Standing, WaitGraph, patience
from monitor.detectors.wording import listed, plural, seconds
from monitor.history import History, RankTrack
from monitor.names import GroupName, RankName


def not_entered(history: History, graph: WaitGraph) -> tuple[Verdict, ...]:
    """One verdict for each replica group that holds a root of the wait-for graph."""
    by_group: dict[GroupName, list[RankTrack]] = {}
    for rank in graph.roots:
        if graph.standing[rank] is Standing.OUTSIDE:
            continue  # its records are read first, see `unphased`
        track = history.tracks[rank]
        by_group.setdefault(track.group, []).append(track)
    found = tuple(_verdict(history, graph, group, roots) for group, roots in by_group.items())
    traced = _traced(history, graph)
    return (*found, *traced) if found or traced else _silent(history, graph)


def _traced(history: History, graph: WaitGraph) -> tuple[Verdict, ...]:
    """Ranks that somebody traces and others wait for: one verdict, which accuses nobody."""
    tracks = [history.tracks[r] for r, s in graph.standing.items() if s is Standing.TRACED]
    waiting = {track.rank: graph.victims((track.rank,)) for track in tracks}
    held = [t for t in tracks if _waited_s(history, waiting[t.rank]) >= history.hang_after_s(t)]
    if not held:
        return ()
    ranks = tuple(track.rank for track in held)
    victims = tuple(sorted({rank for one in ranks for rank in waiting[one]} - set(ranks)))
    tracers = [track.tracer for track in held if track.tracer is not None]
    since_s = min(track.traced_since_s or history.now_s for track in held)
    return (
        Verdict(
            kind=Kind.NOT_ENTERED,
            culprits=(),
            groups=(),
            reason=f"{named(ranks)} {plural(ranks, 'is', 'are')} held by "
            f"{listed([looks(one) for one in tracers])} for {seconds(history.now_s - since_s)}; "
            f"{waits_for(history, victims, ranks)}; nobody is evicted while somebody looks",
            confidence=Confidence.CERTAIN,
            since_s=since_s,
            victims=victims,
            evidence={t.rank: f"traced by {looks(t.tracer)}" for t in held if t.tracer is not None},
            signature="traced",
        ),
    )


def _waited_s(history: History, victims: tuple[RankName, ...]) -> float:
    return max((history.tracks[rank].stall_s for rank in victims), default=0.0)


def _verdict(
    history: History, graph: WaitGraph, group: GroupName, roots: list[RankTrack]
) -> Verdict:
    culprits = tuple(track.rank for track in roots)
    victims = graph.victims(culprits)
    direct = any(graph.standing[rank] is not Standing.ALONE for rank in culprits)
    waiting = waits_for(history, victims, culprits)
    if graph.fleet_pauses and not direct:
        waiting, confidence = "all pause at once, so it may be the job", Confidence.UNSURE
    elif victims or direct:
        confidence = Confidence.CERTAIN
    else:
        confidence = Confidence.LIKELY
    still_s = min(track.stall_s for track in roots)
    return Verdict(
        kind=Kind.NOT_ENTERED,
        culprits=culprits,
        groups=(group,),
        reason=f"{hangs(history, roots, graph.standing, still_s)}; {waiting}",
        confidence=confidence,
        since_s=min(_since_s(track) for track in roots),
        victims=victims,
        evidence={track.rank: _evidence(track) for track in roots}
        | {
            "threshold": "; ".join(dict.fromkeys(str(patience(history, graph, t)) for t in roots)),
            "source": _source(history, graph, roots),
        },
        signature=of_hang(roots),
    )


def _source(history: History, graph: WaitGraph, roots: list[RankTrack]) -> str:
    """What the accusation rests on, and how fine that is."""
    direct = (Standing.STOPPED, Standing.FROZEN)
    if all(graph.standing[track.rank] in direct for track in roots):
        return "the operating system's view of the process"
    if all(graph.standing[track.rank] is Standing.LEFT for track in roots):
        return f"heads at {history.config.tick_s:g} s polls"
    return "phases"


def _evidence(track: RankTrack) -> str:
    report, step = track.report, track.step
    if report is None or step is None:
        return "no report"
    return (
        f"phase {step.phase}, progress {step.progress}, commits {step.commits}, "
        f"process {report.process.state or '?'}"
    )


def _since_s(track: RankTrack) -> float:
    if track.report is None or track.step is None or track.report_s is None:
        return track.seen_s
    return track.report_s - min(
        (track.step.phase_age_s, *(head.age_s for head in track.report.heads))
    )


def _silent(history: History, graph: WaitGraph) -> tuple[Verdict, ...]:
    """Ranks that cannot be seen, for whom their own groups stand in a collective.

    Only when nobody who can be seen explains it: otherwise a lost report could move the
    blame from the culprit's group to a victim's. For the same reason they are of one group, or of
    one host, which is lost then with all that it carried.
    """
    if any(graph.standing[rank] in SELF_HELD for rank in graph.suspects):
        return ()
    if Standing.DEAD in graph.standing.values():
        return ()
    silent = [t for t in history.present() if graph.standing[t.rank] is Standing.SILENT]
    groups = sorted({track.group for track in silent})
    if len(groups) > 1 and len({track.identity.host for track in silent}) > 1:
        return ()
    if any(_silence_s(history, track) < history.config.silent_s for track in silent):
        return ()
    members = ([track for track in silent if track.group == group] for group in groups)
    return tuple(verdict for lost in members for verdict in _unseen(history, graph, lost))


def _unseen(history: History, graph: WaitGraph, lost: list[RankTrack]) -> tuple[Verdict, ...]:
    """The silent ranks of one group, if it waits for them."""
    culprits = tuple(track.rank for track in lost)
    waiting = _waiting_for(history, graph, culprits)
    if not waiting:
        return ()
    silence_s = min(_silence_s(history, track) for track in lost)
    return (
        Verdict(
            kind=Kind.NOT_ENTERED,
            culprits=culprits,
            groups=(lost[0].group,),
            reason=f"{listed(culprits)} cannot be seen for {seconds(silence_s)}, and "
            f"{listed(waiting)} of the same group {plural(waiting, 'stands', 'stand')} in a "
            "collective that only it has not entered",
            confidence=Confidence.LIKELY,
            since_s=min(track.silent_since_s or history.now_s for track in lost),
            victims=graph.victims(culprits),
            evidence={track.rank: "unreachable" for track in lost}
            | {
                "source": f"heads at {history.config.tick_s:g} s polls",
                "threshold": f"{history.config.silent_s:g} s of silence",
            },
            signature=f"not_entered:{culprits[0]}:silent",
        ),
    )


def _silence_s(history: History, track: RankTrack) -> float:
    return 0.0 if track.silent_since_s is None else history.now_s - track.silent_since_s


def _waiting_for(
    history: History, graph: WaitGraph, lost: tuple[RankName, ...]
) -> tuple[RankName, ...]:
    for stuck in graph.stuck:
        only_they = bool(stuck.absent) and set(stuck.absent) <= set(lost)
        if only_they and stuck.stall_s >= history.hang_after_s(history.tracks[stuck.joined[0]]):
            return stuck.joined
    return ()
