"""A short walk of `tests.fuzz.dumps`; minutes of it are `make fuzz`."""

import pytest

from tests.fuzz import dumps


@pytest.mark.integration  # no processes, but 2 s of CPU
@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_read_ends_in_a_verdict_or_in_the_one_error(seed: int) -> None:
    assert [said for number in range(40) for said in dumps.one(seed, number)] == []
