from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monitor.act.http import Fetcher
from tests.monitor.act.notify.scene import Bench, Disk, Receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def make(fetcher: Fetcher, disk: Disk) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def build(*sinks: Any, **times: float) -> Bench:
        made.append(Bench(sinks, fetcher, disk, **times))
        return made[-1]

    yield build
    for bench in made:
        bench.notifier.close()
