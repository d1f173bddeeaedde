"""`make test` tries the same examples each time, in any company; `make explore` tries others."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.deep import EXPLORES


def drawn() -> list[str]:
    cases: list[str] = []

    @settings(max_examples=300)
    @given(st.text())
    def draw(text: str) -> None:
        cases.append(text)

    draw()
    return cases


@pytest.mark.skipif(EXPLORES, reason="draws others each time")
def test_a_property_draws_the_same_cases_whatever_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = drawn()
    module = ModuleType("another")
    module.__file__ = str(tmp_path / "another.py")
    Path(module.__file__).write_text(f"WORDS = {[f'word {number}' for number in range(50)]}")
    monkeypatch.setitem(sys.modules, "another", module)
    assert drawn() == before
