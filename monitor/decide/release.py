"""Who may stop waiting for a group that is gone: the survivors of its last quorum. Pure.

Theory of operation. A group is gone if its host is lost, all its processes are, or an eviction has
put it out; and the Lighthouse must have forgotten its heartbeat, or all its ranks must be gone, so
that the next quorum does not wait for it. While there is no Lighthouse to say so, its WorkerServers
must have seen all its processes die. Ranks of other groups that still stand in an exchange of a
quorum with it cannot finish that exchange: TorchFT ends it at its timeout (60 s by default).
Ending it now is what TorchFT does later, so no budget applies; but while the monitor doubts itself,
during a pause and in observe mode nothing is ended, and no rank is asked twice in one quorum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from lightkeeper.monitor.decide.rules import Policy, PolicyAction
from lightkeeper.monitor.detect.history import History
from lightkeeper.monitor.detect.links import addresses_of
from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.model.eviction import Accused, Eviction, Release
from lightkeeper.monitor.model.incident import Incident, State
from lightkeeper.monitor.model.names import GroupName, IncidentId, may_be_of
from lightkeeper.monitor.model.observation import Snapshot
from lightkeeper.monitor.model.verdict import Kind
from lightkeeper.monitor.model.wording import listed, plural
from lightkeeper.worker_server.wire import ACROSS

_STANDS_S: Final = 1.0
_AFTER_S: Final = 120.0
"""How long after an eviction others may still wait for it: TorchFT's timeouts, one by one."""
_MOST: Final = 4096

Asked = set[tuple[str, int]]
"""Incarnations that were asked, and the quorum."""


def releases(
    history: History,
    snapshot: Snapshot,
    incidents: Sequence[Incident],
    *,
    past: Sequence[Eviction],
    policy: Policy,
    doubt: str | None,
    asked: Asked,
) -> tuple[Release, ...]:
    """One for each group that is gone and waited for; notes in `asked` who is asked.

    `incidents`: open ones, and those of the last hour; `past`: evictions of the last hour; `doubt`:
    why the monitor does not trust itself, None if it does.
    """
    config = history.config
    held = config.observe or doubt is not None or snapshot.pause is not None or snapshot.alone
    if held or not config.release_survivors:
        return ()
    orders = []
    for incident, group in _gone(history, incidents, past, policy):
        last = _last_quorum(history, incident, group)
        if last is None:
            continue  # the next one would still wait for it
        quorum_id, died_s = last
        waiting = [
            track
            for track in _waiting(history, group, quorum_id)
            if (track.identity.incarnation, quorum_id) not in asked
            and (track.last_commit_s or 0.0) <= died_s
        ]
        if waiting:
            asked |= {(track.identity.incarnation, quorum_id) for track in waiting}
            orders.append(_order(history, incident.id, group, quorum_id, waiting))
    return tuple(orders)


def _last_quorum(
    history: History, incident: Incident, group: GroupName
) -> tuple[int, float] | None:
    """The quorum in which others may wait for a group that is gone, and when they committed last in
    it at the latest; None: not known, or the group is not known to be gone.

    A Lighthouse that is away, or has formed none since its start, cannot say: then what the dead
    reported last does. As it counts from 1 again, a commit after their death is of another quorum.
    """
    view = history.lighthouse
    if view is None or not view.ids:
        members = history.groups().get(group, ())
        ids = {track.step.quorum_id for track in members if track.step is not None}
        quorum_id = ids.pop() if len(ids) == 1 else None
        if quorum_id is None or any(track.died_s is None for track in members):
            return None
        return quorum_id, max(track.death_s for track in members)
    names = view.ids.intersection(n for n in incident.replica_ids if may_be_of(n, group))
    gone = view.expired.issuperset(names) or _all_gone(history, incident, group)
    return (view.quorum_id, history.now_s) if names and gone else None


def _gone(
    history: History, incidents: Iterable[Incident], past: Iterable[Eviction], policy: Policy
) -> Iterator[tuple[Incident, GroupName]]:
    """Groups that are gone by an incident's verdict, because all their ranks were seen to die (of a
    mismatch, say, or of what nobody knows), or because they were evicted. What is left of a
    group that lost a rank trains no longer.
    """
    out = {
        eviction.incident_id: eviction.group
        for eviction in past
        if (at_s := eviction.gone_s or eviction.unseen_s) is not None
        and history.now_s - at_s < _AFTER_S
    }
    for incident in incidents:
        observed = policy.action(incident.kind, incident.severity) is PolicyAction.OBSERVE
        if incident.id in out:
            yield incident, out[incident.id]
        elif not observed and incident.state in (State.FIRING, State.EVICTING):
            dead = _shows_dead(history, incident)
            for group in incident.groups:
                if dead or _all_gone(history, incident, group):
                    yield incident, group


def _shows_dead(history: History, incident: Incident) -> bool:
    """True if it names ranks that are dead or lost, and none of them is seen alive."""
    if incident.kind is not Kind.DEAD or not incident.culprits:
        return False  # an unsure one has no culprits
    lost = [history.tracks[rank] for rank in incident.culprits if rank in history.tracks]
    return bool(lost) and not any(track.fresh and track.fresh.process.alive for track in lost)


def _all_gone(history: History, incident: Incident, group: GroupName) -> bool:
    """True if every rank of the group is dead, or on a lost host: its heartbeat ends with them."""
    members = history.groups().get(group, ())
    lost = incident.culprits if incident.kind is Kind.DEAD else ()
    return bool(members) and all(
        track.died_s is not None or (track.rank in lost and track.fresh is None)
        for track in members
    )


def _waiting(history: History, group: GroupName, quorum_id: int) -> Iterator[RankTrack]:
    """Ranks of other groups that stand in an exchange of this quorum. DDP waits in C++, where only
    what is unfinished shows it.
    """
    for track in history.present():
        fresh, step = track.fresh, track.step
        if fresh is None or step is None or track.group == group or not fresh.process.alive:
            continue
        inside = any(h.unfinished for h in track.heads if h.name.startswith(ACROSS))
        if step.quorum_id == quorum_id and inside and track.stall_s >= _STANDS_S:
            yield track


def _order(
    history: History,
    incident_id: IncidentId,
    group: GroupName,
    quorum_id: int,
    waiting: Sequence[RankTrack],
) -> Release:
    ranks = [track.rank for track in waiting]
    return Release(
        incident_id=incident_id,
        group=group,
        quorum_id=quorum_id,
        survivors=tuple(
            Accused(t.rank, t.identity.incarnation, t.observation.url if t.observation else "")
            for t in waiting[:_MOST]
        ),
        addresses=addresses_of(history.present()),
        reason=(
            f"{listed(ranks)} {plural(ranks, 'does', 'do')} not wait for {group} any more: "
            f"{plural(ranks, 'its', 'their')} exchange in quorum {quorum_id} is ended, as TorchFT "
            "would at its timeout"
        ),
    )
