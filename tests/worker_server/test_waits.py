"""What the training thread waits in, with a Manager that only looks at the page while it waits."""

from __future__ import annotations

import _thread  # what it starts is unknown to `threading`, as a thread of C++ is
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.integration  # torch

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from lightkeeper.worker_server import wire  # noqa: E402
from lightkeeper.worker_server.rank import collectives, torchft  # noqa: E402
from lightkeeper.worker_server.rank.page import layout  # noqa: E402
from lightkeeper.worker_server.rank.page import writer as page_writer  # noqa: E402

S = 10**9


class Clock:
    """Passes when it is told to."""

    def __init__(self):
        self.now_ns = 1000 * S

    def __call__(self):
        return self.now_ns

    def pass_s(self, seconds):
        self.now_ns += int(seconds * S)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(page_writer, "monotonic_ns", made)
    return made


@pytest.fixture
def waits(recording, clock, reader):
    return lambda: reader.waits(clock())


def manager_class(clock, seen, *, asynchronous=True):
    """As TorchFT 0.2.0's, where it waits: 1 s in a device, 2 s in quorums, 4 s in the vote."""

    class Manager:
        def __init__(self):
            self._quorum_future = None
            self._step = 0
            self.fails = False

        def _ask(self, seconds):
            seen.append("asked")
            clock.pass_s(seconds)

        def start_quorum(self):
            if self._quorum_future is not None and not self._quorum_future.done():
                clock.pass_s(2)
                seen.append("former")
            self._quorum_future = Future()
            if not asynchronous:
                self.wait_quorum()
                clock.pass_s(8)
                seen.append("applied")

        def wait_quorum(self):
            if not self._quorum_future.done():
                clock.pass_s(2)
                self._quorum_future.set_result(None)
            seen.append("quorum")
            if self.fails:
                raise TimeoutError("no quorum")

        def should_commit(self):
            clock.pass_s(1)
            seen.append("device")
            self.wait_quorum()
            clock.pass_s(4)
            seen.append("vote")
            self.wait_quorum()
            self._step += 1
            return True

    return Manager


class Seen(list):
    """What the page said whenever something happened."""

    def __init__(self, waits):
        super().__init__()
        self._waits = waits

    def append(self, what):
        super().append((what, *self._waits()))


def observed(clock, waits, **how):
    seen = Seen(waits)
    cls = manager_class(clock, seen, **how)
    torchft._patch_manager(SimpleNamespace(Manager=cls))
    return cls(), seen


def test_before_anybody_told_of_a_wait_nothing_is_said(waits):
    assert waits() == (None, None, None)


def test_a_manager_tells_that_nothing_was_waited_for(clock, waits):
    observed(clock, waits)
    assert waits() == (None, None, 0)


def test_an_asynchronous_quorum_is_waited_for_where_it_is_needed(clock, waits):
    manager, seen = observed(clock, waits)
    manager.start_quorum()
    clock.pass_s(16)
    assert waits() == (None, None, 0)
    assert manager.should_commit()
    assert seen == [
        ("device", None, None, 0),
        ("quorum", "quorum", 2, 0),
        ("vote", "commit", 4, 2),
        ("quorum", "quorum", 0, 6),
    ]
    assert waits() == (None, None, 6)


def test_a_synchronous_quorum_is_waited_for_at_once_and_what_follows_is_work(clock, waits):
    manager, seen = observed(clock, waits, asynchronous=False)
    manager.start_quorum()
    assert seen == [("quorum", "quorum", 2, 0), ("applied", None, None, 2)]


def test_a_former_quorum_that_is_not_there_holds_up_the_next(clock, waits):
    manager, seen = observed(clock, waits)
    manager.start_quorum()
    manager.start_quorum()
    assert seen == [("former", "quorum", 2, 0)]
    assert waits() == (None, None, 2)


def test_a_quorum_that_fails_is_waited_for_no_more(clock, waits):
    manager, _ = observed(clock, waits)
    manager.start_quorum()
    manager.fails = True
    with pytest.raises(TimeoutError):
        manager.wait_quorum()
    assert waits() == (None, None, 2)


def test_of_several_managers_the_one_that_is_observed_counts(clock, waits):
    first, _ = observed(clock, waits)
    second = type(first)()
    first.start_quorum()
    first.wait_quorum()
    assert waits() == (None, None, 0)
    second.start_quorum()
    second.wait_quorum()
    assert waits() == (None, None, 2)


def in_thread(act, kind=threading.Thread):
    thread = kind(target=act)
    thread.start()
    thread.join()


def test_another_thread_of_the_programs_does_not_count(clock, waits):
    manager, seen = observed(clock, waits)
    manager.start_quorum()
    in_thread(manager.wait_quorum)
    assert seen == [("quorum", None, None, 0)]
    assert waits() == (None, None, 0)


def test_a_thread_of_autograds_waits_for_the_one_that_trains(clock, waits):
    manager, seen = observed(clock, waits)
    manager.start_quorum()
    done = threading.Event()

    def hook():
        manager.wait_quorum()
        done.set()

    _thread.start_new_thread(hook, ())
    assert done.wait(10)
    assert seen == [("quorum", "quorum", 2, 0)]


def test_the_thread_that_reports_steps_is_the_one_that_trains(clock, waits):
    manager, seen = observed(clock, waits)

    def loop():
        manager.start_quorum()
        manager.wait_quorum()

    in_thread(loop)
    assert seen == [("quorum", "quorum", 2, 0)]


def test_a_collective_and_the_wait_for_a_work_are_waited_for(recording, clock, waits, monkeypatch):
    class Work(dist.Work):
        def wait(self, timeout=None):
            clock.pass_s(2)
            return True

    def barrier(group=None, async_op=False):
        clock.pass_s(1)
        return Work() if async_op else None

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        recorded = collectives._wrap(collectives._Op("barrier", barrier), barrier)
        recorded()
        assert waits() == (None, None, 1)
        work = recorded(async_op=True)
        assert waits() == (None, None, 1)
        work.wait()
    finally:
        dist.destroy_process_group()
    assert waits() == (None, None, 3)


def test_waits_within_waits_are_counted_once(recording, clock, waits):
    page = recording.page
    page.begin_wait(layout.WAIT_COLLECTIVE)
    clock.pass_s(1)
    page.begin_wait(layout.WAIT_QUORUM)
    clock.pass_s(2)
    assert waits() == ("quorum", 2, 1)
    page.end_wait(layout.WAIT_QUORUM)
    clock.pass_s(4)
    page.end_wait(layout.WAIT_COLLECTIVE)
    page.end_wait(layout.WAIT_COLLECTIVE)
    assert waits() == (None, None, 7)


def test_when_the_quorum_is_there_the_wait_is_for_what_follows(recording, clock, waits):
    page = recording.page
    torchft.install(recording)
    torchft.quorum_begins(None)
    page.begin_wait(layout.WAIT_QUORUM)
    clock.pass_s(1)
    assert waits() == ("quorum", 1, 0)
    torchft.quorum_ends()
    clock.pass_s(2)
    assert waits() == ("heal", 2, 1)
    page.end_wait(layout.WAIT_QUORUM)
    assert waits() == (None, None, 3)
    torchft.quorum_begins(None, shown=False)  # another Manager's
    page.begin_wait(layout.WAIT_QUORUM)
    assert waits()[0] == "heal"
    torchft.quorum_ends(answered=False)


def test_a_wait_that_was_cut_off_within_another_ends_with_it(recording, clock, waits):
    page = recording.page
    page.begin_wait(layout.WAIT_COMMIT)
    page.begin_wait(layout.WAIT_QUORUM)
    clock.pass_s(1)
    page.end_wait(layout.WAIT_COMMIT)
    assert waits() == (None, None, 1)


def test_waits_are_part_of_the_step(recording, clock, reader):
    recording.begin_step(3)
    recording.page.begin_wait(layout.WAIT_QUORUM)
    clock.pass_s(2)
    step = reader.step_state(clock())
    assert (step.waits_in, step.waits_s, step.waited_s) == (wire.WAIT_QUORUM, 2, 0)


def test_a_manager_without_the_usual_names_is_left_alone_and_said_once(recording):
    class Manager:
        def begin(self):
            return "begun"

    with pytest.warns(RuntimeWarning, match="no start_quorum, wait_quorum, should_commit"):
        torchft._patch_manager(SimpleNamespace(Manager=Manager))
    assert Manager().begin() == "begun"
