"""The runs of the matrix: which fault, in which fleet, with whom beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

INJECTED: Final[Mapping[str, Mapping[str, Any]]] = {
    "hang": {"kind": "hang", "phase": "forward"},
    "gil": {"kind": "gil", "phase": "backward"},
    "stop": {"kind": "stop", "phase": "forward"},
    "crash": {"kind": "crash", "phase": "backward"},
    "slow": {"kind": "slow", "factor": 6.0},
    "mismatch": {"kind": "mismatch"},
    "rogue": {"kind": "hang", "phase": "forward"},
}
"""What the trainer's injector is told."""

HARD: Final = ("cut", "rogue")
"""`cut`: the group's host, a network namespace of its own, is unreachable from one moment to the
next; once the others train on, its link comes back. `rogue`: a hang in a group whose launcher asks
nobody and starts it again on the same host at once, which a person has put into quarantine."""

PAIRS: Final = frozenset({"mismatch"})
"""Faults that need two ranks in a group."""

FAULTS: Final = ("hang", "gil", "stop", "crash", "slow", "mismatch", *HARD)
"""In the order of the table."""

JOIN_TIMEOUT_MS: Final[Mapping[str, int]] = {"default": 60_000, "amd": 100_000}
"""Of the Lighthouse: TorchFT's own, and that of AMD's deployment (facts/torchft.md)."""


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """One fleet: all runs of a setting share it."""

    timeouts: str
    shape: str
    keeper: bool
    gate: bool
    special: str = ""
    """One of `HARD`, for which the fleet is built otherwise."""

    @property
    def groups(self) -> int:
        """Replica groups."""
        return int(self.shape[0])

    @property
    def min_replicas(self) -> int:
        """Of the Lighthouse and the trainers: AMD's deployment lets one group train alone."""
        return 1 if self.timeouts == "amd" else min(2, self.groups - 1)

    def __str__(self) -> str:
        beside = "lightkeeper" if self.keeper else "alone"
        gate = "+gate" if self.gate else ""
        return f"{self.timeouts}/{self.shape}/{beside}{gate}{self.special and '/' + self.special}"


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    fault: str
    lighthouse_down: bool
    setting: Setting

    @property
    def key(self) -> str:
        """Names it in the results."""
        return f"{self.setting}/{self.fault}/{'down' if self.lighthouse_down else 'up'}"

    @property
    def limit_s(self) -> float:
        """Watched for so long at most.

        TorchFT alone needs 125 s to end the survivors of a hang and some more to start again; a
        slow group slows the others for ever, and a longer look shows the same again.
        """
        if self.setting.keeper:
            return 200.0
        return 60.0 if self.fault == "slow" else 300.0


def plan(
    faults: list[str], timeouts: list[str], keepers: list[bool], gates: list[bool]
) -> Iterator[Case]:
    """All runs asked for, those of one fleet together.

    A gate without a keeper has an empty deny list: it is not run.
    """
    settings = product(timeouts, ("3x1", "2x2"), keepers, gates)
    for timeout, shape, keeper, gate in settings:
        if gate and not keeper:
            continue
        if shape == "3x1":
            for name in HARD:
                if name in faults and (keeper or name == "cut"):
                    yield Case(name, False, Setting(timeout, shape, keeper, gate, name))
        setting = Setting(timeout, shape, keeper, gate)
        mine = [n for n in faults if n not in HARD and (n in PAIRS) == (shape == "2x2")]
        for name, down in product(mine, (False, True)):
            yield Case(name, down, setting)
