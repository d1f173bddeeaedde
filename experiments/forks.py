"""torchrun without its price: torch is imported once, and every rank is a fork of that process.

Theory of operation. `python -m experiments.forks CONFIG` imports the trainer, then forks one
supervisor per replica group: `trainer.supervisor.Supervisor` as it is, with `ForkLauncher` in
place of torchrun. A launch is an agent (torchrun's part: it holds the group's store, and when one
rank fails it ends the others) and the agent's forks, the ranks, which run `trainer.train.main`.

A fork unwinds the stack to `main` first (`Become`), so that a rank ends as a script does: by
the interpreter's own way out, with its excepthook and its atexit functions.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from lightkeeper.trainer.status import StatusFile
from lightkeeper.trainer.supervisor import MARK, Supervisor, end_on_signals, launched
from lightkeeper.worker_server.rank.admission import REFUSED_STATUS, AdmissionAnswer, ask_monitors
from tests.forks import light

_LIBC: Final = ctypes.CDLL(None)
_PR_SET_PDEATHSIG: Final = 1
_CLONE_NEWNET: Final = 0x40000000
_POLL_S: Final = 0.05
"""torchrun looks every 0.1 s and ends the others 43 to 142 ms after the first (seen)."""

ADDRESS: Final = "LIGHTKEEPER_FORKS_ADDRESS"
"""Environment variable: where a group listens that is not on loopback."""

PLAIN: Final = "LIGHTKEEPER_FORKS_PLAIN"
"""Environment variable: the trainer attaches, and reports neither phases nor anything else."""

_ASK_S: Final = 5.0
"""How long an answer about admission may take, as in `lightkeeper run`."""

RESTART_S: Final = 3.0
"""From the end of a launch to the next: torchrun and imports take 10 to 30 s where they are used,
and without a pause a group would be back before the monitor's second look at the dead one."""


class Become(BaseException):
    """Unwinds a fork to `main`, which then runs `role`."""

    def __init__(self, role: Callable[[], None]) -> None:
        super().__init__("a fork")
        self.role = role


def fork(role: Callable[[], None], signal_number: signal.Signals) -> int:
    """The child's pid. The child gets `signal_number` when this process dies."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != parent:
        os._exit(1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    raise Become(role)


def exit_code(status: int) -> int:
    """As `subprocess` has it: negative for a signal."""
    return os.waitstatus_to_exitcode(status)


def address() -> str:
    """Where this group's store and manager listen."""
    return os.environ.get(ADDRESS, "127.0.0.1")


def free_port() -> int:
    """A free port of it."""
    with socket.socket() as probe:
        probe.bind((address(), 0))
        return int(probe.getsockname()[1])


# -- a launch --------------------------------------------------------------------------------


@dataclass
class Agent:
    """What torchrun is to its ranks."""

    nproc: int
    grace_s: float
    ranks: dict[int, int] = field(default_factory=dict)

    def __call__(self) -> None:
        """Start the ranks and watch them; exit status 1 as soon as one fails."""
        port = free_port()
        os.environ.update(MASTER_ADDR=address(), MASTER_PORT=str(port))
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        for number in range(self.nproc):
            self.ranks[fork(lambda number=number: rank(number, self.nproc), signal.SIGKILL)] = (
                number
            )
        import datetime

        import torch.distributed as dist

        store = dist.TCPStore(
            address(),
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=datetime.timedelta(seconds=300),
        )
        signal.signal(signal.SIGTERM, lambda *_: self._end(143))
        left = set(self.ranks)
        while left:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                time.sleep(_POLL_S)
                continue
            left.discard(pid)
            code = exit_code(status)
            print(f"agent: rank {self.ranks[pid]} (pid {pid}) ended: {code}", flush=True)
            if code != 0:
                self._end(1)
        del store
        os._exit(0)

    def _end(self, code: int) -> NoReturn:
        for number, wait_s in ((signal.SIGTERM, self.grace_s), (signal.SIGKILL, self.grace_s)):
            for pid in self.ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            until = time.monotonic() + wait_s
            while time.monotonic() < until:
                try:
                    pid, _ = os.waitpid(-1, os.WNOHANG)
                except ChildProcessError:
                    os._exit(code)
                if pid == 0:
                    time.sleep(_POLL_S)
        os._exit(code)


def rank(number: int, size: int) -> None:
    """Be a rank."""
    os.environ.update(
        RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size)
    )
    from lightkeeper.trainer import train

    if ADDRESS in os.environ:
        socket.gethostname = address  # TorchFT's checkpoint server names itself by it
    if PLAIN in os.environ:
        from lightkeeper.worker_server.rank.null_reporter import NullReporter

        with_reports = train.train
        train.train = lambda opt, _reporter: with_reports(opt, NullReporter())
    train.main()


@dataclass
class ForkLaunch:
    """See `trainer.supervisor.Launch`."""

    pid: int
    mark: str
    grace_s: float
    _code: int | None = None

    def poll(self) -> int | None:
        """See `Launch`."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = exit_code(status)
        return self._code

    def stop(self) -> None:
        """See `Launch`."""
        for number, wait_s in ((signal.SIGTERM, 2.5 * self.grace_s), (signal.SIGKILL, 5.0)):
            if self.poll() is None:
                os.kill(self.pid, number)
            until = time.monotonic() + wait_s
            while self.poll() is None and time.monotonic() < until:
                time.sleep(_POLL_S)

    def sweep(self) -> list[int]:
        """Ranks get SIGKILL from the kernel when their agent is gone."""
        return []


@dataclass
class ForkLauncher:
    """See `trainer.supervisor.Launcher`."""

    group: str
    nproc: int
    arguments: Sequence[str]
    log: Path
    monitor: str | None = None
    """Asked for admission by every launch, as `lightkeeper run` does; None: nobody is."""
    grace_s: float = 2.0
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    owner: int = field(default_factory=os.getpid)
    _count: int = 0

    def start(self, host: str) -> ForkLaunch:
        """See `Launcher`."""
        self._count += 1
        mark = f"{self.run_id}.{self._count}"

        def be_agent() -> None:
            os.setsid()
            descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            os.environ.update({"LIGHTKEEPER_HOST": host, "REPLICA_GROUP": self.group})
            os.environ[MARK] = mark + ";"
            if self.monitor is not None:
                answer = ask_monitors([self.monitor], host, self.group, _ASK_S)
                if isinstance(answer, AdmissionAnswer) and not answer.admit:
                    os._exit(REFUSED_STATUS)
            sys.argv = ["lightkeeper.trainer.train", *self.arguments]
            Agent(self.nproc, self.grace_s / 2)()

        return ForkLaunch(fork(be_agent, signal.SIGTERM), mark, self.grace_s)

    def close(self) -> list[int]:
        """End the sidecars, which are no forks and carry the mark."""
        if os.getpid() != self.owner:
            return []  # a fork on its way to `main`
        left = list(launched(self.run_id + "."))
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        return left


# -- supervisors -----------------------------------------------------------------------------


@dataclass
class Group:
    """One supervisor: what `python -m lightkeeper.trainer.supervisor` is, on forks."""

    name: str
    hosts: list[str]
    nproc: int
    monitor: str
    arguments: list[str]
    folder: str
    asks: bool = True
    """Whether its launcher asks for admission."""
    netns: str | None = None
    """Network namespace in which everything of the group runs."""
    environment: dict[str, str] = field(default_factory=dict)

    def __call__(self) -> None:
        """Supervise until told to end."""
        os.environ.update(self.environment)
        if self.netns is not None:
            enter(self.netns)
        end_on_signals()
        record = StatusFile(Path(self.folder, "events", f"{self.name}.jsonl"), group=self.name)
        log = Path(self.folder, "logs", f"{self.name}.log")
        monitor = self.monitor if self.asks else None
        launcher = ForkLauncher(self.name, self.nproc, self.arguments, log, monitor)
        with contextlib.suppress(SystemExit):
            Supervisor(self.hosts, launcher=launcher, emit=record.write, backoff_s=RESTART_S).run()
        sys.stdout.flush()
        os._exit(0)  # to collect torch's garbage, page by page copied, takes it over 20 s of CPU


def enter(netns: str) -> None:
    """Go into a network namespace made by `ip netns add`; needs root."""
    with Path("/run/netns", netns).open("rb") as namespace:
        if _LIBC.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(f"cannot enter network namespace {netns}")


def zygote(config: Path) -> None:
    """Import what ranks need, fork the supervisors, and end with the first of them."""
    import torch
    import torch._dynamo  # AdamW imports it at its first step
    import torch.distributed.fsdp  # and a group of several ranks this
    import torch.distributed.pipelining
    import torchft  # noqa: F401

    from lightkeeper.trainer import train  # noqa: F401

    torch.set_num_threads(1)
    light()
    data = json.loads(config.read_text())
    folder = Path(data["folder"])
    pids: dict[int, str] = {}
    for settings in data["groups"]:
        group = Group(monitor=data["monitor"], folder=data["folder"], **settings)
        pids[fork(group, signal.SIGTERM)] = group.name
    half = folder / ".supervisors.json"
    half.write_text(json.dumps({name: pid for pid, name in pids.items()}))
    half.replace(folder / "supervisors.json")
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: ended.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while pids:
        if ended:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
                    os.kill(pid, signal.SIGCONT)
            ended.clear()
        pid, _ = os.waitpid(-1, os.WNOHANG)
        if pid:
            print(f"supervisor of {pids.pop(pid)} ended", flush=True)
        else:
            time.sleep(_POLL_S)


def main() -> None:
    """Be the zygote; a fork comes back here to be what it was made for."""
    role: Callable[[], None] = lambda: zygote(Path(sys.argv[1]))  # noqa: E731
    while True:
        try:
            role()
        except Become as fork_:
            role = fork_.role
            fork_.__traceback__ = None
            continue
        return


if __name__ == "__main__":
    if os.environ.get("LIGHTKEEPER_CAMPAIGN_TRACE"):
        traceback.print_stack()
    main()
