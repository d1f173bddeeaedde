"""The runs of the matrix: which fault, in which fleet, with whom beside it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from experiments.fleet import Setting

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


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    fault: str
    lighthouse_down: bool
    setting: Setting

    @property
    def name(self) -> str:
        """What `--only` chooses it by."""
        return self.fault

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


def plan(timeouts: Collection[str], keepers: list[bool], gates: list[bool]) -> Iterator[Case]:
    """All runs asked for, those of one fleet together.

    A gate without a keeper has an empty deny list: it is not run.
    """
    settings = product(timeouts, ("3x1", "2x2"), keepers, gates)
    for timeout, shape, keeper, gate in settings:
        if gate and not keeper:
            continue
        if shape == "3x1":
            for name in HARD:
                if keeper or name == "cut":
                    yield Case(name, False, Setting(shape, timeout, keeper, gate, name))
        setting = Setting(shape, timeout, keeper, gate)
        mine = [n for n in FAULTS if n not in HARD and (n in PAIRS) == (shape == "2x2")]
        for name, down in product(mine, (False, True)):
            yield Case(name, down, setting)
