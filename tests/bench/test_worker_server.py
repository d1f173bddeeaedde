"""What the WorkerServer costs. Run with LIGHTKEEPER_BENCH=1 and `pytest -s`."""

from __future__ import annotations

import json
import os
import signal
import statistics
import time
from pathlib import Path

import pytest

from tests.worker_server.conftest import run_dir, start_rank  # noqa: F401  fixtures
from tests.worker_server.ranks import eventually
from tests.worker_server.test_page import identity
from worker_server import wire
from worker_server.page.reader import PageReader
from worker_server.page.writer import PageWriter
from worker_server.reporter import Reporter

pytestmark = pytest.mark.skipif(
    os.environ.get("LIGHTKEEPER_BENCH") != "1", reason="a benchmark: set LIGHTKEEPER_BENCH=1"
)


def show(what, samples, unit="us"):
    ordered = sorted(samples)
    print(
        f"\n{what}: median {statistics.median(ordered):.2f} {unit}, "
        f"p99 {ordered[int(0.99 * len(ordered))]:.2f} {unit}, n={len(ordered)}"
    )
    return statistics.median(ordered)


def per_call_us(call, batches=400, size=50):
    samples = []
    for _ in range(batches):
        start = time.perf_counter_ns()
        for _ in range(size):
            call()
        samples.append((time.perf_counter_ns() - start) / size / 1000)
    return samples


@pytest.fixture
def page(tmp_path):
    return PageWriter.create(tmp_path / "a.page", identity(), 1)


def test_a_phase_change_and_a_step(page):
    reporter = Reporter(page)
    reporter.begin_step(0)

    def phase():
        with reporter.phase("forward"):
            pass

    def step():
        reporter.begin_step(1)
        reporter.end_step(1, committed=True, loss=2.5, tokens=512)

    assert show("phase, entered and left (two changes)", per_call_us(phase)) < 20
    assert show("begin_step + end_step", per_call_us(step)) < 40


def test_a_ring_entry(page):
    row = page.group_row("default", 2, (0, 1))

    def entry():
        page.leave(row, *page.enter(row, 2, 3, 4, 0, 1, 1, 5, False, b"1000>1000"))

    assert show("ring entry, enter + leave (page only)", per_call_us(entry)) < 40


def test_a_recorded_collective(page):
    torch = pytest.importorskip("torch")
    import torch.distributed as dist

    from worker_server import collectives

    collectives.install(Reporter(page))
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        x = torch.ones(1000)

        def nothing(tensor, op=None, group=None, async_op=False):
            return None

        recorded = collectives._wrap(collectives._OPS[0], nothing)
        bare = show("an empty function", per_call_us(lambda: nothing(x)))
        show("the same, recorded as all_reduce", per_call_us(lambda: recorded(x)))
        show("gloo all_reduce, world 1, plain",
             per_call_us(lambda: collectives._originals["all_reduce"](x), 100))  # fmt: skip
        show("gloo all_reduce, world 1, recorded", per_call_us(lambda: dist.all_reduce(x), 100))
        assert bare < 10
    finally:
        collectives._stop()
        dist.destroy_process_group()


def test_reading_the_page(page, tmp_path):
    reader = PageReader(tmp_path / "a.page")
    row = page.group_row("default", 2, (0, 1))
    for _ in range(1024):
        page.leave(row, *page.enter(row, 2, 3, 4, 0, 1, 1, 5, False, b"1000>1000"))
    page.change_phase(1)
    state = per_call_us(lambda: (reader.step_state(10**15), reader.heads(10**15)), 50, 20)
    show("step state + heads, read", state)
    show("whole ring, read", per_call_us(lambda: reader.ring(10**15), 10, 1))


@pytest.mark.parametrize("health", ["healthy", "gil held", "stopped", "dead"])
def test_state_latency(start_rank, health):  # noqa: F811
    rank = start_rank("gil" if health == "gil held" else "steps")
    rank.says("ready")
    assert rank.endpoint
    match health:
        case "gil held":
            eventually(lambda: rank.state().process.interpreter_age_s > 2, "the GIL is held")
        case "stopped":
            rank.kill(signal.SIGSTOP)
        case "dead":
            rank.kill()
            eventually(lambda: not rank.state().process.alive, "dead")
    samples = []
    for _ in range(300):
        start = time.perf_counter_ns()
        status, text = rank.ask(wire.PATH_STATE)
        samples.append((time.perf_counter_ns() - start) / 1e6)
        assert status == 200
        time.sleep(0.005)
    show(f"/v1/state, {health}", samples, "ms")
    print(f"bytes: {len(text)}; {json.dumps(json.loads(text)['process'])}")
    status = Path(f"/proc/{rank.endpoint['sidecar_pid']}/status").read_text()
    print(f"sidecar RSS: {int(status.split('VmRSS:')[1].split()[0]) / 1024:.1f} MiB")


def test_idle_cost_of_the_sidecar(start_rank):  # noqa: F811
    rank = start_rank("hang")
    rank.says("ready")
    pid = rank.endpoint["sidecar_pid"]

    def ticks():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    begin = ticks()
    for _ in range(10):
        rank.state()
        time.sleep(1)
    used = (ticks() - begin) / os.sysconf("SC_CLK_TCK")
    print(f"\nsidecar polled at 1 Hz for 10 s: {used * 1000:.0f} ms of CPU")
