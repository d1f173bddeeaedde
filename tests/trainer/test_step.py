"""What a step does to the gradient, in one process without peers."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from lightkeeper.trainer import faults, model, options
from lightkeeper.trainer.injector import Injector, WorkStretcher, act
from lightkeeper.trainer.train import accumulate
from lightkeeper.worker_server.rank.null_reporter import NullReporter
from tests.trainer.test_piece import place, trained

pytestmark = pytest.mark.integration  # torch


def alone(*arguments):
    """A rank with a small model, and nobody beside it."""
    opt = options.rank_options(["--context", "8", "--batch", "2", *arguments])
    network, optimizer, piece = trained()
    piece.gradient.zero_()
    return SimpleNamespace(
        opt=opt, place=place(0, 1), intra=None, network=network, optimizer=optimizer,
        piece=piece, batches=model.Batches(bytes(range(256)) * 4, opt, 0, 0),
        reporter=NullReporter(), pace=WorkStretcher(),
        injector=Injector("rg_0.0"),
    )  # fmt: skip


def test_accumulated_batches_make_the_mean_of_their_gradients_and_losses():
    both = alone("--accumulate", "2")
    loss, finite = accumulate(both, 7)

    losses, gradients = [], []
    for micro in (0, 1):
        network, _, piece = trained()
        piece.gradient.zero_()
        micro_loss = network(*both.batches.draw(7, micro))
        micro_loss.backward()
        losses.append(float(micro_loss.detach()))
        gradients.append(piece.gradient)

    assert finite
    assert losses[0] != losses[1]
    assert float(loss) == pytest.approx(sum(losses) / 2)
    assert torch.allclose(both.piece.gradient, (gradients[0] + gradients[1]) / 2, atol=1e-7)


def test_a_nan_of_its_own_is_seen_before_anybody_elses_numbers(tmp_path):
    file = tmp_path / "faults.json"
    faults.inject(file, faults.PlannedFault("nan", "nan", "rg_0.0"))
    rank = alone()
    rank.injector = Injector("rg_0.0", "host-1", file, partial(act, rank), say=lambda _: None)

    loss, finite = accumulate(rank, 0)

    assert not finite
    assert loss.isnan()
