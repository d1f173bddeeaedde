"""The seeded fuzz of what comes in (`tests/fuzz/gate.py`), a moment of it."""

from __future__ import annotations

from tests.fuzz import gate
from tests.fuzz.games import one_game


def test_a_moment_of_fuzzing_finds_nothing() -> None:
    assert [said for number in range(25) for said in one_game(gate.play, number)] == []
