"""The commands in a pipe, as a script sees them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from lightkeeper.monitor.cli import main
from lightkeeper.monitor.model.names import GroupName
from tests.changed import replace
from tests.monitor.bodies import ServedView, hung, many, trains
from tests.monitor.commands.calling import Command


@pytest.fixture
def monitor(monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedView]:
    made = ServedView(hung())
    monkeypatch.setenv("LIGHTKEEPER_MONITOR", made.url)
    yield made
    made.close()


def test_ranks(monitor: ServedView, command: Command) -> None:
    assert (
        command("get", "ranks", "--unhealthy")
        == """\
rank    health       host   phase            for    step   s/step     busy     wait  trouble
rg_1.1  stalled      node1  data             14s     120        -        -        -  -
"""
    )


def test_what_a_limit_leaves_out_is_said_beside_the_rows(monitor: ServedView, capsys) -> None:
    monitor.view = many(1250, 8)
    assert main(["get", "ranks", "--sort", "busy", "--limit", "1"]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["rank", "rg_7.3"]
    assert err == "and 9,999 more\n"


@pytest.mark.parametrize("what", ["ranks", "groups", "hosts"])
def test_json_is_what_the_monitor_said_filtered_and_sorted(
    what: str, monitor: ServedView, command: Command
) -> None:
    body = command.json("get", what, "--host", "node1")
    assert body["schema"] == 1
    assert {row["host"] for row in body[what]} == {"node1"}
    assert body["more"] == 0


def test_a_group_is_shown_by_the_name_that_commands_take(
    monitor: ServedView, command: Command
) -> None:
    groups = [replace(hung().groups[0], group=GroupName("my_0"), launched_as=GroupName("0"))]
    monitor.view.__dict__["groups"] = groups
    assert command("get", "groups").splitlines()[1].split()[0] == "my_0"


def test_groups_and_hosts(monitor: ServedView, command: Command) -> None:
    assert (
        command("get", "groups", "--sort", "health")
        == """\
group  health       host   ranks  step  commits  quorum  heartbeat
rg_1   evicting     node1      2   120      118  yes          0.1s
rg_0   waiting      node0      2   120      118  yes          0.1s
"""
    )
    assert (
        command("get", "hosts")
        == """\
host   health   groups  ranks  busy  incidents  evictions  lemon  quarantine      machine
spare  -             0      0     -          0          0  no     until released  -
node1  stalled       1      2     -          0          0  no     -               -
node0  waiting       1      2     -          0          0  no     -               -
"""
    )


def test_incidents_and_what_they_came_to(monitor: ServedView, command: Command) -> None:
    heads, row, *totals = command("incidents", "list").splitlines()
    assert re.split("  +", heads) == [
        "id", "since", "kind", "state", "severity", "who", "outcome", "work",
        "lost", "what",
    ]  # fmt: skip
    assert re.split("  +", row) == [
        "not_entered-rg_1.1-7", "2023-11-14 22:13:05 UTC", "not_entered", "firing", "critical",
        "rg_1.1", "open", "-", "cannot tell", "rg_1.1 stands still in 'data'",
    ]  # fmt: skip
    assert totals == [
        "1 incident fired",
        "lost at least 0 rank-seconds (and 1 whose cost is not known)",
    ]
    said = command.refused("incidents", "list", "--kind", "x")
    assert "kind is 'x', expected one of dead, " in said


def test_quarantine(monitor: ServedView, command: Command) -> None:
    assert (
        command("quarantine", "list")
        == """\
host   since                    until     by           incident  offences 28 d  lemon  why
spare  2023-11-14 22:13:20 UTC  released  lightkeeper  -                     0  no     hung
"""
    )
    assert (
        command("quarantine", "history", "spare")
        == """\
when                     what   until     by           incident  why
2023-11-14 22:13:20 UTC  added  released  lightkeeper  -         hung
"""
    )


def test_tables_in_a_pipe_have_no_lines_around_them(monitor: ServedView, command: Command) -> None:
    for words in (["status"], ["get", "ranks"]):
        text = command(*words)
        assert text.isascii()
        assert "\x1b" not in text


@pytest.mark.parametrize(("view", "status"), [(trains(), 0), (hung(), 3)], ids=["trains", "hangs"])
def test_check_is_for_scripts(view, status: int, monitor: ServedView, command: Command) -> None:
    monitor.view = view
    command("status", "--check", status=status)
    command("status", "--check", "--format", "json", status=status)
    command("status")


def test_a_monitor_that_knows_no_status_is_said_to_be_older(
    monitor: ServedView, command: Command
) -> None:
    monitor.status = "/v0/status"
    said = command.refused("status", status=1)
    where = f"error: {monitor.url} has no /v1/status"
    assert said == f"{where}: it is no monitor, or one older than this command\n"


def test_a_policy_file_is_checked_for_programs(tmp_path, command: Command) -> None:
    file = tmp_path / "p.toml"
    file.write_text("[guards]\nbudget_per_hour = 3\n")
    good = command.json("check", "policy", str(file))
    assert (good["ok"], good["problems"]) == (True, [])
    file.write_text("[guards]\nbudget_per_hour = 'many'\n")
    bad = command.json("check", "policy", str(file), status=2)
    assert (bad["ok"], len(bad["problems"])) == (False, 1)


def test_what_cannot_be_is_one_line(monitor: ServedView, command: Command) -> None:
    line = "top needs a terminal; in a pipe: lightkeeper get ranks --sort busy --limit 20"
    assert line in command.refused("top")


@pytest.mark.parametrize("pause", ["0", "nan", "soon"])
def test_a_pause_that_is_none_is_refused(pause: str, command: Command) -> None:
    said = command.refused("top", "--every", pause)
    assert f"--every is {pause}, expected 0.2 to 3600" in said
