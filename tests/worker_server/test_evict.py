"""Who gets which signal, on a fake process."""

from __future__ import annotations

import pytest

from worker_server import wire
from worker_server.sidecar.evict import Eviction, evict


class FakeRank:
    """Dies of the signals in `dies_of`; keeps what it was sent and how long it was waited for."""

    pid = 7

    def __init__(self, *dies_of):
        self.dies_of = dies_of
        self.sent = []
        self.waited = []
        self.dead = False

    def send(self, signum):
        if self.dead:
            return False
        self.sent.append(signum.name)
        self.dead = signum.name in self.dies_of
        return True

    def wait_death(self, timeout_s):
        self.waited.append(timeout_s)
        return self.dead


def view(state="S", beat=0.5, alive=True):
    return wire.Process(alive=alive, state=state, interpreter_age_s=beat)


@pytest.mark.parametrize(
    ("rank", "seen", "expected"),
    [
        pytest.param(FakeRank("SIGTERM"), view(), Eviction(("SIGTERM",), True), id="listens"),
        pytest.param(FakeRank("SIGKILL"), view(), Eviction(("SIGTERM", "SIGKILL"), True), id="deaf"),
        pytest.param(FakeRank("SIGKILL"), view("T"), Eviction(("SIGKILL",), True), id="stopped"),
        pytest.param(FakeRank("SIGKILL"), view("t"), Eviction(("SIGKILL",), True), id="traced"),
        pytest.param(FakeRank("SIGKILL"), view(beat=3.1), Eviction(("SIGKILL",), True), id="no beat"),
        pytest.param(FakeRank("SIGTERM"), view(beat=2.9), Eviction(("SIGTERM",), True), id="late"),
        pytest.param(FakeRank("SIGTERM"), view(beat=None), Eviction(("SIGTERM",), True), id="unknown"),
        pytest.param(FakeRank(), view("D"), Eviction(("SIGTERM", "SIGKILL"), False), id="in the kernel"),
        pytest.param(FakeRank(), view(alive=False), Eviction((), True), id="dead before"),
    ],
)  # fmt: skip
def test_signals(rank, seen, expected):
    assert evict(rank, seen, 2.0) == expected
    assert tuple(rank.sent) == expected.signalled


def test_the_grace_is_waited_for_between_the_two():
    rank = FakeRank("SIGKILL")
    evict(rank, view(), 7.5)
    assert rank.waited[0] == 7.5


def test_a_rank_that_dies_by_itself_meanwhile_is_gone_and_was_not_signalled():
    rank = FakeRank()
    rank.dead = True
    assert evict(rank, view(), 2.0) == Eviction((), True)
