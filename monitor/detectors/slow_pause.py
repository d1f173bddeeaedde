"""Checkpoints and evaluations that have become slow on one rank.

Declared long phases are no part of a rank's pace, and by design not alike: often only one group
saves. So a rank is compared with its own past first, and with ranks of its role that make such
pauses too: if theirs have grown as well, it is the storage and nobody is named. Without such peers
it cannot be told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from monitor.detectors.verdict import Confidence, Kind, Verdict
from monitor.detectors.wording import seconds
from monitor.habits import Gap
from monitor.history import History, RankTrack

_PHASES = ("checkpoint", "evaluation")
_NOW = 3
"""Pauses on end that have to be slow, and pauses before that make the past."""
_RATIO = 2.0
_GROWN = 1.3
"""Peers' pauses that have grown so much speak for the storage."""
_EXCESS_S = 1.0
"""Less costs nobody anything."""
_FRESH_S = 3600.0


@dataclass(frozen=True, slots=True)
class _Change:
    was_s: float
    now: tuple[Gap, ...]

    @property
    def now_s(self) -> float:
        return median(gap.span_s for gap in self.now)

    @property
    def slow(self) -> bool:
        return all(
            gap.span_s > _RATIO * self.was_s and gap.span_s - self.was_s > _EXCESS_S
            for gap in self.now
        )


def slow_pause(history: History) -> tuple[Verdict, ...]:
    """One verdict for each rank and phase; most ticks none."""
    found: list[Verdict] = []
    for track in history.present():
        if not history.participating(track):
            continue
        for phase in _PHASES:
            change = _change(history.habits.declared(track.rank, phase))
            if change is None or not change.slow:
                continue
            if history.now_s - change.now[-1].ended_s <= _FRESH_S:
                found += _judge(history, track, phase, change)
    return tuple(found)


def _change(gaps: Sequence[Gap]) -> _Change | None:
    """The last pauses against the longest of those before; None while there are too few.

    What is slow now is no past to compare with: the first half of what is known is.
    """
    if len(gaps) < 2 * _NOW:
        return None
    before = gaps[: max(_NOW, len(gaps) // 2)]
    return _Change(max(gap.span_s for gap in before), tuple(gaps[-_NOW:]))


def _judge(history: History, track: RankTrack, phase: str, change: _Change) -> tuple[Verdict, ...]:
    known = [
        history.habits.declared(other.rank, phase)
        for other in history.present()
        if other.group != track.group and other.identity.group_rank == track.identity.group_rank
    ]
    changes = [_change(gaps) for gaps in known if gaps]
    peers = [change for change in changes if change is not None]
    if len(peers) < len(changes):
        return ()  # one that makes such pauses, too few of them seen to say more
    if any(peer.now_s > _GROWN * peer.was_s for peer in peers):
        return ()  # theirs grow too: the storage
    lost_s = sum(gap.span_s - change.was_s for gap in change.now)
    beside = (
        f"{len(peers)} {'peer takes' if len(peers) == 1 else 'peers take'} "
        f"{seconds(median(peer.now_s for peer in peers))}"
        if peers
        else "no peer has such pauses, so it may be the storage"
    )
    return (
        Verdict(
            kind=Kind.STRAGGLER,
            culprits=(track.rank,),
            groups=(track.group,),
            reason=f"{track.rank} is slow in {phase}, {seconds(change.now_s)} each of the last "
            f"{len(change.now)} times where it took {seconds(change.was_s)} before; {beside}",
            confidence=Confidence.LIKELY if peers else Confidence.UNSURE,
            since_s=change.now[0].ended_s - change.now[0].span_s,
            victims=tuple(t.rank for t in history.present() if t.group != track.group),
            evidence={
                "slow at": phase,
                "course": f"persistent: the last {len(change.now)} times",
                "source": "phases, seconds as the rank counts them",
            },
            lost_s=lost_s,
            signature=f"straggler:{track.rank}:{phase}",
        ),
    )
