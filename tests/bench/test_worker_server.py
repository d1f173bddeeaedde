"""What the WorkerServer costs. Run with LIGHTKEEPER_BENCH=1 and `pytest -s`."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from lightkeeper.worker_server.rank.page.reader import PageReader
from lightkeeper.worker_server.rank.page.writer import PageWriter
from lightkeeper.worker_server.rank.reporter import Reporter
from lightkeeper.worker_server.sidecar.metrics import StepFollower
from tests.worker_server.conftest import run_dir, start_rank  # noqa: F401  fixtures
from tests.worker_server.pages import identity

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


def one_by_one_us(call, size=20_000):
    """Each call by itself, less what the two clock reads take: for the tail."""
    clock = time.perf_counter_ns
    bare = min(-(clock() - clock()) for _ in range(1000))
    samples = []
    for _ in range(size):
        start = clock()
        call()
        samples.append((clock() - start - bare) / 1000)
    return samples


@pytest.fixture
def page(tmp_path):
    return PageWriter.create(tmp_path / "a.page", identity(), 1)


MANAGER = SimpleNamespace(
    _quorum_id=7, _participating_replica_world_size=3, _healing=False, _errored=None,
    _logger=SimpleNamespace(_replica_id="rg_1:0b6ab4a1-2a5c-4a8d-9d6c-0e6a2d3f4b5c"),
)  # fmt: skip


@pytest.mark.parametrize("manager", [None, MANAGER], ids=["no manager", "a manager"])
def test_a_step(page, manager):
    reporter = Reporter(page)
    reporter.observe_manager(manager)

    def step():
        reporter.begin_step(1)
        reporter.end_step(1, committed=True, loss=2.5, tokens=512)

    assert show("begin_step + end_step", per_call_us(step)) < 10
    show("begin_step + end_step, one by one", one_by_one_us(step))
    show("step(), the one-call form", per_call_us(lambda: reporter.step(1, loss=2.5, tokens=512)))
    show("step(), one by one", one_by_one_us(lambda: reporter.step(1, loss=2.5, tokens=512)))


def test_a_phase_a_count_and_a_tag(page):
    reporter = Reporter(page)
    reporter.begin_step(0)

    def phase():
        with reporter.phase("forward"):
            pass

    def tag():
        with reporter.tag("warmup"):
            pass

    for what, call in (
        ("phase, entered and left (two changes)", phase),
        ("count", lambda: reporter.count("samples_skipped", 3)),
        ("tag, on and off", tag),
    ):
        assert show(what, per_call_us(call)) < 10
        show(f"{what}, one by one", one_by_one_us(call))


def test_following_a_thousand_steps(page, tmp_path):
    reporter, follower = Reporter(page), StepFollower(PageReader(tmp_path / "a.page"))
    samples = []
    for _ in range(30):
        for n in range(1000):
            reporter.begin_step(n)
            for name in ("data", "forward", "backward", "communication", "optimizer"):
                with reporter.phase(name):
                    pass
            reporter.end_step(n)
        start = time.thread_time_ns()
        follower.follow()
        samples.append((time.thread_time_ns() - start) / 1e6)
    show("1,000 steps of 5 phases, followed and folded", samples, "ms of CPU")
    values = {s.name: s.value for f in follower.collect(("job", "rg", "0")) for s in f.samples}
    assert values["lightkeeper_rank_steps_missed_total"] == 0


def test_a_ring_entry(page):
    row = page.group_row("default", 2, (0, 1))

    def entry():
        page.leave(row, *page.enter(row, 2, 3, 4, 0, 1, 1, 5, False, 1, 0, b"1000>1000"))

    assert show("ring entry, enter + leave (page only)", per_call_us(entry)) < 40


def test_a_recorded_collective(page):
    torch = pytest.importorskip("torch")
    import torch.distributed as dist

    from lightkeeper.worker_server.rank import collectives

    collectives.install(Reporter(page))
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        x = torch.ones(1000)

        def nothing(tensor, op=None, group=None, async_op=False):
            return None

        recorded = collectives._wrap(collectives._Op("all_reduce", nothing), nothing)
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
        page.leave(row, *page.enter(row, 2, 3, 4, 0, 1, 1, 5, False, 1, 0, b"1000>1000"))
    page.change_phase(1)
    state = per_call_us(lambda: (reader.step_state(10**15), reader.heads(10**15)), 50, 20)
    show("step state + heads, read", state)
    show("whole ring, read", per_call_us(lambda: reader.ring(10**15), 10, 1))


def test_idle_cost_of_the_sidecar(start_rank):  # noqa: F811
    rank = start_rank("hang", forked=False)
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
    status = Path(f"/proc/{pid}/status").read_text()
    rss_mib = int(status.split("VmRSS:")[1].split()[0]) / 1024
    print(f"\nsidecar polled at 1 Hz for 10 s: {used * 1000:.0f} ms of CPU, {rss_mib:.1f} MiB RSS")
