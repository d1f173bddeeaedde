"""One in 30 of the tests on simulated fleets is journalled, and its journal gives the same again.

LIGHTKEEPER_TAPE=all: every one of them (twice the time; with LIGHTKEEPER_DEEP before a release).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator

import pytest

from tests.monitor.fleet import Drive
from tests.monitor.journal.tape import Tape


@pytest.fixture(autouse=True)
def replayed(request: pytest.FixtureRequest) -> Iterator[None]:
    chosen = os.environ.get("LIGHTKEEPER_TAPE") == "all" or zlib.crc32(_name(request)) % 30 == 0
    own = ("test_properties", "test_policy_sequences")  # journal has properties of its own
    if request.path.stem in own or not chosen:
        yield
        return
    tapes: list[Tape] = []
    build = Drive.__init__

    def journalled(self: Drive, *args, **options) -> None:
        build(self, *args, **options)
        tape = Tape(self.pipeline, self.config)
        tapes.append(tape)
        self.pipeline = tape

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Drive, "__init__", journalled)
        yield
    for tape in tapes:
        tape.check(all_files=False)


def _name(request: pytest.FixtureRequest) -> bytes:
    return str(request.node.name).encode()
