"""The thread in which everything runs that the tick does not wait for."""

from __future__ import annotations

import queue
import threading

import pytest

from lightkeeper.monitor.background import BackgroundQueue, BackgroundWorker, backoff_s, in_thread
from tests.waiting import wait_for

NEVER_S = 1e6


class Work:
    """Every call is seen, and answers what the test says."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.called = queue.Queue()

    def __call__(self):
        answer = self.answers.pop(0) if self.answers else None
        self.called.put(answer)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def run():
    workers = []

    def start(work, after_crash_s=NEVER_S, every_s=None):
        worker = BackgroundWorker("test", work, after_crash_s=after_crash_s, every_s=every_s)
        workers.append(worker)
        worker.start()
        return worker

    yield start
    for worker in workers:
        worker.close(10)
        assert not worker._thread.is_alive()


def test_work_is_called_again_after_the_time_that_it_says(run):
    work = Work(0.0, 0.001, None)
    run(work)
    assert [work.called.get(timeout=10) for _ in range(3)] == [0.0, 0.001, None]


def test_work_that_says_nothing_is_called_every_so_often_also_after_a_crash(run):
    work = Work(None, ValueError("a bug"), None)
    run(work, after_crash_s=None, every_s=0.001)
    for _ in range(4):
        work.called.get(timeout=10)


def test_what_is_done_once_returns_or_raises_where_it_is_waited_for():
    assert in_thread("test", lambda: 7).result(10) == 7
    with pytest.raises(ZeroDivisionError):
        in_thread("test", lambda: 1 / 0).result(10)


@pytest.mark.parametrize("wait_s", [NEVER_S, None])
def test_a_worker_that_is_woken_does_not_wait(run, wait_s):
    work = Work(wait_s, wait_s)
    worker = run(work)
    work.called.get(timeout=10)
    worker.wake()
    assert work.called.get(timeout=10) == wait_s


def test_a_call_during_work_is_not_lost(run):
    begun, go_on, calls = threading.Event(), threading.Event(), queue.Queue()

    def work():
        calls.put(None)
        begun.set()
        go_on.wait(10)

    worker = run(work)
    assert begun.wait(10)
    worker.wake()
    go_on.set()
    for _ in range(2):
        calls.get(timeout=10)


def test_a_crash_is_told_once_and_shown_until_work_succeeds(run, caplog):
    work = Work(ValueError("a bug"), ValueError("another"))
    worker = run(work)
    wait_for(lambda: worker.crash == "crashed: ValueError: a bug", within_s=10, what="a crash")
    worker.wake()
    wait_for(lambda: worker.crash == "crashed: ValueError: another", within_s=10, what="the next")
    worker.wake()
    wait_for(lambda: worker.crash is None, within_s=10, what="success")
    assert [record.getMessage() for record in caplog.records] == ["test crashed"]


def test_work_that_crashed_is_tried_again_by_itself(run):
    work = Work(ValueError("a bug"))
    run(work, after_crash_s=0.001)
    assert isinstance(work.called.get(timeout=10), ValueError)
    assert work.called.get(timeout=10) is None


def test_one_that_was_never_started_can_be_closed():
    BackgroundWorker("test", lambda: None, after_crash_s=1.0).close()


def test_what_waits_when_it_is_closed_is_worked_on_to_the_end():
    begun, go_on, waiting, done = threading.Event(), threading.Event(), [1], []

    def work():
        done.extend(waiting)
        waiting.clear()
        begun.set()
        go_on.wait(10)

    worker = BackgroundWorker("test", work, after_crash_s=NEVER_S, to_the_end=True)
    worker.start()
    assert begun.wait(10)
    waiting.append(2)
    worker.close(0.0)
    assert worker.alive
    go_on.set()
    wait_for(lambda: not worker.alive, within_s=10, what="the end")
    assert done == [1, 2]


def test_jobs_are_done_one_by_one_until_it_is_closed_and_too_many_are_refused():
    begun, go_on, done = threading.Event(), threading.Event(), []

    def work(job):
        begun.set()
        go_on.wait(10)
        done.append(job)

    jobs = BackgroundQueue("test", work, most=1)
    assert jobs.put("a")
    assert begun.wait(10)
    assert (jobs.put("b"), jobs.put("c")) == (True, False)
    go_on.set()
    wait_for(lambda: done == ["a", "b"], within_s=10, what="both")
    jobs.close(10)
    assert not jobs.put("d")


def test_each_failure_doubles_the_wait_up_to_the_longest():
    assert [backoff_s(n, 1.0, 300.0) for n in (1, 2, 3, 9, 10, 5000)] == [1, 2, 4, 256, 300, 300]
