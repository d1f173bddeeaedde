"""What attach costs training: paired blocks, with and without, alternating in one run.

Run with LIGHTKEEPER_BENCH=1 and `pytest -s`. Attached blocks are polled at 1 Hz. The order within
a pair alternates, so that a machine that grows slower or faster favours neither.
"""

from __future__ import annotations

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


def run(blocks, kind, attached, warm_up, **order):
    block = blocks.start(kind, attached=attached, **order)
    poller = Poller(block.ranks)
    if attached:
        poller.start()
    block.join()
    if attached:
        poller.stop()
        assert poller.answers > 1
    samples = [seconds for _, seconds in block.samples()][warm_up:]
    assert len(samples) > 100, block.log.name
    return samples


def compare(what, blocks, kind, unit, warm_up, **order):
    off, on = [], []
    for pair in range(PAIRS):
        for attached in (False, True) if pair % 2 else (True, False):
            samples = run(blocks, kind, attached, warm_up, **order)
            (on if attached else off).append((statistics.mean(samples), statistics.median(samples)))
    scale = {"us": 1e6, "ms": 1e3}[unit]
    print(f"\n{what}: {PAIRS} pairs of blocks, each {order['steps'] - warm_up} steps")
    for n, name in ((0, "mean"), (1, "median")):
        ratios = [b[n] / a[n] for a, b in zip(off, on, strict=True)]
        print(f"  {name:6}  without " + " ".join(f"{a[n] * scale:8.2f}" for a in off) + f" {unit}")
        print(f"  {'':6}  with    " + " ".join(f"{b[n] * scale:8.2f}" for b in on) + f" {unit}")
        middle = statistics.median(b[n] for b in on) / statistics.median(a[n] for a in off)
        print(
            f"  {'':6}  ratio   {middle:.4f} of the medians; by pair "
            f"{min(ratios):.3f} to {max(ratios):.3f}, median {statistics.median(ratios):.4f}"
        )


def test_a_tight_loop_of_all_reduces(blocks):
    compare("all_reduce of 1,000 floats, gloo, 2 ranks, nothing else in the loop", blocks, "loop",
            "us", warm_up=200, ranks=2, steps=2500)  # fmt: skip


def test_the_demo_trainer(blocks):
    lighthouse = blocks.start("lighthouse")
    address = wait_for(lambda: lighthouse.log.exists() and lighthouse.log.read_text(),
                       within_s=30, what="a Lighthouse")  # fmt: skip
    compare("demo trainer, 1 group of 1", blocks, "trainer", "ms", warm_up=50, ranks=1, steps=300,
            lighthouse=address)  # fmt: skip
