"""Worlds that more than one file needs."""

from __future__ import annotations

import pytest

from tests.monitor.schedulers.fake_kube import FakeKube, served
from tests.monitor.schedulers.kube_world import KubeWorld


@pytest.fixture
def kube_world():
    """A cluster, torn down at the end."""
    pytest.importorskip("kubernetes", reason="the extra `kubernetes` is not installed")
    kube = FakeKube()
    with served(kube) as url:
        world = KubeWorld(kube, url)
        yield world
        world.close()
