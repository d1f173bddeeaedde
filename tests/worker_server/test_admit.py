"""`lightkeeper run`: how long it waits, what it says, and (with processes) what it becomes."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from argparse import Namespace
from dataclasses import dataclass, field

import pytest

from lightkeeper.worker_server.rank import admission
from lightkeeper.worker_server.rank.admission import (
    AdmissionAnswer,
    MonitorAway,
    ask_monitors,
    options,
    wait_until_admitted,
)
from tests.waiting import wait_for
from tests.worker_server.admissions import REFUSAL
from tests.worker_server.ranks import ROOT

REFUSED = AdmissionAnswer(False, "node1 is quarantined by ann: ECC")
AWAY = MonitorAway("http://m:1: no answer in time")
GONE = "the monitor is away (http://m:1: no answer in time)"


@dataclass
class World:
    """A clock that only sleeping moves, and a monitor with a script whose last word stays."""

    answers: list[AdmissionAnswer]
    now_s: float = 0.0
    said: list[str] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    chance: float = 0.5

    def ask(self) -> AdmissionAnswer:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds

    def admitted(self, *, wait: bool = True, timeout_s: float = math.inf) -> bool:
        asked = Namespace(wait=wait, timeout=timeout_s, poll=10.0)
        return wait_until_admitted(
            self.ask, self.said.append, asked,
            clock=lambda: self.now_s, sleep=self.sleep, chance=lambda: self.chance,
        )  # fmt: skip


def test_who_is_admitted_starts_without_a_word():
    world = World([AdmissionAnswer(True, "fine")])
    assert world.admitted()
    assert (world.said, world.slept) == ([], [])


def test_who_is_refused_and_does_not_wait_is_told_why_and_until_when():
    world = World([REFUSED])
    assert not world.admitted(wait=False)
    assert world.said == [
        "refused until a person releases it: node1 is quarantined by ann: ECC (status 75)"
    ]
    assert world.slept == []


def test_who_waits_is_told_once_per_change():
    other = AdmissionAnswer(False, "node1 is quarantined by bob: mended badly")
    world = World([REFUSED, REFUSED, REFUSED, other, other, AdmissionAnswer(True)])
    assert world.admitted()
    assert world.said == [
        "refused until a person releases it: node1 is quarantined by ann: ECC (waiting)",
        "refused until a person releases it: node1 is quarantined by bob: mended badly (waiting)",
        "admitted after 50 s",
    ]
    assert world.slept == [10.0] * 5


@pytest.mark.parametrize(("chance", "pause_s"), [(0.0, 5.0), (0.5, 10.0), (1.0, 15.0)])
def test_pauses_differ_from_launcher_to_launcher(chance, pause_s):
    world = World([REFUSED, AdmissionAnswer(True)], chance=chance)
    assert world.admitted()
    assert world.slept == [pause_s]


def test_after_the_timeout_it_gives_up():
    world = World([REFUSED])
    assert not world.admitted(timeout_s=25)
    assert world.slept == [10.0, 10.0, 5.0]
    assert world.said[-1] == "still refused after 25 s: giving up"


def test_a_monitor_that_is_away_admits_at_once():
    world = World([AWAY])
    assert world.admitted(wait=False)
    assert world.said == [f"{GONE}: starting without its word"]


def test_a_refusal_stands_while_the_monitor_only_restarts():
    world = World([REFUSED, AWAY, AWAY, REFUSED, AdmissionAnswer(True)])
    assert world.admitted()
    assert world.said == [
        "refused until a person releases it: node1 is quarantined by ann: ECC (waiting)",
        f"{GONE}: its refusal stands for 300 s",
        "refused until a person releases it: node1 is quarantined by ann: ECC (waiting)",
        "admitted after 40 s",
    ]


def test_a_refusal_stands_for_five_minutes_and_not_for_ever():
    world = World([REFUSED, AWAY])
    assert world.admitted()
    assert world.now_s == 300
    assert world.said[-1] == f"{GONE}: starting without its word"


def test_defaults_are_what_the_worker_server_would_report():
    environ = {"SLURMD_NODENAME": "node7", "REPLICA_GROUP_ID": "rg_3",
               "LIGHTKEEPER_MONITOR": "http://a:1,http://b:2/"}  # fmt: skip
    read = options(["--", "srun", "--", "x"], environ)
    assert (read.host, read.group) == ("node7", "rg_3")
    assert read.monitors == ("http://a:1", "http://b:2")
    assert (read.wait, read.timeout, read.poll) == (False, math.inf, 10.0)
    assert read.command == ["srun", "--", "x"]
    assert read.changes == {"LIGHTKEEPER_ATTACH": "1"}
    assert options(["--host", "h", "--group", "g", "--wait"], environ).host == "h"


def test_an_option_is_a_variable_of_the_command(tmp_path, monkeypatch):
    token = tmp_path / "token"
    token.write_text("sesame")
    token.chmod(0o600)
    monkeypatch.chdir(tmp_path)
    words = ["--monitor", "http://a:1", "--token-file", "token", "--job", "j", "--group", "rg_1"]
    assert options([*words, "--", "true"], {"LIGHTKEEPER_ATTACH": "0"}).changes == {
        "LIGHTKEEPER_ATTACH": "0",  # who switched it off meant it
        "LIGHTKEEPER_MONITOR": "http://a:1", "LIGHTKEEPER_TOKEN_FILE": str(token),
        "LIGHTKEEPER_JOB": "j", "REPLICA_GROUP": "rg_1",
    }  # fmt: skip


def test_without_a_word_it_asks_where_the_command_looks_and_an_empty_word_is_nobody():
    assert options(["--", "true"], {}).monitors == ("http://127.0.0.1:8470",)
    assert options(["--", "true"], {"LIGHTKEEPER_MONITOR": ""}).monitors == ()


def test_a_monitor_of_another_user_at_the_default_address_is_not_asked(monkeypatch):
    said = "uid 4711 listens there, not you"
    assert ask_monitors(["http://127.0.0.1:9"], "node1", None, 5.0, lambda: said) == MonitorAway(
        f"http://127.0.0.1:9: {said}"
    )


@pytest.mark.parametrize(
    ("command", "environ", "hint"),
    [
        (["python", "train.py"], {}, True),
        (["/usr/bin/python3.11", "-u", "-m", "pkg.train"], {}, True),
        (["torchrun", "train.py"], {}, False),
        (["python", "-m", "torch.distributed.run", "train.py"], {}, False),
        (["python", "-m", "lightkeeper.worker_server", "train.py"], {}, False),
        (["python", "train.py"], {"RANK": "0", "WORLD_SIZE": "2"}, False),
        (["sh", "train.sh"], {}, False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_python_without_a_launcher_is_no_rank_and_that_is_said(
    command, environ, hint, monkeypatch, capsys
):
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LIGHTKEEPER_MONITOR", "")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    became = []
    monkeypatch.setattr(admission, "become", lambda words, _: became.append(list(words)) or 0)
    before = signal.getsignal(signal.SIGINT)
    assert admission.main(["--", *command]) == 0
    signal.signal(signal.SIGINT, before)
    assert became == [command]
    assert ("no launcher" in capsys.readouterr().err) is hint


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["true"], "'true' is no option: a command comes after --"),
        (["--monitor", "head:8470", "--", "true"], "'head:8470' is no monitor's address"),
        (["--wait", "--timeout", "-1"], "--timeout is -1, expected seconds"),
        (["--wait", "--timeout", "nan"], "--timeout is nan, expected seconds"),
        (["--poll", "0"], "--poll is 0, expected 0.05 to 3600 seconds"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(words, says, capsys):
    with pytest.raises(SystemExit) as caught:
        options(words, {})
    said = capsys.readouterr().err
    assert caught.value.code == 2
    assert said.startswith(f"error: {says}")
    assert said.count("\n") == 1


# -- processes ------------------------------------------------------------------------------------


BARE = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}


def popen(*words, environ=None, **options) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "lightkeeper.monitor.cli", "run", "--host", "node1", *words],
        env=environ or BARE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def admit(*words, stdin=b"", **options) -> tuple[int, bytes, str]:
    with popen(*words, **options) as process:
        out, err = process.communicate(stdin, timeout=60)
    return process.returncode, out, err.decode()


@pytest.mark.integration
def test_as_json_it_says_the_same_and_so_do_the_sidecars(monitor):
    words = ("--monitor", monitor(REFUSAL).url, "--log-format", "json", "--", "true")
    code, _, err = admit(*words)
    line = json.loads(err)
    assert (code, line["level"], line["logger"]) == (75, "warning", "lightkeeper.run")
    assert line["message"].startswith("refused until a person releases it: ")
    changes = options([*words[:2], "--log-format", "json", "--log-level", "debug"], {}).changes
    assert changes["LIGHTKEEPER_LOG_FORMAT"] == "json"
    assert changes["LIGHTKEEPER_LOG_LEVEL"] == "debug"


@pytest.mark.integration
def test_the_command_runs_in_the_same_process_and_its_status_is_its_own(monitor):
    said = monitor()
    with popen("--monitor", said.url, "--", "sh", "-c", "echo $$; exit 42") as process:
        out, err = process.communicate(timeout=60)
    assert (int(out), process.returncode, err) == (process.pid, 42, b"")
    assert said.questions == [{"host": ["node1"]}]


@pytest.mark.integration
def test_standard_input_and_arguments_reach_the_command_untouched(monitor):
    data = bytes(range(256)) * 500
    assert admit("--monitor", monitor().url, "--", "cat", stdin=data) == (0, data, "")
    odd = ["", "a b", "--", "$x", "\u00e9"]
    words = ["--", sys.executable, "-c", "import sys; print(ascii(sys.argv[1:]))", *odd]
    assert admit("--monitor", monitor().url, *words)[1].decode() == f"{odd!a}\n"


@pytest.mark.integration
@pytest.mark.parametrize("extra", [{}, {"LC_CTYPE": "C.UTF-8", "X": "\udcff"}], ids=["bare", "odd"])
def test_the_environment_is_the_launchers_and_what_the_options_say(monitor, extra):
    given, url = {**BARE, **extra}, monitor().url
    code, out, _ = admit("--monitor", url, "--", "env", "-0", environ=given)
    said = {
        "LIGHTKEEPER_ATTACH": "1", "LIGHTKEEPER_MONITOR": url, "LIGHTKEEPER_HOST": "node1",
    }  # fmt: skip
    expected = {os.fsencode(f"{key}={value}") for key, value in {**given, **said}.items()}
    assert (code, set(out.rstrip(b"\0").split(b"\0"))) == (0, expected)


@pytest.mark.integration
def test_the_command_finds_its_signals_as_the_launcher_left_them(monitor):
    """Read by grep: python itself ignores SIGPIPE, and a shell blocks all while it forks."""
    grep = ["grep", "-E", "SigIgn|SigBlk", "/proc/self/status"]
    out = admit("--monitor", monitor().url, "--", *grep)[1]
    plain = subprocess.run(grep, capture_output=True, check=True, env=BARE).stdout
    assert out == plain


@pytest.mark.integration
def test_signals_reach_the_command(monitor):
    words = ["sh", "-c", "trap 'exit 33' TERM; echo ready; while :; do sleep 0.05; done"]
    with popen("--monitor", monitor().url, "--", *words) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 33


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_while_it_waits_as_it_would_end_the_command(monitor, number):
    said = monitor(REFUSAL)
    with popen("--monitor", said.url, "--wait", "--poll", "0.1", "--", "true") as process:
        wait_for(lambda: len(said.asked) > 1, within_s=20, what="it asks again")
        process.send_signal(number)
        assert process.wait(20) == -number
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.integration
def test_a_refused_command_does_not_run(monitor, tmp_path):
    mark = tmp_path / "ran"
    code, out, err = admit("--monitor", monitor(REFUSAL).url, "--", "touch", str(mark))
    assert (code, out, mark.exists()) == (75, b"", False)
    assert err == (
        "lightkeeper run: refused until a person releases it: node1 is quarantined by ann: ECC "
        "(status 75)\n"
    )


@pytest.mark.integration
def test_who_waits_runs_once_it_is_admitted(monitor):
    said = monitor(REFUSAL, REFUSAL, {"admit": True})
    words = ["--monitor", said.url, "--wait", "--poll", "0.05", "--", "echo", "on"]
    code, out, err = admit(*words)
    assert (code, out, len(said.asked)) == (0, b"on\n", 3)
    assert err.count("refused until") == 1
    assert "admitted after" in err


@pytest.mark.integration
def test_a_wait_that_takes_too_long_ends_with_75(monitor):
    words = ["--monitor", monitor(REFUSAL).url, "--wait", "--poll", "0.05", "--timeout", "0.2"]
    assert admit(*words, "--", "true")[0] == 75


@pytest.mark.integration
@pytest.mark.parametrize(
    "monitors", ["", "http://127.0.0.1:9", "http://127.0.0.1:9,http://no.invalid:1"]
)
def test_without_a_monitor_training_starts(monitors):
    code, out, err = admit("--monitor", monitors, "--", "echo", "on")
    assert (code, out) == (0, b"on\n")
    assert "starting without" in err
    assert err.count("\n") == 1


@pytest.mark.integration
def test_without_a_command_it_only_answers(monitor):
    assert admit("--monitor", monitor().url) == (0, b"", "")
    assert admit("--monitor", monitor(REFUSAL).url)[0] == 75


@pytest.mark.integration
@pytest.mark.parametrize(
    ("command", "code", "says"),
    [("/no/such", 127, "/no/such: no such command"), ("/etc", 126, "cannot run /etc: Permission")],
)
def test_a_command_that_cannot_run_ends_as_in_a_shell(monitor, command, code, says):
    ended, _, err = admit("--monitor", monitor().url, "--", command)
    assert ended == code
    assert says in err


@pytest.mark.integration
def test_it_imports_nothing_heavy():
    code = (
        "import sys, json; from lightkeeper.monitor.cli import main; status = main(['run']); "
        "print(json.dumps([status, sorted({name.split('.')[0] for name in sys.modules})]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, env=BARE, timeout=60
    )
    status, modules = json.loads(done.stdout)
    assert status == 0
    heavy = {"flask", "requests", "aiohttp", "rich", "numpy", "prometheus_client", "sqlalchemy",
             "torch", "asyncio"}  # fmt: skip
    assert not heavy & set(modules)
