"""A sidecar that was killed is started again, a few times; and who dies at once still has one."""

from __future__ import annotations

import os
import warnings

import pytest

from lightkeeper.worker_server.rank.attach import SidecarProcess as Companion
from lightkeeper.worker_server.run_dir import RankFiles


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
