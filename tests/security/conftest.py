"""A monitor of its own, over real HTTP."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lightkeeper.monitor.act.http import Fetcher
from lightkeeper.monitor.service import Service
from tests.monitor.api import Api, options
from tests.monitor.commands.calling import Command
from tests.monitor.fakes import FakeFleet


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with Service(options(tmp_path)) as made:
        yield Api(made)


@pytest.fixture
def fleet() -> Iterator[FakeFleet]:
    made = FakeFleet()
    yield made
    made.close()


@pytest.fixture
def fetcher() -> Iterator[Fetcher]:
    made = Fetcher()
    yield made
    made.close()


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)
