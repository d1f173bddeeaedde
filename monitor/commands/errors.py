"""How a command fails: one line on stderr and an exit status."""

from __future__ import annotations

from typing import Final

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2


class CommandError(Exception):
    """One line for a person, and the exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(" ".join(message.split()))
        self.status = status
