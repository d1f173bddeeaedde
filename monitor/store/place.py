"""Where a store is, and what its lease says.

A file on this host, or a database by URL, whose password is never shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

_POSTGRES: Final = ("postgresql", "postgres", "postgresql+psycopg")
_SECRETS: Final = re.compile(r"(?i)\b(password|sslpassword)=[^&\s]*")


class StoreError(Exception):
    """The store cannot be opened or used; the message is one line for a person, no password."""


class Gone(StoreError):  # noqa: N818 - what happened to it
    """The store's file was moved or deleted: another monitor may begin with a new one."""


@dataclass(frozen=True, slots=True)
class StorePlace:
    """What `--store` says."""

    path: Path | None
    """The SQLite file; None: PostgreSQL."""
    url: str = field(default="", repr=False)
    """URL of the PostgreSQL database for SQLAlchemy, with the password."""
    shown: str = ""
    """The place as people see it, without the password."""

    def __str__(self) -> str:
        return self.shown


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """The row that says which monitor acts, as it was read."""

    epoch: int
    beat: int
    writes: int
    """Batches written to the store: a reader that sees another number reads again."""
    holder: str | None
    url: str | None
    since_s: float | None
    """Unix time when the lease was taken, by the holder's clock; only shown to people."""
    ttl_s: float


def parse_place(text: str | Path | StorePlace) -> StorePlace:
    """A path or `postgresql://USER@HOST/DATABASE`.

    Raises:
        StoreError: a URL of anything else.
    """
    if isinstance(text, StorePlace):
        return text
    if isinstance(text, Path):
        return _file(text)
    scheme, separator, location = text.partition("://")
    if not separator:
        return _file(Path(text))
    if scheme in _POSTGRES:
        return StorePlace(
            None, f"postgresql+psycopg://{location}", without_password(f"postgresql://{location}")
        )
    raise StoreError(
        f"--store {scheme}:// is not known, expected a path or postgresql://USER@HOST/DATABASE"
    )


def without_password(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"{url.partition('://')[0]}://..."
    user, at, address = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    netloc = f"{name}{':***' if colon else ''}{at}{address}"
    query = _SECRETS.sub(lambda hit: f"{hit[1]}=***", parts.query)
    return urlunsplit((parts.scheme, netloc, parts.path, query, ""))


def _file(path: Path) -> StorePlace:
    return StorePlace(path, shown=str(path))
