"""Rank processes for tests: a small script with a sidecar beside it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from lightkeeper.worker_server import run_dir as files_of_ranks
from lightkeeper.worker_server import wire
from tests import sidecars
from tests.nursery import Child, nursery, opened_here
from tests.waiting import wait_for

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("rank_script.py")
TOKEN = "sesame"
_OURS = ("LIGHTKEEPER", "RANK", "REPLICA_GROUP", "SLURM", "WORLD_SIZE")


def eventually(look: Callable[[], T], what: str, within_s: float = 20.0) -> T:
    """The first truthy answer of `look`."""
    return wait_for(look, within_s=within_s, what=what)


def environment(run_dir: Path | None, **more: str) -> dict[str, str]:
    """This process's own, without what would make it a rank, and with this. As `sidecars.forked`
    has it: no witnesses, an interpreter more for each run directory.
    """
    own = {k: v for k, v in os.environ.items() if not (v and k.startswith(_OURS))}
    folder = {} if run_dir is None else {"LIGHTKEEPER_RUN_DIR": str(run_dir)}
    ours = {"PYTHONPATH": str(ROOT), "LIGHTKEEPER_LINGER_S": "0", "LIGHTKEEPER_MACHINE": "0"}
    return {**own, **ours, **folder, **more}


def run_python(
    *words: str, run_dir: Path | None = None, cwd: Path | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], env=environment(run_dir, **more), cwd=cwd,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


class Ended(NamedTuple):
    """A process that was forked: how it ended, and its run directory."""

    code: int
    stdout: str
    stderr: str
    run_dir: Path


_FORKS = """
import gc, json, os, sys
def child():
    gc.freeze()  # what is there is no child's garbage
    pids = []
    for code, environ, folder in json.load(sys.stdin):
        pids.append(os.fork())
        if not pids[-1]:
            os.environ.update(environ)
            for stream, name in ((1, "stdout"), (2, "stderr")):
                os.dup2(os.open(f"{folder}.{name}", os.O_WRONLY | os.O_CREAT), stream)
            return code
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    print(json.dumps(codes), flush=True)
    os._exit(0)
"""
ATTACHES = """
from lightkeeper.worker_server.rank import attach
from tests import sidecars
sidecars.install()
exec(child(), {"__name__": "__main__"})
"""
"""Imports what an attach needs once for all, then lives as each child."""


def run_each(
    cases: Mapping[str, tuple[str, dict[str, str]]],
    folder: Path,
    *flags: str,
    life: str = ATTACHES,
    **environ: str,
) -> dict[str, Ended]:
    """Run each code with its variables, in a child of one python: its imports are made once."""
    if life == ATTACHES and not flags:
        environ |= sidecars.forked()
    folders = [folder / str(number) for number in range(len(cases))]
    for path in folders:
        path.mkdir(mode=0o700)
    orders = [
        (code, {"LIGHTKEEPER_RUN_DIR": str(path), **own}, str(path))
        for (code, own), path in zip(cases.values(), folders, strict=True)
    ]
    done = subprocess.run(
        [sys.executable, *flags, "-c", _FORKS + life], env=environment(None, **environ),
        input=json.dumps(orders), capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    ended = {}
    for name, code, path in zip(cases, json.loads(done.stdout), folders, strict=True):
        stdout, stderr = (path.with_suffix(end).read_text() for end in (".stdout", ".stderr"))
        ended[name] = Ended(code, stdout, stderr, path)
    return ended


class Rank:
    """A rank process; its sidecar is found by the endpoint file, as a person would."""

    def __init__(self, pid: int, run_dir: Path) -> None:
        self.pid = pid
        self.run_dir = run_dir
        self._ticks = files_of_ranks.start_ticks(pid)
        self._endpoint: dict[str, Any] | None = None

    @property
    def endpoint(self) -> dict[str, Any]:
        if self._endpoint is None:
            self._endpoint = eventually(self._find_endpoint, "the sidecar publishes its URL")
        return self._endpoint

    def _find_endpoint(self) -> dict[str, Any] | None:
        for path in self.run_dir.glob("*.page"):
            content = files_of_ranks.RankFiles(path).read_endpoint()
            if content.get("pid") == self.pid:
                return content
        return None

    def ask(
        self,
        path: str,
        method: str = "GET",
        body: Any = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, str]:
        address = urlsplit(self.endpoint["url"])
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
        try:
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def state(self) -> wire.StateReport:
        status, text = self.ask(wire.PATH_STATE)
        assert status == 200, text
        return wire.parse_state(json.loads(text))

    def record(self) -> wire.FlightRecord:
        status, text = self.ask(wire.PATH_FLIGHT_RECORDER)
        assert status == 200, text
        return wire.parse_flight_record(json.loads(text))

    def evict(self, **body: Any) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        status, text = self.ask(wire.PATH_EVICT, "POST", {"reason": "test", **body}, headers)
        assert status == 200, text
        return json.loads(text)

    def kill(self, signum: signal.Signals = signal.SIGKILL) -> None:
        """Signal this very process, if it still is there."""
        if files_of_ranks.start_ticks(self.pid) == self._ticks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def end(self) -> None:
        """End the rank and its sidecar, by the pids that this test started."""
        self.kill()
        endpoint = self._endpoint or self._find_endpoint()
        if endpoint is not None:
            pid = endpoint["sidecar_pid"]
            if files_of_ranks.start_ticks(pid) == endpoint["sidecar_ticks"]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)


class RankUnderTest(Rank):
    """A rank that runs `rank_script.py`."""

    def __init__(
        self, action: str, run_dir: Path, environ: dict[str, str], stderr_to: Path | None = None,
        *, forked: bool = False,
    ) -> None:  # fmt: skip
        own = {"LIGHTKEEPER_TOKEN": TOKEN, "LIGHTKEEPER_LINGER_S": "30", "REPLICA_GROUP": "rg_1"}
        own, err = environment(run_dir, **{**own, **environ}), stderr_to or opened_here(2)
        self.process: Child | subprocess.Popen[str]
        if forked:
            own |= sidecars.forked()
            self.process = nursery("rank").start([SCRIPT, action], own, err=err, talks=True)
        else:
            words = [sys.executable, str(SCRIPT), action]
            with err.open("ab") as said:
                self.process = subprocess.Popen(
                    words, env=own, stdout=subprocess.PIPE, stderr=said, text=True
                )
        super().__init__(self.process.pid, run_dir)

    def says(self, line: str) -> None:
        """Wait until the script prints this line."""
        assert self.process.stdout is not None
        for said in self.process.stdout:
            if said.strip() == line:
                return
        raise AssertionError(f"the rank ended without saying {line!r}")

    def kill(self, signum: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(signum)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        super().end()
