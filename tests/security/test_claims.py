"""docs/security.md claims nothing that no test tries to break."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_test_that_the_page_names_is_there() -> None:
    page = (ROOT / "docs/security.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert len(named) > 10
    assert named <= there


def test_every_test_of_registration_files_and_liveness_is_a_claim() -> None:
    page = (ROOT / "docs/security.md").read_text()
    for name in ("registration", "group_tokens", "files"):
        text = (ROOT / f"tests/security/test_{name}.py").read_text()
        for test in re.findall(r"^def (test_\w+)", text, re.MULTILINE):
            assert f"`{test}`" in page, test
