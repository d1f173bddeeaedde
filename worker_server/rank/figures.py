"""Figures that a training loop reports, read without a wait.

Figures are numbers, or objects that hold one, perhaps on a device. Reading a number off a GPU (or
out of a JAX array) makes the host wait for all work launched before: only the loop itself may do
that.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, Final, TypeVar

T = TypeVar("T")
MOST: Final = 2**61
LEAST: Final = -MOST
"""What a word of the page holds, with room for sums."""


class OddFigureError(ValueError):
    """A figure that cannot be reported; the message says why."""


def to_float(value: Any) -> float:
    """The number.

    Raises:
        OddFigureError: it is not a number, or reading it would make the rank wait.
    """
    return _read(float, value)


def to_int(value: Any) -> int:
    """The whole number.

    Raises:
        OddFigureError: it is not a number, too large, or reading it would make the rank wait.
    """
    number = _read(int, value)
    if not LEAST < number < MOST:
        raise OddFigureError("it is beyond 64 bits")
    return number


def to_count(value: Any) -> int:
    """The whole number, to be added to a count.

    Raises:
        OddFigureError: as `to_int`, or it is negative.
    """
    number = to_int(value)
    if number < 0:
        raise OddFigureError("what is counted only grows")
    return number


def _read(kind: Callable[[Any], T], value: Any) -> T:
    device = getattr(value, "device", None)
    place = getattr(device, "type", device)
    if place is not None and place != "cpu":
        raise OddFigureError(f"it is on {place}, and reading it would make the rank wait")
    try:
        return kind(value.detach() if getattr(value, "requires_grad", False) is True else value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as exc:
        raise OddFigureError(str(exc)) from exc


def is_finite(value: Any) -> bool | None:
    """True if a figure is neither NaN nor infinite; None where that cannot be read at once.

    Never waits for an accelerator: what lies on one is not read.
    """
    try:
        return isfinite(value if value.__class__ is float else to_float(value))
    except OddFigureError:
        return None


def none_is_spoilt(*values: Any) -> bool:
    """True if none of these is known to be NaN or infinite; an unreadable one is not."""
    return all(is_finite(value) is not False for value in values)
