"""Analysing large jobs: lightkeeper and torchfrtrace on the same dumps, in one run.

Run with LIGHTKEEPER_BENCH=1 and `pytest -s`. CPU seconds are those of the whole process tree; peak
memory is the sum over the tree, looked at every 20 ms. torchfrtrace is stopped after
LIGHTKEEPER_BENCH_LIMIT_S of wall time (240): what it used until then is a lower bound, marked `>`.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.corpus.fleet import MIXES, write_fleet

pytestmark = [
    pytest.mark.skipif(
        os.environ.get("LIGHTKEEPER_BENCH") != "1", reason="a benchmark: set LIGHTKEEPER_BENCH=1"
    ),
    pytest.mark.timeout(3600),
]

LIMIT_S = float(os.environ.get("LIGHTKEEPER_BENCH_LIMIT_S", "240"))
ENTRIES = 2000
CULPRIT = 13

OURS = """
import json, sys
from pathlib import Path
from lightkeeper.monitor.records.analyse import analyse
from lightkeeper.monitor.records.files import load_job
if __name__ == "__main__":
    found = analyse(load_job([Path(sys.argv[1])]))
    print(json.dumps([list(found.culprits), [str(one.kind) for one in found.findings]]))
"""
THEIRS = """
import sys
from torch.distributed.flight_recorder.fr_trace import main
main(["-p", "nccl_trace_rank_", sys.argv[1]])
"""


@dataclass(frozen=True)
class Cost:
    """What a run of a tool took."""

    cpu_s: float
    wall_s: float
    peak_mib: float
    finished: bool
    out: str

    def __str__(self) -> str:
        more = "" if self.finished else ">"
        return f"{more}{self.cpu_s:8.1f} CPU s {more}{self.wall_s:7.1f} s {self.peak_mib:7.0f} MiB"


def _tree_mib(pid: int) -> float:
    """Resident memory of a process and its descendants; pages shared by them count twice."""
    total, todo = 0.0, [pid]
    while todo:
        process = todo.pop()
        try:
            pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
            children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += pages * resource.getpagesize() / 2**20
        todo += [int(child) for child in children]
    return total


def run(script: Path, folder: Path, limit_s: float) -> Cost:
    output = folder.with_suffix(".told")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    peak, finished = 0.0, True
    with output.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(script), str(folder)],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        while process.poll() is None:
            peak = max(peak, _tree_mib(process.pid))
            if time.monotonic() - begin > limit_s:
                finished = False
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            time.sleep(0.02)
    wall_s = time.monotonic() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(cpu_s, wall_s, peak, finished, output.read_text(errors="replace"))


@pytest.mark.parametrize("world", [64, 256, 1024], ids=lambda n: f"{n}_ranks")
@pytest.mark.parametrize("mix", MIXES, ids=["one_group", "TP8xDP", "thirds"])
def test_cpu_and_memory_beside_torchfrtrace(tmp_path, world, mix):
    pytest.importorskip("torch")
    folder = tmp_path / "dumps"
    write_fleet(folder, world, ENTRIES, culprit=CULPRIT, mix=mix)
    scripts = {}
    for name, text in (("ours", OURS), ("theirs", THEIRS)):
        scripts[name] = tmp_path / f"{name}.py"
        scripts[name].write_text(text)
    ours = run(scripts["ours"], folder, 600)
    assert ours.finished
    culprits, kinds = json.loads(ours.out.splitlines()[-1])
    assert culprits == [CULPRIT], kinds
    theirs = run(scripts["theirs"], folder, LIMIT_S)
    shutil.rmtree(folder)
    print(f"\n{world} ranks x {ENTRIES} entries, {mix}")
    print(f"  lightkeeper  {ours}")
    least = "at least " * (not theirs.finished)
    print(f"  torchfrtrace {theirs}   {least}{theirs.cpu_s / ours.cpu_s:.0f} times the CPU")
