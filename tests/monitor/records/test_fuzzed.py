"""A short walk of `tests.fuzz.dumps`; minutes of it are `make fuzz`."""

import pytest

from tests.fuzz import dumps
from tests.fuzz.games import one_game


@pytest.mark.integration  # no processes, but 2 s of CPU
@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_read_ends_in_a_verdict_or_in_the_one_error(seed: int) -> None:
    games = range(40 * seed, 40 * (seed + 1))
    assert [said for number in games for said in one_game(dumps.play, number)] == []
