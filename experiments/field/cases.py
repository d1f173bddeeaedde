"""What a case of the table is."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

SCRIPTS: Final = Path(__file__).with_name("scripts")
_TABLE: Final = ("torchft", "reports", "habits", "shapes", "others")
"""The files of `table`, in the order of the page."""
_MARK: Final = re.compile(r"# @(\w+)$", re.MULTILINE)


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
    REPORTS = "public reports"
    SHAPES = "shapes of jobs without TorchFT"
    HEALTHY = "healthy habits"


class Launch(StrEnum):
    """What starts the ranks."""

    GROUPS = "groups"
    """TorchFT: a Lighthouse, and for each replica group a torchrun in a shell's loop."""
    TORCHRUN = "torchrun"
    """One torchrun, which ends when it ends. The ranks are `job.0`, `job.1` ..."""
    BARE = "bare"
    """Processes with RANK, WORLD_SIZE and MASTER_ADDR set by hand. Named as with torchrun."""


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
    """One row.

    A pattern is looked for in any case of letters. `@name` in it stands for the file and the line
    of a script that ends with the comment `# @name`; see `Fleet.marks` for some other names.
    """

    name: str
    family: Family
    what: str
    """As its author would tell it, had he found it."""
    script: str = "train_manager"
    launch: Launch = Launch.GROUPS
    groups: int = 3
    ranks: int = 1
    bug: str = ""
    acts: tuple[str, ...] = ("0: arm",)
    watch_s: float = 90.0
    """Longest time from the first act."""
    least_s: float = 0.0
    """Shortest; a case ends earlier than `watch_s` when its truth is decided."""
    env: Mapping[str, str] = field(default_factory=dict)
    group_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    late: tuple[int, ...] = ()
    elsewhere: tuple[int, ...] = ()
    """Groups at a Lighthouse of their own, of which the monitor knows nothing."""
    port_taken: bool = False
    """A process that is not of the job listens at MASTER_PORT and never answers."""
    terminal: bool = False
    """Ranks have a stdin that never ends."""
    monitor: tuple[str, ...] = ()
    steady: bool = True
    """Whether all ranks have to train before the first act."""

    # -- the truth
    culprits: tuple[str, ...] = ()
    """Ranks that an exact verdict names; a bare group stands for any of its ranks."""
    also: tuple[str, ...] = ()
    """Ranks that may be named beside them, or instead where the evidence cannot tell."""
    also_if: str = ""
    """Only in a sentence that matches: who is looked at may be named as looked at, not as hung."""
    nobody: bool = False
    """No rank is to blame: incidents that fire name none, as unsure neither. `also` then are groups
    that may be evicted all the same."""
    fate: Fate = Fate.OUT
    says: tuple[str, ...] = ()
    """What the sentences of incidents that fired must hold."""
    says_not: tuple[str, ...] = ()
    """What neither they nor the last headline may hold."""
    shows: tuple[str, ...] = ()
    """What their evidence must hold, where the sentences do not."""
    headline: tuple[str, ...] = ()
    """What the last headline must hold."""
    headline_not: str = ""
    """What no headline may hold from the first act on."""
    health_not: Mapping[str, str] = field(default_factory=dict)
    """Rank -> how the monitor may not call it at the end."""
    kind: str = ""
    """Of an incident that fired, for the culprits if there are any; a pattern of the whole word."""
    severity: str = ""
    """The same."""
    within_s: float | None = None
    """It is named, or said, so many seconds after the bug at the latest."""
    kept: bool = False
    """The incident that tells it is open at the end."""
    ends: bool = False
    """The job ends by itself, with an error, and an incident says so."""
    bundle: bool = False
    """The incident that tells it keeps a bundle of evidence."""

    @property
    def healthy(self) -> bool:
        """Whether everybody has to be silent."""
        return self.family is Family.HEALTHY

    @property
    def strict(self) -> bool:
        """Whether words count too, and a stand of half a minute."""
        return self.family in (Family.REPORTS, Family.SHAPES)

    @property
    def shape(self) -> str:
        if self.launch is Launch.GROUPS:
            return f"{self.groups}x{self.ranks}"
        return f"{self.ranks} ranks"

    @property
    def names(self) -> tuple[str, ...]:
        """All ranks."""
        groups = range(self.groups) if self.launch is Launch.GROUPS else ("job",)
        return tuple(f"{group}.{rank}" for group in groups for rank in range(self.ranks))

    def truth(self) -> dict[str, Any]:
        """What a record keeps of it, for the judge."""
        truth = {name: getattr(self, name) for name in _TRUTH}
        lists = {name: list(value) for name, value in truth.items() if isinstance(value, tuple)}
        return {**truth, **lists, "fate": str(self.fate), "strict": self.strict}


_TRUTH: Final = (
    "culprits", "also", "also_if", "nobody", "says", "says_not", "shows", "headline",
    "headline_not", "health_not", "kind", "severity", "within_s", "kept", "ends", "bundle",
)  # fmt: skip
PATTERNS: Final = ("says", "says_not", "shows", "headline")
"""Of these a single one may stand without brackets."""


def _case(name: str, row: dict[str, Any]) -> Case:
    unknown = set(row) - {known_field.name for known_field in fields(Case)}
    if unknown:
        raise ValueError(f"{name}: no such key: {', '.join(sorted(unknown))}")
    family, launch = Family(row.pop("family")), Launch(row.pop("launch", Launch.GROUPS))
    usual: dict[str, Any] = {}
    if family is Family.HEALTHY:
        usual = {"fate": Fate.STAY, "watch_s": 50.0}
    if launch is not Launch.GROUPS:
        usual |= {"fate": Fate.STAY, "groups": 1}
    if "bug" not in row and (family is Family.HEALTHY or launch is not Launch.GROUPS):
        usual |= {"acts": ("0: log",)}
    for key in PATTERNS:
        if isinstance(row.get(key), str):
            row[key] = [row[key]]
    lists = {key: tuple(value) for key, value in row.items() if isinstance(value, list)}
    fate = {"fate": Fate(row["fate"])} if "fate" in row else {}
    return Case(name, family, launch=launch, **{**usual, **row, **lists, **fate})


def _read() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for name in _TABLE:
        text = Path(__file__).with_name("table").joinpath(f"{name}.toml").read_text()
        rows = tomllib.loads(text)
        if twice := rows.keys() & cases.keys():
            raise ValueError(f"{name}.toml: again: {', '.join(sorted(twice))}")
        cases |= {key: _case(key, row) for key, row in rows.items()}
    return cases


CASES: Final[Mapping[str, Case]] = _read()


@functools.cache
def lines() -> dict[str, str]:
    """Name of a marked line of the scripts -> `file.py:line`.

    Raises:
        ValueError: two lines have the same name.
    """
    marked: dict[str, str] = {}
    for script in sorted(SCRIPTS.glob("*.py")):
        text = script.read_text()
        for match in _MARK.finditer(text):
            if match[1] in marked:
                raise ValueError(f"two lines are called @{match[1]}")
            marked[match[1]] = f"{script.name}:{text.count(chr(10), 0, match.start()) + 1}"
    return marked
