"""The pipeline's memory as JSON: the same shape again, and nothing that runs."""

from __future__ import annotations

import json
from collections import Counter, deque
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.journal import memory
from lightkeeper.monitor.journal.memory import MemoryFormatError
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.verdict import RankHealth
from tests.deep import DEEP
from tests.monitor.fleet import SimFleet
from tests.worker_server.wire_values import PARSERS, values

CONFIG = KeeperConfig()


def written(frozen):
    return json.loads(memory.dumped(memory.Writer(CONFIG).plain(frozen), odd=True))


def through(value):
    return memory.Reader(CONFIG).read(written(memory.freeze(value)))


@pytest.mark.parametrize(
    "value",
    [
        None, True, 1, 1 / 3, float("-inf"), "ü", (), (1, (2,)), [1, []], {1, 2}, frozenset({"a"}),
        {("a", 1): [1], "b": None}, Counter({"a": 2}), deque([1, 2], maxlen=3),
        RankHealth.DEAD, {RankHealth.DEAD: (RankHealth.HEALTHY,)},
    ],
    ids=repr,
)  # fmt: skip
def test_what_a_pipeline_may_remember_comes_back(value) -> None:
    copy = through(value)
    assert copy == value
    assert type(copy) is type(value)
    if isinstance(value, deque):
        assert copy.maxlen == value.maxlen


@pytest.mark.parametrize("kind", PARSERS, ids=lambda kind: kind.__name__)
@settings(max_examples=8 * DEEP)  # each draws a whole answer
@given(data=st.data())
def test_whatever_the_wire_carries_can_be_remembered(kind, data) -> None:
    value = data.draw(values(kind))
    copy = through({"rank": value})["rank"]
    assert copy == value
    assert repr(copy) == repr(value)  # a row is no longer a plain tuple, the order is the same


def test_an_object_met_twice_is_one_object_again() -> None:
    track = RankTrack(SimFleet(1, 1).ranks()[0].identity, 1.0, 2.0)
    copy = through({"tracks": {"a": track}, "groups": ((track,),)})
    assert copy["tracks"]["a"] == track
    assert copy["groups"][0][0] is copy["tracks"]["a"]


def test_what_changes_after_the_freeze_is_not_written() -> None:
    track = RankTrack(SimFleet(1, 1).ranks()[0].identity, 1.0, 2.0)
    held = {"tracks": {"a": track}, "list": [1]}
    frozen = memory.freeze(held)
    track.seen_s = 99.0
    held["list"].append(2)
    held["new"] = 1
    memories = memory.Reader(CONFIG).read(written(frozen))
    assert (memories["tracks"]["a"].seen_s, memories["list"], "new" in memories) == (
        2.0,
        [1],
        False,
    )


def test_the_configuration_is_the_one_of_the_replay() -> None:
    other = KeeperConfig(stall_floor_s=30)
    plain = written(memory.freeze({"config": CONFIG}))
    assert memory.Reader(other).read(plain)["config"] is other


def test_a_configuration_that_differs_keeps_its_difference() -> None:
    scaled = KeeperConfig(stall_floor_s=10)
    plain = written(memory.freeze({"config": scaled}))
    other = KeeperConfig(observe=True)
    assert memory.Reader(other).read(plain) == {
        "config": KeeperConfig(stall_floor_s=10, observe=True)
    }


@dataclass
class Foreign:
    x: int = 1


@pytest.mark.parametrize(
    "value", [lambda: 1, object(), Foreign(), bytearray(b"x")], ids=lambda v: type(v).__name__
)
def test_what_cannot_be_written_is_refused_by_name(value) -> None:
    with pytest.raises(MemoryFormatError, match="cannot be journalled"):
        written(memory.freeze({"x": [value]}))


def told(module: str, name: str, fields: list[str]):
    return {"classes": [[module, name, fields]], "value": ["o", 0, *[None for _ in fields]]}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (told("os", "system", []), "there is no os.system here"),
        (told("subprocess", "Popen", []), "there is no subprocess.Popen here"),
        (told("monitor.decide.pipeline", "Pipeline", []), "cannot be journalled"),
        (told("monitor.rulebook", "fields", []), "there is no monitor.rulebook.fields here"),
        (told("monitor.detect.history", "RankTrack", ["identity"]), "another version wrote this"),
        (told("monitor.nowhere", "Thing", []), "there is no monitor.nowhere.Thing"),
        ({"classes": [], "value": ["?"]}, "unknown tag"),
        ({"classes": [], "value": ["r", 5]}, "not of a journal"),
        ({}, "not of a journal"),
        ([], "not of a journal"),
    ],
    ids=range(10),
)
def test_only_our_own_plain_classes_of_the_same_form_are_made(data, words: str) -> None:
    with pytest.raises(MemoryFormatError, match=words):
        memory.Reader(CONFIG).read(data)
