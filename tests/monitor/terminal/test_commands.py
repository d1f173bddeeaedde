"""The commands in a pipe, as a script sees them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from monitor.cli import main
from monitor.commands import watch
from tests.monitor.terminal.bodies import FakeMonitor, hung, incident, many, snapshot


@pytest.fixture
def monitor(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMonitor]:
    made = FakeMonitor(hung())
    monkeypatch.setenv("LIGHTKEEPER_MONITOR", made.url)
    yield made
    made.close()


def said(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    assert main(list(words)) == status
    return capsys.readouterr().out


def test_ranks(monitor: FakeMonitor, capsys) -> None:
    assert (
        said(capsys, "ranks", "--unhealthy")
        == """\
rank    health       host   phase            for    step   s/step     busy     wait  trouble
rg_1.1  stalled      node1  data             14s     120        -        -        -  -
"""
    )


def test_what_a_limit_leaves_out_is_said_beside_the_rows(monitor: FakeMonitor, capsys) -> None:
    monitor.body = many(1250, 8)
    assert main(["ranks", "--sort", "busy", "--limit", "1"]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["rank", "rg_7.3"]
    assert err == "and 9,999 more\n"


@pytest.mark.parametrize("command", ["ranks", "groups", "hosts"])
def test_json_is_what_the_monitor_said_filtered_and_sorted(
    command: str, monitor: FakeMonitor, capsys
) -> None:
    body = json.loads(said(capsys, command, "--host", "node1", "--format", "json"))
    assert body["schema"] == 1
    assert {one.get("host", one.get("name")) for one in body[command]} == {"node1"}
    assert body["more"] == 0


def test_groups_and_hosts(monitor: FakeMonitor, capsys) -> None:
    assert (
        said(capsys, "groups", "--sort", "health")
        == """\
group  health       host   ranks  step  commits  quorum  heartbeat
rg_1   evicting     node1      2   120      118  yes          0.1s
rg_0   waiting      node0      2   120      118  yes          0.1s
"""
    )
    assert (
        said(capsys, "hosts")
        == """\
host   health   groups  ranks  busy  incidents  evictions  quarantine
spare  -             0      0     -          2          1  until released
node1  stalled       1      2     -          0          0  -
node0  waiting       1      2     -          0          0  -
"""
    )


def test_tables_in_a_pipe_have_no_lines_around_them(monitor: FakeMonitor, capsys) -> None:
    for words in (["status"], ["ranks"], ["policy", "show", "--default"]):
        text = said(capsys, *words)
        assert text.isascii()
        assert "\x1b" not in text
    rows = said(capsys, "policy", "show", "--default").splitlines()
    assert re.split("  +", rows[1]) == ["kind", "info", "warning", "critical"]


@pytest.mark.parametrize(
    ("body", "status"), [(snapshot(), 0), (hung(), 3)], ids=["trains", "hangs"]
)
def test_check_is_for_scripts(body, status: int, monitor: FakeMonitor, capsys) -> None:
    monitor.body = body
    said(capsys, "status", "--check", status=status)
    said(capsys, "status", "--check", "--format", "json", status=status)
    said(capsys, "status")


def test_a_policy_file_is_checked_for_programs(tmp_path, capsys) -> None:
    file = tmp_path / "p.toml"
    file.write_text("[guards]\nbudget_per_hour = 3\n")
    good = json.loads(said(capsys, "policy", "check", str(file), "--format", "json"))
    assert (good["ok"], good["problems"]) == (True, [])
    file.write_text("[guards]\nbudget_per_hour = 'many'\n")
    bad = json.loads(said(capsys, "policy", "check", str(file), "--format", "json", status=2))
    assert (bad["ok"], len(bad["problems"])) == (False, 1)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["top"], "top needs a terminal; in a pipe: lightkeeper ranks --sort busy --limit 20"),
        (["incidents", "x", "--watch"], "--watch is for the list of a running monitor"),
    ],
)
def test_what_cannot_be_is_one_line(words: list[str], line: str, monitor, capsys) -> None:
    assert main(words) == 2
    assert line in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--watch", "0"], ["--watch", "nan"], ["--watch", "soon"]])
def test_a_pause_that_is_none_is_refused(words: list[str], capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["status", *words])
    assert caught.value.code == 2
    assert "is not a number from 0.2 to 3600" in capsys.readouterr().err


# -- --watch in a pipe ---------------------------------------------------------------------------


class Script:
    """Changes the monitor from pause to pause, then strikes Ctrl-C."""

    def __init__(self, *acts) -> None:
        self.acts = list(acts)

    def sleep(self, _seconds: float) -> None:
        if not self.acts:
            raise KeyboardInterrupt
        self.acts.pop(0)()


def lines(text: str) -> list[str]:
    return [re.sub(r"^\S+ \S+  ", "", line) for line in text.splitlines()]


def test_a_watch_in_a_pipe_is_a_line_a_change(monitor: FakeMonitor, capsys, monkeypatch) -> None:
    monitor.body = snapshot()

    def change(**attributes):
        return lambda: [setattr(monitor, name, value) for name, value in attributes.items()]

    script = Script(
        lambda: None, change(body=hung()), change(refuse=True), lambda: None,
        change(refuse=False, body=snapshot(), recent=[incident(state="resolved")]),
    )  # fmt: skip
    monkeypatch.setattr(watch.time, "sleep", script.sleep)
    assert lines(said(capsys, "status", "--watch")) == [
        "groups  2  2 healthy",
        "training  yes  step 120, 0.5 s a step, 2 of 2 groups in quorum 4",
        "held_back_by  nobody  busiest is rg_1.1: 0.4 s a step, the median 0.4 s",
        "keeper  acting  evicts whom it is sure of",
        "monitor  trusted  looked 0.5s ago, all 4 ranks answer",
        "quorum  4  2 members: rg_0, rg_1",
        "training  no  no commit for 14s (step 120)",
        "held_back_by  named  rg_1.1 (not_entered)",
        "group:rg_0  waiting  step 120 on node0",
        "group:rg_1  evicting  step 120 on node1",
        "incident:not_entered-rg_1.1-7  firing  critical: rg_1.1 stands still in 'data'",
        f"answer  away  the monitor at {monitor.url} says: the database is away",
        "answer  back  the monitor answers again",
        "training  yes  step 120, 0.5 s a step, 2 of 2 groups in quorum 4",
        "held_back_by  nobody  busiest is rg_1.1: 0.4 s a step, the median 0.4 s",
        "group:rg_0  healthy  step 120 on node0",
        "group:rg_1  healthy  step 120 on node1",
        "incident:not_entered-rg_1.1-7  resolved  critical: rg_1.1 stands still in 'data'",
    ]


def test_a_watch_for_programs_is_a_json_object_a_line(
    monitor: FakeMonitor, capsys, monkeypatch
) -> None:
    monkeypatch.setattr(watch.time, "sleep", Script().sleep)
    text = said(capsys, "incidents", "--watch", "--format", "json")
    (fact,) = [json.loads(line) for line in text.splitlines()]
    assert fact.pop("at_s") > 0
    assert fact == {
        "about": "incident:not_entered-rg_1.1-7", "is": "firing",
        "says": "critical: rg_1.1 stands still in 'data'",
    }  # fmt: skip


def test_a_watch_of_a_monitor_that_was_never_there_ends(monitor: FakeMonitor, capsys) -> None:
    monitor.refuse = True
    assert main(["status", "--watch"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
