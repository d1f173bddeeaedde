"""Stalls are lower bounds; what is missing is not zero."""

import pytest

from lightkeeper.monitor.detect.history import History
from lightkeeper.monitor.detect.intake import take_in
from lightkeeper.monitor.detect.recorded import UNREAD, before_death, opinion
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.observation import Failure, Member, Unreachable
from tests.changed import replace
from tests.monitor.fleet import START_S, Drive, SimFleet, at, cpu_stall, crash, pause, restart, slow

RANK = RankName("rg_0.0")


def snapshot(now_s, *, progress=1, phase_age_s=0.0, silent=False):
    """One rank, one tick."""
    fleet = SimFleet(1, 1)
    shot = fleet.snapshot()
    seen = shot.observations[0]
    step = replace(seen.outcome.step, progress=progress, phase_age_s=phase_age_s)
    outcome = Unreachable(Failure.TIMEOUT, "") if silent else replace(seen.outcome, step=step)
    return replace(shot, now_s=now_s, observations=(replace(seen, outcome=outcome),))


@pytest.mark.parametrize(
    ("snapshots", "stall_s"),
    [
        pytest.param(
            [snapshot(10, phase_age_s=60), snapshot(12, phase_age_s=62)], 2,
            id="at most what this monitor saw of it",
        ),
        pytest.param(
            [snapshot(10, phase_age_s=0), snapshot(40, phase_age_s=3)], 3,
            id="at most what the rank says",
        ),
        pytest.param(
            [snapshot(10, progress=1), snapshot(40, progress=2, phase_age_s=30)], 0,
            id="progress between two sweeps ends it",
        ),
        pytest.param(
            [snapshot(10, phase_age_s=1), snapshot(12, phase_age_s=3), snapshot(30, silent=True)],
            2, id="silence does not lengthen it",
        ),
    ],
)  # fmt: skip
def test_a_stall_is_a_lower_bound(snapshots, stall_s) -> None:
    history = History.of(KeeperConfig())
    for shot in snapshots:
        take_in(history, shot)
    assert history.tracks[RANK].stall_s == stall_s


@pytest.mark.parametrize(("asked_ago_s", "counts"), [(4.0, False), (1.0, True)])
def test_a_record_that_came_late_shows_nothing_that_happened_after_it_was_requested(
    asked_ago_s: float, counts: bool
) -> None:
    """It may have been made before a rank entered a call, or died: who made it stood elsewhere."""
    fleet = SimFleet(1, 2)
    names = (RANK, RankName("rg_0.1"))
    shot = fleet.snapshot(wanted=names)
    *others, last = shot.observations
    died = replace(last.outcome.process, alive=False, dead_age_s=3.0, exit_signal="SIGSEGV")
    dead = replace(last, outcome=replace(last.outcome, process=died))
    asked = {names[1]: shot.now_s - asked_ago_s}
    history = History.of(KeeperConfig())
    take_in(history, replace(shot, observations=(*others, dead), records_asked_s=asked))
    assert before_death(history, history.tracks[names[1]]) is not counts
    assert (opinion(history, "rg_0", within_s=3.0) is not UNREAD) is counts


def test_a_restarted_rank_begins_anew() -> None:
    drive = Drive(SimFleet(3, 1, [at(20, restart("rg_1"))])).run(40)
    track = drive.pipeline._history.tracks["rg_1.0"]
    assert track.predecessor == "rg_1.0#0"
    assert track.identity.incarnation == "rg_1.0#1"
    assert track.first_seen_s == START_S + 20


def test_the_learned_step_time_leaves_long_phases_out() -> None:
    script = [at(10 + 20 * n, pause(["rg_0.0"], "checkpoint", 8.0)) for n in range(3)]
    drive = Drive(SimFleet(1, 1, script)).run(70)
    history = drive.pipeline._history
    assert history.learned_step_s(history.tracks[RANK]) == pytest.approx(0.3, abs=0.05)


def test_windows_last_five_seconds_and_three_steps() -> None:
    drive = Drive(SimFleet(3, 1, [at(31, slow("rg_1.0", 12.0))])).run(70)
    windows = drive.pipeline._history.pace.windows
    spans = [window.end_s - window.start_s for window in windows]
    assert spans[0] == 5
    assert spans[-1] >= 9
    assert all(pace.steps >= 3 for window in windows for pace in window.paces.values())


def test_no_window_contains_a_death_or_a_start() -> None:
    drive = Drive(SimFleet(3, 1, [at(42, crash("rg_1.0")), at(50, restart("rg_1"))])).run(100)
    windows = drive.pipeline._history.pace.windows
    assert not [w for w in windows if w.end_s > START_S + 42 and w.start_s < START_S + 72]


def test_a_stall_within_a_window_does_not_change_the_pace() -> None:
    drive = Drive(SimFleet(3, 1, [at(30, cpu_stall("rg_1.0", 1.5))])).run(40)
    paces = [window.paces["rg_1.0"].busy_s for window in drive.pipeline._history.pace.windows]
    assert max(paces) < 0.4


@pytest.mark.parametrize(
    ("first", "second", "believed"),
    [
        ("rg_0:u0", "rg_1:u1", ("rg_0:u0", "rg_1:u1")),
        ("rg_1:u9", "rg_1:u1", (None, "rg_1:u1")),
        ("rg_1:u1", "rg_1:u1", (None, None)),
        ("rg_1:u1", None, (None, None)),
        ("u0", "u1", (None, None)),
        ("u1", "u1", (None, None)),
        ("rg_2:u2", "rg_1:u1", (None, "rg_1:u1")),
    ],
    ids=["own", "another groups name", "another groups id", "a silent groups id", "no names",
         "one id twice without names", "a third ones name"],
)  # fmt: skip
def test_a_replica_id_is_believed_where_it_can_mean_no_other_group(first, second, believed) -> None:
    shot = SimFleet(3, 1).snapshot()
    seen = [
        replace(
            rank, outcome=replace(rank.outcome, step=replace(rank.outcome.step, replica_id=id_))
        )
        for rank, id_ in zip(shot.observations, (first, second, "rg_2:u3"), strict=True)
    ]
    history = History.of(KeeperConfig())
    take_in(history, replace(shot, observations=tuple(seen)))
    groups = ("rg_0", "rg_1", "rg_2")
    assert tuple(map(history.replica_id, groups)) == (*believed, "rg_2:u3")


@pytest.mark.parametrize(
    ("ids", "address", "believed"),
    [(("u0", "u0"), "http://node0:9", "u0"), (("u0", "u0"), "http://node1:9", None),
     (("u0", "u9"), "http://node0:9", None), (("u9", "u9"), "http://node0:9", None)],
    ids=["its Manager is on its host", "elsewhere", "its ranks differ", "no such Manager"],
)  # fmt: skip
def test_an_id_without_a_name_needs_all_its_ranks_and_the_lighthouses_page(
    ids, address, believed
) -> None:
    """A rank said the nameless id of another group's Manager, and that group was killed for it."""
    shot = SimFleet(1, 2).snapshot()
    seen = [
        replace(
            rank, identity=replace(rank.identity, host="node0"),
            outcome=replace(rank.outcome, step=replace(rank.outcome.step, replica_id=id_)),
        )
        for rank, id_ in zip(shot.observations, ids, strict=True)
    ]  # fmt: skip
    page = replace(shot.lighthouse, members=(Member("u0", 5, address),))
    history = History.of(KeeperConfig())
    take_in(history, replace(shot, observations=tuple(seen), lighthouse=page))
    assert history.replica_id("rg_0") == believed
