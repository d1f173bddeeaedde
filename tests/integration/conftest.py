"""All of this folder trains for real: one at a time."""

from __future__ import annotations

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Two fleets at once would ask for more than two cores have (`make test`)."""
    item.add_marker(pytest.mark.xdist_group("fleets"))
