"""An incident worked from the command line, over a whole monitor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lightkeeper.monitor.service import Service
from tests.monitor.api import Api, options
from tests.monitor.commands.calling import Command
from tests.monitor.fakes import FakeLighthouse
from tests.monitor.show.test_work import seen, work


@pytest.fixture
def api(
    tmp_path: Path, lighthouse: FakeLighthouse, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Api]:
    with Service(options(tmp_path, lighthouse.url)) as made:
        monkeypatch.setenv("LIGHTKEEPER_MONITOR", made.url)
        monkeypatch.setenv("LIGHTKEEPER_TOKEN", "secret")
        monkeypatch.setenv("LOGNAME", "ann")
        yield seen(Api(made))


def test_an_incident_is_worked(api: Api, command: Command) -> None:
    assert command("incidents", "ack", "inc") == "ack: inc-1\n"
    command("incidents", "assign", "inc-1", "bob")
    command("incidents", "comment", "inc-1", "ticket 4711", "--author", "eve")
    command("incidents", "label", "inc-1", "false", "--reason", "by design")
    said = command.json("incidents", "resolve", "inc-1", "--reason", "a debugger")
    assert said["work"]["action"] == "resolve"
    rows = work(api)["rows"]
    assert [(row["action"], row["author"]) for row in rows] == [
        ("ack", "ann"), ("assign", "ann"), ("comment", "eve"), ("label", "ann"),
        ("resolve", "ann"),
    ]  # fmt: skip
    shown = command("incidents", "show", "inc-1")
    assert "Resolved by ann: a debugger; assigned to bob" in shown
    assert "ticket 4711" in shown


def test_messages_are_silenced_and_heard_again(api: Api, command: Command) -> None:
    words = ("--host", "rack7-*", "--hours", "2", "--reason", "switch")
    name = command("silence", "add", *words).removeprefix("silenced: ").strip()
    assert "host=rack7-*" in command("silence", "list")
    assert "silenced by ann: switch: host=rack7-*, until" in command("status")
    assert command("silence", "end", name) == f"ended: {name}\n"
    assert name not in command("silence", "list")


def test_what_is_refused_is_one_line(api: Api, command: Command) -> None:
    assert "no such incident: none" in command.refused("incidents", "ack", "none", status=1)
    words = ("--hours", "2", "--reason", "x")
    assert "say what: kind, group" in command.refused("silence", "add", *words, status=1)
    command.refused("incidents", "label", "inc-1", "perhaps")
