"""The plot is an SVG that a browser takes, with one line and one name a way."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from monitor.goodput.cases import TIMES, Detection, ways
from monitor.goodput.compare import Outcome, compare, sizes
from monitor.goodput.plot import plot
from monitor.goodput.scenario import Job, Mix, ScenarioError, Spares

NAMES = ["synchronous", "FT, watchdog 10 min", "TorchFT's timeouts", "a <b> & c", "+ 2 false a day"]


def sweep() -> list[tuple[Outcome, ...]]:
    return [
        compare(
            ways(
                Job(ranks, 10, 1e8 / ranks), mix=Mix(), times=TIMES, spares=Spares(),
                kept=[("a <b> & c", Detection())], give_up_s=125.0, false_per_day=2.0,
            ),
            None,
        )
        for ranks in (1000, 5000, 100_000)
    ]  # fmt: skip


def test_every_way_has_its_line_and_its_name() -> None:
    root = ET.fromstring(plot(sweep(), "a title", "a command"))
    words = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "a title" in words
    assert {"1k", "5k", "100k", *NAMES} <= set(words)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == len(NAMES)


@pytest.mark.parametrize(
    ("first", "last", "unit", "found"),
    [
        (1000, 10_000, 10, (1000, 2000, 5000, 10_000)),
        (8192, 98_304, 8192, (8192, 16_384, 49_152, 98_304)),
        (300, 400, 10, (300, 400)),
    ],
)
def test_sizes_are_one_two_five_in_multiples(
    first: int, last: int, unit: int, found: tuple[int, ...]
) -> None:
    assert sizes(first, last, unit) == found


def test_a_sweep_goes_upwards() -> None:
    with pytest.raises(ScenarioError, match="the sweep is 5:2, expected two sizes in order"):
        sizes(5, 2, 1)
