"""torch in the rank: exit codes stay as they are, and the black box survives gloo's abort."""

from __future__ import annotations

import json
import signal

import pytest

from tests import sidecars
from tests.deep import DEEP
from tests.nursery import nursery
from tests.ports import free_port
from tests.worker_server.fates import SAY, ways_of
from tests.worker_server.ranks import Rank, environment, eventually

pytest.importorskip("torch")
pytestmark = pytest.mark.integration

EXPECTED = {
    "normal": 0, "exception": 1, "exception_beside_torch_threads": 1, "exception_in_atexit": 0,
    "exception_in_thread": 0, "failing_excepthook": 1, "sys_exit": 3, "sys_exit_text": 1,
    "os_exit": 7, "sigterm": -signal.SIGTERM, "sigterm_handled": 9, "sigint": -signal.SIGINT,
    "sigkill": -signal.SIGKILL, "sigabrt": -signal.SIGABRT, "segfault": -signal.SIGSEGV,
    "daemon_threads": 0, "forks": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def order(tmp_path_factory):
    """Tells the one process that has imported torch what to fork, and has its next line."""
    parent = nursery("distributed").start(
        ["-m", "tests.worker_server.torch_parent"],
        environment(
            tmp_path_factory.mktemp("orders"),
            REPLICA_GROUP="rg_1",
            LIGHTKEEPER_DEEP=str(DEEP),
            **sidecars.forked(),
        ),
        talks=True,
        whole=True,
    )
    with parent.stdout, parent.stdin:

        def told(*words):
            if words:
                print(*words, file=parent.stdin, flush=True)
            return json.loads(parent.stdout.readline())

        yield told
    parent.wait()


@pytest.fixture(scope="module")
def endings(order, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exits")
    folder.chmod(0o700)
    order("exits", folder)
    return order()


@pytest.mark.timeout(300)  # the first of them waits for all the endings
@pytest.mark.parametrize(
    ("ending", "way"),
    [(ending, way) for ending in EXPECTED for way in ways_of(ending) if way != "plain"],
)  # fmt: skip
def test_the_exit_code_and_the_last_words_of_a_rank_are_unchanged(endings, ending, way):
    expected = EXPECTED[ending], ["trained"]
    code, stdout, stderr = endings.get(f"{ending}/plain", (*expected, SAY.get(ending)))
    assert (code, stdout) == expected
    assert endings[f"{ending}/{way}"] == [code, stdout, stderr]
    if way == "hammered":
        assert endings[f"{ending}/answers"] > 0


@pytest.fixture
def start_gloo(order, run_dir):
    started = []

    def start(ending):
        """Two ranks of one group under one parent."""
        ranks = [Rank(pid, run_dir) for pid in order("gloo", run_dir, ending, free_port())]
        started.extend(ranks)
        return ranks

    yield start
    for rank in started:
        rank.end()


def test_a_rank_that_holds_the_gil_still_gives_its_ring_and_torchs_record(start_gloo):
    ranks = start_gloo("gil")
    eventually(lambda: ranks[1].state().process.interpreter_age_s > 2, "rank 1 holds the GIL")
    culprit, victim = ranks[1].record(), ranks[0].record()
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
    heads = {head.name: head for head in ranks[0].state().heads}
    assert (heads["default"].enqueued, heads["default"].completed) == (4, 3)
    assert ranks[0].state().timeouts == {"collective": 1800.0}


def test_after_gloo_aborts_the_process_the_mismatch_is_on_record(start_gloo):
    ranks = start_gloo("size")
    eventually(
        lambda: not all(rank.state().process.alive for rank in ranks), "gloo aborts one of the two"
    )
    last = [rank.record().ring[-1] for rank in ranks]
    assert [(call.group, call.seq, call.op) for call in last] == [("default", 4, "all_reduce")] * 2
    assert [call.sizes_in for call in last] == [((1000,),), ((500,),)]
    dead = [rank for rank in ranks if not rank.state().process.alive]  # the other may follow it
    assert any(rank.record().ring[-1].exit_age_s is None for rank in dead)
