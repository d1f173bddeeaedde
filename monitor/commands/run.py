"""`lightkeeper monitor`: the keeper itself."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from typing import Final

from monitor.commands.errors import DONE, USAGE, CommandError
from monitor.commands.run_reading import options_of
from monitor.service import TOKENLESS, Options, Service, StartError
from monitor.service.surroundings import reach

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
    for name in ("lightkeeper", "monitor.keeper"):
        logging.getLogger(name).setLevel(logging.INFO)
    options = options_of(args)
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
