"""From what the command line says to drivers."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from monitor.fetch import Fetcher, trust_also
from monitor.schedulers.kube import KubeOptions, Kubernetes
from monitor.schedulers.kube_api import KubeApi, configured
from monitor.schedulers.protocol import Everyone, Owner, Place, Scheduler
from monitor.schedulers.slurm import Removal, Slurm
from monitor.schedulers.webhook import Webhook
from worker_server.wire import Identity

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


def place_of(identity: Identity) -> Place:
    """Where a rank is, as it registered."""
    return Place(identity.rank, identity.host, identity.place)


NewFetcher = Callable[[ssl.SSLContext | None], Fetcher]


def build(
    options: SchedulerOptions, everyone: Everyone, owner: Owner, fetcher: NewFetcher
) -> Sequence[Scheduler]:
    """The drivers, in the order in which they were named. Close each when done.

    Raises:
        KubeUnusableError: there is no client, or no cluster is configured.
        CaError: the file of authorities cannot be used.
    """
    return tuple(_drivers(options, everyone, owner, fetcher))


def _drivers(
    options: SchedulerOptions, everyone: Everyone, owner: Owner, fetcher: NewFetcher
) -> Iterator[Scheduler]:
    webhooks = 0
    for one in options.which:
        if one == SLURM:
            yield Slurm(everyone, owner, removal=options.removal)
        elif one == KUBERNETES:
            yield Kubernetes(KubeApi(configured(options.context)), everyone, owner, options.kube)
        else:
            webhooks += 1
            tls = None if options.ca_file is None else trust_also(options.ca_file)
            yield Webhook(
                one.removeprefix(WEBHOOK),
                (options.secret or "").encode(),
                fetcher(tls),
                everyone,
                owner,
                name="webhook" if webhooks == 1 else f"webhook-{webhooks}",
            )
