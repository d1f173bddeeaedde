"""Parsing words, and becoming the command of `lightkeeper run`: the standard library alone, for it
must work where nothing else of ours does.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

_CANNOT_RUN_STATUS: Final = 126
_NOT_FOUND_STATUS: Final = 127
"""For a command that cannot be started, as in a shell, env and nohup."""
_HEEDED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these; other programs keep the default."""


class OneLineParser(argparse.ArgumentParser):
    """Reports wrong arguments in one line. Its help looks like that of click's commands."""

    def format_help(self) -> str:
        self.usage = self.usage or "%(prog)s [OPTIONS]"
        text = super().format_help().replace("usage:", "Usage:", 1)
        return text.replace("\noptions:\n", "\nOptions:\n", 1)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")


def become(command: Sequence[str], changes: Mapping[str, str]) -> int:
    """Run the command in place of this process; returns only where it cannot be run."""
    for number in _HEEDED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    changed = {os.fsencode(name): os.fsencode(value) for name, value in changes.items()}
    try:
        os.execvpe(command[0], list(command), {**_as_started(), **changed})  # noqa: S606  as asked
    except FileNotFoundError:
        sys.stderr.write(f"lightkeeper run: {command[0]}: no such command\n")
        return _NOT_FOUND_STATUS
    except (OSError, ValueError) as exc:
        why = getattr(exc, "strerror", None) or exc
        sys.stderr.write(f"lightkeeper run: cannot run {command[0]}: {why}\n")
        return _CANNOT_RUN_STATUS


def _as_started() -> dict[bytes, bytes]:
    """The environment at process start: python may have added LC_CTYPE."""
    now = dict(os.environb)
    try:
        with open("/proc/self/environ", "rb") as file:
            first = dict(line.split(b"=", 1) for line in file.read().split(b"\0") if b"=" in line)
    except OSError:
        return now
    if b"LC_CTYPE" not in first:
        now.pop(b"LC_CTYPE", None)
    return now
