"""The gate's state on disk: written whole or not at all, and never a reason not to serve.

One JSON object: the list of denials, and how far quorum ids may have been told (`quorum_ids`). Each
part is read by itself, so that one that is spoiled takes nothing from the other.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from monitor.gate.denylist import Denial, DenialError, denials_json, parse_denials
from monitor.gate.quorum_ids import RESERVED_MOST

log = logging.getLogger("lightkeeper.gate")

_FILE_MAX_BYTES: Final = 16 * 1024 * 1024
_RESERVED: Final = "quorum_ids_reserved"
_NO_LIST: Final = "nobody is denied until the monitor says so"
_NO_COUNT: Final = "quorum ids go on from where the Lighthouse is"


class StateFile:
    """A file; without one, a restarted gate waits to be taught, and counts with the Lighthouse."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.denials: Sequence[Denial] = ()
        """The list in force."""
        self.reserved = 0
        """Up to where quorum ids may have been told, as the disk knows it."""
        self._writing = asyncio.Lock()
        self._unreadable = False
        self._read_trouble: str | None = None
        self._write_trouble: str | None = None

    @property
    def exists(self) -> bool:
        """Whether there is a file at all."""
        return self._path is not None

    @property
    def trouble(self) -> str | None:
        """What cannot be read or written, now."""
        return self._write_trouble or self._read_trouble

    # -- reading --------------------------------------------------------------------------------

    def recall(self) -> Sequence[Denial]:
        """The list that was in force, and `reserved`; what cannot be read is said and left out."""
        try:
            state = None if self._path is None else _read(self._path)
        except OSError as exc:
            self._not_read(str(exc.strerror), f"{_NO_LIST}, {_NO_COUNT}")
            return ()
        except (ValueError, RecursionError) as exc:
            self._not_read(str(exc), f"{_NO_LIST}, {_NO_COUNT}")
            return ()
        if state is not None:
            try:
                self.denials = parse_denials(state)
            except DenialError as exc:
                self._not_read(str(exc), _NO_LIST)
            try:
                self.reserved = _reserved(state)
            except ValueError as exc:
                self._not_read(str(exc), _NO_COUNT)
        return self.denials

    def _not_read(self, why: str, lost: str) -> None:
        self._unreadable = True
        self._read_trouble = f"cannot read {self._path}: {why}"
        log.warning("%s: %s", self._read_trouble, lost)

    # -- writing: in a thread, for a disk that hangs must hold up no heartbeat ---------------------

    async def keep(self, denials: Sequence[Denial]) -> None:
        """Write the list; a disk that fails is said and stops nothing."""
        self.denials = tuple(denials)
        if await self._save(self.reserved):
            self._read_trouble = None

    async def reserve(self, number: int) -> None:
        """Write up to where quorum ids may be told from now on."""
        if await self._save(number):
            self.reserved = number

    async def _save(self, reserved: int) -> bool:
        if self._path is None:
            return False
        async with self._writing:
            state = {**denials_json(self.denials), _RESERVED: max(reserved, self.reserved)}
            try:
                await asyncio.to_thread(self._write, self._path, state)
            except OSError as exc:
                text = f"cannot write {self._path}: {exc.strerror}"
                if self._write_trouble != text:
                    log.warning("%s: what changes now is held in memory only", text)
                self._write_trouble = text
                return False
        self._write_trouble = None
        return True

    def _write(self, path: Path, state: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "it is no file")
        if self._unreadable and path.exists():  # whatever it was, somebody may want to look at it
            path.replace(path.with_name(path.name + ".unreadable"))
        self._unreadable = False
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".gate-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(state, file)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _read(path: Path) -> Any:
    """The JSON that it holds; None where there is none.

    Raises:
        OSError, ValueError, RecursionError: it cannot be read.
    """
    if not path.exists():
        return None
    if not path.is_file():  # reading a pipe would wait for ever
        raise ValueError("it is no file")
    with path.open("rb") as file:
        body = file.read(_FILE_MAX_BYTES + 1)
    if len(body) > _FILE_MAX_BYTES:
        raise ValueError(f"over {_FILE_MAX_BYTES} bytes")
    return json.loads(body)


def _reserved(state: Any) -> int:
    """Of a file from before there were any: 0."""
    value = state.get(_RESERVED, 0) if isinstance(state, dict) else 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= RESERVED_MOST:
        raise ValueError(f"{_RESERVED} is no count of quorums")
    return value
