"""Groups that trained, are gone, and have not come back, while the others train on. Pure.

Accuses nobody: another incident says why the group went, and is over once the group is gone. This
one lasts until the group trains again, its run is over, or a person closes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from lightkeeper.monitor.detect.dead import told
from lightkeeper.monitor.detect.endings import finished, is_gone
from lightkeeper.monitor.detect.history import History
from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.detect.wording import scheduler_says
from lightkeeper.monitor.model.names import GroupName
from lightkeeper.monitor.model.units import grouped
from lightkeeper.monitor.model.verdict import Confidence, Kind, Verdict
from lightkeeper.monitor.model.wording import listed, plural, seconds
from lightkeeper.worker_server.wire import Testimony

_ABSENT_S: Final = 60.0
"""A restart takes 17 to 30 s (facts/torchft.md), and twice that where a pod has to be scheduled."""


def absent(history: History) -> Iterable[Verdict]:
    """One verdict for each group that is missing."""
    groups = grouped((track.group, track) for track in history.tracks.values())
    if len(groups) == len(history.groups()) and not history.fallen_s:
        return  # the usual case
    renamed = {track.identity.launched_as for track in history.tracks.values()}
    for group, tracks in sorted(groups.items()):
        if group not in renamed:  # its launcher's name, until it had a Manager
            yield from _judge(history, group, tracks)


def _judge(history: History, group: GroupName, tracks: list[RankTrack]) -> Iterable[Verdict]:
    left_s = max(map(_last_s, tracks))
    away_s, said = history.now_s - left_s, told(history, tracks)
    gone = all(track.observation is None or is_gone(track) for track in tracks)
    missing = gone and _has_work(tracks, said) and away_s >= _ABSENT_S
    if not missing or _beats(history, tracks):
        return
    others = [t for t in history.present() if t.group != group and not is_gone(t)]
    commits = (t.last_commit_s for t in others if t.last_commit_s is not None)
    if max(commits, default=0.0) < left_s + _ABSENT_S / 2:
        return  # the job stands, or is over
    hosts = history.hosts(tuple(track.rank for track in tracks))
    why = ""
    if said is not None:
        why = scheduler_says(group, listed(hosts), said, away_s, history.now_s) + "; "
    yield Verdict(
        kind=Kind.ABSENT,
        groups=(group,),
        reason=(
            f"{why}{group} {_gone_for(tracks, away_s)}; the others train without it. It ran on "
            f"{listed(hosts)}: {plural(hosts, 'its launcher', 'their launchers')} may start it "
            "again"
        ),
        brief=f"{group} is gone and has not come back",
        confidence=Confidence.CERTAIN,
        since_s=left_s,
        evidence={"last seen": f"{seconds(away_s)} ago"},
        signature=f"absent:{group}",
    )


def _has_work(tracks: Sequence[RankTrack], said: Testimony | None) -> bool:
    """True if it trained and was not done, by its ranks' words and its scheduler's."""
    done = any(map(finished, tracks)) or (said is not None and said.code == "done")
    return not done and any(track.commits or track.trained_as for track in tracks)


def _gone_for(tracks: Iterable[RankTrack], away_s: float) -> str:
    if all(track.report is None for track in tracks):
        return f"was there before this monitor began, and has not answered for {seconds(away_s)}"
    return f"has been gone for {seconds(away_s)} and has not come back"


def _beats(history: History, tracks: Iterable[RankTrack]) -> bool:
    """True if it may live unseen by this monitor: the Lighthouse hears it, or is away."""
    view = history.lighthouse
    ids = {t.trained_as if t.step is None else t.step.replica_id for t in tracks}
    heard = () if view is None else view.heartbeat_ages_s.keys() - view.expired
    return view is None or not ids.isdisjoint(heard)


def _last_s(track: RankTrack) -> float:
    """When it was last known to live, or first missed by this monitor."""
    if track.died_s is not None:
        return track.died_s
    if track.report_s is None and track.trained_as is not None:
        return track.first_seen_s
    return track.seen_s if track.report_s is None else track.report_s
