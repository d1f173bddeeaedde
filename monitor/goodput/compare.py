"""Several ways to run one job beside each other, and one job at several sizes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monitor.goodput.formulas import linear, poisson
from monitor.goodput.scenario import Scenario, ScenarioError


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way by both arithmetics."""

    scenario: Scenario
    linear: float
    poisson: float

    @property
    def name(self) -> str:
        """Of the way."""
        return self.scenario.handling.name


def compare(scenarios: Sequence[Scenario]) -> tuple[Outcome, ...]:
    """All of them."""
    return tuple(Outcome(one, linear(one), poisson(one)) for one in scenarios)


def sizes(first: int, last: int, unit: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20 ... between the two, both included, each a multiple of the unit.

    Raises:
        ScenarioError: not two sizes in order, or smaller than the unit.
    """
    if not unit <= first < last <= 10_000_000:
        raise ScenarioError(
            f"the sweep is {first}:{last}, expected two sizes in order, {unit} to 10000000"
        )
    found = {first, last}
    decade = 1
    while decade <= last:
        found.update(size for size in (decade, 2 * decade, 5 * decade) if first < size < last)
        decade *= 10
    return tuple(sorted({max(1, round(size / unit)) * unit for size in found}))
