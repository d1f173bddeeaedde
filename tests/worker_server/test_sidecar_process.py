"""A sidecar that was killed is started again, a few times; and who dies at once still has one."""

from __future__ import annotations

import os
import signal
import warnings

import pytest

from tests.worker_server.ranks import eventually
from worker_server.rank.attach import SidecarProcess as Companion
from worker_server.run_dir import RankFiles, state_of


class FakeLauncher:
    returncode = 0

    def poll(self):
        return 0


class Bench:
    """A companion whose sidecars publish themselves at once, and die on demand."""

    def __init__(self, folder):
        self.files = RankFiles(folder / "a.page")
        self.now = 100.0
        self.started_at = []
        self.up = True
        self.state = "S"
        self.answers = True
        self.ended_at = []
        self.companion = Companion(
            self.files, self.start, lambda: self.now, lambda *_: self.state, self.end
        )

    def start(self, files):
        self.started_at.append(self.now)
        self.state, self.answers = "S", True
        if self.up:
            number = len(self.started_at)
            files.write_endpoint({"sidecar_pid": os.getpid(), "sidecar_ticks": number})
        return FakeLauncher()

    def kill(self):
        self.state = None

    def end(self, pid, ticks):
        assert (pid, ticks) == (os.getpid(), len(self.started_at))
        self.ended_at.append(self.now)
        self.kill()

    def pass_s(self, seconds):
        for _ in range(int(seconds)):
            self.now += 1
            if self.answers and self.files.endpoint.exists():
                os.utime(self.files.endpoint, ns=(0, int(self.now * 1e9)))
            self.companion.look()


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def test_a_sidecar_that_lives_is_let_in_and_left_alone(bench):
    assert not bench.companion.settled
    bench.pass_s(100)
    assert bench.companion.settled
    assert bench.started_at == [100]


def test_a_killed_sidecar_comes_back_with_growing_pauses_and_then_no_more(bench):
    bench.pass_s(1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for pause_s in (1, 2, 4, 8, 16):
            bench.kill()
            bench.pass_s(pause_s)
            assert not bench.companion.settled
            bench.pass_s(2)
            assert bench.companion.settled
        assert not said
        bench.kill()
        bench.pass_s(100)
    assert len(bench.started_at) == 6
    assert [str(w.message) for w in said] == [
        f"lightkeeper's WorkerServer was started 6 times and is gone again: see {bench.files.log}"
    ]
    assert bench.companion.settled


def test_one_that_lived_for_long_has_all_its_tries_again(bench):
    bench.pass_s(1)
    for _ in range(8):
        bench.pass_s(600)
        bench.kill()
        bench.pass_s(1 + 2)
        assert bench.companion.settled
    assert len(bench.started_at) == 9


def test_one_that_is_stopped_is_ended_and_then_replaced(bench):
    bench.pass_s(10)
    bench.state = "T"
    bench.pass_s(4)
    bench.state = "S"  # somebody let it go on
    bench.pass_s(10)
    bench.state = "T"
    bench.pass_s(4)
    assert bench.ended_at == []
    bench.pass_s(4)
    assert bench.ended_at == [129]
    assert bench.started_at == [100, 131]
    bench.pass_s(100)
    assert bench.started_at == [100, 131]


def test_one_that_does_not_answer_itself_any_more_is_ended_and_then_replaced(bench):
    bench.pass_s(10)
    bench.answers = False
    bench.pass_s(29)
    bench.answers = True
    bench.pass_s(1)
    bench.answers = False
    bench.pass_s(29)
    assert bench.ended_at == []
    bench.pass_s(3)
    assert bench.ended_at == [170]
    assert bench.started_at == [100, 172]


def test_a_rank_that_was_stopped_itself_ends_nobody_for_the_time_that_it_missed(bench):
    bench.pass_s(10)
    bench.answers = False
    bench.now += 1000
    bench.pass_s(20)
    for _ in range(1000):
        bench.companion.look()  # hurried: at one moment it counts once
    assert bench.ended_at == []


def test_one_whose_endpoint_file_was_taken_away_is_left_alone(bench):
    bench.pass_s(10)
    bench.files.endpoint.unlink()
    bench.pass_s(100)
    assert bench.ended_at == []


def test_one_that_was_killed_before_it_was_let_in_is_started_again(bench):
    bench.kill()
    bench.pass_s(4)
    assert bench.started_at == [100, 103]
    assert bench.companion.settled


def test_one_that_does_not_come_up_is_one_warning(bench, tmp_path):
    bench.files.endpoint.unlink()
    with pytest.warns(RuntimeWarning, match="did not come up: see ") as said:
        bench.pass_s(200)
    assert len(said) == 1


@pytest.mark.integration
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_sidecar_that_is_lost_is_replaced_and_answers_with_stacks(start_rank, signum):
    rank = start_rank("hang")
    rank.says("ready")
    first = rank.endpoint
    os.kill(first["sidecar_pid"], signum)

    def replaced():
        rank._endpoint = None
        return rank.endpoint["sidecar_pid"] != first["sidecar_pid"]

    eventually(replaced, "another sidecar publishes its URL")
    assert state_of(first["sidecar_pid"], first["sidecar_ticks"]) is None
    assert rank.state().step.commits == 3
    status, stacks = rank.ask("/v1/stacks")
    assert (status, "rank_script.py" in stacks) == (200, True)


@pytest.mark.integration
def test_a_sidecar_is_beyond_its_ranks_signals_and_gets_a_share_of_its_ranks_cores(start_rank):
    rank = start_rank("steps")
    sidecar = rank.endpoint["sidecar_pid"]
    assert os.getpgid(sidecar) != os.getpgid(rank.pid)  # Ctrl-C, Ctrl-Z
    assert os.getsid(sidecar) == os.getsid(rank.pid)  # autogroup shares cores out by session
    assert os.getpriority(os.PRIO_PROCESS, sidecar) > os.getpriority(os.PRIO_PROCESS, rank.pid)


@pytest.mark.integration
def test_a_rank_that_dies_at_once_has_a_sidecar_that_tells_how(start_rank):
    rank = start_rank("die_at_once")
    assert rank.process.wait(20) == 7
    process = rank.state().process
    assert not process.alive
    assert process.exit_code in (7, None)  # None before Linux 6.15
    assert rank.ask("/v1/stacks")[0] in (200, 410)


@pytest.mark.integration
def test_a_rank_that_closes_and_ends_at_once_leaves_nothing_after_some_seconds(start_rank):
    rank = start_rank("finish_at_once")
    assert rank.process.wait(20) == 0
    eventually(
        lambda: {path.suffix for path in rank.run_dir.iterdir()} == {".log"}, "all is cleaned up"
    )
