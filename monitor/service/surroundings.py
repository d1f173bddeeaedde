"""What this process is among: its host's name and limits, its version, the Lighthouse."""

from __future__ import annotations

import resource
import socket
from importlib import metadata
from urllib.parse import urlsplit

from monitor.fetch import Fetcher
from monitor.lighthouse import Lighthouse
from monitor.snapshot import LighthouseAway


def for_people(url: str) -> str:
    """Where the monitor is bound, but for an address that means every one of this host's."""
    host = urlsplit(url).hostname or ""
    every = host in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
    return url.replace(f"[{host}]", host).replace(host, socket.gethostname()) if every else url


def reach(url: str) -> str | None:
    """Why the Lighthouse cannot be reached right now; None when it can."""
    fetcher = Fetcher()
    try:
        view = Lighthouse(url, fetcher).look(2.0)
        return view.reason if isinstance(view, LighthouseAway) else None
    finally:
        fetcher.close()


def raise_file_limit() -> None:
    """One connection a rank: as many files as the system lets us have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def version() -> str:
    """Of the installed package."""
    try:
        return metadata.version("lightkeeper")
    except metadata.PackageNotFoundError:
        return "0+source"
