"""The one warning that reports any failure here: a failure never reaches training."""

from __future__ import annotations

import sys
import warnings


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
