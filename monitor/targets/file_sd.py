"""A Prometheus `file_sd` list: WorkerServers that do not register themselves."""

from __future__ import annotations

import json
from pathlib import Path


class TargetsError(Exception):
    """A `file_sd` list that cannot be read; the message is one line for a person."""


class TargetsFile:
    """A Prometheus `file_sd` JSON list, read again whenever it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None

    def changed(self) -> tuple[str, ...] | None:
        """The URLs, when the file is new or has changed; None when it has not.

        Raises:
            TargetsError: it cannot be read or is not a `file_sd` list.
        """
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if stamp == self._stamp:
                return None
            urls = parse_file_sd(self._path.read_text(encoding="utf-8"))
        except OSError as exc:
            raise TargetsError(f"cannot read targets file {self._path}: {exc.strerror}") from exc
        except ValueError as exc:
            raise TargetsError(f"targets file {self._path}: {exc}") from exc
        self._stamp = stamp  # a list that cannot be read is tried again, and said again
        return urls


def parse_file_sd(text: str) -> tuple[str, ...]:
    """URLs of a Prometheus `file_sd` list: `[{"targets": ["host:port"], "labels": {...}}]`.

    Raises:
        ValueError: not such a list.
    """
    try:
        entries = json.loads(text)
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc
    if not isinstance(entries, list):
        raise ValueError('expected a list of {"targets": ["host:port", ...]}')  # noqa: TRY004
    urls: dict[str, None] = {}
    for entry in entries:
        addresses = entry.get("targets") if isinstance(entry, dict) else None
        if not isinstance(addresses, list) or not all(isinstance(a, str) for a in addresses):
            raise ValueError('an entry has no "targets": ["host:port", ...]')
        for address in addresses:
            url = address if address.startswith(("http://", "https://")) else f"http://{address}"
            urls[url.rstrip("/")] = None
    return tuple(urls)
