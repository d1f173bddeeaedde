"""One capture on its way: what is to be done, who waits for it, and the thread that does it."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from monitor.evidence.bundle import MomentName
from monitor.evidence.fleet import Seen
from monitor.incident import Incident
from monitor.names import IncidentId
from monitor.policy import Evict

QUEUE: Final = 64
"""Moments waiting to be taken; more incidents at once are one fault that many tell of."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One moment on its way. `wait` is what the evictor calls."""

    incident_id: IncidentId
    moment: MomentName
    limit_s: float
    began: float = field(default_factory=time.monotonic)
    answered: threading.Event = field(default_factory=threading.Event)
    """Everything that comes is in memory; the rank may go."""
    said: str = ""

    def wait(self) -> str:
        """Wait until the ranks have answered, at most `limit_s` from when it was asked for."""
        left_s = self.began + self.limit_s - time.monotonic()
        if self.answered.wait(max(0.0, left_s)):
            return self.said
        return f"not there within {self.limit_s:g} s: went on without"

    def done(self, said: str) -> None:
        """Let go whoever waits."""
        if not self.answered.is_set():
            self.said = said
            self.answered.set()


@dataclass(frozen=True, slots=True)
class Job:
    """What a lane does next."""

    ticket: Ticket | None
    """None: only the story is written again; without an incident: only the folder is tidied."""
    seen: Seen
    incident: Incident | None
    evict: Evict | None = None
    author: str | None = None

    @property
    def moment(self) -> MomentName | None:
        """None: of the story alone."""
        return None if self.ticket is None else self.ticket.moment

    @property
    def incident_id(self) -> IncidentId:
        """Also of an eviction by hand."""
        known = self.incident.id if self.incident is not None else None
        return known or (self.evict.incident_id if self.evict is not None else IncidentId(""))


class Lane:
    """One thread and what it still has to do."""

    def __init__(self, name: str, work: Callable[[Job], None]) -> None:
        self._work = work
        self._stop = threading.Event()
        self._queue: queue.Queue[Job | None] = queue.Queue(QUEUE)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, job: Job) -> bool:
        """False when there is too much to do already."""
        if self._stop.is_set():
            return False
        try:
            self._queue.put_nowait(job)
        except queue.Full:
            return False
        return True

    def close(self, timeout_s: float) -> None:
        """What waits in the queue is not begun any more."""
        self._stop.set()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)  # full: it wakes up by itself
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None and not self._stop.is_set():
            self._work(job)
