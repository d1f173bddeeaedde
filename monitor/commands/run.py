"""`lightkeeper monitor`: the keeper itself."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from typing import Any, Final

from monitor.commands.errors import DONE, FAILED, USAGE, CommandError
from monitor.commands.notify import public_url_of, sinks_of
from monitor.commands.policy import refused
from monitor.commands.run_options import audit_log_bytes, within
from monitor.commands.schedulers import schedulers_of
from monitor.commands.secrets import read_group_tokens, read_token
from monitor.decide.rules import PolicyError
from monitor.journal.writer import Limits
from monitor.metrics import Bounds
from monitor.model.config import ConfigError, KeeperConfig
from monitor.model.escalation import Timeouts
from monitor.rulebook import Rulebook, effective
from monitor.service import TOKENLESS, Options, Service, StartError, journal_beside, reach
from monitor.store.place import Place, StoreError, parse_place

# What the command line of `lightkeeper monitor` means.


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
    within("--quarantine-hours", args.quarantine_hours, 0, 24 * 366)
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
        group_tokens=read_group_tokens(args.group_tokens),
        ca_file=args.ca_file,
        open_reads=args.open_reads,
        closed_reads=args.closed_reads,
        timeouts=Timeouts(quarantine_s=last_s),
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
    within("--journal-mb", total_mb, 1, 1e6)
    within("--journal-file-mb", file_mb, 0.1, total_mb / 2)
    within("--journal-file-hours", args.journal_file_hours, 0.001, 24 * 366)
    return Limits(int(total_mb * 1e6), int(file_mb * 1e6), args.journal_file_hours * 3600.0)


def _bounds(args: argparse.Namespace) -> Bounds:
    within("--rank-series", args.rank_series, 0, 1e6)
    within("--group-series", args.group_series, 0, 1e6)
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


log = logging.getLogger("lightkeeper")

_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT})
_RELOADS: Final = frozenset({signal.SIGHUP})
"""Reads the policy again, where there is a file; else it ends the monitor, as it always did."""
_LAST_TICK_S: Final = 5.0


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    logging.basicConfig(
        level=logging.INFO if args.verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    for name in ("lightkeeper", "monitor.loop"):
        logging.getLogger(name).setLevel(logging.INFO)
    options = options_of(args)
    others = os.umask(0o077)  # what it writes is for whom it runs as alone
    signals = _SIGNALS if args.policy is None else _SIGNALS | _RELOADS
    # before any thread starts, so that all of them leave the signals to `sigtimedwait`
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        service = Service(options)
    except StartError as exc:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.umask(others)
        raise CommandError(str(exc), USAGE) from exc
    with service:
        _greet(options, service)
        stop = threading.Event()
        loop = threading.Thread(target=service.run, args=(stop,), name="keep", daemon=True)
        loop.start()
        ended = None
        while ended is None:
            came = _signal(signals)
            if came in _RELOADS:
                service.reload()
            elif came is not None:
                break
            ended = service.ended() if loop.is_alive() else "the loop"
        if ended is not None:
            log.critical("%s has ended: this monitor ends, and is to be started again", ended)
        log.info("stopping")
        stop.set()
        loop.join(_LAST_TICK_S)
    return DONE if ended is None else FAILED


def _signal(signals: frozenset[signal.Signals]) -> int | None:
    """The one that came within a second.

    CPython 3.11 returns what lay in memory when a SIGSTOP and SIGCONT interrupt the wait for longer
    than its timeout, so the signal is looked at.
    """
    told = signal.sigtimedwait(signals, 1.0)
    return told.si_signo if told is not None and told.si_signo in signals else None


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
