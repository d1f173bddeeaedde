"""The lease with the monitor, against a small real HTTP server."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank.identity import under_managers_name
from lightkeeper.worker_server.rank.settings import Settings
from lightkeeper.worker_server.run_dir import RankFiles, start_ticks
from lightkeeper.worker_server.sidecar import serve
from lightkeeper.worker_server.sidecar.serve import EndpointFile, Registrar, at_once, check_self
from tests.worker_server.admissions import FakeMonitor
from tests.worker_server.boxes import FakeBox
from tests.worker_server.pages import identity
from tests.worker_server.ranks import ROOT, TOKEN, environment, eventually, run_python


def names(monitor):
    """As which groups ranks registered."""
    bodies = [body for method, _, _, body in monitor.calls if method == "POST"]
    whos = [wire.parse_registration(json.loads(body)).identity for body in bodies]
    return [(who.group, who.launched_as) for who in whos]


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(serve, "_MIN_WAIT_S", 0.05)
    monkeypatch.setattr(serve, "_LOOK_S", 0.05)


@pytest.fixture
def start_monitor():
    """`answer`: status and body, by the identity that registers."""
    with ExitStack() as stack:

        def start(answer=lambda _: (200, {}), **options):
            def said(body):
                if not body:
                    return 200, {}
                return answer(wire.parse_registration(json.loads(body)).identity)

            return stack.enter_context(closing(FakeMonitor(said, **options)))

        yield start


@pytest.fixture
def monitor(start_monitor):
    return start_monitor()


class FakeEndpoint:
    """A rank launched as `rg_1`, and what its WorkerServer makes of the monitor's answers."""

    def __init__(self, name=None, rank=0, lease_s=0.06):
        self.name, self.rank, self.lease_s = name, rank, lease_s
        self.refusals, self.complaints, self.allowed = [], [], []

    claim = wire.Claim(secret="of this incarnation")

    @property
    def identity(self):
        return under_managers_name(identity(group_rank=self.rank), self.name)

    def registration(self):
        where = "http://127.0.0.1:9"
        return wire.Registration(self.identity, where, self.lease_s, claim=self.claim)

    def refuse(self, name, why):
        self.refusals.append((name, why))
        self.name = None

    def know_as(self, name):
        self.name = wire.GroupName(name)

    def allow(self, asks_again):
        self.allowed.append(asks_again)

    def complain(self, why):
        self.complaints.append(why)


@contextmanager
def registered(url, endpoint=None, token="sesame", **options):
    """A lease that is renewed meanwhile."""
    lease = Registrar(url, endpoint or FakeEndpoint(), token, **options)
    lease.start()
    try:
        yield lease
    finally:
        lease.stop()
        lease.join(5)


def test_a_lease_is_asked_renewed_and_given_back(monitor):
    with registered(monitor.url):
        eventually(lambda: len(monitor.calls) >= 3, "renewals")
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
    lease = Registrar("http://127.0.0.1:9", FakeEndpoint(), None)
    lease._heed(200, b'{"schema": 1, "renew_s": 7}')
    lease._heed(200, f'{{"schema": 1, "renew_s": {said}}}'.encode())
    assert lease._renew_s == waits_s


def test_a_time_that_is_out_of_bounds_costs_nothing_else_of_the_answer():
    lease = Registrar("http://127.0.0.1:9", FakeEndpoint(), None)
    lease._heed(403, b'{"renew_s": 90, "asks_again": false, "error": "no"}')
    assert (lease._renew_s, lease._endpoint.allowed, lease._refusal) == (0.0, [False], "no")


def test_a_name_that_cannot_be_written_down_ends_no_lease(start_monitor):
    """The folder of the endpoint file may be full."""

    class Full(FakeEndpoint):
        def know_as(self, name):
            raise OSError(errno.ENOSPC, "No space left on device")

    monitor, endpoint = start_monitor(answer=lambda _: (200, {"known_as": "my_0"})), Full()
    with registered(monitor.url, endpoint):
        eventually(lambda: len(monitor.calls) >= 3, "it is tried again")


def test_a_monitor_says_whether_dead_connections_may_be_shut():
    lease = Registrar("http://127.0.0.1:9", FakeEndpoint(), None)
    for said in ("false", "true", "null", '"no"'):
        lease._heed(200, f'{{"asks_again": {said}}}'.encode())
    lease._heed(200, b"{}")
    assert lease._endpoint.allowed == [False, True], "what it said last stands"


def test_who_was_told_to_come_later_does(monitor, start_monitor):
    patient = start_monitor(answer=lambda _: (200, {"renew_s": 60}))
    with registered(patient.url), registered(monitor.url):
        eventually(lambda: len(monitor.calls) > 5, "the other one has renewed some times")
        assert [call[0] for call in patient.calls] == ["POST"]


def test_a_monitor_that_is_away_is_found_when_it_comes(start_monitor):
    away = start_monitor()
    away.close()
    with registered(away.url):
        late = start_monitor(port=int(away.address.rpartition(":")[2]))
        eventually(lambda: late.calls, "registration with the late monitor")


def test_a_redirect_is_not_followed_with_the_token(start_monitor):
    sly = start_monitor(status=307)
    with registered(sly.url) as lease:
        eventually(lambda: sly.calls, "the first try")
        assert lease.is_alive()


def test_two_monitors_are_both_told_and_one_that_hangs_is_not_in_the_way_of_the_other(
    monitor, start_monitor
):
    other, silent = start_monitor(), socket.create_server(("127.0.0.1", 0))
    hangs = f"http://127.0.0.1:{silent.getsockname()[1]}"
    endpoint = FakeEndpoint()
    leases = [Registrar(url, endpoint, "sesame") for url in (hangs, monitor.url, other.url)]
    for lease in leases:
        lease.start()
    eventually(lambda: len(monitor.calls) >= 2 and len(other.calls) >= 2, "both are told")
    silent.close()
    at_once(lease.stop for lease in leases)
    assert monitor.calls[-1][0] == other.calls[-1][0] == "DELETE"


# -- what a person at the rank should know -------------------------------------------------------


def complaints_of(url, until, rank=0, token="sesame"):
    """What is said at this rank until so many tries were made."""
    endpoint = FakeEndpoint(rank=rank)
    with registered(url, endpoint, token):
        eventually(until, "it was tried")
    return endpoint.complaints


@pytest.mark.parametrize(("token", "wants"), [("sesame", "another token"), (None, "a token")])
def test_a_wrong_token_is_said_once_with_what_to_set(start_monitor, token, wants):
    strict = start_monitor(status=401)
    (complaint,) = complaints_of(strict.url, lambda: len(strict.calls) >= 3, token=token)
    assert complaint == (
        f"the monitor at {strict.url} wants {wants}: set LIGHTKEEPER_TOKEN_FILE to a file that "
        "holds its token. Until then it does not see rg_1.0."
    )
    assert complaints_of(strict.url, lambda: len(strict.calls) >= 6, rank=1) == []


def test_another_refusal_is_said_in_the_monitors_words(start_monitor):
    full = start_monitor(answer=lambda _: (503, {"error": "as many ranks as may be.\x1b[2J"}))
    (complaint,) = complaints_of(full.url, lambda: len(full.calls) >= 2, rank=1)
    assert complaint == (
        f"the monitor at {full.url} refuses rank rg_1.1: as many ranks as may be. [2J. "
        "Until then it does not see rg_1.1."
    )


@pytest.mark.parametrize(
    ("options", "why", "hint"),
    [
        ({}, "Connection refused", ""),
        ({"unfit": lambda: "uid 4711 listens there", "hint": " (start it)"},
         "uid 4711 listens there", " (start it)"),
    ],
    ids=["nobody there", "not fit to be talked to"],
)  # fmt: skip
def test_a_monitor_that_never_answered_is_said_with_why_and_what_to_do(
    monkeypatch, options, why, hint
):
    monkeypatch.setattr(serve, "_ALONE_S", 0.0)
    endpoint = FakeEndpoint()
    with registered("http://127.0.0.1:1", endpoint, **options):
        eventually(lambda: endpoint.complaints, "it complains")
    (complaint,) = endpoint.complaints
    assert complaint == (
        f"the monitor at http://127.0.0.1:1 does not answer ({why}); it is asked again and "
        f"again{hint}. Until then it does not see rg_1.0."
    )


def test_a_monitor_that_went_away_is_no_complaint(monitor, monkeypatch):
    monkeypatch.setattr(serve, "_ALONE_S", 0.0)

    def goes():
        if monitor.calls and not monitor.closed:
            monitor.close()
        return monitor.closed

    assert complaints_of(monitor.url, goes) == []


@pytest.mark.integration
def test_a_rank_registers_with_its_token_and_leaves_when_its_work_is_over(
    start_rank, monitor, start_monitor, tmp_path
):
    strict, errors = start_monitor(status=401), tmp_path / "errors"
    both = f"{monitor.url},{strict.url}"
    rank = start_rank("steps", stderr_to=errors, forked=False, LIGHTKEEPER_MONITOR=both)
    rank.says("ready")
    eventually(lambda: monitor.calls, "the sidecar registers")
    method, path, token, body = monitor.calls[0]
    assert (method, path, token) == ("POST", "/v1/register", f"Bearer {TOKEN}")
    assert wire.parse_registration(json.loads(body)).url == rank.endpoint["url"]
    eventually(lambda: "wants another token" in errors.read_text(), "the rank warns")
    assert errors.read_text().count("RuntimeWarning: lightkeeper: the monitor at") == 1

    done = start_rank("finish", LIGHTKEEPER_MONITOR=monitor.url, REPLICA_GROUP="rg_2")
    done.says("ready")
    lingers = done.endpoint
    assert done.process.wait(30) == 0
    eventually(
        lambda: any(call[1].startswith("/v1/register/rg_2.0?") for call in monitor.calls),
        "the finished rank's lease is given back",
    )
    assert start_ticks(lingers["sidecar_pid"]) == lingers["sidecar_ticks"]  # not at its end only


# -- under which name ----------------------------------------------------------------------------


def register_until(monitor, endpoint, wanted):
    endpoint.lease_s = 30.0
    with registered(monitor.url, endpoint):
        eventually(lambda: names(monitor) == wanted, f"registered as {wanted}")


def test_a_rank_that_is_renamed_is_registered_under_the_new_name_at_once(start_monitor):
    endpoint = FakeEndpoint()

    def answer(who):
        endpoint.name = "my_0"  # its Manager is there now
        return 200, {}

    monitor = start_monitor(answer=answer)
    register_until(monitor, endpoint, [("rg_1", None), ("my_0", "rg_1")])
    assert monitor.calls[-1][1] == "/v1/register/my_0.0?incarnation=abc"


def test_a_name_that_is_refused_is_given_up_at_once(start_monitor):
    endpoint = FakeEndpoint("rg_2")
    refusal = 409, {"error": "rg_2 is\x1banother\ngroup", "refused_name": "rg_2"}
    monitor = start_monitor(answer=lambda who: refusal if who.group == "rg_2" else (200, {}))
    register_until(monitor, endpoint, [("rg_2", "rg_1"), ("rg_1", None)])
    assert (endpoint.refusals, endpoint.complaints) == ([("rg_2", "rg_2 is another group")], [])


def test_a_rank_that_starts_again_goes_by_the_name_that_its_group_had(start_monitor):
    monitor = start_monitor(
        answer=lambda who: (200, {"known_as": "my_0"} if not who.launched_as else {})
    )
    register_until(monitor, FakeEndpoint(), [("rg_1", None), ("my_0", "rg_1")])


@pytest.mark.parametrize(
    "words",
    [{"error": "newer"}, {"refused_name": "other"}, {"refused_name": ["rg_2"]}, ["rg_2"], None],
    ids=str,
)
def test_any_other_conflict_leaves_the_name(start_monitor, words):
    endpoint = FakeEndpoint("rg_2")
    monitor = start_monitor(answer=lambda _: (409, words))
    register_until(monitor, endpoint, [("rg_2", "rg_1")])
    assert endpoint.refusals == []


# -- the endpoint file ---------------------------------------------------------------------------


def test_where_a_sidecar_listens_and_what_became_of_its_name_is_published(tmp_path):
    box, files = FakeBox(), RankFiles(tmp_path / "a.page")
    endpoint = EndpointFile(box, files, "http://h:1")
    endpoint.publish()
    before = files.read_endpoint()
    who = box.identity
    assert (before["rank"], before["url"], before["pid"]) == ("rg_1.0", "http://h:1", who.pid)
    assert start_ticks(before["sidecar_pid"]) == before["sidecar_ticks"]
    assert endpoint.registration() == wire.Registration(
        who, "http://h:1", serve.LEASE_S, age_s=7.0, claim=box.page.claim
    )
    endpoint.know_as("my_0")
    endpoint.refuse("my_0", "another group's")
    more = {"known_as": "my_0", "refused": "my_0", "complaint": "another group's"}
    assert files.read_endpoint() == {**before, **more}
    assert (box.page.known_as, box.page.refused) == ("my_0", "my_0")


def test_a_server_marks_its_endpoint_when_it_answers_itself(tmp_path, start_monitor):
    endpoint, server = tmp_path / "a.json", start_monitor(status=401)
    endpoint.touch()
    os.utime(endpoint, ns=(0, 0))
    port = int(server.address.rpartition(":")[2])
    check_self(Settings(), port, endpoint)
    assert endpoint.stat().st_mtime_ns > 0
    check_self(Settings(), port, tmp_path / "gone")
    server.close()
    os.utime(endpoint, ns=(0, 0))
    check_self(Settings(), port, endpoint)
    assert endpoint.stat().st_mtime_ns == 0


# -- how a rank ends, sent while it ends ---------------------------------------------------------

PARTS = """
import atexit, time
atexit.register(lambda: print(time.monotonic() - began_s))
import lightkeeper
reporter = lightkeeper.attach()
@atexit.register
def begin():
    global began_s
    began_s = time.monotonic()
while reporter.url is None:
    time.sleep(0.01)
{end}
"""


def ends(run_dir, url, end, **more):
    """Its output, of a rank that ends so."""
    code = PARTS.format(end=end)
    options = {"LIGHTKEEPER_MONITOR": url, **more}
    return run_python("-c", code, run_dir=run_dir, **options)


def last_words(monitor):
    bodies = [body for method, _, _, body in monitor.calls if method == "POST"]
    registrations = [wire.parse_registration(json.loads(body)) for body in bodies]
    return [each.last for each in registrations if each.last is not None]


@pytest.mark.integration
def test_a_rank_in_a_pod_ends_only_when_its_last_words_are_there(monitor, run_dir):
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    ends(run_dir, monitor.url, "raise ValueError('bad data')", **pod)
    last = last_words(monitor)[0]  # it is there when the process is gone
    assert not last.process.alive
    assert last.ending.exception == "ValueError: bad data"


@pytest.mark.integration
def test_a_rank_that_is_killed_is_told_by_its_sidecar_and_one_whose_work_is_over_is_not(
    monitor, run_dir
):
    ends(run_dir, monitor.url, "reporter.close()")
    eventually(lambda: monitor.calls and monitor.calls[-1][0] == "DELETE", "it is given back")
    assert last_words(monitor) == []
    ends(run_dir, monitor.url, "import os; os.kill(os.getpid(), 15); time.sleep(60)")
    last = eventually(lambda: last_words(monitor), "its end is sent")[-1]
    assert last.identity.group_rank == 0


@pytest.mark.integration
def test_a_monitor_that_hangs_holds_the_end_of_a_rank_for_no_longer_than_agreed(run_dir):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
        done = ends(run_dir, url, "raise ValueError('bad data')", **pod)
    assert 0.25 < float(done.stdout) < 0.3 + 2.0  # a busy host


PROCESS_1 = """
import os, signal, sys, threading, time
{before}
import lightkeeper
reporter = lightkeeper.attach()
{after}
while reporter.url is None:
    time.sleep(0.01)
print(os.getpid(), flush=True)
{then}
"""
WAITS = "threading.Event().wait()"
BUSY = "import ctypes\nwhile True: ctypes.CDLL(None).sleep(120)"
"""In C, without the GIL."""
OWN = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))"


@contextmanager
def process_1(run_dir, url, then, before="", after=""):
    """The first process of a container without an init, and its pid outside."""
    code = PROCESS_1.format(before=before, after=after, then=then)
    environ = environment(run_dir, LIGHTKEEPER_MONITOR=url)
    words = ["unshare", "--pid", "--fork", "--mount", "--mount-proc", "--kill-child"]
    done = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no namespaces here: {done.stderr}")
    with subprocess.Popen(
        [*words, sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, text=True
    ) as outer:
        try:
            assert outer.stdout.readline() == "1\n"
            children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text()
            yield outer, int(children)
        finally:
            outer.kill()


@pytest.mark.timeout(170)
@pytest.mark.integration
@pytest.mark.parametrize("then", [WAITS, BUSY])
def test_process_1_without_a_handler_sends_last_words_and_ends_at_sigterm(monitor, run_dir, then):
    """The kernel would drop it."""
    with process_1(run_dir, monitor.url, then) as (outer, pid):
        os.kill(pid, signal.SIGTERM)
        assert outer.wait(60) == 128 + signal.SIGTERM
    last = last_words(monitor)[-1]
    assert (last.process.alive, last.process.exit_signal) == (False, "SIGTERM")


@pytest.mark.timeout(170)
@pytest.mark.integration
@pytest.mark.parametrize("set_when", ["before", "after"])
def test_process_1_with_a_handler_of_its_own_ends_as_it_likes(monitor, run_dir, set_when):
    with process_1(run_dir, monitor.url, "time.sleep(120)", **{set_when: OWN}) as (outer, pid):
        os.kill(pid, signal.SIGTERM)
        assert outer.wait(60) == 7
    last = last_words(monitor)[-1]
    assert (last.process.exit_signal, last.process.handles_sigterm) == (None, True)


FORKS = """
child = os.fork()
if not child:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    time.sleep(120)
    os._exit(0)
os.kill(child, signal.SIGTERM)
assert os.waitpid(child, 0)[1] == signal.SIGTERM
sys.exit(3)
"""


@pytest.mark.timeout(170)
@pytest.mark.integration
def test_sigterm_ends_a_process_that_process_1_forked_and_not_process_1(monitor, run_dir):
    with process_1(run_dir, monitor.url, FORKS) as (outer, _):
        assert outer.wait(60) == 3
    last = last_words(monitor)[-1]
    assert (last.process.exit_signal, last.process.handles_sigterm) == (None, False)


# -- the first of many ----------------------------------------------------------------------------


@pytest.mark.integration
def test_many_threads_may_be_the_first_to_read_a_registration():
    """A monitor that starts hears a whole fleet at once; msgspec alone crashes it."""
    ends = [run_python("-m", "tests.worker_server.first_read", cwd=ROOT) for _ in range(3)]
    assert [(done.returncode, done.stderr) for done in ends] == [(0, "")] * 3
