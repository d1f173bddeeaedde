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


TERM, KILL = "SIGTERM", "SIGKILL"


@pytest.mark.parametrize(
    ("dies_of", "seen", "signalled", "gone"),
    [
        pytest.param(TERM, view(), (TERM,), True, id="listens"),
        pytest.param(KILL, view(), (TERM, KILL), True, id="ignores sigterm"),
        pytest.param(KILL, view("T"), (KILL,), True, id="stopped"),
        pytest.param(TERM, view("t"), (TERM,), True, id="traced, as while its stacks are taken"),
        pytest.param(KILL, view("t", beat=3.1), (KILL,), True, id="traced, no beat"),
        pytest.param(KILL, view(beat=3.1), (KILL,), True, id="no beat"),
        pytest.param(TERM, view(beat=2.9), (TERM,), True, id="late beat"),
        pytest.param(TERM, view(beat=None), (TERM,), True, id="beat unknown"),
        pytest.param("", view("D"), (TERM, KILL), False, id="in the kernel"),
        pytest.param("", view(alive=False), (), True, id="dead before"),
    ],
)
def test_signals(dies_of, seen, signalled, gone):
    rank = FakeRank(dies_of)
    assert evict(rank, seen, 2.0) == Eviction(signalled, gone)
    assert tuple(rank.sent) == signalled


def test_the_grace_is_waited_for_between_the_two():
    rank = FakeRank("SIGKILL")
    evict(rank, view(), 7.5)
    assert rank.waited[0] == 7.5


def test_a_rank_that_dies_by_itself_meanwhile_is_gone_and_was_not_signalled():
    rank = FakeRank()
    rank.dead = True
    assert evict(rank, view(), 2.0) == Eviction((), True)
