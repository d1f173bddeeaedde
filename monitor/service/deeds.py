"""Makes what only the monitor has that acts: who tells people, and the journal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from monitor.fetch import Fetcher, trust_also
from monitor.journal.entries import Head
from monitor.journal.shelf import Shelf
from monitor.journal.writer import Journal
from monitor.keeper import Deeds
from monitor.keeper.observed import held_back
from monitor.lease import Lease
from monitor.metrics import Instruments
from monitor.notify import Office
from monitor.pipeline import Pipeline
from monitor.rulebook import Rulebook
from monitor.service.options import Options
from monitor.service.surroundings import version
from monitor.snapshot import EvictionProgress
from monitor.store import Remembered, Store


@dataclass(slots=True, kw_only=True)
class DeedsMaker:
    """Called at each handover to this monitor."""

    options: Options
    store: Store
    lease: Lease
    instruments: Instruments
    pipeline: Pipeline
    rules: Rulebook
    url: str
    """Of this monitor, as people reach it."""
    stack: ExitStack
    """Closes what outlives a handover."""
    _outside: Fetcher | None = None
    """For messages to people."""

    def __call__(
        self, held: Remembered, evictions: Sequence[EvictionProgress], last_tick: int
    ) -> Deeds:
        """From what the store held, the evictions of the last hour, the number of the last tick."""
        return Deeds(self._office(held), self._journal(held, evictions, last_tick))

    def _office(self, held: Remembered) -> Office | None:
        """Who tells people; None when nobody is to be told."""
        options = self.options
        if not options.sinks:
            return None
        return Office(
            options.sinks,
            fetcher=self._to_people(),
            desk=self.store,
            instruments=self.instruments,
            config=options.config,
            url=self.url,
            remembered=held.notices,
        )

    def _to_people(self) -> Fetcher:
        """By the proxy and the authorities of the internet, not only those of the WorkerServers."""
        if self._outside is None:
            ca_file = self.options.ca_file
            tls = None if ca_file is None else trust_also(ca_file)
            self._outside = Fetcher(tls, proxies=True, permit=self.lease.why_not)
            self.stack.callback(self._outside.close)
        return self._outside

    def _journal(
        self, held: Remembered, evictions: Sequence[EvictionProgress], last_tick: int
    ) -> Journal | None:
        options = self.options
        if options.journal is None:
            return None
        rules = self.rules.applied
        head = Head(
            config=rules.config,
            version=version(),
            incidents=held.incidents,
            evictions=tuple(evictions),
            policy=rules.policy,
            would=held_back(held.decisions),
        )
        shelf = Shelf(options.journal, options.limits)
        return Journal(shelf, head, self.pipeline.memory, after_tick=last_tick or None)
