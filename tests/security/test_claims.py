"""docs/security.md claims nothing that no test tries to break."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_file_of_tests_that_the_page_names_is_there_and_has_tests() -> None:
    named = set(re.findall(r"`(tests/\S+\.py)`", (ROOT / "docs/security.md").read_text()))
    assert len(named) > 10
    for name in named:
        assert re.search(r"^def test_\w+", (ROOT / name).read_text(), re.MULTILINE), name


def test_files_that_try_to_break_a_claim_stand_on_the_page() -> None:
    page = (ROOT / "docs/security.md").read_text()
    for name in ("registration", "group_tokens", "files", "token_way", "liveness", "reads"):
        assert f"`tests/security/test_{name}.py`" in page, name
