"""Commands of a scheduler: an argument list, a deadline, no shell."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

OUTPUT_MAX_CHARS: Final = 16 * 1024 * 1024
"""`sinfo` of 5,000 nodes in three partitions is a megabyte."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command said."""

    status: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """One line for a person."""
        words = " ".join((self.err or self.out).split())
        return words[:300] or f"exit status {self.status}"


class RunError(Exception):
    """A command that did not run, or not to its end; the message is one line for a person."""


Run = Callable[[Sequence[str], float], Ran]
"""Runs an argument list within so many seconds. Raises `RunError`."""


def run(argv: Sequence[str], timeout_s: float) -> Ran:
    """Run a command that is found in PATH.

    Raises:
        RunError: it is not installed, cannot be started, or has not ended in time (it is killed).
    """
    environ = {**os.environ, "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            env=environ,
            check=False,
        )
    except FileNotFoundError as exc:
        raise RunError(f"{argv[0]} is not installed here") from exc
    except subprocess.TimeoutExpired as exc:
        raise RunError(f"{argv[0]} has not ended within {timeout_s:.1f} s") from exc
    except (OSError, ValueError) as exc:
        raise RunError(f"{argv[0]} cannot be started: {exc}") from exc
    out, err = (
        text[:OUTPUT_MAX_CHARS].decode(errors="replace") for text in (done.stdout, done.stderr)
    )
    return Ran(done.returncode, out, err)
