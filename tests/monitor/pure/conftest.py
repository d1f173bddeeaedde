"""Every fault script of these tests is journalled, and its journal gives the same again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.monitor.fleet import Drive
from tests.monitor.journal.tape import Tape


@pytest.fixture(autouse=True)
def _replayed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.path.stem == "test_properties":  # thousands of ticks; journal/test_replay has some
        yield
        return
    tapes: list[Tape] = []
    build = Drive.__init__

    def journalled(self: Drive, *args, **options) -> None:
        build(self, *args, **options)
        tape = Tape(self.pipeline, self.config)
        tapes.append(tape)
        self.pipeline = tape

    monkeypatch.setattr(Drive, "__init__", journalled)
    yield
    for tape in tapes:
        tape.check(all_files=False)
