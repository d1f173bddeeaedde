"""The house grows in no figure that somebody counted, and what counts them sees what it shall."""

from __future__ import annotations

import ast

import pytest

from tests.counts import Road, circle_of, figures, modules_of, phrases_sought


def test_no_figure_is_over_its_ceiling() -> None:
    over = {figure.what: figure for figure in figures() if figure.count > figure.most}
    assert over == {}


def test_a_circle_of_three_is_found() -> None:
    assert circle_of({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "c", "b", "a"]


@pytest.mark.parametrize(
    ("code", "phrases"),
    [
        ("text.removeprefix('Killed by ')", ["Killed by "]),
        ("text.startswith(('cannot tell: ', 'a'))", ["cannot tell: "]),
        ("re.search(r'taken ([0-9.]+) s ago', text)", ["taken ([0-9.]+) s ago"]),
        ("'no such rank' in text", ["no such rank"]),
        ("name.startswith('rg_'); kind == 'dead'; text.split(', ')", []),
        ("print('all is well')", []),
    ],
)
def test_a_phrase_that_a_text_is_searched_for_is_seen(code: str, phrases: list[str]) -> None:
    assert list(phrases_sought(ast.parse(code))) == phrases


def test_a_road_has_the_files_between_its_two_calls() -> None:
    from lightkeeper.monitor.model import names, units

    def walk() -> None:
        units.counted(1, "rank")
        names.one_line("a")
        units.utc(0.0)

    assert Road("counted", "one_line").walked(walk) == ["monitor/model/units.py"]
    assert Road().walked(walk) == ["monitor/model/names.py", "monitor/model/units.py"]
    assert Road("utc", "never").walked(lambda: names.one_line("a")) == []


def test_a_command_loads_itself_and_no_detector() -> None:
    modules = modules_of("status")
    assert "lightkeeper.monitor.commands.status" in modules
    assert not any(name.startswith("lightkeeper.monitor.detect") for name in modules)
