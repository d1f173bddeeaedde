"""Plain English: spelled as a dictionary has it, without clichés, and without turns that we had.

Spelling is codespell's, style proselint's; both read sentences, not code.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.docs import known
from tests.docs.pages import Page, manual, readmes

GENERATED = {"docs/metrics.md"}
"""Its tables are docstrings of the code."""
PAGES = [page for page in (*manual(), *readmes()) if page.name not in GENERATED]
BANNED = {
    r"\btold\b": "say, report, show, message",
    r"\btells\b": "says, reports, shows, names",
    r"(?<!cannot )(?<!cannot\n)\btell\b": "say, report, show (`cannot tell` is a verdict)",
    r"\bfor ever\b": "forever, or how long",
    r"\b(?:goes|go|going|went) on\b": "continues",
    r"\banew\b": "again, new",
    r"\bwhoever\b": "the rank that, anyone who",
    r"\bbelongs? into\b": "belongs in",
    r"\breckon": "estimate, compute",
    r"\bmended?\b": "fixed",
    r"\bno more\b": "no longer, nothing else",
    r"\bof (?:itself|themselves)\b": "about itself, or nothing",
    r"\bto (?:him|her)\b|\bhis own\b": "they",
    r"\bin vain\b|\bhence\b|\bthereof\b|\bwhilst\b|\bamongst\b": "the usual word",
    r"\bput out\b|\bputs out\b": "evicted",
    r"\bsimply\b|\bjust works\b|\bseamless|\bleverag|\butiliz|\brobustly\b": "nothing",
}
OFF = ("typography", "lexical_illusions", "social_awareness.sexism")
"""proselint's, for typesetters; headings that say a word again; a server called waitress."""


def text_of(page: Page) -> str:
    """Sentences, each line where it is on the page."""
    return re.sub(r"`code`", "code", page.sentences)


def banned(text: str, name: str) -> list[str]:
    return [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]!r} -> {better}"
        for turn, better in BANNED.items()
        for match in re.finditer(turn, text, re.IGNORECASE)
    ]


def test_no_banned_turn_of_phrase() -> None:
    assert [fault for page in PAGES for fault in banned(text_of(page), page.name)] == []


def test_no_banned_turn_of_phrase_in_the_help_of_a_command() -> None:
    faults = [
        fault
        for path, command in known.commands().items()
        for fault in banned(command.get_help(click.Context(command, info_name=path)), path)
    ]
    assert faults == []


@pytest.mark.parametrize("module", [*known.ELSEWHERE.values(), "lightkeeper.worker_server"])
def test_no_banned_turn_of_phrase_in_the_help_of_a_program(module: str) -> None:
    assert banned(known.help_of(module), module) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_are_short(page: Page) -> None:
    """Half of them have at most 20 words, and none more than 50."""
    prose = "\n".join(
        line for line in text_of(page).splitlines() if not line.startswith(("|", "#"))
    )
    paragraphs = re.split(r"\n\s*\n|\n(?=- |\d+\. )", prose)
    sentences = [
        sentence.split()
        for paragraph in paragraphs
        for sentence in re.split(r"(?<=[.!?:;])\s+", paragraph)
        if sentence.strip()
    ]
    lengths = sorted(map(len, sentences))
    if lengths:
        assert lengths[len(lengths) // 2] <= 20
        assert lengths[-1] <= 50, max(sentences, key=len)


def test_every_table_has_a_heading() -> None:
    """A row behind an empty line is shown as text, with its bars."""
    for page in (*manual(), *readmes()):
        lines = ["", *page.prose.splitlines(), "", ""]
        starts = [
            n for n, line in enumerate(lines) if line.startswith("|") and not lines[n - 1].strip()
        ]
        headless = [n for n in starts if not re.fullmatch(r"[|\s:-]+", lines[n + 1])]
        assert headless == [], page.name


def test_codespell_finds_no_misspelt_word() -> None:
    files = [str(page.path) for page in (*manual(), *readmes())]
    done = subprocess.run(
        [sys.executable, "-m", "codespell_lib", *files],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout + done.stderr == ""


@pytest.mark.integration
def test_proselint_has_nothing_to_say(tmp_path: Path) -> None:
    for page in PAGES:
        (tmp_path / page.name.replace("/", "_")).write_text(text_of(page))
    done = subprocess.run(
        [sys.executable, "-m", "proselint", "check", *map(str, sorted(tmp_path.glob("*.md")))],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    said = re.findall(r"(?m)^.*/([^/:]+:\d+):\d+: ([\w.]+): (.*)$", done.stdout)
    assert said, "it always minds straight quotes"
    assert [remark for remark in said if not remark[1].startswith(OFF)] == []
