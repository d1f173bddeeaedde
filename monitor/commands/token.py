"""The shared secret: a file or the environment, never argv."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from monitor.commands.errors import USAGE, CommandError


def add_token_option(parser: argparse._ActionsContainer) -> None:
    """`--token-file`."""
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="holds the secret shared with the WorkerServers (default: the file named by "
        "LIGHTKEEPER_TOKEN_FILE, or the variable LIGHTKEEPER_TOKEN)",
    )


def read_token(path: Path | None) -> str | None:
    """The token; None when none is configured.

    Raises:
        CommandError: the file cannot be read or holds no token.
    """
    named = os.environ.get("LIGHTKEEPER_TOKEN_FILE")
    path = path or (Path(named) if named else None)
    if path is None:
        token = os.environ.get("LIGHTKEEPER_TOKEN", "").strip()
        if not token.isprintable() or not token.isascii():
            raise CommandError("LIGHTKEEPER_TOKEN is no token: expected one plain line", USAGE)
        return token or None
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "not a text"
        raise CommandError(f"cannot read token file {path}: {why}", USAGE) from exc
    if not token or not token.isprintable() or not token.isascii() or " " in token:
        raise CommandError(f"token file {path} holds no token: expected one plain line", USAGE)
    return token
