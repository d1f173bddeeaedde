"""Values of options of several commands: secrets, addresses, thresholds, names.

A secret is in a file or in the environment, never an argument.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from lightkeeper.monitor.commands.command import FILE, CommandError, F, option
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.names import GroupName
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


def read_group_tokens(group_tokens: Path | None) -> Mapping[GroupName, str]:
    """Lines of `GROUP TOKEN`; several groups may share one. Empty: no file.

    Raises:
        CommandError: the file cannot be read, is open to others, or has a bad line.
    """
    tokens: dict[GroupName, str] = {}
    path = group_tokens
    if path is None:
        return tokens
    text = _text(path)
    if home.is_open(path.stat()):
        raise CommandError(f"{path} holds secrets that others can read: chmod 600 {path}")
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if words and (len(words) != 2 or words[0] in tokens or not _is_plain(words[1])):
            raise CommandError(f"{path}:{number} is not a new GROUP and its TOKEN")
        if words:
            tokens[GroupName(words[0])] = words[1]
    return tokens


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
    secret = (os.environ.get(name, "") if path is None else _text(path)).strip()
    if not _is_plain(secret) or (path is not None and not secret):
        raise CommandError(f"{path or name} does not hold one plain line")
    return secret or None


def _is_plain(text: str) -> bool:
    return text.isprintable() and text.isascii()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "not a text"
        raise CommandError(f"cannot read {path}: {why}") from exc


# -- `--set NAME=VALUE`: a threshold of `monitor/model/config.py`, by its name --------------------


def threshold(about: str) -> Callable[[F], F]:
    """The option; its values are in `changed`."""
    return option("--set", "changed", multiple=True, metavar="NAME=VALUE", help=about)


def thresholds(changed: Iterable[str]) -> dict[str, Any]:
    """Values by name. The config checks whether the threshold exists, and its bounds.

    Raises:
        CommandError: not NAME=VALUE, or a value of another type.
    """
    chosen: dict[str, Any] = {}
    for text in changed:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise CommandError(f"--set is {text!r}, expected NAME=VALUE")
        chosen[name] = _value(name, value)
    return chosen


def _value(name: str, text: str) -> Any:
    default = getattr(KeeperConfig(), name, 0.0)
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise CommandError(f"--set {name} is {text!r}, expected true or false")
        return text == "true"
    try:
        return int(text) if isinstance(default, int) else float(text)
    except ValueError as exc:
        kind = "a whole number" if isinstance(default, int) else "a number"
        raise CommandError(f"--set {name} is {text!r}, expected {kind}") from exc
