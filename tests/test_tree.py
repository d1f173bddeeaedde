"""A test is found where its subject is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.counts import SHARED, shared_names

ROOT = Path(__file__).parents[1]
FOLDERS = sorted({path.parent for path in (ROOT / "tests/monitor").rglob("test_*.py")})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_each_folder_of_the_monitors_tests_is_a_folder_or_a_file_of_the_monitor(folder) -> None:
    subject = ROOT / folder.relative_to(ROOT / "tests")
    assert subject.is_dir() or subject.with_suffix(".py").is_file()


def test_a_public_function_has_a_name_of_its_own() -> None:
    shared = shared_names(ast.FunctionDef, ast.AsyncFunctionDef)
    assert {name: places for name, places in shared.items() if name not in SHARED} == {}
    assert shared.keys() == SHARED.keys(), "an exception that is none any more"


def test_a_public_class_has_a_name_of_its_own() -> None:
    assert shared_names(ast.ClassDef) == {}
