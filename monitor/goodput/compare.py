"""Several ways to run one job beside each other, and one job at several sizes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from monitor.goodput.formulas import linear, poisson
from monitor.goodput.scenario import Scenario, ScenarioError
from monitor.goodput.simulate import Draw, Simulated, simulate


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way: both arithmetics and, where asked for, the simulation."""

    scenario: Scenario
    linear: float
    poisson: float
    simulated: Simulated | None

    @property
    def name(self) -> str:
        """Of the way."""
        return self.scenario.handling.name


@dataclass(frozen=True, slots=True)
class Simulation:
    """How to simulate: its length, and a generator of random numbers for each name."""

    faults: int
    draw: Callable[[str], Draw]


def outcome(scenario: Scenario, simulation: Simulation | None) -> Outcome:
    """One way; its random numbers depend on its name and the job's size, on no other way."""
    simulated = None
    if simulation is not None:
        draw = simulation.draw(f"{scenario.handling.name} {scenario.job.ranks}")
        simulated = simulate(scenario, draw, simulation.faults)
    return Outcome(scenario, linear(scenario), poisson(scenario), simulated)


def compare(scenarios: Sequence[Scenario], simulation: Simulation | None) -> tuple[Outcome, ...]:
    """All of them."""
    return tuple(outcome(one, simulation) for one in scenarios)


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
