"""`lightkeeper policy`, `pause`, `resume`, `monitor --policy`, SIGHUP: as a user meets them."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lightkeeper.monitor.cli import main
from lightkeeper.monitor.service import Service
from tests.monitor.api import Api, options
from tests.monitor.fakes import FakeLighthouse, wait_until
from tests.monitor.process import ROOT, Monitor
from tests.monitor.test_rulebook import POLICY, rulebook
from tests.ports import free_port


@pytest.fixture(autouse=True)
def _token(bare_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTKEEPER_TOKEN", "secret")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    return path


@pytest.fixture
def running(tmp_path: Path, file: Path, lighthouse: FakeLighthouse) -> Iterator[Service]:
    rules = rulebook(file)
    given = options(tmp_path, lighthouse.url, config=rules.current.config, rules=rules)
    with Service(given) as service:
        service.keeper.tick()
        yield service


def test_a_monitor_that_watches_only_shows_no_part_of_a_policy_that_it_never_uses(
    tmp_path: Path, file: Path, capsys
) -> None:
    rules = rulebook(file)
    with Service(options(tmp_path, config=rules.current.config, rules=rules)) as service:
        service.keeper.tick()
        assert main(["policy", "show", "--monitor", service.url]) == 0
    out = capsys.readouterr().out
    assert "mode: watch-only" in out
    assert "stall_floor_s" in out
    assert not re.search("evict|Lighthouse|quorum|pause|budget|min_replicas", out)


def test_a_good_file_is_said_to_be_good(file: Path, capsys) -> None:
    assert main(["check", "policy", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: a policy that can be used\n"


def test_of_several_files_each_is_said_to_be_good_or_what_is_wrong(file: Path, capsys) -> None:
    others = file.with_name("a.toml"), file.with_name("b.toml")
    for number, other in enumerate(others):
        other.write_text(f"x{number} = 1\n")
    words = ["check", "policy", str(others[0]), str(file), str(others[1])]
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == f"{file}: a policy that can be used\n"
    assert [line.partition(": unknown")[0] for line in err.splitlines()] == [
        f"error: {others[0]}: x0", f"error: {others[1]}: x1",
    ]  # fmt: skip
    assert main([*words, "--format", "json"]) == 2
    text, read = capsys.readouterr().out, json.JSONDecoder().raw_decode
    answers = []
    while text := text.lstrip():
        body, end = read(text)
        text = text[end:]
        answers.append((body["file"], body["ok"]))
    assert answers == [(str(others[0]), False), (str(file), True), (str(others[1]), False)]


def test_before_a_commit_the_hook_checks_the_policy_files(file: Path, tmp_path, capsys) -> None:
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    names = re.compile(hook["files"])
    assert names.search("examples/policy.toml")
    assert names.search("deploy/lightkeeper-policy.toml")
    assert not names.search("pyproject.toml")
    program, *words = hook["entry"].split()
    assert (program, hook["language"]) == ("lightkeeper", "python")
    bad = tmp_path / "policy.toml"
    bad.write_text("[policy]\nmode = 'kill'\n")
    assert main([*words, str(ROOT / "examples/policy.toml")]) == 0
    assert main([*words, str(ROOT / "examples/policy.toml"), str(bad)]) == 2
    assert "expected act or observe" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["check", "policy"], ["monitor", "--policy"]])
def test_all_that_is_wrong_with_a_file_is_told_one_line_each(words, file: Path, capsys) -> None:
    file.write_text("[policy]\nmode = 'kill'\n[guards]\nbudget_per_hou = 3\n")
    assert main([*words, str(file)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"error: {file}: policy.mode: is 'kill', expected act or observe",
        f"error: {file}: guards.budget_per_hou: unknown key, did you mean budget_per_hour?",
    ]


def test_the_policy_of_a_running_monitor_is_shown_and_reloaded(
    running: Service, file: Path, capsys
) -> None:
    ask = ["--monitor", running.url]
    assert main(["policy", "show", *ask]) == 0
    out = capsys.readouterr().out
    assert f"policy: {file}" in out
    assert "mode: observe" in out
    assert "stall_floor_s" in out
    file.write_text("[guards]\nbudget_per_hour = 1\n")
    assert main(["policy", "reload", *ask, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["guards"]["budget_per_hour"]["value"] == 1
    file.write_text("x = 1\n")
    assert main(["policy", "reload", *ask]) == 1
    assert "nothing has changed: " in capsys.readouterr().err
    assert main(["policy", "show", *ask]) == 0
    assert "! not reloaded: " in capsys.readouterr().out


def test_pause_and_resume_are_said_large_and_shown_in_status(running: Service, capsys) -> None:
    ask = ["--monitor", running.url]
    assert main(["pause", "--reason", "rack 7", *ask]) == 0
    line = capsys.readouterr().out
    assert line.startswith("PAUSED by ")
    assert "until `lightkeeper resume`: rack 7 (nobody is evicted but by hand)" in line
    running.keeper.tick()
    assert main(["status", *ask]) == 0
    assert "PAUSED by " in capsys.readouterr().out
    assert main(["resume", *ask]) == 0
    assert "resumed" in capsys.readouterr().out
    assert main(["resume", *ask]) == 1
    assert "nothing is paused" in capsys.readouterr().err


@pytest.mark.integration
def test_a_hangup_reads_the_file_again_and_a_bad_one_is_logged(tmp_path: Path, file: Path) -> None:
    monitor = Monitor(
        "--store", str(tmp_path / "m.db"), "--policy", str(file), "--tick", "0.2",
        port=free_port(), LIGHTKEEPER_TOKEN="secret",
    )  # fmt: skip
    try:
        monitor.ready()
        assert monitor.get("/v1/policy")["mode"] == "observe"
        file.write_text("[policy]\nmode = 'act'\n[guards]\nbudget_per_hour = 3\n")
        monitor.process.send_signal(signal.SIGHUP)
        wait_until(lambda: monitor.get("/v1/policy")["mode"] == "act", 10, "the reload")
        file.write_text("[guards]\nbudget_per_hour = 'x'\n")
        monitor.process.send_signal(signal.SIGHUP)

        def told() -> bool:
            return any(
                "the policy was not" in trouble for trouble in monitor.get("/healthz")["degraded"]
            )

        wait_until(told, 10, "the trouble")
        assert monitor.get("/v1/policy")["guards"]["budget_per_hour"]["value"] == 3
        body = {"reason": "rack 7"}
        assert monitor.call("POST", "/v1/pause", json=body).status_code == 200
        assert monitor.end(signal.SIGTERM) == 0
        assert any("is not reloaded, by SIGHUP: " in line for line in monitor.lines)
    finally:
        monitor.end()
    with Service(options(tmp_path)) as service:
        service.keeper.tick()
        assert Api(service).get("/v1/snapshot")["pause"]["reason"] == "rack 7"
