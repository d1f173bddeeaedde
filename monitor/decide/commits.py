"""Does the job train? Its commits alone decide, for severities, pages and late ranks. Pure.

Theory of operation. A job trains while its ranks commit steps; what a detector is sure of says
nothing about that. A commit after a fault began, and not long ago, shows that the job trains. If
none came for longer than a rank may stand still, or than twice the usual time between two commits,
the job stands, unless a rank declares a pause. With LocalSGD and DiLoCo a local step counts like a
commit that came a usual round earlier; once the round is over, the job stands after the time for
which a rank may stand still. Where no commit is known, moves count instead: a phase or a collective
entered or left by any rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import Final

from lightkeeper.monitor.detect.history import History
from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.model.incident import Training
from lightkeeper.worker_server.wire import LONG_PHASES

_GAPS: Final = 2.0
"""Without a commit for this many usual gaps between two commits, one is missing."""
_SAMPLE: Final = 64
"""Ranks of a large fleet that are asked what is usual: all step together."""


@dataclass(frozen=True, slots=True)
class Commits:
    """What is known in one tick of the job's commits, or of its moves if it has none."""

    now_s: float
    last_s: float | None
    """The latest of any rank; None: no rank is here."""
    slack_s: float
    """A commit this much later than the start of a fault did not begin before it."""
    limit_s: float
    """If the latest is older, the job stands."""
    paused: bool
    """True if a rank says that it does something long: a checkpoint, an evaluation."""

    @classmethod
    def of(cls, history: History) -> Commits:
        tracks = history.present()
        commits_s = [track.last_commit_s for track in tracks if track.last_commit_s is not None]
        some = tracks[:: max(1, len(tracks) // _SAMPLE)]
        gap_s = median([commit_gap_s(track) for track in some] or [0.0])
        hang_after_s = median([history.hang_after_s(track) for track in some] or [0.0])
        made_s = [at_s - gap_s for track in tracks if (at_s := _made_s(track)) is not None]
        limit_s = gap_s + hang_after_s if made_s else max(hang_after_s, _GAPS * gap_s)
        moves_s = [track.moved_s or track.first_seen_s for track in tracks]
        last_s = max(commits_s + made_s if commits_s else moves_s, default=None)
        moves = any(track.moved_s == last_s for track in tracks)  # else it was just first seen
        return cls(
            now_s=history.now_s,
            last_s=last_s,
            slack_s=gap_s + history.config.tick_s if commits_s else limit_s if moves else math.inf,
            limit_s=limit_s,
            paused=any(map(_pauses, tracks)),
        )

    def since(self, began_s: float) -> Training:
        """Say if the job trains since a fault began."""
        if self.last_s is None:
            return Training.UNKNOWN
        lately = self.now_s - self.last_s <= self.limit_s
        if lately:
            since = self.last_s > began_s + self.slack_s
            return Training.TRAINS if since else Training.UNKNOWN
        return Training.UNKNOWN if self.paused else Training.STANDS


def commit_gap_s(track: RankTrack) -> float:
    """Mean seconds between two commits of a rank; 0 where that is not known."""
    first_s, last_s, between = track.first_commit_s, track.last_commit_s, track.commits - 1
    if first_s is not None and last_s is not None and between > 0:
        return (last_s - first_s) / between
    step = track.step
    return 0.0 if step is None or track.commits < 1 else step.trained_s / track.commits


def _pauses(track: RankTrack) -> bool:
    """True if it lives, and is in a phase that may last."""
    if track.died_s is not None or track.fresh is None:
        return False
    tags = () if track.step is None else track.step.tags
    return track.doing in LONG_PHASES or not LONG_PHASES.isdisjoint(tags)


def _made_s(track: RankTrack) -> float | None:
    """When it made its last local step; None: it makes none."""
    step = track.step
    if step is None or track.report_s is None or not step.local_steps:
        return None
    return track.report_s - (step.made_age_s or 0.0)


def missing_after_s(history: History, track: RankTrack) -> float:
    """Seconds without a commit or a local step after which a rank's next one is missing."""
    if track.step is not None and track.step.local_steps:
        return history.hang_after_s(track)
    return max(history.hang_after_s(track), _GAPS * commit_gap_s(track))
