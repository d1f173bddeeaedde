"""The status file: one JSON object per line, for tests, demos and `tail -f`.

Many ranks may append to one file: a line is one `write` to a descriptor opened for append,
so lines never mix. The file is evidence of what a run did; the trainer never reads it back.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class StatusFile:
    """Appends events, each with the fields `always`; without a path it drops them."""

    def __init__(self, path: Path | None, **always: Any) -> None:
        self._always, self._descriptor = always, None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o644)

    def write(self, event: str, **facts: Any) -> None:
        """One line: the time in unix seconds, the event, the `always` fields, then `facts`."""
        if self._descriptor is not None:
            line = {"time": round(time.time(), 6), "event": event, **self._always, **facts}
            os.write(self._descriptor, json.dumps(line).encode() + b"\n")


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events so far, without a last line that is still being written."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def fingerprint(state: Mapping[str, Tensor]) -> str:
    """SHA-256 over names and bytes of all tensors: equal only if they are bitwise equal."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
