"""Whose stacks are given, how they are marked, and how often the rank is stopped for them."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from contextlib import contextmanager

import pytest

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank import last_words
from lightkeeper.worker_server.rank.last_words import stacks_text
from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.sidecar import RefusalError, SilentError
from lightkeeper.worker_server.sidecar.stacks import Stacks, first_in_note, folded
from tests.waiting import wait_for
from tests.worker_server.doubles import Bench

NOTE = 'Thread 7: "MainThread"\n    main (train.py:7)\n'


@pytest.fixture
def bench(page, tmp_path):
    return Bench(tmp_path / "a.page")


@contextmanager
def thread_of(inner, name):
    """A thread that has called `inner`, which waits then."""
    ready, over = threading.Event(), threading.Event()

    def wait():
        ready.set()
        over.wait(10)

    thread = threading.Thread(target=inner, args=(wait,), name=name)
    thread.start()
    ready.wait(10)
    try:
        yield thread
    finally:
        over.set()
        thread.join()


def by_the_beat():
    taken = []
    beat = threading.Thread(target=lambda: taken.append(stacks_text()), name="beat")
    beat.start()
    beat.join()
    return taken[0]


def test_the_beats_text_names_threads_and_calls_newest_first():
    def inner(wait):
        wait()

    with thread_of(inner, "loader") as thread:
        text = by_the_beat()
    assert text.startswith(f'Thread {threading.main_thread().native_id}: "MainThread"\n')
    loader = text[text.index(f'Thread {thread.native_id}: "loader"') :].splitlines()
    called = [line.split(" (")[0].rsplit(".", 1)[-1].strip() for line in loader[1:7]]
    assert called[:4] == ["wait", "wait", "wait", "inner"]
    assert "(tests/worker_server/test_stacks.py:" in text
    assert '"beat"' not in text


def test_a_recursion_without_end_does_not_crowd_out_the_others():
    def deep(wait, n=500):
        deep(wait, n - 1) if n else wait()

    with thread_of(deep, "deep"):
        text = stacks_text()
    assert text.count("deep (") < 50
    assert "    ... older calls\n" in text


def test_a_thread_that_trains_beside_the_main_one_comes_first(page, monkeypatch):
    """Ray trains in a thread; the main one waits for what Ray asks of it."""

    def train(wait):
        page.trains_here()
        wait()

    monkeypatch.setattr(last_words, "_page", page)
    with thread_of(train, "TrainingThread") as thread:
        assert first_in_note(by_the_beat()).number == thread.native_id
    assert first_in_note(by_the_beat()).number == os.getpid(), "it has ended"


def test_frames_of_ours_between_those_of_a_program_are_one_line():
    ours = "    wrapper (lightkeeper/worker_server/rank/torchft.py:119)\n"
    at = "    wait_quorum (torchft/manager.py:626)\n"
    far = "    _timed (/opt/venv/lightkeeper/worker_server/rank/torchft.py:7)\n"
    main = "    main (train.py:90)\n"
    beat = 'Thread 9 (idle): "lightkeeper-beat"\n    wait (threading.py:3)\n' + ours
    head = 'Thread 7 (idle): "MainThread"\n'
    assert folded(f"{head}{at}{ours}{far}{main}{ours}{main}\n{beat}") == (
        f"{head}{at}    (2 frames of lightkeeper)\n"
        f"{main}    (1 frame of lightkeeper)\n{main}\n{beat}"
    )
    alone = f"{head}{ours}{main}"
    assert folded(alone) == alone  # it stands in ours


def test_where_py_spy_cannot_look_the_ranks_own_stacks_are_given_with_the_reason(page, bench):
    bench.stacks.error = "py-spy failed: Permission denied"
    page.write_note(layout.NOTE_STACKS, NOTE)
    lines = bench.box.stacks(native=True).text.splitlines()
    assert lines[0] == "# py-spy failed: Permission denied."
    assert "s ago" in lines[1]
    assert "no native frames" in lines[2]
    assert lines[3:] == NOTE.splitlines()


def test_without_either_the_answer_says_what_is_missing_and_what_there_is_instead(bench):
    bench.stacks.error = "py-spy is not installed"
    with pytest.raises(SilentError, match=r"not installed\. Nor did the rank.*/v1/state has"):
        bench.box.stacks()


def test_after_death_all_that_was_kept_is_given_newest_first(page, bench, tmp_path):
    bench.box.stacks()
    page.write_note(layout.NOTE_STACKS, NOTE)
    crash = tmp_path / "a.crash"
    crash.write_text("Fatal Python error: Aborted\n")
    os.utime(crash, (time.time() + 60,) * 2)  # else within the file clock's grain of the note
    bench.process.dead = True
    heads = [line for line in bench.box.stacks().text.splitlines() if line.startswith("#")]
    assert [head.split(",")[0] for head in heads] == [
        "# by faulthandler", "# by the rank's own beat", "# by py-spy",
    ]  # fmt: skip
    assert all("before the rank died" in head for head in heads)


def test_a_dead_rank_of_which_nothing_is_known_is_gone(bench):
    bench.process.dead = True
    with pytest.raises(RefusalError, match="no stacks were taken before it died"):
        bench.box.stacks()


def test_stacks_of_a_hang_are_kept_without_pausing_the_rank(bench):
    bench.box.tick()
    bench.process.state = "T"
    bench.box.tick()
    bench.box.tick()
    assert (bench.stacks.looks, bench.stacks.calls) == (1, [])
    bench.process.dead = True
    assert "by py-spy" in bench.box.stacks().text


def test_a_rank_that_somebody_traces_is_not_attached_to(bench):
    bench.process.tracer = wire.Tracer(9, "gdb")
    bench.box.stacks()
    assert bench.stacks.calls == [(False, False)]


def test_who_traces_a_single_thread_is_looked_for_while_the_rank_hangs(bench):
    strace = bench.process.threads_tracer = wire.Tracer(9, "strace")
    bench.box.tick()
    assert bench.box.state().process.tracer is None
    bench.process.state = "T"
    bench.box.tick()
    assert bench.box.state().process.tracer == strace


def test_without_py_spy_the_answer_says_what_is_missing():
    with pytest.raises(SilentError, match=r"py-spy is not installed .*lightkeeper\[stacks\]"):
        Stacks(7, find=lambda: None).take(pause=True)


def test_a_py_spy_that_is_not_permitted_is_told_with_the_remedy(tmp_path):
    tool = FakePySpy(tmp_path, exit_code=1, pause="0", says="Error: Permission Denied: Try")
    with pytest.raises(SilentError, match=r"Permission Denied.*CAP_SYS_PTRACE"):
        Stacks(7, find=tool).take(pause=True)


class FakePySpy:
    """A program that counts its runs and takes a moment."""

    def __init__(self, folder, exit_code=0, pause="0.2", says="stacks"):
        self.runs = folder / "runs"
        self.tool = folder / "py-spy"
        self.tool.write_text(
            f'#!/bin/sh\necho "$@" >> {self.runs}\nsleep {pause}\necho {says}\nexit {exit_code}\n'
        )
        self.tool.chmod(0o755)

    def __call__(self):
        return str(self.tool)

    @property
    def count(self):
        return len(self.runs.read_text().splitlines())


def test_an_answer_younger_than_a_second_is_given_again_and_says_so(tmp_path):
    now = [100.0]
    tool = FakePySpy(tmp_path, pause="0")
    stacks = Stacks(7, tool, lambda: now[0])
    assert not stacks.take(pause=True).again
    now[0] += 0.9
    assert stacks.take(pause=True).again
    assert tool.count == 1
    assert not stacks.take(pause=True, native=True).again  # another question
    now[0] += 0.2
    assert not stacks.take(pause=True).again
    assert tool.count == 3


@pytest.mark.parametrize("exit_code", [0, 1], ids=["well", "failing"])
def test_requests_at_the_same_time_share_one_run(tmp_path, exit_code):
    tool = FakePySpy(tmp_path, exit_code)
    stacks = Stacks(7, tool)
    answers = []

    def ask():
        try:
            answers.append(stacks.take(pause=True).text)
        except SilentError:
            answers.append("error")

    threads = [threading.Thread(target=ask) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [("error" if exit_code else "stacks\n")] * 5
    assert tool.count == 1


THREADS = [
    {"os_thread_id": 9, "thread_name": "loader", "active": True, "owns_gil": True, "frames": []},
    {"os_thread_id": 7, "thread_name": "MainThread", "active": False, "owns_gil": False, "frames": [
        {"name": "Condition.wait", "filename": "/py/threading.py",
         "short_filename": "threading.py", "line": 331},
        {"name": "Deadlock.log_step", "filename": "/job/train.py", "short_filename": "train.py",
         "line": 66},
    ]},
]  # fmt: skip


def look(answer, trains=0):
    done = subprocess.CompletedProcess([], 0, json.dumps(answer), "")
    return Stacks(7, find=lambda: "py-spy", run=lambda *_, **__: done).look(trains)


def test_a_look_has_the_calls_of_the_main_thread_and_the_text_of_all():
    seen = look(THREADS)
    assert seen.main.calls[-1] == ("Deadlock.log_step", "/job/train.py", 66)
    assert not seen.owns_gil
    text = 'Thread 7 (idle): "MainThread"\n    Condition.wait (threading.py:331)\n'
    assert seen.taken.text.startswith(f'Thread 9 (active+gil): "loader"\n{text}')


def torchfts(number, name, function, *inside):
    frames = [
        *inside,
        {"name": f"Manager.{function}", "filename": f"{PACKAGES}torchft/manager.py",
         "short_filename": "manager.py", "line": 1},
    ]  # fmt: skip
    return {"os_thread_id": number, "thread_name": name, "active": False, "owns_gil": False,
            "frames": frames}  # fmt: skip


PACKAGES = "/venv/lib/python3.11/site-packages/"
WAITS = torchfts(7, "MainThread", "wait_quorum")
ASKED = {"name": "given", "filename": "/job/train.py", "short_filename": "train.py", "line": 33}
SENDS = {"name": "send_checkpoint", "filename": f"{PACKAGES}torchft/checkpointing/x.py",
         "short_filename": "x.py", "line": 2}  # fmt: skip


def test_behind_a_main_thread_that_waits_for_the_quorum_is_the_code_that_gives_the_state():
    seen = look([WAITS, torchfts(9, "async_quorum_0", "_async_quorum", ASKED)])
    assert seen.behind is not None
    assert (seen.behind.name, seen.behind.number) == ("async_quorum_0", 9)
    assert seen.behind.calls[0] == ("given", "/job/train.py", 33)


@pytest.mark.parametrize(
    "threads",
    [
        [WAITS, torchfts(9, "async_quorum_0", "_async_quorum")],
        [WAITS, torchfts(9, "async_quorum_0", "_async_quorum", SENDS)],
        [torchfts(7, "MainThread", "should_commit"),
         torchfts(9, "async_quorum_0", "_async_quorum", ASKED)],
        [WAITS, torchfts(9, "loader", "elsewhere", ASKED)],
    ],
    ids=["waits for the Lighthouse", "sends", "another wait", "another thread"],
)  # fmt: skip
def test_nobody_is_behind_a_wait_for_others(threads):
    assert look(threads).behind is None


@pytest.mark.parametrize("answer", [{}, [], [{"os_thread_id": 7}], [7], THREADS[:1]])
def test_an_answer_in_another_form_is_no_look(answer):
    with pytest.raises(SilentError, match="not understood"):
        look(answer)


def test_the_thread_of_a_note_is_its_first_the_one_that_trains():
    note = f'{NOTE}    <module> (my (old) train.py:9)\nThread 8: "loader"\n    f (x.py:1)\n'
    calls = (("main", "train.py", 7), ("<module>", "my (old) train.py", 9))
    assert first_in_note(note)[1:] == (7, calls)
    unnumbered = note.replace("Thread 7:", "Thread 0x7f:", 1)
    assert [first_in_note(text)[1:] for text in (unnumbered, "")] == [(0, calls), (0, ())]


@pytest.mark.parametrize(("trains", "function"), [(9, "other"), (0, "main"), (5, "main")])
def test_the_main_thread_of_a_look_is_the_one_that_trains(trains, function):
    threads = [torchfts(7, "MainThread", "main"), torchfts(9, "TrainingThread", "other")]
    main = look(threads, trains).main
    assert main.calls[0].function == f"Manager.{function}"
    assert main.number == (9 if trains == 9 else 7), "of which the system call is read"


def test_a_py_spy_that_cannot_even_be_killed_holds_nobody_for_ever():
    over, started = threading.Event(), []

    def hang(command, **_):
        started.append(command)
        over.wait(30)
        raise OSError("at last")

    stacks = Stacks(
        7, find=lambda: "py-spy", clock=iter(range(99)).__next__, limit_s=-0.9, run=hang
    )
    with pytest.raises(SilentError, match="took more than"):
        stacks.take(pause=True)
    with pytest.raises(SilentError, match="hangs in the kernel"):
        stacks.take(pause=True)
    assert len(started) == 1
    over.set()
    wait_for(lambda: not stacks._stuck.is_alive(), within_s=10, what="it comes back")
    with pytest.raises(SilentError, match="does not start: at last"):
        stacks.take(pause=True)
