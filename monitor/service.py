"""One monitor process put together: opened in order, closed in reverse."""

from __future__ import annotations

import logging
import os
import resource
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

from monitor.app import Desk, ServeError, Server, create_app, is_loopback, parse_bind
from monitor.audit.case import Terms
from monitor.audit.logfile import LogFile
from monitor.clock import Clock, SteadyClock
from monitor.config import KeeperConfig
from monitor.evictors import Evictors, GateCollector, Gatekeeper, Patience
from monitor.evidence import Evidence, Shelf, keep_of
from monitor.fetch import CaError, Fetcher, trust, trust_also
from monitor.gate.client import Gate
from monitor.journal.entries import Head
from monitor.journal.shelf import Limits
from monitor.journal.shelf import Shelf as JournalShelf
from monitor.journal.writer import Journal
from monitor.keeper import Deeds, Keeper, Parts
from monitor.keeper.auditor import Auditor
from monitor.keeper.observed import held_back
from monitor.lease import Lease, LeaseTable, Standing, me
from monitor.lighthouse import Lighthouse
from monitor.metrics import Instruments, JournalCollector, LeaseCollector, ViewCollector
from monitor.names import IncidentId
from monitor.notify import Office, Sink
from monitor.notify import Terms as NotifyTerms
from monitor.pausing import PauseSwitch
from monitor.pipeline import Pipeline
from monitor.policy.reading import PolicyError
from monitor.poller import Poller
from monitor.quarantine import Quarantine
from monitor.rulebook import Rulebook, standing
from monitor.schedulers.build import SchedulerOptions
from monitor.schedulers.kube_api import KubeUnusableError
from monitor.schedulers.opening import follow, open_schedulers
from monitor.snapshot import EvictionProgress, LighthouseAway
from monitor.store import Place, Remembered, Store, StoreError
from monitor.targets import Registry, TargetsError, TargetsFile
from monitor.vitals import VitalSigns

log = logging.getLogger(__name__)

TOKENLESS = (
    "no token is configured: WorkerServers will refuse to evict (and to be read, where they are "
    "bound to more than loopback), only the Lighthouse's kill is left, and quarantine and eviction "
    "by hand are off (start with --token-file FILE)"
)


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
    gate: str | None = None
    """Admin port of the gate in front of the Lighthouse; None: there is none."""


class Service:
    """A running monitor. A context manager: everything is closed on the way out.

    Raises:
        StartError: something that the options name cannot be used.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._stack = ExitStack()
        self._outside: Fetcher | None = None
        """For messages to people."""
        try:
            self._start()
        except (ServeError, StoreError, TargetsError, CaError, KubeUnusableError) as exc:
            self._stack.close()
            raise StartError(str(exc)) from exc
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    @property
    def standing(self) -> Standing:
        """Whether this monitor acts, and who else."""
        return self._lease.standing()

    def run(self, stop: threading.Event) -> None:
        """Tick until told to stop."""
        self.keeper.run(stop)

    def _start(self) -> None:
        options, stack = self._options, self._stack
        host, port = parse_bind(options.bind)
        if options.token is None and not is_loopback(host):
            raise StartError(
                f"--bind {options.bind} is open to the network and no token is configured: "
                "anybody could register ranks; give --token-file FILE or bind 127.0.0.1"
            )
        _raise_file_limit()
        server = Server(host, port)
        stack.callback(server.close)
        store, lease = self._store_and_lease(server.url)
        self._lease = lease
        remembered = store.remembered()
        clock = SteadyClock()
        registry, quarantine = Registry(clock, store), Quarantine(clock, store, options.config)
        found = registry.restore(remembered.targets)
        self.rules = options.rules or standing(options.config)
        pause = PauseSwitch(clock, store)
        # launchers ask before the first tick as well
        quarantine.restore(remembered.quarantine, remembered.quarantine_events)
        targets_file = None if options.targets is None else TargetsFile(options.targets)
        if targets_file is not None:
            registry.follow(targets_file.changed() or ())
        tls = None if options.ca_file is None else trust(options.ca_file)
        fetcher = Fetcher(tls, permit=lease.why_not)
        stack.callback(fetcher.close)
        lighthouse = None if options.lighthouse is None else Lighthouse(options.lighthouse, fetcher)
        gatekeeper = self._gatekeeper(fetcher, clock, quarantine)
        schedulers = open_schedulers(
            options.schedulers,
            store,
            registry,
            lambda tls: Fetcher(tls, proxies=True, permit=lease.why_not),
            stack,
        )
        evictors = Evictors(
            clock=clock,
            fetcher=fetcher,
            registry=registry,
            quarantine=quarantine,
            lighthouse=lighthouse,
            token=options.token,
            record=store.save_eviction,
            patience=options.patience,
            permit=lease.why_not,
            durable=store.flush,
            paused=pause.why,
            gate=gatekeeper,
            schedulers=schedulers,
            told=[sink.name for sink in options.sinks],
        )
        stack.callback(evictors.close)
        instruments = Instruments()
        if gatekeeper is not None:
            gatekeeper.start(evictors.progress, remembered.evictions)
            stack.callback(gatekeeper.close)
            instruments.registry.register(GateCollector(gatekeeper))
        evidence = Evidence(
            clock=clock,
            fetcher=fetcher,
            token=options.token,
            shelf=Shelf(
                options.evidence or evidence_beside(store.place.path), keep_of(options.config)
            ),
            config=options.config,
            instruments=instruments,
            version=_version(),
        )
        stack.callback(evidence.close)
        pipeline = Pipeline(options.config, policy=self.rules.current.policy)

        def begin(held: Remembered, evictions: Sequence[EvictionProgress], last_tick: int) -> Deeds:
            office = self._office(store, lease, held, instruments, server.url)
            return Deeds(office, self._journal(pipeline, held, evictions, last_tick))

        followers = follow(schedulers, quarantine, self._may_change, instruments, stack)
        parts = Parts(
            config=options.config,
            clock=clock,
            registry=registry,
            poller=Poller(fetcher, options.token),
            lighthouse=lighthouse,
            judge=pipeline,
            store=store,
            quarantine=quarantine,
            evictors=evictors,
            instruments=instruments,
            targets_file=targets_file,
            vitals=VitalSigns((lambda: store.last_error, lease.lapse)),
            evidence=evidence,
            auditor=self._auditor(store, remembered, instruments, quarantine),
            lease=lease,
            begin=begin,
            rulebook=self.rules,
            pause=pause,
            gatekeeper=gatekeeper,
            schedulers=followers,
        )
        notes = (TOKENLESS,) if options.token is None else ()
        self.keeper = Keeper(parts, remembered, notes)
        stack.callback(self.keeper.close)
        self.keeper.take_part()
        if found or remembered.incidents or remembered.quarantine:
            log.info(
                "from the store: %d ranks, %d incidents (%d open), %d in quarantine",
                found,
                len(remembered.incidents),
                sum(incident.open for incident in remembered.incidents),
                len(remembered.quarantine),
            )
        instruments.registry.register(JournalCollector(lambda: self.keeper.journal_stats))
        instruments.registry.register(LeaseCollector(lease.standing))
        self.url = server.url
        server.start(create_app(self._desk(clock, parts, fetcher, store)))

    def _auditor(
        self, store: Store, remembered: Remembered, instruments: Instruments, quarantine: Quarantine
    ) -> Auditor:
        """Who keeps the books, and is told of every change of the quarantine."""
        options, log = self._options, None
        config = options.config
        if options.audit_log is not None:
            try:
                log = LogFile(options.audit_log, max_bytes=options.audit_log_bytes)
            except OSError as exc:
                why = exc.strerror or str(exc)
                raise StartError(f"cannot write --audit-log {options.audit_log}: {why}") from exc
            self._stack.callback(log.close)
        terms = Terms(
            gpus_per_rank=config.gpus_per_rank,
            job_timeout_s=config.job_timeout_s,
            horizon_s=config.straggler_horizon_s,
            follow_s=config.follow_s,
        )
        auditor = Auditor(store, instruments, terms, remembered, log)
        quarantine.told = auditor.quarantined
        self.rules.told = auditor.reloaded
        return auditor

    def _store_and_lease(self, url: str) -> tuple[Store, Lease]:
        """The store, read only until the lease lets this monitor write."""
        stack, options = self._stack, self._options
        store = Store(options.store)
        stack.callback(store.close)
        store.follow()
        lease = Lease(LeaseTable(store.database), me(), options.public_url or _for_people(url))
        stack.callback(lease.close)
        stack.callback(store.flush)
        lease.start()
        return store, lease

    def _journal(
        self,
        pipeline: Pipeline,
        held: Remembered,
        evictions: Sequence[EvictionProgress],
        last_tick: int,
    ) -> Journal | None:
        options = self._options
        if options.journal is None:
            return None
        rules = self.rules.applied
        head = Head(
            config=rules.config,
            version=_version(),
            incidents=held.incidents,
            evictions=tuple(evictions),
            policy=rules.policy,
            would=held_back(held.decisions),
        )
        shelf = JournalShelf(options.journal, options.limits)
        return Journal(shelf, head, pipeline.memory, after_tick=last_tick or None)

    def reload(self) -> None:
        """Read the policy file again; a bad one changes nothing and is told."""
        try:
            self.rules.reload(time.time(), "SIGHUP")
        except PolicyError as exc:
            for problem in exc.problems:
                log.error("the policy is not reloaded: %s", problem)  # noqa: TRY400

    def _may_change(self) -> bool:
        """Whether gate and schedulers may be told at this moment: not by a standby, nor in observe
        mode.
        """
        return not self.rules.current.config.observe and self._lease.why_not() is None

    def _gatekeeper(
        self, fetcher: Fetcher, clock: Clock, quarantine: Quarantine
    ) -> Gatekeeper | None:
        """Who keeps the gate taught; None where there is no gate."""
        url, token = self._options.gate, self._options.token
        if url is None:
            return None
        gate = Gate(url, fetcher, token)
        return Gatekeeper(gate, clock=clock, quarantine=quarantine, may=self._may_change)

    def _office(
        self,
        store: Store,
        lease: Lease,
        remembered: Remembered,
        instruments: Instruments,
        url: str,
    ) -> Office | None:
        """Who tells people; None when nobody is to be told."""
        options = self._options
        if not options.sinks:
            return None
        # the proxy and the authorities of the internet, not only those of the WorkerServers
        ca_file = options.ca_file
        if self._outside is None:
            tls = None if ca_file is None else trust_also(ca_file)
            self._outside = Fetcher(tls, proxies=True, permit=lease.why_not)
            self._stack.callback(self._outside.close)
        config = options.config
        terms = NotifyTerms(
            url=options.public_url or _for_people(url),
            hold_s=config.notify_hold_s,
            give_up_s=config.notify_give_up_s,
        )
        return Office(
            options.sinks,
            fetcher=self._outside,
            desk=store,
            instruments=instruments,
            terms=terms,
            remembered=remembered.notices,
        )

    def _desk(self, clock: Clock, parts: Parts, fetcher: Fetcher, store: Store) -> Desk:
        keeper = self.keeper
        version = _version()
        parts.instruments.registry.register(
            ViewCollector(lambda: keeper.view, lambda: store.errors, version)
        )
        return Desk(
            clock=clock,
            registry=parts.registry,
            quarantine=parts.quarantine,
            fetcher=fetcher,
            metrics=parts.instruments.registry,
            view=lambda: keeper.view,
            standing=None if parts.lease is None else parts.lease.standing,
            evict=keeper.evict_by_hand,
            tick_s=parts.config.tick_s,
            version=version,
            token=self._options.token,
            loopback=is_loopback(parse_bind(self._options.bind)[0]),
            open_reads=self._options.open_reads,
            review=keeper.review,
            journal=self._options.journal,
            bundle=_no_bundle if parts.evidence is None else parts.evidence.path,
            rules=self.rules,
            pause=parts.pause,
        )


def evidence_beside(store: Path | None) -> Path:
    """Where bundles lie when nobody says. Of two monitors on one store only the active one writes;
    a store that is no file has none beside it, but each monitor has a state folder.
    """
    return state_folder() / "monitor-evidence" if store is None else beside(store, "-evidence")


def journal_beside(store: Path | None) -> Path:
    """Where the journal lies when nobody says."""
    return state_folder() / "monitor.journal" if store is None else beside(store, ".journal")


def beside(store: Path, ending: str) -> Path:
    """Of the store's name, in its folder."""
    return store.with_name(f"{store.stem}{ending}")


def state_folder() -> Path:
    """Of this user."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "lightkeeper"


def _for_people(url: str) -> str:
    """Where the monitor is bound, but for an address that means every one of this host's."""
    host = urlsplit(url).hostname or ""
    every = host in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
    return url.replace(f"[{host}]", host).replace(host, socket.gethostname()) if every else url


def _no_bundle(_: IncidentId) -> Path | None:
    return None


def reach(url: str) -> str | None:
    """Why the Lighthouse cannot be reached right now; None when it can."""
    fetcher = Fetcher()
    try:
        view = Lighthouse(url, fetcher).look(2.0)
        return view.reason if isinstance(view, LighthouseAway) else None
    finally:
        fetcher.close()


def _raise_file_limit() -> None:
    """One connection a rank: as many files as the system lets us have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _version() -> str:
    try:
        return metadata.version("lightkeeper")
    except metadata.PackageNotFoundError:
        return "0+source"
