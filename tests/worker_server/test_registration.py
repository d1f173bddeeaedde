"""The lease with the monitor, against a small real HTTP server."""

from __future__ import annotations

import json
import socket

import pytest

from tests.http_server import FakeServer
from tests.worker_server.pages import identity
from tests.worker_server.ranks import TOKEN, eventually
from worker_server import wire
from worker_server.rank.identity import renamed
from worker_server.run_dir import start_ticks
from worker_server.sidecar import serve
from worker_server.sidecar.serve import Registrar, give_back


class FakeMonitor(FakeServer):
    def __init__(self, port=0, status=200, answer=lambda _: (200, {})):
        """`answer`: status and body, by the identity that registers."""
        super().__init__(port=port)
        self.status, self.answer = status, answer
        self.calls = []

    def serve(self, handler, method, path, body):
        self.calls.append((method, path, handler.headers["Authorization"], body))
        said, words = self.status, {}
        if said == 200 and body:
            said, words = self.answer(wire.parse_registration(json.loads(body)).identity)
        elsewhere = "http://127.0.0.1:1/elsewhere"
        handler.reply(said, "application/json", json.dumps(words).encode(), Location=elsewhere)


@pytest.fixture
def monitor():
    fake = FakeMonitor()
    yield fake
    fake.close()


def ignore(*_):
    """Nothing is said of its name."""


def registrar(url, lease_s=0.06):
    said = wire.Registration(identity(), "http://127.0.0.1:9", lease_s)
    return Registrar(
        url, lambda: said, "sesame", refused=ignore, known_as=ignore, complained=ignore
    )


def test_a_lease_is_asked_renewed_and_given_back(monitor):
    lease = registrar(monitor.url)
    lease.start()
    eventually(lambda: len(monitor.calls) >= 3, "renewals")
    lease.stop()
    lease.join(5)
    method, path, token, body = monitor.calls[0]
    assert (method, path, token) == ("POST", "/v1/register", "Bearer sesame")
    assert wire.parse_registration(json.loads(body)).identity == identity()
    assert monitor.calls[-1][:3] == (
        "DELETE", "/v1/register/rg_1.0?incarnation=abc", "Bearer sesame",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("said", "waits_s"),
    [("40", 40), ("0.5", 0.5), ("60", 60), ("60.1", 7), ("-1", 7), ("NaN", 7), ("1e999", 7),
     ("true", 7), ('"40"', 7), ("null", 7)],
)  # fmt: skip
def test_a_monitor_of_many_says_when_to_come_again_within_bounds(said, waits_s):
    lease = registrar("http://127.0.0.1:9")
    lease._heed(b'{"schema": 1, "renew_s": 7}')
    lease._heed(f'{{"schema": 1, "renew_s": {said}}}'.encode())
    assert lease._renew_s == waits_s


def test_who_was_told_to_come_later_does(monitor):
    patient = FakeMonitor(answer=lambda _: (200, {"renew_s": 60}))
    leases = [registrar(url) for url in (patient.url, monitor.url)]
    try:
        for lease in leases:
            lease.start()
        eventually(lambda: len(monitor.calls) > 5, "the other one has renewed some times")
        assert [call[0] for call in patient.calls] == ["POST"]
    finally:
        for lease in leases:
            lease.stop()
            lease.join(5)
        patient.close()


def test_a_monitor_that_is_away_is_found_when_it_comes():
    away = FakeMonitor()
    away.close()
    lease = registrar(away.url)
    lease.start()
    late = FakeMonitor(port=int(away.address.rpartition(":")[2]))
    try:
        eventually(lambda: late.calls, "registration with the late monitor")
    finally:
        lease.stop()
        lease.join(5)
        late.close()


def test_a_redirect_is_not_followed_with_the_token():
    sly = FakeMonitor(status=307)
    lease = registrar(sly.url)
    try:
        lease.start()
        eventually(lambda: sly.calls, "the first try")
        assert lease.is_alive()
    finally:
        lease.stop()
        lease.join(5)
        sly.close()


# -- what a person at the rank should know -------------------------------------------------------


def complaints_of(monitor_url, until, rank=0, token="sesame"):
    """What is said at this rank until so many tries were made."""
    said = wire.Registration(identity(group_rank=rank), "http://127.0.0.1:9", 0.06)
    heard = []
    lease = Registrar(
        monitor_url, lambda: said, token, refused=ignore, known_as=ignore, complained=heard.append
    )
    lease.start()
    try:
        eventually(until, "it was tried")
    finally:
        lease.stop()
        lease.join(5)
    return heard


@pytest.mark.parametrize(("token", "wants"), [("sesame", "another token"), (None, "a token")])
def test_a_wrong_token_is_said_once_with_what_to_set(token, wants):
    strict = FakeMonitor(status=401)
    heard = complaints_of(strict.url, lambda: len(strict.calls) >= 3, token=token)
    assert heard == [
        (
            f"the monitor at {strict.url} wants {wants}: set LIGHTKEEPER_TOKEN_FILE to a file that "
            "holds its token. Until then it does not see rg_1.0."
        )
    ]
    assert complaints_of(strict.url, lambda: len(strict.calls) >= 6, rank=1) == []
    strict.close()


def test_another_refusal_is_said_in_the_monitors_words(answering):
    full = answering(lambda _: (503, {"error": "as many ranks as may be.\x1b[2J"}))
    heard = complaints_of(full.url, lambda: len(full.calls) >= 2, rank=1)
    assert heard == [
        (
            f"the monitor at {full.url} refuses rank rg_1.1: as many ranks as may be. [2J. "
            "Until then it does not see rg_1.1."
        )
    ]


def test_a_monitor_that_never_answered_is_said_and_one_that_went_away_is_not(monkeypatch):
    monkeypatch.setattr(serve, "_ALONE_S", 0.0)
    nobody = "http://127.0.0.1:1"
    heard = []
    said = wire.Registration(identity(), "http://127.0.0.1:9", 0.06)
    lease = Registrar(
        nobody, lambda: said, "sesame", refused=ignore, known_as=ignore, complained=heard.append
    )
    lease.start()
    eventually(lambda: heard, "it complains")
    lease.stop()
    assert heard == [
        (
            f"the monitor at {nobody} does not answer (Connection refused); it is asked again and "
            "again. Until then it does not see rg_1.0."
        )
    ]
    went = FakeMonitor()

    def goes():
        if went.calls and not went.closed:
            went.close()
        return went.closed

    assert complaints_of(went.url, goes) == []


@pytest.mark.integration
def test_the_rank_warns_of_a_wrong_token(start_rank, tmp_path):
    strict, errors = FakeMonitor(status=401), tmp_path / "errors"
    rank = start_rank("steps", stderr_to=errors, LIGHTKEEPER_MONITOR=strict.url)
    rank.says("ready")
    eventually(lambda: "wants another token" in errors.read_text(), "the rank warns")
    assert errors.read_text().count("RuntimeWarning: lightkeeper: the monitor at") == 1
    strict.close()


@pytest.mark.integration
def test_a_rank_registers_with_its_token_and_leaves_when_its_work_is_over(start_rank, monitor):
    rank = start_rank("steps", LIGHTKEEPER_MONITOR=monitor.url)
    rank.says("ready")
    eventually(lambda: monitor.calls, "the sidecar registers")
    method, path, token, body = monitor.calls[0]
    assert (method, path, token) == ("POST", "/v1/register", f"Bearer {TOKEN}")
    assert wire.parse_registration(json.loads(body)).url == rank.endpoint["url"]

    done = start_rank("finish", LIGHTKEEPER_MONITOR=monitor.url, REPLICA_GROUP="rg_2")
    done.says("ready")
    lingers = done.endpoint
    assert done.process.wait(30) == 0
    eventually(
        lambda: any(call[1].startswith("/v1/register/rg_2.0?") for call in monitor.calls),
        "the finished rank's lease is given back",
    )
    assert start_ticks(lingers["sidecar_pid"]) == lingers["sidecar_ticks"]  # not at its end only


def test_two_monitors_are_both_told_and_one_that_hangs_is_not_in_the_way_of_the_other(monitor):
    other, silent = FakeMonitor(), socket.create_server(("127.0.0.1", 0))
    registration = wire.Registration(identity(), "http://127.0.0.1:9", 0.06)
    hangs = f"http://127.0.0.1:{silent.getsockname()[1]}"
    leases = [
        Registrar(
            url, lambda: registration, "sesame", refused=ignore, known_as=ignore, complained=ignore
        )
        for url in (hangs, monitor.url, other.url)
    ]
    for lease in leases:
        lease.start()
    eventually(lambda: len(monitor.calls) >= 2 and len(other.calls) >= 2, "both are told")
    silent.close()
    give_back(leases)
    assert monitor.calls[-1][0] == other.calls[-1][0] == "DELETE"
    other.close()


class Names:
    """A rank launched as `rg_1`, and what its WorkerServer makes of the monitor's answers."""

    def __init__(self, name=None):
        self.name, self.refusals, self.complaints = name, [], []

    def registration(self):
        return wire.Registration(renamed(identity(), self.name), "http://127.0.0.1:9", 30.0)

    def refused(self, name, why):
        self.refusals.append((name, why))
        self.name = None

    def known_as(self, name):
        self.name = wire.GroupName(name)

    def register_with(self, monitor, names):
        """Until these names were registered."""
        lease = Registrar(
            monitor.url,
            self.registration,
            "sesame",
            refused=self.refused,
            known_as=self.known_as,
            complained=self.complaints.append,
        )
        lease.start()
        try:
            eventually(lambda: registered(monitor) == names, f"registered as {names}")
        finally:
            lease.stop()
            lease.join(5)


def registered(monitor):
    bodies = [body for method, _, _, body in monitor.calls if method == "POST"]
    whos = [wire.parse_registration(json.loads(body)).identity for body in bodies]
    return [(who.group, who.launched_as) for who in whos]


@pytest.fixture
def answering():
    made = []

    def start(answer):
        made.append(FakeMonitor(answer=answer))
        return made[-1]

    yield start
    for fake in made:
        fake.close()


def test_a_rank_that_is_renamed_is_registered_under_the_new_name_at_once(answering):
    names = Names()

    def answer(who):
        names.name = "my_0"  # its Manager is there now
        return 200, {}

    monitor = answering(answer)
    names.register_with(monitor, [("rg_1", None), ("my_0", "rg_1")])
    assert monitor.calls[-1][1] == "/v1/register/my_0.0?incarnation=abc"


def test_a_name_that_is_refused_is_given_up_at_once(answering):
    names, why = Names("rg_2"), "rg_2 is another group"
    refusal = 409, {"error": "rg_2 is\x1banother\ngroup", "refused_name": "rg_2"}
    monitor = answering(lambda who: refusal if who.group == "rg_2" else (200, {}))
    names.register_with(monitor, [("rg_2", "rg_1"), ("rg_1", None)])
    assert names.refusals == [("rg_2", why)]


def test_a_rank_that_starts_again_goes_by_the_name_that_its_group_had(answering):
    monitor = answering(lambda who: (200, {"known_as": "my_0"} if not who.launched_as else {}))
    Names().register_with(monitor, [("rg_1", None), ("my_0", "rg_1")])


@pytest.mark.parametrize(
    "words",
    [{"error": "newer"}, {"refused_name": "other"}, {"refused_name": ["rg_2"]}, ["rg_2"], None],
    ids=str,
)
def test_any_other_conflict_leaves_the_name(answering, words):
    names = Names("rg_2")
    names.register_with(answering(lambda _: (409, words)), [("rg_2", "rg_1")])
    assert names.refusals == []
