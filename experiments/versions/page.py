"""The results in docs/versions.md, made of the latest line of each pair of versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

BEGIN: Final = "<!-- results: written by make matrix-versions -->"
END: Final = "<!-- end of results -->"


def told(part: Mapping[str, Any]) -> str:
    """One part in a few words."""
    failed = part["failed"]
    words = [f"{part['passed']} passed"]
    words += [f"{len(failed)} failed"] if failed else []
    words += [f"{part['skipped']} skipped"] if part["skipped"] else []
    return ", ".join(words)


def text(page: str, lines: Sequence[Mapping[str, Any]]) -> str:
    """The page with these results in place of those that it has."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{_table(lines)}\n{END}{rest.partition(END)[2]}"


def _table(lines: Sequence[Mapping[str, Any]]) -> str:
    ordered = sorted(lines, key=lambda line: line["key"])
    parts = dict.fromkeys(name for line in ordered for name in line["parts"])
    heads = [f"torch {torch}, TorchFT {torchft}" for torch, torchft in map(_found, ordered)]
    rows = ["| | " + " | ".join(heads) + " |", "|---" * (len(ordered) + 1) + "|"]
    for name in parts:
        cells = [told(line["parts"][name]) if name in line["parts"] else "-" for line in ordered]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    rows.append("| when | " + " | ".join(line["at"] for line in ordered) + " |")
    rows.append("| code | " + " | ".join(f"`{line['code']}`" for line in ordered) + " |")
    bad = [
        f"- {line['key']}, {name}: `{failure}`"
        for line in ordered
        for name, part in line["parts"].items()
        for failure in part["failed"]
    ]
    return "\n".join([*rows, *(["", "What failed:", "", *bad] if bad else []), ""])


def _found(line: Mapping[str, Any]) -> tuple[str, str]:
    return line["found"][0], line["found"][1]
