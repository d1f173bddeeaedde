"""TorchFT's own Rust managers and Lighthouse, without torch: groups that ask and commit."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import requests

from tests.nursery import Child, nursery, opened_here
from tests.waiting import wait_for


def torchft() -> Any:
    """TorchFT's compiled part alone: importing the package costs torch's six seconds."""
    for folder in map(Path, sys.path):
        for library in folder.glob("torchft/_torchft*.so"):
            loader = importlib.machinery.ExtensionFileLoader("torchft._torchft", str(library))
            spec = importlib.util.spec_from_loader("torchft._torchft", loader)
            assert spec is not None
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
            return module
    raise ImportError("torchft is not installed")


_LIGHTHOUSE = """
import json, sys, time
from tests.gate.groups import torchft
server = torchft().LighthouseServer(**json.loads(sys.argv[1]))
time.sleep(3600)
"""


class Lighthouse:
    """The real one, as a process that can be killed and started again."""

    def __init__(
        self,
        port: int,
        *,
        min_replicas: int = 1,
        heartbeat_timeout_ms: int = 1000,
        join_timeout_ms: int = 10_000,
    ) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._options = {
            "bind": f"127.0.0.1:{port}",
            "min_replicas": min_replicas,
            "heartbeat_timeout_ms": heartbeat_timeout_ms,
            "join_timeout_ms": join_timeout_ms,
            "quorum_tick_ms": 20,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LIGHTHOUSE, json.dumps(self._options)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "RUST_LOG": "error", "PYTHONPATH": _path(root)},
        )  # fmt: skip
        wait_for(self._answers, within_s=60, what="the Lighthouse answers")

    def _answers(self) -> bool:
        with contextlib.suppress(requests.RequestException):
            return requests.get(f"{self.url}/status", timeout=5).ok
        return False

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()


def _path(root: Path) -> str:
    """Another TorchFT may stand first, for all processes of a test."""
    return f"{os.environ.get('PYTHONPATH', '')}:{root}"


@dataclass
class Group:
    """One replica group of one rank: a real manager, and a thread that trains on nothing."""

    name: str
    lighthouse: str
    step_s: float = 0.02
    quorum_timeout_s: float = 30.0
    hostname: str = "127.0.0.1"
    retries: int = 0
    heartbeat_ms: int = 100
    commits: int = 0
    committed_s: list[float] = field(default_factory=list)
    quorum_ids: list[int] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    error: str | None = None
    asking: bool = False
    asked_s: float = 0.0
    """When it began to ask."""
    pause: threading.Event = field(default_factory=threading.Event)
    _stop: threading.Event = field(default_factory=threading.Event)

    def start(self) -> Group:
        self._module = torchft()
        seconds = timedelta(seconds=self.quorum_timeout_s)
        self.server = self._module.ManagerServer(
            replica_id=self.name,
            lighthouse_addr=self.lighthouse,
            hostname=self.hostname,
            bind="127.0.0.1:0",
            store_addr="127.0.0.1:1",
            world_size=1,
            heartbeat_interval=timedelta(milliseconds=self.heartbeat_ms),
            connect_timeout=timedelta(seconds=10),
            quorum_retries=self.retries,
        )
        port = self.server.address().rpartition(":")[2]
        self._client = self._module.ManagerClient(f"http://127.0.0.1:{port}", seconds)
        self._seconds = seconds
        self._thread = threading.Thread(target=self._train, daemon=True, name=self.name)
        self._thread.start()
        return self

    def _train(self) -> None:
        while not self._stop.is_set():
            if self.pause.is_set():
                time.sleep(0.02)
                continue
            try:
                self.asked_s = time.monotonic()
                self.asking = True
                result = self._client._quorum(
                    group_rank=0,
                    step=self.commits,
                    checkpoint_metadata="",
                    shrink_only=False,
                    timeout=self._seconds,
                    commit_failures=0,
                    init_sync=False,
                )
                self.asking = False
                time.sleep(self.step_s)
                self._client.should_commit(0, self.commits, True, self._seconds)
            except (RuntimeError, TimeoutError) as exc:
                self.error = f"{type(exc).__name__}: {exc}"
                return
            self.quorum_ids.append(result.quorum_id)
            self.members.append(result.replica_world_size)
            self.commits += 1
            self.committed_s.append(time.monotonic())

    def commits_more(self, count: int, within_s: float = 20) -> float:
        """Wait for that many commits more; seconds it took."""
        began, until = time.monotonic(), self.commits + count

        def there() -> bool:
            assert self.error is None, f"{self.name}: {self.error}"
            return self.commits >= until

        wait_for(there, within_s=within_s, what=f"{self.name} commits {count} times more")
        return time.monotonic() - began

    def longest_gap_s(self) -> float:
        pairs = zip(self.committed_s, self.committed_s[1:], strict=False)
        return max(after - before for before, after in pairs)

    def stop(self) -> None:
        """End its manager too: it would go on beating."""
        self._stop.set()
        self.server.shutdown()


def all_commit_more(groups: list[Group], count: int) -> None:
    """Wait until each has that many commits more."""
    until = [group.commits + count for group in groups]

    def there() -> bool:
        assert not any(group.error for group in groups), [group.error for group in groups]
        return all(group.commits >= wanted for group, wanted in zip(groups, until, strict=True))

    wait_for(there, within_s=30, what=f"all commit {count} times more")


class Gate:
    """`lightkeeper gate` as a process that can be killed and started again."""

    def __init__(
        self,
        lighthouse: str,
        port: int,
        admin: int,
        *words: str,
        token: str | None = "secret",
        host: str = "127.0.0.1",
        files: int | None = None,
    ) -> None:
        """`files`: how many it may have open."""
        self._limits = [] if files is None else ["prlimit", f"--nofile={files}:{files}"]
        self._token = {"LIGHTKEEPER_TOKEN": token or ""}  # empty: none, and none is made
        self.url = f"http://{host}:{port}"
        self.admin = f"http://127.0.0.1:{admin}"
        self._words = [
            "--lighthouse", lighthouse, "--bind", f"{host}:{port}",
            "--admin", f"127.0.0.1:{admin}", *words,
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        """Start it, beside the one that runs if there is one."""
        root = Path(__file__).parents[2]
        kept = {k: v for k, v in os.environ.items() if not (v and k.startswith("LIGHTKEEPER"))}
        words = ["-m", "lightkeeper.monitor.cli", "gate", *self._words]
        env = {**kept, "PYTHONPATH": _path(root), **self._token}
        self.process: subprocess.Popen[bytes] | Child
        if self._limits:
            self.process = subprocess.Popen([*self._limits, sys.executable, *words], env=env)
        else:
            self.process = nursery("monitor").start(words, env, err=opened_here(2))
        try:
            wait_for(self._answers, within_s=90, what="the gate answers")
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def _answers(self) -> bool:
        assert self.process.poll() is None
        with contextlib.suppress(requests.RequestException):
            health = requests.get(f"{self.admin}/healthz", timeout=5)
            return f"pid {self.process.pid}\n" in health.text
        return False

    def follow(self) -> subprocess.Popen[bytes] | Child:
        """Start another one beside it, which takes over; returns the old one."""
        old = self.process
        self.start()
        return old

    def view(self) -> Any:
        return requests.get(f"{self.admin}/v1/gate", timeout=5).json()

    def deny(self, *denials: dict[str, Any]) -> None:
        answer = requests.put(
            f"{self.admin}/v1/gate/denied",
            json={"denied": list(denials)},
            headers={"Authorization": "Bearer secret"},
            timeout=5,
        )
        assert answer.status_code == 200, answer.text

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def running(*parts: Any) -> Iterator[None]:
    """Ends them however the block ends."""
    try:
        yield
    finally:
        for part in parts:
            (part.kill if isinstance(part, Lighthouse) else part.stop)()
