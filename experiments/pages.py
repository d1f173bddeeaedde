"""Cells, tables and figures of the pages in evidence/. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, with its last line end."""
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        cells = (cell.replace("|", "\\|").replace("\n", " ") for cell in row)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def share(part: int, whole: int) -> str:
    """As a fraction, and where it is of more than a few, per cent."""
    return f"{part}/{whole}" + (f" ({100 * part / whole:.4g} %)" if whole > 9 else "")


def codes(rows: Iterable[Mapping[str, Any]]) -> str:
    """The commits by which rows were made, with how many."""
    counts = Counter(row.get("code", "unknown") for row in rows)
    return ", ".join(f"{code} ({count})" for code, count in counts.items())


def named(rows: Iterable[Mapping[str, Any]], key: str) -> str:
    """All values of a key, sorted."""
    return ", ".join(sorted({str(row[key]) for row in rows}))


def seconds(value: float | None) -> str:
    """One number."""
    return "-" if value is None else f"{value:.1f}"


def numbers(values: Iterable[float | None]) -> str:
    """Their median, and the largest where it differs; how many there are not."""
    values = list(values)
    whole = [value for value in values if value is not None]
    if not whole:
        return f"-, {len(values)} never" if values else "-"
    middle, most, none = median(whole), max(whole), len(values) - len(whole)
    text = f"{middle:.1f}" if most - middle < 0.05 else f"{middle:.1f} ({most:.1f})"
    return text + (f", {none} never" if none else "")


def quantile(values: Sequence[float], share: float) -> float:
    """Nearest rank: one of `values`, which are sorted."""
    return values[max(0, math.ceil(share * len(values)) - 1)]


def middle(values: Iterable[float | None]) -> str:
    """The one in the middle of those that there are."""
    known = sorted(value for value in values if value is not None)
    return f"{quantile(known, 0.5):.1f}" if known else "-"
