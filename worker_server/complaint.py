"""The one warning in which everything ends that goes wrong here: it never reaches training."""

from __future__ import annotations

import contextlib
import sys
import warnings


def complain(text: str, stacklevel: int) -> None:
    """Warn; where a filter turns warnings into errors, say the same on stderr instead."""
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=stacklevel)
    except Warning:
        with contextlib.suppress(Exception):  # stderr may be closed, or None
            sys.stderr.write(f"RuntimeWarning: {text}\n")
