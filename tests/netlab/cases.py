"""What breaks, and what is to come of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.netlab.job import Job

LOST_PAUSE_S: Final = 10.0
"""After the loss of a host, at TorchFT's and the Lighthouse's defaults."""
QUICK_PAUSE_S: Final = 7.0
"""The same with the Lighthouse's `--heartbeat_timeout_ms 1500`."""


@dataclass(frozen=True)
class Shape:
    """Replica groups, their ranks, and how many ranks share a host."""

    groups: int
    ranks: int
    a_host: int = 1

    @property
    def places(self) -> dict[str, str]:
        """Rank -> its host."""
        names = [f"{group}.{rank}" for group in range(self.groups) for rank in range(self.ranks)]
        return {name: f"node-{number // self.a_host}" for number, name in enumerate(names)}

    @property
    def nodes(self) -> list[str]:
        """Hosts with ranks."""
        return list(dict.fromkeys(self.places.values()))


SHAPES: Final = {"3x1": Shape(3, 1), "2x2": Shape(2, 2), "2x2-packed": Shape(2, 2, 2)}


@dataclass(frozen=True)
class Case:
    """One row: what is done to a job that trains steadily, and the truth about it."""

    name: str
    what: str
    fault: Callable[[Job], None]
    shape: str = "3x1"
    watch_s: float = 90.0
    """From the fault on."""
    repair: Callable[[Job], None] | None = None
    repair_s: float = 0.0
    env: Mapping[str, str] = field(default_factory=dict)
    """Of the ranks."""
    lighthouse: tuple[str, ...] = ()
    wrong_names: bool = False
    """Names of the ranks' hosts lead to 127.0.0.1."""
    late: tuple[int, ...] = ()
    """Groups that the fault starts."""
    steady: bool = True
    """Whether all train before the fault."""
    # -- the truth
    culprits: tuple[str, ...] = ()
    """Ranks that have to be named, as likely or certain."""
    also: tuple[str, ...] = ()
    """Ranks that may be named, too, or instead where nothing tells which."""
    told_s: float | None = None
    """An incident has fired, and says `says`, at most so long after the fault; None: none needs
    to."""
    says: str = ""
    """A pattern that a sentence of it holds."""
    pause_s: float | None = None
    """No survivor goes longer without a commit; None: it may."""
    survivors: tuple[str, ...] = ()
    """Ranks that can go on; empty: all but those of the culprits' groups."""
    evicted: tuple[str, ...] = ()
    """Groups that may be put out."""
    quiet: bool = False
    """Nothing fires that accuses, and nothing is ended."""

    @property
    def goes_on(self) -> tuple[str, ...]:
        """Survivors by name."""
        groups = {name.partition(".")[0] for name in self.culprits}
        ranks = SHAPES[self.shape].places
        return self.survivors or tuple(r for r in ranks if r.partition(".")[0] not in groups)

    def truth(self) -> dict[str, Any]:
        """What the judge goes by, as JSON."""
        names = ("culprits", "also", "told_s", "says", "pause_s", "evicted", "quiet")
        plain = {name: getattr(self, name) for name in names}
        lists = {name: list(value) for name, value in plain.items() if isinstance(value, tuple)}
        return {**plain, **lists, "goes_on": list(self.goes_on)}


def _lost(name: str, shape: str, host: str, rank: str, pause_s: float, *more: str) -> Case:
    return Case(
        name, f"the link of {host} goes down for good", lambda job: job.lab.unplug(host),
        shape=shape, watch_s=150.0 if shape == "2x2" else 90.0, lighthouse=more,
        culprits=(rank,), told_s=pause_s, pause_s=pause_s, evicted=(rank[0],),
    )  # fmt: skip


_QUICK: Final = ("--heartbeat_timeout_ms", "1500")
_ALL: Final = (
    _lost("host-lost", "3x1", "node-1", "1.0", LOST_PAUSE_S),
)  # fmt: skip
CASES: Final = {case.name: case for case in _ALL}
