"""What never reaches training: a call of ours that fails, and the one warning of any failure."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")
_warned = False


def guarded(call: Callable[[], T], otherwise: U) -> T | U:
    """The result of `call`; `otherwise` with LIGHTKEEPER=0, and where it raises (a package that we
    import is missing, broken or too old): one line on stderr, and training continues.
    """
    if os.environ.get("LIGHTKEEPER") == "0":
        return otherwise
    try:
        return call()
    except Exception as exc:  # noqa: BLE001  training continues without us
        global _warned  # noqa: PLW0603  once is enough
        if not _warned:
            _warned = True
            said = " ".join(f"{type(exc).__name__}: {exc}".split())
            with suppress(Exception):  # a stderr that is closed, full or None
                sys.stderr.write(f"lightkeeper is not attached: {said}\n")
        return otherwise


def warn(text: str) -> None:
    """Warn; where that raises, write the text to stderr, or do nothing. It is one line: no line of
    ours, or of the program, is the place of it.

    It raises if a filter turns warnings into errors, stderr is closed or None,
    `warnings.showwarning` is replaced, or the stack is used up (so then nothing further is called).
    """
    try:
        warnings.warn_explicit(text, RuntimeWarning, "lightkeeper", 0)
    except Warning:
        try:  # noqa: SIM105
            sys.stderr.write(f"RuntimeWarning: {text}\n")
        except Exception:  # noqa: BLE001, S110
            pass
    except Exception:  # noqa: BLE001, S110
        pass


class WarnOnce:
    """Warns about each thing once per instance."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def __call__(self, what: str, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            warn(f"lightkeeper {text}")
