"""Secrets and addresses that options name: a secret stands in a file or in the environment."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from monitor.commands.errors import USAGE, CommandError


def web_url(option: str, url: str, *, secret: bool = False) -> str:
    """A URL that can be asked.

    Raises:
        CommandError: it is none, or holds a password; a secret one is not shown.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable, parts = False, None
    shown = "no http:// or https:// URL" if secret else f"{url!r}, expected http://HOST:PORT/..."
    if not usable or parts is None or not url.isprintable() or " " in url:
        raise CommandError(f"{option} is {shown}", USAGE)
    if parts.username is not None and not secret:
        raise CommandError(f"{option} holds a password, which others can read there", USAGE)
    return url


def read_secret(name: str, path: Path | None) -> str | None:
    """From the option's file, the file that NAME_FILE names, or the variable NAME.

    Raises:
        CommandError: the file cannot be read, or there is no plain line in it.
    """
    named = os.environ.get(f"{name}_FILE")
    path = path or (Path(named) if named else None)
    if path is None:
        text, where = os.environ.get(f"{name}", ""), f"{name}"
    else:
        where = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else "not a text"
            raise CommandError(f"cannot read {path}: {why}", USAGE) from exc
    text = text.strip()
    if path is not None and not text:
        raise CommandError(f"{where} is empty", USAGE)
    if not text.isprintable() or not text.isascii():
        raise CommandError(f"{where} does not hold one plain line", USAGE)
    return text or None
