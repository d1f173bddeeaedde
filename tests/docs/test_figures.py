"""Figures that pages show come from one file, and no page says another one."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest

from experiments import harness
from experiments.campaign.classes import CLASSES
from tests.docs.pages import ROOT, Page, manual, readmes

FIGURES: list[dict[str, Any]] = tomllib.loads((ROOT / "evidence/shown.toml").read_text())["figure"]
each = pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure["what"])


def plain(page: Page) -> str:
    """One line, so that a figure may stand at the end of one."""
    return re.sub(r"\s+", " ", page.text)


@each
def test_every_page_says_what_the_file_says(figure: dict[str, Any]) -> None:
    said = {
        page.name: {
            next(filter(None, match.groups()))
            for match in re.finditer(figure["pattern"], plain(page))
        }
        for page in [*manual(), *readmes()]
    }  # fmt: skip
    assert {name for name, values in said.items() if values - {figure["says"]}} == set()
    assert {name for name, values in said.items() if values} >= set(figure["pages"])


@each
def test_the_source_has_the_figure(figure: dict[str, Any]) -> None:
    assert figure["proof"] in re.sub(r"\s+", " ", (ROOT / figure["source"]).read_text())


def test_no_number_in_the_readmes_figures_is_from_elsewhere() -> None:
    [readme] = [page for page in readmes() if page.name == "README.md"]
    table = readme.text.split("## Figures\n", 1)[1].split("\n## ", 1)[0]
    cells = [row.split("|")[2] for row in table.splitlines() if row.startswith("| ")]
    text = " ".join(cells)
    for figure in sorted(FIGURES, key=lambda figure: -len(figure["says"])):
        text = text.replace(figure["says"], "")
    assert len(cells) > 4
    assert re.findall(r"\d[\d.,]*", text) == []


def test_the_campaigns_figures_are_those_of_its_raw_results() -> None:
    rows = harness.read(ROOT / "evidence/campaign.jsonl")
    with_culprit = [row for row in rows if not CLASSES[row["class"]].open_question]
    assert (len(rows), len(with_culprit)) == (560, 540)
    assert sum(row["exact"] for row in with_culprit) == 539
    assert [row["key"] for row in rows if row["evicted_wrongly"]] == []
