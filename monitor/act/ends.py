"""How ranks that left or fell silent ended, asked of the schedulers in the background.

Theory of operation. Each scheduler has a thread of its own and 2 s a look, so that one that hangs
delays nobody. A rank is asked for as soon as a look misses it, since a deleted pod is soon unknown,
then every second, and after 10 s every 3 s. What says why it went stays; what only says how it
looks is replaced. A rank that answers, or comes back as another process, is forgotten: its own word
counts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Final

from msgspec.structs import replace

from lightkeeper.monitor.act.schedulers.base import NotDone, Place, Scheduler
from lightkeeper.monitor.background import BackgroundWorker
from lightkeeper.monitor.clock import Clock
from lightkeeper.monitor.model.names import RankName, one_line
from lightkeeper.monitor.model.observation import Observation
from lightkeeper.worker_server.wire import Testimony, Weight

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 2.0
_EVERY_S: Final = 3.0
_AT_FIRST_S: Final = 1.0
_FIRST_S: Final = 10.0
"""A kubelet reports why it ended a pod one or two seconds after the ranks have died."""
_TRIED_S: Final = 60.0
_ASKED_S: Final = 600.0
"""Kubernetes takes 50 s to see a lost node, and 5 minutes to delete its pods."""
_KEPT_S: Final = 3600.0
_MOST: Final = 64
"""Ranks in one look."""


@dataclass(slots=True)
class _Missing:
    place: Place
    incarnation: str
    since_s: float
    said: Testimony | None = None
    said_s: float = 0.0

    @property
    def known(self) -> bool:
        """True if it is known why it went: our own request to delete it does not say why."""
        said = self.said
        return said is not None and said.weight is not Weight.CONTEXT and said.code != "evicted"


class Ends:
    """What the schedulers say of ranks that are missing. Close it when done."""

    def __init__(self, schedulers: Iterable[Scheduler], clock: Clock) -> None:
        self._clock = clock
        self._missing: dict[RankName, _Missing] = {}
        self._untried: dict[str, str] = {}
        """Scheduler -> why it cannot be asked."""
        self.workers = [
            BackgroundWorker(f"ends {each.name}", partial(self.look, each), every_s=_TRIED_S)
            for each in schedulers
        ]
        for worker in self.workers:
            worker.start()

    def close(self) -> None:
        for worker in self.workers:
            worker.close()

    def troubles(self) -> Iterator[str]:
        for name, why in sorted(self._untried.items()):
            yield f"scheduler {name}: {why}"
        yield from (f"what schedulers say: {each.crash}" for each in self.workers if each.crash)

    def note(
        self, observations: Iterable[Observation], now_s: float
    ) -> Mapping[RankName, Testimony]:
        """What is known, with its present age; ranks missed for the first time are asked for."""
        anew = False
        for seen in observations:
            if seen.report is not None and seen.report.process.alive:
                self._missing.pop(seen.rank, None)
                continue
            who, before = seen.identity, self._missing.get(seen.rank)
            if before is None or before.incarnation != who.incarnation:
                place = Place(seen.rank, who.host, who.place)
                self._missing[seen.rank] = _Missing(place, who.incarnation, now_s)
                anew = True
        missing = self._missing.items()
        self._missing = {rank: each for rank, each in missing if now_s - each.since_s <= _KEPT_S}
        for worker in self.workers if anew else ():
            worker.wake()
        return {
            rank: each.said.later(max(0.0, now_s - each.said_s))
            for rank, each in self._missing.items()
            if each.said is not None
        }

    def look(self, scheduler: Scheduler) -> float:
        """Ask once; returns the seconds until the next look."""
        now_s = self._clock.now_s()
        due = {
            each.place.rank: each
            for each in [*self._missing.values()]
            if not each.known and now_s - each.since_s <= _ASKED_S
        }
        if not due:
            outcome = scheduler.tried(TIMEOUT_S)
            if outcome.done:
                self._untried.pop(scheduler.name, None)
            elif self._untried.get(scheduler.name) != outcome.detail:
                self._untried[scheduler.name] = outcome.detail
                log.warning("scheduler %s: %s", scheduler.name, outcome.detail)
            return _TRIED_S
        try:
            places = [each.place for each in due.values()][:_MOST]
            for place, said in scheduler.ends(places, TIMEOUT_S):
                if not (missing := due[place.rank]).known:
                    for_s = said.for_s if isfinite(said.for_s) else 0.0
                    missing.said, missing.said_s = replace(said, for_s=for_s), now_s
        except NotDone as exc:
            log.info("%s says nothing of %d ranks: %s", scheduler.name, len(due), one_line(exc))
        missed_s = max(each.since_s for each in due.values())
        return _AT_FIRST_S if now_s - missed_s <= _FIRST_S else _EVERY_S
