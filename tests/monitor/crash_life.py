"""One life of a real monitor in a process of its own, which may end at any point of an eviction.

The points are where something outside the process changes: before and after each write of the
store, each request that is no GET, each report of a rung. They are counted from the first decision
to evict on; at the one that the seed names the process kills itself with SIGKILL. Nothing of this
is in the monitor: its classes are wrapped in this process alone.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightkeeper.monitor.act.evictor import EvictionLog, Evictors
from lightkeeper.monitor.act.http import Fetcher
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.escalation import Timeouts
from lightkeeper.monitor.service import Options, Service
from lightkeeper.monitor.store.database import Database

LAST = "the end"
"""Noted by a life that ended as it should."""


@dataclass
class Fuse:
    """Counts points; the one that is named is the last."""

    at: int | None
    note: Path
    """Where the last point is told: its number and name."""
    lit: bool = False
    passed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def point(self, name: str) -> None:
        with self._lock:
            if not self.lit:
                return
            self.passed += 1
            if self.passed == self.at:
                self.note.write_text(f"{self.passed} {name}")
                os.kill(os.getpid(), signal.SIGKILL)


def wrapped(fuse: Fuse, call: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(call)
    def around(*args: Any, **kwargs: Any) -> Any:
        fuse.point(f"before {name}")
        result = call(*args, **kwargs)
        fuse.point(f"after {name}")
        return result

    return around


def lay(fuse: Fuse) -> None:
    """Put the fuse into the classes of this process."""
    write, fetch = Database.write, Fetcher.fetch

    def write_around(self: Database, batch: Any, fence: Any) -> Any:
        kinds = {table for table, _ in batch}
        fuse.lit = fuse.lit or any(key.endswith(" evict") for _, key in batch)
        return wrapped(fuse, write, f"write of {', '.join(sorted(kinds))}")(self, batch, fence)

    async def fetch_around(self: Fetcher, question: Any) -> Any:
        if question.method == "GET":
            return await fetch(self, question)
        fuse.point(f"before {question.method}")
        answer = await fetch(self, question)
        fuse.point(f"after {question.method}")
        return answer

    Database.write = write_around  # type: ignore[method-assign]
    Fetcher.fetch = fetch_around  # type: ignore[method-assign]
    Evictors.submit = wrapped(fuse, Evictors.submit, "Evictors.submit")  # type: ignore[method-assign]
    EvictionLog._keep = wrapped(fuse, EvictionLog._keep, "EvictionLog._keep")  # type: ignore[method-assign]


def live(bind: str, store: str, lighthouse: str, fuse_at: int | None, note: str) -> None:
    """Until SIGTERM, or the fuse."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    fuse = Fuse(fuse_at, Path(note))
    lay(fuse)
    config = KeeperConfig(
        tick_s=0.2, stall_floor_s=0.3, warm_up_commits=0, warm_up_budget_s=0.0, evidence_count=0,
        cool_down_s=0.0, budget_per_hour=1, restart_quiet_s=0.5, clear_s=0.5, eviction_ack_s=1.0,
        # on a busy machine ticks of 0.2 s are late for seconds: doubt and patience of that scale
        # would abandon the decision knowingly, and decide anew (seen at a load of 17 on 2 cores)
        eviction_deadline_s=30.0, lateness_ticks=25.0,
    )  # fmt: skip
    timeouts = Timeouts(kill_s=0.4, confirm_s=4.0, look_s=0.5, pause_s=0.05)
    options = Options(
        config=config, bind=bind, store=store, lighthouse=lighthouse, token="secret",
        timeouts=timeouts,
    )  # fmt: skip
    with Service(options) as service:
        service.run(stop)
    Path(note).write_text(f"{fuse.passed} {LAST}")
