"""What a case of cases.toml is."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final


class Family(StrEnum):
    """Where people meet it."""

    DATA = "data loader"
    LOCKS = "locks and threads"
    PIPES = "pipes and file systems"
    FLOW = "control flow around collectives"
    PROCESSES = "process trees"
    LOOKING = "observation"
    SEVERAL = "several at once, one after another"
    SLOW = "stragglers"
    VALUES = "values and names"
    SHARDED = "FSDP2 inside the group"
    HEALTHY = "healthy habits"


class Fate(StrEnum):
    """What has to happen to the culprits' groups."""

    OUT = "out"
    """Evicted, or gone by itself; the others train on."""
    MAY = "may"
    """Evicted or not."""
    STAY = "stay"
    """Nobody is evicted."""


@dataclass(frozen=True, slots=True)
class Case:
    """One row."""

    name: str
    family: Family
    what: str
    """As its author would tell it, had he found it."""
    script: str = "manager"
    groups: int = 3
    ranks: int = 1
    bug: str = ""
    acts: tuple[str, ...] = ("0: arm",)
    culprits: tuple[str, ...] = ()
    """Ranks that an exact verdict names; a bare group stands for any of its ranks."""
    also: tuple[str, ...] = ()
    """Ranks that may be named beside them, or instead where the evidence cannot tell."""
    also_if: str = ""
    """Only in a sentence that matches: who is looked at may be named as looked at, not as hung."""
    says: str = ""
    """What some sentence must hold, as a pattern, in any case of letters."""
    fate: Fate = Fate.OUT
    watch_s: float = 90.0
    """Longest time from the first act."""
    least_s: float = 0.0
    """Shortest; a case ends earlier than `watch_s` when its truth is decided."""
    env: Mapping[str, str] = field(default_factory=dict)
    group_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    late: tuple[int, ...] = ()
    terminal: bool = False
    """Ranks have a stdin that never ends."""
    monitor: tuple[str, ...] = ()
    steady: bool = True
    """Whether all groups have to train before the first act."""

    @property
    def healthy(self) -> bool:
        """Whether everybody has to be silent."""
        return self.family is Family.HEALTHY

    def truth(self) -> dict[str, object]:
        """What a record keeps of it, for the judge."""
        return {
            "culprits": list(self.culprits),
            "also": list(self.also),
            "also_if": self.also_if,
            "says": self.says,
            "fate": str(self.fate),
        }


def _case(name: str, row: dict[str, Any]) -> Case:
    unknown = set(row) - {known_field.name for known_field in fields(Case)}
    if unknown:
        raise ValueError(f"{name}: no such key: {', '.join(sorted(unknown))}")
    family = Family(row.pop("family"))
    healthy = {"fate": Fate.STAY, "watch_s": 50.0} if family is Family.HEALTHY else {}
    lists = {key: tuple(value) for key, value in row.items() if isinstance(value, list)}
    fate = {"fate": Fate(row["fate"])} if "fate" in row else {}
    return Case(name, family, **{**healthy, **row, **lists, **fate})


CASES: Final[Mapping[str, Case]] = {
    name: _case(name, row)
    for name, row in tomllib.loads(Path(__file__).with_name("cases.toml").read_text()).items()
}
