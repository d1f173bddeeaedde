"""A job, its faults, its times, and how faults are answered. Pure.

**Effective training time** (goodput): committed steps, by the share of the groups that contributed
to each, over what the same time would have given without faults.

A fault of one rank is one of three kinds. *Fail-stop*: the process or host is gone. *Hang*: it
stands, alive, and everybody waits. *Slow*: it works, everybody at its pace, until it recovers or is
evicted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

DAY_S: Final = 86_400.0
_LONGEST_S: Final = 1e9
_MOST_RANKS: Final = 10_000_000


class ScenarioError(ValueError):
    """A number that makes no sense; one line."""


class FaultKind(StrEnum):
    """What a fault looks like to the others."""

    STOP = "fail-stop"
    HANG = "hang"
    SLOW = "slow"


def _check(what: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # NaN too
        raise ScenarioError(f"{what} is {value:g}, expected {low:g} to {high:g}")


@dataclass(frozen=True, slots=True)
class Job:
    """Its size and how often any of it fails.

    Raises:
        ScenarioError: a number out of range, or ranks that groups do not divide.
    """

    ranks: int
    groups: int
    mtbf_s: float
    """Of the whole job: mean time between faults of any rank."""

    def __post_init__(self) -> None:
        _check("ranks", self.ranks, 2, _MOST_RANKS)
        _check("groups", self.groups, 2, self.ranks)
        _check("mtbf_s", self.mtbf_s, 1.0, _LONGEST_S)
        if self.ranks % self.groups:
            raise ScenarioError(f"{self.ranks} ranks cannot be {self.groups} groups of one size")

    @property
    def group_size(self) -> int:
        """Ranks of one group."""
        return self.ranks // self.groups

    @property
    def rank_mtbf_h(self) -> float:
        """Rank-hours a fault."""
        return self.mtbf_s * self.ranks / 3600.0


@dataclass(frozen=True, slots=True)
class Mix:
    """Which kinds of faults there are.

    Raises:
        ScenarioError: shares that do not add up to 1, or a slowdown that is none.
    """

    stop: float = 1.0
    hang: float = 0.0
    slow: float = 0.0
    slowdown: float = 2.0
    """Times as long as a step takes while a slow rank is in it."""
    slow_lasts_s: float = 1440.0
    """How long a slow rank stays slow if nobody does anything; exponential, mean."""

    def __post_init__(self) -> None:
        for name in ("stop", "hang", "slow"):
            _check(f"the share of {name}", getattr(self, name), 0.0, 1.0)
        if not math.isclose(self.stop + self.hang + self.slow, 1.0, abs_tol=1e-6):
            raise ScenarioError(
                f"the shares of stop, hang and slow add up to "
                f"{self.stop + self.hang + self.slow:g}, expected 1"
            )
        _check("slowdown", self.slowdown, 1.0, 1000.0)
        _check("slow_lasts_s", self.slow_lasts_s, 1e-3, _LONGEST_S)

    def share(self, kind: FaultKind) -> float:
        """Of all faults."""
        match kind:
            case FaultKind.STOP:
                return self.stop
            case FaultKind.HANG:
                return self.hang
            case FaultKind.SLOW:
                return self.slow

    @property
    def drag(self) -> float:
        """Share of the training time that a slow rank takes from everybody."""
        return 1.0 - 1.0 / self.slowdown


@dataclass(frozen=True, slots=True)
class Times:
    """What follows once a fault is known. Seconds.

    Raises:
        ScenarioError: a negative or absurd time.
    """

    evict_s: float = 0.0
    """From the decision until the group's processes are gone. A fail-stop needs none."""
    requorum_s: float = 0.0
    """From then until the survivors train again: the Lighthouse forgets the heartbeat, a quorum,
    new process groups."""
    restart_s: float = 0.0
    """From the group's end until its new processes are ready to heal, on whatever host."""
    heal_s: float = 0.0
    """It fetches weights and optimizer state from a peer, while the others train."""
    first_step_s: float = 0.0
    """All stand while a group comes back in (FT-HSDP: about two minutes of first-step effects)."""
    job_restart_s: float = 0.0
    """The whole job from its end until it trains where it was: schedule, load, steps done again."""
    step_s: float = 0.0
    """One step. Half of one is lost with every fault that stops everybody in it."""

    def __post_init__(self) -> None:
        for one in fields(self):
            _check(one.name, getattr(self, one.name), 0.0, _LONGEST_S)


@dataclass(frozen=True, slots=True)
class Response:
    """What is done about one kind of fault.

    Raises:
        ScenarioError: a negative time.
    """

    after_s: float | None
    """From the fault until it is decided; None: nobody ever notices (slow ranks only)."""
    takes_job: bool = False
    """The whole job ends and starts again; otherwise the group alone."""

    def __post_init__(self) -> None:
        if self.after_s is not None:
            _check("the time to detect", self.after_s, 0.0, _LONGEST_S)


@dataclass(frozen=True, slots=True)
class Handling:
    """One way to run a job: what is done about each kind of fault, and about no fault at all.

    Raises:
        ScenarioError: a fault that stops everybody and is never noticed.
    """

    name: str
    stop: Response
    hang: Response
    slow: Response
    false_per_day: float = 0.0
    """Healthy groups evicted by mistake."""

    def __post_init__(self) -> None:
        _check("false evictions a day", self.false_per_day, 0.0, 1e6)
        for kind in (FaultKind.STOP, FaultKind.HANG):
            if self.to(kind).after_s is None:
                raise ScenarioError(f"{kind} is never noticed: then the job ends with the first")

    def to(self, kind: FaultKind) -> Response:
        """What is done about it."""
        match kind:
            case FaultKind.STOP:
                return self.stop
            case FaultKind.HANG:
                return self.hang
            case FaultKind.SLOW:
                return self.slow


@dataclass(frozen=True, slots=True)
class Spares:
    """Hosts that wait. Whoever is evicted leaves its host to be repaired.

    Raises:
        ScenarioError: a negative number.
    """

    hosts: int | None = None
    """None: there is always one."""
    repair_s: float = DAY_S

    def __post_init__(self) -> None:
        _check("spares", self.hosts or 0, 0, _MOST_RANKS)
        _check("repair_s", self.repair_s, 0.0, _LONGEST_S)


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that both arithmetics need."""

    job: Job
    mix: Mix
    times: Times
    handling: Handling
    spares: Spares = Spares()
