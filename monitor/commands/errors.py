"""How a command fails: one line on stderr and an exit status."""

from __future__ import annotations

import argparse
from typing import Final, NoReturn

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong with the arguments in one line; the usage is a `--help` away."""

    def error(self, message: str) -> NoReturn:
        """End with status 2."""
        self.exit(USAGE, f"{self.prog}: {message} (see {self.prog} --help)\n")


class CommandError(Exception):
    """One line for a person, and the exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(" ".join(message.split()))
        self.status = status
