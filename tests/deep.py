"""How thorough properties are: `make test` tries the same few examples each time, `make explore`
(LIGHTKEEPER_DEEP=5, or 20 for a night) that many times as many, and others each time.

Long tests of which a shorter one proves the same for `make test` run in `make explore` alone.
"""

import itertools
import os
from collections.abc import Iterable
from typing import Any, Final

import pytest

DEEP: Final = int(os.environ.get("LIGHTKEEPER_DEEP", "1"))
"""So many times the examples."""

EXPLORES: Final = DEEP > 1
"""Whether examples are drawn anew."""

only_explored: Final = pytest.mark.skipif(not EXPLORES, reason="make explore runs it")


def crossed(*axes: Iterable[Any], times: int = 1) -> list[tuple[Any, ...]]:
    """Each value of an axis with each of the others in make explore; in `make test` each of the
    longest axis that many times, those of the others as often or more, with ever other partners.
    """
    values = [[*axis] for axis in axes]
    if EXPLORES:
        return [*itertools.product(*values)]
    turns = range(times * max(map(len, values)))
    return [
        tuple(
            axis[(turn + shift * (turn // len(axis))) % len(axis)]
            for shift, axis in enumerate(values)
        )
        for turn in turns
    ]
