"""Opens the schedulers of one monitor, and has them follow its quarantine list."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Final

from monitor.metrics import Instruments
from monitor.quarantine import Quarantine
from monitor.schedulers.agreement import Wanted
from monitor.schedulers.build import NewFetcher, SchedulerOptions, build, place_of
from monitor.schedulers.follow import Followers
from monitor.schedulers.protocol import Scheduler
from monitor.store import Store
from monitor.targets import Registry

OWNER_SWITCH: Final = "scheduler_owner"
"""Under which the store keeps the name that our marks on nodes bear."""


def open_schedulers(
    options: SchedulerOptions, store: Store, registry: Registry, fetcher: NewFetcher
) -> Sequence[Scheduler]:
    """The drivers. Close each when done.

    Raises:
        KubeUnusableError: there is no client, or no cluster is configured.
        CaError: the file of authorities cannot be used.
    """
    name = options.name
    owner = StoredName(store) if name is None else (lambda: name)
    return build(
        options,
        lambda: tuple(place_of(target.identity) for target in registry.targets()),
        owner,
        fetcher,
    )


def follow(
    schedulers: Sequence[Scheduler],
    quarantine: Quarantine,
    may_act: Callable[[], bool],
    instruments: Instruments,
) -> Followers | None:
    """Who makes the schedulers agree with the list; None where there is none. Close it when done.

    A pause does not hold them: hosts are quarantined by hand as well.
    """
    if not schedulers:
        return None

    def listed() -> Sequence[Wanted]:
        return tuple(
            Wanted(one.host, one.reason, one.incident_id, one.since_s)
            for one in quarantine.active()
        )

    return Followers(schedulers, listed, may_act, instruments)


class StoredName:
    """The name of the quarantine list that a store holds: read, or made up, when it is needed
    first, which is when this monitor acts. A monitor that stands by may not write.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._name: str | None = None

    def __call__(self) -> str:
        """The name."""
        with self._lock:
            if self._name is None:
                self._name = self._store.remembered().switches.get(OWNER_SWITCH)
            if self._name is None:
                self._name = secrets.token_hex(3)
                self._store.save_switch(OWNER_SWITCH, self._name)
                self._store.flush()
            return self._name
