"""Who gets which signal, on a fake process; and who goes with it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.sidecar.process import EvictionResult, Family, Relation, evict
from tests.worker_server.doubles import FakeProcess


class FakeStarted:
    """Two processes that the rank has started, one of which cannot die."""

    def __init__(self, rank):
        self.rank = rank
        self.did = []

    def look(self):
        self.did.append("look while it lives" if not self.rank.dead else "look")

    def end(self, wait_s):
        self.did.append("end")
        return 1, 1


def put_out(rank, seen, grace_s=2.0):
    return evict(rank, seen, grace_s, FakeStarted(rank))


def view(state="S", beat=0.5, alive=True):
    return wire.Process(alive=alive, state=state, interpreter_age_s=beat)


TERM, KILL = "SIGTERM", "SIGKILL"


@pytest.mark.parametrize(
    ("dies_of", "seen", "signalled", "gone"),
    [
        pytest.param(TERM, view(), (TERM,), True, id="listens"),
        pytest.param(KILL, view(), (TERM, KILL), True, id="ignores sigterm"),
        pytest.param(KILL, view("T"), (KILL,), True, id="stopped"),
        pytest.param(TERM, view("t"), (TERM,), True, id="traced, as while its stacks are taken"),
        pytest.param(KILL, view("t", beat=3.1), (KILL,), True, id="traced, no beat"),
        pytest.param(KILL, view(beat=3.1), (KILL,), True, id="no beat"),
        pytest.param(TERM, view(beat=2.9), (TERM,), True, id="late beat"),
        pytest.param(TERM, view(beat=None), (TERM,), True, id="beat unknown"),
        pytest.param("", view("D"), (TERM, KILL), False, id="in the kernel"),
        pytest.param("", view(alive=False), (), True, id="dead before"),
    ],
)
def test_signals(dies_of, seen, signalled, gone):
    rank = FakeProcess(dies_of)
    assert put_out(rank, seen) == EvictionResult(signalled, gone, 1, 1)
    assert tuple(rank.sent) == signalled


def test_the_grace_is_waited_for_between_the_two():
    rank = FakeProcess("SIGKILL")
    put_out(rank, view(), 7.5)
    assert rank.waited[0] == 7.5


def test_a_rank_that_dies_by_itself_meanwhile_is_gone_and_was_not_signalled():
    rank = FakeProcess()
    rank.dead = True
    assert put_out(rank, view()) == EvictionResult((), True, 1, 1)


@pytest.mark.parametrize("dies_of", ["SIGTERM", "SIGKILL"])
def test_who_was_started_is_looked_for_while_the_rank_lives_and_ended_after_it(dies_of):
    rank = FakeProcess(dies_of)
    started = FakeStarted(rank)
    evict(rank, view(), 2.0, started)
    looks = 1 if dies_of == "SIGTERM" else 2
    assert started.did == ["look while it lives"] * looks + ["end"]


RANK, AGENT, SIDECAR, OTHER = 10, 5, 90, 30
OWN_GROUP = 89


def found(table, leads=None, spared=(), dead=False):
    relations = {pid: Relation(*row, 7) for pid, row in table.items()}
    if leads is not None:
        relations[RANK] = Relation(*leads, 7)
    family = Family(RANK, lambda: spared, lambda: relations, OWN_GROUP)
    if dead:
        del relations[RANK]
        relations = {pid: relation._replace(parent=1) for pid, relation in relations.items()}
    return family._find(relations)


TREE = {  # pid: parent, group, session
    1: (0, 1, 1), AGENT: (1, AGENT, AGENT), OTHER: (AGENT, OTHER, OTHER), 31: (OTHER, OTHER, OTHER),
    11: (RANK, RANK, RANK), 12: (11, 12, 12), 13: (1, RANK, RANK), 14: (1, 14, RANK),
    SIDECAR: (1, OWN_GROUP, RANK), 91: (SIDECAR, OWN_GROUP, RANK), 40: (1, 40, 40),
}  # fmt: skip


def test_a_family_is_the_ranks_descendants_and_the_group_and_session_that_it_leads():
    assert found(TREE, leads=(AGENT, RANK, RANK)) == {11, 12, 13, 14}
    assert found(TREE, leads=(AGENT, AGENT, AGENT)) == {11, 12}


def test_of_a_dead_leader_group_and_session_are_left_and_what_they_started():
    assert found(TREE, leads=(AGENT, RANK, RANK), dead=True) == {11, 13, 14}
    assert found(TREE, leads=(AGENT, AGENT, AGENT), dead=True) == set()


def test_a_rank_that_is_the_init_of_its_container_does_not_take_its_sidecar_along():
    tree = {**TREE, SIDECAR: (RANK, OWN_GROUP, RANK), 91: (SIDECAR, OWN_GROUP, RANK)}
    assert found(tree, leads=(0, RANK, RANK)) == {11, 12, 13, 14}


def test_another_rank_that_this_one_has_started_is_spared_with_all_that_is_its():
    tree = {**TREE, OTHER: (11, RANK, RANK), 31: (OTHER, RANK, RANK)}
    assert found(tree, leads=(AGENT, RANK, RANK), spared={OTHER}) == {11, 12, 13, 14}
    parent_is_a_rank = found(TREE, leads=(AGENT, RANK, RANK), spared={AGENT, OTHER})
    assert parent_is_a_rank == {11, 12, 13, 14}


def test_a_stranger_that_has_got_the_number_of_a_dead_one_loses_nothing(monkeypatch):
    held = []
    monkeypatch.setattr(
        "lightkeeper.worker_server.sidecar.process.PidfdProcess", lambda *who: held.append(who)
    )
    relations = {pid: Relation(*row, 7) for pid, row in TREE.items()}
    relations[RANK] = Relation(AGENT, RANK, RANK, 7)
    family = Family(RANK, tuple, lambda: dict(relations), OWN_GROUP)
    family.look()
    before = set(held)
    strangers = {RANK: (1, RANK, RANK), 11: (1, 11, 11), 60: (11, 11, 11), 61: (RANK, RANK, RANK)}
    relations = {pid: Relation(*row, 8) for pid, row in strangers.items()}
    family.look()
    assert {pid for pid, _ in before} == {11, 12, 13, 14}
    assert set(held) == before


FORKS = """
import os, signal, sys, time
def child(then):
    if not os.fork():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        then()
        os.write(1, b"%d\\n" % os.getpid())  # whole, among others that write
        time.sleep(1000)
def orphan():
    parent = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == parent:  # who is counted has no parent any more
        time.sleep(0.001)
child(lambda: None)
child(os.setsid)
child(orphan)
time.sleep(1000)
"""


@pytest.mark.integration
def test_workers_forks_and_orphans_of_a_real_process_are_ended_and_nobody_else():
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    rank = subprocess.Popen(
        [sys.executable, "-c", FORKS], stdout=subprocess.PIPE, start_new_session=True
    )
    pids = [int(rank.stdout.readline()) for _ in range(3)]
    try:
        family = Family(rank.pid, tuple)
        family.look()
        rank.kill()
        rank.wait(10)
        assert family.end(10.0) == (3, 0)
        assert bystander.poll() is None
    finally:
        for process in (rank, bystander):
            process.kill()
            process.wait(10)
        rank.stdout.close()
        bystander.stdin.close()
        for pid in pids:
            if os.path.exists(f"/proc/{pid}"):
                os.kill(pid, 9)


@pytest.mark.integration
def test_a_worker_that_is_blocked_goes_with_its_rank(start_rank):
    rank = start_rank("worker")
    rank.says("ready")
    answer = rank.evict(grace_s=5.0)
    assert (answer["gone"], answer["started_gone"], answer["started_left"]) == (True, 1, 0)
    assert rank.state().process.alive is False
