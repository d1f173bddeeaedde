"""What happens to a fleet, and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tests.monitor.fleet.fleet import SimFleet

Fault = Callable[["SimFleet"], None]


class At(NamedTuple):
    """One line of a fault script."""

    at_s: float
    fault: Fault


def at(at_s: float, fault: Fault) -> At:
    """`fault` happens `at_s` seconds after the fleet's first tick."""
    return At(at_s, fault)
