"""`lightkeeper gate`: in front of the Lighthouse."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from monitor.app import ServeError, parse_bind
from monitor.commands.errors import DONE, USAGE, CommandError
from monitor.commands.token import add_token_option, read_token
from monitor.gate import bequest
from monitor.gate.keeper import Estate, Keeper, Worker, describe, succeed
from monitor.gate.serve import Options, listen

log = logging.getLogger("lightkeeper.gate")

DEFAULT_ADMIN: Final = "127.0.0.1:8471"

EXAMPLES = """\
examples:
  in front of a Lighthouse on this machine; groups get TORCHFT_LIGHTHOUSE=http://head:29511
    lightkeeper gate --lighthouse http://127.0.0.1:29510 --bind 0.0.0.0:29511 --token-file token
  whom it sees and refuses:
    curl http://127.0.0.1:8471/v1/gate
  the list survives a restart of the gate while the monitor is away:
    lightkeeper gate --lighthouse http://127.0.0.1:29510 --bind 0.0.0.0:29511 \\
        --token-file token --state /var/lib/lightkeeper/gate.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the gate."""
    add = parser.add_argument
    add("--lighthouse", metavar="URL", required=True, help="the real one, http://HOST:PORT")
    add("--bind", metavar="HOST:PORT", required=True, help="where groups and people come in")
    add(
        "--admin",
        metavar="HOST:PORT",
        default=DEFAULT_ADMIN,
        help="where the monitor looks and denies (default: %(default)s)",
    )
    add_token_option(parser)
    add("--state", type=Path, metavar="FILE", help="keeps the list of denials over a restart")
    add("--verbose", action="store_true", help="log what is refused and who breaks the protocol")


def carry_out(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    logging.basicConfig(
        level=logging.INFO if args.verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    log.setLevel(logging.INFO)
    options = Options(parse_lighthouse(args.lighthouse), args.state, read_token(args.token_file))
    bind, admin = _address("--bind", args.bind), _address("--admin", args.admin)
    first = Worker().ready()  # before anything is taken over from a gate that died
    try:
        estate = _estate(bind, admin)
    except CommandError:
        first.end(signal.SIGKILL)
        raise
    if options.token is None:
        log.warning("no token is configured: this gate passes everybody and takes no denials")
    where = (args.bind, args.lighthouse, args.admin, os.getpid())
    log.info("gate at %s for %s, admin at %s (pid %d)", *where)
    Keeper(options, estate, first, verbose=args.verbose).run()
    return DONE


def _estate(bind: tuple[str, int], admin: tuple[str, int]) -> Estate:
    """Our own sockets, or those of a worker whose keeper died."""
    found = succeed(bequest.successor_address(*bind))
    if found is not None:
        log.warning("taken over from the worker of a gate that died: %s", describe(found))
        return found
    return Estate([_listen("--bind", bind), _listen("--admin", admin)], bequest.Page.make())


def parse_lighthouse(url: str) -> tuple[str, int]:
    """Host and port of `http://HOST:PORT`.

    Raises:
        CommandError: it is no such URL; TorchFT speaks no TLS.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.scheme != "http" or parts.path not in ("", "/"):
        raise CommandError(f"--lighthouse is {url!r}, expected http://HOST:PORT", USAGE)
    return host, port


def _address(option: str, text: str) -> tuple[str, int]:
    try:
        return parse_bind(text)
    except ServeError as exc:
        raise CommandError(str(exc).replace("--bind", option), USAGE) from exc


def _listen(option: str, address: tuple[str, int]) -> socket.socket:
    try:
        return listen(*address)
    except OSError as exc:
        where = f"{address[0]}:{address[1]}"
        raise CommandError(f"cannot serve at {option} {where}: {exc.strerror}", USAGE) from exc
