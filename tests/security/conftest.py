"""A monitor of its own, over real HTTP."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lightkeeper.monitor.service import Service
from tests.monitor.api import Api, options
from tests.monitor.conftest import command, fetcher, fleet  # noqa: F401


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with Service(options(tmp_path)) as made:
        yield Api(made)
