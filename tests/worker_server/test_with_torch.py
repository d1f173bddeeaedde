"""torch in the rank: exit codes stay as they are, and the black box survives gloo's abort."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.worker_server.ranks import environment, eventually
from worker_server import wire

pytest.importorskip("torch")
pytestmark = pytest.mark.integration

PARENT = Path(__file__).with_name("torch_parent.py")
EXPECTED = {
    "normal": 0, "exception": 1, "exception_beside_torch_threads": 1, "exception_in_atexit": 0,
    "exception_in_thread": 0, "failing_excepthook": 1, "sys_exit": 3, "sys_exit_text": 1,
    "os_exit": 7, "sigterm": -signal.SIGTERM, "sigterm_handled": 9, "sigint": -signal.SIGINT,
    "sigkill": -signal.SIGKILL, "sigabrt": -signal.SIGABRT, "segfault": -signal.SIGSEGV,
    "daemon_threads": 0, "forks": 0, "profile_in_flight": 0,
}  # fmt: skip
HAMMERED = (
    "normal",
    "exception",
    "sys_exit",
    "os_exit",
    "sigterm",
    "sigkill",
    "sigabrt",
    "segfault",
    "forks",
    "profile_in_flight",
)
"""While torch's control plane answers requests; as in `torch_parent`, which imports torch."""


@pytest.fixture(scope="module")
def order(tmp_path_factory):
    """Tells the one process that has imported torch what to fork, and has its next line."""
    with subprocess.Popen(
        [sys.executable, str(PARENT)],
        env=environment(tmp_path_factory.mktemp("orders"), REPLICA_GROUP="rg_1"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as parent:  # fmt: skip

        def told(*words):
            if words:
                print(*words, file=parent.stdin, flush=True)
            return json.loads(parent.stdout.readline())

        yield told
        parent.stdin.close()


@pytest.fixture(scope="module")
def endings(order, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exits")
    folder.chmod(0o700)
    order("exits", folder)
    return order()


@pytest.mark.timeout(300)  # the first of them waits for all the endings
@pytest.mark.parametrize(
    ("ending", "way"),
    [(ending, way) for ending in EXPECTED for way in ("attached", "hammered")
     if way == "attached" or ending in HAMMERED],
)  # fmt: skip
def test_the_exit_code_and_the_last_words_of_a_rank_are_unchanged(endings, ending, way):
    code, stdout, stderr = endings[f"{ending}/plain"]
    assert (code, stdout) == (EXPECTED[ending], ["trained"])
    assert endings[f"{ending}/{way}"] == [code, stdout, stderr]
    if way == "hammered":
        assert endings[f"{ending}/answers"] > 0


class GlooRanks:
    """Two ranks of one group under one parent."""

    def __init__(self, order, run_dir, ending):
        self.run_dir = run_dir
        self.pids = order("gloo", run_dir, ending, free_port())

    def find(self, rank):
        from worker_server.run_dir import RankFiles

        for path in self.run_dir.glob(f"rg_1.{rank}-*.page"):
            content = RankFiles(path).read_endpoint()
            if content is not None:
                return content["url"]
        return None

    def url(self, rank):
        return eventually(lambda: self.find(rank), "the sidecar publishes its URL")

    def get(self, rank, path):
        import requests

        return requests.get(self.url(rank) + path, timeout=20)

    def state(self, rank):
        return wire.parse_state(self.get(rank, wire.PATH_STATE).json())

    def record(self, rank):
        return wire.parse_flight_record(self.get(rank, wire.PATH_FLIGHT_RECORDER).json())

    def end(self):
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def start_gloo(order, run_dir):
    started = []

    def start(ending):
        started.append(GlooRanks(order, run_dir, ending))
        return started[-1]

    yield start
    for ranks in started:
        ranks.end()


def test_a_rank_that_holds_the_gil_still_gives_its_ring_and_torchs_record(start_gloo):
    ranks = start_gloo("gil")
    ranks.url(1)
    eventually(lambda: ranks.state(1).process.interpreter_age_s > 2, "rank 1 holds the GIL")
    culprit, victim = ranks.record(1), ranks.record(0)
    counters = ranks.get(1, wire.PATH_WAIT_COUNTERS).json()
    assert "pytorch.wait_counter.TCPStore__get" in counters
    assert culprit.members == {"default": (0, 1), "tp": (0, 1)}
    assert culprit.torch is not None
    assert len(culprit.torch["entries"]) >= 6
    last = culprit.ring[-1]
    assert (last.group, last.seq, last.op, last.root) == ("tp", 3, "broadcast", 1)
    assert last.exit_age_s is not None
    assert last.sizes_in == ((2, 3),)
    assert last.dtype == "float32"
    assert last.site.startswith("worker_server/torch_parent.py:")
    waiting = victim.ring[-1]
    assert (waiting.group, waiting.seq, waiting.op) == ("default", 4, "all_reduce")
    assert (waiting.step, waiting.attempt, waiting.nth) == (3, 4, 0)
    assert waiting.exit_age_s is None
    heads = {head.name: head for head in ranks.state(0).heads}
    assert (heads["default"].enqueued, heads["default"].completed) == (4, 3)


def test_after_gloo_aborts_the_process_the_mismatch_is_on_record(start_gloo):
    ranks = start_gloo("size")
    urls = [ranks.url(rank) for rank in (0, 1)]
    assert all(urls)
    eventually(
        lambda: not all(ranks.state(rank).process.alive for rank in (0, 1)),
        "gloo aborts one of the two",
    )
    sizes = []
    for rank in (0, 1):
        last = ranks.record(rank).ring[-1]
        assert (last.group, last.seq, last.op) == ("default", 4, "all_reduce")
        sizes.append(last.sizes_in)
    assert sizes == [((1000,),), ((500,),)]
    dead = [rank for rank in (0, 1) if not ranks.state(rank).process.alive]
    assert ranks.record(dead[0]).ring[-1].exit_age_s is None
