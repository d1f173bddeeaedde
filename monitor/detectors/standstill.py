"""The job stands and nobody can be named: that is said, and nobody is accused. Pure.

Theory of operation. Somebody waits for longer than any pause that is known of this job, nobody has
moved meanwhile, and no other detector has a word for it (the pipeline drops this one when another
fault stands). What each of those does who are not seen waiting is told, as far as it is known. Who
has declared what it does (an evaluation, a start, a heal) is given that time.
"""

from __future__ import annotations

from monitor.detectors.deadlock import usual_inside_s
from monitor.detectors.patience import allowance
from monitor.detectors.sentence import does, waits_in
from monitor.detectors.verdict import Confidence, Kind, Verdict
from monitor.detectors.waits import Standing, WaitGraph
from monitor.detectors.wording import listed, plural, seconds
from monitor.history import FINISHED_PHASE, History, RankTrack
from worker_server.wire import LONG_PHASES

SIGNATURE = "standstill"
_WAITS = (Standing.WAITING, Standing.HELD, Standing.LEFT)
_SHOWN = 4


def standstill(history: History, graph: WaitGraph) -> tuple[Verdict, ...]:
    """At most one verdict, without culprits."""
    config = history.config
    alive = [t for t in history.present() if graph.standing[t.rank] is not Standing.DEAD]
    waiting = [t for t in alive if graph.standing[t.rank] in _WAITS]
    if not waiting or history.away is not None or history.unfollowed() is not None:
        return ()
    still_s = min(track.stall_s for track in waiting)
    usual_s = config.unwitnessed_factor * max(history.hang_after_s(t) for t in waiting)
    usual_s = max(usual_s, *(usual_inside_s(history, track.rank) for track in waiting))
    if still_s < max(config.standstill_s, usual_s) or _commits(history, still_s):
        return ()
    others = [track for track in alive if track not in waiting]
    if any(_excused(history, track) for track in others):
        return ()
    ranks = tuple(track.rank for track in waiting)
    rest = "; ".join(f"{t.rank} {does(t)}" for t in others[:_SHOWN]) or "nobody is missing"
    more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
    return (
        Verdict(
            kind=Kind.DEADLOCK,
            culprits=(),
            groups=(),
            reason=f"the job stands for {seconds(still_s)} and it cannot be told who holds it: "
            f"{listed(ranks)} {plural(ranks, 'waits', 'wait')}{waits_in(history, ranks)}; "
            f"{rest}{more}",
            confidence=Confidence.UNSURE,
            since_s=history.now_s - still_s,
            victims=ranks,
            evidence={"source": f"waits seen at {config.tick_s:g} s polls"},
            signature=SIGNATURE,
        ),
    )


def _commits(history: History, within_s: float) -> bool:
    """Whether any rank has committed meanwhile."""
    commits = (track.last_commit_s for track in history.present())
    return any(at_s is not None and history.now_s - at_s < within_s for at_s in commits)


def _excused(history: History, track: RankTrack) -> bool:
    """Whether it has said what it does, and may take that long."""
    if track.doing == FINISHED_PHASE:
        return True
    step = track.step
    declared = track.doing in LONG_PHASES or (
        step is not None and (step.healing or bool(LONG_PHASES.intersection(step.tags)))
    )
    starts = history.starting(track)
    return (declared or starts) and track.stall_s < allowance(history, track).span_s
