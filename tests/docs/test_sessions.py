"""What the pages print is typed as it stands, beside a small real job.

A line is run, or there is a reason why not, by the program that it starts. Lines that are not run
are held to what exists all the same: `test_commands`.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import shell
from tests.docs.pages import ROOT, manual, readmes
from tests.docs.sandbox import Sandbox, said, variables_of
from tests.docs.test_commands import kind, typed
from tests.monitor.process import environment
from tests.nursery import nursery
from tests.ports import free_port
from tests.waiting import wait_for

HARMLESS = {"lightkeeper", "curl", "echo", "cat", "jq", "awk", "openssl", "chmod", "export"}
QUIET = {"echo", "export", "openssl", "chmod"}
ELSEWHERE = {
    "lightkeeper demo": "takes minutes: tests/integration/test_demo.py",
    "lightkeeper monitor": "one runs here already: test_every_monitor_that_is_printed_starts",
    "lightkeeper gate": "needs a Lighthouse: tests/gate",
    "lightkeeper top": "needs a terminal: tests/monitor/commands",
    "lightkeeper dashboards push": "needs a Grafana: tests/dashboards",
    "--preflight": "its hosts are not here: tests/integration/test_preflight.py",
    "lightkeeper check scheduler": "needs a scheduler: tests/monitor/act/schedulers",
    "lightkeeper check notify": "needs a receiver: tests/monitor/act/notify",
    ":8471": "needs a gate: tests/gate",
    "gpu_error_2nd": "a real record, which is not in the repository",
    "RANK0": "a session of examples/ddp: tests/examples/test_ddp.py",
    "RANK1": "a session of examples/ddp: tests/examples/test_ddp.py",
    "PORT": "a session of examples/torchtitan: tests/examples/test_torchtitan.py",
}
"""By a part of the line."""
FOREIGN = {
    "make": "minutes to hours; its targets are known",
    **dict.fromkeys(("pip", "python3.11"), "needs the network"),
    **dict.fromkeys(("kubectl", "docker"), "needs a cluster: tests/examples/test_kubernetes.py"),
    "helm": "needs a cluster: tests/charts",
    **dict.fromkeys(("srun", "sbatch", "scontrol", "sacctmgr"),
                    "needs Slurm: tests/examples/test_slurm.py"),
    "systemctl": "needs systemd: tests/examples/test_systemd.py",
    "torchft_lighthouse": "needs TorchFT: tests/examples/test_torchft_ddp.py",
    **dict.fromkeys(("torchrun", "accelerate", "python"), "needs a script: tests/examples"),
    **dict.fromkeys(("prometheus", "promtool", "sed"), "tests/prometheus"),
    "sh": "tests/examples",
    **dict.fromkeys(("cd", "mkdir", "mkfifo", "cp", "wait", "umask"), "prepares one of the others"),
    **dict.fromkeys((".venv/bin/pytest", ".venv/bin/python", "python3"), "a test of its own"),
}  # fmt: skip
"""By a program that it starts."""
MAY_SAY_MORE = {"analyze": {1}, "stragglers": {1}, "doctor": {1}}
"""Exit statuses that are answers."""


def lines() -> list[tuple[str, str]]:
    """Each line once, with its page; the page that ends a rank comes last."""
    pages = sorted([*manual(), *readmes()], key=lambda page: page.name == "docs/on-call.md")
    by_line: dict[str, str] = {}
    for page in pages:
        for block in page.blocks:
            if kind(block) in {"shell", "session"}:
                for line in shell.lines(typed(block)):
                    by_line.setdefault(line.strip(), page.name)
    ending = [line for line in by_line if "/v1/evict" in line or "last_words" in line]
    return [
        (by_line[line], line)
        for line in (*(text for text in by_line if text not in ending), *ending)
    ]


def excuse(line: str) -> str | None:
    """Why a line is not run; None: it is."""
    for words, reason in ELSEWHERE.items():
        if words in line:
            return reason
    programs = [command.program for command in shell.commands(line)]
    if "lightkeeper" in programs:  # what stands behind `run --` is ours to replace
        programs = ["lightkeeper"]
    foreign = [
        re.sub(r"^(/tmp/examples/)?bin/", "", program)
        for program in programs
        if program not in HARMLESS
    ]
    if not foreign:
        return None
    reasons = [FOREIGN[program] for program in foreign if program in FOREIGN]
    assert reasons, f"{line}: run it, or say why not"
    return reasons[0]


def test_every_line_that_is_not_typed_has_its_reason() -> None:
    reasons = [excuse(line) for _, line in lines()]
    assert reasons.count(None) >= 40


def test_every_test_that_a_reason_names_is_there() -> None:
    reasons = " ".join([*ELSEWHERE.values(), *FOREIGN.values()])
    names = re.findall(r"tests/[\w/]+(?:\.py)?", reasons)
    assert len(names) > 10
    for name in names:
        tests = ROOT / name
        assert tests.is_file() or list(tests.rglob("test_*.py")), name


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    made = Sandbox(tmp_path_factory.mktemp("pages"))
    yield made
    made.close()


@pytest.mark.integration
@pytest.mark.timeout(400)
def test_every_line_that_can_be_typed_here_works_as_it_is_printed(sandbox: Sandbox) -> None:
    ran, wrong = 0, []
    once = {sandbox.here(line): (page, line) for page, line in lines() if excuse(line) is None}
    for page, line in once.values():
        done = sandbox.type(line)
        allowed = {0}.union(*(more for word, more in MAY_SAY_MORE.items() if word in line))
        if done.returncode not in allowed or "Traceback" in done.stderr:
            wrong.append(f"{page}: {line}\n{said(done)}")
        ran += any(command.program not in QUIET for command in shell.commands(line))
    assert "\n".join(wrong) == ""
    assert ran >= 40


# -- monitors -------------------------------------------------------------------------------------

TELLS = r"""lightkeeper() { env -0; printf '\0'; printf '%s\0' "$@"; }"""
"""What a shell makes of a line: the variables and the words of the monitor."""
AWAY = {"postgresql://": "a database", "kubernetes": "a cluster", "slurm": "Slurm",
        "--store": "the sandbox's", "--policy": "the sandbox's"}  # fmt: skip


def monitors() -> list[str]:
    """The shortest, and as few others as have every option that a page starts a monitor with."""
    plain = sorted(
        {re.sub(r" --bind \S+|&.*", "", " ".join(line.split())).strip()
         for _, line in lines() if "lightkeeper monitor" in line}, key=len,
    )  # fmt: skip
    here = [line for line in plain if not any(word in line for word in AWAY)]
    sets = {line: frozenset(re.findall(r"--[a-z-]+", line)) for line in here}
    return here[:1] + [line for line in here[1:]
                       if not any(sets[line] < sets[other] for other in here)
                       and line == next(x for x in here if sets[x] == sets[line])]  # fmt: skip


@pytest.mark.integration
@pytest.mark.timeout(400)
def test_every_monitor_that_is_printed_starts(tmp_path: Path) -> None:
    """With its options; in a home of its own, at a port of its own."""
    started = []
    for number, line in enumerate(monitors()):
        home = tmp_path / str(number)
        home.mkdir()
        (home / "secret").write_text("a secret")
        (home / "secret").chmod(0o600)
        (home / "policy.toml").write_text("")
        words = f"{line} --bind 127.0.0.1:{free_port()}"
        env = environment(HOME=str(home), PATH=os.environ["PATH"])
        typed = subprocess.run(
            ["bash", "-c", f"{TELLS}\n{words}"], env=env, cwd=home, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        variables, _, given = typed.stdout.partition("\0\0")
        process = nursery("monitor").start(
            ["-m", "lightkeeper.monitor.cli", *given.split("\0")[:-1]],
            variables_of(variables), cwd=home,
            out=home / "log", err=home / "log",
        )  # fmt: skip
        started.append((home, words, process))
    try:
        for home, words, process in started:
            ready = wait_for(
                lambda home=home, process=process: process.poll() is not None
                or "http://127.0.0.1" in (home / "log").read_text(),
                within_s=90, what=f"{words} serves",
            )  # fmt: skip
            assert ready
            assert process.poll() is None, words + (home / "log").read_text()
    finally:
        for _, _, process in started:
            process.terminate()
        codes = [process.wait(30) for _, _, process in started]
    assert set(codes) == {0}
    assert len(codes) >= 5
