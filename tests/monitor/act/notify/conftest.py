from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lightkeeper.monitor.act.http import Fetcher
from tests.monitor.act.notify.scene import Bench, Receiver
from tests.monitor.doubles import Memory


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def make(fetcher: Fetcher, memory: Memory) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def build(*sinks: Any, **times: float) -> Bench:
        made.append(Bench(sinks, fetcher, memory, **times))
        return made[-1]

    yield build
    for bench in made:
        bench.notifier.close()
