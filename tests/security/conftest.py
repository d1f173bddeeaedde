"""A monitor of its own, over real HTTP."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.model.config import KeeperConfig
from monitor.service import Options, Service
from tests.monitor.fakes import FakeFleet
from tests.monitor.show.test_api import Api


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    made = Service(Options(KeeperConfig(), "127.0.0.1:0", tmp_path / "m.db", None, token="secret"))
    with made:
        yield Api(made)


@pytest.fixture
def fleet() -> Iterator[FakeFleet]:
    made = FakeFleet()
    yield made
    made.close()
