"""The witness of pressure, against a fake tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkeeper.worker_server.sidecar.witnesses.cgroup import Pressure
from lightkeeper.worker_server.sidecar.witnesses.witness import CannotReadError
from lightkeeper.worker_server.wire import Weight
from tests.worker_server.witnesses.trees import Case, check, follow, write

SLOW = Weight.SLOW
STOPPED = {"proc/7/stat": "7 (x) D 1"}
SLEEPS = {"proc/7/stat": "7 (x) S 1", "proc/7/task/8/stat": "8 (io thread) D 1"}


def pressure(some: float = 0.0, full: float = 0.0) -> str:
    return (
        f"some avg10={some:.2f} avg60=0.00 avg300=0.00 total=1\n"
        f"full avg10={full:.2f} avg60=0.00 avg300=0.00 total=1"
    )


def host(io: float = 0.0, memory: float = 0.0) -> dict[str, str | None]:
    return {"proc/pressure/io": pressure(io, io), "proc/pressure/memory": pressure(memory, memory)}


CASES = [
    Case("idle", [STOPPED | host(), host()]),
    Case("a disk is busy, and a rank waits for it", [STOPPED | host(io=43)],
         [(SLOW, "io-pressure", "pid 7 stood still for a disk in 100% of 10 looks")], (7,)),
    Case("a disk is busy, and no rank waits for it", [SLEEPS | host(io=99)]),
    Case("a calm disk", [STOPPED | host(io=9.9)]),
    Case("memory", [SLEEPS | host(memory=12)],
         [(SLOW, "memory-pressure", "all work of the host waited for memory in 12 % of")]),
    Case("memory, a little", [SLEEPS | host(memory=9.9)]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_pressure_says(case: Case, tmp_path: Path) -> None:
    witness = Pressure(tmp_path, lambda seconds: None)
    rows = follow(witness, tmp_path, case)
    check(rows, case)
    assert not case.said or len(rows[0].text) < 120


@pytest.mark.parametrize(("blocked", "said"), [(2, []), (3, ["30%"])])
def test_a_rank_that_waits_now_and_then(blocked: int, said: list[str], tmp_path: Path) -> None:
    write(tmp_path, STOPPED | host(io=50))
    states = iter([STOPPED] * (blocked - 1) + [SLEEPS] * 12)
    witness = Pressure(tmp_path, pause=lambda seconds: write(tmp_path, next(states)))
    texts = [row.text for row in witness.look((7,), 1.0)]
    assert texts == [f"pid 7 stood still for a disk in {share} of 10 looks" for share in said]


def test_without_pressure_in_this_kernel(tmp_path: Path) -> None:
    write(tmp_path, SLEEPS)
    with pytest.raises(CannotReadError, match="pressure/io: No such file"):
        Pressure(tmp_path).look((7,), 1.0)
