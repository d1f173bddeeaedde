"""The loss of three runs: what evictions change, beside what another seed changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from experiments.band import judge
from experiments.plot import Plot

_COLOURS: Final = ("#1f77b4", "#d62728", "#9e9e9e")


def draw(runs: Sequence[Mapping[str, Any]], command: str) -> str:
    """One line a run, smoothed; a band where a group was sick, evicted, away."""
    lines = [judge.smoothed(dict(run["loss"])) for run in runs]
    losses = [loss for line in lines for loss in line.values()]
    last = max(max(line) for line in lines)
    plot = Plot(
        f"Loss, mean of {judge.WINDOW} committed steps (nats a byte): 2 groups x 2 ranks, FSDP2 "
        "and TorchFT; red: a group is sick, evicted, away",
        (0, last), (min(losses), max(losses)), width=860, height=460, right=190,
    )  # fmt: skip
    for eviction in (row for run in runs for row in run["evictions"]):
        plot.band(eviction["at"], eviction["back"], eviction["kind"])
    tenths = range(int(10 * min(losses)) + 1, int(10 * max(losses)) + 1, 2)
    plot.axes(
        [(step, str(step)) for step in range(0, last + 1, 50)],
        [(tenth / 10, f"{tenth / 10:.1f}") for tenth in tenths], "committed step",
    )  # fmt: skip
    for number in (2, 0, 1):  # what is compared lies on top
        plot.line(list(lines[number].items()), _COLOURS[number])
        plot.text(plot.width - 180, plot.top + 20 + 18 * number, runs[number]["run"], "start",
                  _COLOURS[number])  # fmt: skip
    return plot.svg(command)
