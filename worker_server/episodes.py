"""What several TorchFT Managers of one rank do for the same thing, as one. Standard library only.

Theory of operation. A rank may own a Manager for each piece of its model. When it heals, each loads
its own piece, in parallel or one after the other; people ask how long *the rank* took. So calls of
different owners that overlap, or that bear the same key (the step that is loaded, the quorum that
is configured) and follow closely upon each other, are one episode. Its seconds are those in which
any of them was at it, its bytes are added up, and it counts once.
"""

from __future__ import annotations

from typing import Final

_CLOSELY_S: Final = 5.0
"""Keys come again (quorum ids of several Lighthouses are near each other): an episode that has been
over for longer than this is over.
"""

Span = tuple[float, float]


class Episodes:
    """Sorts the calls of one kind into episodes; not thread-safe."""

    def __init__(self) -> None:
        self._owners: set[int] = set()
        self._key: int | None = None
        self._spans: list[Span] = []

    def take(self, owner: int, key: int | None, begin_s: float, end_s: float) -> tuple[float, bool]:
        """Take in a call that is over.

        Args:
            owner: who made it; one owner's calls are never parts of the same episode.
            key: what it was for; None: not known.
            begin_s: when it began, by a clock that does not go back.
            end_s: when it ended. One before the beginning is taken for the beginning.

        Returns:
            The seconds that it adds to its episode, and whether that episode had begun before.
        """
        span = begin_s, max(begin_s, end_s)
        again = owner not in self._owners and self._belongs(key, span)
        if not again:
            self._owners, self._key, self._spans = set(), key, []
        covered_s = _covered_s(self._spans)
        self._owners.add(owner)
        self._spans.append(span)
        return _covered_s(self._spans) - covered_s, again

    def _belongs(self, key: int | None, span: Span) -> bool:
        begin_s, end_s = span
        if any(begin_s < until_s and since_s < end_s for since_s, until_s in self._spans):
            return True
        last_s = max((until_s for _, until_s in self._spans), default=float("-inf"))
        return key is not None and key == self._key and begin_s - last_s <= _CLOSELY_S


def _covered_s(spans: list[Span]) -> float:
    """Seconds that lie within any of these."""
    total_s, reached_s = 0.0, float("-inf")
    for begin_s, end_s in sorted(spans):
        total_s += max(0.0, end_s - max(begin_s, reached_s))
        reached_s = max(reached_s, end_s)
    return total_s
