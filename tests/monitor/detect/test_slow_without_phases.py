"""Slow ranks of TorchFT jobs that declare no phases: by what their main threads waited."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from msgspec import structs

from lightkeeper.monitor.detect.pace import FIGURES, Paces, Roster, Window
from lightkeeper.monitor.detect.straggler import straggler
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.verdict import Confidence, Verdict
from lightkeeper.worker_server.wire import Doing, Frame, StateReport, Tracer, Witness
from tests.changed import replace
from tests.deep import EXPLORES, crossed
from tests.monitor.fleet import (
    At,
    Drive,
    SimFleet,
    at,
    cpu_stall,
    habit,
    lighthouse_away,
    pause,
    restart,
    silent,
    slow,
    slow_in,
    slow_network,
)
from tests.monitor.fleet.told import process, reports

WATCHING = KeeperConfig(observe=True)


def plain(groups: int, size: int, *script: At, **options) -> SimFleet:
    fleet = SimFleet(groups, size, script, source="torchft", across=True, **options)
    fleet.tells_waits = True
    return fleet


# -- who is slow ---------------------------------------------------------------------------


SLOW = {
    "four times as long": (slow_in("rg_1.0", "backward", 0.8), 50),
    "at 6 % of a core": (slow_in("rg_1.0", "backward", 4.4), 75),
    "every third step, 4 times": (habit(["rg_1.0"], 3, "checkpoint", 0.9), 55),
    "every third step, 10 times": (habit(["rg_1.0"], 3, "checkpoint", 2.7), 60),
    "1.5 times": (slow_in("rg_1.0", "backward", 0.15), 75),
}


@pytest.mark.integration  # no processes, but 2 s of CPU
@pytest.mark.parametrize(("how", "shape"), crossed(SLOW, [(3, 1), (2, 2)]))
def test_a_slow_rank_is_named_alone_within_a_minute(how, shape) -> None:
    fault, most_s = SLOW[how]
    drive = Drive(plain(*shape, at(60, fault), noise=0.1), WATCHING).run(150)
    incidents = [i for i in drive.seen.values() if i.kind == "straggler"]
    assert {i.culprits for i in incidents} == {("rg_1.0",)}
    assert drive.fired[incidents[0].id] <= 60 + most_s
    assert incidents[0].verdict.confidence is Confidence.LIKELY


def test_the_sentence_says_who_slows_whom_by_how_much_and_since_when() -> None:
    script = at(40, slow_in("rg_1.0", "backward", 0.8)), at(92, slow_in("rg_1.0", "backward", 0.0))
    drive = Drive(plain(3, 1, *script), WATCHING).run(90)
    [verdict] = drive.last.verdicts
    assert verdict.reason == (
        "rg_1.0 slows everybody: its own work takes 1 s a step where its peers take 0.3 s; "
        "rg_0.0 and rg_2.0 wait 0.7 s a step for that, for 49 s now"
    )
    assert verdict.evidence["slow at"] == "its own work"
    assert verdict.evidence["source"].startswith("waits that its WorkerServer saw")
    assert drive.run(60).incident("straggler").resolution == "keeps pace again"


def stands(report: StateReport) -> StateReport:
    frame = Frame("Metrics.log_step", "train.py", 66)
    return replace(report, witness=Witness(frame, Doing.IO, 2, 2.0, 0.5))


@pytest.mark.parametrize(
    ("tells", "says"),
    [
        (stands, "it was seen to stand in Metrics.log_step (train.py:66)"),
        (process(state="T"), "a signal had stopped it at 100% of the looks"),
        (process(starved=0.7), "for 70% of the time it was ready to run and got no core"),
    ],
    ids=["its stacks", "a signal", "no core"],
)
def test_it_says_what_else_was_seen_of_the_slow_rank(tells, says) -> None:
    fleet = plain(3, 1, at(40, slow_in("rg_1.0", "backward", 0.8)))
    drive = Drive(fleet, WATCHING, alter=reports(tells, "rg_1.0", after=40)).run(90)
    [verdict] = drive.last.verdicts
    assert says in verdict.reason


def test_it_is_evicted_once_it_cost_more_than_an_eviction() -> None:
    drive = Drive(plain(3, 1, at(40, slow_in("rg_1.0", "backward", 0.8)))).run(90)
    assert drive.evicted() == ["rg_1"]
    assert drive.incident("straggler").verdict.lost_s > 15.0


def test_where_waiting_within_a_group_does_not_show_nobody_is_accused_alone() -> None:
    """torch's DDP waits in C++: who waits there for the slow one looks as busy."""

    def unseen(report: StateReport) -> StateReport:
        heads = tuple(head for head in report.heads if head.name != "intra")
        step = report.step
        if step is not None and report.identity.group == "rg_1":
            slow_s = fleet.rank("rg_1.1").waited_s
            waits_s = fleet.now_s - fleet.rank(report.identity.rank).across_since_s
            step = replace(step, waited_s=slow_s, waits_s=waits_s if step.waits_in else None)
        return replace(report, heads=heads, step=step)

    fleet = plain(2, 2, at(40, slow_in("rg_1.1", "backward", 0.8)))
    drive = Drive(fleet, alter=reports(unseen, "rg_1.0", "rg_1.1")).run(100)
    incident = drive.incident("straggler")
    assert incident.groups == ("rg_1",)
    assert incident.verdict.confidence is Confidence.UNSURE
    assert (
        "a rank of group rg_1 slows everybody, perhaps rg_1.0 or rg_1.1" in incident.verdict.reason
    )
    assert not drive.evicts


# -- who is not ----------------------------------------------------------------------------


def test_who_waits_for_the_slow_one_is_not_accused_beside_a_victim_that_looks_quick() -> None:
    """Seen on two cores: the slow rank's mate works while nobody else does, and gets them all."""
    quick = at(60, slow_in("rg_1.1", "backward", -0.15))
    crowded = at(60, slow_in("rg_0.1", "backward", 0.2)), at(60, slow_in("rg_0.0", "backward", 0.2))
    slows = at(60, slow_in("rg_1.0", "backward", 1.0))
    drive = Drive(plain(2, 2, quick, slows, *crowded, noise=0.1), WATCHING).run(180)
    incidents = [i for i in drive.seen.values() if i.kind == "straggler"]
    assert {i.culprits for i in incidents} == {("rg_1.0",)}
    peer, mate = (drive.pipeline._history.pace.windows[-1].paces[r] for r in ("rg_0.1", "rg_1.1"))
    assert peer.busy_s > 1.8 * mate.busy_s  # it did look slow


SLOWS_NOBODY = {
    "saves every 10 steps": [at(0, habit(["rg_0.0"], 10, "checkpoint", 2.0))],
    "evaluates every 5": [at(0, habit(["rg_0.0"], 5, "evaluation", 1.0))],
    "evaluates long": [at(0, habit(["rg_0.0"], 50, "evaluation", 12.0))],
    "stopped for 2 s by hand": [at(60, cpu_stall("rg_1.0", 2.0))],
    "one garbage collection": [at(60, cpu_stall("rg_1.0", 4.0))],
    "one long pause": [at(60, pause(["rg_1.0"], "evaluation", 25.0))],
    "restarts": [at(60, restart("rg_1", start_s=20.0))],
    "hiccups": [at(60, lighthouse_away(8.0)), at(90, lighthouse_away(8.0))],
    "a slow network": [at(60, slow_network(0.8))],
    "polled late": [at(20 + 6 * n, silent("rg_1.0", 2.0)) for n in range(20)],
    "less CPU for 25 s": [at(80, slow("rg_1.0", 3.0)), at(105, slow("rg_1.0", 1.0))],
    "descheduled often": [at(20 + 7 * n, cpu_stall("rg_1.0", 2.5)) for n in range(30)],
    "uneven batches": [
        line
        for n in range(80)
        for line in (
            at(20 + 2 * n, slow(f"rg_{n * n % 3 % 2}.0", 3.0)),
            at(21 + 2 * n, slow(f"rg_{n * n % 3 % 2}.0", 1.0)),
        )
    ],
    "all are slower": [at(60, slow_in(f"rg_{n}.0", "backward", 0.5)) for n in range(3)],
}
WITHIN_A_GROUP = ("evaluates every 5", "one garbage collection", "restarts", "descheduled often",
                  "uneven batches")  # fmt: skip
"""In `make test` there alone: two ranks of a group are more than one."""


@pytest.mark.integration  # no processes, but 5 s of CPU
@pytest.mark.parametrize(
    ("groups", "size", "why"),
    [*((2, 2, why) for why in WITHIN_A_GROUP),
     *((3, 1, why) for why in SLOWS_NOBODY if EXPLORES or why not in WITHIN_A_GROUP)],
)  # fmt: skip
def test_nobody_is_named_for(groups, size, why) -> None:
    drive = Drive(plain(groups, size, *SLOWS_NOBODY[why], noise=0.2)).run(170)
    slow_ones = [i for i in drive.seen.values() if i.kind == "straggler" and i.culprits]
    assert all(i.verdict.confidence is Confidence.UNSURE for i in slow_ones)
    assert not slow_ones or why == "evaluates every 5"


def stops_telling() -> Callable[[StateReport], StateReport]:
    """Its waits are told no more."""
    waited_s: list[float] = []

    def change(report: StateReport) -> StateReport:
        waited_s.append(report.step.waited_s or 0.0)
        step = replace(report.step, waited_s=waited_s[0], waits_s=None, waits_in=None)
        heads = tuple(structs.replace(head, held=0) for head in report.heads)
        return replace(report, step=step, heads=heads)

    return change


def stops_recording() -> Callable[[StateReport], StateReport]:
    """Its collectives are recorded no more."""
    seen: list[StateReport] = []

    def change(report: StateReport) -> StateReport:
        seen.append(report)
        waited_s = (seen[0].step.waited_s or 0.0) + 0.01 * report.step.attempt
        step = replace(report.step, waited_s=waited_s, waits_s=None, waits_in=None)
        heads = tuple(structs.replace(head, age_s=0.1, held=0) for head in seen[0].heads)
        return replace(report, step=step, heads=heads)

    return change


@pytest.mark.parametrize(
    ("fault", "tells"),
    [
        (slow("rg_1.0", 4.0), process(tracer=Tracer(7, "strace"))),
        (slow_network(0.8), stops_telling()),
        (slow_network(0.8), stops_recording()),
    ],
    ids=["traced, which slows it", "it tells no waits any more", "it records nothing any more"],
)
def test_who_cannot_be_compared_is_not_taken_for_busy(fault, tells) -> None:
    drive = Drive(plain(3, 1, at(40, fault)), alter=reports(tells, "rg_1.0", after=40)).run(130)
    assert not [incident for incident in drive.seen.values() if incident.culprits]


# -- steps so long that a window is noise -----------------------------------------------------


@cache
def healthy() -> Drive:
    return Drive(plain(3, 1), WATCHING).run(30)


def verdicts(
    course: list[tuple[float, float, float]],
    low: float = 0.6,
    starved: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> tuple[Verdict, ...]:
    """Whom windows accuse with these busy seconds of the three ranks.

    `low`: of the slow one's, what 3 of 10 samples undercut; of its peers' it is a half.
    """
    history = healthy().pipeline._history
    ranks = [(track.rank, track.identity.incarnation) for track in history.present()]
    roster = Roster(*map(tuple, zip(*ranks, strict=True)))
    history.pace.windows.clear()
    for n, seconds in enumerate(course):
        figures = dict.fromkeys(FIGURES, [0.0] * 3) | {
            "steps": [10] * 3,
            "busy_s": seconds,
            "low_s": [busy_s * part for busy_s, part in zip(seconds, (0.5, low, 0.5), strict=True)],
            "step_s": [0.55] * 3,
            "usual_s": [0.13] * 3,
            "most_s": [np.inf] * 3,
            "cohort": [3] * 3,
            "work": [1.0] * 3,
            "sees_group": [1] * 3,
            "calls": [9] * 3,
            "starved": starved,
        }
        rows = tuple(np.array(figures[name], np.float32).tobytes() for name in FIGURES)
        start_s = history.now_s - 5.5 * (len(course) - n)
        history.pace.windows.append(Window(start_s, start_s + 5.5, Paces(roster, (), rows, {})))
    return tuple(straggler(history))


NOISY = [(0.13, 0.22, 0.14), (0.18, 0.21, 0.17), (0.10, 0.20, 0.09), (0.14, 0.25, 0.15)]


@pytest.mark.parametrize(
    ("course", "low", "candidates"),
    [
        pytest.param(4 * NOISY, 0.6, {"rg_1.0"}, id="the slowest in nearly every window"),
        pytest.param(3 * NOISY, 0.6, set(), id="not yet for long enough"),
        pytest.param([*(3 * NOISY), *(4 * [(0.21, 0.20, 0.14)])], 0.6, set(), id="not in nearly"),
        pytest.param(16 * [(0.13, 0.18, 0.14)], 0.6, set(), id="too little of a step"),
        pytest.param(16 * [(0.06, 0.22, 0.15)], 0.6, set(), id="peers that do not agree"),
        pytest.param(4 * NOISY, 0.35, set(), id="more work in every fifth step only"),
    ],
)
def test_where_each_window_is_noisy_only_who_is_steadily_slow_is_named(
    course, low, candidates
) -> None:
    assert {rank for verdict in verdicts(course, low) for rank in verdict.candidates} == candidates


# -- ready to run, and no core ----------------------------------------------------------------


def test_a_rank_that_alone_gets_no_core_is_named_sooner_and_without_a_doubt() -> None:
    [verdict] = verdicts(2 * NOISY, starved=(0.06, 0.55, 0.06))
    assert verdict.culprits == ("rg_1.0",)
    assert verdict.confidence is Confidence.LIKELY
    assert "for 55% of the time it was ready to run and got no core" in verdict.reason
    assert verdicts(NOISY, starved=(0.06, 0.55, 0.06)) == ()  # 22 s


def test_without_the_kernels_word_the_same_windows_are_too_coarse() -> None:
    assert verdicts(2 * NOISY, starved=(0.06, 0.1, 0.06)) == ()
    [verdict] = verdicts(4 * NOISY, starved=(0.06, 0.1, 0.06))
    assert verdict.confidence is Confidence.UNSURE
    assert "no core" not in verdict.reason


def test_who_gets_less_of_cores_for_which_all_wait_is_not_accused() -> None:
    assert verdicts(2 * NOISY, starved=(0.6, 0.8, 0.5)) == ()
    [verdict] = verdicts(16 * [(0.13, 0.40, 0.14)], starved=(0.6, 0.8, 0.5))
    assert verdict.confidence is Confidence.UNSURE
    assert "there are too few for all, and chance says who gets less" in verdict.reason


def test_starving_alone_is_no_fault_while_nobody_waits_for_it() -> None:
    assert verdicts(16 * [(0.13, 0.14, 0.14)], starved=(0.06, 0.9, 0.06)) == ()
