"""Every decision to evict from its writing to its end: written first, then carried out.

Nothing is asked of anybody before the decision's row is on disk. While the disk does not take it
the decision waits, for as long as the pipeline itself waits for it (`eviction_ack_s`), and is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from monitor.evictors import Order
from monitor.incident import Incident
from monitor.keeper.unfinished import (
    End,
    Unfinished,
    again,
    end_of,
    ending,
    judged,
    left_open,
)
from monitor.names import GroupName, IncidentId
from monitor.policy import Evict
from monitor.snapshot import EvictionProgress, Snapshot
from monitor.store import DecisionRow, DecisionState, Remembered, Store

log = logging.getLogger(__package__)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A decision that is written, or about to be, and that nobody was asked for yet."""

    evict: Evict
    since_s: float
    author: str


class Docket:
    """Decisions to evict without an end. One thread decides; a person may decide in another.

    Args:
        store: where rows are written.
        told: the row as it is now, for what is shown.
    """

    def __init__(self, store: Store, told: Callable[[DecisionRow], None]) -> None:
        self._store = store
        self._told = told
        self._open: dict[IncidentId, Unfinished] = {}
        self._waiting: dict[IncidentId, Waiting] = {}

    def take_over(self, remembered: Remembered, now_s: float) -> None:
        """Go on with what the store holds."""
        going, ended = left_open(remembered.decisions, remembered.evictions, now_s)
        self._waiting = {}
        self._open = {one.row.incident_id: one for one in going}
        for row in ended:
            self._keep(row)
        for one in going:
            log.warning(
                "eviction of %s was %s and has no end: it is asked again or abandoned",
                one.row.body.get("group", one.row.incident_id),
                one.row.state,
            )
        known = {(one.incident_id, one.at_s) for one in remembered.decisions}
        for progress in remembered.evictions:  # of schema 1: no decision bears its time
            if progress.interrupted and (progress.incident_id, progress.of_s) not in known:
                self._abandon(progress, "left without an end by an earlier monitor", now_s)

    def decide(self, evict: Evict, order: Order, *, epoch: int) -> DecisionRow:
        """A new decision, or the one about this incident that has no end yet, once more."""
        accused = {one.rank: one.incarnation for one in order.accused}
        before = self._open.get(evict.incident_id)
        if before is None:
            row = self._store.save_decision(
                evict, order.asked_s, author=order.author, accused=accused
            )
            self._open[evict.incident_id] = Unfinished(row, order.asked_s, resumed=True)
        else:
            row = again(before.row, evict, accused, epoch)
            self._store.save_decision_row(row)
            self._open[evict.incident_id] = replace(before, row=row, resumed=True)
        self._waiting[evict.incident_id] = Waiting(evict, order.asked_s, row.author)
        self._told(row)
        return row

    def ready(self, now_s: float, patience_s: float) -> Iterator[Waiting]:
        """Flush, and hand out what is on disk; nothing, while the disk does not take it.

        What has waited for too long is handed out no more: it is decided again, or abandoned.
        """
        for incident_id, one in list(self._waiting.items()):
            if now_s - one.since_s > patience_s:
                del self._waiting[incident_id]
                self._open[incident_id] = replace(self._open[incident_id], resumed=False)
        if self._waiting and self._store.flush():
            yield from tuple(self._waiting.values())

    def attempt(self, order: Order) -> Order:
        """The order as the decision's next attempt."""
        one = self._open[order.evict.incident_id]
        before = () if one.left is None else one.left.rungs
        return replace(
            order, decided_s=one.row.at_s, attempt=one.row.attempt, author=one.row.author,
            before=before,
        )  # fmt: skip

    def carried_out(self, incident_id: IncidentId) -> None:
        """The evictor has it."""
        self._waiting.pop(incident_id, None)
        one = self._open[incident_id]
        row = replace(one.row, state=DecisionState.CARRIED_OUT)
        self._open[incident_id] = replace(one, row=row)
        self._keep(row)

    def refused(self, incident_id: IncidentId, now_s: float) -> None:
        """The evictor does not take it: somebody else's eviction of the same group is under way."""
        end = End(DecisionState.ABANDONED, "its group is being evicted already")
        self._end(self._open[incident_id], end, now_s)

    def ended(self, progress: EvictionProgress, now_s: float) -> None:
        """The evictor is done with it."""
        one = self._open.get(progress.incident_id)
        if one is not None and one.row.at_s == progress.of_s:
            self._end(one, end_of(progress), now_s)

    def review(
        self,
        snapshot: Snapshot,
        incident_of: Callable[[IncidentId], Incident | None],
        held: Mapping[IncidentId, str],
        patience_s: float,
    ) -> tuple[Evict, ...]:
        """End what another monitor left, where that is due; returned is what is asked again."""
        asked: list[Evict] = []
        for incident_id, one in list(self._open.items()):
            if one.resumed:
                continue
            incident = incident_of(incident_id)
            told = judged(
                one, incident, snapshot, held=held.get(incident_id), patience_s=patience_s
            )
            match told:
                case End():
                    self._end(one, told, snapshot.now_s)
                case Evict():
                    asked.append(told)
                case None:
                    pass
        return tuple(asked)

    def going(self, group: GroupName) -> bool:
        """Whether a decision about this group has no end yet."""
        return any(one.row.body.get("group") == group for one in self._open.values())

    def troubles(self) -> Iterator[str]:
        """Decisions that wait for the disk."""
        for one in tuple(self._waiting.values()):  # a person may decide meanwhile
            why = self._store.last_error or "not on disk yet"
            yield f"eviction of {one.evict.group} waits: its decision is not written ({why})"

    def _end(self, one: Unfinished, end: End, now_s: float) -> None:
        self._open.pop(one.row.incident_id, None)
        self._waiting.pop(one.row.incident_id, None)
        if end.state is DecisionState.ABANDONED:
            log.warning("eviction of %s is abandoned: %s", one.row.body.get("group"), end.outcome)
        self._keep(ending(one.row, end, now_s))
        if one.left is None or one.resumed:
            return
        if end.state is DecisionState.CONFIRMED:
            self._store.save_eviction(replace(one.left, gone_s=now_s, ended_s=now_s))
        else:
            self._abandon(one.left, end.outcome, now_s)

    def _abandon(self, progress: EvictionProgress, why: str, now_s: float) -> None:
        self._store.save_eviction(replace(progress, failed=f"abandoned: {why}", ended_s=now_s))

    def _keep(self, row: DecisionRow) -> None:
        self._store.save_decision_row(row)
        self._told(row)
