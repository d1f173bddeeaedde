"""The wait-for graph as a drawing: nothing overlaps, every wait is a line and a sentence."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Final
from xml.etree import ElementTree

import pytest

from lightkeeper.monitor.detect.graph import By
from lightkeeper.monitor.model.plain import to_plain
from lightkeeper.monitor.model.wait_map import TOLD, WaitEdge, WaitMap, WaitNode
from lightkeeper.monitor.show.graph_svg import WITNESSES, GraphDrawing, draw_graph, wait_label
from lightkeeper.monitor.show.report import Report, records_map
from lightkeeper.monitor.show.templating import environment
from tests.monitor.fleet import SimFleet, at, stop
from tests.monitor.show.jobs import hang, healthy, megatron, tie
from tests.page.views import Simulated
from tests.timing import cpu_s


def test_every_witness_has_words() -> None:
    assert WITNESSES.keys() == {*By, TOLD}


def node(name: str, depth: int, part: str = "waits", **more) -> WaitNode:
    return WaitNode(part, (name,), more.pop("count", 1), depth, more.pop("does", ""), **more)


CHAIN = WaitMap(
    5.0,
    (
        node("rg_1.0", 0, "culprit", does="hangs in main (train.py:20)", hosts=("h1",),
             host_count=1),
        node("rg_1.1", 1, count=7, groups=("rg_1",), group_count=1, does="in all_reduce"),
        node("rg_0.0", 2, count=889, groups=("rg_0", "rg_2"), group_count=127,
             hosts=("h0",), host_count=127),
    ),
    (WaitEdge(1, 0, "collective", 12.0, 12.0), WaitEdge(2, 1, "across", 8.0, 11.5)),
)  # fmt: skip


def drawn(picture: GraphDrawing, **more: bool) -> str:
    return str(environment().get_template("graph.html").module.graph(picture, **more))


def boxes_of(svg: str) -> list[tuple[int, ...]]:
    """Left, top, width and height of each."""
    pattern = r'<rect x="(-?\d+)" y="(-?\d+)" width="(\d+)" height="(\d+)"'
    return [tuple(map(int, box)) for box in re.findall(pattern, svg)]


def size_of(svg: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r'viewBox="0 0 (\d+) (\d+)"', svg)[0]))


@pytest.mark.parametrize(
    ("groups", "world"), [(3, 1), (8, 8), (64, 8)], ids=["3 ranks", "64", "512"]
)
def test_a_fleet_of_any_size_gives_a_picture_of_a_few_boxes_in_a_bounded_time(
    groups: int, world: int
) -> None:
    shown = Simulated(SimFleet(groups, world, [at(8, stop("rg_1.0"))])).run(14)
    (fault,) = shown.incidents
    picture = draw_graph(fault.verdict.waits)
    assert picture is not None
    svg = drawn(picture)
    assert cpu_s(lambda: drawn(draw_graph(fault.verdict.waits))) < 0.5
    assert 2 <= len(boxes_of(svg)) <= 10
    assert picture.nodes[picture.order[0]].name == "rg_1.0"
    assert sum(node.count for node in picture.nodes) == groups * world
    width, height = size_of(svg)
    assert width <= 420
    assert height <= 900
    assert len(svg) < 12_000
    assert len(json.dumps(to_plain(fault.verdict.waits))) < 8192


def test_each_wait_has_a_line_with_its_witness_and_seconds_and_a_sentence() -> None:
    picture = draw_graph(CHAIN)
    assert picture is not None
    assert [wait_label(edge) for edge in picture.branches] == [
        "in a collective, 12 s", "across groups, 8.0 s to 12 s",
    ]  # fmt: skip
    assert picture.sentences == (
        "rg_1.0 hangs in main (train.py:20), on h1",
        "7 ranks of rg_1 wait for rg_1.0: in a collective, 12 s",
        "889 ranks of 127 groups wait for 7 ranks of rg_1: across groups, 8.0 s to 12 s",
    )
    svg = drawn(picture)
    assert re.findall(r'<a href="([^"]*)"', svg) == ["/ranks/rg_1.0", "/groups/rg_1"]
    assert "<a " not in drawn(picture, linked=False)


def test_no_box_touches_another_and_who_waits_stands_below_and_to_the_right() -> None:
    picture = draw_graph(CHAIN)
    assert picture is not None
    boxes = boxes_of(drawn(picture))
    for above, below in pairwise(boxes):
        assert above[1] + above[3] < below[1]
        assert above[0] < below[0]
    assert boxes[-1][0] + boxes[-1][2] <= size_of(drawn(picture))[0] <= 420


def test_ranks_that_wait_for_each_other_have_lines_at_the_edge() -> None:
    circle = WaitMap(
        1.0, (node("a.0", 0, "candidate"), node("a.1", 0, "candidate")),
        (WaitEdge(0, 1, "collective", 3.0, 3.0), WaitEdge(1, 0, TOLD)),
    )  # fmt: skip
    picture = draw_graph(circle)
    assert picture is not None
    assert drawn(picture).count("<path") == 2
    assert list(picture.sentences) == [
        "a.0 waits for a.1: in a collective, 3.0 s",
        "a.1 waits for a.0: seen before, or by flight records",
    ]


def test_damaged_ones_from_a_store_are_drawn_as_far_as_they_make_sense() -> None:
    odd = WaitMap(
        1.0, (node("", -3), WaitNode("what", (), -1, 99, "")),
        (WaitEdge(5, 0, "x"), WaitEdge(-1, 0, "x"), WaitEdge(1, 1, "odd", None, 2.0)),
    )  # fmt: skip
    picture = draw_graph(odd)
    assert picture is not None
    assert len(boxes_of(drawn(picture))) == 2
    assert draw_graph(WaitMap(1.0, (), ())) is None
    assert draw_graph(None) is None


EVIL: Final = "\"'><script>alert(1)</script>&\u202e\n\x1b[2J"


def hostile(ranks: int) -> WaitMap:
    """As a bundle from elsewhere may bring it; names as long as it has ranks."""
    name = (EVIL * ranks)[:ranks]
    nodes = tuple(
        WaitNode("waits" if rank else "culprit", (f"{rank}{name}", name), 1 + rank % 2, rank % 9,
                 name, (name,) * 9, 1, (name,) * 9, 1)
        for rank in range(ranks)
    )  # fmt: skip
    circles = [(rank, (rank + 1) % 24) for rank in range(ranks)]
    crossed = [(rank % 24, rank % 7) for rank in range(ranks)]
    edges = tuple(WaitEdge(*pair, name, 1.0, float("inf")) for pair in [*circles, *crossed] * 5)
    return WaitMap(1.0, nodes, edges)


def test_a_huge_and_hostile_one_is_cut_and_escaped_and_costs_no_more_than_a_large_one() -> None:
    large, huge = hostile(1_000), hostile(6_000)
    assert cpu_s(lambda: drawn(draw_graph(huge)), 3) < 3 * cpu_s(
        lambda: drawn(draw_graph(large)), 3
    )
    svg = drawn(draw_graph(huge))
    assert 20_000 < len(svg) < 300_000
    assert len(boxes_of(svg)) == 24
    assert "&lt;script&gt;" in svg
    assert not [char for char in "\u202e\x1b" if char in svg]
    for document in re.findall(r"<svg.*?</svg>", svg, re.DOTALL):
        tags = {
            element.tag.rpartition("}")[2] for element in ElementTree.fromstring(document).iter()
        }
        assert tags == {"svg", "title", "g", "path", "text", "a", "rect"}
    words = re.findall(r"<li>(.*?)</li>", svg)
    assert len(words) <= 24 + 96
    assert max(map(len, words)) < 2_000
    assert not [text for text in words if "<" in text]


@pytest.mark.parametrize("make", [hang, tie, lambda: megatron(16)], ids=["hang", "tie", "megatron"])
def test_flight_records_give_the_graph_of_their_crowds(make) -> None:
    job, analysis = make()
    waits = records_map(job, analysis)
    assert waits is not None
    accused = {rank for node in waits.nodes if node.part != "waits" for rank in node.ranks}
    assert accused
    assert waits.edges
    text = Report(job, analysis).page()
    assert text.count('<figure class="graph">') == 1
    assert len(text) < 60_000


def test_without_a_wait_the_report_has_no_picture() -> None:
    assert "<figure" not in Report(*healthy()).page()
