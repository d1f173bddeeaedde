"""What attach costs training: the same run with and without, side by side at the same time.

Run with LIGHTKEEPER_BENCH=1 and `pytest -s`. Both runs of a pair are pinned, each to a core of its
own, the WorkerServer of the attached one to the core of its rank; the cores change sides with each
pair. So whatever the machine does, it does to both. Attached runs are polled at 1 Hz.
"""

from __future__ import annotations

import math
import os
import statistics

import pytest

from tests.bench.blocks import Poller, block_folder
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.skipif(
        os.environ.get("LIGHTKEEPER_BENCH") != "1", reason="a benchmark: set LIGHTKEEPER_BENCH=1"
    ),
    pytest.mark.timeout(1200),
]

PAIRS = int(os.environ.get("LIGHTKEEPER_BENCH_PAIRS", "6"))


@pytest.fixture(scope="module")
def blocks():
    pytest.importorskip("torchft")
    with block_folder() as blocks:
        yield blocks


def run_pair(blocks, kind, swapped, warm_up, orders):
    """Samples without and with, of the time in which both ran at full speed."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        pytest.skip("needs two cores")
    pair = [
        blocks.start(kind, attached=attached, cpu=cpus[attached ^ swapped], **orders[attached])
        for attached in (False, True)
    ]
    poller = Poller(pair[True].ranks)
    poller.start()
    for block in pair:
        block.join()
    poller.stop()
    assert poller.answers > 1
    kept = [block.samples()[warm_up:] for block in pair]
    begin_s = max(samples[0][0] for samples in kept)
    end_s = min(samples[-1][0] for samples in kept)
    both = [[s for at_s, s in samples if begin_s <= at_s <= end_s] for samples in kept]
    assert all(len(samples) > 100 for samples in both)
    return both


def compare(what, blocks, kind, unit, warm_up, orders):
    scale = {"us": 1e6, "ms": 1e3}[unit]
    pairs = [run_pair(blocks, kind, n % 2, warm_up, orders) for n in range(PAIRS)]
    print(f"\n{what}: {PAIRS} pairs, about {len(pairs[0][0])} steps each")
    for name, middle in (("mean", statistics.mean), ("median", statistics.median)):
        off, on = ([middle(pair[n]) for pair in pairs] for n in (0, 1))
        ratios = [b / a for a, b in zip(off, on, strict=True)]
        # the cores' own difference cancels between a pair and the next, in which they are swapped
        swaps = [math.sqrt(x * y) for x, y in zip(ratios[::2], ratios[1::2], strict=True)]
        print(f"  {name:6}  without " + " ".join(f"{a * scale:8.2f}" for a in off) + f" {unit}")
        print(f"  {'':6}  with    " + " ".join(f"{b * scale:8.2f}" for b in on) + f" {unit}")
        print(f"  {'':6}  with / without, by two pairs: "
              + " ".join(f"{ratio:.4f}" for ratio in swaps)
              + f"; median {statistics.median(swaps):.4f}")  # fmt: skip


def test_a_tight_loop_of_all_reduces(blocks):
    order = {"ranks": 2, "steps": 4000}
    compare("all_reduce of 1,000 floats, gloo, 2 ranks on one core, nothing else in the loop",
            blocks, "loop", "us", 200, (order, order))  # fmt: skip


def test_the_demo_trainer(blocks):
    lighthouses = [blocks.start("lighthouse") for _ in range(2)]
    orders = [
        {"ranks": 1, "steps": 600, "lighthouse": wait_for(
            lambda waited=lighthouse: waited.log.exists() and waited.log.read_text(), within_s=30,
            what="a Lighthouse")}
        for lighthouse in lighthouses
    ]  # fmt: skip
    compare("demo trainer, 1 group of 1", blocks, "trainer", "ms", 50, orders)
