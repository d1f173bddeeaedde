"""A mend of TorchFT replaces only what it was tried with."""

from __future__ import annotations

import importlib.metadata
import sys
import types
from concurrent.futures import Future

import pytest

pytestmark = pytest.mark.integration


@pytest.fixture
def mends():
    pytest.importorskip("torchft")
    from lightkeeper.worker_server.rank import torchft_mends

    return torchft_mends


class Manager:
    """Its all-reduces have this inner future."""

    def __init__(self, inner):
        work = types.SimpleNamespace(_fut=inner)
        self._work = types.SimpleNamespace(wait=lambda: inner is not None, get_future=lambda: work)

    def allreduce(self, buffer):
        return self._work


class Bucket:
    def buffer(self):
        return "gradients"


def test_a_failed_all_reduce_gives_the_bucket_back_and_another_its_result(mends):
    import torch

    assert mends._comm_hook(Manager(None), Bucket()).wait() == "gradients"
    inner = torch.futures.Future()
    assert mends._comm_hook(Manager(inner), Bucket()) is inner


@pytest.mark.skipif(
    not list(importlib.metadata.distributions(name="torchft")), reason="for 0.2.0, no nightly"
)
def test_the_hook_of_0_2_0_is_replaced_once_and_torch_takes_it(mends, monkeypatch, recwarn):
    import torchft.ddp
    from torch import nn

    cls = torchft.ddp.DistributedDataParallel
    before = cls._comm_hook
    monkeypatch.setattr(cls, "_comm_hook", staticmethod(before))
    for _ in range(2):
        mends.install()
        assert cls._comm_hook is mends._comm_hook
    cls(Manager(None), nn.Linear(2, 2))
    assert not [warning for warning in recwarn if "lightkeeper" in str(warning.message)]


def test_another_source_is_left_alone_with_one_warning(mends, monkeypatch):
    other = types.ModuleType("torchft.ddp")
    other.DistributedDataParallel = type("DDP", (), {"_comm_hook": staticmethod(Future.result)})
    monkeypatch.setitem(sys.modules, "torchft.ddp", other)
    with pytest.warns(RuntimeWarning, match="mends nothing"):
        mends.install()
    assert other.DistributedDataParallel._comm_hook is Future.result
