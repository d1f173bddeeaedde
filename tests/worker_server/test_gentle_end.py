"""A rank ends what runs on its devices before an eviction ends it."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank import exchange, gentle_end
from lightkeeper.worker_server.run_dir import RankFiles, read_json, write_json
from lightkeeper.worker_server.sidecar.process import EvictionResult, end_rank
from tests.waiting import wait_for
from tests.worker_server.doubles import FakeProcess
from tests.worker_server.test_evict import FakeStarted, view

STUB = "torchft-nccl"


class Group:
    """A process group that writes down when it was aborted."""

    def __init__(self, log, backend=STUB, fails=None):
        self.log, self.backend, self.fails = log, backend, fails

    def getBackendName(self):  # noqa: N802  torch's name
        return self.backend

    def abort(self):
        self.log.append(f"abort {self.backend}")
        if self.fails is not None:
            raise self.fails


class Training:
    """A thread that makes steps until it is told to end."""

    def __init__(self, log):
        self.log, self.steps, self._end = log, 0, threading.Event()
        self.thread = threading.Thread(target=self._train, daemon=True)
        self.thread.start()

    def _train(self):
        while not self._end.wait(0.01):
            self.steps += 1
            gentle_end.at_step()

    def close(self):
        self._end.set()
        gentle_end._parking = None
        self.thread.join(5)


@pytest.fixture
def log():
    return []


@pytest.fixture
def groups(monkeypatch, log):
    kept = []
    monkeypatch.setattr(gentle_end, "groups_now", lambda: [(pg, 7) for pg in kept])
    return kept


@pytest.fixture
def training(log):
    training = Training(log)
    yield training
    training.close()


def test_a_rank_that_trains_parks_first_and_aborts_then(groups, training, log):
    groups.append(Group(log))
    said = gentle_end.end(park=True, wait_s=5.0)
    assert said == "parked between two steps, aborted 1 process group"
    assert log == [f"abort {STUB}"]
    steps = training.steps
    assert training.thread.is_alive()
    training.thread.join(0.1)
    assert training.steps == steps, "it makes no step while it is parked"


def test_a_rank_that_comes_to_no_step_is_not_waited_for_longer(groups, log):
    groups.append(Group(log))
    said = gentle_end.end(park=True, wait_s=0.05)
    assert said == "came to no end of a step within 0.05 s, aborted 1 process group"
    gentle_end.at_step()  # later it goes through: nobody holds it


def test_a_rank_that_stands_aborts_at_once(groups, log):
    groups += [Group(log), Group(log, "torchft-baby-nccl")]
    assert gentle_end.end(park=False, wait_s=5.0) == "aborted 2 process groups"
    assert log == [f"abort {STUB}", "abort torchft-baby-nccl"]


def test_groups_without_kernels_are_left_alone(groups, log):
    groups += [Group(log, "torchft-gloo"), Group(log, "gloo"), Group(log, "cpu:gloo")]
    assert gentle_end.end(park=False, wait_s=5.0) == "has no kernels to end"
    assert log == []


def test_an_abort_that_fails_is_said_and_keeps_none_of_the_others(groups, log):
    groups += [Group(log, fails=RuntimeError("wedged")), Group(log, "xccl")]
    said = gentle_end.end(park=False, wait_s=5.0)
    assert said == "abort failed: RuntimeError('wedged'), aborted 1 process group"
    assert log == [f"abort {STUB}", "abort xccl"]


def test_a_parked_rank_that_nobody_ends_goes_on(monkeypatch, groups, training):
    monkeypatch.setattr(gentle_end, "_STAYS_S", 0.1)
    assert gentle_end.end(park=True, wait_s=5.0).startswith("parked")
    steps = training.steps
    wait_for(lambda: training.steps > steps, within_s=20.0, what="it is so")


def test_torch_is_not_imported_to_end_a_rank_without_it():
    words = (
        "import sys; from lightkeeper.worker_server.rank import gentle_end; "
        "print(gentle_end.end(park=False, wait_s=1.0), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout == "has no kernels to end False\n"


def test_without_a_request_a_step_is_not_held(groups):
    gentle_end.at_step()


@pytest.mark.parametrize(
    ("backend", "kernels"),
    [
        ("gloo", False), ("torchft-gloo", False), ("cpu:gloo,cuda:nccl", True), ("nccl", True),
        ("torchft-baby-nccl", True), ("xccl", True), ("mpi", False), ("", False),
    ],
)  # fmt: skip
def test_which_backends_have_kernels(backend, kernels):
    assert gentle_end.on_device(backend) is kernels


def test_an_order_reaches_the_rank_by_its_file(groups, log, tmp_path):
    groups.append(Group(log))
    files = RankFiles(tmp_path / "a.page")
    exchange.install(files)
    try:
        write_json(files.order, {"id": "x", "park": False, "wait_s": 1.0})
        exchange.obey()
        wait_for(lambda: read_json(files.answer).get("id") == "x", within_s=20.0, what="it is so")
    finally:
        exchange.install(RankFiles(tmp_path / "gone.page"))
    assert read_json(files.answer) == {"id": "x", "ended": 0, "said": "aborted 1 process group"}


# -- beside the rank -------------------------------------------------------------------------------


def test_the_gentle_part_comes_before_sigterm_and_stands_in_the_result():
    rank = FakeProcess("SIGTERM")

    def gently():
        rank.sent.append("gently")
        return "parked between two steps"

    result = end_rank(rank, view(), 5.0, FakeStarted(rank), gently)
    assert result == EvictionResult(("SIGTERM",), True, 1, 1, "parked between two steps")
    assert rank.sent == ["gently", "SIGTERM"]


@pytest.mark.parametrize("seen", [view("T"), view(beat=9.0)], ids=["stopped", "no beat"])
def test_who_can_hear_nothing_is_ended_at_once(seen):
    rank = FakeProcess("SIGKILL")

    def gently():
        raise AssertionError("asked")

    result = end_rank(rank, seen, 5.0, FakeStarted(rank), gently)
    assert (result.signalled, result.way) == (("SIGKILL",), "")


@pytest.mark.integration
def test_a_real_rank_parks_between_two_steps(start_rank):
    rank = start_rank("steps")
    rank.says("ready")
    answer = rank.evict(grace_s=5.0, gently_s=10.0, manner="park")
    assert answer["way"] == "parked between two steps, has no kernels to end"
    assert (answer["gone"], answer["signalled"]) == (True, ["SIGTERM"])


@pytest.mark.integration
def test_a_real_rank_that_hangs_is_not_waited_for(start_rank):
    rank = start_rank("hang")
    rank.says("ready")
    answer = rank.evict(grace_s=5.0, gently_s=20.0, manner="abort")
    assert (answer["gone"], answer["way"]) == (True, "has no kernels to end")


def test_the_state_says_whether_kernels_exchange():
    assert wire.ON_CPU.issuperset({"gloo", ""})
