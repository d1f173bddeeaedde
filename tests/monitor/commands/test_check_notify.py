"""`lightkeeper check notify`, the options, and the whole way from a tick to a sink."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from lightkeeper.monitor.act.notices import Alertmanager, Webhook
from lightkeeper.monitor.cli import main
from lightkeeper.monitor.commands.command import CommandError
from lightkeeper.monitor.service import Options, Service, for_people
from tests.monitor import api
from tests.monitor.act.notify.scene import Receiver
from tests.monitor.api import Script
from tests.monitor.commands.parsing import monitor_options
from tests.monitor.fakes import page, wait_until
from tests.monitor.samples import incident


def options(*words: str) -> Options:
    return monitor_options("--store", "x.db", *words)


pytestmark = pytest.mark.usefixtures("bare_environment")


def test_a_test_reaches_every_sink_and_its_answer_is_shown(
    receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    receiver.answer = lambda n: (200, "text/plain", b"ok") if n != 1 else page({"no": 1}, 403)
    words = ["--notify-webhook", f"{receiver.url}/services/XYZ",
             "--notify-alertmanager", receiver.url]  # fmt: skip
    assert main(["check", "notify", *words, "--format", "json"]) == 1
    sinks = json.loads(capsys.readouterr().out)["sinks"]
    assert [(sink["sink"], sink["ok"], sink["said"]) for sink in sinks] == [
        ("webhook", False, 'answered 403: {"no": 1}'),
        ("alertmanager", True, "answered 200: ok"),
    ]
    assert {sink["url"] for sink in sinks} == {receiver.url}
    assert [path for path, _, _ in receiver.posts] == ["/services/XYZ", "/api/v2/alerts"]
    receiver.answer = lambda _: page({})
    assert main(["check", "notify", *words]) == 0
    assert "XYZ" not in capsys.readouterr().out


def test_a_sink_where_nobody_listens_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "notify", "--notify-alertmanager", "http://127.0.0.1:9"]) == 1
    assert "refused" in capsys.readouterr().out


def test_nobody_to_notify_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "notify"]) == 2
    assert "nobody to notify" in capsys.readouterr().err


def test_secrets_come_from_files_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from-a-file\n")
    monkeypatch.setenv("LIGHTKEEPER_NOTIFY_WEBHOOK_SECRET", "from-env")
    monkeypatch.setenv("LIGHTKEEPER_NOTIFY_ALERTMANAGER_AUTH_FILE", str(secret))
    sinks = options("--notify-webhook", "http://h/x", "--notify-alertmanager", "http://am:9093",
                    "--notify-label", "cluster=a").sinks  # fmt: skip
    assert sinks == (
        Webhook("webhook", "http://h/x", "from-env"),
        Alertmanager("alertmanager", "http://am:9093", "from-a-file", {"cluster": "a"}),
    )
    monkeypatch.setenv("LIGHTKEEPER_NOTIFY_WEBHOOK", "http://h/y")
    sinks = options("--notify-webhook-secret-file", str(secret)).sinks
    assert sinks[0] == Webhook("webhook", "http://h/y", "from-a-file")


AUTH_FILE = ("--notify-alertmanager", "http://h", "--notify-alertmanager-auth-file")
BAD = {
    "no URL": (["--notify-webhook", "head:9093"], "--notify-webhook is 'head:9093', expected"),
    "ftp": (["--notify-alertmanager", "ftp://h"], "--notify-alertmanager is 'ftp://h', expected"),
    "a bad port": (["--notify-webhook", "http://h:99999"], "expected http://HOST:PORT/..."),
    "a password": (
        ["--notify-webhook", "http://u:p@h/"],
        "--notify-webhook holds a password, which others can read there",
    ),
    "no file": ([*AUTH_FILE, "/nonexistent"], "cannot read /nonexistent: No such file"),
    "an empty file": ([*AUTH_FILE, "/dev/null"], "/dev/null does not hold one"),
    "a label": (
        ["--notify-alertmanager", "http://h", "--notify-label", "a-b=c"],
        "--notify-label is 'a-b=c', expected NAME=VALUE",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_option_is_one_clear_line(name: str) -> None:
    words, said = BAD[name]
    with pytest.raises(CommandError) as caught:
        options(*words)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("bound", "shown"),
    [("http://127.0.0.1:1", "http://127.0.0.1:1"), ("http://0.0.0.0:1", "http://HERE:1"),
     ("http://[::]:1", "http://HERE:1"), ("http://10.0.0.1:1", "http://10.0.0.1:1")],
)  # fmt: skip
def test_links_name_a_host_that_people_can_reach(bound: str, shown: str) -> None:
    assert for_people(bound) == shown.replace("HERE", socket.gethostname())


def test_a_public_address_is_checked() -> None:
    assert options("--public-url", "https://k.example/").public_url == "https://k.example"
    with pytest.raises(CommandError, match=r"--public-url is 'k\.example', expected"):
        options("--public-url", "k.example")


def test_from_a_tick_to_the_sink_and_over_a_restart(receiver: Receiver, tmp_path: Path) -> None:
    sinks = (Webhook("webhook", receiver.url),)
    settings = api.options(tmp_path, sinks=sinks, public_url="https://keeper.example")
    with Service(settings) as service:
        fires = Script([{"incidents": (incident(),), "changed": (incident(),)}])
        api.Api(service).judged_by(fires)
        service.keeper.tick()
        wait_until(lambda: receiver.posts, 10, "a message")
        wait_until(
            lambda: service.keeper._components.store.remembered().notices, 10, "it is stored"
        )
    assert receiver.bodies[0]["url"] == "https://keeper.example/incidents/inc-1"
    with Service(settings) as service:
        service.keeper.tick()  # its ranks have never been registered here
        wait_until(lambda: len(receiver.posts) == 2, 10, "the end of it")
        service.keeper.tick()
    assert [(body["status"], body["resolution"]) for body in receiver.bodies] == [
        ("firing", None), ("resolved", "its ranks are no longer registered"),
    ]  # fmt: skip
