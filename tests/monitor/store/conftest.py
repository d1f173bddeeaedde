"""Stores of either kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.monitor.store.postgres import Cluster, cluster


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    yield from cluster()
