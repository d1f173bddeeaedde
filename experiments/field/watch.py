"""What the monitor said, and what the job did: everything a record is made from."""

from __future__ import annotations

import time
from typing import Any

from experiments.field.fleet import Fleet
from experiments.watch import Watch


class JobWatch(Watch):
    """Looks at the monitor and at the job twice a second."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet.monitor_url, fleet.folder)
        self.fleet = fleet
        self.progress_s: float = time.time()
        """When any group last made a step."""
        self.trained = False
        """Whether any group has made a step: before, the job starts and does not stand."""
        self.stands: list[list[float]] = []
        """[from, to] of every time in which no group made a step for 5 s and longer."""
        self.exit: tuple[int, float] | None = None
        """A plain job's status, and when it had ended."""
        self.statuses: list[list[Any]] = []

    def look(self) -> dict[str, Any] | None:
        """One look at the job and at the monitor."""
        self._look_at_job(time.time())
        return super().look()

    def _look_at_job(self, now_s: float) -> None:
        if self.fleet.look(now_s):
            if self.trained and now_s - self.progress_s >= 5:
                self.stands.append([round(self.progress_s, 2), round(now_s, 2)])
            self.progress_s, self.trained = now_s, True
        if self.exit is None and (status := self.fleet.exit_status()) is not None:
            self.exit = status, now_s

    def steady(self, least_steps: int, ranks: int) -> str | None:
        """Why the job does not train steadily, all together; None when it does."""
        if self.snapshot is None:
            return "the monitor does not answer"
        now_s = time.time()
        for name, tail in self.fleet.tails.items():
            if tail.steps < least_steps:
                return f"{name} has made {tail.steps} steps"
            if now_s - tail.moved_s > 3:
                return f"{name} makes no steps"
            if tail.participants != tail.mates:
                return f"{name} sees {tail.participants} of {tail.mates} groups"
        seen = len(self.snapshot["ranks"])
        return None if seen >= ranks else f"the monitor sees {seen} of {ranks} ranks"

    def stood(self, since_s: float, now_s: float) -> list[list[float]]:
        """Every stand that lasted into the time since, the present one too. A job that never made a
        step stands from then on.
        """
        if not self.trained:
            return [[since_s, now_s]]
        stands = now_s - self.progress_s >= 5
        last = [[self.progress_s, now_s]] if stands else []
        return [[max(a, since_s - 5), b] for a, b in (*self.stands, *last) if b > since_s]
