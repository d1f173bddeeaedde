"""Right, silent or wrong: how one answer compares with what is true, and sums over many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.corpus.rivals import Answer
from tests.corpus.truth import Truth


@dataclass(frozen=True)
class Mark:
    """One answer, judged."""

    tellable: bool
    """Whether the records show at least one culprit."""
    right: bool
    """All culprits that the records show, and nobody innocent."""
    innocents: int
    """Innocent ranks that were accused."""
    accused: int
    abstained: bool
    """The records show a culprit and it named nobody."""
    unusable: bool
    kind_right: bool


def mark(truth: Truth, answer: Answer) -> Mark:
    innocent = answer.accused - truth.must - truth.may
    return Mark(
        tellable=bool(truth.must),
        right=truth.must <= answer.accused and not innocent,
        innocents=len(innocent),
        accused=len(answer.accused),
        abstained=bool(truth.must) and not answer.accused,
        unusable=bool(answer.error),
        kind_right=bool(answer.kinds & truth.kinds) or not truth.must,
    )


@dataclass
class Tally:
    """Sums over cases."""

    marks: list[Mark] = field(default_factory=list)

    def count(self, what: Iterable[bool]) -> int:
        return sum(what)

    @property
    def tellable(self) -> list[Mark]:
        return [one for one in self.marks if one.tellable]

    @property
    def untellable(self) -> list[Mark]:
        return [one for one in self.marks if not one.tellable]

    @property
    def exact(self) -> float:
        """Share of the cases with a culprit to tell in which exactly the culprits were named."""
        return share(sum(m.right for m in self.tellable), len(self.tellable))

    @property
    def abstained(self) -> float:
        return share(sum(m.abstained for m in self.tellable), len(self.tellable))

    @property
    def wrong(self) -> float:
        """Share of all cases in which somebody innocent was accused."""
        return share(sum(m.innocents > 0 for m in self.marks), len(self.marks))

    @property
    def wrong_untold(self) -> int:
        """Cases without a culprit to tell in which somebody innocent was accused."""
        return sum(m.innocents > 0 for m in self.untellable)

    @property
    def innocents(self) -> float:
        """Share of innocents among all ranks accused."""
        return share(sum(m.innocents for m in self.marks), sum(m.accused for m in self.marks))

    @property
    def kinds(self) -> float:
        """Of the exact answers, those that also say what happened."""
        exact = [m for m in self.tellable if m.right]
        return share(sum(m.kind_right for m in exact), len(exact))

    @property
    def unusable(self) -> int:
        return sum(m.unusable for m in self.marks)


def share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
