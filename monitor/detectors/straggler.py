"""Slow ranks (classes S1 and S2): busy when the others already wait.

Measured: busy seconds a step (`monitor.pace`), in windows common to the fleet, against the ranks of
the same role: the same group rank in the other groups (ALGORITHMS.md section 6). Windows that a
start, a heal or a death touched do not exist. Who waits for longer than another is not what the
job waits for, however long its work takes. The milder, the longer it has to last. With 4 and
more in the cohort a robust z-score must agree; under 4 the rank must also have become slower than
it was, or stay slow for long. A rank with more tokens than its peers is slow only if it is slow a
token. What it is slow at is the phase with the greatest excess; where all ranks of a group spend
theirs inside the group's own collectives it is the transfer that is slow, and the group, not a
rank, is to blame. Where a rank's waiting for its own group does not show (torch's DDP waits in
C++), the group is told, and that it cannot be known which of its ranks is the slow one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import nlargest
from operator import is_
from statistics import median
from typing import Final

from monitor import cohort
from monitor.detectors.slow_phase import TRANSFERS, Blame, blame
from monitor.detectors.verdict import Confidence, Kind, Verdict
from monitor.detectors.wording import listed, plural, seconds
from monitor.history import History, RankTrack
from monitor.names import GroupName, RankName, group_of, split_rank_name
from monitor.pace import Pace, Window

_SHARE_OF_STEP = 0.1
"""Of a step, what the excess must come to: less slows nobody down noticeably."""
_BASELINE_WINDOWS = 3
_MILD_WINDOWS, _MILD_SLOW, _MILD_PERSISTENT = 12, 10, 24
"""As `straggler_windows`, `straggler_slow_windows` and `persistent_windows`, for `mild_ratio`."""
_STEADY_WINDOWS, _STEADY_AHEAD = 16, 14
_STARVED_WINDOWS, _STARVED_AHEAD = 6, 5
"""The same for a rank that alone gets no core."""
_STARVED, _STARVED_TIMES = 0.35, 2.0
_CROWDED = 0.5
_SMALL_S = 40.0
"""A cohort under 4 without phases is looked at for so long at least: on cores that all share, one
of two ranks may get less of them for 25 s (seen at a load of 40 on 2 cores)."""
_PAIR_PERSISTENT_S, _SMALL_PERSISTENT_S = 120.0, 60.0
"""So long a rank of such a cohort is slow that was never seen to be well: one of two, of three."""
_PAST = 0.9
"""Its slow windows must exceed this share of its own past."""
_MOSTLY_INSIDE = 0.5
"""Share of the sweeps inside collectives from which a group is said to spend its time there."""
_MOSTLY = 0.5
_HELD = 0.2
"""Share of its busy time from which what collectives held a rank is looked at on its own."""
_OWN_SHARE = 2 / 3
"""Of slow ranks in one group, those that work at least so long as the busiest are culprits; the
others are slow because they wait for it inside forward and backward."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """How slow for how long."""

    ratio: float
    windows: int
    slow: int
    persistent: int

    def lasting(self, windows: Sequence[Window], members: int) -> _Rule:
        """The same over so many windows that they fill `_SMALL_S`."""
        persistent_s = _PAIR_PERSISTENT_S if members < 3 else _SMALL_PERSISTENT_S
        now_s = windows[-1].end_s
        span = sum(now_s - window.start_s < _SMALL_S for window in windows) + 1
        long = sum(now_s - window.start_s < persistent_s for window in windows) + 1
        if span <= self.windows:
            return self
        slow = -(-span * self.slow // self.windows)
        return _Rule(self.ratio, span, slow, max(self.persistent, long))


@dataclass(frozen=True, slots=True)
class _Starved:
    """Shares of the time in which ranks were ready to run and got no core."""

    own: float
    others: float
    """Of whoever else had the greatest."""

    @property
    def alone(self) -> bool:
        """The kernel's word that this rank is held up, whatever else the samples say."""
        return self.own >= max(_STARVED, _STARVED_TIMES * self.others)

    @property
    def together(self) -> bool:
        """Cores are too few for all of them, and chance says who gets less."""
        return self.own >= _CROWDED and not self.alone


@dataclass(frozen=True, slots=True)
class _Slow:
    rank: RankName
    rule: _Rule
    ratio: float
    last: Pace
    busy_s: float
    """Medians over the windows looked at, as the next."""
    usual_s: float
    since_s: float
    lost_s: float
    alone_s: float
    """Seconds a step in which it worked: busy, and not held inside collectives."""
    held: float
    """Share of its busy time in which they held it."""
    persistent: bool
    blame: Blame
    starved: _Starved
    steady: bool = False
    """Only all of its windows together show it: it may as well work more in every few steps."""


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
            if found is not None and not _waits_longer(windows, found):
                by_group.setdefault(track.group, []).append(found)
    told = (_verdict(history, group, slow) for group, slow in by_group.items())
    return tuple(verdict for verdict in told if verdict is not None)


def _slow(history: History, pace: Pace, rule: _Rule) -> bool:
    """Whether one window shows a rank slower than its cohort, and to the fleet's cost."""
    return bool(
        cohort.slower(
            pace.low_s / pace.work,
            pace.usual_s,
            step=pace.step_s,
            score=pace.z,
            members=pace.cohort,
            ratio=rule.ratio,
            share=_SHARE_OF_STEP,
            least_score=history.config.straggler_z,
        )
    )


def _judge(history: History, track: RankTrack, windows: Sequence[Window]) -> _Slow | None:
    config = history.config
    clear = _Rule(
        config.straggler_ratio,
        config.straggler_windows,
        config.straggler_slow_windows,
        config.persistent_windows,
    )
    mild = _Rule(config.mild_ratio, _MILD_WINDOWS, _MILD_SLOW, _MILD_PERSISTENT)
    return (
        _by(history, track, windows, clear)
        or _by(history, track, windows, mild)
        or _steady(track, windows, mild)
    )


def _steady(track: RankTrack, windows: Sequence[Window], rule: _Rule) -> _Slow | None:
    """Slow all along where single windows say little: two steps a poll make each of them noisy.

    One of three at least without phases, whose peers agree: the busiest in nearly every window, by
    as much as the mild rule asks of one, over so many windows together.
    """
    last = _pace(windows[-1], track)
    if last is None or last.calls is None or last.cohort < 3:
        return None
    count, least_ahead = _STARVED_WINDOWS, _STARVED_AHEAD
    if not _starved(windows[-count:], track.rank).alone:
        count, least_ahead = _STEADY_WINDOWS, _STEADY_AHEAD
    recent = windows[-count:]
    present = [p for window in recent if (p := _pace(window, track)) is not None]
    if len(present) < count:
        return None
    busy_s = sum(p.busy_s / p.work for p in present) / len(present)
    if busy_s <= (1 + rule.ratio) / 2 * sum(p.usual_s for p in present) / len(present):
        return None  # most: its peers need not be gone through
    lane = track.identity.group_rank
    peers: dict[RankName, list[Pace]] = {}
    for window in recent:
        for rank, pace in window.paces.items():
            if rank != track.rank and split_rank_name(rank)[1] == lane:
                peers.setdefault(rank, []).append(pace)
    most_s = [max(p.busy_s for p in each) for each in zip(*peers.values(), strict=False)]
    ahead = sum(p.busy_s > m for p, m in zip(present, most_s, strict=False))
    means = [sum(p.busy_s for p in each) / len(each) for each in peers.values()]
    lows = [sum(p.low_s for p in each) / len(each) for each in peers.values()]
    low_s = sum(p.low_s / p.work for p in present) / len(present)
    step_s = sum(p.step_s for p in present) / len(present)
    excess_s = busy_s - max(means)
    apart = max(means) - min(means) <= excess_s / 2 and busy_s > rule.ratio * max(means)
    apart = apart and low_s > rule.ratio * max(lows)  # not only in every fifth step
    if ahead < least_ahead or not apart or excess_s <= _SHARE_OF_STEP * step_s:
        return None
    return _Slow(
        rank=track.rank,
        rule=_Rule(rule.ratio, count, ahead, count),
        ratio=busy_s / max(means),
        last=present[-1],
        busy_s=busy_s,
        usual_s=max(means),
        since_s=recent[0].start_s,
        lost_s=sum((p.busy_s - p.usual_s) * p.steps for p in present),
        alone_s=median([pace.alone_s for pace in present]),
        held=sum(pace.held for pace in present) / len(present),
        persistent=False,
        blame=blame(recent, track.rank),
        starved=_starved(recent, track.rank),
        steady=True,
    )


def _by(history: History, track: RankTrack, windows: Sequence[Window], rule: _Rule) -> _Slow | None:
    last = _pace(windows[-1], track)
    if last is not None and last.calls is not None and last.cohort < cohort.SMALL:
        rule = rule.lasting(windows, last.cohort)
    present = [p for window in windows[-rule.windows :] if (p := _pace(window, track)) is not None]
    if len(present) < rule.windows or not _slow(history, present[-1], rule):
        return None
    if sum(_slow(history, pace, rule) for pace in present) < rule.slow:
        return None
    start, lost_s = _episode(history, track, windows, rule)
    persistent = _persistent(history, track, windows, rule)
    if present[-1].cohort < cohort.SMALL and not (
        _changed(history, track, windows[:start], present) or persistent
    ):
        return None
    held = sum(pace.held for pace in present) / len(present)
    return _Slow(
        rank=track.rank,
        rule=rule,
        ratio=median([p.busy_s / max(p.usual_s, 1e-9) for p in present if _slow(history, p, rule)]),
        last=present[-1],
        busy_s=median([pace.busy_s for pace in present]),
        usual_s=median([pace.usual_s for pace in present]),
        since_s=windows[start].start_s,
        lost_s=max(0.0, lost_s),
        alone_s=median([pace.alone_s for pace in present]),
        held=held,
        persistent=persistent,
        blame=blame(windows[-rule.windows :], track.rank),
        starved=_starved(windows[-rule.windows :], track.rank),
    )


def _waits_longer(windows: Sequence[Window], found: _Slow) -> bool:
    """Whether it waits for longer than somebody else, who then is what the job waits for.

    Who works while no other does gets all the cores: the victim of a slow rank in its own group may
    look quick, and its peer elsewhere slow beside it.
    """
    waits = _by_rank(windows[-found.rule.windows :], lambda pace: pace.step_s - pace.busy_s)
    own_s = median(waits.pop(found.rank))
    least_s = min((median(each) for each in waits.values()), default=own_s)
    return own_s - least_s > (found.busy_s - found.usual_s) / 2


def _cores(history: History, rank: RankName) -> tuple[float, float]:
    """What it uses of late, and its peers at the median."""
    used = {t.rank: t.used.cores or 0.0 for t in history.present() if t.used is not None}
    return used.pop(rank, 0.0), median(used.values()) if used else 0.0


def _starved(windows: Sequence[Window], rank: RankName) -> _Starved:
    means, worst = _starving(windows)
    other = next((share for share, name in worst if name != rank), 0.0)
    return _Starved(means.get(rank, 0.0), other)


def _starving(windows: Sequence[Window]) -> _Means:
    """The mean of each rank, and the two worst: every rank of a tick asks for the same windows."""
    for known, before in _LATELY:
        if len(known) == len(windows) and all(map(is_, known, windows)):
            return before
    shares = _by_rank(windows, lambda pace: pace.starved)
    means = {name: sum(each) / len(each) for name, each in shares.items()}
    found = means, nlargest(2, ((share, name) for name, share in means.items()))
    _LATELY.append((tuple(windows), found))
    return found


_Means = tuple[dict[RankName, float], list[tuple[float, RankName]]]
_LATELY: Final[deque[tuple[tuple[Window, ...], _Means]]] = deque(maxlen=4)


def _by_rank(
    windows: Sequence[Window], value: Callable[[Pace], float]
) -> dict[RankName, list[float]]:
    found: dict[RankName, list[float]] = {}
    for window in windows:
        for rank, pace in window.paces.items():
            found.setdefault(rank, []).append(value(pace))
    return found


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
    noisy_s = sorted(past)[int(_PAST * (len(past) - 1))]
    return now_s > max(history.config.own_change_ratio * median(past), noisy_s)


def _persistent(history: History, track: RankTrack, windows: Sequence[Window], rule: _Rule) -> bool:
    """Whether a rank was slow in each of the last windows."""
    paces = [_pace(window, track) for window in windows[-rule.persistent :]]
    return len(paces) == rule.persistent and all(
        p is not None and _slow(history, p, rule) for p in paces
    )


def _episode(
    history: History, track: RankTrack, windows: Sequence[Window], rule: _Rule
) -> tuple[int, float]:
    """First window of the present slowness, and the seconds that it has cost the fleet.

    One good window may lie between two slow ones.
    """
    start, lost_s, pending_s, good = len(windows), 0.0, 0.0, 0
    for index in range(len(windows) - 1, -1, -1):
        pace = _pace(windows[index], track)
        if pace is None or good > 1:
            break
        pending_s += (pace.busy_s - pace.usual_s) * pace.steps
        if _slow(history, pace, rule):
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
    doubted = any(found.steady and not found.starved.alone for found in slow)
    crowded = worst.starved.together
    clear = transfer or all(found.last.sees_group for found in slow) or _well(history, worst, slow)
    since_s = min(found.since_s for found in slow)
    victims = tuple(
        track.rank
        for track in history.present()
        if track.rank in held or (track.group != group and history.participating(track))
    )
    told = _transfer(culprits, worst) if transfer else _work(culprits, worst, clear=clear)
    if doubted:
        told += ", all along or in every few steps: the samples are too coarse to tell"
    uses, others_use = _cores(history, worst.rank)
    if uses > max(0.5, 1.5 * others_use):
        told += (
            f"; it uses {uses:.1f} cores, its peers {others_use:.1f}: it computes more than they"
        )
    elif worst.starved.alone:
        told += (
            f"; for {worst.starved.own:.0%} of the time it was ready to run and got no core: a CPU "
            "limit, or other programs on its host"
        )
    elif crowded:
        told += (
            f"; it waits for a core for {worst.starved.own:.0%} of the time, and others wait much "
            "as long: there are too few for all, and chance says who gets less"
        )
    return Verdict(
        kind=Kind.STRAGGLER,
        culprits=culprits,
        groups=(group,),
        reason=f"{told}; {listed(victims)} {plural(victims, 'waits', 'wait')} "
        f"{seconds(max(0.0, worst.busy_s - worst.usual_s))} a step for that, for "
        f"{seconds(history.now_s - since_s)} now",
        confidence=Confidence.LIKELY
        if clear and not doubted and not crowded
        else Confidence.UNSURE,
        since_s=since_s,
        victims=victims,
        evidence={
            found.rank: f"busy {found.last.busy_s:.4f} s a step, peers {found.last.usual_s:.4f} s, "
            f"lost {found.lost_s:.1f} s since {found.since_s:.0f}"
            for found in slow
        }
        | {
            "slow at": TRANSFERS if transfer else worst.blame.kind or "its own work",
            "course": _course(slow, worst),
            "source": f"{'phases' if worst.blame.kind else 'waits that its WorkerServer saw'}, "
            f"medians over windows of {seconds(history.config.window_s)} and more",
        },
        lost_s=max(found.lost_s for found in slow),
        signature=f"straggler:{culprits[0]}",
    )


def _well(history: History, worst: _Slow, slow: list[_Slow]) -> bool:
    """Whether it is the only slow rank of a group whose waits show in part.

    What does not show looks like work: who looks no busier than its peers is none of the slow.
    """
    mates = {track.rank for track in history.groups().get(group_of(worst.rank), ())}
    windows = list(history.pace.windows)[-worst.rule.windows :]
    return len(slow) == 1 and all(
        len(paces) == len(windows)
        and median([p.busy_s for p in paces])
        <= history.config.mild_ratio * median([p.usual_s for p in paces])
        for mate in mates - {worst.rank}
        for paces in ([w.paces[mate] for w in windows if mate in w.paces],)
    )


def _course(slow: list[_Slow], worst: _Slow) -> str:
    rule, times = worst.rule, f"{worst.ratio:.1f} times as long as its peers"
    if any(found.persistent for found in slow):
        return f"persistent: {times}, slow in each of the last {rule.persistent} windows"
    return f"lately: {times}, slow in {rule.slow} of {rule.windows} windows"


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


def _transfer(culprits: tuple[RankName, ...], worst: _Slow) -> str:
    last = worst.last
    peers = f"{last.cohort - 1} other {'group takes' if last.cohort == 2 else 'groups take'}"
    return (
        f"the collectives inside the group of {listed(culprits)} are slow: its ranks come in "
        f"time and take {seconds(worst.busy_s)} a step where {peers} {seconds(worst.usual_s)}"
    )


def _work(culprits: tuple[RankName, ...], worst: _Slow, *, clear: bool) -> str:
    """Such as `1.0 slows everybody: its own work takes 1.1 s a step where its peers take 0.2 s`."""
    last, found = worst.last, worst.blame
    peers = "its peer takes" if last.cohort == 2 else "its peers take"
    work = f"own work takes {seconds(worst.busy_s)} a step where {peers} {seconds(worst.usual_s)}"
    where = ""
    if found.kind is not None:
        where = f", in {found.kind} {seconds(found.own_s)} where they take {seconds(found.peers_s)}"
    if last.stopped >= _MOSTLY:
        where += f"; a signal had stopped it at {last.stopped:.0%} of the looks"
    elif last.witness is not None:
        where += f"; it was seen to stand in {last.witness.frame}"
    if not clear:
        return (
            f"a rank of group {group_of(worst.rank)} slows everybody, perhaps "
            f"{' or '.join(culprits)} (how long its ranks wait for each other does not show): "
            f"of {worst.rank} its {work}{where}"
        )
    if len(culprits) > 1:
        return f"{listed(culprits)} slow everybody: of {worst.rank}, the slowest, its {work}{where}"
    return f"{worst.rank} slows everybody: its {work}{where}"
