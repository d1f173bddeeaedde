"""Decisions to evict that have no end yet, and what becomes of those that somebody left. Pure.

Theory of operation. decided -> carried out -> confirmed | failed | abandoned. A decision is
written as `decided` before anybody is asked, and as `carried_out` before the first rung. Who takes
over from a monitor that died, or that lost the lease, finds both kinds without an end. What the
pipeline decides again is the same decision going on (another attempt). Where the accused are gone
it was carried out; where the fault has passed, or a guard has held it for too long, it is
abandoned, and the row says why. One that a person asked for has no incident that could be decided
again: it goes on while the very same processes still run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from monitor.incident import Incident
from monitor.names import MANUAL, GroupName, Host, IncidentId, RankName, ReplicaId
from monitor.policy import Evict
from monitor.snapshot import EvictionProgress, Snapshot
from monitor.store import DecisionRow, DecisionState


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A decision without an end, and how far its eviction came."""

    row: DecisionRow
    since_s: float
    """Since when this monitor knows of it."""
    left: EvictionProgress | None = None
    """What another monitor left of it; None: nobody was asked, as far as was written."""
    resumed: bool = False
    """Whether this monitor has it under way."""


@dataclass(frozen=True, slots=True)
class End:
    """What became of a decision."""

    state: DecisionState
    outcome: str


def end_of(progress: EvictionProgress) -> End:
    """Of a decision whose eviction has ended."""
    if progress.failed is not None:
        return End(DecisionState.FAILED, progress.failed)
    if progress.gone_s is not None:
        return End(DecisionState.CONFIRMED, "every accused process is gone")
    return End(DecisionState.CONFIRMED, "its group has left, its processes cannot be seen")


def left_open(
    rows: Iterable[DecisionRow], evictions: Iterable[EvictionProgress], now_s: float
) -> tuple[tuple[Unfinished, ...], tuple[DecisionRow, ...]]:
    """Of what the store holds: decisions to go on with, and those that had ended unwritten."""
    known = {(one.incident_id, one.of_s): one for one in evictions}
    going: dict[IncidentId, Unfinished] = {}
    ended: list[DecisionRow] = []
    for row in rows:
        if not row.open:
            continue
        progress = known.get((row.incident_id, row.at_s))
        older = going.pop(row.incident_id, None)
        if older is not None:
            ended.append(ending(older.row, End(DecisionState.ABANDONED, "decided again"), now_s))
        if progress is not None and not progress.interrupted:
            ended.append(ending(row, end_of(progress), now_s))
        else:
            # the eviction's own row is written first: it knows more than the decision's
            asked = row if progress is None else replace(row, state=DecisionState.CARRIED_OUT)
            going[row.incident_id] = Unfinished(asked, now_s, progress)
    return tuple(going.values()), tuple(ended)


def ending(row: DecisionRow, end: End, now_s: float) -> DecisionRow:
    """The decision with its end."""
    return replace(row, state=end.state, outcome=end.outcome, ended_s=now_s)


def again(
    row: DecisionRow, evict: Evict, accused: Mapping[RankName, str], epoch: int
) -> DecisionRow:
    """The same decision, decided once more."""
    asked = row.state is DecisionState.CARRIED_OUT
    body = {
        "group": evict.group,
        "replica_id": evict.replica_id,
        "quarantine": list(evict.quarantine),
        "accused": dict(accused),
    }
    return replace(
        row,
        reason=evict.reason,
        state=DecisionState.DECIDED,
        epoch=epoch,
        attempt=row.attempt + asked,
        body=body,
    )


def evict_of(row: DecisionRow) -> Evict:
    """What was decided."""
    replica_id = row.body.get("replica_id")
    return Evict(
        row.incident_id,
        GroupName(row.body["group"]),
        None if replica_id is None else ReplicaId(replica_id),
        tuple(Host(host) for host in row.body.get("quarantine", ())),
        row.reason,
    )


def judged(  # noqa: PLR0911 - one reason a line
    one: Unfinished,
    incident: Incident | None,
    snapshot: Snapshot,
    *,
    held: str | None,
    patience_s: float,
) -> End | Evict | None:
    """What becomes of a decision that another monitor left: its end, or it is asked for again; None
    while that is not known yet.

    `held` says why the pipeline does not decide it again; `patience_s` is for how long that may be.
    """
    row, asked = one.row, one.row.state is DecisionState.CARRIED_OUT
    lives = _lives(row.accused, snapshot)
    if lives and not any(life is not False for life in lives):
        if asked:
            return End(DecisionState.CONFIRMED, "its processes are gone: seen by who took over")
        return End(DecisionState.ABANDONED, "its processes had gone before anybody was asked")
    if incident is not None and not incident.open:
        why = incident.resolution or "its incident is over"
        left = incident.milestones.left_quorum_s
        if asked and left is not None and left >= row.at_s:
            return End(DecisionState.CONFIRMED, why)
        return End(DecisionState.ABANDONED, f"not asked again: {why}")
    if incident is None and row.incident_id.startswith(MANUAL) and lives and all(lives):
        return evict_of(row)
    if snapshot.now_s - one.since_s < patience_s:
        return None
    why = held or ("its processes cannot be seen" if None in lives else "it was not seen again")
    return End(DecisionState.ABANDONED, f"not asked again within {patience_s:.0f} s: {why}")


def _lives(accused: Mapping[RankName, str], snapshot: Snapshot) -> Sequence[bool | None]:
    """For each accused incarnation whether it lives; None: it cannot be seen."""
    seen = {one.rank: one for one in snapshot.observations}
    found: list[bool | None] = []
    for rank, incarnation in accused.items():
        one = seen.get(rank)
        if one is None:
            found.append(None)
        elif one.identity.incarnation != incarnation:
            found.append(False)
        else:
            found.append(None if one.report is None else one.report.process.alive)
    return found
