"""`lightkeeper evict`: asks for it, shows it, says who there is when there is no such group."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightkeeper.monitor.cli import main
from lightkeeper.monitor.commands import orders
from lightkeeper.monitor.service import Service
from tests.http_server import Handler
from tests.monitor.api import options
from tests.monitor.bodies import ServedView, observed
from tests.monitor.bodies import fleet as view_of
from tests.monitor.fakes import FakeFleet, FakeLighthouse

ODD = "my%group#1?"


@pytest.fixture
def running(
    tmp_path: Path, token_file: Path, fleet: FakeFleet, lighthouse: FakeLighthouse
) -> Iterator[Service]:
    lighthouse.form("rg_0:a", "rg_1:b")
    with Service(options(tmp_path, lighthouse.url)) as service:
        registry = service.keeper._components.registry
        for name in ("rg_0", ODD):
            registry.register(fleet.add(name, 0).registration())
        service.keeper.tick()
        yield service


def words(service: Service, tmp_path: Path, group: str, *more: str) -> list[str]:
    token = str(tmp_path / "token")
    return ["evict", group, "--monitor", service.url, "--token-file", token, *more]


class Evicting(ServedView):
    """Each look at the incidents shows the next state of the eviction."""

    def __init__(self, states: list[dict[str, Any]]) -> None:
        super().__init__(view_of(observed(ODD, 0, each=1)))
        self.states, self.asked = states, ""

    def serve(self, handler: Handler, method: str, path: str, body: bytes) -> None:
        if method == "POST":
            self.asked = path
            handler.reply(200, "application/json", b'{"schema": 1, "incident_id": "by_hand-7"}')
            return
        if path.startswith("/v1/incidents"):
            eviction = self.states.pop(0) if len(self.states) > 1 else self.states[0]
            incidents = {"schema": 1, "incidents": [{"id": "by_hand-7", "evictions": [eviction]}]}
            handler.reply(200, "application/json", json.dumps(incidents).encode())
            return
        super().serve(handler, method, path, body)


def state(*details: str, **more: Any) -> dict[str, Any]:
    rungs = [{"rung": "gate", "detail": detail, "result": None} for detail in details]
    return {"rungs": rungs, "failed": None, "confirmed": None, "gone_s": None, **more}


@pytest.mark.parametrize(
    ("last", "status", "says"),
    [
        (state("refused", confirmed="its process is gone"), 0, "it is out: its process is gone"),
        (state("refused", gone_s=7.0), 0, "its processes are gone: nothing is left to evict"),
        (state("refused", failed="it still beats"), 1, "it is not out: it still beats"),
        (state("refused"), 3, "  it is not out after 1 s: gate: refused"),
    ],
)
def test_shows_what_is_done_until_the_group_is_out_or_what_holds_it(
    last: dict[str, Any],
    status: int,
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(orders, "_LOOK_S", 0.1)
    with contextlib.closing(Evicting([state(), state("asked"), last])) as monitor:
        words = ["evict", ODD, "--yes", "--wait", "1", "--monitor", monitor.url]
        assert main(words) == status
        assert monitor.asked == "/v1/groups/my%25group%231%3F/evict"
    lines = capsys.readouterr().out.splitlines()
    first = f"evicting {ODD}: by_hand-7; this ends the job, {ODD} is its only group"
    assert lines == [first, "  gate: asked", "  gate: refused", says]


class Gone(Evicting):
    """One group is gone and not back, which an open incident says."""

    def serve(self, handler: Handler, method: str, path: str, body: bytes) -> None:
        if path.startswith("/v1/incidents") and not self.asked:
            row = {"id": "absent-rg_7-1", "groups": ["rg_7"], "state": "firing", "hosts": ["n7"]}
            incidents = {"schema": 1, "incidents": [row] if "group=rg_7" in path else []}
            handler.reply(200, "application/json", json.dumps(incidents).encode())
        else:
            super().serve(handler, method, path, body)


def test_a_group_that_is_gone_and_not_back_can_be_evicted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with contextlib.closing(Gone([state("deleted", confirmed="pod deleted")])) as monitor:
        assert main(["evict", "rg_7", "--yes", "--monitor", monitor.url]) == 0
        assert monitor.asked == "/v1/groups/rg_7/evict"
        assert capsys.readouterr().out.endswith("it is out: pod deleted\n")
        monitor.asked = ""
        assert main(["evict", "rg_8", "--yes", "--monitor", monitor.url]) == 2
    assert "no group 'rg_8'" in capsys.readouterr().err


def test_a_participant_that_nobody_reports_can_be_named(
    running: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(running, tmp_path, "rg_1", "--yes", "--wait", "0", "--format", "json")) == 0
    assert json.loads(capsys.readouterr().out)["incident_id"].startswith("by_hand-rg_1-")


def test_an_unknown_group_is_answered_with_the_nearest(
    running: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(running, tmp_path, "rg-0", "--yes")) == 2
    assert capsys.readouterr().err == "error: no group 'rg-0'; there is rg_0\n"


def test_without_a_terminal_it_wants_yes_and_nobody_is_asked(
    running: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(running, tmp_path, "rg_0")) == 2
    assert capsys.readouterr().err.endswith("there is no terminal to ask on: say --yes\n")
    assert not running.keeper._components.evictors.active()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("others", "asks"),
    [
        ((), "This ends the job: rg_0 (1 rank on node0) is its only group. End the job? [y/N]: "),
        (("rg_2",), "This ends rg_0 (1 rank on node0). Evict it? [y/N]: "),
    ],
    ids=["the only group", "one of two"],
)
def test_of_the_only_group_it_says_that_this_ends_the_job_and_asks_so(
    others: tuple[str, ...],
    asks: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    groups = [observed(name, 0, each=1) for name in ("rg_0", *others)]
    with contextlib.closing(ServedView(view_of(*groups))) as monitor:
        assert main(["evict", "rg_0", "--monitor", monitor.url]) == 1
    assert capsys.readouterr().err == f"{asks}error: nobody was evicted\n"


def test_without_a_token_it_says_so(
    running: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evict", "rg_0", "--yes", "--monitor", running.url]) == 1
    assert "token" in capsys.readouterr().err
