"""The gate's list on disk: written whole or not at all, and never a reason not to serve."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from monitor.gate.denial import Denial, DenialError, denials_json, parse_denials

log = logging.getLogger("lightkeeper.gate")

_FILE_MAX_BYTES: Final = 16 * 1024 * 1024


class Memory:
    """A file with the list in force; without one, a restarted gate waits to be taught."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.trouble: str | None = None
        """Why the list cannot be read or written, now."""

    def recall(self) -> tuple[Denial, ...]:
        """What was in force; nothing where that cannot be read, and then it is said."""
        if self._path is None or not self._path.exists():
            return ()
        try:
            with self._path.open("rb") as file:
                body = file.read(_FILE_MAX_BYTES + 1)
            if len(body) > _FILE_MAX_BYTES:
                self._trouble(f"cannot read {self._path}: over {_FILE_MAX_BYTES} bytes")
                return ()
            return parse_denials(json.loads(body))
        except OSError as exc:
            self._trouble(f"cannot read {self._path}: {exc.strerror}")
        except (DenialError, ValueError, RecursionError) as exc:
            self._trouble(f"cannot read {self._path}: {exc}")
        return ()

    def keep(self, denials: Sequence[Denial]) -> None:
        """Write the list; a disk that fails is said and stops nothing."""
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=".gate-")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    json.dump(denials_json(denials), file)
                    file.flush()
                    os.fsync(file.fileno())
                Path(name).replace(self._path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as exc:
            self._trouble(f"cannot write {self._path}: {exc.strerror}")
        else:
            self.trouble = None

    def _trouble(self, text: str) -> None:
        if self.trouble != text:
            log.warning("%s: the list is held in memory only", text)
        self.trouble = text
