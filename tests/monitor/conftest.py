"""What ranks, Lighthouse and network look like from the monitor, for all of its tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from monitor.fetch import Fetcher
from tests.monitor.shell.fakes import FakeFleet, FakeLighthouse


@pytest.fixture
def fleet() -> Iterator[FakeFleet]:
    made = FakeFleet()
    yield made
    made.close()


@pytest.fixture
def lighthouse() -> Iterator[FakeLighthouse]:
    made = FakeLighthouse()
    yield made
    made.close()


@pytest.fixture
def fetcher() -> Iterator[Fetcher]:
    made = Fetcher()
    yield made
    made.close()
