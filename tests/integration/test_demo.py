"""`lightkeeper demo` as people run it: torchrun, real faults, exit status and JSON."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.deep import only_explored
from tests.monitor.process import lightkeeper
from tests.waiting import wait_for

pytestmark = pytest.mark.integration
DEMO = (sys.executable, "-m", "lightkeeper.trainer.demo")


def run_demo(run_dir: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    command = [*DEMO, "--format", "json", "--run-dir", str(run_dir), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=330)
    lines = done.stdout.strip().splitlines()
    assert lines, f"nothing on stdout; stderr ends: {done.stderr[-2000:]}"
    return done.returncode, json.loads(lines[-1]), done.stderr


def offline(run_dir: Path, kind: str) -> dict[str, Any]:
    """What `lightkeeper analyze` says of the first incident's evidence."""
    bundle = min((run_dir / "lightkeeper-evidence").glob(f"{kind}-*.zip"))
    done = lightkeeper("analyze", str(bundle), "--format", "json")
    assert done.returncode == 1, done.stderr
    return json.loads(done.stdout)


@pytest.mark.timeout(340)
def test_a_rank_that_holds_the_gil_is_named_evicted_and_comes_back_where_it_was(
    tmp_path: Path,
) -> None:
    few = ("--groups", "2", "--step-time", "0.5")
    status, result, stderr = run_demo(tmp_path, "--fault", "gil", *few)
    assert status == 0, (result, stderr[-2000:])
    (fault,) = result["faults"]
    assert fault["problems"] == []
    assert fault["culprit_ranks"] == ["rg_1.0"]
    assert fault["evicted_groups"] == ["rg_1"]
    stages = [fault[f"to_{name}"] for name in ("firing", "evict_asked", "left_quorum")]
    assert stages == sorted(stages)
    assert fault["to_left_quorum"] <= fault["to_survivor_commit"] + 1.0
    assert fault["rejoined_host"] == "host-1", "one hang of a program blames no host"
    report = offline(tmp_path, "not_entered")
    assert [report["names"][str(rank)] for rank in report["culprits"]] == ["rg_1.0"]
    # the survivors wait in a collective, or in TorchFT's quorum, of which no record tells
    assert report["monitor"]["records_say"] in ("same", "none")


def processes_of(run_dir: Path) -> set[int]:
    """Everything whose command line or environment names the run directory, zombies aside."""
    pids = set()
    for proc in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
            if str(run_dir).encode() in text:
                pids.add(int(proc.name))
    return pids


# make test: test_campaign_fleet kills the same supervisors' parent, test_launch has the sidecars
@only_explored
@pytest.mark.timeout(120)
def test_a_demo_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    words = [*DEMO, "--groups", "2", "--run-dir", str(tmp_path)]
    demo = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        sidecars = wait_for(
            lambda: list((tmp_path / "run").glob("*.page")), within_s=90, what="ranks attach"
        )
        assert sidecars
    finally:
        demo.send_signal(signal.SIGKILL)
        demo.wait(10)
    wait_for(lambda: not processes_of(tmp_path), within_s=25, what="every process ends")
