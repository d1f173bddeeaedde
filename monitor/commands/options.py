"""Values of options of several commands: secrets and addresses.

A secret is in a file or in the environment, never an argument.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from lightkeeper.monitor.commands.command import FILE, CommandError, option
from lightkeeper.worker_server import home

token_file: Final = option(
    "--token-file", type=FILE, metavar="FILE",
    help="holds the secret shared with the WorkerServers (default: the file named by "
    "LIGHTKEEPER_TOKEN_FILE, the variable LIGHTKEEPER_TOKEN, or this user's own file, which "
    "`lightkeeper monitor` makes)",
)  # fmt: skip


def read_token(token_file: Path | None) -> str | None:
    """The shared secret; None if there is none.

    Raises:
        CommandError: the file cannot be read, is open to others, or holds no token.
    """
    return _token(token_file, home.read_token_file)


def make_token(token_file: Path | None, no_token: bool = False) -> str | None:
    """As `read_token`; if none is named, make the user's own file.

    Raises:
        CommandError: as `read_token`, or it cannot be made.
    """
    if no_token and token_file is not None:
        raise CommandError("--no-token and --token-file exclude each other")
    if no_token:
        return None
    try:
        return _token(token_file, home.make_token_file)
    except CommandError as exc:
        if token_file is not None or home.is_named(os.environ):
            raise
        raise CommandError(f"{exc.message}; or give --token-file FILE, or --no-token") from exc


def _token(token_file: Path | None, own: Callable[[Path], str]) -> str | None:
    try:
        return home.find_token(os.environ, token_file, own)
    except home.TokenFileError as exc:
        raise CommandError(f"the token: {exc}") from exc


def web_url(option: str, url: str, *, secret: bool = False) -> str:
    """A usable http(s) URL.

    Raises:
        CommandError: it is not, or holds a password; a secret one is not shown.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable, parts = False, None
    shown = "no http:// or https:// URL" if secret else f"{url!r}, expected http://HOST:PORT/..."
    if not usable or parts is None or not url.isprintable() or " " in url:
        raise CommandError(f"{option} is {shown}")
    if parts.username is not None and not secret:
        raise CommandError(f"{option} holds a password, which others can read there")
    return url


def read_secret(name: str, path: Path | None) -> str | None:
    """From the option's file, the file that NAME_FILE names, or the variable NAME.

    Raises:
        CommandError: the file cannot be read, or is not one plain line.
    """
    named = os.environ.get(f"{name}_FILE")
    path = path or (Path(named) if named else None)
    secret = (os.environ.get(name, "") if path is None else read_text(path)).strip()
    if not is_plain(secret) or (path is not None and not secret):
        raise CommandError(f"{path or name} does not hold one plain line")
    return secret or None


def is_plain(text: str) -> bool:
    return text.isprintable() and text.isascii()


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "not a text"
        raise CommandError(f"cannot read {path}: {why}") from exc
