"""What tells steps and phases for loops that do not report themselves.

Belongs here: one module a framework, by a name that users write down (entry points, variables),
each through `reporter.from_source(...)`, so that a loop's own reports always win. Does not belong
here: an import of the framework at import time, and anything that could raise into it or make a GPU
wait.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worker_server.rank.reporter import ReportSource


class Spans:
    """Phases that begin and end by two separate events; innermost last.

    They may come unbalanced: ending one ends what was left open inside of it.
    """

    def __init__(self, source: ReportSource) -> None:
        self._source = source
        self._open: list[tuple[str, AbstractContextManager[Any]]] = []

    def begin(self, name: str) -> None:
        """Enter a phase inside of the running one."""
        phase = self._source.phase(name)
        phase.__enter__()
        self._open.append((name, phase))

    def end(self, *names: str) -> None:
        """Leave the innermost of these that is open; nothing when none is."""
        places = [at for at, (name, _) in enumerate(self._open) if name in names]
        while places and len(self._open) > places[-1]:
            self._open.pop()[1].__exit__(None, None, None)
