"""Every eviction that is known here: under way, or of the last hour."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from monitor.clock import Clock
from monitor.evictors.order import Order
from monitor.names import IncidentId
from monitor.snapshot import EvictionProgress, RungOutcome

PROGRESS_KEPT_S: Final = 3600.0
"""Ended evictions stay in snapshots for so long: the policy's budget counts an hour."""

_T = TypeVar("_T")


@dataclass(slots=True)
class Case:
    """One eviction that this monitor carries out, or has carried out."""

    order: Order
    progress: EvictionProgress
    ended: bool = False
    dropped: bool = False
    """Another monitor goes on with it: nothing more is done or recorded here."""
    shown: tuple[str, ...] = ()
    """What shows that it is out, so far."""


class Cases:
    """How far each came. Safe to use from any thread."""

    def __init__(self, clock: Clock, record: Callable[[EvictionProgress], None]) -> None:
        self._clock = clock
        self._record = record
        self._lock = threading.Lock()
        self._cases: dict[IncidentId, Case] = {}
        self._past: list[EvictionProgress] = []
        self._news: list[EvictionProgress] = []

    # -- taking over and standing by ------------------------------------------------------------

    def restore(self, evictions: Sequence[EvictionProgress]) -> tuple[EvictionProgress, ...]:
        """Take over what an earlier monitor recorded; returned is what is of the last hour.

        What it left without an end is not under way here: it is asked again, or abandoned, by
        who decides (`keeper.unfinished`).
        """
        lately = self._of_the_last_hour(evictions)
        with self._lock:
            self._past = [one for one in lately if not one.interrupted]
        return lately

    def follow(self, evictions: Sequence[EvictionProgress]) -> None:
        """Nothing is under way here any more; show what the active monitor recorded."""
        lately = self._of_the_last_hour(evictions)
        with self._lock:
            for case in self._cases.values():
                case.dropped = case.ended = True
            self._cases, self._news, self._past = {}, [], list(lately)

    def _of_the_last_hour(
        self, evictions: Sequence[EvictionProgress]
    ) -> tuple[EvictionProgress, ...]:
        since_s = self._clock.now_s() - PROGRESS_KEPT_S
        return tuple(one for one in evictions if one.asked_s >= since_s)

    # -- asking ---------------------------------------------------------------------------------

    def progress(self) -> tuple[EvictionProgress, ...]:
        """Evictions under way and those of the last hour, oldest first."""
        since_s = self._clock.now_s() - PROGRESS_KEPT_S
        with self._lock:
            self._past = [past for past in self._past if past.asked_s >= since_s]
            for incident_id, case in list(self._cases.items()):
                if case.ended and case.progress.asked_s < since_s:
                    del self._cases[incident_id]
            known = [*self._past, *(case.progress for case in self._cases.values())]
        return tuple(sorted(known, key=lambda one: (one.asked_s, one.incident_id)))

    def active(self) -> tuple[EvictionProgress, ...]:
        """Evictions under way."""
        with self._lock:
            return tuple(case.progress for case in self._cases.values() if not case.ended)

    def take_ended(self) -> tuple[EvictionProgress, ...]:
        """Evictions that ended since this was last asked."""
        with self._lock:
            news, self._news = tuple(self._news), []
        return news

    def not_seen_out(self) -> tuple[Case, ...]:
        """Those whose replica id has not been seen to leave the quorum."""
        with self._lock:
            return tuple(
                case
                for case in self._cases.values()
                if case.progress.left_quorum_s is None and case.progress.replica_id is not None
            )

    # -- changing -------------------------------------------------------------------------------

    def open(self, order: Order) -> Case | None:
        """A case of this order; None when this incident's, or group's, is under way already."""
        evict = order.evict
        progress = EvictionProgress(
            incident_id=evict.incident_id,
            group=evict.group,
            replica_id=evict.replica_id,
            asked_s=order.asked_s,
            rungs=order.before,
            decided_s=order.decided_s,
            attempt=order.attempt,
        )
        with self._lock:
            if any(c.progress.group == evict.group for c in self._cases.values() if not c.ended):
                return None
            before = self._cases.get(evict.incident_id)
            if before is not None:
                self._past.append(before.progress)
            case = self._cases[evict.incident_id] = Case(order, progress)
        self._record(progress)
        return case

    def end(self, case: Case) -> None:
        """The worker is done with it, however that ended."""
        self.update(case, ended_s=self._clock.now_s())
        with self._lock:
            case.ended = True
            self._news.append(case.progress)

    def update(
        self,
        case: Case,
        *,
        rung: RungOutcome | None = None,
        gone_s: float | None = None,
        left_quorum_s: float | None = None,
        failed: str | None = None,
        ended_s: float | None = None,
        unseen_s: float | None = None,
        how: str = "",
    ) -> None:
        """Note what is new, and record it; `how`: by what a person may know that it is out.

        What is known stays as it was: the tick and the worker may see a group leave at once.
        """
        with self._lock:
            old = case.progress
            rungs = old.rungs
            if rung is not None:
                rungs = (*(one for one in rungs if one.rung is not rung.rung), rung)
            case.progress = progress = replace(
                old,
                rungs=rungs,
                gone_s=_first(old.gone_s, gone_s),
                left_quorum_s=_first(old.left_quorum_s, left_quorum_s),
                failed=_first(old.failed, failed),
                ended_s=_first(old.ended_s, ended_s),
                unseen_s=_first(old.unseen_s, unseen_s),
            )
            if how and how not in case.shown:
                case.shown = (*case.shown, how)
            if progress.out and old.confirmed is None:
                case.progress = progress = replace(progress, confirmed="; ".join(case.shown))
        if progress != old and not case.dropped:
            self._record(progress)


def _first(known: _T | None, new: _T | None) -> _T | None:
    return new if known is None else known
