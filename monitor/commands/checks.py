"""Options for notifications and schedulers, and a `check` command for each.

Of a URL only the host is shown.
"""

from __future__ import annotations

import functools
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from lightkeeper.monitor.act.http import CaError, Fetcher, FetchError, trust_also
from lightkeeper.monitor.act.notices import Alertmanager, Event, Message, Notice, Sink, Webhook
from lightkeeper.monitor.act.notify import send
from lightkeeper.monitor.act.schedulers.base import Place, owner_name
from lightkeeper.monitor.act.schedulers.build import DRIVERS, SchedulerOptions, drivers
from lightkeeper.monitor.act.schedulers.kubernetes import DNS, KubeOptions, KubeUnusableError
from lightkeeper.monitor.act.schedulers.slurm import Removal
from lightkeeper.monitor.commands.command import (
    FAILED,
    FILE,
    CommandError,
    F,
    as_json,
    command,
    gathered,
    option,
    read_secret,
    web_url,
)
from lightkeeper.monitor.commands.printing import show_checks
from lightkeeper.monitor.model.names import Host, RankName, shown_url
from lightkeeper.monitor.model.verdict import Severity
from lightkeeper.monitor.show.web.server import is_loopback

# -- messages ----------------------------------------------------------------------------------

_ENV: Final = "LIGHTKEEPER_NOTIFY_"
_TEST_S: Final = 60.0
Sinks = Callable[[float], tuple[Sink, ...]]
"""The sinks, by the seconds after which an alert expires."""


def sinks_of(
    *, notify_webhook: str | None, notify_webhook_secret_file: Path | None,
    notify_alertmanager: str | None, notify_alertmanager_auth_file: Path | None,
    notify_label: tuple[str, ...],
) -> Sinks:  # fmt: skip
    """The sinks that these options and the environment name.

    Raises:
        CommandError: one of them cannot be used.
    """
    sinks: list[Sink] = []
    if notify_webhook:
        secret = read_secret(f"{_ENV}WEBHOOK_SECRET", notify_webhook_secret_file)
        sinks.append(Webhook("webhook", web_url("--notify-webhook", notify_webhook), secret))
    if not notify_alertmanager:
        return lambda _: tuple(sinks)
    alertmanager = functools.partial(
        Alertmanager,
        "alertmanager",
        web_url("--notify-alertmanager", notify_alertmanager),
        read_secret(f"{_ENV}ALERTMANAGER_AUTH", notify_alertmanager_auth_file),
        _labels(notify_label),
    )
    return lambda expire_s: (*sinks, alertmanager(expire_s))


def _labels(texts: tuple[str, ...]) -> Mapping[str, str]:
    labels = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or not name.isascii():
            raise CommandError(f"--notify-label is {text!r}, expected NAME=VALUE")
        labels[name] = value
    return labels


_option: Final = functools.partial(option, section="Notify")
_sink_options: Final = gathered(
    "sinks",
    sinks_of,
    _option("--notify-webhook", metavar="URL", envvar=f"{_ENV}WEBHOOK",
            help="POST one JSON object a message there"),
    _option("--notify-webhook-secret-file", type=FILE, metavar="FILE",
            help="sign these with HMAC-SHA256 by this secret (default: the file named by "
            "LIGHTKEEPER_NOTIFY_WEBHOOK_SECRET_FILE, or LIGHTKEEPER_NOTIFY_WEBHOOK_SECRET)"),
    _option("--notify-alertmanager", metavar="URL", envvar=f"{_ENV}ALERTMANAGER",
            help="Prometheus' Alertmanager, such as http://am:9093"),
    _option("--notify-alertmanager-auth-file", type=FILE, metavar="FILE",
            help="holds the Authorization header for it, such as 'Bearer TOKEN' (default: the file "
            "named by LIGHTKEEPER_NOTIFY_ALERTMANAGER_AUTH_FILE, or "
            "LIGHTKEEPER_NOTIFY_ALERTMANAGER_AUTH)"),
    _option("--notify-label", multiple=True, metavar="NAME=VALUE",
            help="label on every alert, such as cluster=a; repeatable"),
)  # fmt: skip
_url_option: Final = gathered("public_url", lambda public_url: (
    web_url("--public-url", public_url).rstrip("/") if public_url else None
), _option(
    "--public-url", metavar="URL", envvar="LIGHTKEEPER_PUBLIC_URL",
    help="the monitor's, as people reach it, for links in messages (default: where it is bound)",
))  # fmt: skip


def notify_options(called: F) -> F:
    """Add these options; `monitor` has them too."""
    return _sink_options(_url_option(called))


@command()
@option("--ca-file", type=FILE, metavar="FILE", help="PEM file of authorities to trust as well")
@as_json
@notify_options
def check_notify(
    *, sinks: Sinks, public_url: str | None, ca_file: Path | None, as_json: bool
) -> int:
    """Send a test message to every receiver.

    The monitor takes the same options:
      lightkeeper check notify --notify-alertmanager http://am:9093

    exit status: 0 all accepted it, 1 one did not, 2 wrong arguments.
    docs/alerts.md has the messages, and what is sent when.
    """
    receivers = sinks(_TEST_S)
    if not receivers:
        raise CommandError("nobody to notify: see lightkeeper check notify --help")
    try:
        tls = None if ca_file is None else trust_also(ca_file)
    except CaError as exc:
        raise CommandError(str(exc)) from exc
    fetcher = Fetcher(tls, proxies=True)
    try:
        message = Message(_test(public_url or ""), time.time())
        answers = [_try(fetcher, sink, message) for sink in receivers]
    finally:
        fetcher.close()
    return show_checks("sinks", answers, as_json=as_json)


def _test(url: str) -> Notice:
    now_s = time.time()
    title = f"lightkeeper on {socket.gethostname()}: a test"
    text = "Somebody ran lightkeeper check notify. Nothing is wrong."
    key = f"test {now_s:.3f}"
    return Notice(key, Event.TEST, "test", Severity.WARNING, title, text, now_s, url=url)


def _try(fetcher: Fetcher, sink: Sink, message: Message) -> dict[str, Any]:
    row = {"sink": sink.name, "url": shown_url(sink.post([message]).url)}
    try:
        answer = send(fetcher, sink, [message])
    except FetchError as exc:
        return {**row, "ok": False, "said": str(exc)}
    return {**row, "ok": 200 <= answer.status < 300, "said": answer.summary}


# -- schedulers --------------------------------------------------------------------------------


_WEBHOOK_SECRET: Final = "LIGHTKEEPER_SCHEDULER_WEBHOOK_SECRET"  # noqa: S105 - a variable's name
_CHECK_S: Final = 15.0


def schedulers_of(
    *, scheduler: tuple[str, ...], scheduler_name: str | None,
    scheduler_webhook_secret_file: Path | None, scheduler_ca_file: Path | None, slurm_removal: str,
    kube_context: str | None, kube_force: bool, primus_safe: str | None,
) -> SchedulerOptions:  # fmt: skip
    """What the options and the environment ask for.

    Raises:
        CommandError: one of them cannot be used.
    """
    names = scheduler or os.environ.get("LIGHTKEEPER_SCHEDULERS", "").split(",")
    which = tuple(dict.fromkeys(_checked(name.strip()) for name in names if name.strip()))
    secret = read_secret(_WEBHOOK_SECRET, scheduler_webhook_secret_file)
    at_url = next((name for name, url in which if url), None)
    if secret is None and at_url is not None:
        raise CommandError(
            f"--scheduler {at_url}=URL needs --scheduler-webhook-secret-file: unsigned, anybody "
            "could drain hosts there"
        )
    return SchedulerOptions(
        which=which,
        name=None if scheduler_name is None else owner_name(scheduler_name),
        removal=Removal(slurm_removal),
        context=kube_context,
        kube=KubeOptions(kube_force, _primus(primus_safe)),
        secret=secret,
        ca_file=scheduler_ca_file,
    )


def _checked(text: str) -> tuple[str, str]:
    """The driver's name, and its URL if any."""
    name, at, url = text.partition("=")
    if (f"{name}=URL" if at else name) not in DRIVERS:
        *others, last = DRIVERS
        raise CommandError(f"--scheduler is {text!r}, expected {', '.join(others)} or {last}")
    if not at:
        return name, ""
    flag = f"--scheduler {name}=..."
    url = web_url(flag, url, secret=True)
    parts = urlsplit(url)
    if parts.username is not None:
        raise CommandError(f"{flag} holds a password: requests are signed")
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise CommandError(f"{flag} is http to {parts.hostname}: https is needed beyond this host")
    return name, url


def _primus(text: str | None) -> str | None:
    if text is not None and DNS.fullmatch(text) is None:
        raise CommandError(f"--primus-safe is {text!r}, expected an id such as 901")
    return text


_scheduler_option: Final = functools.partial(option, section="Schedulers")
scheduler_options: Final = gathered(
    "schedulers",
    schedulers_of,
    _scheduler_option("--scheduler", multiple=True,
            metavar="|".join(DRIVERS),
            help="keeps quarantined hosts out, and ends a group that nothing else could end; "
            "repeatable (default: LIGHTKEEPER_SCHEDULERS, with commas)"),
    _scheduler_option("--scheduler-name", metavar="NAME", envvar="LIGHTKEEPER_SCHEDULER_NAME",
            help="name of this monitor's quarantine list on nodes, so that two monitors of one "
            "cluster leave each other's alone (default: one that the store keeps)"),
    _scheduler_option("--scheduler-webhook-secret-file", type=FILE, metavar="FILE",
            help="signs the webhook's requests (default: the file named by "
            f"{_WEBHOOK_SECRET}_FILE, or {_WEBHOOK_SECRET})"),
    _scheduler_option("--scheduler-ca-file", type=FILE, metavar="FILE",
            envvar="LIGHTKEEPER_SCHEDULER_CA_FILE",
            help="PEM file of authorities to trust for webhooks beside the system's"),
    _scheduler_option("--slurm-removal", type=click.Choice([str(removal) for removal in Removal]),
            default=str(Removal.CANCEL), envvar="LIGHTKEEPER_SLURM_REMOVAL",
            help="how a job that carries one group alone, without a step, is ended"),
    _scheduler_option("--kube-context", metavar="NAME", envvar="LIGHTKEEPER_KUBE_CONTEXT",
            help="context of the kubeconfig (default: the current one)"),
    _scheduler_option("--kube-force", is_flag=True, envvar="LIGHTKEEPER_KUBE_FORCE",
            help="delete pods by force where no kubelet answers, even if no gate refuses their "
            "group: its processes may live on there"),
    _scheduler_option("--primus-safe", metavar="ID", envvar="LIGHTKEEPER_PRIMUS_SAFE",
            help="report to Primus-SaFE by the NodeCondition primus-safe.ID"),
)  # fmt: skip


@command()
@option("--namespace", multiple=True, metavar="NAME",
        help="namespace of the job's pods, to check the rights there; repeatable")  # fmt: skip
@as_json
@scheduler_options
def check_scheduler(
    *, schedulers: SchedulerOptions, namespace: tuple[str, ...], as_json: bool
) -> int:
    """Would Slurm, Kubernetes or the webhook do what the monitor asks for? Changes nothing.

    examples (the monitor takes the same options):
      lightkeeper check scheduler --scheduler slurm
      lightkeeper check scheduler --scheduler kubernetes --namespace train
      lightkeeper check scheduler --scheduler webhook=https://cluster.example/lightkeeper \\
          --scheduler-webhook-secret-file secret

    exit status: 0 all would work, 1 something would not, 2 wrong arguments.
    docs/deploy.md has the rest.
    """
    if not schedulers.which:
        raise CommandError("no scheduler: see lightkeeper check scheduler --help")
    places = tuple(Place(RankName("check.0"), Host("check"), {"namespace": n}) for n in namespace)
    rows: list[dict[str, Any]] = []
    try:
        fetcher = functools.partial(Fetcher, proxies=True)
        built = tuple(
            drivers(schedulers, lambda: places, lambda: schedulers.name or "check", fetcher)
        )
    except (KubeUnusableError, CaError) as exc:
        raise CommandError(str(exc), FAILED) from exc
    for scheduler in built:
        rows += [
            {"scheduler": scheduler.name, "check": done.what, "ok": done.ok, "said": done.said}
            for done in scheduler.checks(_CHECK_S)
        ]
        scheduler.close()
    return show_checks("checks", rows, as_json=as_json)
