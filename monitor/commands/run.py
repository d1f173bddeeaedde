"""`lightkeeper monitor`: the keeper itself."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from monitor.commands.audit_options import add_audit_options, audit_log_bytes
from monitor.commands.errors import DONE, USAGE, CommandError
from monitor.commands.notify import add_notify_options, public_url_of, sinks_of
from monitor.commands.policy import refused
from monitor.commands.schedulers import add_scheduler_options, schedulers_of
from monitor.commands.token import add_token_option, read_token
from monitor.config import ConfigError, KeeperConfig
from monitor.evictors import Patience
from monitor.journal.shelf import Limits
from monitor.policy.reading import PolicyError
from monitor.rulebook import Rulebook, effective
from monitor.service import (
    TOKENLESS,
    Options,
    Service,
    StartError,
    journal_beside,
    reach,
    state_folder,
)
from monitor.store import Place, StoreError, parse_place

log = logging.getLogger("lightkeeper")

_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT})
_RELOADS: Final = frozenset({signal.SIGHUP})
"""Reads the policy again, where there is a file; else it ends the monitor, as it always did."""
_LAST_TICK_S: Final = 5.0

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
    add_token_option(parser)
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
        "--targets",
        type=Path,
        metavar="FILE",
        help="Prometheus file_sd JSON of WorkerServers that do not register themselves",
    )
    parser.add_argument(
        "--quarantine-hours",
        type=float,
        metavar="H",
        default=24.0,
        help="how long the host of an evicted group is refused (%(default)g; 0: until released)",
    )
    add_audit_options(parser)
    _add_journal_options(parser)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other threshold of monitor/config/, repeatable",
    )
    add_notify_options(parser)
    add_scheduler_options(parser)
    parser.add_argument("--verbose", action="store_true", help="log what is held and why")


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


def default_store() -> Path:
    """In the user's state folder."""
    return state_folder() / "monitor.db"


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    logging.basicConfig(
        level=logging.INFO if args.verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    log.setLevel(logging.INFO)
    options = _options(args)
    signals = _SIGNALS if args.policy is None else _SIGNALS | _RELOADS
    # before any thread starts, so that all of them leave the signals to `sigtimedwait`
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        service = Service(options)
    except StartError as exc:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise CommandError(str(exc), USAGE) from exc
    with service:
        _greet(options, service)
        stop = threading.Event()
        loop = threading.Thread(target=service.run, args=(stop,), name="keep", daemon=True)
        loop.start()
        while loop.is_alive():
            came = _signal(signals)
            if came in _RELOADS:
                service.reload()
            elif came is not None:
                break
        log.info("stopping")
        stop.set()
        loop.join(_LAST_TICK_S)
    return DONE


def _signal(signals: frozenset[signal.Signals]) -> int | None:
    """The one that came within a second.

    CPython 3.11 returns what lay in memory when a SIGSTOP and SIGCONT interrupt the wait for longer
    than its timeout, so the signal is looked at.
    """
    told = signal.sigtimedwait(signals, 1.0)
    return told.si_signo if told is not None and told.si_signo in signals else None


def _options(args: argparse.Namespace) -> Options:
    url = args.lighthouse
    if url is not None and not url.startswith(("http://", "https://")):
        raise CommandError(f"--lighthouse is {url!r}, expected http://HOST:PORT", USAGE)
    if args.gate is not None and not args.gate.startswith(("http://", "https://")):
        raise CommandError(f"--gate is {args.gate!r}, expected http://HOST:PORT", USAGE)
    if not 0 <= args.quarantine_hours <= 24 * 366:
        raise CommandError(
            f"--quarantine-hours is {args.quarantine_hours:g}, expected 0 to 8784", USAGE
        )
    last_s = args.quarantine_hours * 3600.0 or None
    rules, store = _rules(args), _place(args.store)
    config = rules.current.config
    journal = args.journal or journal_beside(store.path)
    return Options(
        config=config,
        bind=args.bind,
        store=store,
        lighthouse=url,
        targets=args.targets,
        token=read_token(args.token_file),
        ca_file=args.ca_file,
        open_reads=args.open_reads,
        patience=Patience(quarantine_s=last_s),
        evidence=args.evidence_dir,
        sinks=sinks_of(args, config.notify_expire_s),
        public_url=public_url_of(args),
        journal=None if args.no_journal else journal,
        limits=_limits(args),
        audit_log=args.audit_log,
        audit_log_bytes=audit_log_bytes(args),
        rules=rules,
        gate=args.gate,
        schedulers=schedulers_of(args),
    )


def _place(text: str) -> Place:
    try:
        return parse_place(text)
    except StoreError as exc:
        raise CommandError(str(exc), USAGE) from exc


def _limits(args: argparse.Namespace) -> Limits:
    total_mb = args.journal_mb
    file_mb = total_mb / 8 if args.journal_file_mb is None else args.journal_file_mb
    for name, value, low, high in (
        ("--journal-mb", total_mb, 1, 1e6),
        ("--journal-file-mb", file_mb, 0.1, total_mb / 2),
        ("--journal-file-hours", args.journal_file_hours, 0.001, 24 * 366),
    ):
        if not low <= value <= high:
            raise CommandError(f"{name} is {value:g}, expected {low:g} to {high:g}", USAGE)
    return Limits(int(total_mb * 1e6), int(file_mb * 1e6), args.journal_file_hours * 3600.0)


def _rules(args: argparse.Namespace) -> Rulebook:
    chosen: dict[str, Any] = {
        "tick_s": args.tick,
        "min_replicas": args.min_replicas,
        "budget_per_hour": None if args.budget is None else parse_budget(args.budget),
        "observe": args.observe or None,
        "gpus_per_rank": args.gpus_per_rank,
    }
    for text in args.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise CommandError(f"--set is {text!r}, expected NAME=VALUE", USAGE)
        chosen[name] = _number(name, value)
    try:
        return Rulebook(effective(args.policy, chosen, loaded_s=time.time()), chosen)
    except ConfigError as exc:
        raise CommandError(str(exc), USAGE) from exc
    except PolicyError as exc:
        raise refused(exc) from exc


def _number(name: str, text: str) -> float | int:
    try:
        default = getattr(KeeperConfig(), name, 0.0)
        return int(text) if type(default) is int else float(text)
    except ValueError as exc:
        raise CommandError(f"--set {name} is {text!r}, expected a number", USAGE) from exc


def parse_budget(text: str) -> int:
    """`4/hour` or `4`.

    Raises:
        CommandError: neither.
    """
    number = text.removesuffix("/hour").removesuffix("/h")
    if not number.isascii() or not number.isdigit() or len(number) > 6:
        raise CommandError(f"--budget is {text!r}, expected N/hour, such as 4/hour", USAGE)
    return int(number)


def _greet(options: Options, service: Service) -> None:
    log.info("monitor at %s (pid %d), store %s", service.url, os.getpid(), options.store)
    standing = service.standing
    if not standing.active:
        log.warning("%s", standing.sentence())
    if options.token is None:
        log.warning("%s", TOKENLESS)
    if options.config.observe:
        log.warning("observe mode: nothing will be evicted")
    if options.lighthouse is None:
        log.warning("no Lighthouse is configured: nothing can be evicted (--lighthouse URL)")
    if options.gate is not None and options.token is None:
        log.warning("--gate without a token: the gate will take no list (--token-file FILE)")
    if options.lighthouse is not None and (problem := reach(options.lighthouse)) is not None:
        log.warning("Lighthouse %s: %s; waiting for it", options.lighthouse, problem)
