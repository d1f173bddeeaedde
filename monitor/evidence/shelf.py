"""The folder of bundles: names, writing whole or not at all, how long they are kept."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from monitor.config import KeeperConfig
from monitor.names import IncidentId
from monitor.view import BundleView

_END: Final = ".zip"
_TEMPORARY: Final = ".part"
_ODD: Final = re.compile(r"[^A-Za-z0-9_.-]")
_MIB: Final = 1024 * 1024
_DAY_S: Final = 86_400.0
_NAME_MAX: Final = 150
"""Of a file's 255 bytes: room for the ending, and for whoever copies it."""


@dataclass(frozen=True, slots=True)
class Keep:
    """How much is kept; the oldest go first."""

    count: int
    age_s: float
    nbytes: int


def keep_of(config: KeeperConfig) -> Keep:
    """How much the configuration keeps."""
    return Keep(
        config.evidence_count, config.evidence_days * _DAY_S, config.evidence_total_mib * _MIB
    )


@dataclass(frozen=True, slots=True)
class _File:
    nbytes: int
    written_s: float


def safe_name(text: str) -> str:
    """A file's name for any text: one for each, no folder, never hidden, never too long."""
    plain = _ODD.sub(lambda odd: "".join(f"%{byte:02x}" for byte in _bytes(odd[0])), text)
    plain = f"%{plain}" if plain.startswith(".") or not plain else plain
    if len(plain) <= _NAME_MAX:
        return plain
    digest = hashlib.sha256(_bytes(text)).hexdigest()[:20]
    return f"{plain[: _NAME_MAX - 21]}~{digest}"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def open_new(path: Path) -> IO[bytes]:
    """A file that only its owner reads: stacks and last words may hold secrets of the job."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "w+b")


class Shelf:
    """The bundles on disk. Safe to use from any thread; disk errors are the caller's `OSError`."""

    def __init__(
        self, folder: Path, keep: Keep, opener: Callable[[Path], IO[bytes]] = open_new
    ) -> None:
        self.folder = folder
        self._keep = keep
        self._opener = opener
        self._files: dict[str, _File] = {}
        self._changed = threading.Lock()

    def open(self) -> None:
        """Make the folder and find what is in it.

        Raises:
            OSError: it cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = {}
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith(_TEMPORARY):
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)
                elif entry.name.endswith(_END) and entry.is_file(follow_symlinks=False):
                    known = entry.stat(follow_symlinks=False)
                    found[entry.name] = _File(known.st_size, known.st_mtime)
        with self._changed:
            self._files = found

    def view(self, incident_id: IncidentId) -> BundleView | None:
        """What there is of an incident; asks no disk."""
        file = self._files.get(safe_name(incident_id) + _END)
        return None if file is None else BundleView(file.nbytes, file.written_s)

    def path(self, incident_id: IncidentId) -> Path | None:
        """Where its bundle lies; always a file of this folder."""
        name = safe_name(incident_id) + _END
        return self.folder / name if name in self._files else None

    @property
    def nbytes(self) -> int:
        """Of all bundles."""
        with self._changed:
            return sum(file.nbytes for file in self._files.values())

    def write(self, incident_id: IncidentId, fill: Callable[[IO[bytes]], None]) -> int:
        """Replace an incident's bundle by what `fill` writes; its size.

        Raises:
            OSError: the disk does not take it; the former bundle is still there.
        """
        name = safe_name(incident_id) + _END
        made = self.folder / (name + _TEMPORARY)
        try:
            with self._opener(made) as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(made, self.folder / name)
        except BaseException:
            with contextlib.suppress(OSError):
                made.unlink(missing_ok=True)
            raise
        known = (self.folder / name).stat()
        with self._changed:
            self._files[name] = _File(known.st_size, known.st_mtime)
        return known.st_size

    def tidy(self, now_s: float) -> int:
        """Remove what is too old or too much, the oldest first, but never the newest; how many.

        Raises:
            OSError: one of them cannot be removed.
        """
        with self._changed:
            files = dict(self._files)
        kept, nbytes, gone = 0, 0, []
        for name, file in sorted(files.items(), key=lambda one: (-one[1].written_s, one[0])):
            fits = kept < self._keep.count and nbytes + file.nbytes <= self._keep.nbytes
            young = now_s - file.written_s <= self._keep.age_s
            if young and (fits or not kept):
                kept, nbytes = kept + 1, nbytes + file.nbytes
            else:
                gone.append(name)
        for name in gone:
            (self.folder / name).unlink(missing_ok=True)
            with self._changed:
                self._files.pop(name, None)
        return len(gone)
