"""What the tests of evictions share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lightkeeper.monitor.act.http import Fetcher
from tests.monitor.act.evictions import Bench
from tests.monitor.fakes import FakeFleet, FakeLighthouse


@pytest.fixture
def bench(fleet: FakeFleet, lighthouse: FakeLighthouse, fetcher: Fetcher) -> Iterator[Bench]:
    made = Bench(fleet, lighthouse, fetcher)
    yield made
    made.close()
