"""What finite() and fingerprint() cost a rank. Run with LIGHTKEEPER_BENCH=1 and `pytest -s`."""

from __future__ import annotations

import os
import statistics
import time

import pytest

from lightkeeper.worker_server.rank import fingerprint
from lightkeeper.worker_server.rank.page.writer import PageWriter
from lightkeeper.worker_server.rank.reporter import Reporter
from tests.bench.test_worker_server import per_call_us, show
from tests.worker_server.pages import identity

pytestmark = pytest.mark.skipif(
    os.environ.get("LIGHTKEEPER_BENCH") != "1", reason="a benchmark: set LIGHTKEEPER_BENCH=1"
)


@pytest.fixture
def reporter(tmp_path):
    return Reporter(PageWriter.create(tmp_path / "a.page", identity(), 1))


def test_looking_at_a_loss_and_a_norm(reporter):
    torch = pytest.importorskip("torch")
    loss, norm = torch.tensor(2.5), torch.tensor(0.1)
    gradient = torch.randn(475_776)
    reporter.begin_step(0)
    show("finite(), two floats", per_call_us(lambda: reporter.finite(loss=2.5, grad_norm=0.1)))
    show(
        "finite(), two CPU tensors", per_call_us(lambda: reporter.finite(loss=loss, grad_norm=norm))
    )
    show("the norm of 476 k gradients itself", per_call_us(gradient.norm, 50, 5))


def cost_us(taker, tensors, rounds):
    """CPU of this thread, and wall clock, for one fingerprint."""
    cpu, wall = [], []
    for step in range(10, 10 * rounds + 10, 10):
        before = time.thread_time_ns(), time.perf_counter_ns()
        taker._take(tensors, step, 10, 0)
        cpu.append((time.thread_time_ns() - before[0]) / 1000)
        wall.append((time.perf_counter_ns() - before[1]) / 1000)
    return statistics.median(cpu), statistics.median(wall)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("tensors", "mib"), [(30, 1.8), (100, 16), (300, 64), (300, 512)],
    ids=["our trainer", "16 MiB", "64 MiB", "512 MiB in parts"],
)  # fmt: skip
def test_a_fingerprint(reporter, tensors, mib, dtype):
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    kind = getattr(torch, dtype)
    each = int(mib * 2**20 / tensors / kind.itemsize)
    weights = [torch.randn(each).to(kind) for _ in range(tensors)]
    cpu, wall = cost_us(fingerprint.Fingerprinter(reporter.loop), weights, 30)
    read = min(mib, fingerprint.CPU_PART_BYTES / 2**20)
    print(
        f"\nfingerprint of {mib} MiB {dtype} in {tensors} tensors: {cpu:.0f} us of CPU, "
        f"{wall:.0f} us wall, {cpu / read:.1f} us a MiB read; {cpu / 10:.0f} us a step at one in 10"
    )


def test_a_step_at_which_none_is_due(reporter):
    torch = pytest.importorskip("torch")
    weights = [torch.randn(10)]
    assert show("fingerprint(), not due", per_call_us(
        lambda: reporter.fingerprint(weights, 11, every=10))) < 20  # fmt: skip
