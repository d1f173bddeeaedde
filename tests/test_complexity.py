"""What the lint of complexity counts, and that its list can only shrink."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.complexity import complexities, complexity, problems


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("pass", 1),
        ("return 1 if a else 2", 2),
        ("return a and b and c or d", 4),
        ("return [x for x in a for y in x]", 3),
        ("for x in a:\n  while x:\n    pass", 3),
        ("try:\n  pass\nexcept A:\n  pass\nexcept B:\n  pass", 3),
        ("match a:\n  case 1:\n    pass\n  case _:\n    pass", 3),
        ("def inner():\n  if a:\n    pass", 2),
    ],
)
def test_branches_boolean_operators_and_comprehensions_are_counted(body: str, count: int) -> None:
    assert complexity(ast.parse(body)) == count


def test_functions_are_found_by_their_qualified_names(tmp_path: Path) -> None:
    (tmp_path / "monitor").mkdir()
    text = "if a:\n  class A:\n    def f(self):\n      def g(): return a or b\ndef h(): pass"
    (tmp_path / "monitor/x.py").write_text(text)
    assert complexities(tmp_path) == {
        "monitor/x.py:A.f": 2, "monitor/x.py:A.f.g": 2, "monitor/x.py:h": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("now", "listed", "words"),
    [
        ({"f": 15}, {}, None),
        ({"f": 20}, {"f": 20}, None),
        ({"f": 16}, {}, "f has complexity 16; at most 15"),
        ({"f": 21}, {"f": 20}, "f has complexity 21, it had 20: it may only become simpler"),
        ({"f": 18}, {"f": 20}, "f has complexity 18 now: write so in OVER"),
        ({"f": 15}, {"f": 20}, "f has complexity 15 now: take it out of OVER"),
        ({}, {"f": 20}, "f is gone: take it out of OVER"),
    ],
)
def test_the_list_has_what_is_over_the_limit_now_and_nothing_else(now, listed, words) -> None:
    assert list(problems(now, listed)) == ([] if words is None else [words])
