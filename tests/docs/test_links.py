"""Every link leads somewhere: between pages, from the code, from alerts to their runbooks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, Page, evidence, manual, readmes

PAGES = [*manual(), *readmes(), *evidence()]
HISTORY = {"CHANGELOG.md"}
"""It speaks of pages as they were."""
_NAMED = re.compile(
    r"(?<![\w/.-])((?:docs|evidence)/[\w./-]+\.(?:md|jsonl|json|svg|png))(#[\w-]+)?"
)
_TOOLS = {"docs/cancelling-breakfix.md", "docs/index.md"}
"""Of other projects."""


def leads(target: str, origin: Path) -> bool:
    name, _, anchor = target.partition("#")
    there = (origin.parent / name).resolve() if name else origin
    if not there.exists():
        return False
    return not anchor or (there.suffix == ".md" and anchor in Page(there).anchors)


def test_every_link_of_a_page_leads_to_a_file_and_a_heading() -> None:
    ours = [(page, link) for page in PAGES for link in page.links if not re.match("[a-z]+:", link)]
    assert [(page.name, link) for page, link in ours if not leads(link, page.path)] == []


def tracked() -> list[Path]:
    """Texts of the repository, by git or, in an archive, by looking."""
    done = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    names = done.stdout.splitlines() or [
        str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if ".venv" not in path.parts
    ]
    kept = {".py", ".md", ".yml", ".yaml", ".toml", ".sh", ".sbatch", ".service", ".json", ""}
    return [ROOT / name for name in names if Path(name).suffix in kept and name not in HISTORY
            and not name.startswith(("tests/docs/", "tests/corpus/", "tests/same/"))
            and (ROOT / name).is_file()]  # fmt: skip


def test_every_page_that_a_file_names_is_there_with_its_heading() -> None:
    wrong = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for name, anchor in _NAMED.findall(text):
            if name not in _TOOLS and not leads(f"{name}{anchor}", ROOT / "anywhere"):
                wrong.append(f"{path.relative_to(ROOT)}: {name}{anchor}")
    assert wrong == []


def there(code: str, words: frozenset[str]) -> bool:
    """Whether a file, a folder or a name of the code is as a page for engineers writes it."""
    if "NAME" in code or "DIR" in code:
        return True
    if "/" in code or code.endswith((".py", ".toml")):
        return not re.fullmatch(r"[\w./]+", code) or any(
            (folder / code).exists() for folder in (ROOT, ROOT / "monitor")
        )
    return not re.fullmatch(r"\w+", code) or code in words


def test_every_file_and_name_that_the_architecture_names_is_in_the_code() -> None:
    page = Page(DOCS / "architecture.md")
    sources = [path for path in tracked() if path.suffix in {".py", ""}]
    words = frozenset(re.findall(r"\w+", "\n".join(map(Path.read_text, sources))))
    assert [f"line {line}: {code}" for line, code in page.inline if not there(code, words)] == []


def test_the_drawing_of_the_house_has_every_room_of_the_monitor() -> None:
    drawing = Page(DOCS / "architecture.md").blocks[0].text
    rooms = {path.parent.name for path in (ROOT / "monitor").glob("*/__init__.py")}
    assert rooms <= set(re.findall(r"\w+", drawing))


def test_every_page_is_in_the_navigation_and_linked_from_another() -> None:
    names = {page.path.name for page in manual()}
    navigation = set(re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert navigation == names
    for name in names - {"index.md"}:
        assert any(name in link for page in manual() for link in page.links), name


@pytest.mark.integration
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.parent.name for path in tmp_path.glob("*/index.html")} >= {"quickstart", "on-call"}
