"""Progress that is lost: a job that continues from an earlier step than it had committed. Pure.

Accuses nobody: another incident says why all groups ended. What a job committed lives on in any of
its groups, since the others heal from it. So it is lost only if no rank that had it may live. A
step that falls within one process says that this script starts its count over, by epochs perhaps:
then nothing follows from its steps. A run that a person ended, or that was over, has lost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter
from typing import Final

from lightkeeper.monitor.detect.endings import End, end_in_words, end_of
from lightkeeper.monitor.detect.history import History, Progress
from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.model.units import counted, grouped
from lightkeeper.monitor.model.verdict import Confidence, Kind, Verdict
from lightkeeper.monitor.model.wording import seconds

_AGAIN_S: Final = 3600.0
"""Who starts a job again later than this after its fall knows what it begins from."""
_SKEW_S: Final = 5.0
"""Between two ranks' reports of one commit: polls take turns, and some come late."""
_GROUPS_LEAST: Final = 2
_BY_ITSELF: Final = frozenset({End.OWN, End.PEERS, End.KILLED, End.UNKNOWN})


def advance(history: History) -> Progress:
    """The progress by this tick's reports."""
    seen, now_s, tracks = history.progress, history.now_s, history.present()
    alive = [t for t in tracks if t.died_s is None and t.fresh is not None and t.commits]
    if not alive:
        return replace(seen, why=seen.why or _why(tracks))
    best = max(map(_step, alive))
    if best >= max(seen.step, 0):
        return _on(seen, best, len(alive), now_s)
    if seen.starts_over or seen.fell_to is not None or _perhaps(tracks, seen):
        return seen
    since = [t for t in alive if (t.last_commit_s or 0.0) > seen.at_s + _SKEW_S]
    if not since:
        return seen
    if now_s - seen.at_s > _AGAIN_S:
        return _on(Progress(), best, len(alive), now_s)
    return _fallen(seen, since, now_s)


def _fallen(seen: Progress, since: Iterable[RankTrack], now_s: float) -> Progress:
    """The progress once these, who were not there before, have committed less."""
    first = min(_step(track) - track.commits for track in since)
    if first < -1:  # more commits in one life than steps: it starts its count over
        return replace(seen, starts_over=True)
    return replace(seen, fell_to=max(0, first), fell_s=now_s)


def _step(track: RankTrack) -> int:
    return -1 if track.step is None else track.step.step


def _perhaps(tracks: Iterable[RankTrack], seen: Progress) -> bool:
    """True if somebody may still have it: one that does not answer, or one that was there."""
    living = [track for track in tracks if track.died_s is None]
    return any(track.fresh is None or track.first_seen_s <= seen.at_s for track in living)


def _on(seen: Progress, step: int, ranks: int, now_s: float) -> Progress:
    if step == seen.step and seen.fell_to is None:
        return seen
    first = (step, now_s) if seen.first is None or seen.fell_to is not None else seen.first
    return replace(seen, step=step, at_s=now_s, first=first, fell_to=None, why="",
                   ranks=max(ranks, seen.ranks))  # fmt: skip


def of_last_run(history: History) -> Progress:
    """What a new run has to be compared with: nothing, unless the last one was a job of several
    replica groups, and all of these fell by themselves. People end a job and begin again.
    """
    groups = grouped((track.group, track) for track in history.tracks.values())
    fell = [any(t.died_s is not None and end_of(t) in _BY_ITSELF for t in tracks)
            for tracks in groups.values()]  # fmt: skip
    if len(fell) < _GROUPS_LEAST or not all(fell):
        return Progress()
    return replace(history.progress, why=_why(history.tracks.values()))


def _why(ended: Iterable[RankTrack]) -> str:
    gone = (track for track in ended if track.died_s is not None)
    first = min(gone, default=None, key=attrgetter("death_s"))
    if first is None:
        return ""
    ending = None if first.report is None else first.report.ending
    said = ending.sentence if ending is not None else end_in_words(first)
    return f"{first.rank} ended first: {said}"


def progress_lost(history: History) -> Iterable[Verdict]:
    """Steps that the job had committed and makes again: for as long as it is behind."""
    seen = history.progress
    if seen.fell_to is None:
        return
    lost, cost_s = seen.step - seen.fell_to, (seen.step - seen.fell_to) * seen.step_s * seen.ranks
    cost = f", {cost_s:,.0f} rank-seconds" if cost_s else ""
    brief = f"the job continued from step {seen.fell_to}: {counted(lost, 'step')} lost{cost}"
    why = f". {seen.why.rstrip('.')}" if seen.why else ""
    yield Verdict(
        kind=Kind.PROGRESS_LOST,
        reason=f"{brief}. Step {seen.step} was committed {seconds(seen.fell_s - seen.at_s)} "
        f"earlier, and every process that had it is gone{why}",
        brief=brief,
        confidence=Confidence.CERTAIN,
        since_s=seen.fell_s,
        evidence={"steps": f"{seen.step} before, {seen.fell_to} after"},
        signature=f"progress_lost:{seen.step}",
    )
