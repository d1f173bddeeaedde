"""Scripts that nobody prepared: TorchFT without phases, several roots, people who look."""

from __future__ import annotations

import pytest

from lightkeeper.monitor.detect.patience import giving_up
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Guard
from lightkeeper.monitor.model.observation import Snapshot
from lightkeeper.monitor.model.verdict import Severity
from lightkeeper.worker_server.wire import (
    ACROSS,
    WAIT_COMMIT,
    WAIT_HEAL,
    WAIT_QUORUM,
    Doing,
    Frame,
    StateReport,
    Witness,
)
from tests.changed import replace
from tests.deep import only_explored
from tests.monitor.fleet import (
    START_S,
    Drive,
    SimFleet,
    at,
    crash,
    ended_by,
    ghosts_hang,
    gives_across,
    hang,
    jam_across,
    leaves_out,
    leaves_vote,
    let_go,
    raises,
    restart,
    second_life,
    sets,
    stands,
    traced,
)
from tests.monitor.fleet.told import process, reports, without_records

DAY_S = 86_400.0


def field(groups: int, size: int, *script, across: bool = True, launched: bool = False) -> SimFleet:
    """Plain TorchFT: its own calls tell the steps and the waits, and nobody a phase.

    `launched`: what waits for its all-reduce waits in C++, as torchft's DDP does.
    """
    fleet = SimFleet(groups, size, script, source="torchft", across=across)
    fleet.tells_waits, fleet.asynchronous = not launched, launched
    return fleet


# -- votes that are left out ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "ahead", "culprits", "says"),
    [
        (2, ["rg_1.1"], ("rg_1.1",), "in the commit vote of this one"),
        (4, ["rg_1.2"], ("rg_1.2",), "rg_1.2 left it out"),
        (4, ["rg_1.0", "rg_1.1", "rg_1.3"], ("rg_1.2",), "rg_1.2 calls once more than the others"),
    ],
)
def test_who_goes_on_without_a_vote_is_named_and_its_group_goes(size, ahead, culprits, says):
    drive = Drive(field(2, size, at(20, leaves_vote(*ahead)))).run(45)
    incident = drive.incident("mismatch")
    assert incident.culprits == culprits
    assert says in incident.verdict.reason
    assert drive.fired[incident.id] <= 30
    assert drive.evicted() == ["rg_1"]
    assert drive.accused() == set(culprits)


def test_who_died_in_its_vote_has_left_none_out():
    """The others got their answer, and wait in the quorum for its next life."""
    script = at(20, leaves_vote("rg_1.0")), at(20, ended_by("rg_1.1", "SIGKILL"))
    drive = Drive(field(2, 2, *script)).run(28)
    assert {i.kind for i in drive.seen.values()} == {"dead"}


@pytest.mark.parametrize(
    ("groups", "ahead", "culprits", "says"),
    [
        (3, ["rg_1.0"], {"rg_1.0"}, "rg_1.0 left it out"),
        (3, ["rg_0.0", "rg_2.0"], {"rg_1.0"}, "rg_1.0 calls once more than the others"),
        (5, ["rg_1.0", "rg_3.0"], {"rg_1.0", "rg_3.0"}, "rg_1.0 and rg_3.0 left it out"),
    ],
)
def test_who_goes_on_without_a_collective_across_groups_is_named(groups, ahead, culprits, says):
    drive = Drive(field(groups, 1, at(20, leaves_out(*ahead)), launched=True)).run(40)
    assert drive.accused() == culprits
    assert set(drive.kinds()) == {"mismatch"}
    assert all(says in drive.seen[key].verdict.reason for key in drive.fired)
    assert max(drive.fired.values()) <= 30
    assert set(drive.evicted()) == {name.partition(".")[0] for name in culprits}


def test_of_two_groups_it_cannot_be_told_who_left_one_out():
    drive = Drive(field(2, 1, at(20, leaves_out("rg_1.0")), launched=True)).run(60)
    assert not drive.accused()
    assert not drive.evicts
    assert drive.incident("mismatch").candidates == ("rg_0.0", "rg_1.0")


def test_who_goes_on_after_an_error_of_its_own_is_told_in_doubt():
    def fails(fleet: SimFleet) -> None:
        rank = fleet.rank("rg_1.0")
        rank.failures, rank.attempt = rank.failures + 1, rank.attempt + 1

    script = at(20, leaves_out("rg_1.0")), at(21, fails)
    drive = Drive(field(3, 1, *script, launched=True)).run(60)
    assert not drive.accused()
    assert not drive.evicts
    assert "rg_1.0 continued after an error" in drive.incident("mismatch").verdict.reason


@pytest.mark.parametrize("waits_in", [WAIT_QUORUM, WAIT_HEAL])
def test_who_leaves_the_first_one_out_again_after_its_eviction_is_named_again(waits_in):
    """Nobody has committed in its new life; who takes the weights meanwhile is given time."""

    def again(fleet: SimFleet) -> None:
        rank = fleet.rank("rg_1.0")
        if rank.born and rank.place != "start" and not rank.commits:
            rank.hung, rank.waits_in = True, waits_in

    script = [at(20, leaves_out("rg_1.0")), *(at(25 + n / 10, again) for n in range(150))]
    drive = Drive(field(3, 1, *script, launched=True)).run(80)
    assert drive.evicted() == ["rg_1"] * (2 if waits_in == WAIT_QUORUM else 1)
    assert drive.accused() == {"rg_1.0"}


def drive_while_one_gives_its_state(thread, doing, cores, for_s) -> Drive:
    """From 20 s on rg_0.0 makes the state for rg_1.0, which heals; both wait in the quorum."""

    place = Frame("given", "train.py", 33), Doing.LOCK
    gives = sets("rg_0.0", hung=True, waits_in=WAIT_QUORUM, cores=cores, place_of_code=place)
    heals = sets("rg_1.0", hung=True, waits_in=WAIT_HEAL)

    def seen(report: StateReport) -> StateReport:
        witness = report.witness
        if report.identity.rank != "rg_0.0" or witness is None:
            return report
        return replace(report, witness=replace(witness, thread=thread, doing=doing))

    return Drive(field(3, 1, at(20, gives), at(20, heals)), alter=reports(seen)).run(for_s)


def test_who_stands_where_it_gives_its_state_holds_all_though_its_main_thread_waits():
    drive = drive_while_one_gives_its_state("async_quorum_0", Doing.LOCK, 0.0, 60)
    assert drive.accused() == {"rg_0.0"}
    reason = drive.incident("not_entered").verdict.reason
    assert reason.startswith("rank rg_0.0 hangs in given (train.py:33), waiting for a lock")


@pytest.mark.parametrize(
    ("thread", "doing", "cores", "for_s"),
    [
        (None, Doing.COLLECTIVE, 0.0, 60),
        ("async_quorum_0", Doing.UNKNOWN, 0.0, 70),
        ("async_quorum_0", Doing.SAVE, 0.0, 70),
        ("async_quorum_0", Doing.LOCK, 0.9, 70),
    ],
    ids=["waits for others", "computes", "saves", "its lock's holder works"],
)
def test_who_takes_long_to_give_its_state_to_a_group_that_heals_is_let_work(
    thread, doing, cores, for_s
):
    drive = drive_while_one_gives_its_state(thread, doing, cores, for_s)
    assert not drive.accused()
    assert not drive.evicts


@pytest.mark.parametrize(("waits_in", "ends"), [(None, True), (WAIT_HEAL, False)])
def test_a_victim_that_waits_in_a_new_quorum_is_not_about_to_end(waits_in, ends):
    goes_on = sets("rg_1.0", hung=True, waits_in=waits_in)
    drive = Drive(field(3, 1, at(20, goes_on), across=False)).run(24)
    victims = [track.rank for track in drive.pipeline._history.present()]
    assert ("rg_1.0" in giving_up(drive.pipeline._history, victims)) is ends


def test_in_the_first_step_of_a_job_that_all_began_anew_who_waits_is_left_to_train():
    def first_step(fleet: SimFleet) -> None:
        for rank in fleet.ranks():
            rank.across = rank.commits = 0
            rank.committed_s = None
        fleet.rank("rg_1.0").hung, fleet.rank("rg_1.0").waits_in = True, WAIT_QUORUM

    anew = (at(20, restart(f"rg_{n}")) for n in range(3))
    fleet = field(3, 1, *anew, at(26.2, first_step), launched=True)
    fleet.asynchronous = False
    drive = Drive(fleet).run(330)
    assert drive.evicted() == ["rg_1"]
    assert fleet.rank("rg_0.0").commits > 50


def test_who_votes_without_a_collective_of_torchs_ddp_is_named_by_the_records():
    """No head shows what DDP calls from C++: it looks like work."""

    def hidden(report: StateReport) -> StateReport:
        return replace(report, heads=tuple(head for head in report.heads if head.name == ACROSS))

    script = at(20, hang("rg_1.1", "backward")), at(21, sets("rg_1.1", waits_in=WAIT_COMMIT))
    drive = Drive(field(2, 2, *script), alter=reports(hidden)).run(45)
    incident = drive.incident("mismatch")
    assert incident.culprits == ("rg_1.1",)
    assert "rg_1.1 waits in the commit vote, rg_1.0 in the " in incident.verdict.reason
    assert drive.accused() == {"rg_1.1"}


def test_after_a_death_ranks_go_on_by_rights():
    """rg_0.0 has seen the death in its all-reduce; rg_1.0, which is no neighbour, still waits."""
    script = at(20, ended_by("rg_2.0", "SIGKILL")), at(20, leaves_out("rg_0.0"))
    drive = Drive(field(3, 1, *script, launched=True)).run(60)
    assert not {i.kind for i in drive.seen.values()} & {"mismatch"}


GLOO = "gloo::EnforceNotMet: 21848 vs 668. Received data size doesn't match expected size"


def dies_of_what_it_gave(dies: str = "rg_1.0", jam_s: float = 12):
    """rg_1.0 gives something else to the other groups, and gloo ends one of them."""
    yield at(20, gives_across("rg_1.0", 7))
    yield at(20, jam_across(jam_s))
    yield at(22, raises(dies, GLOO, of_peers=True))


@pytest.mark.parametrize("dies", ["rg_1.0", "rg_2.0"])
def test_who_gave_something_else_across_groups_is_named_whoever_dies_of_it(dies):
    drive = Drive(field(3, 1, *dies_of_what_it_gave(dies))).run(32)
    incident = drive.incident("mismatch")
    assert drive.accused() == {"rg_1.0"}
    assert "rank rg_1.0 calls all_reduce of 7 " in incident.verdict.reason
    assert f"{dies} died of it" in incident.verdict.reason
    assert set(drive.evicted()) == ({"rg_1"} if dies != "rg_1.0" else set())  # it is gone
    assert dies == "rg_1.0" or not any(i.open for i in drive.seen.values())


def test_who_waits_for_a_group_that_died_of_a_mismatch_is_released() -> None:
    drive = Drive(field(3, 1, *dies_of_what_it_gave(jam_s=40))).run(40)
    ((at_s, release),) = drive.releases
    assert 22 <= at_s <= 25
    assert (release.group, [each.rank for each in release.survivors]) == (
        "rg_1",
        ["rg_0.0", "rg_2.0"],
    )


def test_nobody_is_released_while_a_process_of_the_group_lives() -> None:
    fleet = field(3, 2, *dies_of_what_it_gave(jam_s=40))
    fleet.evictor_works = False
    drive = Drive(fleet).run(40)
    assert drive.incident("mismatch").culprits == ("rg_1.0",)
    assert fleet.rank("rg_1.1").alive
    assert not drive.releases


@pytest.mark.parametrize(
    "late_s", [2, 8], ids=["in the next tick", "after it was given up for a while"]
)
def test_records_that_come_late_on_a_busy_host_still_name_who_gave_something_else(late_s):

    def busy(seen: Snapshot) -> Snapshot:
        return without_records(seen) if seen.now_s < START_S + 22 + late_s else seen

    drive = Drive(field(3, 1, *dies_of_what_it_gave(jam_s=12)), alter=busy).run(40)
    assert "rg_1.0 died of it" in drive.incident("mismatch").verdict.reason
    assert drive.accused() == {"rg_1.0"}


def test_a_death_of_a_peers_word_where_all_gave_the_same_accuses_nobody_of_a_mismatch():
    drive = Drive(
        field(3, 1, at(20, jam_across(12)), at(22, raises("rg_2.0", GLOO, of_peers=True)))
    ).run(32)
    assert {i.kind for i in drive.seen.values()} == {"dead"}


# -- one hang: sooner, and in a sentence ------------------------------------------------------


@pytest.mark.parametrize("launched", [False, True], ids=["quorum", "C++"])
def test_a_lock_is_named_with_its_place_within_10_s(launched) -> None:
    script = at(20, stands("rg_1.0", "Deadlock.log_step", 66))
    drive = Drive(field(3, 1, script, launched=launched)).run(45)
    incident = drive.incident("not_entered")
    assert drive.fired[incident.id] <= 30
    assert incident.culprits == ("rg_1.0",)
    assert incident.verdict.reason.startswith(
        "rank rg_1.0 hangs in Deadlock.log_step (train.py:66), waiting for a lock, for "
    )
    assert "rg_0.0 and rg_2.0 wait for it in " in incident.verdict.reason
    assert incident.signature == "not_entered@train.py:66:Deadlock.log_step"
    assert incident.verdict.evidence["source"].startswith("stacks from outside")
    assert drive.evicted() == ["rg_1"]
    assert not drive.evicts[0][1].quarantine


def test_an_evaluation_that_nobody_declared_has_longer_and_is_told_before() -> None:
    script = at(20, stands("rg_1.0", "evaluate", 80, Doing.EVALUATE))
    drive = Drive(field(3, 1, script)).run(60)
    assert not drive.accused()
    incident = drive.incident("deadlock")
    assert incident.culprits == ()
    assert "the job stands: no progress for 3" in incident.story[0].reason
    assert "rg_1.0 is in evaluate (train.py:80), evaluating" in incident.verdict.reason
    drive.run(40)
    assert drive.accused() == {"rg_1.0"}


@pytest.mark.integration  # no processes, but 2 s of CPU
@pytest.mark.parametrize(("doing", "moves"), [
    (Doing.SAVE, True), pytest.param(Doing.EVALUATE, False, marks=only_explored),
    pytest.param(Doing.COMPILE, False, marks=only_explored),
])  # fmt: skip
def test_who_is_seen_at_work_is_told_and_not_evicted_for_ten_minutes(doing, moves) -> None:
    fleet = field(3, 1, at(20, stands("rg_1.0", "evaluate", 80, doing)))
    fleet.rank("rg_1.0").cores, fleet.rank("rg_1.0").moves = 0.9, moves
    drive = Drive(fleet).run(500)
    assert not drive.evicts
    assert not drive.accused()
    incident = drive.incident("not_entered")
    assert incident.candidates == ("rg_1.0",)
    assert drive.fired[incident.id] <= 70
    assert "the kernel sees rg_1.0 at work there" in drive.holds[-1][1].reason
    drive.run(150)
    assert drive.accused() == {"rg_1.0"}


@pytest.mark.parametrize(("lull_s", "accused"), [(6, set()), (20, {"rg_1.0"})])
def test_a_lull_in_the_work_of_a_child_is_no_hang(lull_s, accused) -> None:
    lull = at(60, sets("rg_1.0", cores=0.0)), at(60 + lull_s, sets("rg_1.0", cores=0.9))
    fleet = field(3, 1, at(20, stands("rg_1.0", "evaluate", 80, Doing.PROCESS)), *lull)
    fleet.rank("rg_1.0").cores = 0.9
    assert Drive(fleet).run(85).accused() == accused


@pytest.mark.parametrize(("times", "accused"), [(37.0, set()), (2.0, {"rg_1.0"})])
def test_an_evaluation_that_uses_hardly_a_core_is_at_work_while_its_main_thread_wakes(
    times, accused
) -> None:
    """0.045 of a core, 37 wakes a second (field case long-evaluation, 2026-11-28)."""
    fleet = field(3, 1, at(20, stands("rg_1.0", "evaluate", 80, Doing.EVALUATE)))
    wakes = reports(process(wakes_s=times, cores=0.045), "rg_1.0")
    assert Drive(fleet, alter=wakes).run(200).accused() == accused


def test_a_lock_is_no_work_however_many_cores_other_threads_use() -> None:
    fleet = field(3, 1, at(20, stands("rg_1.0", "log_step", 66)))
    fleet.rank("rg_1.0").cores = 3.0
    assert Drive(fleet).run(45).evicted() == ["rg_1"]


@pytest.mark.parametrize(("bytes_s", "accused"), [(5e6, set()), (2e3, {"rg_1.0"})])
def test_who_waits_for_a_thread_that_writes_is_at_work(bytes_s, accused) -> None:
    """The save of the step before, by `dcp.async_save`, is waited for by its future."""
    writes = reports(process(bytes_s=bytes_s, cores=0.01), "rg_1.0")
    fleet = field(3, 1, at(20, stands("rg_1.0", "save", 40, Doing.LOCK)))
    assert Drive(fleet, alter=writes).run(100).accused() == accused


def test_a_rank_that_sleeps_before_it_tries_again_is_given_30_s() -> None:
    drive = Drive(field(3, 1, at(20, stands("rg_1.0", "download", 8, Doing.SLEEP)))).run(49)
    assert not drive.fired
    assert drive.run(10).accused() == {"rg_1.0"}


def test_a_rank_that_computes_at_one_line_is_given_the_time_that_it_had() -> None:
    fleet = field(3, 1, at(20, stands("rg_1.0", "step", 30, Doing.UNKNOWN)))
    fleet.rank("rg_1.0").state = "R"
    drive = Drive(fleet).run(49)
    assert not drive.fired


# -- several at once --------------------------------------------------------------------------


def both(*ranks: str):
    return [at(20, stands(rank, "read_shard", 12, Doing.IO)) for rank in ranks]


def test_both_ranks_of_a_group_are_the_roots() -> None:
    drive = Drive(field(2, 2, *both("rg_1.0", "rg_1.1"))).run(80)
    assert drive.accused() == {"rg_1.0", "rg_1.1"}
    assert drive.evicted() == ["rg_1"]
    assert drive.incident("not_entered").verdict.reason.startswith(
        "ranks rg_1.0 and rg_1.1 hang in read_shard (train.py:12), blocked on a file, a pipe or a "
        "socket, for"
    )


def test_two_groups_of_three_in_the_same_step_are_both_named_and_the_healthy_one_never() -> None:
    drive = Drive(field(3, 1, *both("rg_1.0", "rg_2.0"))).run(120)
    assert drive.accused() == {"rg_1.0", "rg_2.0"}
    assert sorted(drive.evicted()) == ["rg_1", "rg_2"]
    assert drive.evicts[1][0] - drive.evicts[0][0] <= 3


def test_where_a_job_stands_an_error_that_torchft_hid_is_told_first() -> None:
    error = "KeyError: 'ema.decay' in given (train.py:41)"

    def seen(report: StateReport) -> StateReport:
        if report.identity.rank != "rg_0.0" or report.step is None:
            return report
        place = Frame("average", "train.py", 25)
        witness = Witness(place, Doing.COLLECTIVE, 3, 4.0, 0.5, error=error)
        return replace(report, witness=witness if report.step.waits_in else None)

    fleet = field(2, 1, at(20, hang("rg_1.0")), across=False)
    drive = Drive(fleet, KeeperConfig(observe=True), alter=reports(seen)).run(80)
    reason = drive.incident("deadlock").verdict.reason
    assert f": rg_0.0 had {error}, which TorchFT hid from the program; rg_0.0 waits" in reason
    assert not drive.accused()


def test_while_nobody_can_be_named_it_is_said_that_the_job_stands() -> None:
    """No head and no stack: one rank waits in the quorum, the other does what nobody knows."""
    fleet = field(2, 1, at(20, hang("rg_1.0")), across=False)
    drive = Drive(fleet, KeeperConfig(observe=True)).run(80)
    assert drive.fired


def test_all_of_them_blocked_on_a_file_server_that_is_away_is_told_and_nobody_accused() -> None:
    drive = Drive(field(3, 1, *both("rg_0.0", "rg_1.0", "rg_2.0"))).run(110)
    assert not drive.accused()
    assert not drive.evicts
    reason = drive.incident("deadlock").verdict.reason
    assert "the job stands: no progress for" in reason
    where = "are in read_shard (train.py:12), blocked on a file, a pipe or a socket"
    assert f"rg_0.0, rg_1.0 and rg_2.0 {where}" in reason


def test_who_stands_in_load_state_dict_when_it_comes_back_is_named_before_the_others_end() -> None:
    script = [
        at(20, restart("rg_1")),
        at(27.5, stands("rg_1.0", "load_state_dict", 28, Doing.SAVE)),
    ]
    drive = Drive(field(3, 1, *script)).run(76)
    assert drive.accused() == {"rg_1.0"}
    assert drive.evicted() == ["rg_1"]


def test_a_rank_that_hangs_in_its_first_steps_after_a_restart_is_named_before_the_others_end() -> (
    None
):
    """It has committed in this life: that is no slow start."""
    script = [at(20, restart("rg_1")), at(27.5, stands("rg_1.0", "log_step", 66))]
    fleet = field(3, 1, *script)
    drive = Drive(fleet).run(80)
    assert 0 < fleet.rank("rg_1.0").commits < 3 or drive.evicts
    assert drive.accused() == {"rg_1.0"}
    assert drive.evicts[0][0] < 28 + 55


# -- people who look --------------------------------------------------------------------------


@pytest.mark.parametrize("phased", [False, True])
@pytest.mark.parametrize("for_s", [10.0, 60.0])
def test_whoever_is_traced_is_told_with_who_looks_and_never_accused(phased, for_s) -> None:
    script = [at(20, traced("rg_1.0")), at(20 + for_s, let_go("rg_1.0"))]
    fleet = SimFleet(3, 1, script) if phased else field(3, 1, *script)
    drive = Drive(fleet).run(int(for_s) + 60)
    assert not drive.accused()
    assert not drive.evicts
    incident = drive.incident("not_entered")
    assert incident.culprits == ()
    assert "rank rg_1.0 is held by gdb (pid 4711) for" in incident.verdict.reason
    assert "rg_0.0 and rg_2.0 wait for it" in incident.verdict.reason
    assert incident.resolution is not None


def test_a_group_with_a_hung_rank_is_not_evicted_while_another_of_its_ranks_is_traced() -> None:
    script = [at(20, stands("rg_1.1", "log_step", 66)), at(22, traced("rg_1.0"))]
    drive = Drive(field(2, 2, *script)).run(60)
    assert not drive.evicts
    held = [hold for _, hold in drive.holds if hold.guard is Guard.TRACED]
    assert not held or "rg_1.0 is traced by gdb (pid 4711)" in held[0].reason
    assert drive.fired, "somebody has to be told"


def test_a_rank_that_may_wait_in_cpp_for_an_evaluating_peer_is_not_accused() -> None:
    """rg_0.0 evaluates; rg_0.1 is in a backward pass, whose wait looks like work."""
    script = [
        at(20, stands("rg_0.0", "evaluate", 206, Doing.EVALUATE)),
        at(20, stands("rg_0.1", "train_step", 33, Doing.UNKNOWN)),
    ]
    drive = Drive(field(2, 2, *script)).run(90)
    assert drive.accused() == {"rg_0.0"}


def test_beside_one_that_is_traced_nobody_of_its_group_is_accused() -> None:
    script = [at(20, traced("rg_1.1")), at(20, stands("rg_1.0", "train_step", 33, Doing.UNKNOWN))]
    drive = Drive(field(2, 2, *script)).run(90)
    assert not drive.accused()
    assert not drive.evicts


def test_who_raises_its_own_error_while_it_waits_for_another_is_told_as_well() -> None:
    script = [
        at(20, stands("rg_0.0", "log_step", 66)),
        at(36, raises("rg_2.0", "ValueError: bad shard")),
    ]
    drive = Drive(field(3, 1, *script), KeeperConfig(observe=True)).run(60)
    assert drive.accused() == {"rg_0.0", "rg_2.0"}


# -- those whom no WorkerServer reports --------------------------------------------------------


def test_a_second_life_of_a_group_is_told_and_harms_nobody() -> None:
    drive = Drive(field(3, 1, at(20, second_life("rg_1")))).run(70)
    incident = drive.incident("unseen")
    assert incident.culprits == ()
    assert "rg_1 trains twice" in incident.verdict.reason
    assert "rg_1~uuid0" in incident.verdict.reason
    assert incident.severity is Severity.WARNING
    assert not drive.evicts


def test_an_orphan_that_hangs_is_the_root_by_elimination_and_it_alone_is_put_out() -> None:
    drive = Drive(field(3, 1, at(20, second_life("rg_1")), at(60, ghosts_hang))).run(110)
    (evict,) = [decision for _, decision in drive.evicts]
    assert evict.group == "rg_1~uuid0"
    assert evict.replica_id == "rg_1:uuid0"
    assert drive.accused() == {"rg_1~uuid0.0"}
    assert drive.fleet.rank("rg_1.0").alive


def test_ids_that_beat_before_their_ranks_report_them_are_no_second_life():
    def late(snapshot: Snapshot) -> Snapshot:
        if snapshot.tick > 40:
            return snapshot
        observations = () if snapshot.tick < 12 else snapshot.observations
        untold = tuple(
            replace(observation, outcome=replace(observation.report, step=None))
            if observation.report
            else observation
            for observation in observations
        )
        return replace(snapshot, observations=untold)

    assert not Drive(field(3, 1), alter=late).run(60).seen


# -- deaths ------------------------------------------------------------------------------------


def test_a_death_says_its_exception_and_where_it_was_raised() -> None:
    error = "RuntimeError: shape mismatch: expected 65, got 64"
    drive = Drive(field(3, 1, at(20, raises("rg_2.0", error)))).run(25)
    incident = drive.incident("dead")
    assert drive.fired[incident.id] <= 21
    assert "rank rg_2.0 just died: " in incident.story[0].reason
    assert f"{error} in train_step (train.py:88)" in incident.story[0].reason
    assert incident.signature == "dead:RuntimeError@train.py:88:train_step"


def no_quorum(fleet: SimFleet) -> None:
    """Who is in the all-reduce does not get out of it."""
    fleet.no_quorum_until_s = fleet.now_s + 30


def test_survivors_that_end_because_a_peer_died_are_victims_though_launchers_are_quick() -> None:
    script = [
        at(20, no_quorum),
        at(20, ended_by("rg_1.0", "SIGKILL")),
        at(21, restart("rg_1")),
        at(22, raises("rg_0.0", "AssertionError", of_peers=True)),
        at(23, raises("rg_2.0", "RuntimeError: [gloo] Connection closed", of_peers=True)),
        at(34, restart("rg_0")),
        at(35, restart("rg_2")),
    ]
    fleet = field(3, 1, *script)
    fleet.relaunch = False
    drive = Drive(fleet).run(60)
    assert drive.accused() == {"rg_1.0"}
    resolutions = [
        incident.resolution for incident in drive.seen.values() if incident.kind == "dead"
    ]
    assert "the job ended" not in resolutions


def test_a_peer_that_dies_of_its_own_bug_soon_after_is_told_as_well() -> None:
    script = [at(20, crash("rg_1.0")), at(22, raises("rg_2.0", "ValueError: bad shard"))]
    drive = Drive(field(3, 1, *script)).run(40)
    assert drive.accused() == {"rg_1.0", "rg_2.0"}


def test_a_job_that_raises_everywhere_is_told_and_nobody_is_accused() -> None:
    script = [at(20.1 + n / 10, raises(f"rg_{n}.0", "ValueError: loss is nan")) for n in range(3)]
    fleet = field(3, 1, *script)
    fleet.relaunch = False
    drive = Drive(fleet).run(60)
    said = "ValueError: loss is nan in train_step (train.py:88)"
    assert any(said in drive.seen[key].verdict.reason for key in drive.fired)
    assert not drive.accused()


@pytest.mark.parametrize(
    "end",
    [
        raises("rg_1.0", "TimeoutError: status: Cancelled", of_peers=True),
        ended_by("rg_1.0", "SIGTERM"),
    ],
    ids=["who gave up waiting says so itself", "an operator ended it"],
)
def test_a_group_that_ends_for_another_reason_is_nobodys_fault(end) -> None:
    drive = Drive(field(3, 1, at(20, end))).run(40)
    assert not drive.accused()
    assert not drive.evicts


# -- the same again ----------------------------------------------------------------------------


def test_two_different_bugs_of_one_rank_are_not_the_same() -> None:
    script = [at(20, stands("rg_1.0", "log_step", 66)), at(80, stands("rg_1.0", "save_plot", 9))]
    drive = Drive(field(3, 1, *script)).run(130)
    assert drive.evicted() == ["rg_1", "rg_1"]
    assert [decision.keep_out for _, decision in drive.evicts] == [(), ()]
    assert drive.evicts[1][1].quarantine == ("host-rg_1",)


def test_the_same_bug_again_keeps_its_group_out_and_the_others_train_on() -> None:
    script = [at(second, stands("rg_1.0", "log_step", 66)) for second in (20, 80)]
    drive = Drive(field(3, 1, *script)).run(200)
    assert [decision.keep_out for _, decision in drive.evicts] == [(), ("rg_1",)]
    assert not any(decision.quarantine for _, decision in drive.evicts)
    assert drive.fleet.rank("rg_0.0").commits > 250
    assert not drive.fleet.rank("rg_1.0").alive
