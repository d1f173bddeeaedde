"""Slow ranks (classes S1 and S2): busy when the others already wait.

Measured: busy seconds a step (all phases but waiting and long ones), in windows common to
the fleet, against the ranks of the same role: the same group rank in the other groups
(ALGORITHMS.md section 6). Windows that a start, a heal or a death touched do not exist.
With 4 and more in the cohort a robust z-score must agree; under 4 the rank must also have
become slower than it was, or stay slow for long. A rank with more tokens than its peers is slow
only if it is slow a token. What it is slow at is the phase with the greatest excess; where all
ranks of a group spend theirs inside the group's own collectives it is the transfer that is slow,
and the group, not a rank, is to blame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from monitor import cohort
from monitor.detectors.slow_phase import TRANSFERS, Blame, blame
from monitor.detectors.verdict import Confidence, Kind, Verdict
from monitor.detectors.wording import listed, plural, seconds
from monitor.history import History, RankTrack
from monitor.names import GroupName, RankName
from monitor.pace import Pace, Window

_SHARE_OF_STEP = 0.1
"""Of a step, what the excess must come to: less slows nobody down noticeably."""
_BASELINE_WINDOWS = 3
_MOSTLY_INSIDE = 0.5
"""Share of the sweeps inside collectives from which a group is said to spend its time there."""
_HELD = 0.2
"""Share of its busy time from which what collectives held a rank is looked at on its own."""
_OWN_SHARE = 2 / 3
"""Of slow ranks in one group, those that work at least so long as the busiest are culprits; the
others are slow because they wait for it inside forward and backward."""


@dataclass(frozen=True, slots=True)
class _Slow:
    rank: RankName
    ratio: float
    last: Pace
    since_s: float
    lost_s: float
    alone_s: float
    """Seconds a step in which it worked: busy, and not held inside collectives."""
    held: float
    """Share of its busy time in which they held it."""
    persistent: bool
    blame: Blame


def straggler(history: History) -> tuple[Verdict, ...]:
    """One verdict for each replica group with ranks that have been slow for several windows."""
    windows = list(history.pace.windows)
    if len(windows) < history.config.straggler_windows:
        return ()
    if history.now_s - history.disturbed_s < history.config.restart_quiet_s:
        return ()
    by_group: dict[GroupName, list[_Slow]] = {}
    for track in history.present():
        if history.participating(track):
            found = _judge(history, track, windows)
            if found is not None:
                by_group.setdefault(track.group, []).append(found)
    told = (_verdict(history, group, slow) for group, slow in by_group.items())
    return tuple(verdict for verdict in told if verdict is not None)


def _slow(history: History, pace: Pace) -> bool:
    """Whether one window shows a rank slower than its cohort, and to the fleet's cost."""
    return bool(
        cohort.slower(
            pace.low_s / pace.work,
            pace.usual_s,
            step=pace.step_s,
            score=pace.z,
            members=pace.cohort,
            ratio=history.config.straggler_ratio,
            share=_SHARE_OF_STEP,
            least_score=history.config.straggler_z,
        )
    )


def _judge(history: History, track: RankTrack, windows: Sequence[Window]) -> _Slow | None:
    config = history.config
    looked = [_pace(window, track) for window in windows[-config.straggler_windows :]]
    present = [pace for pace in looked if pace is not None]
    if len(present) < config.straggler_windows or not _slow(history, present[-1]):
        return None
    if sum(_slow(history, pace) for pace in present) < config.straggler_slow_windows:
        return None
    start, lost_s = _episode(history, track, windows)
    persistent = _persistent(history, track, windows)
    if present[-1].cohort < cohort.SMALL and not (
        _changed(history, track, windows[:start], present) or persistent
    ):
        return None
    held = sum(pace.held for pace in present) / len(present)
    return _Slow(
        rank=track.rank,
        ratio=median([p.busy_s / max(p.usual_s, 1e-9) for p in present if _slow(history, p)]),
        last=present[-1],
        since_s=windows[start].start_s,
        lost_s=max(0.0, lost_s),
        alone_s=median([pace.alone_s for pace in present]),
        held=held,
        persistent=persistent,
        blame=blame(windows[-config.straggler_windows :], track.rank),
    )


def _pace(window: Window, track: RankTrack) -> Pace | None:
    pace = window.paces.get(track.rank)
    return pace if pace is not None and pace.incarnation == track.identity.incarnation else None


def _changed(
    history: History, track: RankTrack, before: Sequence[Window], present: Sequence[Pace]
) -> bool:
    """Whether a rank is slower than it was before it was slow."""
    past = [pace.busy_s for window in before if (pace := _pace(window, track)) is not None]
    if len(past) < _BASELINE_WINDOWS:
        return False
    now_s = median([pace.busy_s for pace in present])
    return now_s > history.config.own_change_ratio * median(past)


def _persistent(history: History, track: RankTrack, windows: Sequence[Window]) -> bool:
    """Whether a rank was slow in each of the last windows."""
    count = history.config.persistent_windows
    paces = [_pace(window, track) for window in windows[-count:]]
    return len(paces) == count and all(p is not None and _slow(history, p) for p in paces)


def _episode(history: History, track: RankTrack, windows: Sequence[Window]) -> tuple[int, float]:
    """First window of the present slowness, and the seconds that it has cost the fleet.

    One good window may lie between two slow ones.
    """
    start, lost_s, pending_s, good = len(windows), 0.0, 0.0, 0
    for index in range(len(windows) - 1, -1, -1):
        pace = _pace(windows[index], track)
        if pace is None or good > 1:
            break
        pending_s += (pace.busy_s - pace.usual_s) * pace.steps
        if _slow(history, pace):
            start, lost_s, pending_s, good = index, lost_s + pending_s, 0.0, 0
        else:
            good += 1
    return start, lost_s


def _verdict(history: History, group: GroupName, suspects: list[_Slow]) -> Verdict | None:
    """None when all of them only wait, for one who is not known to be slow yet."""
    transfer = _slow_transfer(history, group, suspects)
    workers = suspects if transfer else [one for one in suspects if not _waits(history, one)]
    if not workers:
        return None
    most_s = max(found.alone_s for found in workers)
    slow = [one for one in workers if transfer or one.alone_s >= _OWN_SHARE * most_s]
    held = {found.rank for found in suspects} - {found.rank for found in slow}
    worst = max(slow, key=lambda found: (found.ratio, found.rank))
    culprits = tuple(found.rank for found in slow)
    config = history.config
    return Verdict(
        kind=Kind.STRAGGLER,
        culprits=culprits,
        groups=(group,),
        reason=f"{_what(culprits, worst, transfer=transfer)}: "
        f"{worst.ratio:.1f} times as long in at least "
        f"{config.straggler_slow_windows} of {config.straggler_windows} windows",
        confidence=Confidence.LIKELY,
        since_s=min(found.since_s for found in slow),
        victims=tuple(
            track.rank
            for track in history.present()
            if track.rank in held or (track.group != group and history.participating(track))
        ),
        evidence={
            found.rank: f"busy {found.last.busy_s:.4f} s a step, peers {found.last.usual_s:.4f} s, "
            f"lost {found.lost_s:.1f} s since {found.since_s:.0f}"
            for found in slow
        }
        | {
            "slow at": TRANSFERS if transfer else worst.blame.kind,
            "course": _course(history, slow),
            "source": f"phases, medians over windows of {seconds(config.window_s)} and more",
        },
        lost_s=max(found.lost_s for found in slow),
        signature=f"straggler:{culprits[0]}",
    )


def _course(history: History, slow: list[_Slow]) -> str:
    config = history.config
    if any(found.persistent for found in slow):
        return f"persistent: slow in each of the last {config.persistent_windows} windows"
    return f"lately: {config.straggler_slow_windows} of {config.straggler_windows} windows"


def _waits(history: History, found: _Slow) -> bool:
    """Whether it is slow only by what collectives held it: its own work takes no longer."""
    own_s = found.alone_s / found.last.work
    return found.held >= _HELD and own_s <= (
        history.config.straggler_ratio * found.blame.peers_alone_s
    )


def _slow_transfer(history: History, group: GroupName, suspects: list[_Slow]) -> bool:
    """Whether all ranks of a group are slow, in its collectives and not at work of their own.

    All come in time then, and the transfer takes long (class S2): a link, not a rank.
    """
    ratio = history.config.straggler_ratio
    return 1 < len(history.groups().get(group, ())) == len(suspects) and all(
        found.held >= _MOSTLY_INSIDE and found.alone_s <= ratio * found.blame.peers_alone_s
        for found in suspects
    )


def _what(culprits: tuple[RankName, ...], worst: _Slow, *, transfer: bool) -> str:
    """Such as `rg_1.0 is slow in data loading, 0.8 s a step where 3 peers take 0.1 s`."""
    last, found = worst.last, worst.blame
    if transfer:
        peers = f"{last.cohort - 1} other {'group takes' if last.cohort == 2 else 'groups take'}"
        return (
            f"the collectives inside the group of {listed(culprits)} are slow: its ranks come in "
            f"time and take {seconds(last.busy_s)} a step where {peers} {seconds(last.usual_s)}"
        )
    peers = f"{found.peers} {'peer takes' if found.peers == 1 else 'peers take'}"
    return (
        f"{listed(culprits)} {plural(culprits, 'is', 'are')} slow in {found.kind}, "
        f"{seconds(found.own_s)} a step where {peers} {seconds(found.peers_s)} "
        f"(works {seconds(last.busy_s)} a step, peers {seconds(last.usual_s)})"
    )
