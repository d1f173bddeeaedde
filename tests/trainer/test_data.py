import numpy as np
import pytest
import torch

from lightkeeper.trainer import model

pytestmark = pytest.mark.integration  # torch

CORPUS = model.Corpus(bytes(range(256)) * 40)
KEY = (7, 900, 1, 0, 0)
"""Seed, step, group, reader, number in the step."""


def test_the_same_place_and_step_give_the_same_batch_with_no_state_in_between():
    first, _ = CORPUS.batch(KEY, 4, 16)
    CORPUS.batch((7, 3, 1, 0, 0), 4, 16)

    again, _ = model.Corpus(CORPUS.text).batch(KEY, 4, 16)

    assert torch.equal(first, again)


def test_every_part_of_the_key_changes_the_batch():
    base, _ = CORPUS.batch(KEY, 4, 16)
    for part in range(len(KEY)):
        changed = [*KEY]
        changed[part] += 1
        other, _ = CORPUS.batch(changed, 4, 16)
        assert not torch.equal(base, other), part


def test_the_target_of_a_byte_is_the_byte_after_it():
    inputs, targets = CORPUS.batch(KEY, 4, 16)

    assert inputs.shape == targets.shape == (4, 16)
    assert torch.equal((inputs + 1) % 256, targets)


def test_the_last_byte_of_a_corpus_can_be_drawn():
    tiny = model.Corpus(b"ab")

    inputs, targets = tiny.batch(KEY, 4, 1)

    assert inputs.tolist() == [[97]] * 4
    assert targets.tolist() == [[98]] * 4


def test_the_standard_library_is_real_text_and_read_the_same_twice():
    once, twice = model.standard_library(), model.standard_library()

    assert once.sha256 == twice.sha256
    assert b"class ArgumentParser(" in once.text
    assert once.values.dtype == np.uint8


def test_a_group_is_numbered_by_its_trailing_digits_as_torchft_does():
    assert model.group_index("rg_1") == 1
    assert model.group_index("rack7-12") == 12
    assert model.group_index("blue") == model.group_index("blue") != model.group_index("red")
