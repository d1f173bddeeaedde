"""A test is found where its subject is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = sorted({path.parent for path in (ROOT / "tests/monitor").rglob("test_*.py")})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_each_folder_of_the_monitors_tests_is_a_folder_or_a_file_of_the_monitor(folder) -> None:
    subject = ROOT / folder.relative_to(ROOT / "tests")
    assert subject.is_dir() or subject.with_suffix(".py").is_file()


PRODUCT = ("gate", "monitor", "worker_server", "trainer", "dashboards")
SHARED = {
    "main": "of a command: `python -m` runs it",
    "install": "of a hook: the attach calls one after the other",
    "attach": "the face has the same name as what it calls",
}
"""Public functions that several modules have, each with the reason."""


def shared_names(*kinds: type[ast.stmt]) -> dict[str, list[str]]:
    """Public names that more than one module of the product defines, with the files."""
    files: dict[str, list[str]] = {}
    for path in sorted(path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, kinds) and not (name := node.name).startswith("_"):
                files.setdefault(name, []).append(str(path.relative_to(ROOT)))
    return {name: places for name, places in files.items() if len(places) > 1}


def test_a_public_function_has_a_name_of_its_own() -> None:
    shared = shared_names(ast.FunctionDef, ast.AsyncFunctionDef)
    assert {name: places for name, places in shared.items() if name not in SHARED} == {}
    assert shared.keys() == SHARED.keys(), "an exception that is none any more"


def test_a_public_class_has_a_name_of_its_own() -> None:
    assert shared_names(ast.ClassDef) == {}
