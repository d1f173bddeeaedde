"""The thread that makes a scheduler agree with the quarantine list."""

from __future__ import annotations

import threading

import pytest

from lightkeeper.monitor.act.schedulers.base import Outcome, Scheduler
from lightkeeper.monitor.act.schedulers.reconcile import STRAY_S, CordonReconciler
from lightkeeper.monitor.metric import new_page
from lightkeeper.monitor.model.eviction import KEEPER, QuarantineEntry
from lightkeeper.monitor.model.names import Host
from tests.waiting import wait_for


class FakeScheduler(Scheduler):
    name = "fake"

    def __init__(self, *marked):
        super().__init__(tuple, lambda: "me")
        self.marked = {Host(host) for host in marked}
        self.asked = []
        self.crash = self.fail = False
        self.gate = threading.Event()
        self.gate.set()

    def _cordon(self, host, why, deadline):
        return self._do(f"cordon {host}", self.marked.add, host)

    def _uncordon(self, host, reason, deadline):
        return self._do(f"uncordon {host}", self.marked.discard, host)

    def _do(self, what, change, host):
        self.asked.append(what)
        self.gate.wait(10)
        if self.crash:
            raise RuntimeError("a bug")
        if not self.fail:
            change(host)
        return Outcome(not self.fail, f"fake: {what}")

    def _cordoned(self, deadline):
        return self.marked

    def _remove(self, *_):
        raise NotImplementedError

    def checks(self, timeout_s):
        return ()

    def close(self):
        """Nothing is open."""


class Scene:
    def __init__(self, *marked):
        self.scheduler = FakeScheduler(*marked)
        self.list = []
        self.acting = True
        self.now_s = 0.0
        self.metrics = new_page()
        self.reconciler = CordonReconciler(
            self.scheduler, lambda: tuple(self.list), lambda: self.acting,
            self.metrics,
            period_s=0.01, now=lambda: self.now_s,
        )  # fmt: skip

    def quarantine(self, *hosts):
        self.list = [QuarantineEntry(host, "it hung", KEEPER, 1.0, None, None) for host in hosts]

    def until(self, condition, what):
        wait_for(condition, within_s=10, what=what)

    def metric(self, name, **labels):
        return self.metrics.get_sample_value(name, {"scheduler": "fake", **labels})


@pytest.fixture
def scene():
    made = Scene()
    yield made
    made.scheduler.gate.set()
    made.reconciler.close()


def test_hosts_are_cordoned_and_uncordoned_as_the_list_changes(scene):
    scene.quarantine("node1", "node2")
    scene.until(lambda: scene.scheduler.marked == {"node1", "node2"}, "both cordoned")
    scene.quarantine("node2")
    scene.until(lambda: scene.scheduler.marked == {"node2"}, "one uncordoned")
    ours = {"name": "lightkeeper_scheduler_hosts", "state": "ours"}
    scene.until(lambda: scene.metric(**ours) == 1.0, "one counted")
    count = {"name": "lightkeeper_scheduler_requests_total", "outcome": "done"}
    assert scene.metric(**count, action="cordon") == 2.0
    assert scene.metric(**count, action="uncordon") == 1.0


def test_a_monitor_that_may_not_act_asks_for_nothing(scene):
    scene.acting = False
    scene.quarantine("node1")
    scene.reconciler.round()
    assert scene.scheduler.asked == []
    scene.acting = True
    scene.until(lambda: scene.scheduler.marked == {"node1"}, "cordoned after it took over")


def test_a_monitor_that_takes_over_takes_back_what_was_released_meanwhile():
    scene = Scene("node1", "node2")
    try:
        scene.quarantine("node2")
        scene.until(lambda: "cordon node2" in scene.scheduler.asked, "first round")
        scene.now_s = STRAY_S + 1
        scene.until(lambda: scene.scheduler.marked == {"node2"}, "stray uncordoned")
    finally:
        scene.reconciler.close()


def test_a_request_under_way_is_the_last_when_the_monitor_may_not_act_any_more(scene):
    scene.scheduler.gate.clear()
    scene.quarantine("node1", "node2")
    scene.until(lambda: scene.scheduler.asked, "the first request")
    scene.acting = False
    scene.scheduler.gate.set()
    scene.until(lambda: scene.scheduler.marked, "its end")
    scene.reconciler.close()
    assert scene.scheduler.asked == ["cordon node1"]


def test_a_driver_that_crashes_is_a_trouble_and_is_asked_again(scene):
    scene.scheduler.crash = True
    scene.quarantine("node1")
    scene.until(lambda: scene.scheduler.asked, "the first request")
    scene.now_s = 5.0
    scene.until(scene.reconciler.troubles, "a trouble")
    assert scene.reconciler.troubles() == (
        "scheduler fake: node1 not cordoned: RuntimeError: a bug (2 tries)",
    )
    scene.scheduler.crash = False
    scene.now_s = 50.0
    scene.until(lambda: scene.scheduler.marked == {"node1"}, "cordoned after all")
    scene.until(lambda: not scene.reconciler.troubles(), "no trouble")


def test_a_list_that_cannot_be_read_is_a_trouble_and_nothing_is_released(scene):
    scene.quarantine("node1")
    scene.until(lambda: scene.scheduler.marked == {"node1"}, "cordoned")
    scene.list = None
    scene.until(scene.reconciler.troubles, "a trouble")
    assert scene.scheduler.marked == {"node1"}


def test_a_scheduler_that_hangs_holds_up_no_other_and_no_close():
    stuck, fine = FakeScheduler(), FakeScheduler()
    stuck.gate.clear()
    list_ = [QuarantineEntry("node1", "it hung", KEEPER, 1.0, None, None)]
    both = [
        CordonReconciler(each, lambda: list_, lambda: True, new_page()) for each in (stuck, fine)
    ]
    try:
        wait_for(lambda: fine.marked and stuck.asked, within_s=10, what="the other one's cordon")
        assert [each.troubles() for each in both] == [(), ()]
    finally:
        stuck.gate.set()
        for each in both:
            each.close()
