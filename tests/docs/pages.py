"""Markdown, as far as the pages use it: blocks of code, prose, headings, links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MOST_PAGES, MOST_WORDS = 20, 32_000
_FENCE = re.compile(r"^( *)```(\w*)\s*$")
_LINK = re.compile(r"!?\[(?:[^\]`]|`[^`]*`)*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A piece of code on a page."""

    page: str
    line: int
    language: str
    """What stands behind the fence; "" for indented ones."""
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


class Page:
    """One file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path.relative_to(ROOT))
        self.text = path.read_text(encoding="utf-8")

    @cached_property
    def _parts(self) -> tuple[tuple[Block, ...], str]:
        blocks: list[Block] = []
        prose: list[str] = []
        lines = self.text.splitlines()
        at = 0
        while at < len(lines):
            if fence := _FENCE.match(lines[at]):
                end = next(n for n in range(at + 1, len(lines)) if lines[n].strip() == "```")
                inside, after = lines[at + 1 : end], end + 1
                blocks.append(self._block(at, fence[2], inside))
            elif lines[at].startswith("    ") and (not prose or not prose[-1].strip()):
                end = at
                while end < len(lines) and (lines[end].startswith("    ") or not lines[end]):
                    end += 1
                while not lines[end - 1]:
                    end -= 1
                blocks.append(self._block(at, "", lines[at:end]))
                after = end
            else:
                prose.append(lines[at])
                at += 1
                continue
            prose += [""] * (after - at)  # so that numbers of lines stay
            at = after
        return tuple(blocks), "\n".join(prose)

    def _block(self, at: int, language: str, lines: list[str]) -> Block:
        indent = min((len(line) - len(line.lstrip()) for line in lines if line), default=0)
        return Block(self.name, at + 1, language, "\n".join(line[indent:] for line in lines))

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self._parts[0]

    @property
    def prose(self) -> str:
        """Without blocks of code, line by line where it was."""
        return self._parts[1]

    @property
    def inline(self) -> Iterator[tuple[int, str]]:
        """Code within sentences, with its line."""
        for number, line in enumerate(self.prose.splitlines(), 1):
            for code in _CODE.findall(line):
                yield number, code

    @property
    def sentences(self) -> str:
        """Prose without code and without the targets of links."""
        return re.sub(r"\]\([^)]*\)", "]", _CODE.sub("`code`", self.prose))

    @property
    def links(self) -> list[str]:
        return _LINK.findall(self.prose)

    @property
    def anchors(self) -> frozenset[str]:
        """As GitHub and mkdocs make them of headings."""
        headings = re.findall(r"(?m)^#+ (.+?)\s*$", self.prose)
        kept = (re.sub(r"[^\w\- ]", "", heading).strip().lower() for heading in headings)
        return frozenset(heading.replace(" ", "-") for heading in kept)

    @property
    def words(self) -> int:
        """What has a letter or a digit in it; rules of tables have none."""
        return sum(any(map(str.isalnum, word)) for word in self.text.split())


def manual() -> list[Page]:
    """docs/."""
    return [Page(path) for path in sorted(DOCS.glob("*.md"))]


def readmes() -> list[Page]:
    """What people read beside docs/."""
    names = ["README.md", "CONTRIBUTING.md", "SECURITY.md"]
    examples = sorted((ROOT / "examples").glob("**/README.md"))
    return [Page(path) for path in (*(ROOT / name for name in names), *examples)]


def evidence() -> list[Page]:
    """What programs wrote, and the texts around it."""
    return [Page(path) for path in sorted((ROOT / "evidence").glob("*.md"))]
