"""Reports steps and phases for training loops that do not report them themselves.

Belongs here: one module per framework, under a name that users write (entry points, variables).
Each uses `reporter.from_source(...)`, so that a loop's own reports always win. Does not belong
here: an import of the framework at import time, and anything that could raise into it or make a GPU
wait.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightkeeper.worker_server.rank.reporter import ReportSource


class Spans:
    """Open phases that begin and end with separate events; innermost last.

    Events may be unbalanced: ending a phase also ends those left open inside it.
    """

    def __init__(self, source: ReportSource) -> None:
        self._source = source
        self._open: list[tuple[str, AbstractContextManager[Any]]] = []

    def begin(self, name: str) -> None:
        """Enter a phase inside the current one."""
        phase = self._source.phase(name)
        phase.__enter__()
        self._open.append((name, phase))

    def end(self, *names: str) -> None:
        """Leave the innermost open phase of these; does nothing when none is open."""
        places = [at for at, (name, _) in enumerate(self._open) if name in names]
        while places and len(self._open) > places[-1]:
            self._open.pop()[1].__exit__(None, None, None)
