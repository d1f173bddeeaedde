"""What the routes may touch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from flask import Flask, current_app
from prometheus_client import CollectorRegistry

from monitor.app.streams import Streams
from monitor.clock import Clock
from monitor.fetch import Fetcher
from monitor.lease import Standing
from monitor.names import GroupName, IncidentId
from monitor.pausing import PauseSwitch
from monitor.quarantine import Quarantine
from monitor.reports.incident_evidence import Stacks
from monitor.rulebook import Rulebook
from monitor.targets import Registry
from monitor.view import View

_KEY: Final = "lightkeeper"


@dataclass(frozen=True, slots=True)
class Desk:
    """The monitor, seen from its HTTP side."""

    clock: Clock
    registry: Registry
    quarantine: Quarantine
    fetcher: Fetcher
    metrics: CollectorRegistry
    view: Callable[[], View | None]
    evict: Callable[[GroupName, str, str], IncidentId]
    """Which, why, who asks. Raises `NotPossible`."""
    tick_s: float
    version: str
    token: str | None = field(default=None, repr=False)
    loopback: bool = True
    """Whether only this machine can reach the monitor."""
    open_reads: bool = False
    """Whether anybody who reaches the monitor may read ranks through it."""
    journal: Path | None = None
    """Folder of the journal, for who replays it."""
    standing: Callable[[], Standing] | None = None
    """Whether this monitor acts; None: it shares its store with nobody."""
    bundle: Callable[[IncidentId], Path | None] = lambda _: None
    """The file of an incident's evidence."""
    stacks: Callable[[IncidentId], Stacks] = lambda _: Stacks()
    """What its page shows of that."""
    rules: Rulebook | None = None
    pause: PauseSwitch | None = None
    streams: Streams = field(default_factory=Streams)
    """Of server-sent events, for open pages."""

    def event_streams(self) -> int:
        """How many are open."""
        return self.streams.open


def open_desk(app: Flask, desk: Desk) -> None:
    """Give the routes of this application their desk."""
    app.extensions[_KEY] = desk


def the_desk() -> Desk:
    """The desk of the application that answers."""
    return cast("Desk", current_app.extensions[_KEY])
