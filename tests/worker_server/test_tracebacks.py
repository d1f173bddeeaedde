"""Which exception ended a process and where in the user's code, from what was printed."""

from __future__ import annotations

import os
import sysconfig

import pytest

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank import last_words
from lightkeeper.worker_server.sidecar.last_words import crashed, last_raised, terminated
from lightkeeper.worker_server.sidecar.stacks import Call, Origin, frame_of, innermost, origin

TORCH = "/venv/lib/python3.11/site-packages/torch/utils/data"
STDLIB = sysconfig.get_path("stdlib")
PLAIN = """Traceback (most recent call last):
  File "/job/train.py", line 15, in <module>
    main()
  File "/job/model.py", line 7, in Net.forward
    return self.head(x)
           ^^^^^^^^^^^^
  File "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1773, in _call_impl
    return forward_call(*args, **kwargs)
RuntimeError: shape mismatch: expected 65, got 64
hint: look at the head
"""
CAUGHT_IN_A_WORKER = f"""Traceback (most recent call last):
  File "/job/train.py", line 12, in train
    for batch in loader:
  File "{TORCH}/dataloader.py", line 1567, in _process_data
    data.reraise()
ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "{TORCH}/_utils/fetch.py", line 54, in <listcomp>
    data = [self.dataset[idx] for idx in possibly_batched_index]
            ~~~~~~~~~~~~^^^^^
  File "/job/rows.py", line 10, in parse
    raise ValueError(f"bad row {{i}}")
ValueError: bad row 0

"""
KILLED_WORKER = f"""Traceback (most recent call last):
  File "{TORCH}/dataloader.py", line 1291, in _try_get_data
    data = self._data_queue.get(timeout=timeout)
  File "{STDLIB}/threading.py", line 331, in wait
    gotit = waiter.acquire(True, timeout)
RuntimeError: DataLoader worker (pid 25522) is killed by signal: Killed. 

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/job/train.py", line 12, in train
    for batch in loader:
  File "{TORCH}/dataloader.py", line 1304, in _try_get_data
    raise RuntimeError(
RuntimeError: DataLoader worker (pid(s) 25522) exited unexpectedly
"""  # noqa: W291  as torch prints it


IN_QUEUE = f"""Traceback (most recent call last):
  File "{TORCH}/a.py", line 1, in a
  File "{STDLIB}/queue.py", line 2, in get
_queue.Empty
"""
SYNTAX = """Traceback (most recent call last):
  File "/job/a.py", line 3
    x =
       ^
SyntaxError: invalid syntax
"""


@pytest.mark.parametrize(
    ("text", "exception", "frame"),
    [
        (PLAIN, "RuntimeError: shape mismatch: expected 65, got 64", "Net.forward (model.py:7)"),
        (CAUGHT_IN_A_WORKER, "ValueError: bad row 0", "parse (rows.py:10)"),
        (KILLED_WORKER, "RuntimeError: DataLoader worker (pid 25522) is killed by signal: Killed",
         "train (train.py:12)"),
        ("noise\n" + "".join(f"[rank1]: {line}\n" for line in PLAIN.splitlines()),
         "RuntimeError: shape mismatch: expected 65, got 64", "Net.forward (model.py:7)"),
        (IN_QUEUE, "_queue.Empty", "a (a.py:1)"),
        (SYNTAX, "SyntaxError: invalid syntax",
         "<module> (a.py:3)"),
    ],
    ids=["plain", "in a worker", "killed worker", "torch's prefix", "nothing of the user's",
         "syntax"],
)  # fmt: skip
def test_a_traceback_tells_exception_and_innermost_user_frame(text, exception, frame):
    raised = last_raised(text)
    assert (raised.exception, str(raised.frame)) == (exception, frame)


@pytest.mark.parametrize(
    "text", ["", "all is well\n", 'Traceback (most recent call last):\n  File "/a.py", line 1, in'],
    ids=["empty", "none", "cut"],
)  # fmt: skip
def test_what_is_no_whole_traceback_tells_nothing(text):
    assert last_raised(text) is None


def test_what_a_cpp_runtime_and_faulthandler_print_is_read():
    said = (
        "[W] x\nterminate called after throwing an instance of 'c10::DistBackendError'\n"
        "  what():  [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)\n"
    )
    assert terminated(said) == (
        "c10::DistBackendError: [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=7)"
    )
    crash = crashed(
        "Fatal Python error: Segmentation fault\n\n"
        "Thread 0x00007f (most recent call first):\n  File \"/job/other.py\", line 3 in spin\n\n"
        "Current thread 0x00007e (most recent call first):\n"
        f'  File "{STDLIB}/ctypes/__init__.py", line 519 in string_at\n'
        '  File "/job/kernels.py", line 42 in launch\n  File "/job/train.py", line 9 in main\n\n'
        "Extension modules: torch._C\n"
    )  # fmt: skip
    assert crash.exception == "Fatal Python error: Segmentation fault"
    assert str(crash.frame) == "launch (kernels.py:42)"


SITE = "/venv/lib/python3.11/site-packages"
C10D = f"{SITE}/torch/distributed/distributed_c10d.py:all_reduce"
USERS = "/job/train.py:step"
PAIR = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553]"
UNBOUND = "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78]"
LISTENS = "torch.distributed.DistNetworkError: The server socket has failed to listen on any"


def raised(exception, *places):
    """A traceback of calls, the outermost first, as Python prints it."""
    lines = ["Traceback (most recent call last):"]
    for place in places:
        path, _, function = place.rpartition(":")
        lines += [f'  File "{path}", line 7, in {function}', "    x()"]
    return "\n".join([*lines, exception, ""])


@pytest.mark.parametrize(
    ("text", "whose"),
    [
        (raised(f"RuntimeError: {PAIR} Connection closed by peer [10.0.0.1]:4", USERS, C10D), True),
        (raised(f"RuntimeError: {UNBOUND} Timed out waiting 3000ms for recv", USERS), True),
        (raised(f"RuntimeError: {PAIR} Read error", USERS,
                f"{SITE}/torch/_tensor.py:Tensor.backward",
                f"{SITE}/torch/autograd/graph.py:_engine_run_backward"), True),
        (raised("RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 3000 ms\n"
                f" Original exception: \n{PAIR} Connection closed", USERS, C10D), True),
        (raised("RuntimeError: [Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 3000 ms",
                USERS, C10D.replace("all_reduce", "monitored_barrier")), True),
        (raised("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251",
                USERS, C10D), True),
        (raised("torch.distributed.DistStoreError: wait timeout after 3000ms, keys: /k", USERS),
         True),
        (raised("torch.distributed.DistNetworkError: The client socket has timed out", USERS),
         True),
        (raised(f"{LISTENS} address. port: 4, code: -98, name: EADDRINUSE, message: in use", USERS,
                f"{SITE}/torch/distributed/rendezvous.py:_create_c10d_store"), False),
        (raised("_pickle.UnpicklingError: invalid load key", USERS, C10D), True),
        (raised("RuntimeError: ProcessGroupGloo::scatter: invalid tensor size at index 0", USERS,
                C10D), None),
        (raised("RuntimeError: Application timeout caused pair closure", USERS,
                f"{SITE}/torch/autograd/graph.py:_engine_run_backward"), None),
        (raised("TypeError: Invalid function argument", USERS, C10D), False),
        (raised("ValueError: Group is not registered", USERS, C10D), False),
        (raised("AssertionError: world_size must be positive", USERS, C10D), False),
        (raised("torch.OutOfMemoryError: CUDA out of memory.", USERS, C10D), False),
        (raised("KeyboardInterrupt", USERS, C10D), False),
        (raised("RuntimeError: Expected to have finished reduction", USERS,
                f"{SITE}/torch/nn/parallel/distributed.py:_pre_forward"), False),
        (raised("RuntimeError: got mixed torch.Tensor and DTensor", USERS,
                f"{SITE}/torch/distributed/tensor/_dispatch.py:dispatch"), False),
        (raised("RuntimeError: mat1 and mat2 shapes cannot be multiplied", USERS,
                f"{SITE}/torch/nn/modules/linear.py:forward"), False),
        (raised("AssertionError", USERS, f"{SITE}/torchft/ddp.py:_comm_hook"), True),
        (raised("RuntimeError: should_commit failed 3 times", USERS,
                f"{SITE}/torchft/manager.py:should_commit"), True),
        (raised("TimeoutError: timed out", USERS, f"{SITE}/torchft/manager.py:_async_quorum",
                f"{STDLIB}/concurrent/futures/_base.py:result"), True),
        (raised("urllib.error.HTTPError: HTTP Error 400: bad", USERS,
                f"{SITE}/torchft/checkpointing/http_transport.py:recv_checkpoint",
                f"{STDLIB}/urllib/request.py:urlopen"), True),
        (raised("ValueError: sync_every must divide", USERS, f"{SITE}/torchft/local_sgd.py:f"),
         False),
        (raised("KeyError: 'model'", f"{SITE}/torchft/manager.py:load", "/job/a.py:load"), False),
        (raised("RuntimeError: in our own wrapper", USERS, C10D, f"{last_words.__file__}:f"), None),
        (raised("requests.exceptions.ReadTimeout: Read timed out", USERS,
                f"{SITE}/requests/adapters.py:send"), False),
        (raised("TimeoutError: timed out", USERS, f"{STDLIB}/socket.py:recv_into"), False),
        (raised("ConnectionResetError: [Errno 104] Connection reset by peer", USERS), False),
        (CAUGHT_IN_A_WORKER, False),
        (KILLED_WORKER, False),
        (IN_QUEUE, False),
        (raised("KeyError: 1", f"{STDLIB}/queue.py:get"), None),
    ],
)  # fmt: skip
def test_whose_an_exception_is_depends_on_its_type_and_on_where_it_was_raised(text, whose):
    assert last_raised(text).of_peers is whose


def test_of_a_chain_the_last_exception_counts_or_what_it_says_was_its_cause():
    lost = raised(f"RuntimeError: {PAIR} Connection closed", USERS, C10D)
    own = raised("job.StepError: at step 7", USERS)
    cause = "\nThe above exception was the direct cause of the following exception:\n\n"
    context = "\nDuring handling of the above exception, another exception occurred:\n\n"
    assert last_raised(lost + cause + own).of_peers is True
    assert last_raised(lost + cause + own + cause + own).of_peers is True
    assert last_raised(lost + context + own).of_peers is False
    assert last_raised(own + cause + lost).of_peers is True
    assert last_raised(own + cause + own).of_peers is False


def test_what_is_logged_after_an_exception_does_not_say_whose_it_is():
    logged = "[rank1]:[W1126 ProcessGroupNCCL.cpp:1496] Warning: destroy was not called\n"
    text = raised("ValueError: no", USERS) + logged + "a\nb\n" + f"{PAIR} later\n"
    assert last_raised(text).of_peers is False


def test_an_exception_that_another_rank_raised_at_a_checkpoint_is_that_ranks():
    """torch.distributed.checkpoint raises on every rank what was raised on any."""
    gathered = raised(
        "torch.distributed.checkpoint.api.CheckpointException: CheckpointException "
        "ranks:dict_keys([1, 2])", USERS, f"{SITE}/torch/distributed/checkpoint/utils.py:all_reduce"
    )  # fmt: skip
    for rank, place in ((1, "/job/one.py:write"), (2, "/job/two.py:write")):
        full = raised(f"OSError: [Errno 28] No space left on {rank}", place)
        gathered += full.replace("call last):", f"call last): (RANK {rank})")
    seen = [last_raised(gathered, rank) for rank in range(3)]
    assert [(last.exception[-1], last.frame.file, last.of_peers) for last in seen] == [
        ("2", "two.py", True), ("1", "one.py", False), ("2", "two.py", False),
    ]  # fmt: skip


def test_a_traceback_whose_start_was_cut_off_is_read_from_there():
    text = "... cut\n    half a line\n" + raised("KeyError: 3", "/job/a.py:f").partition("\n")[2]
    assert last_raised(text) == (
        "KeyError: 3", wire.Frame("f", "a.py", 7), False, 0, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("path", "whose"),
    [
        ("/job/train.py", Origin.USER),
        ("train.py", Origin.USER),
        ("<string>", Origin.USER),
        ("/venv/lib/python3.11/site-packages/torchtitan/train.py", Origin.INSTALLED),
        ("/usr/lib/python3/dist-packages/numpy/core.py", Origin.INSTALLED),
        ("/venv/lib/python3.11/site-packages/torchft/manager.py", Origin.MACHINERY),
        ("torchft/manager.py", Origin.MACHINERY),
        ("threading.py", Origin.STANDARD),
        ("<frozen runpy>", Origin.STANDARD),
        ("<eval_with_key>.3", Origin.STANDARD),
        ("/tmp/torchinductor_me/ab/cab.py", Origin.STANDARD),
        (os.__file__, Origin.STANDARD),
        (last_words.__file__, Origin.MACHINERY),
    ],
)
def test_a_file_is(path, whose):
    assert origin(path) is whose


def test_a_generator_or_a_lambda_is_told_by_the_function_that_it_stands_in():
    calls = [
        Call("<genexpr>", "/job/a.py", 3), Call("Loader.rows", "/job/a.py", 4),
        Call("Loader.rows.<locals>.<lambda>", "/job/a.py", 5),
        Call("main.<locals>.helper", "/job/a.py", 6), Call("<module>", "/job/a.py", 7),
    ]  # fmt: skip
    functions = [frame_of(calls, index).function for index in range(len(calls))]
    assert functions == ["Loader.rows", "Loader.rows", "Loader.rows", "helper", "<module>"]
    assert innermost([]) is None


def test_in_a_pool_the_librarys_frame_tells_more_than_the_pools():
    pool = [
        Call("Condition.wait", f"{STDLIB}/threading.py", 3),
        Call("save", "/venv/lib/python3.11/site-packages/torch/distributed/checkpoint/s.py", 2),
        Call("_WorkItem.run", f"{STDLIB}/concurrent/futures/thread.py", 58),
    ]
    assert innermost(pool) == 1
    assert innermost([*pool, Call("f", "/venv/lib/python3.11/site-packages/pools/p.py", 1)]) == 3


class Deadlock:
    def log_step(self):
        raise KeyError("step")


def test_a_noted_traceback_names_classes_in_every_link_of_its_chain():
    try:
        try:
            Deadlock().log_step()
        except KeyError as exc:
            raise RuntimeError("no log") from exc
    except RuntimeError as exc:
        text = "".join(last_words._qualified(exc).format())
    assert "in Deadlock.log_step" in text
    assert text.endswith("RuntimeError: no log\n")
    assert last_raised(text).frame == wire.Frame(
        "test_a_noted_traceback_names_classes_in_every_link_of_its_chain", "test_tracebacks.py",
        test_a_noted_traceback_names_classes_in_every_link_of_its_chain.__code__.co_firstlineno + 5,
    )  # fmt: skip


def test_a_short_path_is_an_installed_packages_where_that_is_installed(tmp_path, monkeypatch):
    (tmp_path / "lightning").mkdir()
    (tmp_path / "lightning" / "loops.py").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert origin("lightning/loops.py") is Origin.INSTALLED
    assert origin("mine/loops.py") is Origin.USER
