"""`lightkeeper check scheduler`, and the options that say which schedulers there are."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from monitor.act.http import CaError, Fetcher
from monitor.act.schedulers.base import Place, Scheduler, owner_name
from monitor.act.schedulers.build import DRIVERS, SchedulerOptions, driver_of, drivers
from monitor.act.schedulers.kubernetes import DNS, KubeOptions, KubeUnusableError
from monitor.act.schedulers.slurm import Removal
from monitor.commands.command import (
    DONE,
    FAILED,
    FILE,
    CommandError,
    as_json,
    command,
    gathered,
    option,
)
from monitor.commands.options import read_secret, web_url
from monitor.commands.printing import show_checks
from monitor.model.names import Host, RankName
from monitor.show.server import is_loopback

_ENV: Final = "LIGHTKEEPER_"
_SECRET: Final = "LIGHTKEEPER_SCHEDULER_WEBHOOK_SECRET"  # noqa: S105 - a variable's name
_TIMEOUT_S: Final = 15.0
_GRACE_MOST_S: Final = 3600


def schedulers_of(
    *, scheduler: tuple[str, ...], scheduler_name: str | None,
    scheduler_webhook_secret_file: Path | None, scheduler_ca_file: Path | None, slurm_removal: str,
    kube_context: str | None, kube_grace: str, kube_force: bool, primus_safe: str | None,
) -> SchedulerOptions:  # fmt: skip
    """What these options and the environment say.

    Raises:
        CommandError: one of them cannot be used.
    """
    told = scheduler or os.environ.get(f"{_ENV}SCHEDULERS", "").split(",")
    which = tuple(dict.fromkeys(_checked(one.strip()) for one in told if one.strip()))
    secret = read_secret(_SECRET, scheduler_webhook_secret_file)
    named = [driver for driver, _ in filter(None, map(driver_of, which))]
    if secret is None and (at_url := next((one for one in named if one.at_url), None)) is not None:
        raise CommandError(
            f"--scheduler {at_url.usage} needs --scheduler-webhook-secret-file: unsigned, "
            "anybody could drain hosts there"
        )
    return SchedulerOptions(
        which=which,
        name=None if scheduler_name is None else owner_name(scheduler_name),
        removal=Removal(slurm_removal),
        context=kube_context,
        kube=KubeOptions(_grace(kube_grace), kube_force, _primus(primus_safe)),
        secret=secret,
        ca_file=scheduler_ca_file,
    )


def _checked(text: str) -> str:
    found = driver_of(text)
    if found is None:
        *others, last = (one.usage for one in DRIVERS)
        raise CommandError(f"--scheduler is {text!r}, expected {', '.join(others)} or {last}")
    driver, url = found
    if not driver.at_url:
        return text
    flag = f"--scheduler {driver.name}=..."
    url = web_url(flag, url, secret=True)
    parts = urlsplit(url)
    if parts.username is not None:
        raise CommandError(f"{flag} holds a password: requests are signed")
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise CommandError(f"{flag} is http to {parts.hostname}: https is needed beyond this host")
    return f"{driver.name}={url}"


def _grace(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= _GRACE_MOST_S:
        raise CommandError(f"--kube-grace is {text!r}, expected 1 to {_GRACE_MOST_S} whole seconds")
    return int(text)


def _primus(text: str | None) -> str | None:
    if text is not None and DNS.fullmatch(text) is None:
        raise CommandError(f"--primus-safe is {text!r}, expected an id such as 901")
    return text


_option: Final = functools.partial(option, section="Schedulers")
scheduler_options: Final = gathered(
    "schedulers",
    schedulers_of,
    _option("--scheduler", multiple=True, metavar="|".join(one.usage for one in DRIVERS),
            help="keep quarantined hosts out by it, and ask it to end a group that does not go; "
            "repeatable (default: LIGHTKEEPER_SCHEDULERS, with commas)"),
    _option("--scheduler-name", metavar="NAME", envvar=f"{_ENV}SCHEDULER_NAME",
            help="of this monitor's quarantine list on nodes: two monitors of one cluster leave "
            "each other's alone (default: one that the store keeps)"),
    _option("--scheduler-webhook-secret-file", type=FILE, metavar="FILE",
            help="signs the webhook's requests (default: the file named by "
            f"{_SECRET}_FILE, or {_SECRET})"),
    _option("--scheduler-ca-file", type=FILE, metavar="FILE", envvar=f"{_ENV}SCHEDULER_CA_FILE",
            help="PEM file of authorities to trust for webhooks beside the system's"),
    _option("--slurm-removal", type=click.Choice([str(one) for one in Removal]),
            default=str(Removal.CANCEL), envvar=f"{_ENV}SLURM_REMOVAL",
            help="how a job that carries one group alone, without a step, is ended"),
    _option("--kube-context", metavar="NAME", envvar=f"{_ENV}KUBE_CONTEXT",
            help="of the kubeconfig (default: the current one)"),
    _option("--kube-grace", metavar="S", default="5", envvar=f"{_ENV}KUBE_GRACE_S",
            help="whole seconds between a pod's SIGTERM and SIGKILL"),
    _option("--kube-force", is_flag=True, envvar=f"{_ENV}KUBE_FORCE",
            help="delete pods by force on a node that is not ready; their processes may live on "
            "there"),
    _option("--primus-safe", metavar="ID", envvar=f"{_ENV}PRIMUS_SAFE",
            help="report to Primus-SaFE by the NodeCondition primus-safe.ID"),
)  # fmt: skip


# -- the command ---------------------------------------------------------------------------------


@command()
@option("--namespace", multiple=True, metavar="NAME",
        help="of the job's pods, to check what may be done there; repeatable")  # fmt: skip
@as_json
@scheduler_options
def check(*, schedulers: SchedulerOptions, namespace: tuple[str, ...], as_json: bool) -> int:
    """Would Slurm, Kubernetes or the webhook do what the monitor asks for? Changes nothing.

    examples:
      would draining work here, as this user?
        lightkeeper check scheduler --scheduler slurm
      cordon, taint, and delete pods of the job's namespace?
        lightkeeper check scheduler --scheduler kubernetes --namespace train
      is the webhook there, and does it verify signatures?
        lightkeeper check scheduler --scheduler webhook=https://cluster.example/lightkeeper \\
            --scheduler-webhook-secret-file secret
      the same options belong to the monitor:
        lightkeeper monitor ... --scheduler slurm

    exit status: 0 all would work, 1 something would not, 2 wrong arguments.
    docs/deploy.md has the rest.
    """
    if not schedulers.which:
        raise CommandError("no scheduler: see lightkeeper check scheduler --help")
    places = tuple(Place(RankName("check.0"), Host("check"), {"namespace": n}) for n in namespace)
    found: list[dict[str, Any]] = []
    try:
        made = tuple(
            drivers(schedulers, lambda: places, lambda: schedulers.name or "check", _fetcher)
        )
    except (KubeUnusableError, CaError) as exc:
        raise CommandError(str(exc), FAILED) from exc
    for one in made:
        found += _rows(one)
        one.close()
    columns = {"scheduler": "scheduler", "check": "check", "ok": "works", "said": "said"}
    show_checks("what would work", "checks", found, columns, as_json=as_json)
    return DONE if all(row["ok"] for row in found) else FAILED


def _fetcher(tls: Any) -> Fetcher:
    return Fetcher(tls, proxies=True)


def _rows(one: Scheduler) -> Iterator[dict[str, Any]]:
    for done in one.checks(_TIMEOUT_S):
        yield {"scheduler": one.name, "check": done.what, "ok": done.ok, "said": done.said}
