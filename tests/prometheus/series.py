"""Series of promtool's tests, written into a Prometheus' past."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

STEP_S: Final = 15.0
_TERM: Final = re.compile(r"(_|-?[\d.]+)([+-][\d.]+)?(?:x(\d+))?")


def values(notation: str) -> list[float | None]:
    """`0+15x3 _x2 7` as promtool reads it; None: no sample."""
    made: list[float | None] = []
    for term in notation.split():
        match = _TERM.fullmatch(term)
        assert match is not None, term
        first, slope, times = match[1], float(match[2] or 0), int(match[3] or 0)
        if first == "_":
            made += [None] * max(times, 1)
        else:
            made += [float(first) + slope * number for number in range(times + 1)]
    return made


def past(block: Mapping[str, Any], at_s: float, eval_s: float, mark: str) -> Iterator[str]:
    """Lines of OpenMetrics: the series of a block of tests.yml as they are `eval_s` after its
    start, which is `at_s`. Its instances get a mark, so that blocks do not meet.
    """
    start_s = at_s - eval_s
    for row in block["input_series"]:
        series = re.sub(r'instance="(\w+)"', rf'instance="\1-{mark}"', row["series"])
        times = "_timestamp_seconds" in series  # of a clock that began with the series
        for number, value in enumerate(values(row["values"])):
            if value is not None and number * STEP_S <= eval_s:
                at = start_s + number * STEP_S
                yield f"{series} {value + start_s if times else value} {at:.3f}"


def write_past(lines: Iterable[str], data: Path) -> None:
    """Blocks of a Prometheus that has not started yet."""
    by_series = sorted(lines, key=lambda line: line.rpartition("}")[0])
    text = data.with_suffix(".om")
    text.write_text("\n".join((*by_series, "# EOF", "")))
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", text, data],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
