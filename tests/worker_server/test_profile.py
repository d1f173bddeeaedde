"""A profile on demand: what is refused at once, and a real one of a rank with torch."""

from __future__ import annotations

import json
import os
import signal
import threading

import pytest

from tests.worker_server.ranks import eventually
from worker_server import wire
from worker_server.sidecar.black_box import BlackBox, Profiles
from worker_server.sidecar.process import PidfdProcess
from worker_server.sidecar.queries import RefusalError
from worker_server.sidecar.recorders import ControlPlane
from worker_server.sidecar.stacks import Stacks


class FakeRank:
    """Answers a request file as the rank's beat would, when the sidecar waits."""

    def __init__(self, folder):
        self.folder = folder
        self.now = 0.0
        self.view = wire.Process(True, "S", interpreter_age_s=0.5)
        self.answer = {"asked_s": 1.0, "profiled_s": 1.0}
        self.trace = '{"traceEvents": []}'
        self.then = lambda: None
        self.profiles = Profiles(folder / "a.page", lambda: self.view, lambda: self.now, self.wait)

    def wait(self, seconds):
        self.now += seconds
        asks = list(self.folder.glob("*.ask"))
        if asks and self.answer is not None:
            ask = json.loads(asks[0].read_text())
            assert asks[0].stat().st_mode & 0o777 == 0o600
            asks[0].unlink()
            (self.folder / f"a.profile.{ask['id']}.json").write_text(self.trace)
            done = self.folder / f"a.profile.{ask['id']}.done"
            if self.answer:
                done.write_text(json.dumps(self.answer))
        self.then()

    def refused(self):
        with pytest.raises(RefusalError) as caught:
            self.profiles.take(1.0)
        assert not list(self.folder.iterdir())
        return caught.value.status, str(caught.value)


@pytest.fixture
def rank(tmp_path):
    return FakeRank(tmp_path)


def test_a_trace_says_what_it_covers_and_leaves_no_file(rank):
    trace = json.loads(rank.profiles.take(1.0))
    assert trace == {"lightkeeper": {"asked_s": 1.0, "profiled_s": 1.0}, "traceEvents": []}
    assert not list(rank.folder.iterdir())


@pytest.mark.parametrize(
    ("view", "status", "words"),
    [
        (wire.Process(False, None), 410, "the rank is dead"),
        (wire.Process(True, "T"), 503, "stopped; GET /v1/stacks"),
        (wire.Process(True, "S", interpreter_age_s=3.4), 503,
         "has not run for 3.4 s; GET /v1/stacks"),
    ],
    ids=["dead", "stopped", "deaf"],
)  # fmt: skip
def test_a_rank_that_cannot_answer_is_told_at_once(rank, view, status, words):
    rank.view = view
    got, message = rank.refused()
    assert (got, rank.now) == (status, 0.0)
    assert words in message


def test_what_the_rank_refuses_comes_with_its_status(rank):
    rank.answer = {"status": 501, "error": "torch is not imported in this rank"}
    assert rank.refused() == (501, "torch is not imported in this rank")


def test_a_rank_that_does_not_take_up_the_request_is_given_up_in_seconds(rank):
    rank.answer = None
    status, message = rank.refused()
    assert (status, 5 < rank.now < 6) == (503, True)
    assert "did not take up" in message


def test_a_rank_that_ends_meanwhile_is_gone(rank):
    rank.answer = {}
    rank.then = lambda: setattr(rank, "view", wire.Process(False, None))
    assert rank.refused() == (410, "the rank ended while it was profiled")


def test_a_rank_that_never_finishes_is_given_up(rank):
    rank.answer = {}
    status, _ = rank.refused()
    assert (status, 60 < rank.now < 70) == (503, True)


def test_half_a_trace_is_not_given(rank):
    rank.trace = '{"traceEvents": ['
    assert rank.refused()[0] == 503


def test_one_at_a_time(rank):
    seen = []

    def second():
        with pytest.raises(RefusalError) as caught:
            rank.profiles.take(1.0)
        seen.append(caught.value.status)

    def in_between():
        rank.then = lambda: None
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()

    rank.then = in_between
    rank.profiles.take(1.0)
    assert seen == [409]


def box_of(rank):
    from worker_server.rank.page.reader import PageReader
    from worker_server.run_dir import RankFiles

    path = next(p for p in rank.run_dir.glob("*.page") if PageReader(p).identity.pid == rank.pid)
    page = PageReader(path)
    process, files = PidfdProcess(rank.pid, page.start_ticks), RankFiles(path)
    return BlackBox(page, process, ControlPlane(files.socket), Stacks(process.pid), files)


@pytest.mark.integration
def test_without_torch_in_the_rank_the_answer_is_501(start_rank):
    rank = start_rank("steps")
    rank.says("ready")
    with pytest.raises(RefusalError) as caught:
        box_of(rank).profile(0.2)
    assert caught.value.status == 501


@pytest.mark.integration
def test_last_words_of_a_rank_that_raised(start_rank, tmp_path):
    rank = start_rank("raise", stderr_to=tmp_path / "err")
    rank.says("ready")
    box = box_of(rank)
    rank.process.wait(20)
    words = box.last_words()
    how, _, whose = words.ended.partition(". ")
    assert how in (
        "Raised ValueError: bad data and exited with code 1",
        "Raised ValueError: bad data; exit status not known",  # before Linux 6.15
    )
    assert whose == "ValueError comes from its own code."
    assert words.exception.text.endswith("ValueError: bad data\n")
    assert words.stderr.text.endswith("ValueError: bad data\n")
    assert wire.parse_last_words(wire.to_json(words)).ended == words.ended


@pytest.mark.integration
def test_last_words_of_a_rank_that_died_of_a_segfault(start_rank):
    rank = start_rank("segfault")
    rank.says("ready")
    box = box_of(rank)
    rank.process.wait(20)
    words = box.last_words()
    assert words.process.exit_signal in ("SIGSEGV", None)
    assert "Fatal Python error: Segmentation fault" in words.ended
    assert "rank_script.py" in words.crash.text
    assert "faulthandler, at the fatal signal" in box.stacks()


@pytest.mark.integration
def test_a_profile_has_the_ops_of_the_training_thread_and_leaves_training_as_it_was(start_rank):
    pytest.importorskip("torch")
    rank = start_rank("ops", OMP_NUM_THREADS="1")
    rank.says("ready")
    box = box_of(rank)
    trace = json.loads(box.profile(0.5))
    ops = [e for e in trace["traceEvents"] if e.get("cat") == "cpu_op"]
    assert {"aten::mm", "aten::relu"} <= {op["name"] for op in ops}
    assert {op["tid"] for op in ops} >= {rank.pid}
    facts = trace["lightkeeper"]
    assert 0 < facts["profiled_s"] < 2
    assert facts["stopped_training_s"] < 20
    rank.kill(signal.SIGINT)
    assert rank.process.wait(20) == 0


@pytest.mark.integration
def test_a_job_that_profiles_itself_is_left_alone_and_goes_first(start_rank):
    """Two profilers of torch at once end in a segmentation fault."""
    pytest.importorskip("torch")
    rank = start_rank("profiles_itself")
    rank.says("profiling")
    box = box_of(rank)
    with pytest.raises(RefusalError) as caught:
        box.profile(0.2)
    assert caught.value.status == 409
    rank.kill(signal.SIGUSR1)
    rank.says("free")
    trace = threading.Thread(target=box.profile, args=(30.0,))
    trace.start()
    eventually(lambda: not list(rank.run_dir.glob("*.ask")), "the rank takes up the request")
    rank.kill(signal.SIGUSR1)
    rank.says("profiled")
    trace.join(60)
    assert not trace.is_alive()
    assert os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT).si_status == 0
