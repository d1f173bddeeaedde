"""The first third of a tick: one look at every rank and at the Lighthouse, frozen."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from monitor.keeper.parts import Parts
from monitor.lighthouse_log import LighthouseRecord
from monitor.names import RankName
from monitor.poller import Sweep
from monitor.snapshot import (
    NO_LIGHTHOUSE,
    Failure,
    LighthouseAway,
    LighthouseView,
    Snapshot,
    Unreachable,
    Vitals,
)

log = logging.getLogger(__package__)

_SWEEP_SHARE: Final = 0.8
"""Of a tick that the sweep may take: the rest is for deciding and writing."""
_SWEEP_LEAST_S: Final = 0.2
_SWEEP_MOST_S: Final = 3.0
_LOOP_LATE_S: Final = 2.0
"""A fetch loop that is later than this is broken: the tick goes on without it."""


class Observing:
    """Looks, and tells the registry who answered."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.lighthouse = LighthouseRecord()
        """What was seen of the Lighthouse over all ticks."""
        self._deadline_s = min(
            max(_SWEEP_SHARE * parts.config.tick_s, _SWEEP_LEAST_S), _SWEEP_MOST_S
        )

    def refresh_targets(self) -> None:
        """Drop who has been silent for too long, and follow the list of those who do not register.

        Raises:
            TargetsError: the list cannot be read.
        """
        registry, listed = self._parts.registry, self._parts.targets_file
        for target in registry.expire():
            log.warning("%s is dropped: silent and its lease over", target.rank)
        if listed is not None and (urls := listed.changed()) is not None:
            registry.follow(urls)

    def look(
        self,
        tick: int,
        now_s: float,
        lateness_s: float,
        *,
        wanted: Sequence[RankName],
        past: Sequence[RankName],
        watched: Sequence[RankName] = (),
    ) -> Snapshot:
        """Everything that is seen now.

        Args:
            tick: its number.
            now_s: when it began.
            lateness_s: how much later than planned.
            wanted: whose flight records are read as well.
            past: whose past steps are.
            watched: who is asked itself.
        """
        parts = self._parts
        page = None if parts.lighthouse is None else parts.lighthouse.begin_look(self._deadline_s)
        sweep = parts.poller.sweep(
            parts.registry.targets(),
            deadline_s=self._deadline_s,
            wanted=wanted,
            unidentified=parts.registry.unidentified(),
            past=past,
            watched=watched,
        )
        lighthouse: LighthouseView | LighthouseAway = LighthouseAway(NO_LIGHTHOUSE)
        if page is not None:
            lighthouse = page.result(timeout=self._deadline_s + _LOOP_LATE_S)
        # a sweep that took much longer than it may was interrupted: what it saw is old
        overdue_s = parts.clock.now_s() - now_s - self._deadline_s - _LOOP_LATE_S
        self._learn(sweep)
        self.lighthouse = self.lighthouse.after(lighthouse, now_s)
        keeper = parts.gatekeeper
        if keeper is not None:
            keeper.saw(sweep.observations, self._born)
        parts.evictors.note(lighthouse)
        return Snapshot(
            now_s=now_s,
            tick=tick,
            lateness_s=max(lateness_s, overdue_s),
            observations=sweep.observations,
            lighthouse=lighthouse,
            records=sweep.records,
            evictions=parts.evictors.progress(),
            steps=sweep.steps,
            vitals=Vitals() if parts.vitals is None else parts.vitals.measure(),
            pause=None if parts.pause is None else parts.pause.current(),
            gate_up=keeper is not None and keeper.up,
        )

    def _born(self, rank: RankName) -> float | None:
        """When a rank attached, by its own account."""
        target = self._parts.registry.get(rank)
        return None if target is None else target.born_s

    def _learn(self, sweep: Sweep) -> None:
        """Tell the registry who answered."""
        registry = self._parts.registry
        answers = [(one.rank, one.report) for one in sweep.observations]
        registry.heard({rank: told.process.alive for rank, told in answers if told is not None})
        for one in sweep.observations:
            if isinstance(one.outcome, Unreachable):
                self._parts.instruments.poll_failures.labels(str(one.outcome.reason)).inc()
                target = registry.get(one.rank)
                if one.outcome.reason is Failure.STRANGER and target is not None:
                    registry.estrange(target)
        for url, identity in sweep.identified:
            registry.identify(url, identity)
