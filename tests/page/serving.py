"""The real application on waitress over a view that the test chooses and changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from lightkeeper.monitor.act.http import Fetcher, Tokens
from lightkeeper.monitor.clock import Clock
from lightkeeper.monitor.decide.view import View
from lightkeeper.monitor.model.names import GroupName, IncidentId
from lightkeeper.monitor.show.web.server import Server, create_app
from lightkeeper.worker_server.wire import Registration
from tests.monitor.api import app_context
from tests.monitor.doubles import HandClock

TOKEN = "secret"


class Stage:
    """A monitor without a loop: it shows what it is given.

    Args:
        view: what it shows first.
        port: 0 takes a free one; a given one is what a restarted monitor has again.
        desk: fields of the desk that differ, `token=None` or `loopback=False` among them.
    """

    def __init__(self, view: View | None, *, port: int = 0, clock: Clock | None = None,
                 **desk: Any) -> None:  # fmt: skip
        self.view = view
        self.evicted: list[tuple[str, str, str]] = []
        """Group, reason and author of every eviction that was asked."""
        self.clock = clock or HandClock(1.0 if view is None else view.snapshot.now_s)
        self.fetcher = Fetcher(tokens=Tokens(desk.pop("token", TOKEN)))
        self._turning: Turning | None = None
        self.desk = app_context(
            self.clock, fetcher=self.fetcher, view=lambda: self.view, evict=self._evict, **desk
        )
        self.registry, self.quarantine = self.desk.registry, self.desk.quarantine
        self.pause = self.desk.pause
        if view is not None:
            for seen in view.snapshot.observations[:64]:  # who is asked through the monitor
                self.registry.register(Registration(seen.identity, seen.url, 3600.0))
        self.server = Server("127.0.0.1", port)
        self.url = self.server.url
        self.port = self.server.port
        self.app = create_app(self.desk)
        self.server.start(self.app)

    def _evict(self, group: GroupName, reason: str, author: str) -> IncidentId:
        self.evicted.append((group, reason, author))
        return IncidentId(f"by_hand-{group}-1")

    def show(self, view: View) -> None:
        """Be a tick further."""
        if isinstance(self.clock, HandClock):
            self.clock.at_s = view.snapshot.now_s
        self.view = view

    def turn(self, views: Sequence[View] | Callable[[], View], every_s: float = 1.0) -> None:
        """Show one view after the other, in a thread, as a loop does; ends with `close`."""
        self._turning = Turning(self, views, every_s)

    def close(self) -> None:
        """Stop, as a monitor that is told to."""
        if self._turning is not None:
            self._turning.close()
        self.server.close()
        self.fetcher.close()


class Turning:
    """Shows views in a thread of its own, over and over."""

    def __init__(self, stage: Stage, views: Sequence[View] | Callable[[], View], every_s: float):
        self._stage, self._views, self._every_s = stage, views, every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="turning", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        turn = 0
        while not self._ended.wait(self._every_s):
            views = self._views
            self._stage.show(views() if callable(views) else views[turn % len(views)])
            turn += 1

    def close(self) -> None:
        self._ended.set()
        self._thread.join(timeout=10)


def close_all(stages: Iterable[Stage]) -> None:
    """Every one, whatever happened to the others."""
    for stage in stages:
        with suppress(OSError):
            stage.close()
