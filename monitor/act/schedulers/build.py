"""Makes the drivers that the command line names."""

from __future__ import annotations

import secrets
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from monitor.act.http import Fetcher, trust_also
from monitor.act.schedulers.base import Everyone, Owner, Scheduler
from monitor.act.schedulers.kubernetes import KubeApi, KubeOptions, Kubernetes, configured
from monitor.act.schedulers.slurm import Removal, Slurm
from monitor.act.schedulers.webhook import WebhookScheduler
from monitor.store.place import StoreError
from monitor.store.store import Store

SLURM: Final = "slurm"
KUBERNETES: Final = "kubernetes"
WEBHOOK: Final = "webhook="
"""Its URL follows."""


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """Which schedulers there are, and what differs between clusters."""

    which: tuple[str, ...] = ()
    """`slurm`, `kubernetes`, `webhook=URL`."""
    name: str | None = None
    """Of this monitor's quarantine list on nodes; None: one that is made up and stored."""
    removal: Removal = Removal.CANCEL
    context: str | None = None
    kube: KubeOptions = field(default_factory=KubeOptions)
    secret: str | None = field(default=None, repr=False)
    """By which requests of webhooks are signed."""
    ca_file: Path | None = None
    """Authorities to trust for webhooks beside the system's."""


NewFetcher = Callable[[ssl.SSLContext | None], Fetcher]


def drivers(
    options: SchedulerOptions, everyone: Everyone, owner: Owner, fetcher: NewFetcher
) -> Iterator[Scheduler]:
    """In the order in which they were named. Close each when done.

    Raises:
        KubeUnusableError: there is no client, or no cluster is configured.
        CaError: the file of authorities cannot be used.
    """
    webhooks = 0
    for one in options.which:
        if one == SLURM:
            yield Slurm(everyone, owner, removal=options.removal)
        elif one == KUBERNETES:
            yield Kubernetes(KubeApi(configured(options.context)), everyone, owner, options.kube)
        else:
            webhooks += 1
            tls = None if options.ca_file is None else trust_also(options.ca_file)
            yield WebhookScheduler(
                one.removeprefix(WEBHOOK),
                (options.secret or "").encode(),
                fetcher(tls),
                everyone,
                owner,
                name="webhook" if webhooks == 1 else f"webhook-{webhooks}",
            )


OWNER_SWITCH: Final = "scheduler_owner"
"""Under which the store keeps the name that our marks on nodes bear."""


class StoredName:
    """The name of the quarantine list that a store holds: read, or made up, when it is needed
    first, which is when this monitor acts. A monitor that stands by may not write.
    """

    def __init__(self, store: Store, name: str | None = None) -> None:
        """`name`: what the command line calls it; None: what the store does."""
        self._store = store
        self._lock = threading.Lock()
        self._name = name

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
