"""Worlds that more than one file needs."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.monitor.act.schedulers.fake_kube import FakeKube, Served
from tests.monitor.act.schedulers.kube_world import KubeWorld


@pytest.fixture
def kube_world():
    """A cluster, torn down at the end."""
    pytest.importorskip("kubernetes", reason="the extra `kubernetes` is not installed")
    kube = FakeKube()
    with closing(Served(kube)) as server:
        world = KubeWorld(kube, server.url)
        yield world
        world.close()
