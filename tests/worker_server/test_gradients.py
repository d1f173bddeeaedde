"""NaN without a call of the user's: what is given to `Manager.allreduce` is looked at."""

from __future__ import annotations

import gc
import itertools
import weakref
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.integration  # torch

torch = pytest.importorskip("torch")

from lightkeeper.worker_server.rank import torchft  # noqa: E402
from lightkeeper.worker_server.rank.torchft import ENVIRONMENT, sample_is_finite  # noqa: E402
from tests.worker_server.pages import NOW  # noqa: E402

NAN, INF = float("nan"), float("inf")
LARGE = 100_000


def gradient(bad=None, size=2048, **how):
    made = torch.ones(size, **how)
    if bad is not None:
        made[:] = bad
    return made


class Manager:
    """Averages with what `peer` gives; commits always."""

    def __init__(self):
        self._step = 0
        self.peer = 0.0

    def start_quorum(self):
        pass

    def wait_quorum(self):
        pass

    def allreduce(self, tensor):
        tensor += self.peer

    def should_commit(self):
        self._step += 1
        return True


@pytest.fixture
def state(recording, reader):
    return lambda: reader.step_state(NOW)


@pytest.fixture
def manager(recording):
    cls = type("Manager", (Manager,), dict(Manager.__dict__))
    torchft._patch_manager(SimpleNamespace(Manager=cls))
    return cls()


def step(manager, *tensors, peer=0.0):
    manager.peer = peer
    manager.start_quorum()
    for tensor in tensors:
        manager.allreduce(tensor)
    manager.should_commit()


def test_while_gradients_are_finite_the_watch_alone_is_told(manager, state):
    step(manager, gradient())
    assert state().spoilt is None
    assert state().gradients_watched


@pytest.mark.parametrize("bad", [NAN, INF, -INF], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a_rank_that_gives_what_is_not_finite_is_told_at_its_step(manager, state, bad, dtype):
    step(manager, gradient())
    step(manager, gradient(bad, dtype=dtype))
    spell = state().spoilt
    assert (spell.first_step, spell.where, spell.run) == (1, "local", 1)


def test_a_rank_that_gets_what_is_not_finite_says_that_it_came_from_others(manager, state):
    step(manager, gradient(), peer=NAN)
    spell = state().spoilt
    assert (spell.first_step, spell.where, spell.run) == (0, "exchanged", 1)


def test_what_the_program_has_freed_by_the_vote_is_not_looked_at(manager, state):
    given = gradient()
    manager.start_quorum()
    manager.allreduce(given)
    given.resize_(0)
    manager.should_commit()
    assert state().spoilt is None


def test_a_spell_ends_with_a_finite_step(manager, state):
    step(manager, gradient(NAN))
    step(manager, gradient())
    assert (state().spoilt.run, state().spoilt.attempts) == (0, 1)


def test_of_a_large_tensor_a_sample_is_looked_at(manager, state):
    large = gradient(size=LARGE)
    large[:: LARGE // 64] = NAN
    step(manager, large)
    assert state().spoilt.where == "local"


@pytest.mark.parametrize(("step_s", "attempts"), [(0.5, 8), (0.01, 1)])
def test_all_tensors_are_looked_at_as_long_as_that_is_little_of_a_step(
    manager, state, monkeypatch, step_s, attempts
):
    now = itertools.count(0, 5_000)  # each look takes 5 us
    late = [0]
    monkeypatch.setattr("lightkeeper.worker_server.rank.torchft.thread_time_ns", lambda: next(now))
    monkeypatch.setattr("lightkeeper.worker_server.rank.torchft.perf_counter_ns", lambda: late[0])
    for n in range(9):
        late[0] += int(step_s * 1e9)
        step(manager, *(gradient(NAN if n and k == 17 else None) for k in range(64)))
    assert abs(state().spoilt.attempts - attempts) <= 1


def test_of_many_tensors_each_step_looks_at_others(manager, state):
    for _ in range(30):
        step(manager, *(gradient(NAN if n == 17 else None) for n in range(64)))
    assert 1 <= state().spoilt.attempts <= 4


def test_large_numbers_are_finite():
    assert sample_is_finite(gradient(3e38))
    assert sample_is_finite(gradient(6e4, dtype=torch.float16))


@pytest.mark.parametrize(
    "odd",
    [gradient(NAN, size=100), gradient(1, dtype=torch.int64), torch.ones(4096, device="meta"),
     gradient(NAN, size=(64, 64)).t()[::2], torch.eye(64).to_sparse(), None, 3.0],
    ids=["small", "integers", "elsewhere", "strided", "sparse", "None", "a number"],
)  # fmt: skip
def test_what_cannot_be_looked_at_cheaply_is_not(manager, state, odd):
    assert not torchft._usable(odd)


def test_only_a_watch_that_looks_is_told(manager, state):
    step(manager, gradient(NAN, size=100))
    assert state().spoilt is None
    assert not state().gradients_watched


def test_autograd_and_the_tensor_are_left_as_they_are(manager):
    leaf = torch.nn.Parameter(gradient())
    loss = (leaf * 2).sum()
    version = leaf._version
    assert sample_is_finite(leaf)
    assert leaf._version == version
    loss.backward()
    assert leaf.grad[0] == 2


def test_no_tensor_is_kept_alive(manager):
    given = gradient()
    manager.start_quorum()
    manager.allreduce(given)
    seen = weakref.ref(given)
    del given
    gc.collect()
    assert seen() is None
    manager.should_commit()


def test_a_loss_scaler_makes_infinities_on_purpose(manager, state):
    step(manager, gradient())
    torch.amp.GradScaler("cpu").scale(torch.ones(()))
    step(manager, gradient(INF))
    assert state().spoilt is None
    assert not state().gradients_watched


def test_the_watch_can_be_switched_off(monkeypatch, recording, manager, state):
    monkeypatch.setenv(ENVIRONMENT, "0")
    torchft.install(recording)
    step(manager, gradient(NAN))
    assert state() is None or (state().spoilt, state().gradients_watched) == (None, False)


def test_a_failure_of_ours_ends_the_watch_and_nothing_else(manager, state, monkeypatch):
    monkeypatch.setattr(torchft._observer.watch, "_look", lambda *_: 1 / 0)
    with pytest.warns(RuntimeWarning, match="does not look at gradients any more"):
        step(manager, gradient())
    step(manager, gradient(NAN))
    assert state().commits == 2 or state().attempt == 2
    assert not state().gradients_watched
