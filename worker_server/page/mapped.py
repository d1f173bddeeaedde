"""A page file, opened and checked; what every part of the reader needs."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

from worker_server import wire
from worker_server.page import layout

T = TypeVar("T")

NS = 1e-9
_TRIES = 1000


class MappedPage:
    """One page file, mapped for reading.

    Raises:
        layout.PageError: the file is foreign, cut short, or of another version.
    """

    def __init__(self, path: Path) -> None:
        self._map = _open(path)
        self._words = memoryview(self._map).cast("q")
        if self._words[layout.W_MAGIC] != layout.MAGIC:
            raise layout.PageError(f"{path} is not a lightkeeper page")
        version, total = self._words[layout.W_VERSION], self._words[layout.W_TOTAL_BYTES]
        if version != layout.VERSION or total != layout.TOTAL_BYTES:
            raise layout.PageError(f"{path} has layout {version}, not {layout.VERSION}")
        size = self._words[layout.W_IDENTITY_BYTES]
        blob = self._map[layout.IDENTITY_OFFSET : layout.IDENTITY_OFFSET + max(0, size)]
        try:
            self._launched = wire.parse_identity(json.loads(blob))
        except (ValueError, RecursionError) as exc:
            raise layout.PageError(f"{path} carries no identity: {exc}") from exc
        self.start_ticks = self._words[layout.W_START_TICKS]
        self._strings: list[str] = []

    def _retry(self, read: Callable[[], T | None]) -> T | None:
        """First whole answer. The writer is done within microseconds; it cannot starve us."""
        for _ in range(_TRIES):
            answer = read()
            if answer is not None:
                return answer
        return None

    def _newest(self, load: Callable[[int], tuple[int, T, int]]) -> tuple[int, T] | None:
        """Stamp and body of the last write that is whole; stamp 0 on a fresh page.

        `load` gives last stamp, body and first stamp of slot 0 or 1, loaded in this order. Where
        one slot is torn, the other counts only while the torn one is the very next write: a slow
        reader may have loaded it when it was new, and a write that was read once is never unsaid.
        """

        def read() -> tuple[int, T] | None:
            slots = load(0), load(1)
            whole = [(last, body) for last, body, first in slots if first == last]
            if len(whole) == 1 and max(first for _, _, first in slots) > whole[0][0] + 1:
                return None
            return max(whole, key=itemgetter(0)) if whole else None

        return self._retry(read)

    def _copy(self, word: int, size: int) -> bytes:
        """So many bytes in one go: the shorter a read, the fewer are torn and made again."""
        return self._map[word * layout.WORD : word * layout.WORD + size]

    def _text(self, offset: int, size: int) -> str:
        return self._map[offset : offset + size].split(b"\0", 1)[0].decode(errors="replace")

    def _names(self, offset: int, count_word: int, limit: int) -> list[str]:
        """The phases', tags' or counters' names so far."""
        return [
            self._text(offset + n * layout.NAME_BYTES, layout.NAME_BYTES)
            for n in range(min(self._words[count_word], limit))
        ]

    def _string(self, index: int) -> str:
        count = min(self._words[layout.W_STRINGS], layout.MAX_STRINGS)
        while len(self._strings) < count:
            offset = layout.STRING_OFFSET + len(self._strings) * layout.STRING_BYTES
            blob = self._map[offset + 1 : offset + 1 + self._map[offset]]
            self._strings.append(blob.decode(errors="replace"))
        return self._strings[index] if 0 <= index < len(self._strings) else ""


def _open(path: Path) -> mmap.mmap:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as exc:
        raise layout.PageError(f"cannot open {path}: {exc.strerror}") from exc
    try:
        size = os.fstat(fd).st_size
        if size != layout.TOTAL_BYTES:
            raise layout.PageError(f"{path} has {size} bytes, a page has {layout.TOTAL_BYTES}")
        return mmap.mmap(fd, size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as exc:
        raise layout.PageError(f"cannot map {path}: {exc}") from exc
    finally:
        os.close(fd)
