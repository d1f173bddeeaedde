"""The command line of `lightkeeper monitor`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from monitor.commands.errors import USAGE, CommandError
from monitor.commands.notify import add_notify_options
from monitor.commands.schedulers import add_scheduler_options
from monitor.commands.secrets import add_token_option
from monitor.metrics.scene import GROUP_SERIES, RANK_SERIES
from monitor.service import state_folder

# Options of `lightkeeper monitor` that belong to the audit; docs/audit.md.


def add_audit_options(parser: argparse.ArgumentParser) -> None:
    """Where the audit log is written."""
    made = parser.add_argument_group("audit")
    made.add_argument(
        "--audit-log",
        type=Path,
        metavar="FILE",
        default=Path(named) if (named := os.environ.get("LIGHTKEEPER_AUDIT_LOG")) else None,
        help="append every decision, rung, and quarantine change as a line of JSON "
        "(default: LIGHTKEEPER_AUDIT_LOG, else none)",
    )
    made.add_argument(
        "--audit-log-mb",
        type=float,
        metavar="MB",
        default=64.0,
        help="begin a new file at that size; ten older ones are kept (%(default)g)",
    )


def audit_log_bytes(args: argparse.Namespace) -> int:
    """When a new file is begun.

    Raises:
        CommandError: it is no such size.
    """
    within("--audit-log-mb", args.audit_log_mb, 0.01, 1e6)
    return int(args.audit_log_mb * 1e6)


def within(option: str, value: float, low: float, high: float) -> None:
    """Refuse what lies outside.

    Raises:
        CommandError: it does.
    """
    if not low <= value <= high:
        raise CommandError(f"{option} is {value:g}, expected {low:g} to {high:g}", USAGE)


EXAMPLES = """\
examples:
  look only, evict nothing:
    lightkeeper monitor --lighthouse http://head:29510 --observe
  keep at least two groups, at most two evictions an hour:
    lightkeeper monitor --lighthouse http://head:29510 --token-file token \\
        --min-replicas 2 --budget 2/hour
  serve the network (ranks register with LIGHTKEEPER_MONITOR=http://head:8470):
    lightkeeper monitor --lighthouse http://head:29510 --bind 0.0.0.0:8470 --token-file token
  the same, where the ranks' WorkerServers speak TLS (LIGHTKEEPER_TLS_CERT, LIGHTKEEPER_TLS_KEY):
    lightkeeper monitor --lighthouse http://head:29510 --bind 0.0.0.0:8470 --token-file token \\
        --ca-file ca.pem
  without a record of every tick (256 MB at most, for `lightkeeper replay`):
    lightkeeper monitor --lighthouse http://head:29510 --no-journal
  a second one that stands by (on the same host; docs/two-monitors.md):
    lightkeeper monitor --lighthouse http://head:29510 --token-file token --bind 127.0.0.1:8471
  the same on two hosts (the password in PGPASSFILE):
    lightkeeper monitor --lighthouse http://head:29510 --bind 0.0.0.0:8470 --token-file token \\
        --store postgresql://lightkeeper@db/lightkeeper
  call a rank hung later:
    lightkeeper monitor --lighthouse http://head:29510 --set stall_floor_s=30
  keep quarantined hosts out of Slurm (or kubernetes, or webhook=URL; docs/slurm.md):
    lightkeeper monitor --lighthouse http://head:29510 --token-file token --scheduler slurm
  by a policy file (docs/policy.md), which `kill -HUP` or POST /v1/policy/reload reads again:
    lightkeeper monitor --lighthouse http://head:29510 --policy policy.toml

then: open http://127.0.0.1:8470/ or run `lightkeeper status`
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the monitor."""
    _add_places(parser)
    _add_policy_options(parser)
    _add_trust_options(parser)
    add_audit_options(parser)
    _add_journal_options(parser)
    _add_metrics_options(parser)
    add_notify_options(parser)
    add_scheduler_options(parser)
    parser.add_argument("--verbose", action="store_true", help="log what is held and why")


def _add_places(parser: argparse.ArgumentParser) -> None:
    """Where the fleet is, and where this monitor."""
    parser.add_argument(
        "--lighthouse",
        metavar="URL",
        default=os.environ.get("TORCHFT_LIGHTHOUSE"),
        help="TorchFT's Lighthouse (default: TORCHFT_LIGHTHOUSE); may come up later",
    )
    parser.add_argument(
        "--gate",
        metavar="URL",
        default=os.environ.get("LIGHTKEEPER_GATE"),
        help="admin port of `lightkeeper gate`, where one stands in front of the Lighthouse: it "
        "refuses groups that were evicted or quarantined (default: LIGHTKEEPER_GATE)",
    )
    parser.add_argument(
        "--bind",
        metavar="HOST:PORT",
        default="127.0.0.1:8470",
        help="where to serve (default: %(default)s); any other host than loopback needs a token",
    )
    parser.add_argument(
        "--store",
        metavar="PATH|URL",
        default=os.environ.get("LIGHTKEEPER_STORE") or str(default_store()),
        help="what survives a restart: a SQLite file, or postgresql://USER@HOST/DATABASE; of "
        "several monitors on one store one acts, the others stand by (default: LIGHTKEEPER_STORE, "
        "else %(default)s)",
    )
    parser.add_argument(
        "--evidence-dir",
        type=Path,
        metavar="DIR",
        help="folder of evidence bundles (default: beside the store; --set evidence_count=0: none)",
    )
    parser.add_argument(
        "--targets",
        type=Path,
        metavar="FILE",
        help="Prometheus file_sd JSON of WorkerServers that do not register themselves",
    )


def _add_policy_options(parser: argparse.ArgumentParser) -> None:
    """Who may be evicted, and when."""
    parser.add_argument("--tick", type=float, metavar="S", help="seconds between sweeps (1.0)")
    parser.add_argument(
        "--min-replicas", type=int, metavar="N", help="healthy groups that must remain (1)"
    )
    parser.add_argument("--budget", metavar="N/hour", help="most evictions in any hour (4/hour)")
    parser.add_argument(
        "--observe", action="store_true", help="say what would be evicted, and evict nothing"
    )
    parser.add_argument(
        "--policy",
        type=Path,
        metavar="FILE",
        help="TOML file of what may be done about which fault, thresholds, budgets and maintenance "
        "windows (docs/policy.example.toml); the command line stands above it",
    )
    parser.add_argument(
        "--quarantine-hours",
        type=float,
        metavar="H",
        default=24.0,
        help="how long the host of an evicted group is refused (%(default)g; 0: until released)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other threshold of monitor/model/config.py, repeatable",
    )


def _add_trust_options(parser: argparse.ArgumentParser) -> None:
    """Who may read, and whom to trust."""
    add_token_option(parser)
    parser.add_argument(
        "--group-tokens",
        type=Path,
        metavar="FILE",
        default=Path(named) if (named := os.environ.get("LIGHTKEEPER_GROUP_TOKENS")) else None,
        help="lines of `GROUP TOKEN`: secrets with which ranks of that replica group register, and "
        "nothing else can be done (default: LIGHTKEEPER_GROUP_TOKENS, else none)",
    )
    parser.add_argument(
        "--ca-file",
        type=Path,
        metavar="FILE",
        default=Path(named) if (named := os.environ.get("LIGHTKEEPER_CA_FILE")) else None,
        help="PEM file of the authorities to trust for https:// WorkerServers and Lighthouse "
        "(default: LIGHTKEEPER_CA_FILE, else whom the system trusts)",
    )
    parser.add_argument(
        "--open-reads",
        action="store_true",
        default=os.environ.get("LIGHTKEEPER_OPEN_READS") == "1",
        help="bound to more than loopback, pass pages of ranks (stacks, flight records, last words "
        "...) also to those who have no token (default: LIGHTKEEPER_OPEN_READS=1)",
    )
    parser.add_argument(
        "--closed-reads",
        action="store_true",
        default=os.environ.get("LIGHTKEEPER_CLOSED_READS") == "1",
        help="pass pages of ranks to nobody without the token, on loopback neither: others have "
        "accounts on this machine (default: LIGHTKEEPER_CLOSED_READS=1)",
    )


def _add_journal_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--journal",
        type=Path,
        metavar="DIR",
        help="where every tick is recorded for `lightkeeper replay` "
        "(default: beside the store, monitor.db -> monitor.journal)",
    )
    parser.add_argument("--no-journal", action="store_true", help="record no ticks")
    parser.add_argument(
        "--journal-mb",
        type=float,
        metavar="MB",
        default=256,
        help="size of all journal files; the oldest is removed (%(default)g)",
    )
    parser.add_argument(
        "--journal-file-mb",
        type=float,
        metavar="MB",
        help="size of one file, each of which can be replayed alone (an eighth of all)",
    )
    parser.add_argument(
        "--journal-file-hours",
        type=float,
        metavar="H",
        default=1.0,
        help="begin a new file at least so often (%(default)g)",
    )


def _add_metrics_options(parser: argparse.ArgumentParser) -> None:
    """How large `/metrics` may become (docs/metrics.md)."""
    parser.add_argument(
        "--rank-series",
        type=int,
        metavar="N",
        default=RANK_SERIES,
        help="most ranks with series of their own on /metrics, of more the accused, the unwell and "
        "those that work longest (default: %(default)s; 0: none); ranks have pages of their own",
    )
    parser.add_argument(
        "--group-series",
        type=int,
        metavar="N",
        default=GROUP_SERIES,
        help="most replica groups with series of their own, of more the accused, the unwell and "
        "the first by name (default: %(default)s; 0: none)",
    )


def default_store() -> Path:
    """In the user's state folder."""
    return state_folder() / "monitor.db"
