"""What ends though it must not is not silent: /healthz says so, and the process ends."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from lightkeeper.monitor.commands import run as command
from lightkeeper.monitor.commands.command import FAILED
from lightkeeper.monitor.service import Service
from tests.monitor.api import Api, options


def end(made: Service, name: str) -> None:
    """As an exception that nobody caught would end it."""
    dead = threading.Thread(target=lambda: None, name=name)
    dead.start()
    dead.join()
    made._lasting = [dead if thread.name == name else thread for thread in made._lasting]


def test_the_threads_that_must_live_are_known(api: Api) -> None:
    assert {thread.name for thread in api.service._lasting} == {"fetch", "http", "lease", "store"}
    assert api.service.ended() is None


@pytest.mark.parametrize("name", ["fetch", "lease", "store"])
def test_healthz_says_which_has_ended(api: Api, name: str) -> None:
    end(api.service, name)
    answer = api.call("GET", "/healthz")
    assert answer.status_code == 503
    assert name in answer.json()["error"]


def test_healthz_is_503_when_the_loop_stands_for_long(api: Api) -> None:
    api.tick()
    assert api.call("GET", "/healthz").status_code == 200
    view = api.service.keeper.view
    assert view is not None
    object.__setattr__(view.snapshot, "now_s", view.snapshot.now_s - 500.0)
    answer = api.call("GET", "/healthz")
    assert (answer.status_code, "stands still" in answer.text) == (503, True)


@pytest.mark.parametrize("what", ["loop", "store"])
def test_a_monitor_of_which_a_part_has_ended_ends_with_a_status(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def run(service: Service, stop: threading.Event) -> None:
        if what == "store":
            end(service, "store")
            stop.wait(30)

    monkeypatch.setattr(Service, "run", run)
    monkeypatch.setattr(command.os, "umask", lambda _: 0o022)
    assert command.serve(options(tmp_path, token=None), None) == FAILED
    assert what in caplog.text
