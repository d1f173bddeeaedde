"""docs/metrics.md, as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from lightkeeper.monitor.show.metrics import GROUP_SERIES, RANK_SERIES
from tests.metrics_doc.catalogue import GATES_PAGE, RANKS_PAGE, Entry, catalogue, every

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "metrics.md"
FIGURES: Final = ROOT / "evidence" / "metrics-figures.json"
"""Measured by `--measure`, committed."""
_WORDS: Final = Path(__file__).with_name("words.md")
_OF_EVERY_RANK: Final = ("job_id", "replica_group", "rank")
"""Labels of a rank's own page, which the words name once."""


def text() -> str:
    """The whole page."""
    figures = json.loads(FIGURES.read_text())
    words = _WORDS.read_text().format(
        ranks=RANK_SERIES,
        groups=GROUP_SERIES,
        figures=_figures(figures),
        by_group=sum(entry.series == "G" for entry in every()),
        by_rank=sum(entry.series == "R" for entry in every()),
        **figures["rank"],
    )
    tables = "\n".join(_section(heading, entries) for heading, entries in catalogue())
    return f"{words}\n{tables}"


def _section(heading: str, entries: tuple[Entry, ...]) -> str:
    where = "" if heading in (RANKS_PAGE, GATES_PAGE) else "Monitor: "
    lines = [
        f"### {where}{heading[0].lower() + heading[1:] if where else heading}",
        "",
        "| metric | type | unit | what | series | left out when |",
        "|---|---|---|---|---|---|",
        *(_row(entry, of_rank=heading == RANKS_PAGE) for entry in entries),
        "",
    ]
    return "\n".join(lines)


def _row(entry: Entry, *, of_rank: bool) -> str:
    own = [label for label in entry.labels if label not in _OF_EVERY_RANK or not of_rank]
    labels = f"{{{', '.join(own)}}}" if own else ""
    what = entry.text[0].upper() + entry.text[1:].rstrip(".")
    cells = (f"`{entry.name}{labels}`", entry.type, entry.unit, what, entry.series, entry.absent)
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _figures(figures: dict[str, Any]) -> str:
    lines = [
        "| ranks (groups of 8) | switches | series | page | CPU of a scrape |",
        "|---|---|---|---|---|",
    ]
    for figure in figures["monitor"]:
        if not figure["default"] and figure["groups_told"]:  # the most and the least say enough
            continue
        switches = f"`--rank-series {figure['ranks_told']} --group-series {figure['groups_told']}`"
        if figure["default"]:
            switches = "default"
        lines.append(
            f"| {figure['ranks']:,} | {switches} | {figure['series']:,} "
            f"| {figure['bytes'] / 1e3:,.0f} kB | {figure['cpu_s'] * 1e3:.0f} ms |"
        )
    return "\n".join(lines)
