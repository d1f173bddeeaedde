"""How a command fails: one line on stderr and an exit status."""

from __future__ import annotations

import argparse
from typing import Final, NoReturn

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
CANNOT_TELL: Final = 3
"""A limit was reached before there was an answer."""


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


class CannotTellError(CommandError):
    """There is no answer, and nobody is accused on a part of the evidence."""

    def __init__(self, reason: str, done: int = 0, total: int = 0) -> None:
        """`done` of `total` files were read."""
        super().__init__(f"cannot tell: {reason}; {_left_out(done, total)}", CANNOT_TELL)
        self.reason, self.done, self.total = reason, done, total


def _left_out(done: int, total: int) -> str:
    if not total:
        return "no file was read"
    if done < total:
        return f"{done:,} of {total:,} files were read, the others are left out"
    return f"all {total:,} files were read, and none was weighed"
