"""What of the wait-for graph a person is shown: folded, bounded, and what was decided on."""

from __future__ import annotations

import json

import pytest

from lightkeeper.monitor.decide import pipeline
from lightkeeper.monitor.detect.graph import WaitGraph
from lightkeeper.monitor.detect.history import History
from lightkeeper.monitor.detect.wait_map import wait_map
from lightkeeper.monitor.model.incident import State, incident_from_json, incident_to_json
from lightkeeper.monitor.model.plain import to_plain
from lightkeeper.monitor.model.verdict import Verdict
from lightkeeper.monitor.model.wait_map import WaitMap
from tests.monitor.fleet import Drive, SimFleet, at, stop


def judged(groups: int, world: int, ticks: int = 36) -> tuple[WaitMap, Drive]:
    """What an incident of a stopped rank has, at the tick in which the stop is first seen."""
    drive = Drive(SimFleet(groups, world, [at(30, stop("rg_1.0"))]))
    for _ in range(ticks):
        drive.step()
    waits = drive.results[-1].incidents[0].verdict.waits
    assert waits is not None
    return waits, drive


def shape(waits: WaitMap) -> list[tuple[str, tuple[str, ...], int, int]]:
    return [(node.part, node.ranks, node.count, node.depth) for node in waits.nodes]


def ways(waits: WaitMap) -> set[tuple[str, str, str]]:
    names = [node.ranks[0] for node in waits.nodes]
    return {(names[edge.waiter], names[edge.holder], edge.by) for edge in waits.edges}


def test_of_few_ranks_each_is_a_node_and_each_wait_names_its_witness() -> None:
    waits, _ = judged(2, 2)
    assert shape(waits) == [
        ("culprit", ("rg_1.0",), 1, 0),
        ("waits", ("rg_0.0",), 1, 1),
        ("waits", ("rg_1.1",), 1, 1),
        ("waits", ("rg_0.1",), 1, 2),
    ]
    assert ways(waits) == {
        ("rg_0.0", "rg_1.0", "across"),
        ("rg_1.1", "rg_1.0", "collective"),
        ("rg_0.1", "rg_1.1", "across"),
    }
    assert waits.nodes[0].does.startswith("is stopped by a signal")
    assert {(edge.least_s, edge.most_s) for edge in waits.edges} == {(5.0, 5.0)}


@pytest.mark.parametrize(("groups", "world"), [(8, 8), (48, 8), (1, 64)], ids=str)
def test_of_many_ranks_those_alike_are_one_node_and_none_is_lost(groups: int, world: int) -> None:
    fleet = SimFleet(groups, world, [at(10, stop(f"rg_{groups - 1}.0"))])
    drive = Drive(fleet)
    seen = None
    while seen is None:
        seen = next((i.verdict for i in drive.step().incidents), None)
    waits = seen.waits
    assert waits is not None
    assert len(waits.nodes) <= 10
    assert sum(node.count for node in waits.nodes) == len({*seen.culprits, *seen.victims})
    assert [node.part for node in waits.nodes].count("culprit") == 1
    assert len(json.dumps(to_plain(waits))) < 8_000


def test_it_is_kept_with_the_incident_as_it_was_when_the_eviction_was_decided() -> None:
    drive = Drive(SimFleet(3, 1, [at(30, stop("rg_1.0"))]))
    decided = None
    while decided is None:
        result = drive.step()
        if result.decisions:
            decided = result.incidents[0].verdict.waits
    for _ in range(20):
        result = drive.step()
    incident = next(i for i in result.incidents if i.milestones.evict_asked_s is not None)
    assert incident.state is State.RESOLVED
    assert decided is not None
    assert incident.verdict.waits == decided
    assert incident_from_json(incident_to_json(incident)).verdict.waits == decided


def test_it_is_not_made_in_the_tick_that_decides(monkeypatch) -> None:
    made: list[float] = []

    def noted(history: History, graph: WaitGraph, verdict: Verdict) -> WaitMap | None:
        made.append(history.now_s)
        return wait_map(history, graph, verdict)

    monkeypatch.setattr(pipeline, "wait_map", noted)
    _, drive = judged(8, 8, ticks=45)
    decided = [result.now_s for result in drive.results if result.decisions]
    assert made
    assert decided
    assert not {*made} & {*decided}


def test_an_incident_of_an_older_version_has_none() -> None:
    _, drive = judged(2, 2)
    body = incident_to_json(drive.results[-1].incidents[0])
    del body["waits"]
    assert incident_from_json(body).verdict.waits is None
