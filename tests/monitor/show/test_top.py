"""The screen of `top`, compared whole."""

from __future__ import annotations

import re

from lightkeeper.monitor.decide.view import View
from lightkeeper.monitor.decide.view_json import ranks_to_json
from lightkeeper.monitor.show.terminal.status import top_screen
from lightkeeper.monitor.show.terminal.tables import RowsAsked, width_of
from tests.monitor.bodies import hung, many, status


def shown(view: View, width: int = 100, height: int = 12, sort: str = "busy", **asked: bool) -> str:
    rows = ranks_to_json(view)
    lines = top_screen(status(view), rows, RowsAsked(sort=sort, **asked), width, height)
    assert len(lines) <= height
    assert all(width_of(line) <= width for line in lines)
    return re.sub(r"\d\d:\d\d:\d\d", "HH:MM:SS", "\n".join(lines)) + "\n"


def test_a_hang_whole() -> None:
    assert (
        shown(hung())
        == """\
lightkeeper top  HH:MM:SS UTC  no commit for 14s (step 120)
training no  held back by named  keeper acting  monitor trusted
4 ranks: 1 stalled, 3 waiting   2 groups: 1 evicting, 1 waiting
critical, firing: rg_1.1 stands still in 'data'. rg_1 is being evicted (not_entered-rg_1.1-7)

rank    health       host   phase            for    step   s/step     busy     wait  trouble
rg_1.1  stalled      node1  data             14s     120        -        -        -  -
rg_0.0  waiting      node0  communication    14s     120        -        -        -  -
rg_0.1  waiting      node0  communication    14s     120        -        -        -  -
rg_1.0  waiting      node1  communication    14s     120        -        -        -  -
4 of 4 ranks by busy   Ctrl-C: leave
"""
    )


def test_ten_thousand_ranks_in_a_small_window() -> None:
    assert (
        shown(many(1250, 8), 60, 9)
        == """\
lightkeeper top  HH:MM:SS UTC  step 120, 0.5 s a step, 1,25…
training yes  held back by nobody  keeper acting  monitor t…
10,000 ranks: 10,000 healthy   1,250 groups: 1,250 healthy
busiest is rg_7.3: 0.49 s a step, the median 0.4 s

rank    health       phase            for     busy  trouble
rg_7.3  healthy      forward         0.1s     0.49  -
rg_0.0  healthy      forward         0.1s      0.4  -
2 of 10,000 ranks by busy   Ctrl-C: leave
"""
    )


def first(text: str) -> str:
    return text.splitlines()[6].split()[0]


def foot(text: str) -> str:
    return text.splitlines()[-1].partition("   ")[0]


def test_it_is_sorted_and_filtered_as_asked() -> None:
    seen = hung()
    by_name = shown(seen, sort="rank")
    assert (first(by_name), foot(by_name)) == ("rg_0.0", "4 of 4 ranks by rank")
    sick = shown(seen, sort="rank", unhealthy=True)
    assert foot(sick) == "1 of 1 unhealthy ranks by rank"
    assert "loss" in shown(seen, 200, wide=True)


def test_a_window_of_one_line_shows_what_fits() -> None:
    assert shown(hung(), 30, 1) == "lightkeeper top  HH:MM:SS UTC…\n"
