"""What every witness of a host is: it looks at one source and says what is bad."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from lightkeeper.worker_server import wire


class CannotReadError(Exception):
    """The witness cannot read its source; the text says why."""


class Witness(Protocol):
    """Looks at one source of a host, in a thread of its own; never at another witness's."""

    name: str
    """`kernel log`, `EDAC`, `cgroup` ...; at most 32 characters."""
    every_s: float
    """Seconds between two looks."""
    deadline_s: float
    """A look that takes longer, in seconds, is reported as "cannot be read"."""

    def look(self, ranks: Collection[int], now_s: float) -> Sequence[wire.Testimony]:
        """All that is bad now or was bad lately, weightiest first.

        Args:
            ranks: PIDs of the host's ranks.
            now_s: Monotonic seconds.

        Raises:
            CannotReadError: its source cannot be read.
        """
        ...
