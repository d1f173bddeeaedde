"""What ranks, Lighthouse and network look like from the monitor, for all of its tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from monitor.act.http import Fetcher
from tests.monitor.shell.fakes import FakeFleet, FakeLighthouse
from tests.monitor.store.postgres import Cluster, cluster


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


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    """One server for all: its tests are of one group (`tests.sharing`)."""
    yield from cluster()
