"""The gate refuses the group's replica id, whatever its processes do."""

from __future__ import annotations

from typing import Protocol

from monitor.clock import Clock
from monitor.evictors.look import Look
from monitor.evictors.order import Order, Patience
from monitor.names import ReplicaId
from monitor.snapshot import Rung, RungOutcome, RungResult


class Refuser(Protocol):
    """Who keeps the gate's list: `monitor.evictors.gatekeeper`."""

    def kick(self) -> None:
        """The list has changed: teach it at once."""
        ...

    def refusing_for_s(self, replica_id: ReplicaId) -> float | None:
        """How long the gate is seen to refuse it; None while it is not."""
        ...

    def trouble(self) -> str | None:
        """Why the gate cannot be taught; None while it can."""
        ...


class GateRefuses:
    """Its denial follows from the record of this rung: it is recorded, then the list is taught."""

    rung = Rung.GATE

    def __init__(self, order: Order, gate: Refuser, clock: Clock, patience: Patience) -> None:
        self._replica_id = order.evict.replica_id
        self._gate = gate
        self._clock = clock
        self._patience = patience
        self._outcome: RungOutcome | None = None
        self._kicked_s: float | None = None

    def climb(self, look: Look) -> None:  # noqa: ARG002 - the gate is looked at by its keeper
        """Have the list taught, again every few seconds until it is seen in force."""
        now_s = self._clock.now_s()
        if self._replica_id is None:
            self._tell(now_s, "the group never joined a quorum", RungResult.SKIPPED)
            return
        if self._outcome is None:
            self._tell(now_s, "asked", None)  # the next look finds it recorded, and kicks
            return
        if self._outcome.result is RungResult.WORKED:
            return
        if self._gate.refusing_for_s(self._replica_id) is not None:
            self._tell(now_s, f"it refuses {self._replica_id}", RungResult.WORKED)
        elif self._kicked_s is None or now_s - self._kicked_s >= self._patience.ask_again_s:
            self._kicked_s = now_s
            self._gate.kick()
        if self.over() and self._outcome.result is None:
            why = self._gate.trouble() or "its list has not been seen in force"
            self._tell(now_s, why, RungResult.FAILED)

    def over(self) -> bool:
        """Whether it refuses, or had its time; it is asked on all the same."""
        told = self._outcome
        if told is None:
            return False
        late = self._clock.now_s() - told.started_s >= self._patience.gate_s
        return told.result is not None or late

    def settle(self, look: Look) -> None:  # noqa: ARG002 - its own answer tells
        """Say so when it never was seen to refuse."""
        if self._outcome is not None and self._outcome.result is None:
            why = self._gate.trouble() or "the group was gone before its list was seen in force"
            self._tell(self._clock.now_s(), why, RungResult.UNKNOWN)

    def outcome(self) -> RungOutcome | None:
        """What it did so far."""
        return self._outcome

    def _tell(self, now_s: float, detail: str, result: RungResult | None) -> None:
        began_s = now_s if self._outcome is None else self._outcome.started_s
        finished_s = None if result is None else now_s
        self._outcome = RungOutcome(
            self.rung, began_s, finished_s, detail, result, self._patience.gate_s
        )
