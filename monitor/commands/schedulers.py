"""`lightkeeper schedulers check`, and the options that say which schedulers there are."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from monitor.act.http import CaError, Fetcher
from monitor.act.schedulers.base import Place, Scheduler, owner_name
from monitor.act.schedulers.build import KUBERNETES, SLURM, WEBHOOK, SchedulerOptions, build
from monitor.act.schedulers.kubernetes import DNS, KubeOptions, KubeUnusableError
from monitor.act.schedulers.slurm import Removal
from monitor.commands.errors import DONE, FAILED, USAGE, CommandError
from monitor.commands.secrets import read_secret, web_url
from monitor.commands.tables import cell, console, print_json, table, word
from monitor.model.names import Host, RankName
from monitor.show.server import is_loopback

EXAMPLES = """\
examples:
  would draining work here, as this user?
    lightkeeper schedulers check --scheduler slurm
  cordon, taint, and delete pods of the job's namespace?
    lightkeeper schedulers check --scheduler kubernetes --namespace train
  is the webhook there, and does it verify signatures?
    lightkeeper schedulers check --scheduler webhook=https://cluster.example/lightkeeper \\
        --scheduler-webhook-secret-file secret
  the same options belong to the monitor:
    lightkeeper monitor ... --scheduler slurm

nothing is changed by a check. docs/slurm.md, docs/kubernetes.md and docs/webhook.md have the rest.
"""
_ENV: Final = "LIGHTKEEPER_"
_SECRET: Final = "LIGHTKEEPER_SCHEDULER_WEBHOOK_SECRET"  # noqa: S105 - a variable's name
_TIMEOUT_S: Final = 15.0
_GRACE_MOST_S: Final = 3600


def add_scheduler_options(parser: argparse.ArgumentParser) -> None:
    """Which schedulers; of `lightkeeper monitor` too."""
    made = parser.add_argument_group("schedulers")
    made.add_argument(
        "--scheduler",
        action="append",
        metavar="slurm|kubernetes|webhook=URL",
        help="keep quarantined hosts out by it, and ask it to end a group that does not go; "
        "repeatable (default: LIGHTKEEPER_SCHEDULERS, with commas)",
    )
    made.add_argument(
        "--scheduler-name",
        metavar="NAME",
        default=_told("SCHEDULER_NAME"),
        help="of this monitor's quarantine list on nodes: two monitors of one cluster leave each "
        "other's alone (default: LIGHTKEEPER_SCHEDULER_NAME, else one that the store keeps)",
    )
    made.add_argument(
        "--scheduler-webhook-secret-file",
        type=Path,
        metavar="FILE",
        help="signs the webhook's requests (default: the file named by "
        f"{_SECRET}_FILE, or {_SECRET})",
    )
    made.add_argument(
        "--scheduler-ca-file",
        type=Path,
        metavar="FILE",
        default=Path(named) if (named := _told("SCHEDULER_CA_FILE")) else None,
        help="PEM file of authorities to trust for webhooks beside the system's "
        "(default: LIGHTKEEPER_SCHEDULER_CA_FILE)",
    )
    made.add_argument(
        "--slurm-removal",
        choices=[str(one) for one in Removal],
        default=_told("SLURM_REMOVAL") or str(Removal.CANCEL),
        help="how a job that carries one group alone, without a step, is ended (default: "
        "LIGHTKEEPER_SLURM_REMOVAL, else cancel)",
    )
    made.add_argument(
        "--kube-context",
        metavar="NAME",
        default=_told("KUBE_CONTEXT"),
        help="of the kubeconfig (default: LIGHTKEEPER_KUBE_CONTEXT, else the current one)",
    )
    made.add_argument(
        "--kube-grace",
        metavar="S",
        default=_told("KUBE_GRACE_S") or "5",
        help="whole seconds between a pod's SIGTERM and SIGKILL (default: "
        "LIGHTKEEPER_KUBE_GRACE_S, else 5)",
    )
    made.add_argument(
        "--kube-force",
        action="store_true",
        default=_told("KUBE_FORCE") == "1",
        help="delete pods by force on a node that is not ready; their processes may live on there "
        "(default: LIGHTKEEPER_KUBE_FORCE=1)",
    )
    made.add_argument(
        "--primus-safe",
        metavar="ID",
        default=_told("PRIMUS_SAFE"),
        help="tell Primus-SaFE by the NodeCondition primus-safe.ID (default: "
        "LIGHTKEEPER_PRIMUS_SAFE)",
    )


def _told(name: str) -> str | None:
    return os.environ.get(_ENV + name) or None


def schedulers_of(args: argparse.Namespace) -> SchedulerOptions:
    """What these options and the environment say.

    Raises:
        CommandError: one of them cannot be used.
    """
    told = args.scheduler or (_told("SCHEDULERS") or "").split(",")
    which = tuple(dict.fromkeys(_checked(one.strip()) for one in told if one.strip()))
    secret = read_secret(_SECRET, args.scheduler_webhook_secret_file)
    if secret is None and any(one.startswith(WEBHOOK) for one in which):
        raise CommandError(
            "--scheduler webhook=URL needs --scheduler-webhook-secret-file: unsigned, anybody "
            "could drain hosts there", USAGE,
        )  # fmt: skip
    if args.slurm_removal not in tuple(Removal):
        raise CommandError(
            f"LIGHTKEEPER_SLURM_REMOVAL is {args.slurm_removal!r}, expected cancel or requeue",
            USAGE,
        )
    return SchedulerOptions(
        which=which,
        name=None if args.scheduler_name is None else owner_name(args.scheduler_name),
        removal=Removal(args.slurm_removal),
        context=args.kube_context,
        kube=_kube(args),
        secret=secret,
        ca_file=args.scheduler_ca_file,
    )


def _checked(text: str) -> str:
    if text in (SLURM, KUBERNETES):
        return text
    if not text.startswith(WEBHOOK):
        raise CommandError(
            f"--scheduler is {text!r}, expected slurm, kubernetes or webhook=URL", USAGE
        )
    url = web_url("--scheduler webhook=...", text.removeprefix(WEBHOOK), secret=True)
    parts = urlsplit(url)
    if parts.username is not None:
        raise CommandError("--scheduler webhook=... holds a password: requests are signed", USAGE)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise CommandError(
            f"--scheduler webhook=... is http to {parts.hostname}: "
            "https is needed beyond this host",
            USAGE,
        )
    return WEBHOOK + url


def _kube(args: argparse.Namespace) -> KubeOptions:
    grace = str(args.kube_grace)
    if not grace.isascii() or not grace.isdigit() or not 0 < int(grace) <= _GRACE_MOST_S:
        raise CommandError(
            f"--kube-grace is {grace!r}, expected 1 to {_GRACE_MOST_S} whole seconds", USAGE
        )
    primus = args.primus_safe
    if primus is not None and DNS.fullmatch(primus) is None:
        raise CommandError(f"--primus-safe is {primus!r}, expected an id such as 901", USAGE)
    return KubeOptions(int(grace), args.kube_force, primus)


# -- the command ---------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`check`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    checking = actions.add_parser("check", help="what would work; changes nothing")
    checking.add_argument(
        "--format", choices=("table", "json"), default="table", help="table for people (default)"
    )
    checking.add_argument(
        "--namespace",
        action="append",
        default=[],
        metavar="NAME",
        help="of the job's pods, to check what may be done there; repeatable",
    )
    add_scheduler_options(checking)


def run(args: argparse.Namespace) -> int:
    """Check every scheduler; 1 if something would not work."""
    options = schedulers_of(args)
    if not options.which:
        raise CommandError("no scheduler: see lightkeeper schedulers check --help", USAGE)
    places = tuple(
        Place(RankName("check.0"), Host("check"), {"namespace": name}) for name in args.namespace
    )
    found: list[dict[str, Any]] = []
    try:
        made = build(options, lambda: places, lambda: options.name or "check", _fetcher)
    except (KubeUnusableError, CaError) as exc:
        raise CommandError(str(exc), FAILED) from exc
    for one in made:
        found += _rows(one)
        one.close()
    _show(args, found)
    return DONE if all(row["ok"] for row in found) else FAILED


def _fetcher(tls: Any) -> Fetcher:
    return Fetcher(tls, proxies=True)


def _rows(one: Scheduler) -> Iterator[dict[str, Any]]:
    for check in one.checks(_TIMEOUT_S):
        yield {"scheduler": one.name, "check": check.what, "ok": check.ok, "said": check.said}


def _show(args: argparse.Namespace, found: list[dict[str, Any]]) -> None:
    if args.format == "json":
        print_json({"schema": 1, "checks": found})
        return
    made = table("what would work", "scheduler", "check", "works", "said")
    for row in found:
        works = word("yes" if row["ok"] else "no")
        made.add_row(cell(row["scheduler"]), cell(row["check"]), works, cell(row["said"]))
    console().print(made)
