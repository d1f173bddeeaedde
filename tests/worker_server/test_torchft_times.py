"""What TorchFT's parts take, with Managers and transports that only pass the time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.integration  # torch

torch = pytest.importorskip("torch")

from lightkeeper.worker_server.rank import collectives, torchft  # noqa: E402
from lightkeeper.worker_server.rank.torchft import quorum_begins, quorum_ends, state_bytes  # noqa: E402
from lightkeeper.worker_server.wire import Took  # noqa: E402

MIB = 2**20


class Clock:
    """Each thread's own seconds: what runs in parallel takes no longer than the longest."""

    def __init__(self):
        self._local = threading.local()

    def __call__(self):
        return getattr(self._local, "now_s", 100.0)

    def pass_s(self, seconds):
        self._local.now_s = self() + seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(torchft, "monotonic", made)
    return made


@pytest.fixture
def times(recording, reader):
    return reader.times


def state(mib):
    return {"user": {"w": torch.zeros(mib * MIB, dtype=torch.uint8)}, "torchft": {"step": 3}}


def manager_with(clock, *, load_s=2.0, mib=1, fails=None):
    """A Manager and its transport, of classes of their own."""

    class Transport:
        def send_checkpoint(self, dst_ranks, step, state_dict, timeout):
            clock.pass_s(0.5)
            if fails is not None:
                raise fails

        def recv_checkpoint(self, src_rank, metadata, step, timeout):
            clock.pass_s(load_s)
            if fails is not None:
                raise fails
            return state(mib)

    class Manager:
        def __init__(self):
            self._checkpoint_transport = Transport()
            self._step = 3
            self.pending = None

        def _apply_pending_state_dict(self):
            clock.pass_s(0.25)
            return "applied"

        def heal(self, step=3):
            self.pending = self._checkpoint_transport.recv_checkpoint(
                src_rank=0, metadata="http://", step=step, timeout=None
            )
            return self._apply_pending_state_dict()

    torchft.wrap(Manager, "_apply_pending_state_dict", torchft.timed_apply)
    made = Manager()
    torchft.time_transport(made._checkpoint_transport)
    return made


def test_a_heal_is_a_load_and_its_application(clock, times):
    assert manager_with(clock).heal() == "applied"
    assert times() == {"load": Took(1, 2.0, 2.0, MIB, MIB), "apply": Took(1, 0.25, 0.25, MIB, MIB)}


def test_a_donor_stages(clock, times):
    donor = manager_with(clock)
    donor._checkpoint_transport.send_checkpoint([1], 3, state(4), None)
    donor._checkpoint_transport.send_checkpoint([1], step=4, state_dict=state(2), timeout=None)
    assert times() == {"staging": Took(2, 1.0, 0.5, 6 * MIB, 2 * MIB)}


def test_a_second_heal_is_counted_for_itself(clock, times):
    manager = manager_with(clock)
    manager.heal(step=3)
    manager._step = 9
    manager.heal(step=9)
    assert times()["load"] == Took(2, 4.0, 2.0, 2 * MIB, MIB)
    assert times()["apply"].done == 2


def test_waiting_for_the_load_is_not_the_application(clock, times):
    manager = manager_with(clock)

    class Waits(type(manager)):
        def _apply_pending_state_dict(self):  # as with an asynchronous quorum
            self._checkpoint_transport.recv_checkpoint(0, "", 3, None)
            clock.pass_s(0.25)

    torchft.wrap(Waits, "_apply_pending_state_dict", torchft.timed_apply)
    Waits()._apply_pending_state_dict()
    torchft.time_transport(Waits()._checkpoint_transport)
    assert times()["apply"] == Took(1, 0.25, 0.25, MIB, MIB)


def test_a_load_that_fails_is_no_heal_and_fails_as_it_did(clock, times):
    manager = manager_with(clock, fails=ConnectionError("gone"))
    with pytest.raises(ConnectionError, match="gone"):
        manager.heal()
    manager._apply_pending_state_dict()  # TorchFT goes on: nothing was loaded, nothing is applied
    assert times() == {}


def test_a_clock_that_goes_back_makes_no_negative_time(clock, times):
    manager = manager_with(clock, load_s=-5.0)
    manager.heal()
    assert times()["load"] == Took(1, 0.0, 0.0, MIB, MIB)
    assert times()["apply"].sum_s == 0.25


def test_a_failure_of_ours_reaches_nobody(clock, times, recording, monkeypatch):
    monkeypatch.setattr(recording.page, "add_time", lambda *a, **k: 1 / 0)
    manager = manager_with(clock)
    with pytest.warns(RuntimeWarning, match="ZeroDivisionError"):
        assert manager.heal() == "applied"
    assert manager.heal() == "applied"
    assert times() == {}


def test_after_a_fork_nothing_is_timed(clock, times):
    manager = manager_with(clock)
    collectives._stop()
    assert manager.heal() == "applied"
    assert times() == {}


def test_a_quorum_lasts_until_something_follows_it(clock, times):
    manager = manager_with(clock)
    quorum_begins(manager)
    clock.pass_s(1.5)
    manager._checkpoint_transport.recv_checkpoint(0, "", 3, None)
    assert times()["quorum"] == Took(1, 1.5, 1.5)
    quorum_begins(manager)
    clock.pass_s(1.5)
    quorum_ends(answered=False)  # it failed
    manager._checkpoint_transport.recv_checkpoint(0, "", 4, None)
    assert times()["quorum"].done == 1


class Pair(NamedTuple):
    first: object
    second: object


class Strange(dict):
    """What runs when somebody looks into it."""

    def values(self):
        raise AssertionError("a method of the user's was called")

    __iter__ = __len__ = values


def u8(n):
    return torch.zeros(n, dtype=torch.uint8)


SPARSE = torch.sparse_coo_tensor([[0]], [1.0], (3,), check_invariants=True)


@pytest.mark.parametrize(
    ("tree", "nbytes"),
    [
        pytest.param(None, 0, id="nothing"),
        pytest.param({"a": u8(3), "b": [u8(4), (u8(5), "text", 7)]}, 12, id="nested"),
        pytest.param(OrderedDict(a=Pair(u8(3), [u8(4)])), 7, id="ordered, named"),
        pytest.param(Strange(a=u8(3)), 3, id="a container that must not be asked"),
        pytest.param({"a": torch.zeros(4, dtype=torch.bfloat16)}, 8, id="two bytes each"),
        pytest.param({"a": u8(8)[:2]}, 8, id="a view goes with its storage"),
        pytest.param({"a": SPARSE, "b": u8(3)}, 0, id="one without a storage"),
        pytest.param({1, 2}, 0, id="a set"),
    ],
)
def test_bytes_are_those_of_the_tensors(tree, nbytes):
    assert state_bytes(tree) == nbytes


def test_a_storage_counts_once_however_often_it_is_there():
    shared = u8(8)
    assert state_bytes({"a": shared[:4], "b": shared[4:], "c": u8(1)}) == 9


def test_an_endless_state_is_given_up():
    endless = []
    endless.append(endless)
    assert state_bytes(endless) == 0
