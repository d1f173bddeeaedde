"""One monitor process put together: opened in order, closed in reverse."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Final

from monitor.app import Desk, ServeError, Server, create_app, is_loopback, parse_bind
from monitor.fetch import CaError, Fetcher
from monitor.keeper import Keeper, Parts
from monitor.lease import Lease, LeaseTable, Standing, me
from monitor.metrics import Live, ViewCollector, upkeep
from monitor.policy.reading import PolicyError
from monitor.reports.incident_evidence import Stacks
from monitor.schedulers.kube_api import KubeUnusableError
from monitor.service.options import Options, StartError
from monitor.service.parts import PartsMaker
from monitor.service.surroundings import for_people, raise_file_limit, version
from monitor.store import Remembered, Store, StoreError
from monitor.targets import TargetsError

log = logging.getLogger(__package__)

_SCRAPE_WAITS_S: Final = 0.5
"""For the end of a tick: Prometheus gives a scrape seconds, and a tick comes each second."""
TOKENLESS: Final = (
    "no token is configured: WorkerServers will refuse to evict (and to be read, where they are "
    "bound to more than loopback), only the Lighthouse's kill is left, and quarantine and eviction "
    "by hand are off (start with --token-file FILE)"
)


class Service:
    """A running monitor. A context manager: everything is closed on the way out.

    Raises:
        StartError: something that the options name cannot be used.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._stack = ExitStack()
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

    def reload(self) -> None:
        """Read the policy file again; a bad one changes nothing and is told."""
        try:
            self.rules.reload(time.time(), "SIGHUP")
        except PolicyError as exc:
            for problem in exc.problems:
                log.error("the policy is not reloaded: %s", problem)  # noqa: TRY400

    # -- opening, in order --------------------------------------------------------------------

    def _start(self) -> None:
        options, stack = self._options, self._stack
        host, port = parse_bind(options.bind)
        if options.token is None and not is_loopback(host):
            raise StartError(
                f"--bind {options.bind} is open to the network and no token is configured: "
                "anybody could register ranks; give --token-file FILE or bind 127.0.0.1"
            )
        raise_file_limit()
        server = Server(host, port)
        stack.callback(server.close)
        self.url = server.url
        store, lease = self._store_and_lease()
        self._lease = lease
        remembered = store.remembered()
        making = PartsMaker(options, store, lease, url=self._for_people(), stack=stack)
        self.rules = making.rules
        parts = making.parts(remembered)
        self.keeper = Keeper(parts, remembered, (TOKENLESS,) if options.token is None else ())
        stack.callback(self.keeper.close)
        self.keeper.take_part()
        _say(len(parts.registry.targets()), remembered)
        self._collect(parts, server)
        desk = self._desk(parts, making.fetcher)
        parts.instruments.event_streams.set_function(desk.event_streams)
        stack.callback(desk.streams.close)  # first of all, so that no open page holds up the rest
        server.start(create_app(desk))

    def _store_and_lease(self) -> tuple[Store, Lease]:
        """The store, read only until the lease lets this monitor write."""
        stack, options = self._stack, self._options
        store = Store(options.store)
        stack.callback(store.close)
        store.follow()
        lease = Lease(LeaseTable(store.database), me(), self._for_people())
        stack.callback(lease.close)
        stack.callback(store.flush)
        lease.start()
        return store, lease

    def _for_people(self) -> str:
        return self._options.public_url or for_people(self.url)

    def _collect(self, parts: Parts, server: Server) -> None:
        """Let Prometheus see what is read when it asks."""
        keeper, store, made = self.keeper, parts.store, parts.instruments.registry
        made.register(Live(lambda: upkeep.journal(keeper.journal_stats)))
        made.register(Live(lambda: upkeep.lease(self._lease.standing())))
        bounds = self._options.bounds
        wait = partial(keeper.idle.wait, _SCRAPE_WAITS_S)
        made.register(
            ViewCollector(lambda: keeper.view, lambda: store.errors, version(), bounds, wait)
        )
        queues: dict[str, Callable[[], int]] = {
            "store": lambda: store.pending,
            "journal": lambda: keeper.journal_stats.waiting,
            "evictions": lambda: len(parts.evictors.active()),
            "http": lambda: server.waiting,
        }
        if parts.auditor is not None and self._options.audit_log is not None:
            auditor = parts.auditor
            queues["audit_log"] = lambda: auditor.lines_waiting
        made.register(Live(lambda: upkeep.waiting(queues, store.place.path)))

    def _desk(self, parts: Parts, fetcher: Fetcher) -> Desk:
        keeper = self.keeper
        return Desk(
            clock=parts.clock,
            registry=parts.registry,
            quarantine=parts.quarantine,
            fetcher=fetcher,
            metrics=parts.instruments.registry,
            view=lambda: keeper.view,
            standing=self._lease.standing,
            evict=keeper.evict_by_hand,
            tick_s=parts.config.tick_s,
            version=version(),
            token=self._options.token,
            loopback=is_loopback(parse_bind(self._options.bind)[0]),
            open_reads=self._options.open_reads,
            journal=self._options.journal,
            bundle=(lambda _: None) if parts.evidence is None else parts.evidence.path,
            stacks=(lambda _: Stacks()) if parts.evidence is None else parts.evidence.stacks.get,
            rules=self.rules,
            pause=parts.pause,
        )


def _say(found: int, remembered: Remembered) -> None:
    """What came from the store; `found`: ranks."""
    if found or remembered.incidents or remembered.quarantine:
        log.info(
            "from the store: %d ranks, %d incidents (%d open), %d in quarantine",
            found,
            len(remembered.incidents),
            sum(incident.open for incident in remembered.incidents),
            len(remembered.quarantine),
        )
