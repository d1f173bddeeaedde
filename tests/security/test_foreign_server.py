"""Whoever answers in a monitor's place, a command says so in one line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lightkeeper.monitor.commands import ask
from lightkeeper.monitor.commands.top import look_at
from lightkeeper.worker_server import doctor
from tests.deep import crossed
from tests.http_server import FakeServer, Handler, Hang
from tests.monitor.commands.calling import Command
from tests.security.words import ASK, EVIL, OTHERS, check_harmless, commands, in_a_monitors_place

HTML = b"<!doctype html><title>It works!</title>"
JSON, PAGE = "application/json", "text/html"
ODD_BODIES = [
    b"[]", b"{}", b"3", b"null", b'"x"', b"", b"{" * 100_000, b"\xff\xfe",
    b'{"status": "ok", "data": [1, 2]}', b'{"error": [{}]}',
]  # fmt: skip


class Foreign(FakeServer):
    """Answers everything with one answer."""

    answer: Callable[[Handler], None]

    def serve(self, handler: Handler, method: str, path: str, body: bytes) -> None:
        self.answer(handler)

    def says(self, status: int, kind: str, body: bytes, **headers: str) -> None:
        self.answer = lambda handler: handler.reply(status, kind, body, **headers)


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> Iterator[Foreign]:
    with in_a_monitors_place(Foreign(), monkeypatch) as made:
        yield made


def test_every_command_that_asks_is_tried_here() -> None:
    assert {" ".join(words) for words, _ in commands()} == {*ASK, *OTHERS}


def _refuses(command: Command, words: str, *more: str) -> None:
    said = command.refused(*words.split(), *ASK[words], *more, status=1)
    check_harmless(said)
    assert len(said) < 700


@pytest.mark.parametrize("words", ASK)
def test_a_page_or_other_json_is_no_monitor(words: str, foreign: Foreign, command: Command) -> None:
    answers: list[tuple[int, str, bytes]] = [(200, PAGE, HTML), (404, PAGE, HTML), (500, PAGE, b"")]
    answers += [(status, JSON, body) for body, status in crossed(ODD_BODIES, (404, 503, 200))]
    answers.append((503, JSON, ODD_BODIES[-1]))
    for each in answers:
        foreign.says(*each)
        _refuses(command, words)
    foreign.says(302, PAGE, b"", Location="http://127.0.0.1:1/")
    _refuses(command, words)
    foreign.says(200, JSON, b"\x1f\x8bno", **{"Content-Encoding": "gzip"})
    _refuses(command, words)
    foreign.says(200, PAGE, HTML)
    _refuses(command, words, "--format", "json")


@pytest.mark.parametrize("words", ASK)
def test_no_answer_is_one_line(
    words: str, foreign: Foreign, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(handler: Handler) -> None:
        handler.close_connection = True

    def garbage(handler: Handler) -> None:
        handler.wfile.write(b"SSH-2.0-OpenSSH_9.6" + EVIL.encode() + b"\r\n")
        handler.close_connection = True

    def silence(_: Handler) -> None:
        raise Hang

    monkeypatch.setattr(ask, "_TIMEOUT_S", 0.1)
    for answer in (nothing, garbage, silence):
        foreign.answer = answer
        _refuses(command, words)


SHAPES: tuple[Any, ...] = (None, 3, "x", [], {}, [None], [3], ["x"], [[]], [{}], {"x": None})
KEYS = (
    "ranks", "groups", "hosts", "runs", "incidents", "text", "quarantine", "history", "training",
    "monitor", "pause", "actions", "guards", "thresholds", "incident_id", "reset", "source",
)  # fmt: skip


@pytest.mark.parametrize("words", ASK)
def test_a_monitor_of_another_shape_raises_nothing(
    words: str, foreign: Foreign, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its keys are there, with other contents: whatever the command makes of them, it ends well."""
    from lightkeeper.monitor.cli import main

    bodies = [{"schema": 1, **dict.fromkeys(KEYS, shape)} for shape in SHAPES]
    bodies += [{"schema": 1, key: shape} for key, shape in crossed(KEYS, SHAPES)]
    for body in bodies:
        foreign.says(200, JSON, json.dumps(body).encode())
        status = main([*words.split(), *ASK[words]])
        said = capsys.readouterr()
        assert status in (0, 1, 2), body
        assert "Traceback" not in said.err
        assert said.err.count("\n") == (status != 0), (body, said.err)


def test_top_looks_at_no_foreign_server(foreign: Foreign) -> None:
    foreign.says(200, PAGE, HTML)
    with pytest.raises(ask.CommandError, match="is not a monitor"):
        look_at(ask.Monitor(foreign.url), {}, 80, 24)


@pytest.mark.parametrize("body", [HTML, *ODD_BODIES, b'{"ranks": 3}', b'{"ranks": [3]}'])
def test_doctor_finds_that_it_is_no_monitor(foreign: Foreign, body: bytes) -> None:
    foreign.says(200, JSON, body)
    environ = {"LIGHTKEEPER_MONITOR": foreign.url, "LIGHTKEEPER_TOKEN": ""}
    rank = doctor.RankHere("rg_0.0", environ, foreign.url)
    findings = list(doctor.of_monitors([rank], environ))
    assert {each.state for each in findings} & {doctor.FAILED, doctor.UNKNOWN}
