from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lightkeeper.monitor.act.http import Fetcher
from tests.monitor.act.evidence.scene import Bench
from tests.monitor.fakes import FakeFleet


@pytest.fixture
def http(fleet: FakeFleet) -> FakeFleet:
    """What answers over HTTP, where another fleet is simulated."""
    return fleet


@pytest.fixture
def make(tmp_path: Path, fetcher: Fetcher, http: FakeFleet) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def build(folder: Path | None = None, **config: Any) -> Bench:
        made.append(Bench(folder or tmp_path / "evidence", fetcher, http, **config))
        return made[-1]

    yield build
    for bench in made:
        bench.evidence.close()
