"""The campaign on a real fleet: a fault, then the script is killed in the middle of the next."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import harness
from tests.deep import only_explored
from tests.integration.test_demo import processes_of
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(340)]


@only_explored  # make test: a rank is killed in test_killing.py, one is named in test_runs.py
def test_faults_are_judged_and_a_killed_campaign_leaves_nothing_behind(tmp_path: Path) -> None:
    out = tmp_path / "campaign.jsonl"
    command = [
        sys.executable, "-m", "experiments", "campaign", "--only", "crash",
        "--shape", "2x2", "--runs", "9", "--small",
        "--out", str(out), "--page", str(tmp_path / "campaign.md"),
        "--folder", str(tmp_path / "fleet"),
    ]  # fmt: skip
    campaign = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        over = wait_for(lambda: harness.read(out), within_s=270, what="a fault")
        assert processes_of(tmp_path / "fleet")
    finally:
        campaign.send_signal(signal.SIGKILL)
        campaign.wait(10)
    wait_for(lambda: not processes_of(tmp_path / "fleet"), within_s=30, what="every process ends")
    assert (over[0]["detected"], over[0]["exact"]) == (True, True)
    assert over[0]["culprits"] == over[0]["hit"]
    assert over[0]["fleet"] == "whole again"
