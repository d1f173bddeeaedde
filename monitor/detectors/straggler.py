"""Compute-slow ranks (class S1): busy when the others already wait.

Measured: busy seconds a step (all phases but waiting and long ones), in windows common to
the fleet, against the ranks of the same role: the same group rank in the other groups
(ALGORITHMS.md section 6). Windows that a start, a heal or a death touched do not exist.
With 4 and more in the cohort a robust z-score must agree; under 4 the rank must also have
become slower than it was, or stay slow for long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from monitor.detectors.verdict import Confidence, Kind, Verdict
from monitor.detectors.wording import listed, plural, seconds
from monitor.history import History, Pace, RankTrack, Window
from monitor.names import GroupName, RankName, split_rank_name

_SHARE_OF_STEP = 0.1
"""Of a step, what the excess must come to: less slows nobody down noticeably."""
_BASELINE_WINDOWS = 3
_SMALL_COHORT = 4


@dataclass(frozen=True, slots=True)
class _Excess:
    """One rank in one window, against its cohort."""

    busy_s: float
    usual_s: float
    """Median of the others."""
    steps: int
    cohort: int
    """Ranks compared, itself included."""
    slow: bool

    @property
    def lost_s(self) -> float:
        """Seconds that it made the fleet wait."""
        return (self.busy_s - self.usual_s) * self.steps


@dataclass(frozen=True, slots=True)
class _Slow:
    rank: RankName
    ratio: float
    last: _Excess
    since_s: float
    lost_s: float


def straggler(history: History) -> tuple[Verdict, ...]:
    """One verdict for each replica group with ranks that have been slow for several windows."""
    config = history.config
    needed = max(config.straggler_windows, config.persistent_windows)
    windows = list(history.windows)
    if len(windows) < config.straggler_windows:
        return ()
    if history.now_s - history.disturbed_s < config.restart_quiet_s:
        return ()
    recent = [_excesses(history, window) for window in windows[-needed:]]
    by_group: dict[GroupName, list[_Slow]] = {}
    for track in history.present():
        if recent[-1].get(track.rank) is None or not history.participating(track):
            continue
        found = _judge(history, track, windows, recent)
        if found is not None:
            by_group.setdefault(track.group, []).append(found)
    return tuple(_verdict(history, group, slow) for group, slow in by_group.items())


def _excesses(history: History, window: Window) -> dict[RankName, _Excess]:
    lanes: dict[int, list[tuple[RankName, Pace]]] = {}
    for rank, pace in window.paces.items():
        track = history.tracks.get(rank)
        if track is not None and track.identity.incarnation == pace.incarnation:
            lanes.setdefault(split_rank_name(rank)[1], []).append((rank, pace))
    found: dict[RankName, _Excess] = {}
    for lane in lanes.values():
        found.update(_lane_excesses(history, lane))
    return found


def _lane_excesses(
    history: History, lane: Sequence[tuple[RankName, Pace]]
) -> Mapping[RankName, _Excess]:
    if len(lane) < 2:
        return {}
    busy = sorted(pace.busy_s for _, pace in lane)
    middle = median(busy)
    spread = 1.4826 * max(median([abs(value - middle) for value in busy]), 0.01 * middle)
    found: dict[RankName, _Excess] = {}
    for rank, pace in lane:
        usual_s = _median_without(busy, pace.busy_s)
        excess_s = pace.busy_s - usual_s
        agrees = len(lane) < _SMALL_COHORT or (
            pace.busy_s - middle > history.config.straggler_z * spread
        )
        found[rank] = _Excess(
            busy_s=pace.busy_s,
            usual_s=usual_s,
            steps=pace.steps,
            cohort=len(lane),
            slow=agrees
            and pace.busy_s > history.config.straggler_ratio * usual_s
            and excess_s > _SHARE_OF_STEP * pace.step_s,
        )
    return found


def _median_without(ordered: Sequence[float], value: float) -> float:
    """Median of an ordered sequence less one occurrence of `value`; O(1)."""
    rest = len(ordered) - 1
    low, high = (rest - 1) // 2, rest // 2
    # Leaving `value` out moves everything from its place on down by one.
    shift_low = ordered[low + 1] if ordered[low] >= value else ordered[low]
    shift_high = ordered[high + 1] if ordered[high] >= value else ordered[high]
    return (shift_low + shift_high) / 2


def _judge(
    history: History,
    track: RankTrack,
    windows: Sequence[Window],
    recent: Sequence[Mapping[RankName, _Excess]],
) -> _Slow | None:
    config = history.config
    looked = [seen.get(track.rank) for seen in recent[-config.straggler_windows :]]
    present = [excess for excess in looked if excess is not None]
    if len(present) < config.straggler_windows or not present[-1].slow:
        return None
    if sum(excess.slow for excess in present) < config.straggler_slow_windows:
        return None
    episode, before = _episode(history, track.rank, windows)
    if present[-1].cohort < _SMALL_COHORT:
        past = [w.paces[track.rank].busy_s for w in before if _is_of(w, track)]
        now_s = median([excess.busy_s for excess in present])
        changed = len(past) >= _BASELINE_WINDOWS and now_s > config.own_change_ratio * median(past)
        slow = [seen.get(track.rank) for seen in recent[-config.persistent_windows :]]
        persistent = len(slow) >= config.persistent_windows and all(
            excess is not None and excess.slow for excess in slow
        )
        if not changed and not persistent:
            return None
    return _Slow(
        rank=track.rank,
        ratio=median([e.busy_s / max(e.usual_s, 1e-9) for e in present if e.slow]),
        last=present[-1],
        since_s=episode[0][0].start_s,
        lost_s=max(0.0, sum(excess.lost_s for _, excess in episode)),
    )


def _is_of(window: Window, track: RankTrack) -> bool:
    pace = window.paces.get(track.rank)
    return pace is not None and pace.incarnation == track.identity.incarnation


def _episode(
    history: History, rank: RankName, windows: Sequence[Window]
) -> tuple[list[tuple[Window, _Excess]], Sequence[Window]]:
    """The windows of the present slowness (one good window may lie between), and those before."""
    episode: list[tuple[Window, _Excess]] = []
    good: list[tuple[Window, _Excess]] = []
    start = len(windows)
    for index in range(len(windows) - 1, -1, -1):
        excess = _excesses(history, windows[index]).get(rank)
        if excess is None or (not excess.slow and good):
            break
        if excess.slow:
            episode += [*good, (windows[index], excess)]
            good, start = [], index
        else:
            good = [(windows[index], excess)]
    episode.reverse()
    return episode, windows[:start]


def _verdict(history: History, group: GroupName, slow: list[_Slow]) -> Verdict:
    worst = max(slow, key=lambda found: (found.ratio, found.rank))
    culprits = tuple(found.rank for found in slow)
    config = history.config
    return Verdict(
        kind=Kind.STRAGGLER,
        culprits=culprits,
        groups=(group,),
        reason=f"{listed(culprits)} {plural(culprits, 'works', 'work')} "
        f"{seconds(worst.last.busy_s)} a step where {worst.last.cohort - 1} "
        f"{'peer takes' if worst.last.cohort == 2 else 'peers take'} "
        f"{seconds(worst.last.usual_s)}: {worst.ratio:.1f} times as long in at least "
        f"{config.straggler_slow_windows} of {config.straggler_windows} windows",
        confidence=Confidence.LIKELY,
        since_s=min(found.since_s for found in slow),
        victims=tuple(
            track.rank
            for track in history.present()
            if track.group != group and history.participating(track)
        ),
        evidence={
            found.rank: f"busy {found.last.busy_s:.4f} s a step, peers {found.last.usual_s:.4f} s, "
            f"lost {found.lost_s:.1f} s since {found.since_s:.0f}"
            for found in slow
        },
        lost_s=max(found.lost_s for found in slow),
        signature=f"straggler:{culprits[0]}",
    )
