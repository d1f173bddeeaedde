"""`lightkeeper gate`: in front of the Lighthouse."""

from __future__ import annotations

import logging
import os
from typing import Final

import hpack  # noqa: F401  without the extra the command says so, before it looks at options

from lightkeeper.monitor.commands.command import (
    CommandError,
    command,
    gathered,
    logs,
    make_token,
    option,
    token_file,
)
from lightkeeper.monitor.model.names import host_and_port

log = logging.getLogger("lightkeeper.gate.start")

DEFAULT_ADMIN: Final = "127.0.0.1:8471"


@command()
@option("--lighthouse", metavar="URL", required=True, help="the real one, http://HOST:PORT")
@option("--bind", metavar="HOST:PORT", required=True, help="where groups and people connect")
@option("--admin", metavar="HOST:PORT", default=DEFAULT_ADMIN,
        help="where the monitor looks and sends its deny list")  # fmt: skip
@gathered("token", make_token, token_file)
@option("--take-over", metavar="HOST:PORT",
        help="admin address of the gate to take over from (default: --admin)")  # fmt: skip
@option("--grace", type=float, metavar="SECONDS", default=0.0,
        help="after SIGTERM, serve on for up to this long until another gate took over and all "
        "clients have gone there (default: 0)")  # fmt: skip
@logs
def gate(
    *,
    lighthouse: str,
    bind: str,
    admin: str,
    token: str | None,
    take_over: str | None,
    grace: float,
    log_level: int | None,
) -> None:
    """In front of the Lighthouse: keeps evicted and quarantined groups out of the quorum.

    examples:
      in front of a Lighthouse on this machine; groups get TORCHFT_LIGHTHOUSE=http://head:29511
        lightkeeper gate --lighthouse http://127.0.0.1:29510 --bind 0.0.0.0:29511 --token-file token
      whom it sees and refuses:
        curl http://127.0.0.1:8471/v1/gate
      another version, without a lost step: start it beside the one that runs, with the same options
    """
    from lightkeeper.gate.listener import GateOptions  # noqa: PLC0415 - aiohttp is slow
    from lightkeeper.gate.overlap import PredecessorError  # noqa: PLC0415
    from lightkeeper.gate.serve import run  # noqa: PLC0415

    if log_level is None:
        log.setLevel(logging.INFO)
    admin_at = _address("--admin", admin)
    options = GateOptions(
        lighthouse=parse_lighthouse(lighthouse),
        bind=_address("--bind", bind),
        admin=admin_at,
        take_over=admin_at if take_over is None else _address("--take-over", take_over),
        token=token,
        grace_s=grace,
    )
    if token is None:
        log.warning("no token is configured: this gate passes everybody and takes no denials")
    where = (bind, lighthouse, admin, os.getpid())
    log.info("gate at %s for %s, admin at %s (pid %d)", *where)
    try:
        run(options)
    except PredecessorError as exc:
        raise CommandError(str(exc)) from exc
    except OSError as exc:
        raise CommandError(f"cannot serve at {bind} and {admin}: {exc.strerror}") from exc


def parse_lighthouse(url: str) -> tuple[str, int]:
    """Host and port of `http://HOST:PORT`.

    Raises:
        CommandError: not such a URL; TorchFT has no TLS.
    """
    address = host_and_port(url.removeprefix("http://").rstrip("/"))
    if address is None or not url.startswith("http://"):
        raise CommandError(f"--lighthouse is {url!r}, expected http://HOST:PORT")
    return address


def _address(option: str, text: str) -> tuple[str, int]:
    address = host_and_port(text)
    if address is None:
        raise CommandError(f"{option} is {text!r}, expected HOST:PORT, such as {DEFAULT_ADMIN}")
    return address
