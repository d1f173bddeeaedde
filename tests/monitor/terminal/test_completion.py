"""Completion of words, by a real bash."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.cli import build_parser, main
from monitor.commands.completion import SHELLS, names, script
from tests.monitor.shell.process import ROOT, environment, lightkeeper
from tests.monitor.terminal.bodies import FakeMonitor, hung

pytestmark = pytest.mark.integration

_TRY = """\
source "$1"; shift
complete -p lightkeeper
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
$(complete -p lightkeeper | sed 's/.*-F \\([^ ]*\\).*/\\1/') \
  lightkeeper "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
for one in "${COMPREPLY[@]}"; do echo "$one"; done
"""


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = lightkeeper("completion", "bash")
    assert made.returncode == 0, made.stderr
    path = tmp_path_factory.mktemp("bash") / "lightkeeper.bash"
    path.write_text(made.stdout)
    return path


@pytest.fixture
def on_path(tmp_path: Path) -> str:
    """A PATH with a `lightkeeper` that is this tree's."""
    command = tmp_path / "lightkeeper"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m monitor.cli "$@"\n')
    command.chmod(0o755)
    return f"{tmp_path}:{os.environ['PATH']}"


def complete(path: Path, *words: str, **env: str) -> list[str]:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash on this machine")
    done = subprocess.run(
        [bash, "--norc", "-c", _TRY, "bash", str(path), "lightkeeper", *words],
        capture_output=True, text=True, timeout=60, check=False, env=environment(**env), cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    first, *found = done.stdout.splitlines()
    assert first.startswith("complete ")
    return found


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["st"], ["status", "stragglers"]),
        (["ranks", "--s"], ["--sort"]),
        (["ranks", "--sort", "p"], ["phase-age"]),
        (["quarantine", ""], ["list", "add", "release", "history"]),
        (["quarantine", "add", "--hou"], ["--hours"]),
        (["demo", "--fault", "mis"], ["mismatch", "mismatch:size"]),
        (["demo", "--keep"], ["--keep-running"]),
        (["admit", "--wa"], ["--wait"]),
        (["policy", "check", "/etc/hostn"], ["/etc/hostname"]),
        (["completion", ""], ["bash", "zsh", "tcsh"]),
    ],
    ids=" ".join,
)
def test_bash_completes(words: list[str], found: list[str], bash_script: Path) -> None:
    assert complete(bash_script, *words) == found


@pytest.fixture
def monitor() -> Iterator[FakeMonitor]:
    made = FakeMonitor(hung())
    yield made
    made.close()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["ranks", "--group", "rg"], ["rg_0", "rg_1"]),
        (["ranks", "--host", "node1"], ["node1"]),
        (["incidents", "not"], ["not_entered-rg_1.1-7"]),
        (["quarantine", "history", "sp"], ["spare"]),
    ],
    ids=" ".join,
)
def test_names_come_from_the_monitor(
    words: list[str], found: list[str], bash_script: Path, monitor: FakeMonitor, on_path: str
) -> None:
    assert complete(bash_script, *words, LIGHTKEEPER_MONITOR=monitor.url, PATH=on_path) == found


def test_no_monitor_no_names_and_no_noise(bash_script: Path, on_path: str) -> None:
    env = {"LIGHTKEEPER_MONITOR": "http://127.0.0.1:9", "PATH": on_path}
    assert complete(bash_script, "ranks", "--group", "", **env) == []


def test_of_several_monitors_the_first_that_answers(monitor: FakeMonitor) -> None:
    both = f"head:1,http://127.0.0.1:9, {monitor.url}/"
    assert list(names(both, "groups")) == ["rg_0", "rg_1"]


def test_no_name_can_do_more_than_be_a_word(monitor: FakeMonitor) -> None:
    for number, name in enumerate(["$(reboot)", "a b", "`id`", "x;y", "ok-1.2"]):
        monitor.body["groups"].append({**monitor.body["groups"][0], "group": name, "n": number})
    assert list(names(monitor.url, "groups")) == ["ok-1.2", "rg_0", "rg_1"]


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("quarantine", "phase-age", "mismatch:size"))


def test_every_command_is_completed(capsys: pytest.CaptureFixture[str]) -> None:
    made = script(build_parser(), "bash")
    (commands,) = [
        action for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    ]  # fmt: skip
    for name in commands.choices:
        assert f"_{name}_option_strings=" in made, name


def test_names_do_not_wait_for_what_the_other_commands_import() -> None:
    code = (
        "import sys, monitor.cli; monitor.cli.main(['completion', '--names', 'groups']); "
        "print([name for name in ('rich', 'requests', 'numpy', 'shtab') if name in sys.modules])"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True,
        env=environment(LIGHTKEEPER_MONITOR="http://127.0.0.1:9"),
    )  # fmt: skip
    assert said.stdout == "[]\n"
