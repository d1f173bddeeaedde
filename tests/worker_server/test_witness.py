"""When a rank is looked at, what its stack is told as, and when that holds no more."""

from __future__ import annotations

import sysconfig
from itertools import pairwise

import pytest

from tests.changed import replace
from tests.worker_server.doubles import Bench
from tests.worker_server.pages import enter, write_step
from worker_server import wire
from worker_server.rank.page import layout
from worker_server.sidecar.host import with_shared
from worker_server.sidecar.stacks import (
    _SYSCALLS,
    Call,
    HangWatch,
    StackSample,
    StandstillWitness,
    doing_of,
)
from worker_server.wire import Doing

SITE = "/venv/lib/python3.11/site-packages"
STDLIB = sysconfig.get_path("stdlib")
RUNS = wire.Process(True, "S", interpreter_age_s=0.5)
STOPPED = wire.Process(True, "T", interpreter_age_s=0.5)
DEAF = wire.Process(True, "S", interpreter_age_s=3.5)
INSIDE = (wire.GroupHead("default", 2, 5, 1, "all_reduce", 6.0),)
BETWEEN = (wire.GroupHead("default", 2, 5, 0, "all_reduce", 6.0),)


def step(phase="other", progress=4):
    return wire.StepState(1, 1, progress, phase, 6.0, 0)


def looks(*seen, until_s=200, watch=None):
    """Seconds after which a rank is looked at that is asked about every second."""
    watch = watch or HangWatch()
    return [second for second in range(until_s) if watch.due(*seen, 1000.0 + second)]


@pytest.mark.parametrize(
    ("seen", "first_s"),
    [
        ((RUNS, step(), ()), 5),
        ((RUNS, None, BETWEEN), 5),
        ((RUNS, None, INSIDE), 5),
        ((RUNS, step("compile"), INSIDE), 5),
        ((RUNS, step("checkpoint"), BETWEEN), 30),
        ((RUNS, None, ()), 30),
        ((STOPPED, step(), ()), 0),
        ((DEAF, step(), ()), 0),
    ],
    ids=["phase", "no steps", "inside", "waits at something long", "long phase", "starts",
         "stopped", "deaf"],
)  # fmt: skip
def test_a_rank_that_stands_still_is_looked_at_twice_soon_and_then_ever_more_seldom(seen, first_s):
    looked = looks(*seen)
    assert looked[:4] == [first_s, first_s + 2, first_s + 7, first_s + 12]
    pauses = [after - before for before, after in pairwise(looked[12:])]
    assert looked[12] <= first_s + 65
    assert set(pauses[1:]) <= {30}


def test_a_rank_that_moves_is_never_looked_at():
    watch = HangWatch()
    for second in range(100):
        assert not watch.due(RUNS, step(progress=second // 4), BETWEEN, float(second))
        assert not watch.hanging
    assert looks(RUNS, step(progress=25), BETWEEN, watch=watch, until_s=20) == [5, 7, 12, 17]


def transfer(posted, unfinished=0, held=0):
    return (wire.TransferHead("default", 1, 0, 1, posted, unfinished, 0.0, held),)


def test_a_rank_that_sends_and_receives_moves():
    watch = HangWatch()
    for second in range(100):
        assert not watch.due(RUNS, step(), BETWEEN, float(second), transfer(second // 4))
    assert watch.due(RUNS, step(), BETWEEN, 102.0, transfer(24))


def test_a_rank_inside_of_its_first_transfer_is_looked_at_soon():
    watch = HangWatch()
    inside = transfer(1, 1, 1)
    assert [s for s in range(10) if watch.due(RUNS, None, (), float(s), inside)] == [5, 7]


def test_a_rank_that_is_traced_is_left_alone():
    assert looks(replace(STOPPED, tracer=wire.Tracer(9, "gdb")), step(), ()) == []


USER = Call("Deadlock.log_step", "/job/train.py", 66)
MAIN = Call("main", "/job/train.py", 90)


def lib(path, name="f"):
    return Call(name, f"{SITE}/{path}", 1)


def std(path, name="f"):
    return Call(name, f"{STDLIB}/{path}", 1)


@pytest.mark.parametrize(
    ("inside", "does"),
    [
        ([std("threading.py"), std("queue.py")], Doing.LOCK),
        ([std("selectors.py"), std("multiprocessing/connection.py"),
          std("multiprocessing/queues.py")], Doing.LOCK),
        ([std("selectors.py"), std("subprocess.py")], Doing.PROCESS),
        ([std("threading.py"), std("queue.py"), lib("torch/utils/data/dataloader.py")], Doing.DATA),
        ([std("socket.py"), std("http/client.py")], Doing.IO),
        ([lib("torch/distributed/distributed_c10d.py")], Doing.COLLECTIVE),
        ([std("threading.py"), std("concurrent/futures/_base.py"), lib("torchft/manager.py")],
         Doing.COLLECTIVE),
        ([lib("torch/distributed/distributed_c10d.py"),
          lib("torch/distributed/checkpoint/utils.py")], Doing.COLLECTIVE),
        ([lib("torch/distributed/checkpoint/filesystem.py")], Doing.SAVE),
        ([lib("torch/serialization.py")], Doing.SAVE),
        ([std("subprocess.py"), lib("torch/_inductor/codecache.py"),
          lib("torch/_dynamo/convert_frame.py"), lib("torch/_dynamo/eval_frame.py")],
         Doing.COMPILE),
        ([lib("torch/_inductor/utils.py"), lib("torch/_dynamo/eval_frame.py")], Doing.UNKNOWN),
        ([lib("torch/nn/functional.py"), lib("torch/nn/modules/module.py"),
          lib("torch/nn/parallel/distributed.py")], Doing.UNKNOWN),
        ([lib("torch/distributed/fsdp/_state.py"), lib("torch/nn/modules/module.py")],
         Doing.COLLECTIVE),
        ([lib("torch/distributed/__init__.py"), Call("_call", "<frozen importlib._bootstrap>", 1)],
         Doing.START),
        ([], Doing.UNKNOWN),
    ],
)  # fmt: skip
def test_the_calls_inside_of_the_users_tell_what_it_does(inside, does):
    calls = [*inside, USER, MAIN]
    assert doing_of(calls, len(inside), None, waits=False) is does


@pytest.mark.parametrize(
    ("function", "does"),
    [("evaluate", Doing.EVALUATE), ("Trainer.val_epoch", Doing.EVALUATE),
     ("save_checkpoint", Doing.SAVE), ("Trainer.save_model_state", Doing.SAVE),
     ("retrieval", Doing.UNKNOWN), ("invalid", Doing.UNKNOWN), ("save_money", Doing.UNKNOWN)],
)  # fmt: skip
def test_the_users_own_functions_tell_that_it_saves_or_evaluates(function, does):
    calls = [USER, Call(function, "/job/train.py", 80), MAIN]
    assert doing_of(calls, 0, None, waits=False) is does


@pytest.mark.skipif(not _SYSCALLS, reason="no table for this machine")
def test_where_no_call_tells_the_system_call_does():
    for kind in (Doing.LOCK, Doing.SLEEP, Doing.IO, Doing.PROCESS):
        number = next(n for n, does in _SYSCALLS.items() if does is kind)
        assert doing_of([USER], 0, number, waits=False) is kind
        assert doing_of([lib("torch/utils/data/a.py"), USER], 1, number, waits=False) is Doing.DATA
    assert doing_of([USER], 0, None, waits=True) is Doing.COLLECTIVE
    assert doing_of([USER], 0, 99999, waits=False) is Doing.UNKNOWN


def test_a_backward_pass_that_waits_in_cpp_is_no_lock():
    """DDP's reducer waits for its peers there; nothing in Python tells that from work."""
    futex = next(n for n, does in _SYSCALLS.items() if does is Doing.LOCK)
    calls = [lib("torch/autograd/graph.py"), lib("torch/_tensor.py"), USER]
    assert doing_of(calls, 2, futex, waits=False) is Doing.UNKNOWN


def test_samples_in_a_row_agree_until_the_frame_differs_or_the_rank_moves():
    witness = StandstillWitness()
    wait = std("threading.py", "wait")
    witness.add(StackSample((wait, USER, MAIN), 100.0), (1,), waits=False)
    witness.add(StackSample((USER, MAIN), 102.5), (1,), waits=False)
    seen = witness.witness((1,), 103.0)
    assert seen == wire.Witness(
        wire.Frame("Deadlock.log_step", "train.py", 66), Doing.UNKNOWN, 2, 2.5, 0.5
    )
    assert witness.witness((2,), 103.0) is None
    witness.add(StackSample((USER._replace(line=67), MAIN), 104.0), (1,), waits=False)
    assert (witness.witness((1,), 104.0).samples, witness.witness((1,), 104.0).same_s) == (1, 0.0)
    witness.add(StackSample((USER._replace(line=67), MAIN), 109.0), (2,), waits=False)
    assert witness.witness((2,), 109.0).samples == 1
    witness.add(StackSample((), 110.0), (2,), waits=False)
    assert witness.witness((2,), 110.0).age_s == 1.0


def test_who_moves_within_an_installed_package_does_not_stand():
    witness = StandstillWitness()
    for second in range(3):
        at = lib("transformers/trainer.py")._replace(line=second)
        witness.add(StackSample((at, USER, MAIN), float(second)), (1,), waits=False)
    assert witness.witness((1,), 3.0).samples == 1


def test_a_note_that_was_read_before_is_no_other_sample():
    witness = StandstillWitness()
    for _ in range(2):
        witness.add(StackSample((USER,), 100.0), (1,), waits=False)
    assert witness.witness((1,), 101.0).samples == 1


@pytest.fixture
def bench(page, tmp_path):
    write_step(page, 5)
    page.leave(row := page.group_row("default", 2), *enter(page, row))
    return Bench(tmp_path / "a.page")


def test_a_state_tells_where_a_rank_stands_and_no_more_once_it_has_moved(page, bench, tmp_path):
    bench.process.state = "T"
    bench.box.tick()
    witness = bench.box.state().witness
    assert (str(witness.frame), witness.samples) == ("main (train.py:1)", 1)
    there = replace(bench.box.state(), witness=None)
    assert with_shared(tmp_path / "a.seen", there, 1e9).witness.frame == witness.frame
    page.change_phase(page.phase_id("forward"))
    assert bench.box.state().witness is None
    bench.process.state = "S"
    bench.box.tick()
    assert not (tmp_path / "a.seen").exists()


def test_where_py_spy_cannot_look_what_the_beat_wrote_since_is_the_sample(page, bench):
    bench.stacks.error = "py-spy failed: Permission denied"
    bench.process.state = "T"
    bench.box.tick()
    assert bench.box.state().witness is None
    bench.box._hangs = HangWatch()
    bench.box._hangs.due(RUNS, *bench.box._stand()[:2], 0.0)
    page.write_note(layout.NOTE_STACKS, 'Thread 7: "MainThread"\n    A.run (train.py:7)\n')
    bench.box.tick()
    assert str(bench.box.state().witness.frame) == "A.run (train.py:7)"


def test_a_rank_that_waits_for_others_is_told_as_such(page, bench):
    enter(page, page.group_row("default", 2))
    bench.process.state = "T"
    bench.box.tick()
    assert bench.box.state().witness.doing is Doing.COLLECTIVE
