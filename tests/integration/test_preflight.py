"""`lightkeeper check host` on two hosts that are two processes, and where one of two stays away."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.deep import only_explored
from tests.monitor.process import environment
from tests.nursery import Child, nursery
from tests.ports import free_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(200)]


def start(host: str, folder: Path, *words: str) -> Child:
    named = {"LIGHTKEEPER_HOST": host, "LIGHTKEEPER_MONITOR": ""}
    return nursery("sidecar").start(
        ["-m", "lightkeeper.worker_server.check_host", "--json", *words], environment(**named),
        cwd=folder, out=folder / host,
    )  # fmt: skip


def said(host: str, folder: Path, process: Child) -> dict[str, Any]:
    process.wait(150)
    return json.loads((folder / host).read_text())


def test_two_hosts_meet_and_say_the_same(tmp_path: Path) -> None:
    port = free_port()
    words = ("--hosts", "2", "--store", f"127.0.0.1:{port}", "--limit", "120")
    pair = {host: start(host, tmp_path, *words) for host in ("a", "b")}
    answers = [said(host, tmp_path, process) for host, process in pair.items()]
    assert {tuple(answer["hosts"]) for answer in answers} in ({("a", "b")}, {("b", "a")})
    first, second = [
        [row for row in answer["figures"] if row["against"] == "the other hosts"]
        for answer in answers
    ]
    assert first == second
    assert {row["figure"] for row in first} >= {"matrix multiplication", "memory copy"}
    with socket.create_server(("127.0.0.1", port)):
        pass  # it is free again


# make test: test_preflight_probe has one that is missing, and one that comes too late
@only_explored
def test_of_two_hosts_one_stays_away(tmp_path: Path) -> None:
    words = ("--hosts", "2", "--store", f"127.0.0.1:{free_port()}", "--limit", "60")
    answer = said("a", tmp_path, start("a", tmp_path, *words))
    assert answer["hosts"] == ["a"]
    (missing,) = [check["said"] for check in answer["checks"] if check["state"] == "missing"]
    assert missing == "a came in time, of 2"
    assert answer["figures"], "it goes on alone"


def test_nothing_stays_behind_of_one_that_is_killed(tmp_path: Path) -> None:
    port = free_port()
    process = start("a", tmp_path, "--hosts", "2", "--store", f"127.0.0.1:{port}", "--limit", "120")
    wait_for(lambda: answers(port), within_s=60, what="its store")
    process.kill()
    process.wait(20)
    wait_for(lambda: not answers(port), within_s=30, what="a free port")


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
