"""A job as people run it, and its monitor: TorchFT with a Lighthouse and a launch loop around each
group's torchrun, or ranks of one torchrun, or bare processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from experiments.field.cases import SCRIPTS, Case, Launch, lines
from experiments.harness import prepare
from lightkeeper.trainer.supervisor import MARK, launched
from tests.ports import free_port

GROUP_STEP: Final = r"\[(?P<step>\d+)\] loss = \S+, participants = (?P<participants>\d+)"
RANK_STEP: Final = r"\brank {rank} step (?P<step>\d+)\b"
_LISTENER: Final = """\
import socket, sys, time
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
time.sleep(1e6)
"""
_GRACE_S: Final = 10.0


@dataclass
class Process:
    """One of /proc."""

    pid: int
    parent: int
    state: str
    command: str
    environ: dict[str, str]

    @property
    def group(self) -> str:
        """The replica group that its launcher gave it; of a plain job `job`."""
        return self.environ.get("REPLICA_GROUP_ID", "job")

    @property
    def is_sidecar(self) -> bool:
        """Whether it is a WorkerServer."""
        return "worker_server.sidecar" in self.command


@dataclass
class Tail:
    """What a group, or a rank of a plain job, printed: when it made which step."""

    path: Path
    pattern: str = GROUP_STEP
    mates: int | None = None
    """Groups that train together, itself among them; None in a plain job."""
    at: int = 0
    step: int = 0
    steps: int = 0
    """Lines of a step so far."""
    participants: int | None = None
    moved_s: float = 0.0

    def look(self, now_s: float) -> bool:
        """Whether it has made a step since the last look."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.at)
                data = file.read()
        except OSError:
            return False
        whole = data[: data.rfind(b"\n") + 1]
        self.at += len(whole)
        lines = list(re.finditer(self.pattern, whole.decode(errors="replace")))
        if not lines:
            return False
        before, last = self.step, lines[-1].groupdict()
        self.step = int(last["step"])
        self.participants = int(last["participants"]) if "participants" in last else None
        self.steps += len(lines)
        if self.step == before:
            return False
        self.moved_s = now_s
        return True


@dataclass
class Fleet:
    """Made by `start`; `stop` ends every process that any part of it has started."""

    case: Case
    folder: Path
    mark: str = field(default_factory=lambda: f"field-{uuid.uuid4().hex[:12]}")
    lighthouse_port: int = field(default_factory=free_port)
    elsewhere_port: int = field(default_factory=free_port)
    """Of the second Lighthouse, where there is one."""
    monitor_port: int = field(default_factory=free_port)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    tails: dict[str, Tail] = field(default_factory=dict)
    master_port: int = field(default_factory=free_port)
    """Of a plain job."""
    _ports: dict[str, int] = field(default_factory=dict)

    @property
    def monitor_url(self) -> str:
        """Where the monitor is."""
        return _url(self.monitor_port)

    @property
    def lighthouse_url(self) -> str:
        """Where the Lighthouse is."""
        return _url(self.lighthouse_port)

    # -- processes -----------------------------------------------------------------------

    def start(self) -> None:
        """Start everything but the groups that come late; returns at once."""
        token = prepare(self.folder, "logs", "output")
        os.mkfifo(self.folder / "dead")
        lighthouse: tuple[str, ...] = ()
        if self.case.launch is Launch.GROUPS:
            lighthouse = ("--lighthouse", self.lighthouse_url)
            self._start_lighthouse("lighthouse", self.lighthouse_port)
        if self.case.elsewhere:
            self._start_lighthouse("elsewhere", self.elsewhere_port)
        self._spawn(
            "monitor",
            [
                _program("lightkeeper"), "monitor", *lighthouse,
                "--bind", f"127.0.0.1:{self.monitor_port}",
                "--store", str(self.folder / "monitor.db"),
                "--token-file", str(token),
                *self.case.monitor,
            ],
        )  # fmt: skip
        match self.case.launch:
            case Launch.GROUPS:
                for group in range(self.case.groups):
                    if group not in self.case.late:
                        self.start_group(str(group))
            case Launch.TORCHRUN:
                self._start_torchrun()
            case Launch.BARE:
                self._start_bare()

    def _start_lighthouse(self, name: str, port: int) -> None:
        self._spawn(
            name, [_program("torchft_lighthouse"), "--bind", f"[::]:{port}", "--min_replicas", "1"]
        )

    def start_group(self, group: str) -> None:
        """One launch loop."""
        port, case = self._ports.setdefault(group, free_port()), self.case
        away = int(group) in case.elsewhere
        mates = len(case.elsewhere) if away else case.groups - len(case.late) - len(case.elsewhere)
        self.tails.setdefault(group, Tail(self._log(f"group-{group}"), mates=mates))
        self._spawn(
            f"group-{group}",
            ["sh", str(SCRIPTS / "launch.sh"), str(case.ranks), str(port), self.script],
            REPLICA_GROUP_ID=group,
            NUM_REPLICA_GROUPS=str(case.groups),
            MIN_REPLICAS="1",
            LIGHTKEEPER_HOST=f"host-{group}",
            TORCHFT_LIGHTHOUSE=_url(self.elsewhere_port) if away else self.lighthouse_url,
            **self._surroundings(group),
        )

    def _start_torchrun(self) -> None:
        """`lightkeeper run -- torchrun ...`, as one types it."""
        for rank in range(self.case.ranks):
            self.tails[f"job.{rank}"] = Tail(
                self._log("group-job"), RANK_STEP.format(rank=rank)
            )  # fmt: skip
        self._spawn(
            "group-job",
            [
                _program("lightkeeper"), "run", "--", "torchrun", "--nnodes=1",
                f"--nproc-per-node={self.case.ranks}", "--master-addr=127.0.0.1",
                f"--master-port={self.master_port}", self.script,
            ],
            **self._surroundings("job"),
        )  # fmt: skip

    def _start_bare(self) -> None:
        """The ranks without a launcher: variables by hand."""
        if self.case.port_taken:
            self._spawn("listener", [sys.executable, "-c", _LISTENER, str(self.master_port)])
        for rank in range(self.case.ranks):
            name = f"group-job.{rank}"
            self.tails[f"job.{rank}"] = Tail(self._log(name), RANK_STEP.format(rank=rank))
            self._spawn(
                name,
                [_program("lightkeeper"), "run", "--", "python", self.script],
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(self.case.ranks),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(self.master_port),
                **self._surroundings("job"),
            )

    @property
    def script(self) -> str:
        """Path of the script that ranks run."""
        return str(SCRIPTS / f"{self.case.script}.py")

    def _surroundings(self, group: str) -> dict[str, str]:
        """What a script finds in its environment."""
        return {
            "OUTPUT": str(self.folder / "output"),
            "DEAD_FILE": str(self.folder / "dead"),
            "LOCKED_FILE": str(self.folder / "locked"),
            "FROZEN_FOLDER": str(self.folder / "disk"),
            "OTHER_ID": str(self.folder / "other_id"),
            "BUG": self.case.bug,
            "BUG_GO": str(self.folder / "go"),
            "BUG_STRUCK": str(self.folder / "struck.jsonl"),
            **self.case.env,
            **self.case.group_env.get(group, {}),
        }

    def _log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def _spawn(self, name: str, command: list[str], **extra: str) -> None:
        inherited = {key: value for key, value in os.environ.items() if key not in _NOT_OURS}
        environment = {
            **inherited,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "LIGHTKEEPER_RUN_DIR": str(self.folder / "run"),
            "LIGHTKEEPER_MONITOR": self.monitor_url,
            "LIGHTKEEPER_TOKEN_FILE": str(self.folder / "token"),
            "LIGHTKEEPER_JOB": "field",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            MARK: f"{self.mark};",
            **extra,
        }
        stdin = self._stdin() if self.case.terminal else subprocess.DEVNULL
        with self._log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *command],
                stdin=stdin,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    _pipes: list[int] = field(default_factory=list)

    def _stdin(self) -> int:
        """A terminal at which nobody types."""
        reader, writer = os.pipe()
        self._pipes += [reader, writer]
        return reader

    def stop(self) -> None:
        """End everything that was started, stopped ones too."""
        for _ in range(4):
            left = list(launched(self.mark))
            if not left:
                break
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                os.close(pipe)

    # -- who is who ----------------------------------------------------------------------

    def all(self) -> dict[int, Process]:
        """Everything of this job that lives."""
        return {
            pid: process
            for pid in launched(self.mark)
            if (process := _process(pid)) is not None and process.state not in "ZX"
        }

    def ranks(self, name: str) -> list[int]:
        """Processes that are rank `GROUP.RANK`, the oldest first: after an orphan there are two."""
        group, _, rank = name.partition(".")
        processes = self.all()
        return sorted(
            pid
            for pid, process in processes.items()
            if process.environ.get("RANK") == rank
            and process.group == group
            and self.script in process.command
            and not process.is_sidecar
            and (process.parent not in processes or "RANK" not in processes[process.parent].environ)
        )

    def pids(self, whom: str) -> list[int]:
        """Of `rank 1.0`, `orphan 1.0`, `worker 1.0` (of its DataLoader), `sidecar 1.0`, `agent 1`,
        `launcher 1`, `group 1` (all but its launcher), or `all`.
        """
        kind, _, name = whom.partition(" ")
        group, _, rank = name.partition(".")
        processes = self.all()
        match kind:
            case "rank":
                return self.ranks(name)[-1:]
            case "orphan":
                return self.ranks(name)[:1]
            case "worker":
                mine = set(self.ranks(name))
                return [
                    p
                    for p, process in processes.items()
                    if process.parent in mine and not process.is_sidecar
                ]
            case "sidecar":
                return [
                    pid for pid, process in processes.items()
                    if process.is_sidecar and process.environ.get("RANK") == rank
                    and process.group == group
                ]  # fmt: skip
            case "agent":
                return [
                    pid for pid, process in processes.items()
                    if "torchrun" in process.command and "launch.sh" not in process.command
                    and "RANK" not in process.environ
                    and process.group == group
                ]  # fmt: skip
            case "launcher":
                return [self.processes[f"group-{group}"].pid]
            case "group":
                return [
                    pid for pid, process in processes.items()
                    if process.group == group
                    and "launch.sh" not in process.command
                ]  # fmt: skip
            case "all":
                return list(processes)
            case _:
                pass
        raise ValueError(f"nobody is called {whom!r}")

    def marks(self) -> dict[str, str]:
        """What `@name` stands for in the truth of this run."""
        listener = self.processes.get("listener")
        return {
            **lines(),
            "elsewhere": str(self.elsewhere_port),
            "master_port": str(self.master_port),
            "listener": "-" if listener is None else str(listener.pid),
        }

    # -- what happens --------------------------------------------------------------------

    def look(self, now_s: float) -> bool:
        """Whether any group has made a step since the last look."""
        return sum(tail.look(now_s) for tail in self.tails.values()) > 0

    def struck(self) -> list[dict[str, object]]:
        """The bugs that have struck, as the scripts wrote them down."""
        try:
            text = (self.folder / "struck.jsonl").read_text()
        except OSError:
            return []
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def ended(self) -> Iterator[str]:
        """Processes of ours that must live and do not."""
        for name in ("lighthouse", "elsewhere", "monitor", "listener"):
            process = self.processes.get(name)
            if process is not None and process.poll() is not None:
                yield f"{name} ended with {process.returncode}"

    def exit_status(self) -> int | None:
        """A plain job's, the first that is not 0 where it has several processes; None while any
        of them runs, and in a job whose groups are launched again.
        """
        if self.case.launch is Launch.GROUPS:
            return None
        statuses = [
            process.poll() for name, process in self.processes.items() if name.startswith("group-")
        ]
        if None in statuses:
            return None
        return next((status for status in statuses if status), 0)


_NOT_OURS: Final = {"TORCHFT_LIGHTHOUSE", "REPLICA_GROUP_ID", "REPLICA_GROUP", "RANK", "WORLD_SIZE"}


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def _program(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _process(pid: int) -> Process | None:
    folder = Path("/proc") / str(pid)
    try:
        stat = (folder / "stat").read_text().rpartition(")")[2].split()
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        pairs = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    environ = dict(pair.partition("=")[::2] for pair in pairs if "=" in pair)
    return Process(pid, int(stat[1]), stat[0], command, environ)
