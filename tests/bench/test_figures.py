"""The page of figures: what is committed is what the rows say."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from tests.bench import figures, seeds
from tests.worker_server.ranks import ROOT

ROWS = ROOT / "evidence" / "figures.jsonl"


def test_the_page_and_the_plot_are_those_of_the_rows(monkeypatch):
    monkeypatch.chdir(ROOT)
    rows, matrix = seeds.read(ROWS), seeds.read(figures.MATRIX)
    assert (ROOT / "evidence" / "figures.md").read_text() == figures.render(rows, matrix)
    assert (ROOT / "evidence" / "images" / figures.PLOT).read_text() == figures.plot(rows)


def test_every_row_says_under_which_conditions_it_was_made():
    rows = seeds.read(ROWS)
    assert {row["size_mb"] for row in rows if row["what"] == "load"} == set(seeds.SIZES_MB)
    assert {row["groups"] for row in rows if row["what"] == "reconfigure"} == set(seeds.GROUPS)
    for row in rows:
        assert row["cores"] > 0
        assert row["load"] >= 0
        assert row["code"]


def test_what_a_rank_tells_is_what_was_measured_from_outside():
    """Our hook is inside of the call that the benchmark times, and sees nearly all of it."""
    for row in seeds.read(ROWS):
        if row["what"] == "load":
            assert row["told_bytes"] == row["bytes"]
            for took_s, told_s in zip(row["took_s"], row["told_s"], strict=True):
                assert 0.5 * took_s < told_s <= took_s


def row(what, size_mb, took_s):
    return {
        "what": what, "size_mb": size_mb, "bytes": size_mb * 10**6, "load": 1.0, "told_s": took_s,
        "took_s": took_s, "yard": "plain", "yard_s": [0.1 * seconds for seconds in took_s],
    }  # fmt: skip


def test_a_row_that_is_made_again_replaces_the_former_one(tmp_path):
    path = tmp_path / "rows.jsonl"
    for fresh in (row("load", 10, [1.0]), row("load", 30, [2.0]), row("load", 10, [3.0])):
        seeds.keep(path, fresh)
    assert [kept["took_s"] for kept in seeds.read(path)] == [[3.0], [2.0]]


def test_the_plot_is_drawn_from_left_to_right_and_upwards():
    drawn = ET.fromstring(figures.plot([row("load", 100, [1.0, 2.0]), row("load", 10, [0.1])]))
    lines = [
        element.attrib["points"].split()
        for element in drawn.iter()
        if element.tag.endswith("polyline")
    ]
    assert len(lines) == 2
    for line in lines:
        (x1, y1), (x2, y2) = (map(float, point.split(",")) for point in line)
        assert x1 < x2
        assert y1 > y2
    assert sum(element.tag.endswith("circle") for element in drawn.iter()) == 6


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.000244, "0.000244"), (1.2345, "1.23"), (5039.52, "5,040")]
)
def test_figures_have_three_digits_that_matter(value, text):
    assert figures._figure(value) == text


INCIDENT = {
    "groups": ["rg_2"], "lost_steps": 1,
    "milestones": {"firing_s": 100.0, "resumed_s": 112.5},
}  # fmt: skip
METRICS = """\
lightkeeper_group_last_checkpoint_staging_seconds{replica_group="rg_0"} 0.001
lightkeeper_group_last_checkpoint_staging_seconds{replica_group="rg_2"} 0.9
lightkeeper_group_last_checkpoint_load_seconds{replica_group="rg_2"} 0.02
lightkeeper_group_last_checkpoint_load_seconds{replica_group="rg_1"} 7.0
lightkeeper_group_last_reconfigure_seconds{replica_group="rg_2"} 0.03
lightkeeper_group_heals_total{replica_group="rg_2"} 1.0
"""


def test_a_recovery_is_read_from_the_monitor():
    recovering = pytest.importorskip("tests.bench.recovering")
    later = {**INCIDENT, "lost_steps": 9, "milestones": {"firing_s": 101.0, "resumed_s": 190.0}}
    pending = {**INCIDENT, "milestones": {"firing_s": None}}
    recovery = recovering.of_incidents("rg_2", [later, json.loads(json.dumps(INCIDENT)), pending])
    assert recovery == {"firing_to_resumed": 12.5, "lost_steps": 1}
    assert recovering.of_incidents("rg_0", [INCIDENT])["firing_to_resumed"] is None
    assert recovering.of_metrics("rg_2", METRICS) == {
        "donor": {"last_checkpoint_staging_seconds": 0.001},
        "healer": {"last_checkpoint_load_seconds": 0.02, "last_reconfigure_seconds": 0.03},
    }
