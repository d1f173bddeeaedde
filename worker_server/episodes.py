"""What several TorchFT Managers of one rank do in one go, as one. Standard library only.

Theory of operation. A rank may own a Manager for each piece of its model. When it heals, each loads
its own piece, in parallel or one after the other, and perhaps a step apart; people ask how long
*the rank* took. So calls of different owners that overlap, or follow closely upon each other, are
one episode; the next call of an owner that was in it already begins another. The seconds of an
episode are those in which any of them was at it, its bytes are added up, and it counts once.
"""

from __future__ import annotations

from typing import Final

_CLOSELY_S: Final = 5.0
"""An episode that has been over for longer than this is over: pieces that heal in one go are a step
or two apart, and a step of those who wait for them is seldom longer.
"""

Span = tuple[float, float]


class Episodes:
    """Sorts the calls of one kind into episodes; not thread-safe."""

    def __init__(self) -> None:
        self._owners: set[int] = set()
        self._spans: list[Span] = []

    def take(self, owner: int, begin_s: float, end_s: float) -> tuple[float, bool]:
        """Take in a call that is over.

        Args:
            owner: who made it; one owner's calls are never parts of the same episode.
            begin_s: when it began, by a clock that does not go back.
            end_s: when it ended. One before the beginning is taken for the beginning.

        Returns:
            The seconds that it adds to its episode, and whether that episode had begun before.
        """
        last_s = max((until_s for _, until_s in self._spans), default=float("-inf"))
        again = owner not in self._owners and begin_s - last_s <= _CLOSELY_S
        if not again:
            self._owners, self._spans = set(), []
        covered_s = _covered_s(self._spans)
        self._owners.add(owner)
        self._spans.append((begin_s, max(begin_s, end_s)))
        return _covered_s(self._spans) - covered_s, again


def _covered_s(spans: list[Span]) -> float:
    """Seconds that lie within any of these."""
    total_s, reached_s = 0.0, float("-inf")
    for begin_s, end_s in sorted(spans):
        total_s += max(0.0, end_s - max(begin_s, reached_s))
        reached_s = max(reached_s, end_s)
    return total_s
