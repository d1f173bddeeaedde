"""`python -m experiments.scale.plot RUNS.jsonl OUT.svg`: what a monitor costs, as a picture.

Each line of the file is what `python -m experiments.scale` printed. Each axis is logarithmic: a
straight line is linear.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from experiments.plot import Plot


def main() -> int:
    """CPU seconds a tick and memory over the number of ranks."""
    source, target = map(Path, sys.argv[1:3])
    runs = [json.loads(line) for line in source.read_text().splitlines()]
    runs.sort(key=lambda run: run["ranks"])
    plot = Plot("A monitor's CPU and memory by the number of ranks", (100, 100_000), (0.01, 10.0),
                by_powers=True, left=120)  # fmt: skip
    plot.axes(
        [(10.0**power, f"{10**power:,} ranks") for power in range(2, 6)],
        [(10.0**power, f"{10.0**power:g} s, {1000 * 10.0**power:,.0f} MiB")
         for power in range(-2, 2)],
    )  # fmt: skip
    cost = [(run["ranks"], run["cores"] * run["tick_s"]) for run in runs]
    memory = [(run["ranks"], run["peak_mib"] / 1000) for run in runs]
    plot.line(cost, "#1f6feb", "CPU seconds a tick", cost)
    plot.line(memory, "#bf5b04", "MiB at the most", memory)
    target.write_text(plot.svg("python -m experiments.scale.plot"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
