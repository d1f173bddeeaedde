"""The one warning in which everything ends that goes wrong here: it never reaches training."""

from __future__ import annotations

import sys
import warnings


def warn(text: str, stacklevel: int) -> None:
    """Warn; where that raises, say the same on stderr instead, or nothing at all.

    A filter turns warnings into errors, stderr is closed or None, `warnings.showwarning` is
    somebody else's, or the stack is used up (so there is no further call on that way).
    """
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=stacklevel)
    except Warning:
        try:  # noqa: SIM105
            sys.stderr.write(f"RuntimeWarning: {text}\n")
        except Exception:  # noqa: BLE001, S110
            pass
    except Exception:  # noqa: BLE001, S110
        pass


class WarnOnce:
    """Warns of each thing once in the life of whoever has it."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def __call__(self, what: str, text: str, stacklevel: int = 5) -> None:
        """Warn, unless this was done."""
        if what not in self._warned:
            self._warned.add(what)
            warn(f"lightkeeper {text}", stacklevel)
