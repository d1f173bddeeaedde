"""evidence/figures.md and its plot, from rows that were measured. Pure but for `write`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from experiments.pages import table
from experiments.plot import Plot

Row = Mapping[str, Any]
COMMAND: Final = (
    "python -m tests.bench.seeds --recoveries 3 "
    "--out evidence/figures.jsonl --page evidence/figures.md"
)
MATRIX: Final = Path("evidence/eviction-matrix.jsonl")
TEXT: Final = Path(__file__).with_name("figures_text.md")
"""What people wrote; `{name}` stands for a table of this module."""
PLOT: Final = "load-seconds.svg"
HANGING: Final = ("hang", "gil", "stop", "mismatch")


def write(page: Path, rows: Path) -> None:
    """Write the page, and its plot into `images/` beside it."""
    figure_rows = _lines(rows)
    images = page.parent / "images"
    images.mkdir(parents=True, exist_ok=True)
    (images / PLOT).write_text(plot(figure_rows))
    page.write_text(render(figure_rows, _lines(MATRIX)))


def _lines(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def render(rows: Sequence[Row], matrix: Sequence[Row]) -> str:
    """The whole page."""
    parts = {
        "command": COMMAND,
        "staging": _sizes(rows, "staging"),
        "load": _sizes(rows, "load"),
        "reconfigure": _reconfigure(rows),
        "chain": _chain(matrix),
        "recoveries": _recoveries(rows),
        "conditions": _conditions(rows),
        "largest": _largest(rows),
    }
    text = TEXT.read_text()
    for name, part in parts.items():
        text = text.replace(f"{{{name}}}", part)
    return text


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return table(heads, lines).rstrip()


def _of(rows: Sequence[Row], what: str) -> list[Row]:
    return [row for row in rows if row["what"] == what]


def _sizes(rows: Sequence[Row], what: str) -> str:
    unit, scale = ("ms", 1e3) if what == "staging" else ("s", 1.0)
    mine = _of(rows, what)
    heads = ["state", f"median, {unit}", "worst", f"{mine[0]['yard']}, {unit}", "ratio",
             "a rank tells", "tries", "load"]  # fmt: skip
    if what == "load":
        heads.insert(5, "MB/s")
    lines = []
    for row in sorted(mine, key=lambda size_row: size_row["bytes"]):
        took_s, yard_s = median(row["took_s"]), median(row["yard_s"])
        line = [f"{row['size_mb']} MB", _figure(took_s * scale),
                _figure(max(row["took_s"]) * scale), _figure(yard_s * scale),
                f"{took_s / yard_s:.2g}", _figure(median(row["told_s"]) * scale),
                str(len(row["took_s"])), f"{row['load']:.0f}"]  # fmt: skip
        if what == "load":
            line.insert(5, f"{row['bytes'] / took_s / 1e6:,.0f}")
        lines.append(line)
    return _table(heads, lines)


def _reconfigure(rows: Sequence[Row]) -> str:
    heads = ["groups", "median, ms", "worst", "a meeting in a TCPStore, ms", "ratio", "rounds",
             "rounds over 1 s", "load"]  # fmt: skip
    lines = []
    for row in _of(rows, "reconfigure"):
        took_s, yard_s = median(row["took_s"]), median(row["yard_s"])
        late = [sum(seconds > 1.0 for seconds in row[name]) for name in ("took_s", "yard_s")]
        lines.append(
            [str(row["groups"]), _figure(took_s * 1e3), _figure(max(row["took_s"]) * 1e3),
             _figure(yard_s * 1e3), f"{took_s / yard_s:.2g}", str(len(row["took_s"])),
             f"{late[0]}, of the meetings {late[1]}", f"{row['load']:.0f}"]
        )  # fmt: skip
    return _table(heads, lines)


def _figure(value: float) -> str:
    """Three digits that matter."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def _largest(rows: Sequence[Row]) -> str:
    """Bytes a second of the largest load, in MB/s."""
    row = max(_of(rows, "load"), key=lambda load_row: load_row["bytes"])
    return f"{row['bytes'] / median(row['took_s']) / 1e6:,.0f}"


def _conditions(rows: Sequence[Row]) -> str:
    last = rows[-1]
    loads = sorted(row["load"] for row in rows)
    return (
        f"{last['cores']} cores shared with others (load {loads[0]:.0f} to {loads[-1]:.0f}), Linux "
        f"{last['kernel']}, torch {last['torch']} on CPU, torchft {last['torchft']}, loopback, "
        f"{last['at']}"
    )


# -- recoveries -----------------------------------------------------------------------------------


def _chain(matrix: Sequence[Row]) -> str:
    """Medians after the fault: of TorchFT alone, beside lightkeeper, and behind its gate."""
    heads = ["Lighthouse", "beside the job", "runs", "told", "decided", "gone", "left", "survivors",
             "back", "survivors never, or ended"]  # fmt: skip
    lines = []
    for up in ("up", "down"):
        for keeper, gate, name in (
            (False, False, "nobody"),
            (True, False, "lightkeeper"),
            (True, True, "lightkeeper, gate"),
        ):
            mine = [
                row
                for row in matrix
                if row["fault"] in HANGING and row["lighthouse"] == up
                and (row["keeper"], row["gate"]) == (keeper, gate)
            ]  # fmt: skip
            lost = sum(row["to_survivors"] is None or bool(row["crashed"]) for row in mine)
            cells = [
                _median(row[f"to_{part}"] for row in mine)
                for part in ("firing", "decided", "gone", "left_quorum", "survivors", "back")
            ]
            lines.append([up, name, str(len(mine)), *cells, f"{lost} of {len(mine)}"])
    return _table(heads, lines)


def _median(values: Iterable[float | None]) -> str:
    numbers = [value for value in values if value is not None]
    return f"{median(numbers):.1f}" if numbers else "-"


def _recoveries(rows: Sequence[Row]) -> str:
    heads = ["fault", "runs", "fault to told", "told to all together", "steps lost", "state, MB",
             "load, s", "apply, s", "reconfigure, s", "donor stages, s"]  # fmt: skip
    lines, loaded = [], "last_checkpoint_load_bytes"
    mine = _of(rows, "recovery")
    if not mine:
        return "Not measured yet."
    for fault in dict.fromkeys(row["fault"] for row in mine):
        some = [row for row in mine if row["fault"] == fault]

        def spread(values: Iterable[float | None], runs: int = len(some)) -> str:
            valid = sorted(value for value in values if value is not None)
            missing = "" if len(valid) == runs else f" ({runs - len(valid)} unknown)"
            if not valid:
                return "-"
            return f"{_figure(median(valid))} ({_figure(valid[0])}-{_figure(valid[-1])}){missing}"

        lines.append(
            [fault, str(len(some)), spread(row["to_firing"] for row in some),
             spread(row["firing_to_resumed"] for row in some),
             ", ".join(str(row["lost_steps"]) for row in some),
             _median(row["healer"][loaded] / 1e6 for row in some if loaded in row["healer"]),
             *(spread(row["healer"].get(f"last_{part}_seconds") for row in some)
               for part in ("checkpoint_load", "checkpoint_apply", "reconfigure")),
             spread(row["donor"].get("last_checkpoint_staging_seconds") for row in some)]
        )  # fmt: skip
    return _table(heads, lines)


# -- the plot -------------------------------------------------------------------------------------

_LINES: Final = (("took_s", "TorchFT's load", "#1f77b4"), ("yard_s", "plain socket", "#7f7f7f"))


def plot(rows: Sequence[Row]) -> str:
    """Seconds of a load against the size of the state, both by powers of ten."""
    mine = sorted(_of(rows, "load"), key=lambda row: row["bytes"])
    seconds = [took_s for row in mine for name, _, _ in _LINES for took_s in row[name]]
    powers = math.floor(math.log10(min(seconds))), math.ceil(math.log10(max(seconds)))
    picture = Plot(
        "Seconds to load a state over loopback, by its size", (mine[0]["bytes"], mine[-1]["bytes"]),
        (10.0 ** powers[0], 10.0 ** powers[1]), by_powers=True,
    )  # fmt: skip
    picture.axes(
        [(row["bytes"], f"{row['size_mb']} MB") for row in mine],
        [(10.0**power, f"{10.0**power:g} s") for power in range(powers[0], powers[1] + 1)],
        "bytes of the state; lines: medians, dots: each try",
    )
    for name, text, colour in _LINES:
        tries = [(row["bytes"], took_s) for row in mine for took_s in row[name]]
        picture.line([(row["bytes"], median(row[name])) for row in mine], colour, text, tries)
    return picture.svg(COMMAND)
