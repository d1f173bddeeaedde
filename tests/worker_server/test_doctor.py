"""`lightkeeper doctor`: every finding, provoked."""

from __future__ import annotations

import json
import re
import time
from email.utils import formatdate

import pytest

from lightkeeper.worker_server import doctor, run_dir
from lightkeeper.worker_server.doctor import FAILED, OK, UNKNOWN, WARNING, RankHere
from tests.http_server import FakeServer
from tests.ports import free_port
from tests.worker_server.ranks import ROOT


class Server(FakeServer):
    """Answers with what the test puts into `answers`, by path; 404 else."""

    def __init__(self):
        super().__init__()
        self.answers: dict[str, object] = {}
        self.date = formatdate(usegmt=True)
        self.tokens: list[str | None] = []

    def serve(self, handler, method, path, body):
        self.tokens.append(handler.headers["Authorization"])
        path = path.partition("?")[0]
        handler.date_time_string = lambda: self.date
        status = 200 if path in self.answers else 404
        handler.reply(status, "application/json", json.dumps(self.answers.get(path)).encode())


@pytest.fixture
def server():
    made = Server()
    yield made
    made.close()


def told(checks):
    return [(check.check, check.state) for check in checks]


def rank(url=None, **environ):
    return RankHere("rg_1.0", environ, url)


# -- the host ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("have", "states"),
    [
        ({"torch": "2.15.0+cu132", "torchft-nightly": "2026.10.26"}, [OK, OK]),
        ({"torch": "3.0.0", "torchft": "0.2.0"}, [WARNING, OK]),
        ({}, [UNKNOWN, UNKNOWN]),
    ],
)
def test_versions(monkeypatch, have, states):
    monkeypatch.setattr(doctor, "_version", have.get)
    assert [check.state for check in doctor.of_versions()] == states


def test_the_run_directory(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for places, state in ((["a"], OK), (["file", "a"], WARNING), (["file"], FAILED)):
        folders = tuple(tmp_path / place for place in places)
        monkeypatch.setattr(run_dir, "candidates", lambda _, folders=folders: folders)
        finding = doctor.of_run_directory({})
        assert (finding.state, "file" in finding.said) == (state, "file" in places)


@pytest.mark.parametrize(("scope", "state"), [("0", OK), ("1", OK), ("2", WARNING), ("3", WARNING)])
def test_ptrace(tmp_path, scope, state):
    (tmp_path / "sys/kernel/yama").mkdir(parents=True)
    (tmp_path / "sys/kernel/yama/ptrace_scope").write_text(scope)
    assert doctor.of_ptrace(tmp_path).state == state


# -- a rank's environment --------------------------------------------------------------------------


def test_settings_and_token(tmp_path):
    assert told(doctor.of_settings(rank(LIGHTKEEPER_TOKEN=""))) == [("token", WARNING)]
    assert told(doctor.of_settings(rank(LIGHTKEEPER_TOKEN="s"))) == [("token", OK)]
    missing = rank(LIGHTKEEPER_TOKEN_FILE=str(tmp_path / "no"))
    assert told(doctor.of_settings(missing)) == [("settings", FAILED)]


@pytest.mark.parametrize(
    ("environ", "state"),
    [
        ({}, OK),
        ({"TORCH_FR_BUFFER_SIZE": "20000"}, OK),
        ({"TORCH_FR_BUFFER_SIZE": "0"}, FAILED),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, FAILED),
        ({"TORCH_FR_BUFFER_SIZE": "20"}, WARNING),
        ({"TORCH_FR_BUFFER_SIZE": "many"}, FAILED),
    ],
)
def test_the_recorders_size(environ, state):
    assert told(doctor.of_buffers(rank(**environ))) == [("flight recorder's size", state)]


@pytest.mark.parametrize(
    ("environ", "state"),
    [
        ({}, OK),
        ({"TORCHFT_TIMEOUT_SEC": "20"}, WARNING),
        ({"TORCHFT_QUORUM_TIMEOUT_SEC": "10"}, WARNING),
        ({"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "60"}, FAILED),
        ({"TORCHFT_QUORUM_TIMEOUT_SEC": "900"}, FAILED),
        ({"TORCHFT_TIMEOUT_SEC": "soon"}, OK),
    ],
)
def test_the_order_of_the_timeouts(environ, state):
    assert told(doctor.of_timeouts(rank(**environ))) == [("timeouts", state)]


@pytest.mark.parametrize(
    ("state", "checks"),
    [
        ({}, [("WorkerServer", OK)]),
        ({"timeouts": {"collective": 60.0}}, [("WorkerServer", OK)]),
        (
            {"timeouts": {"collective": 8.0, "quorum": 60.0}},
            [("WorkerServer", OK), ("timeouts", WARNING)],
        ),
        ([], [("WorkerServer", FAILED)]),
    ],
)
def test_timeouts_of_the_program_leave_time_to_name_a_hang(server, state, checks):
    assert told(doctor.of_program(rank(server.url))) == [("WorkerServer", FAILED)]
    server.answers = {"/v1/state": state}
    assert told(doctor.of_program(rank(server.url))) == checks
    assert told(doctor.of_program(rank())) == []


# -- the monitor -----------------------------------------------------------------------------------


def test_a_monitor_that_is_not_set_or_away(server):
    assert told(doctor.of_monitors([rank()])) == [("monitor", FAILED)]
    assert told(doctor.of_monitors([rank(LIGHTKEEPER_MONITOR=server.url)])) == [("monitor", FAILED)]
    nobody = f"http://127.0.0.1:{free_port()}"
    (finding,) = doctor.of_monitors([rank(LIGHTKEEPER_MONITOR=nobody)])
    assert (finding.state, finding.said) == (FAILED, f"{nobody}: Connection refused")


@pytest.mark.parametrize(
    ("health", "state"), [("healthy", OK), ("unreachable", FAILED), (None, FAILED)]
)
def test_a_monitor_sees_the_ranks_or_not(server, health, state):
    own, another = {"url": "http://127.0.0.1:1"}, {"url": "http://127.0.0.1:2"}
    ranks = [{"rank": "rg_1.0", "health": "healthy", **another}]  # of the same name
    ranks += [] if health is None else [{"rank": "train_1.0", "health": health, **own}]
    server.answers = {"/healthz": {}, "/v1/ranks": {"ranks": ranks}}
    here = rank(own["url"], LIGHTKEEPER_MONITOR=server.url, LIGHTKEEPER_TOKEN="sesame")
    findings = list(doctor.of_monitors([here]))
    assert told(findings) == [
        ("monitor", OK), ("clock", OK), ("monitor sees the ranks", state),
    ]  # fmt: skip
    assert set(server.tokens) == {None, "Bearer sesame"}, "the token is for what asks for it"
    assert findings[-1].where == ("rg_1.0" if health is None else "train_1.0")


def test_what_its_worker_server_has_to_say_is_the_advice(server):
    server.answers = {"/healthz": {}, "/v1/ranks": {"ranks": []}}
    here = RankHere("rg_1.0", {"LIGHTKEEPER_MONITOR": server.url}, "http://h:1", "it refuses rg_1")
    assert list(doctor.of_monitors([here]))[-1].do == "it refuses rg_1"


def test_ranks_of_another_monitor_are_a_note(server):
    server.answers = {"/healthz": {}, "/v1/ranks": {"ranks": []}}
    theirs = rank("http://127.0.0.1:1", LIGHTKEEPER_MONITOR=f"http://127.0.0.1:{free_port()}")
    findings = list(doctor.of_monitors([theirs], {"LIGHTKEEPER_MONITOR": server.url}))
    assert told(findings) == [("monitor", OK)]
    assert "another job's" in findings[0].said
    assert told(doctor.of_monitors([theirs])) == [("monitor", FAILED)]


def test_a_monitor_that_wants_another_token_and_whose_clock_is_off(server):
    server.answers = {"/healthz": {}}
    server.date = formatdate(time.time() - 60, usegmt=True)
    here = rank("http://127.0.0.1:1", LIGHTKEEPER_MONITOR=server.url)
    assert told(doctor.of_monitors([here])) == [
        ("monitor", OK), ("clock", WARNING), ("monitor sees the ranks", UNKNOWN),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("version", "environ", "states"),
    [
        ("0.2.0", {"TORCHFT_LIGHTHOUSE": "http://h:1"}, [WARNING]),
        ("0.2.0", {"TORCHFT_LIGHTHOUSE": "http://h:1", "LIGHTKEEPER_MEND_TORCHFT": "1"}, [OK]),
        ("0.2.0", {}, []),
        ("0.3.0", {"TORCHFT_LIGHTHOUSE": "http://h:1"}, []),
    ],
)
def test_known_bugs_of_the_installed_torchft(monkeypatch, version, environ, states):
    monkeypatch.setattr(doctor, "_version", {"torchft": version}.get)
    findings = list(doctor.of_torchft_bugs([rank(**environ)]))
    assert [finding.state for finding in findings] == states
    rows = re.findall(r"^\| (\d) \|", (ROOT / "docs/versions.md").read_text(), re.MULTILINE)
    for finding in findings:
        assert f"{rows[1]} to {rows[-1]} of docs/versions.md" in finding.said


# -- all together ----------------------------------------------------------------------------------


def test_ranks_are_found_with_what_they_were_started_with(tmp_path, monkeypatch):
    import os

    monkeypatch.setattr(run_dir, "candidates", lambda _: (tmp_path, tmp_path / "none"))
    mine = {"rank": "rg_1.0", "url": "http://127.0.0.1:1", "pid": os.getpid()}
    run_dir.write_json(tmp_path / "a.json", mine)
    run_dir.write_json(tmp_path / "b.json", {**mine, "pid": 2**30})
    (tmp_path / "c.json").write_text("{")
    (rank_here,) = doctor.ranks_here({})
    assert (rank_here.name, rank_here.url) == ("rg_1.0", "http://127.0.0.1:1")
    assert rank_here.environ.get("PATH")


def test_the_command_says_the_worst_first_and_fails_where_something_does(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(run_dir, "candidates", lambda _: (tmp_path,))
    monkeypatch.setenv("LIGHTKEEPER_MONITOR", "")
    for name in ("LIGHTKEEPER_TOKEN", "TORCHFT_LIGHTHOUSE"):
        monkeypatch.delenv(name, raising=False)
    assert doctor.main([]) == 1
    text = capsys.readouterr().out
    assert text.startswith("✕ monitor (this host): LIGHTKEEPER_MONITOR is empty: nobody watches\n")
    assert doctor.main(["--format", "json"]) == 1
    checks = json.loads(capsys.readouterr().out)["findings"]
    assert {check["state"] for check in checks} >= {"ok", "failed"}


def test_a_check_with_one_result_on_many_ranks_is_shown_once(capsys):
    ranks = [f"rg_{n}.0" for n in range(3)]
    doctor.print_findings(doctor.DoctorFinding("token", OK, "set", where=rank) for rank in ranks)
    assert capsys.readouterr().out == "● token (rg_0.0, rg_1.0, rg_2.0): set\n"
