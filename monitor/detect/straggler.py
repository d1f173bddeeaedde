"""Slow ranks (classes S1 and S2): busy when the others already wait.

Measured: busy seconds a step (`monitor.detect.pace`), in windows common to the fleet, against the
ranks of the same role: the same group rank in the other groups (ALGORITHMS.md section 6). Windows
touched by a start, a heal or a death are dropped. The job does not wait for a rank that waits
longer than another, however long its work takes. The milder the slowness, the longer it has to
last. With 4 or more in the cohort a robust z-score must agree, or the rank be as slow relative to
the slowest of its peers (with few, the score is noise: a rank that took twice as long all day was
reported only now and then, as the windows' scores varied from 4 to 6); under 4 the rank must also
have become slower than it was, or stay slow for long. A rank with more tokens than its peers is
slow only if it is slow per token. It is slow at the phase with the greatest excess; where all ranks
of a group spend theirs inside the group's own collectives, the transfer is slow, and the group, not
a rank, is to blame. Where a rank's waiting for its own group does not show (torch's DDP waits in
C++), the group is reported, and that the slow rank in it is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Final

import numpy as np

from lightkeeper.monitor.detect.history import History
from lightkeeper.monitor.detect.learned_pauses import Gap
from lightkeeper.monitor.detect.pace import Blame, Pace, Paces, Window, side_by_side
from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.model import cohort
from lightkeeper.monitor.model.cohort import Floats
from lightkeeper.monitor.model.names import GroupName, RankName, group_of
from lightkeeper.monitor.model.units import grouped
from lightkeeper.monitor.model.verdict import Confidence, Kind, Verdict
from lightkeeper.monitor.model.wording import does, listed, seconds
from lightkeeper.worker_server.wire import LONG_PHASES, WAITING_PHASE

# -- slow phase --------------------------------------------------------------------------------

_KINDS: Final[Mapping[str, str]] = {
    "data": "data loading",
    "forward": "compute",
    "backward": "compute",
    "optimizer": "compute",
}
_QUIET: Final = LONG_PHASES | {WAITING_PHASE}


def blame(windows: Sequence[Window], rank: RankName) -> Blame:
    """The kind of phase with the greatest excess over the peers in these windows."""
    own: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    alone: list[float] = []
    for paces in (window.paces for window in windows):
        place = paces.roster.places.get(rank)
        if place is None:
            continue
        peers = paces.roster.lanes == paces.roster.lanes[place]
        peers[place] = False
        for kind, spent_s in sorted(by_kind(paces).items()):
            if not np.isnan(spent_s[place]) or not np.isnan(spent_s[peers]).all():
                known_s = np.nan_to_num(spent_s)
                own.setdefault(kind, []).append(float(known_s[place]))
                theirs.setdefault(kind, []).append(_median(known_s[peers]))
        alone.append(_median(paces.figure("alone_s")[peers]))
    excess = {kind: _median(own[kind]) - _median(theirs[kind]) for kind in own}
    worst = max(sorted(excess), key=lambda kind: excess[kind], default=None)
    return Blame(
        kind=worst,
        own_s=_median(own.get(worst or "", ())),
        peers_s=_median(theirs.get(worst or "", ())),
        peers_alone_s=_median(alone),
    )


def by_kind(paces: Paces) -> dict[str, Floats]:
    """Busy seconds a step of all ranks by kind of phase; NaN for ranks without it."""
    kinds: dict[str, Floats] = {}
    for phase in paces.phases:
        if phase not in _QUIET:
            kind, spent_s = _KINDS.get(phase, f"'{phase}'"), paces.phase(phase)
            before = kinds.get(kind)
            if before is not None:
                spent_s = np.where(np.isnan(before), spent_s, before + np.nan_to_num(spent_s))
            kinds[kind] = spent_s
    return kinds


def _median(values: Iterable[float] | Floats) -> float:
    numbers = list(values)
    return float(median(numbers)) if numbers else 0.0


# -- straggler ---------------------------------------------------------------------------------

_SHARE_OF_STEP = 0.1
"""Least excess, as a share of a step: less slows nobody down noticeably."""
_BASELINE_WINDOWS = 3
_MILD_WINDOWS, _MILD_SLOW, _MILD_PERSISTENT = 12, 10, 24
"""As `straggler_windows`, `straggler_slow_windows` and `persistent_windows`, for `mild_ratio`."""
_STEADY_WINDOWS, _STEADY_AHEAD = 16, 14
_STARVED_WINDOWS, _STARVED_AHEAD = 6, 5
"""As `_STEADY_WINDOWS`, for a rank that alone gets no core."""
_STARVED, _STARVED_TIMES = 0.35, 2.0
_CROWDED = 0.5
_SMALL_S = 40.0
"""A cohort under 4 without phases is observed for at least this long: on shared cores, one of two
ranks may get less of them for 25 s (seen at a load of 40 on 2 cores)."""
_PAIR_PERSISTENT_S, _SMALL_PERSISTENT_S = 120.0, 60.0
"""How long a rank of such a cohort must be slow if never seen well: one of two, of three."""
_PAST = 0.9
"""Its slow windows must exceed this quantile of its own past."""
_MOSTLY: Final = 0.5
"""Share of the looks at which a signal had stopped it."""
_MOSTLY_INSIDE = 0.5
"""Share of the sweeps inside collectives above which a group mainly spends its time there."""
_HELD = 0.2
"""Share of its busy time above which the time held by collectives is judged separately."""
_OWN_SHARE = 2 / 3
"""Among the slow ranks of a group, those with at least this share of the busiest one's work are
culprits; the others are slow because they wait for it inside forward and backward."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """How slow and how long."""

    ratio: float
    windows: int
    slow: int
    persistent: int

    def lasting(self, windows: Sequence[Window], members: int) -> _Rule:
        """A rule over enough windows to fill `_SMALL_S`."""
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
    """Shares of the time in which ranks were runnable and got no core."""

    own: float
    others: float
    """The greatest among the others."""

    @property
    def alone(self) -> bool:
        """True if by the kernel's count only this rank is held up, whatever the samples say."""
        return self.own >= max(_STARVED, _STARVED_TIMES * self.others)

    @property
    def together(self) -> bool:
        """True if cores are too few for all of them, and chance decides."""
        return self.own >= _CROWDED and not self.alone


@dataclass(frozen=True, slots=True)
class _Slow:
    """A rank that is slow by a rule."""

    rank: RankName
    rule: _Rule
    own: Sequence[Pace]
    """Its paces in the windows of the rule."""
    ratio: float
    busy_s: float
    """Medians over the observed windows, like the next."""
    usual_s: float
    since_s: float
    lost_s: float
    blame: Blame
    starved: _Starved
    persistent: bool = False
    steady: bool = False
    """Only all of its windows together show it: it may do more work in every few steps."""

    @property
    def last(self) -> Pace:
        return self.own[-1]

    @property
    def alone_s(self) -> float:
        """Seconds a step in which it worked: busy, and not held inside collectives."""
        return median([pace.alone_s for pace in self.own])

    @property
    def held(self) -> float:
        """Share of its busy time in which collectives held it."""
        return _mean([pace.held for pace in self.own])

    @property
    def coarse(self) -> bool:
        """True if neither single windows nor the kernel's count confirm it."""
        return self.steady and not self.starved.alone


def straggler(history: History) -> Iterable[Verdict]:
    """Ranks that have been slow for several windows (S1): one verdict per group, or that the
    collectives inside a group are slow (S2).
    """
    windows = list(history.pace.windows)
    if len(windows) < history.config.straggler_windows or history.disturbed:
        return
    suspects = _suspects(history, windows)
    by_group = grouped(
        (track.group, suspect)
        for track in history.present()
        if track.rank in suspects and track.participating
        if (suspect := _judge(history, track, windows)) is not None
        if not _waits_longer(windows, suspect)
    )
    for group, slow in by_group.items():
        yield from _verdict(history, group, slow)


def _suspects(history: History, windows: Sequence[Window]) -> frozenset[RankName]:
    """Ranks that may be slow by one of the rules: the others are not checked one by one."""
    last, config = windows[-1].paces, history.config
    slow = _slower(history, last.figure, min(config.straggler_ratio, config.mild_ratio))
    suspects = {rank for rank, is_slow in zip(last, slow, strict=True) if is_slow}
    if not np.isnan(last.figure("calls")).all():
        suspects |= _busier(windows, config.mild_ratio)
    return frozenset(suspects)


def _busier(windows: Sequence[Window], ratio: float) -> set[RankName]:
    """Ranks that work longer than their peers over the windows that `_steady` uses."""
    busier: set[RankName] = set()
    for count in (_STARVED_WINDOWS, _STEADY_WINDOWS):
        recent = windows[-count:]
        roster, busy = side_by_side(recent, lambda p: p.figure("busy_s") / p.figure("work"))
        _, usual = side_by_side(recent, lambda p: p.figure("usual_s"))
        more = busy.sum(axis=0) > _least_busy(ratio) * usual.sum(axis=0)
        busier.update(rank for rank, is_busier in zip(roster.ranks, more, strict=True) if is_busier)
    return busier


def _least_busy(ratio: float) -> float:
    return (1 + ratio) / 2


def _slower(history: History, figure: Callable[[str], Any], ratio: float) -> Any:
    """True where one window shows a rank slower than its cohort, and costing the fleet; `figure`: a
    figure of one pace, or of the paces of all ranks.
    """
    low_s = figure("low_s") / figure("work")
    return cohort.slower(
        low_s,
        figure("usual_s"),
        step=figure("step_s"),
        score=np.where(low_s > ratio * figure("most_s"), np.inf, figure("z")),
        members=figure("cohort"),
        ratio=ratio,
        share=_SHARE_OF_STEP,
        least_score=history.config.straggler_z,
    )


def _slow(history: History, pace: Pace, rule: _Rule) -> bool:
    return bool(_slower(history, partial(getattr, pace), rule.ratio))


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


def _by(history: History, track: RankTrack, windows: Sequence[Window], rule: _Rule) -> _Slow | None:
    """Slow in the last window and in enough of those before; in a small cohort it also has to have
    become so, or to stay so.
    """
    last = _pace(windows[-1], track)
    if last is None or not _slow(history, last, rule):
        return None
    if last.calls is not None and last.cohort < cohort.SMALL:
        rule = rule.lasting(windows, last.cohort)
    recent = windows[-rule.windows :]
    own = _paces(recent, track)
    slow = [pace for pace in own if _slow(history, pace, rule)]
    if len(own) < rule.windows or len(slow) < rule.slow:
        return None
    start, lost_s = _episode(history, track, windows, rule)
    persistent = _persistent(history, track, windows, rule)
    lasts = persistent or _changed(history, track, windows[:start], own)
    if last.cohort < cohort.SMALL and not lasts:
        return None
    return _Slow(
        rank=track.rank,
        rule=rule,
        own=own,
        ratio=median([pace.busy_s / max(pace.usual_s, 1e-9) for pace in slow]),
        busy_s=median([pace.busy_s for pace in own]),
        usual_s=median([pace.usual_s for pace in own]),
        since_s=windows[start].start_s,
        lost_s=max(0.0, lost_s),
        blame=blame(recent, track.rank),
        starved=_starved(recent, track.rank),
        persistent=persistent,
    )


def _steady(track: RankTrack, windows: Sequence[Window], rule: _Rule) -> _Slow | None:
    """Slow throughout, though single windows show little: two steps a poll make each noisy.

    A rank without phases, whose two or more peers agree: it is the busiest in nearly every window,
    and over this many windows together by as much as the mild rule asks.
    """
    last = _pace(windows[-1], track)
    if last is None or last.calls is None or last.cohort < 3:
        return None
    count, least_ahead = _STARVED_WINDOWS, _STARVED_AHEAD
    if not _starved(windows[-count:], track.rank).alone:
        count, least_ahead = _STEADY_WINDOWS, _STEADY_AHEAD
    recent = windows[-count:]
    own = _paces(recent, track)
    if len(own) < count:
        return None
    busy_s = _mean([pace.busy_s / pace.work for pace in own])
    if busy_s <= _least_busy(rule.ratio) * _mean([pace.usual_s for pace in own]):
        return None  # most: no need to check their peers
    peers = _peers(recent, track)
    ahead = _ahead(own, peers)
    if ahead < least_ahead or not _stands_out(own, peers, rule.ratio):
        return None
    usual_s = max(_mean([pace.busy_s for pace in paces]) for paces in peers)
    return _Slow(
        rank=track.rank,
        rule=_Rule(rule.ratio, count, ahead, count),
        own=own,
        ratio=busy_s / usual_s,
        busy_s=busy_s,
        usual_s=usual_s,
        since_s=recent[0].start_s,
        lost_s=sum((pace.busy_s - pace.usual_s) * pace.steps for pace in own),
        blame=blame(recent, track.rank),
        starved=_starved(recent, track.rank),
        steady=True,
    )


def _peers(windows: Sequence[Window], track: RankTrack) -> list[list[Pace]]:
    """The paces of each other rank of its lane."""
    peers = grouped(
        (rank, paces[rank])
        for paces in (window.paces for window in windows)
        for place in np.flatnonzero(paces.roster.lanes == track.identity.group_rank)
        if (rank := paces.roster.ranks[place]) != track.rank
    )
    return list(peers.values())


def _ahead(own: Sequence[Pace], peers: Iterable[Sequence[Pace]]) -> int:
    """In how many windows it was the busiest."""
    windows = zip(own, *peers, strict=False)
    return sum(pace.busy_s > max(peer.busy_s for peer in others) for pace, *others in windows)


def _stands_out(own: Sequence[Pace], peers: Sequence[Sequence[Pace]], ratio: float) -> bool:
    """True if a rank works longer than its peers, which agree, and not only in every fifth step."""
    busy_s = _mean([pace.busy_s / pace.work for pace in own])
    low_s = _mean([pace.low_s / pace.work for pace in own])
    means_s = [_mean([pace.busy_s for pace in paces]) for paces in peers]
    lows_s = [_mean([pace.low_s for pace in paces]) for paces in peers]
    excess_s = busy_s - max(means_s)
    agree = max(means_s) - min(means_s) <= excess_s / 2
    longer = busy_s > ratio * max(means_s) and low_s > ratio * max(lows_s)
    return agree and longer and excess_s > _SHARE_OF_STEP * _mean([pace.step_s for pace in own])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _waits_longer(windows: Sequence[Window], suspect: _Slow) -> bool:
    """True if it waits for longer than another rank, which is then what the job waits for.

    A rank that works while no other does gets all the cores: the victim of a slow rank in its own
    group may look quick, and its peer elsewhere slow in comparison.
    """
    recent = windows[-suspect.rule.windows :]
    roster, waits_s = side_by_side(recent, lambda p: p.figure("step_s") - p.figure("busy_s"))
    middles_s = np.nanmedian(waits_s, axis=0)
    place = roster.places[suspect.rank]
    own_s = float(middles_s[place])
    least_s = float(np.delete(middles_s, place).min(initial=own_s))
    return own_s - least_s > (suspect.busy_s - suspect.usual_s) / 2


def _starved(windows: Sequence[Window], rank: RankName) -> _Starved:
    roster, shares = side_by_side(windows, lambda paces: paces.figure("starved"))
    means = np.nanmean(shares, axis=0)
    place = roster.places.get(rank)
    if place is None:
        return _Starved(0.0, float(means.max(initial=0.0)))
    return _Starved(float(means[place]), float(np.delete(means, place).max(initial=0.0)))


def _pace(window: Window, track: RankTrack) -> Pace | None:
    pace = window.paces.get(track.rank)
    return pace if pace is not None and pace.incarnation == track.identity.incarnation else None


def _paces(windows: Sequence[Window], track: RankTrack) -> list[Pace]:
    return [pace for window in windows if (pace := _pace(window, track)) is not None]


def _changed(
    history: History, track: RankTrack, before: Sequence[Window], present: Sequence[Pace]
) -> bool:
    """True if a rank is slower than before its slow period."""
    past = [pace.busy_s for pace in _paces(before, track)]
    if len(past) < _BASELINE_WINDOWS:
        return False
    now_s = median([pace.busy_s for pace in present])
    noisy_s = sorted(past)[int(_PAST * (len(past) - 1))]
    return now_s > max(history.config.own_change_ratio * median(past), noisy_s)


def _persistent(history: History, track: RankTrack, windows: Sequence[Window], rule: _Rule) -> bool:
    paces = [_pace(window, track) for window in windows[-rule.persistent :]]
    return len(paces) == rule.persistent and all(
        p is not None and _slow(history, p, rule) for p in paces
    )


def _episode(
    history: History, track: RankTrack, windows: Sequence[Window], rule: _Rule
) -> tuple[int, float]:
    """First window of the current slowness, and the seconds that it has cost the fleet.

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


def _verdict(history: History, group: GroupName, suspects: list[_Slow]) -> Iterable[Verdict]:
    """None when all of them only wait, for one that is not known to be slow yet."""
    transfer = _slow_transfer(history, group, suspects)
    slow = suspects if transfer else _by_own_work(history, suspects)
    if not slow:
        return
    worst = max(slow, key=lambda worker: (worker.ratio, worker.rank))
    culprits = tuple(worker.rank for worker in slow)
    clear = transfer or _clear(history, worst, slow)
    coarse = any(worker.coarse for worker in slow)
    what = _collectives(culprits, worst) if transfer else _work(culprits, worst, clear=clear)
    since_s = min(worker.since_s for worker in slow)
    victims = _victims(history, group, {suspect.rank for suspect in suspects}.difference(culprits))
    sure = clear and not coarse and not worst.starved.together
    doubt = ", all along or in every few steps: the samples are too coarse to tell"
    yield Verdict(
        kind=Kind.STRAGGLER,
        culprits=culprits,
        groups=(group,),
        reason=f"{what}{doubt if coarse else ''}{_cause(history, worst)}; {does(victims, 'waits')} "
        f"{seconds(max(0.0, worst.busy_s - worst.usual_s))} a step for that, for "
        f"{seconds(history.now_s - since_s)} now",
        brief=what,
        confidence=Confidence.LIKELY if sure else Confidence.UNSURE,
        since_s=since_s,
        victims=victims,
        evidence=_evidence(history, slow, worst, transfer=transfer),
        lost_s=max(worker.lost_s for worker in slow),
        signature=f"straggler:{culprits[0]}",
    )


def _collectives(ranks: Sequence[RankName], worst: _Slow) -> str:
    others = worst.last.cohort - 1
    return (
        f"the collectives inside the group of {listed(ranks)} are slow: its ranks arrive on time "
        f"and take {seconds(worst.busy_s)} a step where {others} other "
        f"{'group takes' if others == 1 else 'groups take'} {seconds(worst.usual_s)}"
    )


def _work(ranks: Sequence[RankName], worst: _Slow, *, clear: bool) -> str:
    """`1.0 slows everybody: its own work takes 1.1 s a step where its peers take 0.2 s`.

    `clear`: it shows how long the ranks of its group wait for each other.
    """
    pace, blame, slowest = worst.last, worst.blame, worst.rank
    peers = "its peer takes" if pace.cohort == 2 else "its peers take"
    work = f"own work takes {seconds(worst.busy_s)} a step where {peers} {seconds(worst.usual_s)}"
    if blame.kind is not None:
        work += f", in {blame.kind} {seconds(blame.own_s)} where they take {seconds(blame.peers_s)}"
    if pace.stopped >= _MOSTLY:
        work += f"; a signal had stopped it at {pace.stopped:.0%} of the looks"
    elif pace.witness is not None:
        work += f"; it was seen to stand in {pace.witness.frame}"
    if not clear:
        return (
            f"a rank of group {group_of(slowest)} slows everybody, perhaps {' or '.join(ranks)} "
            "(how long its ranks wait for each other does not show): "
            f"of {slowest} its {work}"
        )
    if len(ranks) > 1:
        return f"{listed(ranks)} slow everybody: of {slowest}, the slowest, its {work}"
    return f"{slowest} slows everybody: its {work}"


def _by_own_work(history: History, suspects: Iterable[_Slow]) -> list[_Slow]:
    """The slow ranks of a group that do not only wait for another of them."""
    workers = [suspect for suspect in suspects if not _waits(history, suspect)]
    most_s = max((worker.alone_s for worker in workers), default=0.0)
    return [worker for worker in workers if worker.alone_s >= _OWN_SHARE * most_s]


def _victims(history: History, group: GroupName, waiting: Set[RankName]) -> tuple[RankName, ...]:
    """The other groups, and these ranks of the slow one's own."""
    return tuple(
        track.rank
        for track in history.present()
        if track.rank in waiting or (track.group != group and track.participating)
    )


def _cause(history: History, worst: _Slow) -> str:
    """Why it is slow, as far as the kernel shows; empty: no idea."""
    cores = {t.rank: t.used.cores or 0.0 for t in history.present() if t.used is not None}
    uses = cores.pop(worst.rank, 0.0)
    others_use = median(cores.values()) if cores else 0.0
    if uses > max(0.5, 1.5 * others_use):
        return f"; it uses {uses:.1f} cores, its peers {others_use:.1f}: it computes more than they"
    if worst.starved.alone:
        return (
            f"; for {worst.starved.own:.0%} of the time it was ready to run and got no core: a CPU "
            "limit, or other programs on its host"
        )
    if worst.starved.together:
        return (
            f"; it waits for a core for {worst.starved.own:.0%} of the time, and others wait much "
            "as long: there are too few for all, and chance says who gets less"
        )
    return ""


def _evidence(
    history: History, slow: Sequence[_Slow], worst: _Slow, *, transfer: bool
) -> dict[str, str]:
    seen_by = "phases" if worst.blame.kind else "waits that its WorkerServer saw"
    return {
        worker.rank: f"busy {worker.last.busy_s:.4f} s a step, peers {worker.last.usual_s:.4f} s, "
        f"lost {worker.lost_s:.1f} s in {seconds(history.now_s - worker.since_s)}"
        for worker in slow
    } | {
        "slow at": "communication inside its group"
        if transfer
        else worst.blame.kind or "its own work",
        "course": _course(slow, worst),
        "source": f"{seen_by}, medians over windows of {seconds(history.config.window_s)} and more",
    }


def _clear(history: History, worst: _Slow, slow: Sequence[_Slow]) -> bool:
    """True if the waits within its group show, or show in part and it is the only slow rank there.

    What does not show looks like work: a rank no busier than its peers is not slow.
    """
    if all(worker.last.sees_group for worker in slow):
        return True
    mates = {track.rank for track in history.groups().get(group_of(worst.rank), ())}
    windows = list(history.pace.windows)[-worst.rule.windows :]
    return len(slow) == 1 and all(
        len(paces) == len(windows)
        and median([p.busy_s for p in paces])
        <= history.config.mild_ratio * median([p.usual_s for p in paces])
        for mate in mates - {worst.rank}
        for paces in ([w.paces[mate] for w in windows if mate in w.paces],)
    )


def _course(slow: Sequence[_Slow], worst: _Slow) -> str:
    rule, times = worst.rule, f"{worst.ratio:.1f} times as long as its peers"
    if any(worker.persistent for worker in slow):
        return f"persistent: {times}, slow in each of the last {rule.persistent} windows"
    return f"lately: {times}, slow in {rule.slow} of {rule.windows} windows"


def _waits(history: History, suspect: _Slow) -> bool:
    """True if it is slow only because collectives held it: its own work takes no longer."""
    own_s = suspect.alone_s / suspect.last.work
    return suspect.held >= _HELD and own_s <= (
        history.config.straggler_ratio * suspect.blame.peers_alone_s
    )


def _slow_transfer(history: History, group: GroupName, suspects: list[_Slow]) -> bool:
    """True if all ranks of a group are slow, in its collectives and not in their own work.

    All come in time then, and the transfer takes long (class S2): a link, not a rank.
    """
    ratio = history.config.straggler_ratio
    return 1 < len(history.groups().get(group, ())) == len(suspects) and all(
        suspect.held >= _MOSTLY_INSIDE and suspect.alone_s <= ratio * suspect.blame.peers_alone_s
        for suspect in suspects
    )


# -- slow pause --------------------------------------------------------------------------------

_PHASES = ("checkpoint", "evaluation")
_NOW = 3
"""Consecutive pauses that have to be slow, and earlier pauses that make the past."""
_RATIO = 2.0
_GROWN = 1.3
"""Peers' pauses that have grown this much point to the storage."""
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


def slow_pause(history: History) -> Iterable[Verdict]:
    """Checkpoints and evaluations that have become slow on one rank: a verdict for each phase.

    Declared long phases are not part of a rank's pace, and by design not alike: often only one
    group saves. So a rank is compared with its own past first, and with ranks of its role that also
    make such pauses: if theirs have grown too, it is the storage and nobody is accused. Without
    such peers the cause is unknown.
    """
    for track in history.present():
        for phase in _PHASES if track.participating else ():
            change = _change(history.habits.declared(track.rank, phase))
            if change is None or not change.slow:
                continue
            if history.now_s - change.now[-1].ended_s <= _FRESH_S:
                yield from _judge_pause(history, track, phase, change)


def _change(gaps: Sequence[Gap]) -> _Change | None:
    """The last pauses against the longest earlier one; None while there are too few.

    Slow pauses cannot serve as the past: only the first half of the known ones does.
    """
    if len(gaps) < 2 * _NOW:
        return None
    before = gaps[: max(_NOW, len(gaps) // 2)]
    return _Change(max(gap.span_s for gap in before), tuple(gaps[-_NOW:]))


def _judge_pause(
    history: History, track: RankTrack, phase: str, change: _Change
) -> Iterable[Verdict]:
    pauses = [
        history.habits.declared(other.rank, phase)
        for other in history.present()
        if other.group != track.group and other.identity.group_rank == track.identity.group_rank
    ]
    changes = [_change(gaps) for gaps in pauses if gaps]
    peers = [change for change in changes if change is not None]
    if len(peers) < len(changes):
        return  # a peer makes such pauses, but too few were seen
    if any(peer.now_s > _GROWN * peer.was_s for peer in peers):
        return  # theirs grow too: the storage
    beside = "no peer has such pauses, so it may be the storage"
    if peers:
        beside = f"{len(peers)} {'peer takes' if len(peers) == 1 else 'peers take'} "
        beside += seconds(median(peer.now_s for peer in peers))
    yield Verdict(
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
        lost_s=sum(gap.span_s - change.was_s for gap in change.now),
        signature=f"straggler:{track.rank}:{phase}",
    )


# -- slow transfer -----------------------------------------------------------------------------

_TRANSFER_BASELINE_WINDOWS = 6
_TRANSFER_RATIO = 2.0
"""Against its own past: half of a link's speed is lost. Lower reports a busy network."""
_TRANSFER_SHARE_OF_STEP = 0.2
"""Least excess, as a share of a step: twice a rank's, for nobody can be evicted."""


def slow_transfer(history: History) -> Iterable[Verdict]:
    """Slow links between groups (S2): every rank is on time and the transfer itself takes longer.
    Accuses nobody.

    Measured: the waiting of the rank that waits least. The last to arrive waits for nobody, so its
    remaining waiting is the transfer itself, with TorchFT's quorum and commit. When that grows in
    window after window, the network between the groups is slow, or one link; phases cannot show
    which, so nobody is accused. Steps that are long now on one rank and now on another also make
    everybody wait; they show in the sum of all ranks' work, which must not have grown along.
    """
    config = history.config
    windows = [window for window in history.pace.windows if len(window.paces) > 1]
    count = config.straggler_windows
    if len(windows) < count + _TRANSFER_BASELINE_WINDOWS or history.disturbed:
        return
    slow = [window.least_waiting_s for window in windows]
    past = len(windows) - (2 * count if len(windows) > 2 * count else count)
    usual_s = median(slow[:past])
    late = [_late(window, usual_s) for window in windows[-count:]]
    if not late[-1] or sum(late) < config.straggler_slow_windows:
        return
    since = next((n for n in range(len(windows) - 1, -1, -1) if not _late(windows[n], usual_s)), -1)
    if _work_s(windows[-count:]) - _work_s(windows[:past]) > median(slow[-count:]) - usual_s:
        return
    first = windows[min(since + 1, len(windows) - 1)]
    now_s = median(slow[-count:])
    steps = sum(int(w.paces.figure("steps").max()) for w in windows[since + 1 :])
    yield Verdict(
        kind=Kind.STRAGGLER,
        reason=f"communication across groups takes {seconds(now_s)} a step even for the last to "
        f"arrive, {seconds(usual_s)} before: the network is slow, or somebody's link; phases "
        "cannot tell whose",
        since_s=first.start_s,
        victims=tuple(sorted(windows[-1].paces)),
        evidence={
            "slow at": "communication across groups",
            "late arrival": "no: even the rank that waits least waits longer",
            "source": f"phases, means over windows of {seconds(config.window_s)} and more",
        },
        lost_s=max(0.0, (now_s - usual_s) * steps),
        signature="straggler:across",
    )


def _work_s(windows: Sequence[Window]) -> float:
    """Seconds a step that all ranks work together, the median over these windows."""
    return median(
        sum(float(np.nansum(spent_s)) for spent_s in by_kind(window.paces).values())
        for window in windows
    )


def _late(window: Window, usual_s: float) -> bool:
    step_s = float(window.paces.figure("step_s").max())
    least_s = window.least_waiting_s
    return (
        least_s > _TRANSFER_RATIO * usual_s and least_s - usual_s > _TRANSFER_SHARE_OF_STEP * step_s
    )
