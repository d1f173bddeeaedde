"""What the measuring child says where a measurement fails, without torch."""

from __future__ import annotations

import io
import json
import socket
import threading
from functools import partial

import pytest

from lightkeeper.worker_server import preflight_probe as probe
from lightkeeper.worker_server import wire


@pytest.fixture
def said(monkeypatch):
    """The notes so far."""
    out = io.StringIO()
    monkeypatch.setattr(probe, "_PARENT", out)
    lines = lambda: [json.loads(line) for line in out.getvalue().splitlines()]  # noqa: E731
    return lambda: [tuple(line["note"]) for line in lines() if "note" in line]


def test_a_device_that_raises_is_bad_though_the_others_are_measured(said):
    done = []

    def work(number):
        if number == 2:
            raise RuntimeError("CUDA error:\nunspecified launch failure")
        done.append(number)

    probe._guarded("matrix multiplication", partial(probe._each, work, range(4)))
    assert sorted(done) == [0, 1, 3]
    said_of_it = "RuntimeError: device 2: CUDA error: unspecified launch failure"
    assert said() == [("matrix multiplication", "bad", said_of_it)]


def test_what_hangs_is_left_behind(said):
    release = threading.Event()
    probe._guarded("disk", release.wait, 0.05)
    release.set()
    assert said() == [("disk", "bad", "no answer in 0 s")]


class Witness:
    name = "kernel log"

    def look(self, ranks, now_s):
        assert ranks == ()
        return [
            wire.Testimony("kernel log", wire.Weight.BROKEN, "xid-79", "GPU 3: Xid 79"),
            wire.Testimony("kernel log", wire.Weight.SLOW, "thermal", "throttled"),
        ]


def test_only_a_host_that_needs_repair_is_bad_by_its_witnesses(said):
    probe._witness(Witness())
    assert said() == [("kernel log", "bad", "GPU 3: Xid 79"), ("kernel log", "note", "throttled")]


@pytest.mark.parametrize(
    ("addresses", "state"),
    [(["127.0.0.1", "::1"], "bad"), (["127.0.1.1", "10.0.0.7", "fe80::1%eth0"], "fine")],
)
def test_a_store_on_loopback_is_bad_where_several_hosts_need_it(
    said, monkeypatch, addresses, state
):
    rows = [(0, 0, 0, "", (address, 0)) for address in addresses]
    monkeypatch.setattr(probe.socket, "getaddrinfo", lambda *_: rows)
    probe._guarded("store's name", partial(probe._name, "store's name", "head", "bad"))
    (note,) = said()
    assert note[:2] == ("store's name", state)
    assert note[2].startswith("head leads to ")


def test_a_store_whose_name_leads_nowhere_is_bad(said):
    away = partial(probe._name, "store's name", "no-such-host.invalid", "bad")
    probe._guarded("store's name", away)
    assert [note[1] for note in said()] == ["bad"]


def test_a_lighthouse_that_is_away_is_bad(said, closed_port):
    probe._guarded("Lighthouse", partial(probe._reach, f"http://127.0.0.1:{closed_port}"))
    ((check, state, text),) = said()
    assert (check, state, "refused" in text) == ("Lighthouse", "bad", True)


def test_a_lighthouse_that_answers_is_fine(said):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        probe._guarded("Lighthouse", partial(probe._reach, url))
    assert said() == [("Lighthouse", "fine", f"{url} answers")]


@pytest.fixture
def closed_port():
    """Bound, and nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


class Stores(dict):
    """A store in this process."""

    def add(self, key, count):
        self[key] = self.get(key, 0) + count
        return self[key]

    def set(self, key, value):
        self[key] = value

    def check(self, keys):
        return all(key in self for key in keys)

    def wait(self, keys, timeout):
        if not self.check(keys):
            raise RuntimeError("timeout")


def meet(store, **plan):
    plan = {"host": "n0", "hosts": 2, "arrive_s": 0.1, **plan}
    plan |= {"store_host": "127.0.0.1", "store_port": 1}
    return probe._meet(lambda *_, **__: store, plan, 0.0)


def test_who_is_missing_is_named_by_its_number(said):
    assert meet(Stores()) is None
    assert said() == [("hosts", "missing", "n0 came in time, of 2")]


def test_a_host_that_comes_too_late_is_looked_at_alone(said):
    store = Stores()
    store.update({"arrived": 2, "name/0": '["n1", 0]', "name/1": '["n2", 1]'})
    assert meet(store) is None
    assert "too late" in said()[-1][2]


def test_a_host_that_died_while_it_arrived_moves_nobody(said):
    store = Stores()
    store.update({"arrived": 1, "name/2": '["n2", 2]'})  # number 0 said no more
    meeting, names = meet(store, hosts=3)
    assert (meeting.number, names) == (0, ["n0", "n2"])


def test_a_store_that_cannot_be_reached_is_a_missing_peer(said):
    def refuse(*_, **__):
        raise RuntimeError("connection refused\nat socket.cpp")

    plan = {"host": "n0", "hosts": 2, "arrive_s": 0.1}
    plan |= {"store_host": "127.0.0.1", "store_port": 1}
    assert probe._meet(refuse, plan, 0.0) is None
    assert said() == [("hosts", "missing", "127.0.0.1:1: connection refused")]
