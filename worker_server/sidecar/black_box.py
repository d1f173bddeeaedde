"""The black box: everything that is known of the rank, now or when it died."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, Protocol

from worker_server import wire
from worker_server.page.reader import PageReader
from worker_server.sidecar.control_plane import ControlPlaneError
from worker_server.sidecar.process import RankProcess
from worker_server.sidecar.stacks import Stacks
from worker_server.sidecar.steps import StepFollower

_RECORD_EVERY_S = 30.0
_RECORD_DUTY = 0.001
"""Share of one CPU of the rank that keeping torch's record may cost: a record of 2,000 entries
takes the rank 18 ms, one of 20,000 more than a second."""
_RECORD_FRESH_S = 1.0
_STALL_S = 5.0
"""No phase change for so long, inside a collective: keep torch's record before a watchdog or an
operator kills the rank."""


class TorchRecords(Protocol):
    """Where torch's own record comes from."""

    def flight_record(self, timeout_s: float = ...) -> dict[str, Any]:
        """Torch's record, or ControlPlaneError."""

    def wait_counters(self, timeout_s: float = ...) -> dict[str, Any]:
        """Torch's wait counters, or ControlPlaneError."""


@dataclass(frozen=True, slots=True)
class _Kept:
    record: dict[str, Any]
    taken_s: float
    cost_s: float
    entered: int


def _only_active(record: dict[str, Any]) -> dict[str, Any]:
    """Torch's record without what it retired: on gloo its own filter keeps everything."""
    entries = record.get("entries")
    if not isinstance(entries, list):
        return record
    active = [e for e in entries if not (isinstance(e, dict) and e.get("retired") is True)]
    return {**record, "entries": active}


class BlackBox:
    """Answers for one rank, alive or dead."""

    def __init__(
        self, page: PageReader, process: RankProcess, torch: TorchRecords, stacks: Stacks
    ) -> None:
        self.identity = page.identity
        self.follower = StepFollower(page)
        self._page = page
        self._process = process
        self._torch = torch
        self._stacks = stacks
        self._lock = threading.Lock()
        self._kept: _Kept | None = None
        self._torch_error: str | None = None
        self._last_stacks: tuple[str, float] | None = None
        self._stall_kept = -1

    @property
    def closed(self) -> bool:
        """Whether the rank said that its work is over."""
        return self._page.closed

    def process(self) -> wire.Process:
        """The rank's process as the operating system sees it."""
        return self._process.look(self._page.beat_age_s(time.monotonic_ns()))

    def state(self) -> wire.StateReport:
        """The answer of `GET /v1/state`."""
        process = self.process()
        now_ns = time.monotonic_ns()
        return wire.StateReport(
            identity=self.identity,
            process=process,
            step=self._page.step_state(now_ns),
            heads=self._page.heads(now_ns),
        )

    def flight_record(self, *, only_active: bool = False) -> wire.FlightRecord:
        """The answer of `GET /v1/flight_recorder`; asks torch when the last answer is old."""
        alive = not self._process.wait_death(0)
        if alive:
            self._refresh_torch(_RECORD_FRESH_S)
        entries, dropped = self._page.ring(time.monotonic_ns())
        if only_active:
            entries = tuple(entry for entry in entries if entry.exit_age_s is None)
        kept = self._kept
        torch = kept.record if kept else None
        if torch is not None and only_active:
            torch = _only_active(torch)
        return wire.FlightRecord(
            identity=self.identity,
            alive=alive,
            members=self._page.members(),
            ring=entries,
            dropped=dropped,
            torch=torch,
            torch_age_s=time.monotonic() - kept.taken_s if kept else None,
            torch_error=self._torch_error,
        )

    def _refresh_torch(self, max_age_s: float) -> None:
        with self._lock:
            started = time.monotonic()
            if self._kept and started - self._kept.taken_s < max_age_s:
                return
            entered = self._page.entered
            try:
                record = self._torch.flight_record()
            except ControlPlaneError as exc:
                self._torch_error = str(exc)
                return
            done = time.monotonic()
            self._torch_error = None
            self._kept = _Kept(record, done, done - started, entered)

    def wait_counters(self) -> dict[str, Any]:
        """Torch's wait counters, from the rank itself.

        Raises:
            ControlPlaneError: they cannot be had.
        """
        return self._torch.wait_counters()

    def tick(self) -> None:
        """Keep what a dead rank can no longer be asked for; called about once a second."""
        self.follower.follow()
        if self._process.wait_death(0):
            return
        entered, kept = self._page.entered, self._kept
        if not entered:
            return
        if kept is None:
            self._refresh_torch(_RECORD_EVERY_S)
            return
        age = time.monotonic() - kept.taken_s
        due = age > max(_RECORD_EVERY_S, kept.cost_s / _RECORD_DUTY)
        if (due and kept.entered != entered) or self._stalls():
            self._refresh_torch(_RECORD_FRESH_S)

    def _stalls(self) -> bool:
        """Whether the rank has just begun to hang inside a collective; true once per hang."""
        now_ns = time.monotonic_ns()
        stuck = any(
            head.enqueued > head.completed and head.age_s > _STALL_S
            for head in self._page.heads(now_ns)
        )
        entered = self._page.entered
        if not stuck or self._stall_kept == entered:
            return False
        self._stall_kept = entered
        return True

    def stacks(self, *, native: bool = False) -> str:
        """The rank's stacks; after its death the last that were taken.

        Raises:
            StacksError: none can be had.
            LookupError: the rank is dead and none were taken before.
        """
        if self._process.wait_death(0):
            if self._last_stacks is None:
                raise LookupError("the rank is dead and no stacks were taken before it died")
            text, taken_s = self._last_stacks
            return f"# taken {time.monotonic() - taken_s:.1f} s ago, before the rank died\n{text}"
        stopped = self.process().state in ("T", "t")
        text = self._stacks.take(stopped=stopped, native=native)
        self._last_stacks = text, time.monotonic()
        return text
