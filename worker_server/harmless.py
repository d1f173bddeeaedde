"""Calls of ours that training outlives, whatever becomes of them."""

from __future__ import annotations

import os
import sys
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
