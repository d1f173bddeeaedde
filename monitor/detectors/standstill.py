"""The job stands and nobody can be named: that is said, and nobody is accused. Pure.

Theory of operation. Somebody waits for longer than any pause that is known of this job, nobody has
moved meanwhile, and no other detector has a word for it (the pipeline drops this one when another
fault stands). What each of those does who are not seen waiting is told, as far as it is known. What
a rank has declared, or the job has shown before, is given its time, and a start as long as nobody
has trained. Where nobody waits all may pause; but when stacks show all of them blocked, on a file
server that is away for all, that is told as well, after half as much again.
"""

from __future__ import annotations

from monitor.detectors.deadlock import usual_inside_s
from monitor.detectors.patience import allowance
from monitor.detectors.sentence import waits_in, what_they_do
from monitor.detectors.verdict import Confidence, Kind, Verdict
from monitor.detectors.waits import Standing, WaitGraph
from monitor.detectors.wording import listed, plural, seconds
from monitor.history import History, RankTrack
from worker_server.wire import LONG_PHASES, Doing

SIGNATURE = "standstill"
_WAITS = (Standing.WAITING, Standing.HELD, Standing.LEFT)
_BLOCKS = frozenset({Doing.LOCK, Doing.IO, Doing.PROCESS, Doing.DATA})
_SHOWN = 4
_AROUND_S = 5.0
"""A death is seen so much later than those who wait for it began to."""


def standstill(history: History, graph: WaitGraph) -> tuple[Verdict, ...]:
    """At most one verdict, without culprits."""
    config = history.config
    alive = [t for t in history.present() if graph.standing[t.rank] is not Standing.DEAD]
    waiting = [t for t in alive if graph.standing[t.rank] in _WAITS]
    others = [t for t in alive if graph.standing[t.rank] not in _WAITS]
    if not alive or history.away is not None or history.unfollowed() is not None:
        return ()
    if not waiting and not all(
        t.witness is not None and t.witness.doing in _BLOCKS for t in others
    ):
        return ()
    standing = waiting or others
    still_s = min(track.stall_s for track in standing)
    usual_s = config.unwitnessed_factor * max(history.hang_after_s(t) for t in standing)
    usual_s = max(usual_s, *(usual_inside_s(history, track.rank) for track in standing))
    if still_s < max(config.standstill_s * (1 if waiting else 1.5), usual_s):
        return ()
    trained = any(not history.starting(track) for track in standing)
    committed_s = max((t.last_commit_s or 0.0 for t in history.present()), default=0.0)
    if history.now_s - committed_s < still_s or any(_excused(history, t, trained) for t in others):
        return ()
    ranks = tuple(track.rank for track in waiting)
    told = [f"{listed(ranks)} {plural(ranks, 'waits', 'wait')}{waits_in(history, ranks)}"]
    does = what_they_do(others)
    told = (told if waiting else []) + does[:_SHOWN]
    if len(does) > _SHOWN:
        told.append("and others elsewhere")
    since_s = history.now_s - max(track.stall_s for track in standing)
    fell = sorted(g for g, at_s in history.fallen_s.items() if at_s > since_s - _AROUND_S)
    doubt = "; ".join(told if others or fell else [*told, "nobody is missing"])
    if fell:
        doubt += f"; {listed(fell)} died meanwhile: some may wait for a process that is no more"
    return (
        Verdict(
            kind=Kind.DEADLOCK,
            culprits=(),
            groups=(),
            reason=f"the job stands for {seconds(still_s)} and it cannot be told who holds it: "
            + doubt,
            confidence=Confidence.UNSURE,
            since_s=history.now_s - still_s,
            victims=ranks or tuple(track.rank for track in others),
            evidence={"source": f"waits and stacks, seen at {config.tick_s:g} s polls"},
            signature=SIGNATURE,
        ),
    )


def _excused(history: History, track: RankTrack, trained: bool) -> bool:
    """Whether it may take that long: by what it has declared, by what the job has shown before, or
    because it starts and nobody has trained yet. Later a start is what the others stand for.
    """
    step = track.step
    declared = track.doing in LONG_PHASES or (
        step is not None and (step.healing or bool(LONG_PHASES.intersection(step.tags)))
    )
    if trained and history.starting(track) and not declared:
        return False
    return track.stall_s < allowance(history, track).span_s
