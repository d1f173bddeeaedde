"""The screen of `top`, compared whole, and what its keys do."""

from __future__ import annotations

import re

import pytest

from monitor.commands.keys import names_of
from monitor.terminal.grid import text_of, width_of
from monitor.terminal.topscreen import Top, plain
from tests.monitor.terminal.bodies import asked, hung, many


def shown(top: Top, seen, width: int = 100, height: int = 12) -> str:
    lines = top.screen(seen, width, height)
    assert len(lines) <= height
    assert all(width_of(text_of(line)) <= width for line in lines)
    return re.sub(r"\d\d:\d\d:\d\d", "HH:MM:SS", plain(lines)) + "\n"


def test_a_hang_whole() -> None:
    assert (
        shown(Top(), asked(hung()))
        == """\
lightkeeper top  HH:MM:SS  no commit for 14s (step 120)
training no  held back by named  keeper acting  monitor trusted
4 ranks: 1 stalled 3 waiting   2 groups: 1 evicting 1 waiting
critical, firing: rg_1.1 stands still in 'data'. rg_1 is being evicted (not_entered-rg_1.1-7)

rank    health       host   phase            for    step   s/step     busy     wait  trouble
rg_1.1  stalled      node1  data             14s     120        -        -        -  -
rg_0.0  waiting      node0  communication    14s     120        -        -        -  -
rg_0.1  waiting      node0  communication    14s     120        -        -        -  -
rg_1.0  waiting      node1  communication    14s     120        -        -        -  -
1-4 of 4 ranks by busy   q leave  s/S sort  r reverse  u unhealthy  w wide  ? help
"""
    )


def test_ten_thousand_ranks_in_a_small_window() -> None:
    assert (
        shown(Top(), asked(many(1250, 8)), 60, 9)
        == """\
lightkeeper top  HH:MM:SS  step 120, 0.5 s a step, 1,250 of…
training yes  held back by nobody  keeper acting  monitor t…
10,000 ranks: 10,000 healthy   1,250 groups: 1,250 healthy
busiest is rg_7.3: 0.49 s a step, the median 0.4 s

rank    health       phase            for     busy  trouble
rg_7.3  healthy      forward         0.1s     0.49  -
rg_0.0  healthy      forward         0.1s      0.4  -
1-2 of 10,000 ranks by busy   q leave  s/S sort  r reverse …
"""
    )


def first(text: str) -> str:
    return text.splitlines()[6].split()[0]


def foot(text: str) -> str:
    return text.splitlines()[-1].partition("   ")[0]


def test_keys_sort_and_turn_and_filter() -> None:
    top, seen = Top(), asked(hung())
    shown(top, seen)
    top.struck("s")
    assert foot(shown(top, seen)) == "1-4 of 4 ranks by wait"
    top.struck("left")
    top.struck("S")
    assert first(shown(top, seen)) == "rg_0.0"
    assert foot(shown(top, seen)) == "1-4 of 4 ranks by rank"
    top.struck("r")
    assert first(shown(top, seen)) == "rg_1.1"
    assert foot(shown(top, seen)) == "1-4 of 4 ranks by rank, reversed"
    top.struck("u")
    assert foot(shown(top, seen)) == "1-1 of 1 unhealthy ranks by rank, reversed"
    top.struck("w")
    assert "loss" in shown(top, seen, 200)
    top.struck("?")
    assert "sort by the next column" in shown(top, seen)


def test_moving_ends_at_both_ends() -> None:
    top, seen = Top(order="rank"), asked(many(10, 8))
    assert first(shown(top, seen)) == "rg_0.0"
    for key, name in (
        ("up", "rg_0.0"), ("down", "rg_0.1"), ("page down", "rg_0.6"), ("end", "rg_9.3"),
        ("page down", "rg_9.3"), ("page up", "rg_8.6"), ("home", "rg_0.0"),
    ):  # fmt: skip
        top.struck(key)
        assert first(shown(top, seen)) == name, key


def test_a_fleet_that_shrinks_leaves_no_empty_screen() -> None:
    top = Top(order="rank")
    shown(top, asked(many(100, 8)))
    top.struck("end")
    shown(top, asked(many(100, 8)))
    assert foot(shown(top, asked(many(9, 8)))) == "68-72 of 72 ranks by rank"


def test_a_window_of_one_line_shows_what_fits() -> None:
    assert shown(Top(), asked(hung()), 30, 1) == "lightkeeper top  HH:MM:SS  no…\n"


@pytest.mark.parametrize(
    ("struck", "names"),
    [
        (b"q", ["q"]),
        (b"ss", ["s", "s"]),
        (b"\x1b[A\x1b[B", ["up", "down"]),
        (b"\x1b[5~\x1b[6~", ["page up", "page down"]),
        (b"\x1bOC", ["right"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[1;5Dq", ["q"]),  # Ctrl and an arrow: a sequence that we do not know
        (b"\x1b[<0;10;10Mq", ["q"]),
        (b"\xff", ["\ufffd"]),
    ],
)
def test_keys_have_names(struck: bytes, names: list[str]) -> None:
    assert list(names_of(struck)) == names
