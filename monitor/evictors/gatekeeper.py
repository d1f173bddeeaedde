"""Keeps the gate taught: one thread compares the list it should have with the one it shows.

A gate forgets its list when it restarts, and another monitor may have taught it another one: it is
looked at every second, and taught whenever what it shows differs. A gate that is away, or that does
not take the list, is a trouble that is shown, and holds up no tick and no other rung.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from monitor.clock import Clock
from monitor.evictors.denials import LASTS_S, deny_list
from monitor.evictors.whereabouts import Whereabouts
from monitor.gate.client import Gate, GateAway, GateView
from monitor.gate.denial import Denial, Scope
from monitor.names import IncidentId, RankName, ReplicaId
from monitor.quarantine import Quarantine
from monitor.snapshot import EvictionProgress, Observation

log = logging.getLogger(__name__)

ASK_S: Final = 2.0
"""Deadline of one look, and of one list."""
PERIOD_S: Final = 1.0
_LOOP_LATE_S: Final = 3.0
SAME_S: Final = 2.0
"""Clocks differ: an entry about to expire may be in force here and not there."""


class Gatekeeper:
    """Safe to use from any thread. Close it when done."""

    def __init__(
        self,
        gate: Gate,
        *,
        clock: Clock,
        quarantine: Quarantine,
        period_s: float = PERIOD_S,
        may: Callable[[], bool] = lambda: True,
    ) -> None:
        """`may`: whether this monitor is the one that acts; a standby teaches nobody."""
        self._gate = gate
        self._clock = clock
        self._quarantine = quarantine
        self._period_s = period_s
        self._may = may
        self._evictions: Callable[[], Iterable[EvictionProgress]] = tuple
        self._lock = threading.Lock()
        self._where = Whereabouts()
        self._past: dict[IncidentId, EvictionProgress] = {}
        self._view: GateView | GateAway = GateAway("not looked at yet")
        self._since_s: dict[ReplicaId, float] = {}
        self._problem: str | None = None
        self.taught = 0
        self.failed = 0
        self._wake, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="gate", daemon=True)

    def start(
        self,
        evictions: Callable[[], Iterable[EvictionProgress]],
        remembered: Iterable[EvictionProgress] = (),
    ) -> None:
        """Begin; `evictions`: those under way and lately ended, `remembered`: of the last day."""
        self._evictions = evictions
        self.remember(remembered)
        self._thread.start()

    def remember(self, evictions: Iterable[EvictionProgress]) -> None:
        """Evictions of another monitor, or of an earlier one."""
        with self._lock:
            self._past.update({one.incident_id: one for one in evictions})

    def close(self, timeout_s: float = 2.0) -> None:
        """Stop; the gate keeps its list."""
        self._over.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def saw(
        self,
        observations: Iterable[Observation],
        born: Callable[[RankName], float | None] = lambda _: None,
    ) -> None:
        """Who runs where, in this tick."""
        with self._lock:
            self._where.saw(observations, self._clock.now_s(), born)

    def kick(self) -> None:
        """Look and teach now."""
        self._wake.set()

    @property
    def up(self) -> bool:
        """Whether it answered the last time."""
        return isinstance(self._view, GateView)

    @property
    def view(self) -> GateView | GateAway:
        """As it was seen last."""
        return self._view

    def trouble(self) -> str | None:
        """Why the gate cannot be looked at or taught; None while it can."""
        view = self._view
        return f"the gate is away: {view.reason}" if isinstance(view, GateAway) else self._problem

    def troubles(self) -> Iterator[str]:
        """The same, for the page that people read."""
        if (trouble := self.trouble()) is not None:
            yield trouble

    def refusing_for_s(self, replica_id: ReplicaId) -> float | None:
        """How long the gate is seen to refuse an id that speaks through it; None while it is not.

        One that never spoke to this gate may speak to the Lighthouse by another way.
        """
        view, since_s = self._view, self._since_s.get(replica_id)
        if isinstance(view, GateAway) or since_s is None or view.seen(replica_id) is None:
            return None
        return max(0.0, self._clock.now_s() - since_s)

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._over.is_set():
            self._wake.clear()
            try:
                self.turn()
            except Exception as exc:
                log.exception("teaching the gate crashed")
                self._problem = f"teaching the gate crashed: {type(exc).__name__}: {exc}"
            self._wake.wait(self._period_s)

    def turn(self) -> None:
        """Look once, and teach if what it shows is not what it should have."""
        view = self._gate.begin_look(ASK_S).result(ASK_S + _LOOP_LATE_S)
        self._note(view)
        wanted = self.wanted()  # also of a standby: it remembers what the active one evicts
        if isinstance(view, GateAway) or not self._may():
            return
        if _same(wanted, view.denied, self._clock.now_s()):
            self._problem = None
            return
        problem = self._gate.begin_deny(wanted, ASK_S).result(ASK_S + _LOOP_LATE_S)
        if problem is None:
            view = self._gate.begin_look(ASK_S).result(ASK_S + _LOOP_LATE_S)
            self._note(view)
            if isinstance(view, GateAway):
                problem = view.reason
            elif not _same(wanted, view.denied, self._clock.now_s()):
                problem = "it shows another list all the same"
        if problem is None:
            self.taught, self._problem = self.taught + 1, None
            log.info("the gate refuses %d names now", len(wanted))
        else:
            self.failed += 1
            self._problem = f"the gate does not take its list: {problem}"
            log.warning("%s", self._problem)

    def wanted(self) -> tuple[Denial, ...]:
        """The list that the gate should have now."""
        now_s = self._clock.now_s()
        self._past.update({one.incident_id: one for one in self._evictions()})
        for incident_id, one in list(self._past.items()):
            if now_s - one.asked_s > LASTS_S:
                del self._past[incident_id]
        with self._lock:
            known = self._where.all()
        hosts, groups = self._quarantine.active(), self._quarantine.groups()
        return deny_list(self._past.values(), hosts, known, now_s, groups)

    def _note(self, view: GateView | GateAway) -> None:
        if isinstance(view, GateAway) and isinstance(self._view, GateView):
            log.warning("the gate is away: %s", view.reason)
        self._view = view
        if isinstance(view, GateAway):
            return  # what it refused it refuses still, or has forgotten: its next answer tells
        refused = {ReplicaId(one.name) for one in view.denied if one.scope is Scope.REPLICA}
        now_s = self._clock.now_s()
        self._since_s = {name: self._since_s.get(name, now_s) for name in refused}


def _same(wanted: Iterable[Denial], shown: Iterable[Denial], now_s: float) -> bool:
    lasting = {one for one in wanted if not one.expired(now_s + SAME_S)}
    return lasting == {one for one in shown if not one.expired(now_s + SAME_S)}
