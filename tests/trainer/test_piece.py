"""What a rank holds; no process groups."""

import pytest
import torch

from lightkeeper.trainer import model, options
from lightkeeper.trainer.group import RankPlace
from lightkeeper.trainer.model import Piece

pytestmark = pytest.mark.integration  # torch

SMALL = options.parse(["--layers", "1", "--width", "16", "--heads", "2", "--context", "8"])


def trained():
    """A small model with a gradient, held by one rank."""
    network = model.build(SMALL)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.1)
    piece = Piece(network, optimizer)
    text = torch.arange(16).reshape(2, 8)
    network(text, text + 1).backward()
    return network, optimizer, piece


def place(group_rank=0, world_size=2):
    return RankPlace("rg_0", group_rank, world_size, "host-1", "127.0.0.1", torch.device("cpu"))


def test_the_first_step_of_adamw_changes_no_weight_and_leaves_moments_of_zero():
    network, _, piece = trained()
    fresh = model.build(SMALL)

    assert all(
        torch.equal(mine, other)
        for mine, other in zip(network.parameters(), fresh.parameters(), strict=True)
    )
    moments = {name: tensor for name, tensor in piece.state.items() if "/" in name}
    assert {name.rpartition("/")[2] for name in moments} == {"step", "exp_avg", "exp_avg_sq"}
    assert all(not tensor.any() for tensor in moments.values())


def test_backward_fills_the_flat_gradient():
    network, _, piece = trained()

    flat = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])

    assert flat.any()
    assert torch.equal(piece.gradient, flat)


def test_the_squares_add_up_to_the_norm():
    piece = trained()[2]

    norm = float(piece.squares().sum()) ** 0.5
    assert norm == pytest.approx(float(piece.gradient.norm()), rel=1e-6)


def test_its_state_shares_memory_with_the_model():
    network, _, piece = trained()
    for tensor in piece.state.values():
        tensor.fill_(3)

    assert all((weight == 3).all() for weight in network.parameters())
    assert piece.weights.keys() == dict(network.named_parameters()).keys()
