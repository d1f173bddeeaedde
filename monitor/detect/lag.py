"""Replica lag: a group that costs the fleet quorum after quorum, or never joins one.

Four habits, each seen in counters over minutes, never in one tick: it heals again and again; its
commits fail while the others commit; it leaves the quorum and comes back; it beats and takes no
part. Joining, one heal, a start and a long declared phase do not count. What all groups do alike
accuses nobody. A verdict without culprits says that no commit goes through, or that several groups
come and go, and that the cause is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain

from lightkeeper.monitor.detect.graph import WaitGraph
from lightkeeper.monitor.detect.history import History
from lightkeeper.monitor.detect.patience import BLOCKS, blocked, works_long
from lightkeeper.monitor.detect.quorum_participation import Attended
from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.detect.wording import what_they_do
from lightkeeper.monitor.model.names import GroupName, RankName
from lightkeeper.monitor.model.verdict import Confidence, Kind, Verdict
from lightkeeper.monitor.model.wording import listed, seconds

_SPARE = "a group that lags is left in unless its own ranks show the fault: look at it"


def replica_lag(history: History, _: WaitGraph) -> Iterable[Verdict]:
    """Groups that cost the fleet quorum after quorum, or join none: one verdict each. If there is
    none, one without culprits where several may be the cause.
    """
    logs = {
        group: history.attendance.groups[group]
        for group in history.groups()
        if group in history.attendance.groups
    }
    by_group: dict[GroupName, Verdict] = {}
    general: list[Verdict] = []
    for habit in (_heals, _fails, _flaps, _restless, _absent):
        for verdict in habit(history, logs):
            if not verdict.groups:
                general.append(verdict)
            elif verdict.groups[0] not in by_group:
                by_group[verdict.groups[0]] = verdict
    return (*(by_group[group] for group in sorted(by_group)), *general[: 0 if by_group else 1])


Logs = Mapping[GroupName, Attended]


def _recent(history: History, times: list[float]) -> bool:
    """True if a habit continues: its last turn is recent."""
    return bool(times) and history.now_s - times[-1] <= history.config.lag_clear_s


def _ranks(history: History, group: GroupName) -> tuple[RankName, ...]:
    return tuple(track.rank for track in history.groups()[group])


def _others(logs: Logs, group: GroupName) -> list[Attended]:
    return [log for name, log in logs.items() if name != group]


def _lags(
    history: History,
    group: GroupName,
    habit: str,
    since_s: float,
    reason: str,
    *,
    confidence: Confidence = Confidence.LIKELY,
    victims: tuple[RankName, ...] = (),
) -> Verdict:
    """One group lags; it is spared unless its own ranks show the fault for certain."""
    log, age_s = history.attendance.groups[group], history.heartbeat_age_s(group)
    config = history.config
    return Verdict(
        kind=Kind.REPLICA_LAG,
        culprits=_ranks(history, group),
        groups=(group,),
        reason=reason,
        confidence=confidence,
        since_s=since_s,
        victims=victims,
        evidence={
            "counters": _told(log),
            "quorum": f"{'in' if log.inside else 'not in'} the last one; came again "
            f"{len(log.entries)} times within {seconds(config.lag_window_s)}",
            "heartbeat": "not seen" if age_s is None else f"{seconds(age_s)} ago",
            "resolution": f"compared every {seconds(config.tick_s)}; heals between two ticks "
            "count once",
        },
        spare="" if confidence is Confidence.CERTAIN else _SPARE,
        signature=f"replica_lag:{habit}:{group}",
    )


def _somebody_lags(
    logs: Logs, habit: str, since_s: float, reason: str, victims: tuple[RankName, ...] = ()
) -> Verdict:
    """Several groups lag, or it is unclear which."""
    return Verdict(
        kind=Kind.REPLICA_LAG,
        reason=reason,
        since_s=since_s,
        victims=victims,
        evidence={group: _told(log) for group, log in sorted(logs.items())},
        signature=f"replica_lag:{habit}",
    )


def _told(log: Attended) -> str:
    return (
        f"{len(log.heals)} heals, {log.failed()} failed commits "
        f"({log.errored()} ticks with an error), {log.committed()} commits"
    )


# -- heals in a loop -----------------------------------------------------------------------------


def _heals(history: History, logs: Logs) -> Iterable[Verdict]:
    config = history.config
    for group, log in logs.items():
        count = len(log.heals)
        if count < config.lag_heals or not _recent(history, log.heals):
            continue
        if log.committed(log.heals[0]) > config.lag_heal_commits * count:
            continue
        others = _others(logs, group)
        if any(2 * len(other.heals) > count for other in others):
            continue  # several groups heal: the cause is elsewhere
        began_s = log.heals[0]
        own = log.failed(began_s - 1.0)
        reason = (
            f"{group} heals in a loop: {count} times in {seconds(history.now_s - began_s)}, with "
            f"{log.committed(began_s)} commits between; each time all groups form their process "
            f"groups anew{f'; {own} of its own commits failed' if own else ''}"
        )
        confidence = _heal_confidence(history, log, others)
        yield _lags(history, group, "heals", began_s, reason, confidence=confidence)


def _heal_confidence(history: History, log: Attended, others: list[Attended]) -> Confidence:
    """Certain only where its own ranks show the fault, in processes that did not change.

    Its commits failed about as often as it healed, TorchFT met errors in its ranks, and the others'
    commits went through. Then it can be evicted, like a rank that stands still.
    """
    began_s = log.heals[0]
    own = log.failed(began_s - 1.0)
    same = log.restarted_s is None or log.restarted_s < began_s
    well = bool(others) and all(
        5 * other.failed(began_s) < own and other.committed(began_s) > 0 for other in others
    )
    often = len(log.heals) >= history.config.lag_certain_heals
    shown = 2 * own >= len(log.heals) and log.errored() >= 2
    return Confidence.CERTAIN if often and same and well and shown else Confidence.LIKELY


# -- commits that fail ---------------------------------------------------------------------------


def _fails(history: History, logs: Logs) -> Iterable[Verdict]:
    failing = {group: log for group, log in logs.items() if _keeps_failing(history, log)}
    if not failing:
        return
    began_s = min(log.failures[0].at_s for log in failing.values())
    most = max(log.failed() for log in failing.values())
    well = _well(logs, failing, began_s, most)
    ranks = {group: _ranks(history, group) for group in failing}
    only = _only_with_errors(logs, failing)
    if well and len(failing) < max(2, len(well)):
        for group, log in failing.items():
            yield _failing(history, group, log, f"while {listed(well)} committed")
    elif only is not None and not well:
        victims = tuple(chain.from_iterable(ranks[group] for group in failing if group != only))
        beside = "none goes through anywhere, and only its ranks met an error"
        yield _failing(history, only, failing[only], beside, victims)
    else:
        reason = (
            f"commits have failed in {listed(sorted(failing))} for "
            f"{seconds(history.now_s - began_s)}: {most} attempts"
            f"{'' if well else ', none goes through anywhere'}; cannot tell the cause"
        )
        victims = () if well else tuple(chain.from_iterable(ranks.values()))
        yield _somebody_lags(logs, "fails", began_s, reason, victims)


def _well(logs: Logs, failing: Logs, since_s: float, most: int) -> list[GroupName]:
    """Groups whose commits go through, nearly all of them."""
    committing = (g for g in logs if g not in failing and logs[g].committed(since_s) > 0)
    return [group for group in committing if 5 * logs[group].failed(since_s) <= most]


def _only_with_errors(logs: Logs, failing: Logs) -> GroupName | None:
    """The failing group whose ranks met errors again and again, if no other group's met any."""
    met = [group for group, log in logs.items() if log.errored()]
    return met[0] if len(met) == 1 and met[0] in failing and logs[met[0]].errored() >= 3 else None


def _keeps_failing(history: History, log: Attended) -> bool:
    count = log.failed()
    if count < history.config.lag_failures:
        return False
    if not _recent(history, [failure.at_s for failure in log.failures]):
        return False
    return 2 * count > log.committed(log.failures[0].at_s)


def _failing(
    history: History,
    group: GroupName,
    log: Attended,
    beside: str,
    victims: tuple[RankName, ...] = (),
) -> Verdict:
    began_s = log.failures[0].at_s
    reason = (
        f"{log.failed()} commits of {group} failed in {seconds(history.now_s - began_s)}, "
        f"{log.committed(began_s)} went through, {beside}"
    )
    return _lags(history, group, "fails", began_s, reason, victims=victims)


# -- in and out of the quorum --------------------------------------------------------------------


def _flaps(history: History, logs: Logs) -> Iterable[Verdict]:
    flapping = {
        group: log
        for group, log in logs.items()
        if len(log.entries) >= history.config.lag_entries and _recent(history, log.entries)
    }
    if len(flapping) == 1:
        ((group, log),) = flapping.items()
        if any(2 * len(other.entries) > len(log.entries) for other in _others(logs, group)):
            return
        left = "and left between" if log.restarted_s is None else "as a new process each time"
        reason = (
            f"the quorum flaps: {group} came into it again {len(log.entries)} times in "
            f"{seconds(history.now_s - log.entries[0])}, {left}"
        )
        yield _lags(history, group, "flaps", log.entries[0], reason)
    elif flapping:
        began_s = min(log.entries[0] for log in flapping.values())
        reason = (
            f"the quorum flaps: {listed(sorted(flapping))} have come and gone for "
            f"{seconds(history.now_s - began_s)}; cannot tell the cause"
        )
        yield _somebody_lags(logs, "flaps", began_s, reason)


def _restless(history: History, logs: Logs) -> Iterable[Verdict]:
    """The quorum id advances again and again, and no group is seen to come or go."""
    advances = history.attendance.advances
    count = sum(grown for _, grown in advances)
    if count < history.config.lag_quorums or not _recent(history, [at_s for at_s, _ in advances]):
        return
    began_s = advances[0][0]
    reason = (
        f"the quorum flaps: its id grew by {count} in {seconds(history.now_s - began_s)}, and no "
        "group is seen to come or go; cannot tell the cause"
    )
    yield _somebody_lags(logs, "restless", began_s, reason)


# -- beats, and takes no part --------------------------------------------------------------------

_OTHERS_COMMITS = 3
"""Commits of the others since it stays out: each had a quorum that did not include it."""


def _absent(history: History, logs: Logs) -> Iterable[Verdict]:
    for group, log in logs.items():
        since_s = log.absent_since_s
        if since_s is None or log.others_commits < _OTHERS_COMMITS:
            continue
        inside = [t for t in history.present() if t.group != group and t.participating]
        slowest_s = max((history.hang_after_s(track) for track in inside), default=0.0)
        if history.now_s - since_s < max(history.config.lag_absent_s, slowest_s):
            continue
        tracks = history.groups()[group]
        do = "; ".join(what_they_do(tracks)[:2])
        reason = (
            f"{group} sends heartbeats and is in no quorum for {seconds(history.now_s - since_s)}, "
            f"while the others committed {log.others_commits} steps; {do}"
        )
        hang = tuple(t.rank for t in tracks if _hangs(t, history.config.lag_absent_s))
        confidence = Confidence.CERTAIN if hang else Confidence.LIKELY
        verdict = _lags(history, group, "absent", since_s, reason, confidence=confidence)
        yield replace(verdict, culprits=hang or verdict.culprits)


def _hangs(track: RankTrack, long_s: float) -> bool:
    """True if its stacks show it in a lock, file, socket or child for so long, where nothing moves:
    nobody waits for it, but only another process trains again. Not in a sleep: it may end.
    """
    return track.stall_s >= long_s and not works_long(track) and blocked(track, BLOCKS)
