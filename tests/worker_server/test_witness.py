"""When a rank is looked at, what its stack is told as, and when that holds no more."""

from __future__ import annotations

import sysconfig
from itertools import pairwise

import pytest

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.sidecar import stacks
from lightkeeper.worker_server.sidecar.host import with_shared
from lightkeeper.worker_server.sidecar.stacks import (
    _SYSCALLS,
    Call,
    HangWatch,
    RankProgress,
    StackSample,
    StandstillWitness,
    doing_of,
)
from lightkeeper.worker_server.sidecar.text import answer_text
from lightkeeper.worker_server.wire import Doing
from tests.changed import replace
from tests.worker_server.doubles import Bench
from tests.worker_server.pages import enter, write_step

SITE = "/venv/lib/python3.11/site-packages"
STDLIB = sysconfig.get_path("stdlib")
RUNS = wire.Process(True, "S", interpreter_age_s=0.5)
STOPPED = wire.Process(True, "T", interpreter_age_s=0.5)
DEAF = wire.Process(True, "S", interpreter_age_s=3.5)
INSIDE = (wire.GroupHead("default", 2, 5, 1, "all_reduce", 6.0),)
BETWEEN = (wire.GroupHead("default", 2, 5, 0, "all_reduce", 6.0),)


def step(phase="other", progress=4, age_s=6.0):
    return wire.StepState(1, 1, progress, phase, age_s, 0)


def looks(*seen, until_s=200, watch=None):
    """Seconds after which a rank is looked at that is asked about every second."""
    watch = watch or HangWatch()
    return [second for second in range(until_s) if watch.due(*seen, 1000.0 + second)]


@pytest.mark.parametrize(
    ("seen", "first"),
    [
        ((RUNS, RankProgress(step())), [3, 5, 7, 12]),
        ((RUNS, RankProgress(None, BETWEEN)), [3, 5, 7, 12]),
        ((RUNS, RankProgress(None, INSIDE)), [3, 5, 7, 12]),
        ((RUNS, RankProgress(step("compile"), INSIDE)), [3, 5, 7, 12]),
        ((RUNS, RankProgress(step("checkpoint"), BETWEEN)), [30, 32, 37, 42]),
        ((RUNS, RankProgress(None)), [10, 12, 17, 22]),
        ((STOPPED, RankProgress(step())), [0, 2, 7, 12]),
        ((DEAF, RankProgress(step())), [0, 2, 7, 12]),
    ],
    ids=["phase", "no steps", "inside", "waits at something long", "long phase", "starts",
         "stopped", "deaf"],
)  # fmt: skip
def test_a_rank_that_stands_still_is_looked_at_soon_again_and_then_ever_more_seldom(seen, first):
    looked = looks(*seen)
    assert looked[:4] == first
    later = [second for second in looked if second >= first[0] + 60]
    assert later[0] <= first[0] + 65
    assert {after - before for before, after in pairwise(later)} == {30}


def test_a_rank_that_moves_is_never_looked_at():
    watch = HangWatch()
    for second in range(100):
        now = RankProgress(step("other", second // 3, 0.0), BETWEEN)
        assert not watch.due(RUNS, now, float(second))
        assert not watch.hanging
    stands = RankProgress(step("other", 50, 0.0), BETWEEN)
    assert looks(RUNS, stands, watch=watch, until_s=20) == [3, 5, 7, 12, 17]


@pytest.mark.parametrize(
    ("step_s", "an_hour"), [(2, 0), (4, 6), (5, 6), (10, 726), (30, 726)], ids=lambda n: f"{n}"
)
def test_early_looks_cost_a_healthy_rank_six_an_hour_at_most(step_s, an_hour):
    """With steps of 10 s it is looked at twice in each, with steps of 30 s six times."""
    watch = HangWatch()
    seconds = range(1000, 4600)
    looked = [
        watch.due(RUNS, RankProgress(step("other", s // step_s, s % step_s), BETWEEN), float(s))
        for s in seconds
    ]
    assert abs(sum(looked) - an_hour) <= 6


def test_early_looks_that_found_a_rank_passing_are_left_out_for_ten_minutes():
    watch = HangWatch()
    assert looks(RUNS, RankProgress(step(progress=1), BETWEEN), watch=watch, until_s=4) == [3]
    for progress, first_s in ((2, 5), (3, 5)):
        seen = (RUNS, RankProgress(step("other", progress, 0.0), BETWEEN))
        began = [s for s in range(300) if watch.due(*seen, 1010.0 + 300 * progress + s)]
        assert began[0] == first_s
    seen = (RUNS, RankProgress(step("other", 4, 0.0), BETWEEN))
    assert next(s for s in range(20) if watch.due(*seen, 2300.0 + s)) == 3


def test_a_rank_stands_since_its_last_move_and_not_since_that_was_seen():
    watch = HangWatch()
    watch.due(RUNS, RankProgress(step("other", 1, 0.0)), 1000.0)
    watch.due(RUNS, RankProgress(step("other", 2, 0.75)), 1001.0)
    assert watch.since_s == 1000.25
    watch.due(RUNS, RankProgress(step("other", 3, 6.0)), 1002.0)  # moved by what has no age
    assert watch.since_s == 1001.0


def transfer(posted, unfinished=0, held=0):
    return (wire.TransferHead("default", 1, 0, 1, posted, unfinished, 0.0, held),)


def test_a_rank_that_sends_and_receives_moves():
    watch = HangWatch()
    for second in range(100):
        assert not watch.due(
            RUNS, RankProgress(step(), BETWEEN, transfer(second // 2)), float(second)
        )
    assert watch.due(RUNS, RankProgress(step(), BETWEEN, transfer(49)), 102.0)


def test_a_rank_inside_of_its_first_transfer_is_looked_at_soon():
    watch = HangWatch()
    inside = RankProgress(None, (), transfer(1, 1, 1))
    assert [s for s in range(10) if watch.due(RUNS, inside, float(s))] == [3, 5, 7]


def test_a_rank_that_is_traced_is_left_alone():
    assert looks(replace(STOPPED, tracer=wire.Tracer(9, "gdb")), RankProgress(step())) == []


USER = Call("Deadlock.log_step", "/job/train.py", 66)
MAIN = Call("main", "/job/train.py", 90)


def lib(path, name="f"):
    return Call(name, f"{SITE}/{path}", 1)


def std(path, name="f"):
    return Call(name, f"{STDLIB}/{path}", 1)


C10D, MESH = "torch/distributed/distributed_c10d.py", "torch/distributed/device_mesh.py"


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
        ([lib(C10D, "barrier"), lib(C10D, "_new_group_with_tag"), lib(C10D, "new_group")],
         Doing.GROUP),
        ([lib(C10D, "_store_based_barrier"), lib(C10D, "init_process_group")], Doing.GROUP),
        ([lib("torch/distributed/rendezvous.py", "_create_c10d_store"),
          lib(C10D, "init_process_group"), lib("torch/distributed/c10d_logger.py", "wrapper")],
         Doing.STORE),
        ([lib(MESH, "DeviceMesh._setup"), lib(MESH, "DeviceMesh.__init__")], Doing.GROUP),
        ([lib(MESH, "DeviceMesh.get_group")], Doing.COLLECTIVE),
        ([lib("torchft/process_group.py", "create_store_client"),
          lib("torchft/process_group.py", "ProcessGroupWrapper.configure")], Doing.STORE),
        ([lib("torchft/process_group.py", "ProcessGroupWrapper.configure")], Doing.GROUP),
        ([lib("torchft/manager.py", "Manager.__init__")], Doing.COLLECTIVE),
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
    ("inside", "name"),
    [
        ([], None),
        ([std("threading.py", "Condition.wait"), std("queue.py", "Queue.get")], "get"),
        ([lib(C10D, "barrier"), lib("torch/distributed/c10d_logger.py", "_log.<locals>.wrapper")],
         "barrier"),
        ([lib(C10D, "new_group"), Call("Forming.<locals>.wrapper", stacks.__file__, 3)],
         "new_group"),
        ([lib("torch/_tensor.py", "Tensor.backward")], "backward"),
        ([lib("torchft/manager.py", "Manager.__init__")], "Manager"),
        ([std("contextlib.py", "ContextDecorator.__call__.<locals>.inner")], None),
        ([lib("torch/_ops.py", "load"), lib("torch/__init__.py", "<module>"),
          Call("_find_and_load", "<frozen importlib._bootstrap>", 1)], None),
    ],
    ids=["C", "stdlib", "torch's decorator", "ours", "method", "a class", "a decorator", "import"],
)  # fmt: skip
def test_a_witness_names_the_function_that_the_users_line_calls(inside, name):
    witness = StandstillWitness()
    witness.add(StackSample((*inside, USER, MAIN), 100.0), (1,), waits=False)
    assert witness.witness((1,), 100.0).call == name


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


@pytest.mark.parametrize(
    ("thread", "does"), [(None, Doing.COLLECTIVE), ("async_quorum_0", Doing.UNKNOWN)]
)
def test_a_thread_behind_a_main_one_that_waits_for_others_does_not_wait_for_them(thread, does):
    witness = StandstillWitness()
    witness.add(StackSample((USER, MAIN), 100.0, None, thread), (1,), waits=True)
    seen = witness.witness((1,), 100.0)
    assert (seen.thread, seen.doing) == (thread, does)


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


def test_a_dead_rank_keeps_where_it_stood_and_what_it_waited_in(page, bench):
    enter(page, page.group_row("default", 2))
    page.begin_wait(layout.WAIT_COMMIT)
    bench.process.state = "T"
    bench.box.tick()
    bench.process.dead = True
    state = bench.box.state()
    assert (str(state.witness.frame), state.witness.samples) == ("main (train.py:1)", 1)
    assert ([head.inside for head in state.heads], state.step.waits_in) == ([2], "commit")
    assert "witness      main (train.py:1); doing " in answer_text(state, 20)


def test_a_rank_that_moved_before_its_end_did_not_stand_there(page, bench):
    bench.process.state = "T"
    bench.box.tick()
    page.change_phase(page.phase_id("forward"))
    bench.process.dead = True
    assert bench.box.state().witness is None


def test_where_py_spy_cannot_look_what_the_beat_wrote_since_is_the_sample(page, bench):
    bench.stacks.error = "py-spy failed: Permission denied"
    bench.process.state = "T"
    bench.box.tick()
    assert bench.box.state().witness is None
    bench.box._hangs = HangWatch()
    bench.box._hangs.due(RUNS, bench.box._progress(RUNS), 0.0)
    page.write_note(layout.NOTE_STACKS, 'Thread 7: "MainThread"\n    A.run (train.py:7)\n')
    bench.box.tick()
    assert str(bench.box.state().witness.frame) == "A.run (train.py:7)"


def test_py_spy_looks_at_the_thread_that_trains_as_the_beat_wrote(page, bench):
    page.write_note(layout.NOTE_STACKS, 'Thread 9: "TrainingThread"\n    A.run (train.py:7)\n')
    bench.process.state = "T"
    bench.box.tick()
    assert (bench.stacks.trains, bench.process.activity.trains) == (9, "9")
    assert bench.process.syscall_of == bench.stacks.number, "9 has ended: as the look, so the call"


def test_a_rank_that_waits_for_others_is_told_as_such(page, bench):
    enter(page, page.group_row("default", 2))
    bench.process.state = "T"
    bench.box.tick()
    assert bench.box.state().witness.doing is Doing.COLLECTIVE
