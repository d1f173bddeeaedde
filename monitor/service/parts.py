"""Makes what the loop drives, each part from the options and the parts before it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from monitor.audit.logfile import LogFile
from monitor.clock import SteadyClock
from monitor.evictors import Evictors, Gatekeeper, gate_families
from monitor.evidence import Evidence, Shelf, keep_of
from monitor.fetch import Fetcher, trust
from monitor.gate.client import Gate
from monitor.keeper import Parts
from monitor.keeper.auditor import Auditor
from monitor.lease import Lease
from monitor.lighthouse import Lighthouse
from monitor.metrics import Instruments, Live
from monitor.pausing import PauseSwitch
from monitor.pipeline import Pipeline
from monitor.poller import Poller
from monitor.quarantine import Quarantine
from monitor.rulebook import standing
from monitor.schedulers.opening import follow, open_schedulers
from monitor.schedulers.protocol import Scheduler
from monitor.service.deeds import DeedsMaker
from monitor.service.folders import evidence_beside
from monitor.service.options import Options, StartError
from monitor.service.surroundings import version
from monitor.store import Remembered, Store
from monitor.targets import Registry, TargetsFile
from monitor.vitals import VitalSigns


class PartsMaker:
    """Used once.

    Args:
        options: what the command line said.
        store: read only until the lease lets this monitor write.
        lease: renews itself.
        url: of this monitor, as people reach it.
        stack: closes what is opened here, in reverse.

    Raises:
        CaError: the file of authorities cannot be used.
    """

    def __init__(
        self, options: Options, store: Store, lease: Lease, *, url: str, stack: ExitStack
    ) -> None:
        self._options = options
        self._store = store
        self._lease = lease
        self._url = url
        self._stack = stack
        self._clock = clock = SteadyClock()
        self._registry = Registry(clock, store)
        self._quarantine = Quarantine(clock, store, options.config)
        self._pause = PauseSwitch(clock, store)
        self._instruments = Instruments()
        self.rules = options.rules or standing(options.config)
        tls = None if options.ca_file is None else trust(options.ca_file)
        self.fetcher = Fetcher(tls, permit=lease.why_not)
        stack.callback(self.fetcher.close)
        self._lighthouse = (
            None if options.lighthouse is None else Lighthouse(options.lighthouse, self.fetcher)
        )

    def parts(self, remembered: Remembered) -> Parts:
        """All of them, with what the store holds; what runs in a thread has begun.

        Raises:
            TargetsError: the list of targets cannot be read.
            KubeUnusableError: Kubernetes cannot be asked so.
            StartError: the audit log cannot be written.
        """
        options, store, lease = self._options, self._store, self._lease
        targets_file = self._restore(remembered)
        gatekeeper = self._gatekeeper()
        schedulers = open_schedulers(
            options.schedulers,
            store,
            self._registry,
            lambda tls: Fetcher(tls, proxies=True, permit=lease.why_not),
            self._stack,
        )
        evictors = self._evictors(gatekeeper, schedulers)
        if gatekeeper is not None:
            gatekeeper.start(evictors.progress, remembered.evictions)
            self._stack.callback(gatekeeper.close)
            self._instruments.registry.register(Live(lambda: gate_families(gatekeeper)))
        evidence = self._evidence()
        pipeline = Pipeline(options.config, policy=self.rules.current.policy)
        return Parts(
            config=options.config,
            clock=self._clock,
            registry=self._registry,
            poller=Poller(self.fetcher, options.token),
            lighthouse=self._lighthouse,
            judge=pipeline,
            store=store,
            quarantine=self._quarantine,
            evictors=evictors,
            instruments=self._instruments,
            targets_file=targets_file,
            vitals=VitalSigns((lambda: store.last_error, lease.lapse)),
            evidence=evidence,
            schedulers=follow(
                schedulers, self._quarantine, self._may_change, self._instruments, self._stack
            ),
            auditor=self._auditor(remembered),
            lease=lease,
            begin=self._deeds(pipeline),
            rulebook=self.rules,
            pause=self._pause,
            gatekeeper=gatekeeper,
        )

    def _restore(self, remembered: Remembered) -> TargetsFile | None:
        """Who is polled, and who is quarantined: launchers ask before the first tick as well."""
        self._registry.restore(remembered.targets)
        self._quarantine.restore(remembered.quarantine, remembered.quarantine_events)
        path = self._options.targets
        listed = None if path is None else TargetsFile(path)
        if listed is not None:
            self._registry.follow(listed.changed() or ())
        return listed

    def _may_change(self) -> bool:
        """Whether gate and schedulers may be told at this moment: not by a standby, nor in observe
        mode.
        """
        return not self.rules.current.config.observe and self._lease.why_not() is None

    def _gatekeeper(self) -> Gatekeeper | None:
        """Who keeps the gate taught; None where there is no gate."""
        url, token = self._options.gate, self._options.token
        if url is None:
            return None
        gate = Gate(url, self.fetcher, token)
        quarantine, may = self._quarantine, self._may_change
        return Gatekeeper(gate, clock=self._clock, quarantine=quarantine, may=may)

    def _evictors(self, gatekeeper: Gatekeeper | None, schedulers: Sequence[Scheduler]) -> Evictors:
        options = self._options
        evictors = Evictors(
            clock=self._clock,
            fetcher=self.fetcher,
            registry=self._registry,
            quarantine=self._quarantine,
            lighthouse=self._lighthouse,
            token=options.token,
            record=self._store.save_eviction,
            patience=options.patience,
            permit=self._lease.why_not,
            durable=self._store.flush,
            paused=self._pause.why,
            gate=gatekeeper,
            schedulers=schedulers,
            told=[sink.name for sink in options.sinks],
        )
        self._stack.callback(evictors.close)
        return evictors

    def _evidence(self) -> Evidence:
        options = self._options
        folder = options.evidence or evidence_beside(self._store.place.path)
        evidence = Evidence(
            clock=self._clock,
            fetcher=self.fetcher,
            token=options.token,
            shelf=Shelf(folder, keep_of(options.config)),
            config=options.config,
            instruments=self._instruments,
            version=version(),
        )
        self._stack.callback(evidence.close)
        return evidence

    def _auditor(self, remembered: Remembered) -> Auditor:
        """Who keeps the books, and is told of every change of the quarantine."""
        options = self._options
        audit_log = None
        if options.audit_log is not None:
            try:
                audit_log = LogFile(options.audit_log, max_bytes=options.audit_log_bytes)
            except OSError as exc:
                why = exc.strerror or str(exc)
                raise StartError(f"cannot write --audit-log {options.audit_log}: {why}") from exc
            self._stack.callback(audit_log.close)
        auditor = Auditor(self._store, self._instruments, options.config, remembered, audit_log)
        self._quarantine.told = auditor.quarantined
        self.rules.told = auditor.reloaded
        return auditor

    def _deeds(self, pipeline: Pipeline) -> DeedsMaker:
        return DeedsMaker(
            options=self._options,
            store=self._store,
            lease=self._lease,
            instruments=self._instruments,
            pipeline=pipeline,
            rules=self.rules,
            url=self._url,
            stack=self._stack,
        )
