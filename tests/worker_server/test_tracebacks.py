"""Which exception ended a process and where in the user's code, from what was printed."""

from __future__ import annotations

import os
import sysconfig

import pytest

from worker_server import wire
from worker_server.rank import last_words
from worker_server.sidecar.last_words import crashed, last_raised, terminated
from worker_server.sidecar.stacks import Call, Origin, frame_of, innermost, origin

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
