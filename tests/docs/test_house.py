"""The picture of the house is drawn from the code, and says what the import contracts say."""

from __future__ import annotations

from tests.counts import ROOT, contracts
from tests.docs.house import (
    GATE,
    HELPERS,
    LINES,
    MEETING,
    PICTURE,
    ROOMS,
    WIRE,
    levels,
    picture,
    room_imports,
    shortest,
)

AGAIN = "python -m tests.docs.house draws it again"


def test_the_committed_picture_is_this_one() -> None:
    assert (ROOT / PICTURE).read_text() == picture(), AGAIN


def test_its_lines_are_the_imports_of_the_code() -> None:
    assert LINES.keys() == shortest(room_imports()) | MEETING.keys(), AGAIN


def test_every_room_of_the_contract_is_drawn_on_its_floor() -> None:
    assert ROOMS.keys() | set(HELPERS) == levels().keys()


def test_a_line_leads_down_or_across_as_the_contract_lets_it() -> None:
    level = {**levels(), WIRE: 9}
    inside = [pair for pair in LINES if GATE not in pair]
    assert [(a, b) for a, b in inside if level[a] > level[b]] == []
    across = {pair for pair, at in LINES.items() if at == "across"}
    assert {(a, b) for a, b in inside if level[a] == level[b]} == across


def test_what_decides_does_not_reach_what_acts_and_the_loop_reaches_both() -> None:
    [contract] = [each for each in contracts() if each["name"].startswith("What decides and what")]
    assert contract["source_modules"] == ["lightkeeper.monitor.decide"]
    assert contract["forbidden_modules"] == ["lightkeeper.monitor.act"]
    pairs = room_imports()
    assert not {("decide", "act"), ("act", "decide")} & pairs
    assert MEETING.keys() <= pairs


def test_a_room_that_is_drawn_pure_is_held_to_it() -> None:
    pure = (each for each in contracts() if each["name"].startswith(("Deciders", "Nor do these")))
    held = {module.split(".")[2] for each in pure for module in each["source_modules"]
            if module.startswith("lightkeeper.monitor.")}  # fmt: skip
    assert {room for room, place in ROOMS.items() if place.look == "pure"} <= held


def test_no_room_stands_on_another_and_no_line_runs_through_one() -> None:
    level = levels()
    for room, place in ROOMS.items():
        beside = (ROOMS[other] for other in ROOMS if other != room and level[other] == level[room])
        assert all(other.right < place.left or place.right < other.left for other in beside), room
    for (upper, lower), at in LINES.items():
        if isinstance(at, int):
            between = range(level[upper] + 1, level.get(lower, 9))
            crossed = [room for room, place in ROOMS.items()
                       if level[room] in between and place.left <= at <= place.right]  # fmt: skip
            ends = [ROOMS[room] for room in (upper, lower) if room in ROOMS]
            assert crossed == [], (upper, lower)
            assert all(place.left < at < place.right for place in ends), (upper, lower)
