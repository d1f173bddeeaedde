"""A test is found where its subject is."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = sorted({path.parent for path in (ROOT / "tests/monitor").rglob("test_*.py")})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_each_folder_of_the_monitors_tests_is_a_folder_or_a_file_of_the_monitor(folder) -> None:
    subject = ROOT / folder.relative_to(ROOT / "tests")
    assert subject.is_dir() or subject.with_suffix(".py").is_file()
