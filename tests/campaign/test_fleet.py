"""The campaign on a real fleet: one fault, then the script is killed in the middle of the next."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaign import results
from tests.integration.test_demo import processes_of
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(200)]


def test_a_fault_is_judged_and_a_killed_campaign_leaves_nothing_behind(tmp_path: Path) -> None:
    out = tmp_path / "campaign.jsonl"
    command = [
        sys.executable, "-m", "tests.campaign", "--class", "crash", "--shape", "2x2",
        "--runs", "9", "--out", str(out), "--page", str(tmp_path / "campaign.md"),
        "--folder", str(tmp_path / "fleet"),
    ]  # fmt: skip
    campaign = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        (line, *_) = wait_for(
            lambda: results.read(out), within_s=150, what="the first fault is over"
        )
        assert processes_of(tmp_path / "fleet")
    finally:
        campaign.send_signal(signal.SIGKILL)
        campaign.wait(10)
    wait_for(lambda: not processes_of(tmp_path / "fleet"), within_s=30, what="every process ends")
    assert (line["detected"], line["exact"], line["culprits"]) == (True, True, line["hit"])
    assert line["fleet"] == "whole again"
