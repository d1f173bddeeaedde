"""The end of a quorum's exchange: its own connections are shut down, and nothing else."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from lightkeeper.worker_server.rank import exchange, gentle_end
from lightkeeper.worker_server.run_dir import RankFiles, read_json, write_json
from tests.nursery import nursery
from tests.waiting import wait_for
from tests.worker_server.ranks import environment

HERE = ["127.0.0.1"]


class Group:
    """A process group of TorchFT's, as far as this needs one."""

    def __init__(self, backend="torchft-gloo", fails=None):
        self.backend, self.fails, self.aborted = backend, fails, 0

    def getBackendName(self):  # noqa: N802  torch's name
        return self.backend

    def abort(self):
        self.aborted += 1
        if self.fails is not None:
            raise self.fails


class Peer:
    """Somebody else's end of connections: listens and keeps what comes."""

    def __init__(self, sockets, address="127.0.0.1"):
        self.listener = sockets.enter_context(socket.create_server((address, 0)))
        self.sockets = sockets
        self.port = self.listener.getsockname()[1]

    def connect(self):
        """Our end of a new connection to it."""
        return self.sockets.enter_context(socket.create_connection(self.listener.getsockname()))

    def accept(self):
        """Its end of the oldest connection without one."""
        return self.sockets.enter_context(self.listener.accept()[0])


@pytest.fixture
def sockets():
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def quorum(monkeypatch, tmp_path):
    """Which groups are configured for which quorum."""
    groups = {}
    monkeypatch.setattr(
        gentle_end, "groups_now", lambda: [(pg, n) for n in groups for pg in groups[n]]
    )
    exchange.install(RankFiles(tmp_path / "a.page"))
    yield groups
    exchange.install(RankFiles(tmp_path / "gone.page"))


def is_open(theirs):
    """Whether no end of the connection has come; on loopback it comes at once."""
    theirs.setblocking(False)
    try:
        return theirs.recv(1) != b""
    except BlockingIOError:
        return True


def test_a_release_ends_what_the_groups_configuration_opened_and_nothing_else(sockets, quorum):
    group, store, earlier = Group(), Peer(sockets), Peer(sockets)
    peers, far, later = [Peer(sockets), Peer(sockets)], Peer(sockets, "127.0.0.2"), Peer(sockets)
    earlier.connect()
    with exchange.opening_across(group, f"127.0.0.1:{store.port}/7"):
        for peer in (*peers, far, store):
            peer.connect()
        listening = sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
    later.connect()
    quorum[7] = [group]
    assert exchange.end_exchange(7, HERE) == (2, "ended 2 connections")
    assert not any(is_open(peer.accept()) for peer in peers)
    assert all(is_open(peer.accept()) for peer in (earlier, far, store, later))
    sockets.enter_context(socket.create_connection(listening.getsockname()))
    assert group.aborted == 0


def test_in_another_quorum_nothing_is_ended(sockets, quorum):
    group, peer = Group(), Peer(sockets)
    with exchange.opening_across(group, "127.0.0.1:1/7"):
        peer.connect()
    quorum[7] = [group]
    assert exchange.end_exchange(8, HERE) == (0, "it is in quorum 8 no longer")
    assert is_open(peer.accept())


def test_what_an_earlier_quorum_opened_is_not_the_groups_any_more(sockets, quorum):
    group, peer = Group(), Peer(sockets)
    for number in (6, 7):
        with exchange.opening_across(group, f"127.0.0.1:1/{number}"):
            peer.connect()
    quorum[7] = [group]
    assert exchange.end_exchange(7, HERE)[0] == 1
    assert [is_open(peer.accept()) for _ in range(2)] == [True, False]


def test_a_file_that_is_another_socket_or_no_socket_by_now_is_left_alone(sockets, quorum, tmp_path):
    group, peer = Group(), Peer(sockets)
    with exchange.opening_across(group, "127.0.0.1:1/7"):
        reused, replaced = peer.connect(), peer.connect()
    other = Peer(sockets)
    another = other.connect()
    text = sockets.enter_context((tmp_path / "text").open("w"))
    files = len(os.listdir("/proc/self/fd"))
    for of, by in ((reused, another), (replaced, text)):
        os.dup2(by.fileno(), of.fileno())
    quorum[7] = [group]
    assert exchange.end_exchange(7, HERE) == (0, "ended 0 connections")
    assert len(os.listdir("/proc/self/fd")) == files
    assert is_open(other.accept())


def test_a_group_that_is_configured_by_a_failure_or_is_gone_is_forgotten(sockets, quorum):
    peer = Peer(sockets)
    with pytest.raises(RuntimeError), exchange.opening_across(Group(), "127.0.0.1:1/7"):
        raise RuntimeError("no rendezvous")
    with exchange.opening_across(Group(), "127.0.0.1:1/7"):
        peer.connect()
    with exchange.opening_across(kept := Group(), "127.0.0.1:1/7"):
        pass
    assert [alive() for alive, *_ in exchange._across.values()] == [kept]


@pytest.mark.parametrize("backend", ["torchft-nccl", "torchft-baby-gloo", "mine"])
def test_a_group_whose_backend_is_not_gloo_is_aborted(sockets, quorum, backend):
    group, peer = Group(backend), Peer(sockets)
    with exchange.opening_across(group, "127.0.0.1:1/7"):
        peer.connect()  # NCCL's for one, over which its ranks found each other
    quorum[7] = [group]
    assert exchange.end_exchange(7, HERE) == (1, f"aborted its {backend} group")
    assert group.aborted == 1
    assert is_open(peer.accept())


def test_an_abort_that_fails_is_said_and_ends_nothing(quorum):
    quorum[7] = [Group("nccl", RuntimeError("no such communicator"))]
    ended, said = exchange.end_exchange(7, HERE)
    assert (ended, said) == (0, "abort failed: RuntimeError('no such communicator')")


def test_a_group_of_the_users_own_breaks_nothing(quorum):
    with exchange.opening_across(SimpleNamespace(), "no address"):
        pass
    with exchange.opening_across(None, ""):
        pass
    quorum[7] = [object()]
    assert exchange.end_exchange(7, HERE)[0] == 0


def test_uses_of_sockets_are_published_by_inode(sockets, quorum, tmp_path):
    group, peer = Group(), Peer(sockets)
    with exchange.opening_within():
        within = peer.connect()
    with exchange.opening_across(group, "127.0.0.1:1/7"):
        across = peer.connect()
    uses = read_json(RankFiles(tmp_path / "a.page").sockets)
    assert uses[str(os.fstat(within.fileno()).st_ino)] == "within"
    assert uses[str(os.fstat(across.fileno()).st_ino)] == "across"


def test_an_order_is_carried_out_once_and_answered(quorum, tmp_path):
    files = RankFiles(tmp_path / "a.page")
    group = quorum_group = Group("nccl")
    quorum[7] = [quorum_group]
    for number in ("one", "two"):
        write_json(files.order, {"id": number, "quorum_id": 7, "addresses": HERE})
        exchange.obey()
        exchange.obey()
        answer = wait_for(
            lambda number=number: (a := read_json(files.answer)) and a["id"] == number and a,
            within_s=30, what="an answer",
        )  # fmt: skip
        assert answer == {"id": number, "ended": 1, "said": "aborted its nccl group"}
    assert group.aborted == 2


@pytest.mark.parametrize("order", [{}, {"id": 1}, {"id": 1, "quorum_id": "7"}])
def test_an_order_that_makes_no_sense_breaks_nothing(quorum, tmp_path, order):
    files = RankFiles(tmp_path / "a.page")
    quorum[7] = [Group()]
    write_json(files.order, order)
    exchange.obey()
    files.order.write_text("{")
    exchange.obey()
    assert quorum[7][0].aborted == 0


# -- with gloo itself -----------------------------------------------------------------------------


@pytest.mark.integration
def test_ranks_that_wait_for_a_stopped_one_are_free_at_once_and_form_the_next_quorum(tmp_path):
    pytest.importorskip("torchft")
    from tests.worker_server.exchange_parent import QUORUM, files_of

    parent = nursery("torch").start(
        ["-m", "tests.worker_server.exchange_parent", tmp_path], environment(tmp_path), talks=True
    )
    try:
        pids = json.loads(parent.stdout.readline())
        for rank in (0, 1):
            wait_for((tmp_path / f"{rank}.inside").exists, within_s=60, what="both are inside")
        # the last one holds them: it is stopped
        wait_for(lambda: is_stopped(pids[2]), within_s=60, what="the third is stopped")
        order(files_of(tmp_path, 0), "early", QUORUM - 1)
        early = answer(files_of(tmp_path, 0), "early")
        assert early["ended"] == 0
        assert not (tmp_path / "0").exists()
        ordered_s = time.monotonic()
        for rank in (0, 1):
            order(files_of(tmp_path, rank), "now", QUORUM)
        for rank in (0, 1):
            assert answer(files_of(tmp_path, rank), "now")["ended"] >= 1  # the other may be first
            wait_for((tmp_path / str(rank)).exists, within_s=60, what="it is free")
            seen = json.loads((tmp_path / str(rank)).read_text())
            assert seen["error"]
            assert seen["freed_s"] - ordered_s < 2.0
            assert seen["before"] == seen["after"]  # gloo listens, the store is connected
            assert min(seen["after"]) >= 1
            assert seen["next"] == 2.0
    finally:
        parent.kill()  # its children die with it
        parent.wait()
        parent.stdin.close()
        parent.stdout.close()


def is_stopped(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


def order(files, name, quorum_id):
    write_json(files.order, {"id": name, "quorum_id": quorum_id, "addresses": HERE})


def answer(files, name):
    def said():
        content = read_json(files.answer)
        return content if content and content["id"] == name else None

    return wait_for(said, within_s=60, what=f"the answer to {name}")


def fails_to_join():
    with exchange.opening_across(Group(), "n:29500/1"):
        assert read_json(exchange._files.sockets)["joining"] == "n:29500"
        raise RuntimeError("timed out")


def test_who_failed_to_join_joins_no_longer_and_sees_its_own_error(quorum):
    with pytest.raises(RuntimeError, match="timed out"):
        fails_to_join()
    assert "joining" not in read_json(exchange._files.sockets)


def test_sockets_that_cannot_be_published_reach_nobody(quorum, monkeypatch):
    def breaks(**_):
        raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr(exchange, "_publish", breaks)
    with exchange.opening_across(Group(), "n:29500/1"), exchange.opening_within():
        pass
