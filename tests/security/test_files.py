"""What the monitor writes is for whom it runs as alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.waiting import wait_for


@pytest.mark.integration
def test_store_and_journal_are_closed_to_others_also_those_made_before(tmp_path: Path) -> None:
    before = tmp_path / "data" / "m.db"
    before.parent.mkdir()
    before.touch(0o644)
    before.chmod(0o644)
    made = [before.with_name(name) for name in ("m.db", "m.db-wal", "m.db-shm")]
    command = [
        sys.executable, "-m", "lightkeeper.monitor.cli", "monitor",
        "--bind", f"127.0.0.1:{free_port()}",
        "--store", str(before),
    ]  # fmt: skip
    monitor = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, umask=0o022
    )
    try:
        journal = before.with_name("m.journal")
        wait_for(
            lambda: all(file.exists() for file in made) and any(journal.glob("*")),
            within_s=20,
            what="its files are there",
        )
        for path in (*(file for file in made if file.exists()), *journal.rglob("*")):
            assert path.stat().st_mode & 0o077 == 0, (path, oct(path.stat().st_mode))
        assert journal.stat().st_mode & 0o077 == 0
    finally:
        os.kill(monitor.pid, signal.SIGTERM)
        monitor.wait(20)
