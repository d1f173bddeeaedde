"""What the schedulers say of ranks that are missing: asked at once, in the background, in time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from lightkeeper.monitor.act.ends import Ends
from lightkeeper.monitor.act.schedulers.base import NotDone, Outcome, Place
from lightkeeper.monitor.act.schedulers.kubernetes import KEY, end_facts
from lightkeeper.monitor.act.testimonies import reading
from lightkeeper.worker_server import wire
from lightkeeper.worker_server.wire import Weight
from tests.monitor.fakes import identity, wait_until

NOW = datetime(2026, 11, 28, 13, 0, 0, tzinfo=UTC)
NOW_S = NOW.timestamp()


def ago(seconds: float) -> str:
    return datetime.fromtimestamp(NOW_S - seconds, UTC).isoformat().replace("+00:00", "Z")


def condition(kind: str, status: str, reason: str, message: str, ago_s: float):
    return {"type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": ago(ago_s)}  # fmt: skip


def node(ready: str = "True", ago_s: float = 9000.0, *, cordoned: bool = False, ours: bool = False):
    held = {KEY: '{"cordoned": true, "by": {"a": {}}}'} if ours else {}
    return {
        "metadata": {"name": "node-1", "annotations": held},
        "spec": {"unschedulable": cordoned or ours},
        "status": {"conditions": [condition("Ready", ready, "Kubelet", "no word", ago_s)]},
    }


def pod(*conditions, phase: str = "Running", ends=(), deleted=None, **status):
    meta = {} if deleted is None else {
        "deletionTimestamp": ago(deleted - 30.0), "deletionGracePeriodSeconds": 30
    }  # fmt: skip
    return {
        "metadata": meta,
        "status": {"phase": phase, "conditions": list(conditions), **status, "containerStatuses": [
            {"name": "train", where: {"terminated": end}} for where, end in ends
        ]},
    }  # fmt: skip


def ended(reason: str, code: int, ago_s: float, where: str = "state"):
    return where, {"reason": reason, "exitCode": code, "finishedAt": ago(ago_s)}


def target(reason: str, ago_s: float, message: str = "words"):
    return condition("DisruptionTarget", "True", reason, message, ago_s)


def first(pod, node) -> tuple[str, str, float]:
    said = (reading("Kubernetes", *fact) for fact in end_facts(pod, node, NOW_S))
    row = next(each for each in said if each is not None)
    return row.code, row.text, row.for_s


@pytest.mark.parametrize(
    ("pod", "node", "code", "text"),
    [
        pytest.param(
            pod(target("EvictionByEvictionAPI", 8, "Eviction API: evicting"), deleted=8,
                ends=[ended("Error", 143, 7)]),
            node(cordoned=True), "drained", "was drained: Eviction API: evicting", id="drain",
        ),
        pytest.param(
            pod(target("PreemptionByScheduler", 8, "preempting to accommodate a higher priority"),
                deleted=8), node(), "preempted",
            "was preempted: preempting to accommodate a higher priority", id="preemption",
        ),
        pytest.param(
            pod(ends=[ended("OOMKilled", 137, 3)], phase="Failed"), node(), "out-of-memory",
            "ran out of memory: container train, OOMKilled, exit code 137", id="OOM",
        ),
        pytest.param(
            pod(ends=[ended("OOMKilled", 137, 3, "lastState")]), node(), "out-of-memory",
            "ran out of memory: container train, OOMKilled, exit code 137",
            id="OOM, and its container began again",
        ),
        pytest.param(
            pod(ends=[ended("OOMKilled", 137, 3000, "lastState")]), node(), "runs",
            "its pod runs and its node is ready", id="OOM of long ago",
        ),
        pytest.param(
            pod(ends=[ended("OOMKilled", 137, 9)], deleted=5), node(), "out-of-memory",
            "ran out of memory: container train, OOMKilled, exit code 137",
            id="deleted since by its controller",
        ),
        pytest.param(
            pod(deleted=5, ends=[ended("Error", 143, 4)]), node(), "deleted",
            "was deleted: somebody deleted its pod, and nothing tells who", id="deleted by hand",
        ),
        pytest.param(
            pod(target("TerminationByKubelet", 5, "The node was low on resource: memory."),
                phase="Failed", reason="Evicted"), node(), "pressure",
            "was evicted by the kubelet of its node: The node was low on resource: memory.",
            id="pressure",
        ),
        pytest.param(
            pod(phase="Failed", reason="Evicted", message="Pod ephemeral local storage usage ...",
                ends=[("state", {"reason": "ContainerStatusUnknown", "exitCode": 137})]),
            node(), "pressure",
            "was evicted by the kubelet of its node: Pod ephemeral local storage usage ...",
            id="over its own limit of disk",
        ),
        pytest.param(
            pod(phase="Failed", reason="Evicted", message="Pod ephemeral local storage usage ...",
                ends=[ended("Error", 143, 7)]),
            node(), "pressure",
            "was evicted by the kubelet of its node: Pod ephemeral local storage usage ...",
            id="over its own limit of disk, and its container heard SIGTERM",
        ),
        pytest.param(
            pod(), node("Unknown", 5), "node-lost", "its node is not ready: no word", id="lost",
        ),
        pytest.param(
            pod(target("DeletionByTaintManager", 5), deleted=5), node("Unknown", 300), "node-lost",
            "its node is not ready: no word", id="lost, and deleted for it after 5 minutes",
        ),
        pytest.param(
            pod(deleted=30), node("Unknown", 5), "node-lost", "its node is not ready: no word",
            id="lost, and deleted before that was noticed",
        ),
        pytest.param(
            pod(target("EvictionByEvictionAPI", 90, "evicting"), deleted=90), node("Unknown", 5),
            "drained", "was drained: evicting", id="drained, and its node switched off",
        ),
        pytest.param(pod(), node(), "runs", "its pod runs and its node is ready", id="frozen"),
        pytest.param(pod(), {}, "runs", "its pod runs", id="a node whose name is not known"),
        pytest.param(
            None, node(cordoned=True), "drained",
            "was drained, it seems: its pod is gone and its node cordoned by somebody else",
            id="gone already",
        ),
        pytest.param(
            None, node(ours=True), "deleted",
            "was deleted: its pod is gone, and nothing tells by whom", id="our own cordon",
        ),
        pytest.param(
            None, None, "node-gone", "went with its node, which was taken from the cluster",
            id="the node is gone",
        ),
        pytest.param(
            pod(target("ByAliens", 5, "they took it")), node(), "disrupted",
            "was ended with the reason ByAliens: they took it", id="an unknown reason",
        ),
        pytest.param(
            pod(phase="Failed", reason="UnexpectedAdmissionError", message="no GPU"), node(),
            "disrupted", "was ended with the reason UnexpectedAdmissionError: no GPU",
            id="an unknown state",
        ),
        pytest.param(
            pod(ends=[ended("Error", 1, 3)], phase="Failed"), node(), "exited",
            "ended by itself: container train, Error, exit code 1", id="its own exit",
        ),
        pytest.param(
            pod(phase="Pending"), node(), "phase", "is gone: its pod is Pending", id="new",
        ),
    ],
)  # fmt: skip
def test_what_came_first_is_the_cause(pod, node, code, text):
    assert first(pod, node)[:2] == (code, text)


def test_a_deletion_is_dated_by_when_it_was_asked_for_not_by_its_grace():
    assert first(pod(deleted=5.0), node())[2] == 5.0


# -- asked in the background -------------------------------------------------------------------


@dataclass
class Script:
    """A scheduler that says what it is told to."""

    says: Callable[[Place], wire.Testimony | None] = lambda _: None
    fails: str = ""
    name: str = "kubernetes"
    asked: list[str] = field(default_factory=list)
    trial: Outcome = field(default_factory=lambda: Outcome(True, ""))

    def ends(self, places, timeout_s):
        assert timeout_s == 2.0
        for place in places:
            self.asked.append(place.rank)
            if (said := self.says(place)) is not None:
                yield place, said
        if self.fails:
            raise NotDone(self.fails)

    def tried(self, _):
        return self.trial


DELETED = wire.Testimony("Kubernetes", Weight.LEAVING, "deleted", "was deleted")
RUNS = wire.Testimony("Kubernetes", Weight.CONTEXT, "runs", "its pod runs")


class Time:
    def __init__(self) -> None:
        self.s = 1000.0

    def now_s(self) -> float:
        return self.s


def seen(alive: bool | None, incarnation: str = "first"):
    """Alive, dead or unreachable."""
    report = None if alive is None else SimpleNamespace(process=SimpleNamespace(alive=alive))
    who = identity("rg_1", incarnation=incarnation)
    return SimpleNamespace(rank=who.rank, identity=who, report=report)


@pytest.fixture
def ends():
    made: list[Ends] = []

    def make(script: Script, clock: Time) -> Ends:
        watch = Ends([script], clock)
        made.append(watch)
        return watch

    yield make
    for each in made:
        each.close()


def test_a_rank_is_asked_for_as_soon_as_it_is_missed_and_its_cause_stays(ends):
    script, clock = Script(lambda _: DELETED), Time()
    watch = ends(script, clock)
    assert watch.note([seen(True)], 1000.0) == {}
    assert watch.note([seen(None)], 1001.0) == {}
    wait_until(lambda: script.asked)
    wait_until(lambda: watch.note([seen(None)], 1001.0))
    script.says = lambda _: RUNS
    clock.s = 1010.0
    watch.look(script)
    said = watch.note([], 1011.0)["rg_1.0"]  # dropped by the registry
    assert (said.code, said.for_s) == ("deleted", 11.0)


@pytest.mark.parametrize("back", [seen(True), seen(None, "second")], ids=["answers", "another"])
def test_a_rank_that_answers_or_is_another_process_is_forgotten(ends, back):
    script, clock = Script(lambda _: DELETED), Time()
    watch = ends(script, clock)
    watch.note([seen(False)], 1000.0)
    wait_until(lambda: watch.note([seen(False)], 1000.0))
    script.says = lambda _: None
    assert watch.note([back], 1001.0) == {}


def test_how_it_looks_is_replaced_by_why_it_went(ends):
    script, clock = Script(lambda _: RUNS), Time()
    watch = ends(script, clock)
    watch.note([seen(None)], 1000.0)
    wait_until(lambda: watch.note([seen(None)], 1000.0))
    script.says = lambda _: DELETED
    watch.look(script)
    assert watch.note([seen(None)], 1001.0)["rg_1.0"].code == "deleted"


def test_it_is_asked_every_second_at_first(ends):
    script, clock = Script(), Time()
    watch = ends(script, clock)
    watch.note([seen(None)], 1000.0)
    assert watch.look(script) == 1.0
    clock.s = 1011.0
    assert watch.look(script) == 3.0


def test_after_we_had_it_deleted_it_is_asked_why_it_went(ends):
    ours = wire.Testimony("Kubernetes", Weight.LEAVING, "evicted", "was ended by lightkeeper")
    script, clock = Script(lambda _: ours), Time()
    watch = ends(script, clock)
    watch.note([seen(None)], 1000.0)
    wait_until(lambda: watch.note([seen(None)], 1000.0))
    script.says = lambda _: wire.Testimony("Kubernetes", Weight.CONTEXT, "node-lost", "not ready")
    watch.look(script)
    assert watch.note([seen(None)], 1001.0)["rg_1.0"].code == "node-lost"


def test_a_scheduler_that_refuses_says_nothing_and_is_asked_again(ends):
    script, clock = Script(fails="the API server answers 403"), Time()
    watch = ends(script, clock)
    watch.note([seen(None)], 1000.0)
    wait_until(lambda: script.asked)
    script.fails, script.says = "", lambda _: DELETED
    watch.look(script)
    assert watch.note([seen(None)], 1000.0)["rg_1.0"].code == "deleted"


def test_a_scheduler_that_cannot_be_asked_is_told_from_the_start_until_it_answers(ends):
    script = Script(trial=Outcome(False, "it cannot be asked: not within 2 s"))
    watch = ends(script, Time())
    wait_until(lambda: [*watch.troubles()])
    assert [*watch.troubles()] == ["scheduler kubernetes: it cannot be asked: not within 2 s"]
    script.trial = Outcome(True, "")
    watch.look(script)
    assert [*watch.troubles()] == []


def test_one_that_hangs_holds_up_neither_the_judge_nor_the_other_scheduler():
    over, clock = threading.Event(), Time()
    stuck, well = Script(lambda _: over.wait(20.0) and None), Script(name="slurm")
    watch = Ends([stuck, well], clock)
    try:
        watch.note([seen(None)], 1000.0)
        wait_until(lambda: stuck.asked)
        well.says = lambda _: DELETED
        watch.look(well)
        assert watch.note([seen(None)], 1000.0)["rg_1.0"].code == "deleted"
    finally:
        over.set()
        watch.close()


def test_a_crash_is_a_trouble(ends):
    def crash(_):
        raise RuntimeError("a pod without a name")

    watch = ends(Script(crash), Time())
    watch.note([seen(None)], 1000.0)
    wait_until(lambda: [*watch.troubles()])
    assert "RuntimeError: a pod without a name" in next(watch.troubles())
