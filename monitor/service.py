"""Puts one monitor process together: opens its parts in order, closes them in reverse."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry

from lightkeeper.monitor.act.bundles import BundleDir
from lightkeeper.monitor.act.cluster import Cluster
from lightkeeper.monitor.act.ends import Ends
from lightkeeper.monitor.act.evictor import Evictors, Parties
from lightkeeper.monitor.act.evidence import Evidence
from lightkeeper.monitor.act.gate import Gatekeeper
from lightkeeper.monitor.act.http import CaError, Fetcher, Tokens, trust_also, trust_only
from lightkeeper.monitor.act.lighthouse import Lighthouse
from lightkeeper.monitor.act.notices import Sink
from lightkeeper.monitor.act.notify import Notifier
from lightkeeper.monitor.act.poller import Poller
from lightkeeper.monitor.act.prometheus import Prometheus
from lightkeeper.monitor.act.quarantine import PauseSwitch, Quarantine
from lightkeeper.monitor.act.release import Releaser
from lightkeeper.monitor.act.schedulers.base import Place
from lightkeeper.monitor.act.schedulers.build import SchedulerOptions, StoredName, drivers
from lightkeeper.monitor.act.schedulers.kubernetes import KubeUnusableError
from lightkeeper.monitor.act.schedulers.reconcile import CordonReconciler
from lightkeeper.monitor.act.targets import Registry
from lightkeeper.monitor.act.work import WorkBook
from lightkeeper.monitor.background import BackgroundWorker
from lightkeeper.monitor.clock import Clock
from lightkeeper.monitor.decide.escalation import handle
from lightkeeper.monitor.decide.pipeline import Pipeline
from lightkeeper.monitor.decide.rules import PolicyError
from lightkeeper.monitor.journal.entries import Head
from lightkeeper.monitor.journal.writer import Journal, JournalDir, Limits
from lightkeeper.monitor.loop.components import Components, LeaderComponents, VitalSigns
from lightkeeper.monitor.loop.loop import Keeper
from lightkeeper.monitor.metric import Filled, new_page
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.escalation import Timeouts
from lightkeeper.monitor.model.eviction import Eviction, Remembered
from lightkeeper.monitor.model.names import GroupName
from lightkeeper.monitor.model.observation import LighthouseAway
from lightkeeper.monitor.rulebook import Rulebook, standing
from lightkeeper.monitor.show import metrics as page_metrics
from lightkeeper.monitor.show.metrics import Bounds, ViewCollector
from lightkeeper.monitor.show.web.answers import AppContext
from lightkeeper.monitor.show.web.server import (
    FEW_FILES,
    ServeError,
    Server,
    create_app,
    is_here,
    is_loopback,
    parse_bind,
)
from lightkeeper.monitor.show.web.stacks import StacksReader
from lightkeeper.monitor.store.lease import Lease, LeaseStanding, process_name
from lightkeeper.monitor.store.place import StoreError, StorePlace
from lightkeeper.monitor.store.store import Store
from lightkeeper.worker_server import home
from lightkeeper.worker_server.http_server import file_limit

if TYPE_CHECKING:  # it is an extra
    from lightkeeper.monitor.act.otlp import Telemetry

# -- folders -----------------------------------------------------------------------------------


def beside(store: Path | None, ending: str) -> Path:
    """The default folder of the journal or of evidence bundles: beside the store and named after
    it, or in the state folder if the store is not a file. Of two monitors on one store, only the
    active one writes.
    """
    if store is None:
        return home.state_folder(os.environ) / f"monitor{ending}"
    return store.with_name(f"{store.stem}{ending}")


# -- options -----------------------------------------------------------------------------------


class StartError(Exception):
    """The monitor cannot start; the message is one line for a person."""


@dataclass(frozen=True, slots=True)
class Options:
    config: KeeperConfig
    bind: str
    store: Path | str | StorePlace
    """A SQLite file, or a database by URL."""
    lighthouse: str | None = None
    token: str | None = field(default=None, repr=False)
    group_tokens: Mapping[GroupName, str] = field(default_factory=dict, repr=False)
    ca_file: Path | None = None
    """Authorities to trust for https; None: the system's."""
    open_reads: bool = False
    """True if ranks may be read through the monitor without the token on any address."""
    closed_reads: bool = False
    """True if reading needs the token even on loopback."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    evidence: Path | None = None
    """Folder of the evidence bundles; None: beside the store."""
    sinks: tuple[Sink, ...] = ()
    """Where notifications go."""
    public_url: str | None = None
    """This monitor's URL, as people reach it; None: the address it is bound to."""
    journal: Path | None = None
    """Folder of the journal; None: none is kept."""
    limits: Limits = field(default_factory=Limits)
    """Limits of the journal."""
    schedulers: SchedulerOptions = field(default_factory=SchedulerOptions)
    """Schedulers that get the quarantined hosts."""
    rules: Rulebook | None = None
    """The policy, with `config` as its configuration; None: there is no file to reload."""
    bounds: Bounds = field(default_factory=Bounds)
    """Limits on the series of `/metrics`."""
    gate: str | None = None
    """Admin port of the gate in front of the Lighthouse; None: there is none."""
    prometheus: str | None = None
    """URL of a Prometheus that is asked what it knows of hosts; None: none is."""
    prometheus_auth: str | None = field(default=None, repr=False)
    """The Authorization header for it."""
    otlp: frozenset[str] = frozenset()
    """What is sent by OTLP: `traces`, `logs`."""

    @property
    def tokens(self) -> Tokens:
        return Tokens(self.token, self.group_tokens)


# -- surroundings ------------------------------------------------------------------------------


def for_people(url: str) -> str:
    """The URL with this host's name in place of a wildcard address."""
    host = urlsplit(url).hostname or ""
    every = host in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
    return url.replace(f"[{host}]", host).replace(host, socket.gethostname()) if every else url


def reach(url: str) -> str | None:
    """Why the Lighthouse cannot be reached right now; None when it can."""
    fetcher = Fetcher()
    try:
        view = Lighthouse(url, fetcher).look(2.0)
        return view.reason if isinstance(view, LighthouseAway) else None
    finally:
        fetcher.close()


def keep_to_one_arena() -> None:
    """Use one malloc arena for all threads: under the GIL they rarely allocate at once, and an
    arena for each thread stays at its peak size forever (60 of 414 MiB at 10,000 ranks).
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def use_large_pages() -> None:
    """Use pages of 2 MiB where the kernel leaves that to the process: at 10,000 ranks a tick
    touches most of 300 MiB, and with pages of 4 KiB a tenth of the monitor's time went to page
    lookups (docs/scale.md).
    """
    with contextlib.suppress(OSError, AttributeError):  # another system
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for start, size in _heap(Path("/proc/self/maps").read_text()):
            advise(start, size, _MADV_HUGEPAGE)  # future pages
            advise(start, size, _MADV_COLLAPSE)  # present ones; slower before Linux 6.1


def _heap(maps: str) -> Iterator[tuple[int, int]]:
    """Start and size of heap mappings, in whole large pages; stacks have a guard page below."""
    below, guarded = 0, False
    for line in maps.splitlines():
        span, rights, _, _, _, *name = line.split()
        start, stop = (int(address, 16) for address in span.split("-"))
        first, last = -(-start // _LARGE_PAGE), stop // _LARGE_PAGE
        stack = guarded and start == below
        if rights == "rw-p" and name in ([], ["[heap]"]) and not stack and first < last:
            yield first * _LARGE_PAGE, (last - first) * _LARGE_PAGE
        below, guarded = stop, rights == "---p"


def version() -> str:
    try:
        return metadata.version("lightkeeper")
    except metadata.PackageNotFoundError:
        return "0+source"


# -- service -----------------------------------------------------------------------------------

log = logging.getLogger(__package__)

_SCRAPE_WAITS_S: Final = 0.5
"""How long a scrape waits for a tick to end: Prometheus allows seconds, ticks are 1 s apart."""
_M_ARENA_MAX: Final = -8  # malloc.h
_MADV_HUGEPAGE: Final = 14  # mman.h
_MADV_COLLAPSE: Final = 25
_LARGE_PAGE: Final = 2 << 20
_LARGE_PAGES_EVERY_S: Final = 20.0
"""One pass takes 2 to 20 ms; a starting fleet grows the heap within a minute."""
_LASTING: Final = ("fetch", "http", "lease", "store")
"""Threads that live as long as the monitor; those that need an active monitor come and go."""
TOKENLESS: Final = (
    "no token is configured: WorkerServers will refuse to evict (and to be read, where they are "
    "bound to more than loopback), only the Lighthouse's kill is left, and quarantine and eviction "
    "by hand are off (start without --no-token)"
)


class Service:
    """A running monitor. A context manager: everything is closed on the way out.

    Raises:
        StartError: something that the options name cannot be used.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._stack = ExitStack()
        self._lasting: list[threading.Thread] = []
        self._open()

    def _open(self) -> None:
        try:
            self._start()
        except (ServeError, StoreError, CaError, KubeUnusableError) as exc:
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
    def standing(self) -> LeaseStanding:
        return self._lease.standing()

    def run(self, stop: threading.Event) -> None:
        """Keep until `stop` is set; each time the host's clock is set, start again by it.

        Raises:
            StartError: something cannot be used any more.
        """
        self.keeper.run(stop)
        while not stop.is_set():
            if self._store.flush():
                self._start_again()
            self.keeper.run(stop)

    def _start_again(self) -> None:
        """As after a restart: all ages that were in memory counted from the clock before."""
        set_by_s = time.time() - self._clock.now_s()
        log.warning("the clock was set by %+.0f s: this monitor starts again", set_by_s)
        config, bind = self.rules.applied.config, self.url.removeprefix("http://")
        self._options, self._lasting = replace(self._options, config=config, bind=bind), []
        self._stack.close()
        self._stack = ExitStack()
        self._open()

    def ended(self) -> str | None:
        """The first thread that has ended though it should live as long as the monitor."""
        dead = (thread.name for thread in self._lasting if not thread.is_alive())
        return next((f"the thread {name!r}" for name in dead), None)

    def reload(self) -> None:
        """Read the policy file again; a bad one changes nothing and is logged."""
        with contextlib.suppress(PolicyError):
            self.rules.reload(time.time(), "SIGHUP")

    # -- opening, in order --------------------------------------------------------------------

    def _start(self) -> None:
        options, stack = self._options, self._stack
        host, port = parse_bind(options.bind)
        if options.token is None and not is_loopback(host):
            raise StartError(
                f"--bind {options.bind} is open to the network and no token is configured: "
                "anybody could register ranks; give --token-file FILE or bind 127.0.0.1"
            )
        if options.closed_reads and (options.token is None or options.open_reads):
            raise StartError("--closed-reads needs --token-file FILE, and no --open-reads")
        if options.group_tokens and options.token in (None, *options.group_tokens.values()):
            raise StartError("--group-tokens needs --token-file FILE, with another token in it")
        if (files := file_limit(sys.maxsize)) < FEW_FILES:
            log.warning("this process may open %d files only, which is enough for some %d hosts: "
                        "raise the limit (ulimit -Hn)", files, files // 3)  # fmt: skip
        keep_to_one_arena()
        pages = BackgroundWorker("pages", use_large_pages, every_s=_LARGE_PAGES_EVERY_S)
        pages.start()
        stack.callback(pages.close)
        server = stack.enter_context(closing(Server(host, port)))
        self.url = server.url
        self._clock = Clock()
        store, lease = self._store, self._lease = self._store_and_lease()
        tls = None if options.ca_file is None else trust_only(options.ca_file)
        fetcher = Fetcher(tls, permit=lease.why_not, tokens=options.tokens)
        stack.callback(fetcher.close)
        remembered = store.remembered()
        components = self._build(fetcher, remembered)
        self.keeper = Keeper(components, tokenless=options.token is None)
        stack.callback(self.keeper.close)
        self.keeper.take_part()
        ranks = len(components.registry.targets())
        if ranks or remembered.incidents or remembered.quarantine:
            log.info(
                "from the store: %d ranks, %d incidents (%d open), %d in quarantine",
                ranks,
                len(remembered.incidents),
                sum(incident.open for incident in remembered.incidents),
                len(remembered.quarantine),
            )
        self._collect(components, server)
        context = self._app_context(components, fetcher, server)
        server.start(create_app(context))
        self._lasting = [thread for thread in threading.enumerate() if thread.name in _LASTING]

    def _build(self, fetcher: Fetcher, remembered: Remembered) -> Components:
        """Make the parts of the loop, fill them from the store, and start their threads.

        `fetcher`: for all but messages to people and webhooks of schedulers.

        Raises:
            CaError: the CA file cannot be used.
            KubeUnusableError: Kubernetes cannot be used with these options.
        """
        options, clock, stack = self._options, self._clock, self._stack
        store, lease, metrics = self._store, self._lease, new_page()
        self.rules = rules = options.rules or standing(options.config)
        pause, work = PauseSwitch(clock, store), WorkBook(clock, store)

        # targets and quarantine: launchers ask for them even before the first tick
        registry, quarantine = Registry(clock, store), Quarantine(clock, store, options.config)
        registry.restore(remembered.targets, next(iter(remembered.runs), None))
        quarantine.take_over(remembered.quarantine, remembered.quarantine_events)

        def may_change() -> bool:
            """True if gate and schedulers may be changed: not on standby, nor in observe mode."""
            return not rules.current.config.observe and lease.why_not() is None

        def places() -> tuple[Place, ...]:
            targets = registry.targets()
            return tuple(Place(t.rank, t.identity.host, t.identity.place) for t in targets)

        lighthouse = None if options.lighthouse is None else Lighthouse(options.lighthouse, fetcher)
        gatekeeper = None
        if options.gate is not None:
            gatekeeper = Gatekeeper(
                options.gate, fetcher, clock=clock, quarantine=quarantine, may=may_change
            )
        owner = StoredName(store, options.schedulers.name)
        new_fetcher = partial(Fetcher, proxies=True, permit=lease.why_not)
        schedulers = tuple(
            stack.enter_context(closing(scheduler))
            for scheduler in drivers(options.schedulers, places, owner, new_fetcher)
        )
        parties = Parties(
            clock=clock,
            fetcher=fetcher,
            registry=registry,
            quarantine=quarantine,
            lighthouse=lighthouse,
            gate=gatekeeper,
            schedulers=schedulers,
            timeouts=options.timeouts,
        )
        evictors = Evictors(
            parties,
            handle=handle,
            record=store.save_decision,
            permit=lease.why_not,
            durable=store.flush,
            paused=pause.why,
            sinks=[sink.name for sink in options.sinks],
        )
        stack.callback(evictors.close)
        if gatekeeper is not None:
            keeper = gatekeeper
            keeper.start(evictors.log.progress, remembered.evictions)
            stack.callback(keeper.close)
            metrics.register(Filled(page_metrics.GATE_METRICS, lambda: keeper))
        folder = options.evidence or beside(store.place.path, "-evidence")
        bundles = BundleDir(folder, options.config)
        evidence = Evidence(
            clock=clock,
            fetcher=fetcher,
            bundles=bundles,
            config=options.config,
            metrics=metrics,
            version=version(),
        )
        stack.callback(evidence.close)
        # a pause does not stop the reconcilers: people quarantine hosts by hand, too
        reconcilers = tuple(
            stack.enter_context(
                closing(CordonReconciler(each, quarantine.active, may_change, metrics))
            )
            for each in schedulers
        )
        cluster = Cluster((*schedulers, *self._prometheus(registry)), registry, clock)
        stack.callback(cluster.close)
        ends = stack.enter_context(closing(Ends(schedulers, clock)))
        telemetry = self._telemetry(metrics) if options.otlp else None
        self._to_people = None
        if options.sinks:
            self._to_people = self._open_fetcher(proxies=True, permit=lease.silenced)
        return Components(
            config=options.config,
            clock=clock,
            registry=registry,
            poller=Poller(fetcher),
            lighthouse=lighthouse,
            judge=Pipeline(options.config, policy=rules.current.policy),
            store=store,
            quarantine=quarantine,
            evictors=evictors,
            releaser=Releaser(fetcher, clock),
            metrics=metrics,
            evidence=evidence,
            rulebook=rules,
            pause=pause,
            work=work,
            vitals=VitalSigns((lambda: store.last_error, lease.lapse)),
            lease=lease,
            begin=self._begin,
            gatekeeper=gatekeeper,
            schedulers=reconcilers,
            cluster=cluster,
            ends=ends,
            telemetry=telemetry,
        )

    def _telemetry(self, metrics: CollectorRegistry) -> Telemetry | None:
        """None: it cannot be had. Variables of others' end no monitor."""
        try:
            from lightkeeper.monitor.act.otlp import Telemetry  # noqa: PLC0415 - an extra

            about_us = {"service.name": "lightkeeper", "service.version": version(),
                        "service.instance.id": self._for_people()}  # fmt: skip
            telemetry = Telemetry(self._options.otlp, about_us, metrics)
        except Exception as exc:  # noqa: BLE001 - of a package that only exports
            mend = "pip install 'lightkeeper[otlp]'" if isinstance(exc, ImportError) else "OTEL_*"
            log.warning("nothing is sent by OTLP: %s (%s)", exc, mend)
            return None
        self._stack.callback(telemetry.close)
        return telemetry

    def _open_fetcher(self, *, proxies: bool, permit: Callable[[], str | None]) -> Fetcher:
        """Open what asks others than ours: it trusts public authorities besides those given."""
        ca_file = self._options.ca_file
        tls = None if ca_file is None else trust_also(ca_file)
        fetcher = Fetcher(tls, proxies=proxies, permit=permit)
        self._stack.callback(fetcher.close)
        return fetcher

    def _prometheus(self, registry: Registry) -> Iterator[Prometheus]:
        if (url := self._options.prometheus) is not None:
            rules, auth = self.rules, self._options.prometheus_auth
            fetcher = self._open_fetcher(proxies=False, permit=lambda: None)
            yield Prometheus(
                url, fetcher, lambda: rules.current.policy.queries, registry.run_age_s, auth
            )

    def _begin(
        self,
        components: Components,
        remembered: Remembered,
        evictions: Sequence[Eviction],
        last_tick: int,
    ) -> LeaderComponents:
        """Make what only the active monitor has; its fetcher outlives a handover."""
        options, applied = self._options, self.rules.applied
        notifier = journal = None
        if self._to_people is not None:
            notifier = Notifier(
                options.sinks,
                fetcher=self._to_people,
                store=components.store,
                metrics=components.metrics,
                config=options.config,
                url=self._for_people(),
                remembered=remembered.notices,
                sent=components.work.sent,
            )
        if options.journal is not None:
            head = Head(
                config=applied.config,
                version=version(),
                incidents=remembered.incidents,
                evictions=tuple(evictions),
                policy=applied.policy,
            )
            journal_dir = JournalDir(options.journal, options.limits)
            memory = components.judge.memory
            journal = Journal(journal_dir, head, memory, after_tick=last_tick or None)
        return LeaderComponents(notifier, journal)

    def _store_and_lease(self) -> tuple[Store, Lease]:
        """The store, read only until the lease lets this monitor write."""
        stack, options = self._stack, self._options
        store = stack.enter_context(closing(Store(options.store)))
        store.follow()
        lease = Lease(store.database.lease, process_name(), self._for_people())
        stack.callback(lease.close)
        stack.callback(store.flush)
        lease.start()
        return store, lease

    def _for_people(self) -> str:
        return self._options.public_url or for_people(self.url)

    def _collect(self, components: Components, server: Server) -> None:
        """Register the metrics that are read at each scrape."""
        keeper, store, registry = self.keeper, components.store, components.metrics
        registry.register(Filled((page_metrics.BUILD,), version))
        registry.register(Filled(page_metrics.STORE, lambda: store))
        registry.register(Filled(page_metrics.JOURNAL, lambda: keeper.journal_stats))
        registry.register(Filled((page_metrics.REFUSED,), lambda: components.registry.refused))
        registry.register(Filled(page_metrics.LEASE, self._lease.standing))
        bounds = self._options.bounds
        wait = partial(keeper.idle.wait, _SCRAPE_WAITS_S)
        registry.register(ViewCollector(lambda: keeper.view, bounds, wait, self._for_people))
        queues: dict[str, Callable[[], int]] = {
            "store": lambda: store.pending,
            "journal": lambda: keeper.journal_stats.waiting,
            "http": lambda: server.waiting,
        }
        if components.lighthouse is not None:
            queues["evictions"] = lambda: len(components.evictors.active())
        registry.register(Filled((page_metrics.QUEUES,), lambda: queues))

    def _app_context(self, components: Components, fetcher: Fetcher, server: Server) -> AppContext:
        keeper, store = self.keeper, components.store
        bound_here = is_loopback(parse_bind(self._options.bind)[0])
        return AppContext(
            clock=components.clock,
            registry=components.registry,
            quarantine=components.quarantine,
            fetcher=fetcher,
            metrics=components.metrics,
            view=lambda: keeper.view,
            standing=self._lease.standing,
            unsaved=lambda: store.last_error,
            evict=keeper.evict_by_hand,
            work=keeper.work,
            tick_s=components.config.tick_s,
            version=version(),
            bound_here=bound_here,
            names=(urlsplit(self._options.public_url or "").hostname or "",),
            loopback=bound_here and not self._options.closed_reads,
            open_reads=self._options.open_reads,
            journal=self._options.journal,
            bundle=components.evidence.bundles.path,
            stacks=StacksReader(components.evidence.bundles).get,
            is_own=partial(is_here, port=server.port),
            ended=self.ended,
            rules=self.rules,
            pause=components.pause,
        )
