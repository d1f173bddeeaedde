"""What a scheduler is asked for, so that it agrees with the quarantine list."""

from __future__ import annotations

import itertools

import pytest

from lightkeeper.monitor.act.schedulers.base import Outcome
from lightkeeper.monitor.act.schedulers.reconcile import LONGEST_RETRY_S, STRAY_S, CordonPlan
from lightkeeper.monitor.model.eviction import KEEPER, QuarantineEntry
from lightkeeper.monitor.model.names import Host

DONE, FAILED = Outcome(True, "done"), Outcome(False, "slurm: node1 not drained: no answer")
FOREIGN = Outcome(True, "drained by alice", ours=False)


def wanted(host="node1", since_s=5.0):
    return QuarantineEntry(host, "it hung", KEEPER, since_s, None, None)


class Scene:
    """One plan on a fake timeline."""

    def __init__(self):
        self.plan = CordonPlan()
        self.now_s = 1000.0

    def asks(self, *list_, outcome=DONE):
        asked = list(self.plan.due(list_, self.now_s))
        for action in asked:
            self.plan.learned(action, outcome, self.now_s)
        return [f"{action.word} {action.host}" for action in asked]

    def later(self, seconds):
        self.now_s += seconds
        return self


@pytest.fixture
def scene():
    return Scene()


def test_a_host_is_cordoned_and_uncordoned_once_each_time_it_comes_and_goes(scene):
    for _ in range(2):
        assert scene.asks(wanted()) == ["cordon node1"]
        assert scene.asks(wanted()) == []
        assert scene.later(1e6).asks(wanted()) == []
        assert scene.asks() == ["uncordon node1"]
        assert scene.later(1e6).asks() == []


def test_a_host_quarantined_anew_before_its_release_was_seen_is_cordoned_again(scene):
    scene.asks(wanted(since_s=5.0))
    assert scene.asks(wanted(since_s=9.0)) == ["cordon node1"]


def test_what_fails_is_tried_again_ever_more_slowly(scene):
    tried = []
    for _ in range(3000):
        if scene.asks(wanted(), outcome=FAILED):
            tried.append(scene.now_s - 1000.0)
        scene.later(1.0)
    waits = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert waits[:9] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert set(waits[9:]) == {LONGEST_RETRY_S}


def test_one_failure_is_no_trouble_and_two_are(scene):
    scene.asks(wanted(), outcome=FAILED)
    assert list(scene.plan.troubles()) == []
    scene.later(1).asks(wanted(), outcome=FAILED)
    assert list(scene.plan.troubles()) == ["slurm: node1 not drained: no answer (2 tries)"]
    scene.later(2).asks(wanted())
    assert list(scene.plan.troubles()) == []


def test_a_cordon_that_failed_is_taken_back_and_neither_waits_for_the_others_backoff(scene):
    for _ in range(5):
        scene.asks(wanted(), outcome=FAILED)
        scene.later(100)
    scene.asks(wanted(), outcome=FAILED)
    assert scene.asks(outcome=FAILED) == ["uncordon node1"]  # it may have worked
    assert scene.asks(wanted()) == ["cordon node1"]


def test_a_host_that_somebody_else_keeps_out_is_left_to_them(scene):
    scene.asks(wanted(), outcome=FOREIGN)
    assert scene.later(1e6).asks(wanted()) == []


def test_what_was_read_back_and_is_on_the_list_stays(scene):
    scene.plan.recalled([Host("node1")], scene.now_s)
    assert scene.asks(wanted()) == ["cordon node1"]  # which changes nothing where it stands
    assert scene.later(1e6).asks(wanted()) == []


def test_what_was_read_back_and_is_off_the_list_is_taken_back_when_the_list_had_its_time(scene):
    scene.plan.recalled([Host("node1")], scene.now_s)
    assert scene.asks() == []
    assert scene.later(STRAY_S).asks() == ["uncordon node1"]


def test_hosts_are_counted_by_who_keeps_them_out(scene):
    scene.asks(wanted("a"))
    scene.asks(wanted("a"), wanted("b"), outcome=FOREIGN)
    scene.asks(wanted("a"), wanted("b"), wanted("c"), outcome=FAILED)
    assert scene.plan.counts() == {"ours": 1, "foreign": 1, "failing": 1}
