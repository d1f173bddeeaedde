from types import SimpleNamespace

import pytest
import torch

from experiments.campaign.acts import slow_data
from lightkeeper.trainer import model, options

pytestmark = pytest.mark.integration  # torch

TEXT = bytes(range(256)) * 40


def batches(*arguments, text=TEXT, group=1, reader=0):
    opt = options.rank_options(["--batch", "4", "--context", "16", *arguments])
    return model.Batches(text, opt, group, reader)


def test_the_same_place_and_step_give_the_same_batch_with_no_state_in_between():
    reader = batches()
    first, _ = reader.draw(900)
    reader.draw(3)

    again, _ = batches().draw(900)

    assert torch.equal(first, again)


def test_every_part_of_the_key_changes_the_batch():
    base, _ = batches().draw(900)
    changed = {
        "seed": batches("--seed", "7").draw(900),
        "step": batches().draw(901),
        "group": batches(group=2).draw(900),
        "reader": batches(reader=1).draw(900),
    }
    for part, (other, _) in changed.items():
        assert not torch.equal(base, other), part


def test_the_target_of_a_byte_is_the_byte_after_it():
    inputs, targets = batches().draw(900)

    assert inputs.shape == targets.shape == (4, 16)
    assert torch.equal((inputs + 1) % 256, targets)


def test_the_last_byte_of_a_text_can_be_drawn():
    inputs, targets = batches("--context", "1", text=b"ab").draw(900)

    assert inputs.tolist() == [[97]] * 4
    assert targets.tolist() == [[98]] * 4


def test_the_standard_library_is_real_text_and_read_the_same_twice():
    once, twice = model.standard_library(), model.standard_library()

    assert once == twice
    assert b"class ArgumentParser(" in once


def test_a_group_is_numbered_by_its_trailing_digits_as_torchft_does():
    assert model.group_index("rg_1") == 1
    assert model.group_index("rack7-12") == 12
    assert model.group_index("blue") == model.group_index("blue") != model.group_index("red")


def test_a_slow_loader_of_the_campaign_gives_the_same_batches():
    rank = SimpleNamespace(batches=batches(), pace=SimpleNamespace(usual_s=lambda: 0.001))
    slow_data(rank, SimpleNamespace(factor=2.0))
    for at in ("draw", "draw_unseen"):
        assert torch.equal(getattr(rank.batches, at)(3)[0], getattr(batches(), at)(3)[0])
