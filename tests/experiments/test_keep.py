"""The keeper of a unit starts it again, and ends what it left, or not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.killing.roles import ticks
from lightkeeper.trainer import status
from tests.waiting import wait_for

pytestmark = pytest.mark.integration

UNIT = "import os, subprocess, sys, time; child = subprocess.Popen(['sleep', '600'], start_new_session=True); open(sys.argv[1], 'a').write(f'{os.getpid()} {child.pid}\\n'); time.sleep(600)"  # noqa: E501


class Kept:
    """A keeper of a process that starts another."""

    def __init__(self, folder: Path) -> None:
        self.pids = folder / "pids"
        self.events = folder / "events.jsonl"
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "experiments.killing.keep", "--name", "u", "--pause", "0.1",
                "--events", str(self.events), "--", sys.executable, "-c", UNIT,
                str(self.pids),
            ]
        )  # fmt: skip

    def started(self, number: int) -> list[int]:
        """Pids of the unit's n-th start and of its child."""

        def told() -> list[list[int]] | None:
            lines = self.pids.read_text().splitlines() if self.pids.exists() else []
            return (
                [[int(w) for w in line.split()] for line in lines] if len(lines) == number else None
            )

        return wait_for(told, within_s=15, what=f"start {number}")[-1]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    kept = Kept(tmp_path)
    yield kept
    kept.process.kill()
    kept.process.wait()


def test_a_killed_unit_comes_back_and_its_rest_is_ended(kept: Kept) -> None:
    main, child = kept.started(1)
    os.kill(main, signal.SIGKILL)
    again, another = kept.started(2)
    assert ticks(child) is None
    kept.process.send_signal(signal.SIGTERM)
    assert kept.process.wait(20) == 0
    assert [pid for pid in (main, child, again, another) if ticks(pid) is not None] == []
    events = [(event["event"], event.get("rc")) for event in status.read(kept.events)]
    assert events == [("started", None), ("left", -9), ("started", None), ("left", -15)]
