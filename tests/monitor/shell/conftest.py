"""What the tests of evictions, and of whole monitors, share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from monitor.act.http import Fetcher
from tests.monitor.shell.evictions import Bench
from tests.monitor.shell.fakes import FakeFleet, FakeLighthouse
from tests.monitor.shell.process import Training


@pytest.fixture
def bench(fleet: FakeFleet, lighthouse: FakeLighthouse, fetcher: Fetcher) -> Iterator[Bench]:
    made = Bench(fleet, lighthouse, fetcher)
    yield made
    made.close()


@pytest.fixture
def training(fleet: FakeFleet, lighthouse: FakeLighthouse) -> Iterator[Training]:
    """Three groups of one rank that train."""
    ranks = [fleet.add(f"rg_{n}", host=f"node{n}", replica_id=f"rg_{n}:u{n}") for n in range(3)]
    lighthouse.form(*(rank.replica_id or "" for rank in ranks))
    made = Training(*ranks)
    yield made
    made.close()
