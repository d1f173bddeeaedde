"""What the command line of `lightkeeper monitor` means."""

from __future__ import annotations

import argparse
import time
from typing import Any

from monitor.commands.audit_options import audit_log_bytes
from monitor.commands.errors import USAGE, CommandError
from monitor.commands.notify import public_url_of, sinks_of
from monitor.commands.policy import refused
from monitor.commands.schedulers import schedulers_of
from monitor.commands.token import read_token
from monitor.config import ConfigError, KeeperConfig
from monitor.evictors import Patience
from monitor.journal.shelf import Limits
from monitor.metrics import Bounds
from monitor.policy.reading import PolicyError
from monitor.rulebook import Rulebook, effective
from monitor.service import Options
from monitor.service.folders import journal_beside
from monitor.store import Place, StoreError, parse_place


def options_of(args: argparse.Namespace) -> Options:
    """Every option, checked.

    Raises:
        CommandError: one that cannot be used.
    """
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
        bounds=_bounds(args),
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


def _bounds(args: argparse.Namespace) -> Bounds:
    for name, value in (("--rank-series", args.rank_series), ("--group-series", args.group_series)):
        if not 0 <= value <= 1_000_000:
            raise CommandError(f"{name} is {value}, expected 0 to 1000000", USAGE)
    return Bounds(args.rank_series, args.group_series)


def _rules(args: argparse.Namespace) -> Rulebook:
    chosen: dict[str, Any] = {
        "tick_s": args.tick,
        "min_replicas": args.min_replicas,
        "budget_per_hour": None if args.budget is None else parse_budget(args.budget),
        "observe": args.observe or None,
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
