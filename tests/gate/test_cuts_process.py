"""A few of the cuts of `make cuts`."""

from __future__ import annotations

import random

import pytest

from tests.gate.cuts import WAYS, cuts, losses_alone

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.mark.parametrize("way", WAYS)
def test_no_group_ends_and_no_loss_differs_after_cuts_at_random_moments(way: str) -> None:
    rows = cuts(way, 2, random.Random(f"7/{way}"))
    assert len(rows) == 2
    print(rows)


def test_losses_differ_with_the_groups_that_take_part() -> None:
    assert losses_alone(2, 0, 3) != losses_alone(3, 0, 3)
