"""The command line as a user meets it."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightkeeper.monitor.cli import main
from lightkeeper.monitor.commands.command import CommandError
from lightkeeper.monitor.commands.run import _greet, for_ranks, parse_budget
from lightkeeper.monitor.decide.view import NotPossible
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.names import GroupName, Host
from lightkeeper.monitor.service import Options, Service
from lightkeeper.worker_server import home
from tests.monitor.api import options
from tests.monitor.commands.calling import Command
from tests.monitor.fakes import FakeFleet, FakeLighthouse
from tests.monitor.process import TOKEN, Monitor, environment, lightkeeper
from tests.ports import free_port

pytestmark = pytest.mark.usefixtures("bare_environment")


@pytest.fixture
def running(tmp_path: Path, fleet: FakeFleet, lighthouse: FakeLighthouse) -> Iterator[Service]:
    lighthouse.form("rg_0:a")
    with Service(options(tmp_path, lighthouse.url)) as service:
        registry = service.keeper._components.registry
        for number in range(2):
            registry.register(fleet.add("rg_0", number, world_size=2).registration())
        service.keeper.tick()
        yield service


# -- wrong options: one line, exit status 2 -------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--tick", "0"], "tick_s is 0.0, expected 0.05 to 60"),
        (["--tick", "nan"], "tick_s is nan, expected 0.05 to 60"),
        (["--min-replicas", "0"], "min_replicas is 0, expected 1 to 1e+06"),
        (["--budget", "4/day"], "--budget is '4/day', expected N/hour, such as 4/hour"),
        (["--budget", "-1"], "--budget is '-1', expected N/hour, such as 4/hour"),
        (["--set", "nonsense"], "--set is 'nonsense', expected NAME=VALUE"),
        (["--set", "nosuch=3"], "unknown option nosuch, expected a name that `lightkeeper policy"),
        (["--set", "stall_flor_s=3"], "unknown option stall_flor_s, did you mean stall_floor_s"),
        (["--set", "stall_floor_s=soon"], "--set stall_floor_s is 'soon', expected a number"),
        (["--bind", "8470"], "--bind is '8470', expected HOST:PORT, such as 127.0.0.1:8470"),
        (["--bind", "127.0.0.1:99999"], "--bind is '127.0.0.1:99999', expected HOST:PORT"),
        (["--lighthouse", "head:29510"], "--lighthouse is 'head:29510', expected http://HOST:PORT"),
        (["--gate", "head:8471"], "--gate is 'head:8471', expected http://HOST:PORT"),
        (["--prometheus", "prom:9090"], "--prometheus is 'prom:9090', expected http://HOST:PORT"),
        (["--prometheus", "http://u:pw@prom"], "--prometheus holds a password, which others can"),
        (["--prometheus-auth-file", "/nowhere/auth"], "cannot read /nowhere/auth"),
        (["--token-file", "/nowhere/token"], "cannot read /nowhere/token"),
        (["--store", "/proc/none/m.db"], "cannot write store /proc/none/m.db"),
        (["--store", "mysql://u:pw@h/d"], "--store mysql:// is not known, expected a path"),
        (["--quarantine-hours", "-1"], "--quarantine-hours is -1, expected 0 to 8784"),
        (["--bind", "0.0.0.0:0", "--no-token"], "open to the network and no token is configured"),
        (["--bind", "192.0.2.1:1", "--token-file", "TOKEN"], "cannot listen on 192.0.2.1:1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_option_is_one_line_and_status_2(
    words: list[str], line: str, token_file: Path, tmp_path: Path, command: Command
) -> None:
    words = [str(token_file) if word == "TOKEN" else word for word in words]
    if "--bind" not in words:
        words += ["--bind", "127.0.0.1:0"]
    if "--store" not in words:
        words += ["--store", str(tmp_path / "m.db")]
    assert line in command.refused("monitor", *words)


def test_a_busy_port_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in ends]
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        bind = f"127.0.0.1:{other.getsockname()[1]}"
        assert main(["monitor", "--bind", bind, "--store", str(tmp_path / "m.db")]) == 2
    assert f"cannot listen on {bind}: Address already in use" in capsys.readouterr().err
    assert [signal.getsignal(number) for number in ends] == before


@pytest.mark.parametrize("content", ["", "  \n", "two words", "a\nb", "t\u00f6ken", "\x00"])
def test_a_token_file_without_a_token_is_refused(
    content: str, tmp_path: Path, command: Command
) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(0o600)
    store = str(tmp_path / "m.db")
    said = command.refused("monitor", "--token-file", str(path), "--store", store)
    assert "does not hold one plain" in said


@pytest.mark.parametrize(("text", "number"), [("4/hour", 4), ("4/h", 4), ("0", 0)])
def test_a_budget_is_evictions_an_hour(text: str, number: int) -> None:
    assert parse_budget(text) == number
    with pytest.raises(CommandError):
        parse_budget(text + "x")


# -- asking a running monitor ---------------------------------------------------------------------


def test_status_is_the_short_answer_of_a_real_monitor(running: Service, command: Command) -> None:
    said = command("status", "--monitor", running.url)
    for words in (
        "training      yes  step 10, 1 of 1 group in quorum 2",
        "rg_0   healthy",
        "ranks ",
    ):
        assert words in said
    body = command.json("status", "--monitor", running.url)
    assert (body["training"]["is"], body["training"]["step"]) == ("yes", 10)


@pytest.mark.parametrize("what", ["ranks", "groups", "hosts"])
def test_what_a_real_monitor_says_of_each(what: str, running: Service, command: Command) -> None:
    number = 2 if what == "ranks" else 1
    assert len(command("get", what, "--monitor", running.url).splitlines()) == 1 + number
    assert len(command.json("get", what, "--monitor", running.url)[what]) == number


def test_incidents_print_even_when_there_are_none(running: Service, command: Command) -> None:
    command("incidents", "list", "--monitor", running.url)
    assert command.json("incidents", "list", "--monitor", running.url)["incidents"] == []


def test_an_unknown_incident_is_status_1(running: Service, command: Command) -> None:
    command.refused("incidents", "show", "a/b?c", "--monitor", running.url, status=1)


def test_quarantine_add_list_release(running: Service, token_file: Path, command: Command) -> None:
    token = ["--token-file", str(token_file), "--monitor", running.url]
    command("quarantine", "add", "node7", "--reason", "[bold]ECC", "--hours", "2", *token)
    listed = command("quarantine", "list", "--monitor", running.url)
    assert "node7" in listed
    assert "[bold]ECC" in listed
    command("quarantine", "release", "node7", *token)
    said = command.refused("quarantine", "release", "node7", *token, status=1)
    assert "node7 is not quarantined" in said


def test_quarantine_holds_a_group_out_and_tells_its_history(
    running: Service, token_file: Path, command: Command
) -> None:
    ask = ["--monitor", running.url]
    token = ["--token-file", str(token_file), *ask]
    group = ["--group", "rg_7"]
    command("quarantine", "add", *group, "--reason", "bad shard", "--author", "ann", *token)
    assert "group rg_7" in command("quarantine", "list", *ask)
    assert command("quarantine", "release", *group, *token) == "rg_7 may come back\n"
    history = command("quarantine", "history", *group, *ask)
    assert all(word in history for word in ("added", "ann", "bad shard", "released"))
    assert "node0" in command("get", "hosts", *ask)


@pytest.mark.parametrize("named", [[], ["node7", "--group", "rg_7"]])
def test_quarantine_names_a_host_or_a_group(
    named: list[str], running: Service, command: Command
) -> None:
    said = command.refused("quarantine", "history", *named, "--monitor", running.url)
    assert said == "error: name a host, or a group with --group NAME\n"


def test_the_token_does_not_go_to_a_stranger_at_the_default_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("requests.request", lambda *words, **_: asked.append(str(words)))
    monkeypatch.setattr(
        "lightkeeper.worker_server.home.not_ours", lambda: "uid 4711 listens there, not you"
    )
    monkeypatch.setenv("LIGHTKEEPER_TOKEN", TOKEN)
    assert main(["pause", "--reason", "x"]) == 1
    assert capsys.readouterr().err == (
        "error: cannot reach your monitor at http://127.0.0.1:8470: uid 4711 listens there, not "
        "you (start it with `lightkeeper monitor`, or say where it is: --monitor URL)\n"
    )
    assert asked == []


@pytest.mark.parametrize(
    "words", ["quarantine release node7", "pause --reason x", "resume", "evict rg_0 --yes"]
)
def test_who_changes_something_without_the_token_is_told_where_to_give_it(
    words: str, running: Service, command: Command
) -> None:
    said = command.refused(*words.split(), "--monitor", running.url, status=1)
    assert "wrong or missing token" in said
    assert "give --token-file FILE, or set LIGHTKEEPER_TOKEN_FILE" in said


@pytest.mark.parametrize(
    "words", ["status", "get ranks", "get groups", "get hosts", "incidents list", "quarantine list"]
)
def test_a_monitor_that_is_away_is_one_line_and_status_1(words: str, command: Command) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    said = command.refused(*words.split(), "--monitor", url, status=1)
    assert said == f"error: cannot reach the monitor at {url}: nobody listens there\n"


def test_a_misspelt_variable_is_said_once_and_what_is_near_none_of_ours_is_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTKEEPER_MONTIOR", "http://127.0.0.1:1")
    monkeypatch.setenv("LIGHTKEEPER_OTHER", "1")
    main(["--version"])
    assert capsys.readouterr().err == (
        "warning: nothing reads LIGHTKEEPER_MONTIOR (did you mean LIGHTKEEPER_MONITOR?)\n"
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("get ranks --group rg_9", "no group 'rg_9'"),
        ("get ranks --host nowhere", "no host 'nowhere'"),
        ("get groups --group rg_9", "no group 'rg_9'"),
        ("get hosts --host nowhere", "no host 'nowhere'"),
    ],
)
def test_a_name_that_nobody_bears_is_no_empty_table(
    words: str, says: str, running: Service, command: Command
) -> None:
    assert says in command.refused(*words.split(), "--monitor", running.url, status=1)


@pytest.mark.parametrize(
    ("url", "status", "says"),
    [
        ("http://nosuchhost.invalid:8470", 1,
         ("error: cannot reach the monitor at http://nosuchhost.invalid:8470: "
          "there is no host of that name (DNS)\n")),
        ("head:8470", 2, ""), ("http://[", 2, ""), ("ftp://head", 2, ""),
    ],
)  # fmt: skip
def test_a_url_that_is_none_is_one_line(url: str, status: int, says: str, command: Command) -> None:
    assert says in command.refused("status", "--monitor", url, status=status)


def test_something_else_than_a_monitor_is_status_1(
    lighthouse: FakeLighthouse, command: Command
) -> None:
    said = command.refused("status", "--monitor", lighthouse.url, status=1)
    assert "is not a monitor" in said


# -- help, and what a process does ----------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    ["monitor", "status", "top", "get ranks", "get groups", "get hosts", "incidents list",
     "incidents show", "quarantine list", "quarantine add"],
)  # fmt: skip
def test_help_teaches_by_examples(words: str, command: Command) -> None:
    said = command(*words.split(), "--help")
    assert "examples:" in said
    assert f"lightkeeper {words}" in said


@pytest.mark.integration
def test_its_log_may_be_quiet_and_without_a_policy_a_hangup_ends_it(tmp_path: Path) -> None:
    monitor = Monitor("--store", str(tmp_path / "m.db"), "--log-level", "error", port=free_port())
    try:
        monitor.ready()
    finally:
        status = monitor.end(signal.SIGHUP)
    assert (status, monitor.lines) == (-signal.SIGHUP, [])


@pytest.mark.integration
def test_a_start_without_a_token_and_a_lighthouse_warns_and_starts(tmp_path: Path) -> None:
    monitor = Monitor(
        "--store", str(tmp_path / "m.db"), "--observe", port=free_port(),
        TORCHFT_LIGHTHOUSE="http://127.0.0.1:9", LIGHTKEEPER_LOG_FORMAT="json",
    )  # fmt: skip
    try:
        monitor.ready()
    finally:
        monitor.end(signal.SIGTERM)
    lines = [json.loads(line) for line in monitor.lines]
    levels = {(line["level"], line["logger"]) for line in lines}
    assert levels >= {("info", "lightkeeper"), ("warning", "lightkeeper")}
    assert all(line["time"].endswith("Z") for line in lines)
    said = "".join(monitor.lines)
    assert "no token is configured" in said
    assert "observe mode" in said
    assert "Lighthouse http://127.0.0.1:9: refused" in said
    assert "Traceback" not in said


@pytest.mark.integration
def test_demo_runs_the_trainer_in_a_process_of_its_own() -> None:
    done = lightkeeper("demo", "--help")
    assert done.returncode == 0, done.stderr
    assert "--keep-running" in done.stdout


def test_help_has_every_command_in_a_section(command: Command) -> None:
    said = command("--help")
    sections = re.findall(r"^(\w[\w ]*):\n((?:  .*\n)+)", said, re.MULTILINE)
    commands = {title: re.findall(r"^  (\w+)", rows, re.MULTILINE) for title, rows in sections}
    assert commands["Watch"] == ["monitor", "status", "top", "get", "incidents", "mcp"]
    assert commands["Act"] == ["evict", "quarantine", "silence", "pause", "resume", "policy", "run"]
    assert commands["Offline"] == ["analyze", "stragglers", "replay"]
    assert commands["Set up"] == ["doctor", "gate", "check", "dashboards", "demo"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["statsu"], "No such command 'statsu'. Did you mean 'status'? (see lightkeeper --help)"),
        (["status", "--formt"], "Did you mean '--format'? (see lightkeeper status --help)"),
        (["evict"], "Missing argument 'GROUP'. (see lightkeeper evict --help)"),
    ],
    ids=["command", "option", "argument"],
)
def test_wrong_use_is_one_line_with_what_was_meant(
    words: list[str], says: str, command: Command
) -> None:
    assert says in command.refused(*words)


def test_its_version_is_said(command: Command) -> None:
    assert re.fullmatch(r"lightkeeper \d+\.\d+\.\d+\n", command("--version"))


def assert_not_imported(modules: set[str], code: str) -> None:
    """None of them by `code`, in an interpreter of its own."""
    code = f"import sys, lightkeeper.monitor.cli; {code}; print({modules} & set(sys.modules))"
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True,
        env=environment(),
    )  # fmt: skip
    assert said.stdout.splitlines()[-1] == "set()"


def test_help_and_completion_import_no_command() -> None:
    modules = {"requests", "rich", "asyncio", "lightkeeper.monitor.model"}
    assert_not_imported(modules, "lightkeeper.monitor.cli.main(['--help'])")
    done = lightkeeper(_LIGHTKEEPER_COMPLETE="bash_complete", COMP_WORDS="lightkeeper st",
                       COMP_CWORD="1")  # fmt: skip
    assert done.stdout.split() == ["plain,status", "plain,stragglers"]


@pytest.mark.integration
def test_no_command_is_a_usage_error() -> None:
    done = lightkeeper()
    assert done.returncode == 2
    assert "COMMAND" in done.stderr


# -- a second monitor on the same store -----------------------------------------------------------


def test_a_command_that_changes_something_finds_the_monitor_that_acts(
    running: Service, token_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Service(options(token_file.parent)) as standby:
        assert (running.standing.role, standby.standing.role) == ("active", "standby")
        words = ["quarantine", "add", "node7", "--reason", "ECC", "--token-file", str(token_file)]
        assert main([*words, "--monitor", standby.url]) == 1
        said = capsys.readouterr().err
        assert f"says: this monitor stands by: {running.standing.holder} is active, at" in said
        assert main([*words, "--monitor", f"{standby.url},{running.url}"]) == 0
        assert not running.keeper._components.quarantine.admission(Host("node7")).admit
        with pytest.raises(NotPossible, match="this monitor stands by"):
            standby.keeper.evict_by_hand(GroupName("rg_0"), "no")
    assert main(["status", "--monitor", f"http://127.0.0.1:1,{running.url}"]) == 0


def test_commands_that_only_ask_import_neither_sqlalchemy_nor_what_reads_tables() -> None:
    code = (
        "import lightkeeper.monitor.decide.view; "
        "lightkeeper.monitor.cli.main(['get', 'ranks', '-h'])"
    )
    assert_not_imported({"sqlalchemy", "pyarrow", "yaml"}, code)


@pytest.mark.parametrize("words", [["status"], ["get", "ranks"], ["incidents", "list"]])
def test_what_the_monitor_says_is_printed_without_knowing_what_it_means(words: list[str]) -> None:
    rooms = ("model.incident", "model.names", "decide", "detect", "records")
    modules = {f"lightkeeper.monitor.{room}" for room in rooms}
    code = f"lightkeeper.monitor.cli.main({[*words, '--monitor', 'http://127.0.0.1:9']})"
    assert_not_imported(modules, code)


@pytest.mark.parametrize(
    ("bind", "here", "elsewhere"),
    [
        ("127.0.0.1:8470", "lightkeeper run -- torchrun", "with --bind 0.0.0.0:8470"),
        ("0.0.0.0:8470", "lightkeeper run -- torchrun", "--monitor http://HOST:8470 --token-file"),
        ("127.0.0.1:9", "run --monitor http://127.0.0.1:9 -- torchrun", "with --bind 0.0.0.0:9"),
        ("192.0.2.1:8470", "--monitor http://192.0.2.1:8470 --", "--monitor http://192.0.2.1:8470"),
    ],
)
def test_the_monitor_says_how_ranks_are_started_so_that_it_sees_them(
    bind: str, here: str, elsewhere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(socket, "gethostname", lambda: "HOST")
    token = home.make_token_file(tmp_path / "lightkeeper" / "token")
    given = Options(KeeperConfig(), bind, tmp_path / "m.db", token=token)
    first, second = for_ranks(given, f"http://{bind}")
    assert here in first
    assert elsewhere in second
    assert token not in first + second
    named = Options(KeeperConfig(), bind, tmp_path / "m.db", token="another")
    assert "--token-file FILE" in next(iter(for_ranks(named, f"http://{bind}")))


def test_without_a_lighthouse_its_first_lines_say_that_it_watches_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Service(options(tmp_path)) as service:
        _greet(options(tmp_path), service)
    assert "this monitor watches only" in caplog.text
    assert "evicting the only group by hand ends the job" in caplog.text


ASKED_WHILE_BUSY = """
import os, signal, sys
import numpy  # its threads are older than the monitor's handlers
from lightkeeper.monitor.cli import main
from lightkeeper.monitor.commands import run
greet = run._greet
def interrupted(options, service):
    os.kill(os.getpid(), signal.SIGTERM)
    greet(options, service)
run._greet = interrupted
words = "monitor --bind 127.0.0.1:0 --store m.db --no-token --no-journal"
sys.exit(main(words.split()))
"""


@pytest.mark.integration
def test_a_signal_that_comes_while_the_monitor_is_busy_ends_it_in_order(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ASKED_WHILE_BUSY], cwd=tmp_path, env=environment(),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ended.returncode, "stopping" in ended.stderr) == (0, True), ended.stderr
