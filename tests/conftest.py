"""What holds for every test: how many examples a property is tried on, and who goes first."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from tests.deep import DEEP

settings.register_profile("lightkeeper", max_examples=30 * DEEP, deadline=None)
settings.load_profile("lightkeeper")  # no deadline: a busy host is no defect of the code


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m integration` reads the files that have such tests: the others cost each worker 9 s."""
    if config.getoption("markexpr") != "integration" or not collection_path.match("test_*.py"):
        return None
    return None if "pytest.mark.integration" in collection_path.read_text("utf-8") else True


@pytest.hookimpl(trylast=True)  # after pytest-randomly
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes minutes is not begun last: one worker would do it while the other is idle."""
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    group = item.get_closest_marker("xdist_group")
    if group is None:
        return 2
    return 0 if group.args == ("fleets",) else 1
