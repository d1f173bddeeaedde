"""Crowds and odd answers beside an honest hang: it is named, by a real monitor."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deep import only_explored

ROOT = Path(__file__).resolve().parents[2]


@only_explored  # make test: a crowd in show/test_server.py, odd answers in test_weeks.py
@pytest.mark.integration
def test_a_hang_is_named_beside_3000_bad_clients_and_155_odd_states() -> None:
    command = [
        sys.executable, "-m", "experiments.scale", "320", "--seconds", "90", "--hang",
        "--until-named", "--hostile",
    ]  # fmt: skip
    done = subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert report["seen_least"] == report["good"] == 165
    assert report["named_after_s"] is not None  # within 90 s, whatever the load
