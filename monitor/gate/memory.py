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

from monitor.gate.denial import Denial, DenialError, denials_json, parse_denials
from monitor.gate.quorum_ids import RESERVED_MOST

log = logging.getLogger("lightkeeper.gate")

_FILE_MAX_BYTES: Final = 16 * 1024 * 1024
_RESERVED: Final = "quorum_ids_reserved"


class Memory:
    """A file; without one, a restarted gate waits to be taught, and counts with the Lighthouse."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.denials: Sequence[Denial] = ()
        """What goes into the file beside the number: the list in force."""
        self.reserved = 0
        """Up to where quorum ids may have been told, as the disk knows it."""
        self._writing = asyncio.Lock()
        self._unread = False
        self._read_trouble: str | None = None
        self._write_trouble: str | None = None

    @property
    def keeps(self) -> bool:
        """Whether there is a file at all."""
        return self._path is not None

    @property
    def trouble(self) -> str | None:
        """What cannot be read or written, now."""
        return self._write_trouble or self._read_trouble

    # -- reading --------------------------------------------------------------------------------

    def recall(self) -> tuple[Denial, ...]:
        """The list that was in force, and `reserved`; what cannot be read is said and left out."""
        said = self._read()
        if said is None:
            return ()
        found: tuple[Denial, ...] = ()
        try:
            found = parse_denials(said)
        except DenialError as exc:
            self._not_read(str(exc), "nobody is denied until the monitor says so")
        try:
            self.reserved = _reserved(said)
        except ValueError as exc:
            self._not_read(str(exc), "quorum ids go on from where the Lighthouse is")
        self.denials = found
        return found

    def _read(self) -> Any:
        """The JSON that it holds; None where there is none."""
        if self._path is None:
            return None
        lost = "nobody is denied until the monitor says so, quorum ids go on from the Lighthouse's"
        try:
            if not self._path.exists():
                return None
            if not self._path.is_file():  # reading a pipe would wait for ever
                self._not_read("it is no file", lost)
                return None
            with self._path.open("rb") as file:
                body = file.read(_FILE_MAX_BYTES + 1)
            if len(body) > _FILE_MAX_BYTES:
                self._not_read(f"over {_FILE_MAX_BYTES} bytes", lost)
                return None
            return json.loads(body)
        except OSError as exc:
            self._not_read(str(exc.strerror), lost)
        except (ValueError, RecursionError) as exc:
            self._not_read(str(exc), lost)
        return None

    def _not_read(self, why: str, lost: str) -> None:
        self._unread = True
        self._read_trouble = f"cannot read {self._path}: {why}"
        log.warning("%s: %s", self._read_trouble, lost)

    # -- writing: in a thread, for a disk that hangs must hold up no heartbeat ---------------------

    async def keep(self, denials: Sequence[Denial]) -> None:
        """Write the list; a disk that fails is said and stops nothing."""
        self.denials = tuple(denials)
        if await self._keep(denials, self.reserved):
            self._read_trouble = None

    async def reserve(self, number: int) -> None:
        """Write up to where quorum ids may be told from now on."""
        if await self._keep(None, number):
            self.reserved = number

    async def _keep(self, denials: Sequence[Denial] | None, reserved: int) -> bool:
        if self._path is None:
            return False
        async with self._writing:
            said = denials_json(self.denials if denials is None else denials)
            said[_RESERVED] = max(reserved, self.reserved)
            try:
                await asyncio.to_thread(self._write, self._path, said)
            except OSError as exc:
                text = f"cannot write {self._path}: {exc.strerror}"
                if self._write_trouble != text:
                    log.warning("%s: what changes now is held in memory only", text)
                self._write_trouble = text
                return False
        self._write_trouble = None
        return True

    def _write(self, path: Path, said: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "it is no file")
        if self._unread and path.exists():  # whatever it was, somebody may want to look at it
            path.replace(path.with_name(path.name + ".unreadable"))
        self._unread = False
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".gate-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(said, file)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _reserved(said: Any) -> int:
    """Of a file from before there were any: 0.

    Raises:
        ValueError: it is no number that a gate wrote.
    """
    value = said.get(_RESERVED, 0) if isinstance(said, dict) else 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= RESERVED_MOST:
        raise ValueError(f"{_RESERVED} is no count of quorums")
    return value
