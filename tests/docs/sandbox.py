"""A small real job: what the pages print is typed into a shell beside it.

Two replica groups of two ranks, without torch; a monitor that observes. When `hang` is there, rank
rg_1.1 stops in its data loader and the others wait for it, so that there are an incident, evidence
and a journal. Names on the pages stand for those here: ports, an incident's id, a folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests

from tests.docs.pages import ROOT, Page
from tests.monitor.offline.jobs import Recorded, Slow, write_csv, write_parquet
from tests.monitor.process import environment
from tests.nursery import Child, nursery
from tests.ports import free_port
from tests.sidecars import forked
from tests.waiting import wait_for

TOKEN = "sesame-of-the-pages"
RANK = """
import itertools, sys, time
from pathlib import Path
import lightkeeper

group, number, hang = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
hangs = hang.with_name("hangs")  # the others wait only for a rank that has stopped
reporter = lightkeeper.attach(job="demo", group=group, rank=number, world_size=2)
sick = (group, number) == ("rg_1", 1)
for step in itertools.count(1):
    reporter.begin_step(step)
    with reporter.phase("data"):
        time.sleep(0.05)
        while sick and hang.exists():
            hangs.touch()
            time.sleep(0.05)
    with reporter.phase("communication"):
        while hangs.exists():
            time.sleep(0.05)
    reporter.end_step(step, loss=2.5, tokens=64)
"""
LIGHTKEEPER = """
mkfifo "$HOME/asked.$$.status"
{ printf '%s\\0' "$PWD" "$@"; printf '\\0'; env -0; } > "$HOME/asked.$$"
echo "$$" > "$HOME/asks"
read -r status < "$HOME/asked.$$.status"
exit "$status"
"""
"""The command is a fork of the nursery: fifty of them import no two seconds of Python each."""
STUBS = {"torchrun": 'echo "torchrun $*"', "lightkeeper": LIGHTKEEPER}
"""In place of programs that would train for hours, or import for seconds."""


VENV = str(Path(sys.executable).parent)
"""Where `lightkeeper` is."""


def variables_of(text: str) -> dict[str, str]:
    """What `env -0` prints."""
    return dict(row.split("=", 1) for row in text.split("\0") if row)


class Sandbox:
    """The job, its monitor and a folder to type in."""

    def __init__(self, folder: Path) -> None:
        self.home = folder
        self.hang = folder / "hang"
        self.port, self.host_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._processes: list[Child] = []
        self._files()
        programs = (str(folder / "bin"), VENV, os.environ["PATH"])
        self.env = environment(
            HOME=str(folder), LIGHTKEEPER_MONITOR=self.url, TOKEN=TOKEN, MONITOR=self.url,
            LIGHTKEEPER_TOKEN_FILE=str(folder / "token"), LIGHTKEEPER_HOST="node17",
            LIGHTKEEPER_HOST_PORT=str(self.host_port), LIGHTKEEPER_RUN_DIR=str(folder / "run"),
            CURL_HOME=str(folder), PATH=os.pathsep.join(programs),
        )  # fmt: skip
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _files(self) -> None:
        (self.home / "token").write_text(TOKEN)
        (self.home / "token").chmod(0o600)
        (self.home / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\nmax-time = 20\n")
        [policy] = [block.text for block in Page(ROOT / "docs/configuration.md").blocks
                    if block.language == "toml"]  # fmt: skip
        (self.home / "policy.toml").write_text(policy)
        (self.home / "bin").mkdir()
        for name, does in STUBS.items():
            program = self.home / "bin" / name
            program.write_text(f"#!/bin/bash\n{does}\n")
            program.chmod(0o755)
        os.mkfifo(self.home / "asks")
        threading.Thread(target=self._answer, daemon=True).start()
        (self.home / "dumps").mkdir()
        with zipfile.ZipFile(ROOT / "tests/corpus/gloo/captures.zip") as captures:
            (self.home / "dumps/job.zip").write_bytes(captures.read("dtype/ring.zip"))
        slow = Recorded(dp=4, pp=2, tp=2, microbatches=4, steps=12, slow=(Slow(1, 2, 1.5),))
        write_parquet(self.home / "trace.parquet", slow.columns())
        write_csv(self.home / "trace.csv", slow.columns())
        (self.home / "meta.yaml").write_text("dp_size: 4\npp_size: 2\ntp_size: 2\nworld_size: 16\n")
        (self.home / "rank.py").write_text(textwrap.dedent(RANK))
        (self.home / "train.py").write_text("")  # one that trains stands in tests/examples

    def _answer(self) -> None:
        """Be `lightkeeper`, one call after another."""
        while True:
            for pid in (self.home / "asks").read_text().split():
                file = self.home / f"asked.{pid}"
                words, _, variables = file.read_text().partition("\0\0")
                cwd, *given = words.split("\0")
                streams = [Path(f"/proc/{pid}/fd/{number}") for number in (1, 2)]
                command = nursery("monitor").start(
                    ["-m", "lightkeeper", *given], variables_of(variables), cwd=Path(cwd),
                    out=streams[0], err=streams[1],
                )  # fmt: skip
                file.with_suffix(f".{pid}.status").write_text(f"{command.wait(120)}\n")

    def _start(self) -> None:
        def start(kind: str, *words: str | Path) -> None:
            environ, log = self.env | forked(), self.home / "log"
            self._processes.append(
                nursery(kind).start(words, environ, cwd=self.home, out=log, err=log)
            )

        words = ("--store", self.home / "monitor.db", "--policy", self.home / "policy.toml")
        start(
            "monitor", "-m", "lightkeeper", "monitor", "--observe", "--bind",
            f"127.0.0.1:{self.port}", "--tick", "0.5", *words,
        )  # fmt: skip
        self._until(
            lambda: requests.get(f"{self.url}/readyz", timeout=5).ok, "the monitor is ready"
        )
        for group in ("rg_0", "rg_1"):
            for number in ("0", "1"):
                start("rank", "rank.py", group, number, self.hang)
        self._until(lambda: len(self.ranks()) == 4, "four ranks are there")
        self._until(lambda: all(rank["step"] > 5 for rank in self.ranks().values()), "they train")
        self.hang.touch()
        self.incident = self._until(self._firing, "the hang is named")
        self._until(lambda: self.ask(f"/v1/incidents/{self.incident}")["bundle"], "evidence")
        self.env |= {
            name: self.ranks()[rank]["url"]
            for name, rank in {"RANK": "rg_1.1", "VICTIM": "rg_1.0"}.items()
        }

    def _until(self, look: Callable[[], Any], what: str) -> Any:
        failures: list[str] = []

        def seen() -> Any:
            try:
                return look()
            except (requests.RequestException, KeyError, TypeError) as exc:
                failures.append(repr(exc))
                return None

        try:
            return wait_for(seen, within_s=60, what=what)
        except AssertionError as exc:
            log = (self.home / "log").read_text()
            raise AssertionError(f"{what}: {failures[-1:]}\n{log}") from exc

    def ask(self, path: str) -> Any:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return requests.get(self.url + path, headers=headers, timeout=10).json()

    def ranks(self) -> dict[str, Any]:
        return {rank["rank"]: rank for rank in self.ask("/v1/ranks")["ranks"]}

    def _firing(self) -> str | None:
        """Not one that did not last: it is resolved, and has no evidence."""
        incidents = self.ask("/v1/incidents")["incidents"]
        return next((incident["id"] for incident in incidents if incident["culprits"] == ["rg_1.1"]
                     and incident["state"] == "firing"), None)  # fmt: skip

    def here(self, line: str) -> str:
        """The same line, with the names of this job."""
        replaced = {
            r"(127\.0\.0\.1|localhost):8470": f"127.0.0.1:{self.port}",
            r"127\.0\.0\.1:9470": f"127.0.0.1:{self.host_port}",
            r"not_entered-[\w.]+-\d{6,}|\bID\b": self.incident,
            r"(?<=replay )(DIR\b|~\S+)": str(self.home / "monitor.journal"),
            r"\b03:10\b": "00:00", r"\b03:20\b": "23:59",
            r"/shared/dumps/": "dumps/", r"/srv/lightkeeper-grafana": "grafana",
        }  # fmt: skip
        for page, ours in replaced.items():
            line = re.sub(page, ours, line)
        return line

    def type(self, line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", self.here(line)], env=self.env, cwd=self.home, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        deadline = time.monotonic() + 20
        for process in self._processes:
            process.wait(max(1.0, deadline - time.monotonic()))


def said(done: subprocess.CompletedProcess[str]) -> str:
    return f"status {done.returncode}\n{done.stdout[-800:]}\n{done.stderr[-800:]}"
