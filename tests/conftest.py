"""What holds for every test: how many examples a property is tried on, and how tests are shared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.deep import DEEP
from tests.sharing import scheduler, turn_of

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

settings.register_profile("lightkeeper", max_examples=30 * DEEP, deadline=None)
settings.load_profile("lightkeeper")  # no deadline: a busy host is no defect of the code


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m integration` reads the files that have such tests: the others cost each process 9 s."""
    if config.getoption("markexpr") != "integration" or not collection_path.match("test_*.py"):
        return None
    return None if "pytest.mark.integration" in collection_path.read_text("utf-8") else True


@pytest.hookimpl(trylast=True)  # after pytest-randomly
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The same order in every process."""
    if config.getoption("markexpr") == "integration":
        items.sort(key=lambda item: turn_of(item.nodeid))


@pytest.hookimpl(optionalhook=True)  # without xdist there is none
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    """`--dist loadscope` of the integration part."""
    integration = config.getoption("markexpr") == "integration"
    return scheduler(config, log) if integration else None
