"""`lightkeeper gate`: in front of the Lighthouse."""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from lightkeeper.monitor.commands.command import FILE, CommandError, command, gathered, option
from lightkeeper.monitor.commands.options import make_token, token_file
from lightkeeper.monitor.gate.hot_restart import (
    SharedState,
    Worker,
    WorkerSupervisor,
    shown,
    take_over,
    unsupervised,
)
from lightkeeper.monitor.gate.listener import GateOptions, listen, resolve
from lightkeeper.monitor.model.names import host_and_port
from lightkeeper.worker_server.plain_text import log_to_stderr

log = logging.getLogger("lightkeeper.gate")

DEFAULT_ADMIN: Final = "127.0.0.1:8471"
_PATIENCE_S: Final = 3.0


@command()
@option("--lighthouse", metavar="URL", required=True, help="the real one, http://HOST:PORT")
@option("--bind", metavar="HOST:PORT", required=True, help="where groups and people come in")
@option("--admin", metavar="HOST:PORT", default=DEFAULT_ADMIN,
        help="where the monitor looks and denies")  # fmt: skip
@gathered("token", make_token, token_file)
@option("--state", type=FILE, metavar="FILE",
        help="keeps the list of denials and the count of quorums over a restart")  # fmt: skip
@option("--verbose", is_flag=True, help="log what is refused and who breaks the protocol")
def gate(
    *, lighthouse: str, bind: str, admin: str, token: str | None, state: Path | None, verbose: bool
) -> None:
    """In front of the Lighthouse: keeps evicted and quarantined groups out of the quorum.

    examples:
      in front of a Lighthouse on this machine; groups get TORCHFT_LIGHTHOUSE=http://head:29511
        lightkeeper gate --lighthouse http://127.0.0.1:29510 --bind 0.0.0.0:29511 --token-file token
      whom it sees and refuses:
        curl http://127.0.0.1:8471/v1/gate
      the list and the count of quorums survive a restart of the host:
        lightkeeper gate --lighthouse http://127.0.0.1:29510 --bind 0.0.0.0:29511 \\
            --token-file token --state /var/lib/lightkeeper/gate.json
    """
    log_to_stderr(logging.INFO if verbose else logging.WARNING)
    log.setLevel(logging.INFO)
    options = GateOptions(
        lighthouse=parse_lighthouse(lighthouse), state=state, token=token, verbose=verbose
    )
    at, admin_at = _address("--bind", bind), _address("--admin", admin)
    first = Worker().ready()  # before taking over from a gate that died
    try:
        shared = _state(at, admin_at)
    except CommandError:
        first.end(signal.SIGKILL)
        raise
    if token is None:
        log.warning("no token is configured: this gate passes everybody and takes no denials")
    where = (bind, lighthouse, admin, os.getpid())
    log.info("gate at %s for %s, admin at %s (pid %d)", *where)
    WorkerSupervisor(options, shared, first).run()


def _state(bind: tuple[str, int], admin: tuple[str, int]) -> SharedState:
    """New sockets, or those of a worker whose supervisor died.

    Retries an address in use for a moment: a worker that has just lost its supervisor may
    not have noticed yet, and a stopped one needs time to end.
    """
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            state = take_over(resolve(*bind)[1])
        except OSError as exc:
            raise _cannot("--bind", bind, exc) from exc
        if state is not None:
            _move_admin(state, admin)
            return state
        try:
            return SharedState(_listeners(bind, admin))
        except CommandError as exc:
            busy = isinstance(exc.__cause__, OSError) and exc.__cause__.errno == errno.EADDRINUSE
            if not busy or time.monotonic() >= until_s:
                raise
        time.sleep(0.1)


def _listeners(bind: tuple[str, int], admin: tuple[str, int]) -> list[socket.socket]:
    gate = _listen("--bind", bind)
    try:
        return [gate, _listen("--admin", admin)]
    except CommandError:
        gate.close()
        raise


def _move_admin(state: SharedState, admin: tuple[str, int]) -> None:
    """Move the admin port to `--admin`; if that fails, serving groups comes first."""
    gate, *others = state.listeners
    where = [other.getsockname()[:2] for other in others]
    try:
        _, address = resolve(*admin)
        if address[:2] in where:
            return
        state.listeners = [gate, listen(*admin)]
    except OSError as exc:
        log.warning("cannot serve at --admin %s: %s: it stays at %s", admin, exc.strerror, where)
        return
    for other in others:
        other.close()


def parse_lighthouse(url: str) -> tuple[str, int]:
    """Host and port of `http://HOST:PORT`.

    Raises:
        CommandError: not such a URL; TorchFT has no TLS.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.scheme != "http" or parts.path not in ("", "/"):
        raise CommandError(f"--lighthouse is {url!r}, expected http://HOST:PORT")
    return host, port


def _address(option: str, text: str) -> tuple[str, int]:
    address = host_and_port(text)
    if address is None:
        raise CommandError(f"{option} is {text!r}, expected HOST:PORT, such as {DEFAULT_ADMIN}")
    return address


def _listen(option: str, address: tuple[str, int]) -> socket.socket:
    try:
        return listen(*address)
    except OSError as exc:
        raise _cannot(option, address, exc) from exc


def _cannot(option: str, address: tuple[str, int], exc: OSError) -> CommandError:
    text = f"cannot serve at {option} {address[0]}:{address[1]}: {exc.strerror}"
    alive = ", ".join(shown(name) for name in unsupervised())
    if alive and exc.errno == errno.EADDRINUSE:
        text += (
            f"; a worker of a gate that died serves on at {alive}: start the gate there, or end it"
        )
    return CommandError(text)
