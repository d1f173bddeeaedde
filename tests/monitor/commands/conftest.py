from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.monitor.act.notify.scene import Receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()
