"""Makes the driver of each scheduler; a new driver is added here (`DRIVERS`, `drivers`)."""

from __future__ import annotations

import secrets
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lightkeeper.monitor.act.http import Fetcher, trust_also
from lightkeeper.monitor.act.schedulers.base import Everyone, Owner, Scheduler
from lightkeeper.monitor.act.schedulers.kubernetes import (
    KubeApi,
    KubeOptions,
    Kubernetes,
    configured,
)
from lightkeeper.monitor.act.schedulers.slurm import Removal, Slurm
from lightkeeper.monitor.act.schedulers.webhook import WebhookScheduler
from lightkeeper.monitor.store.place import StoreError
from lightkeeper.monitor.store.store import Store


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """Which schedulers there are, and what differs between clusters."""

    which: tuple[tuple[str, str], ...] = ()
    """The name of each driver, with its URL; empty for a driver that has none."""
    name: str | None = None
    """Name of this monitor's quarantine list on nodes; None: one is generated and stored."""
    removal: Removal = Removal.CANCEL
    context: str | None = None
    kube: KubeOptions = field(default_factory=KubeOptions)
    secret: str | None = field(default=None, repr=False)
    """Signs the requests of drivers at a URL, such as a webhook's."""
    ca_file: Path | None = None
    """Certificate authorities that drivers at a URL trust besides the system's."""


NewFetcher = Callable[[ssl.SSLContext | None], Fetcher]


DRIVERS: Final = ("slurm", "kubernetes", "webhook=URL")
"""As `--scheduler` takes them. One at a URL needs the secret, and https beyond this host."""


def drivers(
    options: SchedulerOptions, everyone: Everyone, owner: Owner, fetcher: NewFetcher
) -> Iterator[Scheduler]:
    """Make the drivers, in the order in which they were named. Close each when done.

    Raises:
        KubeUnusableError: there is no client, or no cluster is configured.
        CaError: the file of authorities cannot be used.
    """
    webhooks = 0
    for which, url in options.which:
        if which == "slurm":
            yield Slurm(everyone, owner, removal=options.removal)
        elif which == "kubernetes":
            api = KubeApi(configured(options.context))
            yield Kubernetes(api, everyone, owner, options.kube)
        elif which == "webhook":
            webhooks += 1
            name = "webhook" if webhooks == 1 else f"webhook-{webhooks}"
            tls = None if options.ca_file is None else trust_also(options.ca_file)
            secret = (options.secret or "").encode()
            yield WebhookScheduler(url, secret, fetcher(tls), everyone, owner, name=name)


OWNER_SWITCH: Final = "scheduler_owner"
"""The store's key for the name in our marks on nodes."""


class StoredName:
    """The name of our quarantine list, from the store. It is read, or generated, when it is first
    needed, which is when this monitor acts: a monitor that stands by may not write.
    """

    def __init__(self, store: Store, name: str | None = None) -> None:
        """`name`: the name on the command line; None: use the store's."""
        self._store = store
        self._lock = threading.Lock()
        self._name = name

    def __call__(self) -> str:
        """The name.

        Raises:
            StoreError: it cannot be read, or not be written now; a name that no later monitor knows
                would leave nodes cordoned forever.
        """
        with self._lock:
            self._name = self._name or self._read()
            if self._name is None:
                self._store.save_switch(OWNER_SWITCH, secrets.token_hex(3))
                self._store.flush()
                self._name = self._read()
            if self._name is None:
                raise StoreError("the store does not keep the name of our marks yet")
            return self._name

    def _read(self) -> str | None:
        return self._store.remembered().switches.get(OWNER_SWITCH)
