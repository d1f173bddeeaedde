"""What a rank holds, cut into pieces; no process groups."""

import pytest
import torch

from lightkeeper.trainer import model, options
from lightkeeper.trainer.group import RankPlace
from lightkeeper.trainer.pieces import Cut, Pieces, cut_of, norm

pytestmark = pytest.mark.integration  # torch

SMALL = options.parse(["--layers", "1", "--width", "16", "--heads", "2", "--context", "8"])


def trained(count=1, *, leads=True):
    """A small model with a gradient, held by one rank as so many pieces."""
    network = model.build(SMALL)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.1)
    pieces = Pieces(network, optimizer, Cut(total=count, first=0, count=count, leads=leads))
    text = torch.arange(16).reshape(2, 8)
    network(text, text + 1).backward()
    return network, optimizer, pieces


def place(group_rank=0, world_size=2):
    return RankPlace("rg_0", group_rank, world_size, "host-1", "127.0.0.1", torch.device("cpu"))


def test_the_first_step_of_adamw_changes_no_weight_and_leaves_moments_of_zero():
    network, _, pieces = trained()
    fresh = model.build(SMALL)

    assert all(
        torch.equal(mine, other)
        for mine, other in zip(network.parameters(), fresh.parameters(), strict=True)
    )
    moments = {name: tensor for name, tensor in pieces.state.items() if "/" in name}
    assert {name.rpartition("/")[2] for name in moments} == {"step", "exp_avg", "exp_avg_sq"}
    assert all(not tensor.any() for tensor in moments.values())


def test_backward_fills_the_flat_gradient_and_one_piece_is_exchanged_where_it_stands():
    network, _, pieces = trained()

    flat = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])

    assert flat.any()
    assert torch.equal(pieces.gradient, flat)
    assert pieces.exchanged[0] is pieces.gradient


def test_what_the_groups_agree_on_arrives_at_the_optimizer_in_every_piece():
    network, _, pieces = trained(4)
    before = pieces.gradient.clone()
    pieces.pack()
    for number, piece in enumerate(pieces.exchanged):
        piece.fill_(number)
    pieces.unpack()

    rows = network.embed.weight.grad
    assert not torch.equal(pieces.gradient, before)
    assert [rows[64 * number].unique().tolist() for number in range(4)] == [[0.0], [1], [2], [3]]


def test_the_norm_is_the_same_to_the_last_bit_however_many_pieces_a_rank_holds():
    _, _, whole = trained(4)
    whole.pack()
    wanted = norm(whole.squares())

    parts = torch.zeros_like(whole.squares())
    for number in range(4):  # four ranks of one piece each, as FSDP2 cuts them
        alone = Pieces.__new__(Pieces)
        alone.cut = Cut(total=4, first=number, count=1, leads=True)
        alone._columns = whole._columns
        alone._parameters = [
            (name, torch.empty(p.shape[0] // 4, *p.shape[1:])) for name, p in whole._parameters
        ]
        alone.gradient = whole.exchanged[number].clone()
        alone.exchanged = [alone.gradient]
        parts += alone.squares()

    assert torch.equal(norm(parts), wanted)
    assert wanted.item() == pytest.approx(whole.gradient.norm().item(), rel=1e-6)


def test_what_tensor_parallel_ranks_hold_in_common_counts_once():
    leading, following = trained()[2].squares(), trained(leads=False)[2].squares()
    names = [name for name, _ in model.build(SMALL).named_parameters()]

    for column, name in enumerate(names):
        counted = following[0, column] > 0
        assert counted == any(part in name for part in ("qkv", "project", "expand", "contract"))
        assert leading[0, column] > 0


def test_pieces_share_memory_with_the_model_and_cover_it():
    network, _, pieces = trained(2)
    for index in (0, 1):
        for name, tensor in pieces.state_of(index).items():
            if tensor.dim():
                tensor.fill_(index + 1)
            assert tensor.dim() or name.endswith("/step")

    assert network.embed.weight[:128].unique().tolist() == [1.0]
    assert network.embed.weight[128:].unique().tolist() == [2.0]


@pytest.mark.parametrize(
    ("size", "arguments", "cuts"),
    [
        (2, [], [(2, 0, 1, True), (2, 1, 1, True)]),
        (1, ["--pieces", "4"], [(4, 0, 4, True)]),
        (2, ["--pieces", "4"], [(4, 0, 2, True), (4, 2, 2, True)]),
        (4, ["--tensor-parallel", "2"],
         [(4, 0, 1, True), (4, 1, 1, False), (4, 2, 1, True), (4, 3, 1, False)]),
        (2, ["--pipeline", "2", "--accumulate", "2", "--pieces", "2"],
         [(4, 0, 2, True), (4, 2, 2, True)]),
    ],
)  # fmt: skip
def test_every_piece_of_the_model_has_one_holder(size, arguments, cuts):
    opt = options.parse(arguments)

    cuts_made = [cut_of(place(rank, size), opt) for rank in range(size)]

    assert cuts_made == [Cut(*cut) for cut in cuts]
    held = [cut.first + index for cut in cuts_made for index in range(cut.count)]
    assert held == list(range(cuts_made[0].total))


@pytest.mark.parametrize(
    ("size", "arguments", "why"),
    [
        (2, ["--pieces", "3"], "3 do not divide among 2 shards of rg_0"),
        (2, ["--tensor-parallel", "2", "--pieces", "2"], "are of one size"),
        (4, ["--pipeline", "2", "--accumulate", "2", "--pieces", "3"], "3 do not divide among 2"),
        (1, ["--algorithm", "diloco", "--pieces", "2"], "are of one size"),
    ],
)
def test_pieces_that_cannot_be_are_refused_in_one_line(size, arguments, why):
    with pytest.raises(SystemExit, match=why):
        cut_of(place(0, size), options.parse(arguments))


def test_a_model_that_does_not_fall_into_pieces_is_refused_with_what_to_change():
    opt = options.parse(["--pieces", "3"])

    with pytest.raises(SystemExit, match=r"embed.weight has 256 rows.*choose another --width"):
        model.split(model.build(SMALL), None, opt)
