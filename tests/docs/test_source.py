"""How the source reads: a variable says what it holds, docstrings are plain English."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.docs.pages import ROOT
from tests.docs.test_style import banned

PRODUCT = ("gate", "monitor", "worker_server", "trainer", "dashboards", "lightkeeper")
SAY_NOTHING = {"one", "found", "told", "known"}
_STORED = re.compile(rf"\b(?:{'|'.join(SAY_NOTHING)})\b\s*(?:[-+*/|&^%@]?=(?!=)|[,:)\]}}]|in\b)")
"""Where one of them may be stored: all other files need no parser, which takes 8 s."""
_DOCSTRING = re.compile(r'"""(.+?)"""', re.DOTALL)
"""Other long texts too."""


def sources(folder: str) -> dict[str, str]:
    """Texts by path."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


def variables(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Line and name of each argument and variable; fields of classes travel and keep theirs."""
    fields = {
        node.target
        for scope in nodes
        if isinstance(scope, ast.ClassDef)
        for node in scope.body
        if isinstance(node, ast.AnnAssign)
    }
    for node in nodes:
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in fields:
            yield node.lineno, node.id


@pytest.mark.parametrize("folder", [*PRODUCT, "examples", "tests"])
def test_a_variable_says_what_it_holds(folder: str) -> None:
    empty = [
        f"{path}:{line}: {name}"
        for path, text in sources(folder).items()
        if _STORED.search(text)
        for line, name in variables(list(ast.walk(ast.parse(text))))
        if name in SAY_NOTHING
    ]
    assert "\n".join(empty) == "", f"names that say nothing: {', '.join(sorted(SAY_NOTHING))}"


@pytest.mark.parametrize("folder", PRODUCT)
def test_no_banned_turn_of_phrase_in_a_docstring(folder: str) -> None:
    turns: list[str] = []
    for path, text in sources(folder).items():
        for docstring in _DOCSTRING.finditer(text):
            plain = re.sub(r"`[^`]*`", "code", docstring[1])
            turns += banned(plain, f"{path}: {docstring[1][:60]}")
    assert turns == []
