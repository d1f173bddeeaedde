"""How long each endpoint takes for each fate of a rank, on real gloo pairs.

Run with LIGHTKEEPER_BENCH=1 and `pytest -s`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from lightkeeper.worker_server import wire
from tests.worker_server.fates import FATES
from tests.worker_server.pairs import Pairs

pytestmark = [
    pytest.mark.skipif(
        os.environ.get("LIGHTKEEPER_BENCH") != "1", reason="a benchmark: set LIGHTKEEPER_BENCH=1"
    ),
    pytest.mark.timeout(600),
]

ASKED = {wire.PATH_STATE: 300, wire.PATH_FLIGHT_RECORDER: 60, wire.PATH_STACKS: 8}
PAUSE_S = {wire.PATH_STATE: 0.005, wire.PATH_FLIGHT_RECORDER: 0.02, wire.PATH_STACKS: 1.1}
"""Stacks younger than a second are given again: each sample shall be a fresh one."""


def ask(rank, path):
    samples, size = [], 0
    for _ in range(ASKED[path]):
        begin_s = time.perf_counter()
        status, text = rank.ask(path)
        samples.append((time.perf_counter() - begin_s) * 1e3)
        assert status == 200, text
        size = len(text)
        time.sleep(PAUSE_S[path])
    ordered = sorted(samples)
    return ordered[len(ordered) // 2], ordered[int(0.99 * len(ordered))], size


def test_every_fate_against_every_endpoint():
    folder = Path(tempfile.mkdtemp(prefix="lk-", dir="/tmp"))
    pairs = Pairs(folder)
    print("\nms: p50 / p99 (bytes); evict: once")
    print(f"{'':10}" + "".join(f"{path:>30}" for path in ASKED) + f"{'evict':>12}")
    try:
        for fate in FATES:
            culprit = pairs.start(fate)[1]
            cells = [ask(culprit, path) for path in ASKED]
            begin_s = time.perf_counter()
            assert culprit.evict(grace_s=2.0)["gone"]
            evict_ms = (time.perf_counter() - begin_s) * 1e3
            row = "".join(f"{f'{p50:.1f} / {p99:.1f} ({size})':>30}" for p50, p99, size in cells)
            print(f"{fate:10}{row}{evict_ms:12.1f}", flush=True)
    finally:
        pairs.close()
        shutil.rmtree(folder, ignore_errors=True)
