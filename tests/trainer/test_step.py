"""What a step does to the gradient, in one process without peers."""

from functools import partial
from types import SimpleNamespace

import pytest

from lightkeeper.trainer import faults, model, options
from lightkeeper.trainer.injector import Injector, WorkStretcher, act
from lightkeeper.trainer.train import forward_backward
from lightkeeper.worker_server.rank.null_reporter import NullReporter
from tests.trainer.test_piece import place, trained

pytestmark = pytest.mark.integration  # torch


def alone():
    """A rank with a small model, and nobody beside it."""
    opt = options.rank_options(["--context", "8", "--batch", "2"])
    network, optimizer, piece = trained()
    piece.gradient.zero_()
    return SimpleNamespace(
        opt=opt, place=place(0, 1), intra=None, network=network, optimizer=optimizer,
        piece=piece, batches=model.Batches(bytes(range(256)) * 4, opt, 0, 0),
        reporter=NullReporter(), pace=WorkStretcher(),
        injector=Injector("rg_0.0"),
    )  # fmt: skip


def test_a_nan_of_its_own_is_seen_before_anybody_elses_numbers(tmp_path):
    file = tmp_path / "faults.json"
    faults.inject(file, faults.PlannedFault("nan", "nan", "rg_0.0"))
    rank = alone()
    rank.injector = Injector("rg_0.0", "host-1", file, partial(act, rank), say=lambda _: None)

    loss, finite = forward_backward(rank, 0)

    assert not finite
    assert loss.isnan()
