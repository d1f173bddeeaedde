"""Opens the schedulers of one monitor, and has them follow its quarantine list."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from monitor.metrics import Instruments
from monitor.quarantine import Quarantine
from monitor.schedulers.agreement import Wanted
from monitor.schedulers.build import NewFetcher, SchedulerOptions, build, place_of
from monitor.schedulers.follow import Followers
from monitor.schedulers.protocol import Scheduler
from monitor.store import Store, StoreError
from monitor.targets import Registry

OWNER_SWITCH: Final = "scheduler_owner"
"""Under which the store keeps the name that our marks on nodes bear."""


def open_schedulers(
    options: SchedulerOptions,
    store: Store,
    registry: Registry,
    fetcher: NewFetcher,
    stack: ExitStack,
) -> Sequence[Scheduler]:
    """The drivers, closed with the stack.

    Raises:
        KubeUnusableError: there is no client, or no cluster is configured.
        CaError: the file of authorities cannot be used.
    """
    name = options.name
    owner = StoredName(store) if name is None else (lambda: name)
    made = build(
        options,
        lambda: tuple(place_of(target.identity) for target in registry.targets()),
        owner,
        fetcher,
    )
    for one in made:
        stack.callback(one.close)
    return made


def follow(
    schedulers: Sequence[Scheduler],
    quarantine: Quarantine,
    may_act: Callable[[], bool],
    instruments: Instruments,
    stack: ExitStack,
) -> Followers | None:
    """Who makes the schedulers agree with the list, closed with the stack; None: no scheduler.

    A pause does not hold them: hosts are quarantined by hand as well.
    """
    if not schedulers:
        return None

    def listed() -> Sequence[Wanted]:
        return tuple(
            Wanted(one.host, one.reason, one.incident_id, one.since_s)
            for one in quarantine.active()
        )

    made = Followers(schedulers, listed, may_act, instruments)
    stack.callback(made.close)
    return made


class StoredName:
    """The name of the quarantine list that a store holds: read, or made up, when it is needed
    first, which is when this monitor acts. A monitor that stands by may not write.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._name: str | None = None

    def __call__(self) -> str:
        """The name.

        Raises:
            StoreError: it cannot be read, or not be written now; a name that no later monitor knows
                would leave nodes cordoned for ever.
        """
        with self._lock:
            if self._name is None:
                self._name = self._read() or self._made()
            return self._name

    def _made(self) -> str:
        self._store.save_switch(OWNER_SWITCH, secrets.token_hex(3))
        self._store.flush()
        name = self._read()
        if name is None:
            raise StoreError("the store does not keep the name of our marks yet")
        return name

    def _read(self) -> str | None:
        return self._store.remembered().switches.get(OWNER_SWITCH)
