"""Tests that share processes go to one process of pytest-xdist, and the fleets go first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import LOADED, UNIT_PART
from tests.sharing import TOGETHER, turn_of, unit_of

ROOT = Path(__file__).parents[1]
CHEAP = {
    "tests/dashboards/test_scenes.py",
    "tests/monitor/act/schedulers/test_webhook.py",
    "tests/worker_server/test_endpoints.py",
    "tests/worker_server/test_thread_race.py",
}
"""What their tests share is up in a second: each process has its own."""


def test_whatever_trains_for_real_is_one_of_two_units_and_goes_first() -> None:
    demo = "tests/integration/test_demo.py::test_one"
    assert (
        unit_of(demo)
        == unit_of("tests/experiments/test_campaign_fleet.py::test_two[a@b]")
        == "fleets"
    )
    assert turn_of(demo) == 0
    assert unit_of("tests/trainer/test_fleet.py::test_five") == "trainers"
    assert turn_of("tests/experiments/test_killing.py::test_six") == 1
    for path in (ROOT / "tests/integration").rglob("test_*.py"):
        assert turn_of(str(path.relative_to(ROOT))) < 3
    alone = "tests/worker_server/test_endpoints.py::test_three"
    assert unit_of(alone) == alone
    assert turn_of("tests/monitor/test_crash.py::test_four") < turn_of(alone)


def test_every_place_is_there() -> None:
    places = [place for places in TOGETHER.values() for place in places]
    assert [place for place in places if not (ROOT / place).exists()] == []


def test_a_file_whose_tests_share_processes_is_of_a_group() -> None:
    integration = "pytest." + "mark.integration"  # not this file
    for path in (ROOT / "tests").rglob("test_*.py"):
        text, name = path.read_text("utf-8"), str(path.relative_to(ROOT))
        if integration in text and 'scope="module"' in text and name not in CHEAP:
            assert unit_of(name) in TOGETHER, name


def test_no_file_of_the_unit_part_loads_torch(pytestconfig: pytest.Config) -> None:
    """Which takes each process 2 s: those that need it are integration tests."""
    if pytestconfig.option.markexpr != UNIT_PART or pytestconfig.args != ["tests"]:
        pytest.skip("only the unit part as a whole is without torch")
    assert "torch" not in pytestconfig.stash[LOADED]
