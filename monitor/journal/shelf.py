"""The folder of the journal: names, sizes, room; the oldest files go first."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

PATTERN: Final = "journal-*.gz"
SPARE_BYTES: Final = 64 << 20
"""Free space that is left to others on the same disk: the store comes first."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of the past is kept."""

    total_bytes: int = 256_000_000
    file_bytes: int = 32_000_000
    """A new file beyond this: each begins with the pipeline's whole memory, so that smaller files
    hold more of that, and larger ones lose more of the past when the oldest goes."""
    file_s: float = 3600.0
    """A new file at least so often."""


class Shelf:
    """The files of one folder. Whatever it does may raise OSError."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.folder = folder
        self.limits = limits

    def new(self, began_s: float, number: int) -> tuple[Path, BinaryIO]:
        """An empty file; older ones make room for it."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.prune(self.limits.file_bytes)
        self.check_room()
        at = datetime.datetime.fromtimestamp(began_s, tz=datetime.UTC)
        path = self.folder / f"journal-{at:%Y%m%dT%H%M%S.%f}Z-{number:04d}.gz"
        return path, path.open("xb", buffering=0)

    def check_room(self) -> None:
        """Whether there is room on the disk.

        Raises:
            OSError: there is less than others on the same disk need.
        """
        free = shutil.disk_usage(self.folder).free
        if free < SPARE_BYTES:
            raise OSError(f"{free >> 20} MiB are free, {SPARE_BYTES >> 20} MiB are left to others")

    def prune(self, coming: int, keep: Path | None = None) -> None:
        """Remove the oldest files until `coming` more bytes fit below the total; never `keep`."""
        sizes = {path: size for path in files(self.folder) if (size := _size(path)) is not None}
        held = sum(sizes.values())
        for path, size in sizes.items():
            if held + coming <= self.limits.total_bytes:
                return
            if path != keep:
                path.unlink(missing_ok=True)
                held -= size


def files(folder: Path) -> list[Path]:
    """Journal files of a folder, oldest first."""
    return sorted(folder.glob(PATTERN))


def _size(path: Path) -> int | None:
    with contextlib.suppress(FileNotFoundError):
        return os.stat(path).st_size
    return None
