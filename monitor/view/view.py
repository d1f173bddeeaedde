"""Everything that may be shown after one tick, as one frozen value. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from monitor.audit.books import Books
from monitor.departures import Departure
from monitor.incident import Incident
from monitor.lease import Standing
from monitor.lighthouse_log import LighthouseRecord
from monitor.names import (
    GroupName,
    Host,
    IncidentId,
    RankName,
    ReplicaId,
    group_of_replica,
    unseen_name,
)
from monitor.pipeline import WORST_FIRST, RankHealth, TickResult
from monitor.policy.effective import Effective
from monitor.quarantine.record import HostRecord
from monitor.rank_seconds import Spent
from monitor.snapshot import (
    EvictionProgress,
    LighthouseAway,
    LighthouseView,
    Observation,
    Snapshot,
)
from monitor.store import (
    DecisionRow,
    QuarantineEntry,
)
from monitor.tempo import Tempo

SCHEMA: Final = 1
_BEATS_S: Final = 3.0
"""A heartbeat this young is of a process that lives: TorchFT sends 3 to 10 a second."""


class NotPossible(Exception):  # noqa: N818 - an answer, not an accident
    """What a person asked for cannot be done now; the message says why."""


@dataclass(frozen=True, slots=True)
class BundleView:
    """The evidence of one incident, on disk."""

    nbytes: int
    written_s: float
    """Unix time."""


@dataclass(frozen=True, slots=True)
class View:
    """Everything that may be shown after one tick."""

    snapshot: Snapshot
    result: TickResult
    observe: bool
    incidents: tuple[Incident, ...] = ()
    """All that are remembered, newest first."""
    decisions: Mapping[IncidentId, Sequence[DecisionRow]] = field(default_factory=dict)
    evictions: Mapping[IncidentId, EvictionProgress] = field(default_factory=dict)
    """The latest of each incident."""
    bundles: Mapping[IncidentId, BundleView] = field(default_factory=dict)
    evicting: frozenset[GroupName] = frozenset()
    quarantine: tuple[QuarantineEntry, ...] = ()
    """Hosts."""
    quarantine_groups: tuple[QuarantineEntry, ...] = ()
    hosts: Mapping[Host, HostRecord] = field(default_factory=dict)
    """The record of every host of which anything is known."""
    departures: tuple[Departure, ...] = ()
    """Ranks that were here and are registered no more."""
    tempos: Mapping[RankName, Tempo] = field(default_factory=dict)
    spent: Spent = field(default_factory=Spent)
    """Rank-seconds that trained, and the others by cause."""
    tokens: Mapping[GroupName, int] = field(default_factory=dict)
    """Trained on since this monitor looks, of groups that report any."""
    books: Books = field(default_factory=Books)
    """What accounts are made from."""
    rules: Effective | None = None
    """The policy that holds."""
    lighthouse: LighthouseRecord = field(default_factory=LighthouseRecord)
    troubles: tuple[str, ...] = ()
    """What is wrong with the monitor itself, one sentence each."""
    standing: Standing | None = None
    """Whether this monitor acts, and who else; None: it shares its store with nobody."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """One replica group, put together from its ranks and the Lighthouse."""

    group: GroupName
    host: Host | None
    replica_id: ReplicaId | None
    in_quorum: bool | None
    """None while the Lighthouse cannot be seen."""
    ranks: tuple[RankName, ...]
    health: str
    step: int | None
    commits: int | None
    heartbeat_age_s: float | None
    launched_as: GroupName | None = None
    """What its launcher calls it, where that is another name."""


def groups_of(view: View) -> tuple[GroupView, ...]:
    """Every replica group that has a registered rank or a place in the quorum, sorted.

    A member of the quorum that beats, and that no rank reports though its group's ranks say who
    they are, is one of its own: a second life of the group, or an orphan of its first.
    """
    ranks: dict[GroupName, list[Observation]] = {}
    own: dict[ReplicaId, GroupName] = {}
    for seen in view.snapshot.observations:
        ranks.setdefault(seen.identity.group, []).append(seen)
        step = None if seen.report is None else seen.report.step
        if step is not None and step.replica_id is not None:
            own[step.replica_id] = seen.identity.group
    lighthouse = view.snapshot.lighthouse
    ages_s: Mapping[ReplicaId, float] = {}
    members: tuple[ReplicaId, ...] = ()
    if isinstance(lighthouse, LighthouseView):
        members = tuple(member.replica_id for member in lighthouse.members)
        ages_s = lighthouse.heartbeat_ages_s
    known: dict[GroupName, ReplicaId] = {}
    for replica_id in members:
        name = own.get(replica_id, group_of_replica(replica_id))
        if replica_id not in own and name in own.values():
            if ages_s.get(replica_id, math.inf) > _BEATS_S:
                continue  # what the group was before it started again
            name = unseen_name(replica_id)
        known[name] = replica_id
    ids, names = frozenset(members), ranks.keys() | known.keys()
    return tuple(_group(view, n, ranks.get(n, ()), known.get(n), ids) for n in sorted(names))


def _group(
    view: View,
    name: GroupName,
    seen: Sequence[Observation],
    known: ReplicaId | None,
    members: Collection[ReplicaId],
) -> GroupView:
    """`known`: the replica id by which the Lighthouse has the group."""
    lighthouse = view.snapshot.lighthouse
    steps = [one.report.step for one in seen if one.report is not None and one.report.step]
    replica_id = next((step.replica_id for step in steps if step.replica_id is not None), known)
    age_s = None
    if isinstance(lighthouse, LighthouseView) and replica_id is not None:
        age_s = lighthouse.heartbeat_ages_s.get(replica_id)
    return GroupView(
        group=name,
        host=seen[0].identity.host if seen else None,
        replica_id=replica_id,
        in_quorum=None if isinstance(lighthouse, LighthouseAway) else replica_id in members,
        ranks=tuple(one.rank for one in seen),
        health=_worst(view.result.rank_health.get(one.rank) for one in seen),
        step=max((step.step for step in steps), default=None),
        commits=max((step.commits for step in steps), default=None),
        heartbeat_age_s=age_s,
        launched_as=next(
            (one.identity.launched_as for one in seen if one.identity.launched_as), None
        ),
    )


def _worst(healths: Iterable[RankHealth | None]) -> str:
    seen = set(healths)
    return next((str(health) for health in WORST_FIRST if health in seen), "unknown")
