"""What the command line said, and why it cannot be done so."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from monitor.config import KeeperConfig
from monitor.evictors import Patience
from monitor.journal.shelf import Limits
from monitor.metrics import Bounds
from monitor.notify import Sink
from monitor.rulebook import Rulebook
from monitor.schedulers.build import SchedulerOptions
from monitor.store import Place


class StartError(Exception):
    """The monitor cannot start so; the message is one line for a person."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line said."""

    config: KeeperConfig
    bind: str
    store: Path | str | Place
    """A SQLite file, or a database by URL."""
    lighthouse: str | None = None
    targets: Path | None = None
    token: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    """Authorities to trust for https; None: those that the system trusts."""
    open_reads: bool = False
    """Whether ranks may be read through the monitor without the token wherever it is bound."""
    patience: Patience = field(default_factory=Patience)
    evidence: Path | None = None
    """Folder of the evidence bundles; None: beside the store."""
    sinks: tuple[Sink, ...] = ()
    """Whom to notify."""
    public_url: str | None = None
    """Of this monitor, as people reach it; None: where it is bound."""
    journal: Path | None = None
    """Folder of the journal; None: none is kept."""
    limits: Limits = field(default_factory=Limits)
    """Of the journal."""
    schedulers: SchedulerOptions = field(default_factory=SchedulerOptions)
    """Who is told of quarantine."""
    audit_log: Path | None = None
    """Where decisions are written for auditors; None: nowhere but into the store."""
    audit_log_bytes: int = 64_000_000
    """When a new file is begun."""
    rules: Rulebook | None = None
    """The policy, whose configuration is `config`; None: no file, and none to reload."""
    bounds: Bounds = field(default_factory=Bounds)
    """Of the series on `/metrics`."""
    gate: str | None = None
    """Admin port of the gate in front of the Lighthouse; None: there is none."""
