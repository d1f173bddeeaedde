"""A short walk of `tests.fuzz.dumps`; minutes of it are `make fuzz`."""

import pytest

from tests.fuzz import dumps
from tests.fuzz.games import one_game


@pytest.mark.integration  # no processes, but 2 s of CPU
def test_whatever_is_read_ends_in_a_verdict_or_in_the_one_error() -> None:
    assert [said for number in range(30) for said in one_game(dumps.play, number)] == []
