"""Thresholds of a hang: the floor, and what the job's own pauses teach beyond it."""

import pytest

from lightkeeper.monitor.decide.pipeline import Pipeline
from lightkeeper.monitor.detect.learned_pauses import Gap, Habits, pauses_of
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.observation import Failure, Snapshot, Unreachable
from lightkeeper.monitor.model.verdict import Confidence
from lightkeeper.worker_server.wire import SOURCE_REPORTER, StepLog, StepRow, StepState
from tests.changed import replace
from tests.monitor.fleet import (
    At,
    Drive,
    SimFleet,
    at,
    cpu_stall,
    gil,
    hang,
    jam,
    late,
    pause,
    recover,
    restart,
    runs,
    silent,
    stop,
)
from tests.monitor.fleet.told import steps

WATCHING = KeeperConfig(observe=True)
ALL = ("rg_0.0", "rg_1.0", "rg_2.0")
DAY_S = 86_400.0
OF_THE_SYSTEM = "the operating system's view of the process"


# -- when a hang is called one, and why then ---------------------------------------------------


def pauses(*at_s: float, rank: str = "rg_1.0", for_s: float = 40.0) -> list[At]:
    """Pauses that nobody declared."""
    return [at(begin_s, pause([rank], "other", for_s)) for begin_s in at_s]


def checkpoint(at_s: float, for_s: float) -> At:
    return at(at_s, pause(["rg_1.0"], "checkpoint", for_s))


@pytest.mark.parametrize(
    ("script", "fires_s", "threshold"),
    [
        pytest.param([at(20, hang("rg_1.0"))], [27.0], "5 s floor", id="an ordinary one"),
        pytest.param(
            [at(20, pause(["rg_1.0"], "other", 29.0)), at(21, gil("rg_1.0"))],
            [27.0], "5 s floor", id="between phases, the GIL held",
        ),
        pytest.param(
            [at(20, pause(["rg_1.0"], "other", 29.0)), at(21, stop("rg_1.0"))],
            [27.0], "5 s floor", id="between phases, SIGSTOP",
        ),
        pytest.param(
            pauses(20, 100, 180), [52.0], "30 s where no phase is declared",
            id="a first long pause, and not the next ones",
        ),
        pytest.param(
            [*pauses(20, rank="rg_0.0"), *pauses(90)], [52.0], "30 s where no phase is declared",
            id="one learned from the same role of another group",
        ),
        pytest.param(
            [*pauses(20, for_s=20.0), *pauses(80, for_s=DAY_S)],
            [122.0], "2 x learned gap 20 s of 'other': 40 s", id="where the job pauses",
        ),
        pytest.param(
            [*pauses(20, for_s=30.0), at(100, hang("rg_1.0"))],
            [107.0], "5 s floor", id="elsewhere after a long pause",
        ),
        pytest.param(
            [at(20 + 10 * n, cpu_stall("rg_1.0", 2.4)) for n in range(10)]
            + [at(150, hang("rg_1.0"))],
            [157.0], "5 s floor", id="after short stalls of a busy host",
        ),
        pytest.param(
            [checkpoint(20 + 30 * n, 8.0) for n in range(4)] + [checkpoint(140, DAY_S)],
            [222.0], "10 x learned gap 8.0 s of 'checkpoint', at least 60 s: 80 s",
            id="a checkpoint that usually takes 8 s",
        ),
        pytest.param(
            [at(19, runs("rg_1.0")), at(20, hang("rg_1.0"))],
            [37.0], "3 x (5 s floor), its main thread runs: 15 s", id="an endless loop",
        ),
    ],
)  # fmt: skip
def test_a_hang_fires_when_it_exceeds_what_speaks_for_it_and_says_so(
    script, fires_s, threshold
) -> None:
    struck_s = script[-1].at_s
    ticks = int(fires_s[-1]) + 15 if fires_s[-1] > struck_s else int(struck_s) + 45
    drive = Drive(SimFleet(3, 1, script), WATCHING).run(ticks)
    assert drive.kinds() == ["not_entered"] * len(fires_s)
    assert sorted(drive.fired.values()) == fires_s
    last = drive.seen[max(drive.fired, key=lambda key: drive.fired[key])]
    assert last.verdict.evidence["threshold"] == threshold
    assert last.verdict.evidence["source"] in ("phases", OF_THE_SYSTEM)


def test_a_slow_program_states_its_learned_step() -> None:
    drive = Drive(SimFleet(3, 1, [at(60, hang("rg_1.0"))], pace=4.0)).run(90)
    incident = drive.incident("not_entered")
    assert 73 <= drive.fired[incident.id] <= 76
    assert "10 x learned step 1.2 s" in incident.verdict.evidence["threshold"]


def test_a_declared_phase_has_its_budget_until_its_usual_length_is_known() -> None:
    config = KeeperConfig(long_phase_budget_s=90.0, observe=True)
    drive = Drive(SimFleet(3, 1, [checkpoint(20, DAY_S)]), config).run(120)
    verdict = drive.incident("not_entered").verdict
    assert list(drive.fired.values()) == [112.0]
    assert "'checkpoint'" in verdict.reason
    assert verdict.evidence["threshold"] == "90 s for checkpoint"


def test_a_hang_that_an_eviction_ended_teaches_nothing() -> None:
    script = [at(20, hang("rg_1.0")), at(90, hang("rg_2.0"))]
    drive = Drive(SimFleet(3, 1, script)).run(105)
    assert list(drive.fired.values()) == [27.0, 97.0]


# -- what is no hang ---------------------------------------------------------------------------

NO_HANG = {
    "no core for 3 s": (60, [at(20, cpu_stall("rg_1.0", 3.0))]),
    "no core for 3 s, by a late monitor": (
        60, [at(19.5, late(30.0)), at(20, cpu_stall("rg_1.0", 3.0))],
    ),
    "no core for 3 s, after missed polls": (
        90, [at(20, silent("rg_1.0", 30.0)), at(49, cpu_stall("rg_1.0", 3.0))],
    ),
    "a declared evaluation": (110, [at(20, pause(["rg_1.0"], "evaluation", 60.0))]),
    "a declared checkpoint": (110, [checkpoint(20, 60.0)]),
    "warm-up": (135, [at(0.2, hang("rg_1.0"))]),
    "half of torchfts timeout": (80, pauses(20, for_s=29.0)),
    "a pause of all, short": (60, [at(20, pause(ALL, "other", 8.0))]),
    "a pause of all": (135, [at(20, pause(ALL, "other", 90.0))]),
    "a pause of all that ends raggedly": (
        90, [at(20, pause([name], "other", 20.0 + 6.0 * n)) for n, name in enumerate(ALL)],
    ),
    "a pause of all, of whom most cannot be seen": (
        80,
        [at(20, pause(ALL, "other", 28.0)), *(at(30, silent(name, 12.0)) for name in ALL[1:])],
    ),
    "a first pause in which it runs": (70, [at(20, runs("rg_1.0", "R")), *pauses(20, for_s=14.0)]),
    "a first pause in which it waits for the disk": (
        70, [at(20, runs("rg_1.0", "D")), *pauses(20, for_s=14.0)],
    ),
    "a garbage collection": (
        60, [at(20, runs("rg_1.0")), at(20, gil("rg_1.0")), at(26, recover("rg_1.0"))],
    ),
    "stalls just under the floor that come often": (
        135,
        [
            *(at(20 + 9 * n * n, pause(["rg_1.0"], "other", 4.0)) for n in range(4)),
            *pauses(110, for_s=7.5),
        ],
    ),
    "first steps after a heal compile": (
        115, [at(20, restart("rg_1")), *pauses(27.2, for_s=60.0)],
    ),
}  # fmt: skip
"""What happens, watched for 15 s or more after it is over."""


@pytest.mark.parametrize("why", NO_HANG)
def test_nobody_is_called_hung_for(why) -> None:
    ticks, script = NO_HANG[why]
    assert not Drive(SimFleet(3, 1, script)).run(ticks).seen


@pytest.mark.parametrize("source", [SOURCE_REPORTER, "torchft", "optimizer"])
def test_a_compilation_in_the_middle_of_a_phase_is_no_hang(source) -> None:
    """rg_1.0 says by its tag what it does in whatever phase."""
    compiling = steps(lambda step: replace(step, tags=("compile",)), "rg_1.0")
    fleet = SimFleet(2, 2, [at(20, hang("rg_1.0"))], source=source, across=True)
    assert not Drive(fleet, alter=compiling).run(90).seen


# -- decay ---------------------------------------------------------------------------------


def gap(ended_s: float, span_s: float) -> Gap:
    return Gap(RankName("rg_0.0"), 0, "other", span_s, ended_s)


def learned(gaps: list[Gap], now_s: float):
    habits = Habits(KeeperConfig())
    for interval in gaps:
        habits.take(interval)
    return habits.learned(0, "other", now_s)


def test_a_single_pause_counts_half_after_an_hour() -> None:
    assert learned([gap(0, 20.0)], 3599).span_s == 20.0
    assert learned([gap(0, 20.0)], 3601).span_s == 10.0
    assert learned([gap(0, 20.0)], 7201).span_s == 5.0


def test_a_pause_every_two_hours_is_not_forgotten_in_between() -> None:
    assert learned([gap(7200 * n, 20.0) for n in range(3)], 14400 + 7300).span_s == 20.0


def test_one_short_pause_is_no_habit_three_are() -> None:
    assert learned([gap(0, 4.0), gap(100, 4.0)], 200) is None
    assert learned([gap(0, 4.0), gap(100, 3.0), gap(200, 3.5)], 300).span_s == 3.0


def test_pauses_of_peers_at_the_same_time_are_one_event() -> None:
    habits = Habits(KeeperConfig())
    for rank in range(64):
        habits.take(replace(gap(100.0 + rank / 100, 20.0), rank=RankName(f"rg_{rank}.0")))
    assert habits.learned(0, "other", 200).events == 1


# -- the whole job pauses ------------------------------------------------------------------


def test_one_left_behind_when_a_pause_of_all_is_over_is_found_after_twice_its_length() -> None:
    script = [at(20, pause(["rg_0.0"], "other", 20.0)), at(20, pause(["rg_0.1"], "other", DAY_S))]
    drive = Drive(SimFleet(1, 2, script), WATCHING).run(70)
    incident = drive.incident("not_entered")
    assert incident.culprits == ("rg_0.1",)
    assert drive.fired[incident.id] == 62.0
    threshold = incident.verdict.evidence["threshold"]
    assert threshold == "2 x gap 20 s of 'other' that rg_0.0 made meanwhile: 40 s"


def test_a_job_that_stands_still_for_ever_is_told_and_nobody_is_accused() -> None:
    config = KeeperConfig(long_phase_budget_s=60.0)
    drive = Drive(SimFleet(3, 1, [at(20, pause(ALL, "other", DAY_S))]), config).run(100)
    verdicts = [incident.verdict for incident in drive.seen.values()]
    assert len(verdicts) == 3
    assert {verdict.confidence for verdict in verdicts} == {Confidence.UNSURE}
    assert set(drive.fired.values()) == {82.0}
    assert not drive.evicts


# -- steps so long that ten of them are more than TorchFT's 60 s -----------------------------


@pytest.mark.parametrize(
    ("faults", "culprits", "within_s"),
    [
        pytest.param([hang("rg_1.1")], ("rg_1.1",), 40, id="hangs"),
        pytest.param([runs("rg_1.1", "D"), hang("rg_1.1")], ("rg_1.1",), 55, id="waits in kernel"),
        pytest.param([jam("rg_1")], ("rg_1.0", "rg_1.1"), 55, id="its collective is stuck"),
    ],
)
def test_a_hang_in_steps_of_seven_seconds_is_named_before_the_others_give_up(
    faults, culprits, within_s
) -> None:
    script = [at(100, fault) for fault in faults]
    drive = Drive(SimFleet(3, 2, script, pace=23.0, across=True)).run(180)
    (incident,) = [drive.seen[key] for key in drive.fired]
    assert incident.culprits == culprits
    assert 100 < drive.fired[incident.id] <= 100 + within_s
    assert drive.evicted() == ["rg_1"]


def test_a_pause_of_three_long_steps_is_no_hang() -> None:
    script = [at(100, pause(["rg_1.0"], "backward", 55.0))]  # 23 s a step
    assert not Drive(SimFleet(3, 1, script, pace=75.0)).run(260).fired


# -- a monitor that starts in the middle ---------------------------------------------------


def test_a_restarted_monitor_reads_the_jobs_pauses_from_the_ranks_own_steps() -> None:
    script = [at(20 + 60 * n, pause(["rg_1.0"], "other", 40.0)) for n in range(3)]
    drive = Drive(SimFleet(3, 1, script), WATCHING).run(70)
    assert list(drive.fired.values()) == [52.0]
    drive.pipeline = Pipeline(WATCHING)
    drive.run(130)
    assert drive.results[70].wants_steps == ("rg_0.0", "rg_1.0", "rg_2.0")
    assert drive.results[71].wants_steps == ()
    assert list(drive.fired.values()) == [52.0]


def test_a_monitor_that_cannot_read_the_past_asks_three_times() -> None:
    def lost(snapshot: Snapshot) -> Snapshot:
        gone = Unreachable(Failure.TIMEOUT, "no answer")
        return replace(snapshot, steps=dict.fromkeys(snapshot.steps, gone))

    drive = Drive(SimFleet(3, 1), WATCHING, alter=lost).run(20)
    drive.pipeline = Pipeline(WATCHING)
    drive.run(10)
    assert sum(bool(result.wants_steps) for result in drive.results) == 3


def test_a_phase_that_is_always_long_is_no_pause() -> None:
    step = StepState(100, 100, 1, "forward", 0.0, 100, seconds={"forward": 300.0, "other": 20.0})
    rows = (
        StepRow(50, 50, 1, 150.0, 3.0, {"forward": 3.0}),
        StepRow(51, 51, 1, 100.0, 23.0, {"forward": 3.0, "other": 20.0}),
    )
    log = StepLog(SimFleet(1, 1).ranks()[0].identity, True, rows, 0)
    gaps = pauses_of(log, step, 1000.0, first=4)
    assert [(gap.phase, gap.span_s, gap.ended_s) for gap in gaps] == [("other", 20.0, 900.0)]
