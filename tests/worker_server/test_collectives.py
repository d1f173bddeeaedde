"""The ring of a rank alone in its world: what each call leaves behind, and what it must not do."""

from __future__ import annotations

import _thread
import contextlib
import gc
import inspect
import pickle
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.waiting import wait_for

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch.distributed import checkpoint  # noqa: E402
from torch.distributed import distributed_c10d as c10d  # noqa: E402

from lightkeeper.worker_server.rank import collectives  # noqa: E402
from tests.worker_server.pages import NOW  # noqa: E402

pytestmark = [
    pytest.mark.integration,  # torch
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture
def reporter(recording):
    recording.begin_step(7)
    return recording


@pytest.fixture
def ring(reporter, reader):
    return lambda: reader.ring(NOW)[0]


@pytest.fixture
def world():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def t(*shape):
    return torch.ones(*shape)


OURS = f"{Path(collectives.__file__).parents[1]}/"
CALLS = {
    "all_reduce": (
        lambda: dist.all_reduce(t(4), op=dist.ReduceOp.MAX), ((4,),), ((4,),), "MAX", None),
    "broadcast": (lambda: dist.broadcast(t(4), 0), ((4,),), ((4,),), None, 0),
    "reduce": (lambda: dist.reduce(t(4), group_dst=0), ((4,),), ((4,),), "SUM", 0),
    "all_gather": (lambda: dist.all_gather([t(4)], t(4)), ((4,),), ((4,),), None, None),
    "all_gather_into_tensor": (
        lambda: dist.all_gather_into_tensor(t(4), input_tensor=t(4)), ((4,),), ((4,),), None, None),
    "reduce_scatter": (lambda: dist.reduce_scatter(t(4), [t(4)]), ((4,),), ((4,),), "SUM", None),
    "reduce_scatter_tensor": (
        lambda: dist.reduce_scatter_tensor(t(4), t(4)), ((4,),), ((4,),), "SUM", None),
    "all_to_all_single": (lambda: dist.all_to_all_single(t(4), t(4)), ((4,),), ((4,),), None, None),
    "gather": (lambda: dist.gather(t(4), [t(4)], dst=0), ((4,),), ((4,),), None, 0),
    "scatter": (lambda: dist.scatter(t(4), [t(4)], src=0), ((4,),), ((4,),), None, 0),
    "barrier": (lambda: dist.barrier(), (), (), None, None),  # noqa: PLW0108
}  # fmt: skip


@pytest.mark.parametrize("op", CALLS)
def test_a_collective_leaves_one_entry_with_all_that_matters(reporter, ring, world, op):
    call, sizes_in, sizes_out, reduce_op, root = CALLS[op]
    call()
    (entry,) = ring()
    assert (entry.group, entry.seq, entry.op) == ("default", 1, op)
    assert (entry.sizes_in, entry.sizes_out) == (sizes_in, sizes_out)
    assert (entry.reduce_op, entry.root) == (reduce_op, root)
    assert entry.dtype == (None if op == "barrier" else "float32")
    assert (entry.step, entry.attempt, entry.nth) == (7, 1, 0)
    assert entry.site.startswith("worker_server/test_collectives.py:")
    assert entry.exit_age_s is not None
    assert entry.error is None
    assert not entry.is_async


def test_an_async_collective_is_inside_until_its_wait_returns(reporter, ring, world):
    work = dist.all_reduce(t(4), async_op=True)
    assert isinstance(work, dist.Work)
    assert (ring()[0].exit_age_s, ring()[0].is_async) == (None, True)
    work.wait()
    assert ring()[0].exit_age_s is not None
    assert work.is_completed()
    assert work.get_future().wait() is not None


def test_an_exception_passes_untouched_and_is_on_record(reporter, ring, world):
    with pytest.raises(ValueError, match="both") as plain:
        collectives._originals["broadcast"](t(4), src=0, group_src=0)
    with pytest.raises(ValueError, match="both") as recorded:
        dist.broadcast(t(4), src=0, group_src=0)
    assert str(plain.value) == str(recorded.value)
    (entry,) = ring()
    assert entry.error == " ".join(f"ValueError: {recorded.value}".split())
    assert entry.exit_age_s is not None


def test_a_wrong_call_fails_as_torch_lets_it_fail(reporter, ring, world):
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        dist.all_reduce()
    with pytest.raises(TypeError, match="nonsense"):
        dist.all_reduce(t(1), nonsense=1)
    with pytest.raises(TypeError):
        dist.all_reduce("not a tensor")
    dist.all_reduce(t(2))
    assert ring()[-1].sizes_in == ((2,),)


def test_a_call_before_init_fails_as_torch_lets_it_fail_and_leaves_no_entry(reporter, ring):
    with pytest.raises(ValueError, match="init_process_group"):
        dist.all_reduce(t(1))
    assert ring() == ()


def test_a_collective_made_of_others_is_one_entry(reporter, ring, world):
    dist.monitored_barrier()
    dist.all_gather_into_tensor(t(4), t(4))
    assert [entry.op for entry in ring()] == ["monitored_barrier", "all_gather_into_tensor"]


def test_groups_count_for_themselves_and_bear_their_description(reporter, ring, world):
    tp = dist.new_group([0], group_desc="tp")
    for group in (None, tp, dist.group.WORLD, tp):
        dist.all_reduce(t(1), group=group)
    seen = [(entry.group, entry.seq) for entry in ring() if entry.op == "all_reduce"]
    assert seen == [("default", 1), ("tp", 1), ("default", 2), ("tp", 2)]


def test_a_new_world_goes_on_counting_as_default(reporter, ring):
    for _ in range(2):
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        dist.all_reduce(t(1))
        dist.destroy_process_group()
    assert [(entry.group, entry.seq) for entry in ring()] == [("default", 1), ("default", 2)]


def test_point_to_point_ops_are_accepted_by_p2pop_whenever_they_were_imported(reporter, world):
    for op in (dist.isend, c10d.irecv, collectives._originals["isend"]):
        assert dist.P2POp(op, t(1), 0).op in (dist.isend, dist.irecv)


def test_installing_again_wraps_nothing_twice(reporter):
    before = dist.all_reduce
    collectives.install(reporter)
    assert dist.all_reduce is before
    assert c10d.all_reduce is before


def test_a_function_whose_arguments_somebody_hides_is_left_alone(reporter, monkeypatch):
    def hides(*args, **kwargs):
        raise AssertionError

    monkeypatch.setattr(collectives, "_originals", {})
    monkeypatch.setattr(collectives, "_TENSORS", {"barrier": ("", "")})
    monkeypatch.setattr(c10d, "barrier", hides)
    collectives.install(reporter)
    assert c10d.barrier is hides


@pytest.mark.parametrize("op", collectives._TENSORS)
def test_signatures_stay(reporter, op):
    assert inspect.signature(getattr(dist, op, getattr(c10d, op))) == inspect.signature(
        collectives._originals[op]
    )
    assert getattr(c10d, op).__name__ == op
    assert pickle.loads(pickle.dumps(getattr(c10d, op))) is getattr(c10d, op)


@pytest.mark.parametrize("name", collectives._TENSORS)
def test_the_argument_table_agrees_with_torch(name):
    function = collectives._originals.get(name, getattr(c10d, name))
    op, names = collectives._Op(name, function), list(inspect.signature(function).parameters)
    assert {"group", *filter(None, collectives._TENSORS[name])} <= set(names)
    assert (op.root == 99) == (op.group_root == 99) == ({"src", "dst"}.isdisjoint(names))
    assert (op.reduce_op != 99) == ("op" in names)
    assert (op.tag != 99) == ("tag" in names) == (op.name.removeprefix("i") in ("send", "recv"))
    assert op.tag == 99 or op.sends == ("dst" in names)


def test_a_failure_inside_the_recording_never_reaches_the_caller(
    reporter, ring, world, monkeypatch
):
    monkeypatch.setattr(reporter.page, "enter", lambda *a: 1 / 0)
    with pytest.warns(RuntimeWarning, match="ZeroDivisionError"):
        dist.all_reduce(t(4))
    x = t(4)
    dist.all_reduce(x)
    assert x.tolist() == [1, 1, 1, 1]
    assert ring() == ()


def test_after_the_attach_is_over_the_functions_are_torchs_own_again(reporter, ring, world):
    collectives._stop()
    dist.all_reduce(t(4))
    assert ring() == ()


def test_a_thread_that_calls_a_collective_and_nothing_else_is_recorded(reporter, ring, world):
    """As autograd's threads call a hook: there is no frame of Python's below."""
    _thread.start_new_thread(dist.all_reduce, (t(4),))
    wait_for(lambda: ring() and ring()[-1].exit_age_s is not None, within_s=10, what="a record")
    dist.all_reduce(t(4))
    assert [entry.site is None for entry in ring()] == [True, False]


# -- which thread, and where ----------------------------------------------------------------------


@pytest.fixture
def pool():
    with ThreadPoolExecutor(1) as executor:
        yield executor


def test_calls_of_two_threads_are_told_apart(reporter, ring, world, pool):
    dist.barrier()
    for _ in range(2):
        pool.submit(dist.barrier).result()
    threads = [entry.thread for entry in ring()]
    assert threads == [
        threading.get_native_id(),
        *[pool.submit(threading.get_native_id).result()] * 2,
    ]
    assert len(set(threads)) == 2


def test_threads_that_are_not_pythons_count_as_the_training_thread_whichever_that_is(
    reporter, ring, world, pool
):
    """Autograd's, which run hooks while the training thread waits for them in `backward`."""

    def call_in_a_thread_of_its_own():
        before = len(ring())
        _thread.start_new_thread(dist.barrier, ())
        wait_for(lambda: len(ring()) > before, within_s=10, what="a record")

    call_in_a_thread_of_its_own()
    pool.submit(reporter.page.trains_here).result()
    call_in_a_thread_of_its_own()
    trains = pool.submit(threading.get_native_id).result()
    assert [entry.thread for entry in ring()] == [threading.get_native_id(), trains]


def test_a_call_from_a_pool_names_the_line_of_the_program(reporter, ring, world, pool):
    def call():
        dist.barrier()

    pool.submit(call).result()
    line = call.__code__.co_firstlineno + 1
    assert ring()[0].site == f"worker_server/test_collectives.py:{line}"


def test_the_standard_library_is_no_call_site_where_it_calls_back(reporter, ring, world):
    with contextlib.ExitStack() as stack:
        stack.callback(dist.barrier)
        line = inspect.currentframe().f_lineno + 1
        stack.close()
    assert ring()[0].site == f"worker_server/test_collectives.py:{line}"


def test_where_the_program_is_not_on_the_stack_torchs_own_line_is_told(
    reporter, ring, world, pool, tmp_path
):
    """As in a checkpoint that torch saves in a thread of its own."""
    checkpoint.async_save({"w": t(4)}, checkpoint_id=tmp_path).result()
    saves = {(entry.site.partition(":")[0], entry.thread) for entry in ring()}
    assert len(saves) == 1
    assert saves.pop()[0] == "checkpoint/_async_thread_executor.py"
    pool.submit(dist.all_gather_object, [None], 1).result()
    assert ring()[-1].site.startswith("distributed/distributed_c10d.py:")


def test_a_function_of_torchs_that_a_pool_calls_itself_is_told_by_the_pools_line(
    reporter, ring, world, pool
):
    pool.submit(dist.barrier).result()
    assert ring()[0].site.startswith("futures/thread.py:")


def interrupted_at(nth, act):
    """Whether a KeyboardInterrupt came as the nth call into our code began."""
    left = nth

    def trace(frame, event, arg):
        nonlocal left
        if frame.f_code.co_filename.startswith(OURS):
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(former)
    return False


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_an_interrupt_anywhere_in_the_recording_leaves_the_next_call_on_record(
    reporter, ring, world, is_async
):
    def call():
        work = dist.all_reduce(t(1), async_op=is_async)
        if work is not None:
            work.wait()

    call()
    nth = 1
    while interrupted_at(nth, call):
        dist.barrier()
        assert ring()[-1].op == "barrier", f"after an interrupt in call {nth}"
        assert not reporter.page._waits, f"after an interrupt in call {nth}"
        nth += 1
    assert nth > 3


@pytest.mark.parametrize("trouble", [RecursionError, MemoryError])
def test_a_stack_or_memory_that_was_used_up_for_a_moment_does_not_end_the_recording(
    reporter, ring, world, monkeypatch, trouble
):
    def fail(*_):
        raise trouble

    with monkeypatch.context() as patch:
        patch.setattr(reporter.page, "enter", fail)
        dist.all_reduce(t(1))
    dist.barrier()
    assert [entry.op for entry in ring()] == ["barrier"]


def test_sizes_that_cannot_be_kept_are_torchs_concern_and_do_not_end_the_recording(
    reporter, ring, world
):
    class Symbolic:
        shape = ([],)
        dtype = torch.float32

    with pytest.raises(TypeError):
        dist.all_gather([Symbolic()], t(1))
    dist.barrier()
    assert ring()[-1].op == "barrier"


def test_code_that_is_made_without_end_is_not_kept(reporter, world):
    made = []
    for n in range(5000):
        space = {"call": dist.barrier}
        exec(compile(f"def f{n}(): call()", "/made.py", "exec"), space)
        space[f"f{n}"]()
        made.append(weakref.ref(space[f"f{n}"].__code__))
    del space
    gc.collect()
    assert sum(code() is not None for code in made) <= 4096
