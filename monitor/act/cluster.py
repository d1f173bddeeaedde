"""What schedulers and Prometheus say of the fleet's hosts, looked up in the background.

Theory of operation. Each source has a thread of its own, so that one that hangs delays nobody, and
a look takes at most a tenth of its time. A testimony lives for three looks; a look that read
everything also removes what is no longer said. What held before the run began is context, since
conditions, annotations and drain reasons outlast a repair; only `leaving` keeps its weight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import Final

from msgspec.structs import replace

from lightkeeper.monitor.act.launches import Target
from lightkeeper.monitor.act.prometheus import Prometheus
from lightkeeper.monitor.act.schedulers.base import NotDone, Scheduler
from lightkeeper.monitor.act.targets import Registry
from lightkeeper.monitor.background import TROUBLE_AFTER, BackgroundWorker
from lightkeeper.monitor.clock import Clock
from lightkeeper.monitor.model.names import Host, one_line
from lightkeeper.worker_server.wire import TESTIMONIES_MOST, Testimony, Weight

TIMEOUT_S: Final = 20.0
"""A look may take this long: Kubernetes is asked for each node by name, 3 ms each."""
_LOOKS_KEPT: Final = 3
_SHARE: Final = 10.0
_MOST: Final = 64
"""Testimonies of one host in one look: a source may flood."""
_ORDER: Final = (Weight.BROKEN, Weight.LEAVING, Weight.ENDED, Weight.SLOW, Weight.CONTEXT)
_BY_NODE: Final = ("node", "slurm_node")


class HostNames:
    """Finds hosts by their names: full, or short where one of the two names is short."""

    def __init__(self, targets: Iterable[Target]) -> None:
        self.hosts: set[Host] = set()
        self._by_short: dict[str, dict[str, Host]] = {}
        for identity in (target.identity for target in targets):
            self.hosts.add(identity.host)
            for name in filter(None, (*map(identity.place.get, _BY_NODE), identity.host)):
                self._by_short.setdefault(_short(name), {})[name.lower()] = identity.host

    def find(self, name: str) -> Host | None:
        """None: it is no host's, or several have it."""
        full, short = name.lower(), _short(name)
        hosts = self._by_short.get(short, {})
        if full in hosts or full != short:
            return hosts.get(full) or hosts.get(short)
        return next(iter(hosts.values())) if len({*hosts.values()}) == 1 else None


def _short(name: str) -> str:
    """Up to the first dot; an address stays whole."""
    first, _, rest = name.lower().partition(".")
    return name.lower() if not rest or first.isdigit() else first


class ClusterSource:
    """Looks at one source, again and again. Close it when done."""

    def __init__(self, source: Scheduler | Prometheus, registry: Registry, clock: Clock) -> None:
        self._source = source
        self._registry = registry
        self._clock = clock
        self._looked: set[Host] = set()
        self._said: dict[tuple[Host, str, str], tuple[Testimony, float]] = {}
        """With the time of the look."""
        self._failures, self._failure = 0, ""
        self._every_s = source.every_s
        self.worker = BackgroundWorker(f"cluster {source.name}", self.look, every_s=source.every_s)

    def troubles(self) -> Iterator[str]:
        why = self.worker.crash or (self._failure if self._failures >= TROUBLE_AFTER else None)
        if why is not None:
            yield f"{self._source.name} cannot be read for what it says of hosts: {why}"

    def current(self, now_s: float) -> Iterator[tuple[Host, Testimony]]:
        """What holds now, with the ages of now."""
        for (host, _, _), (said, at_s) in self._said.items():
            if now_s - at_s <= _LOOKS_KEPT * self._every_s:
                yield host, said.later(max(0.0, now_s - at_s))

    def look(self) -> float:
        """Look once; returns the seconds until the next look."""
        names, now_s = HostNames(self._registry.targets()), self._clock.now_s()
        said, many, failure = dict[tuple[Host, str, str], Testimony](), Counter[Host](), ""
        try:
            if names.hosts:
                for called, testimony in self._source.testimonies(names.hosts, TIMEOUT_S):
                    host = next(filter(None, map(names.find, called)), None)
                    if host is not None and many[host] < _MOST:
                        many[host] += 1
                        said.setdefault((host, testimony.code, testimony.device), testimony)
        except NotDone as exc:
            failure = one_line(exc)
        self._failures, self._failure = (self._failures + 1 if failure else 0), failure
        first_s = now_s - _LOOKS_KEPT * self._every_s if failure else now_s
        kept = {key: row for key, row in self._said.items()
                if row[1] >= first_s and key[0] in names.hosts}  # fmt: skip
        fresh = {key: (self._dated(key, row, now_s), now_s) for key, row in said.items()}
        self._said = kept | fresh
        self._looked = self._looked & names.hosts if failure else names.hosts
        self._every_s = max(self._source.every_s, _SHARE * (self._clock.now_s() - now_s))
        return self._every_s

    def _dated(self, key: tuple[Host, str, str], said: Testimony, now_s: float) -> Testimony:
        """The testimony, and since when it holds, as far as known; as context if it is older than
        the run. What stands without a date at a host's first look is taken to be older.
        """
        began_s = now_s - self._registry.run_age_s()
        since_s = now_s - said.for_s
        if said.for_s == 0.0 or not isfinite(since_s):
            older = said.for_s > 0.0 and key[0] not in self._looked
            since_s = min(now_s, began_s - 1.0) if older else now_s
            if key in self._said:
                before, at_s = self._said[key]
                since_s = at_s - before.for_s
        old = since_s < began_s and said.weight is not Weight.LEAVING
        weight = Weight.CONTEXT if old else said.weight
        return replace(said, weight=weight, for_s=min(max(0.0, now_s - since_s), 1e9))


class Cluster:
    """All sources together. Close it when done."""

    def __init__(
        self, sources: Iterable[Scheduler | Prometheus], registry: Registry, clock: Clock
    ) -> None:
        self._sources = [ClusterSource(source, registry, clock) for source in sources]
        for each in self._sources:
            each.worker.start()

    def close(self) -> None:
        for source in self._sources:
            source.worker.close()

    def troubles(self) -> Iterator[str]:
        for source in self._sources:
            yield from source.troubles()

    def current(self, now_s: float) -> Mapping[Host, tuple[Testimony, ...]]:
        """The weightiest, then the latest of each host."""
        of: dict[Host, list[Testimony]] = {}
        for source in self._sources:
            for host, said in source.current(now_s):
                of.setdefault(host, []).append(said)
        for said_of in of.values():
            said_of.sort(key=lambda said: (_ORDER.index(said.weight), said.for_s, said.code))
        return {host: tuple(of[host][:TESTIMONIES_MOST]) for host in sorted(of)}
