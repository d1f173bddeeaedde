"""Keeps one replica group running: starts torchrun on an admitted host, again whenever it ends.

Theory of operation. Each launch is `lightkeeper run -- torchrun`, which asks the monitor whether
the host is admitted, and ends with status 75 if it is not; quarantine relies on this question. A
refused host moves to the end of the list, and the next is tried; if all are refused, the supervisor
waits and tries again. Hosts are only names here, like a scheduler's: the ranks always run on this
machine, with the name in LIGHTKEEPER_HOST.

A launch is over when torchrun and all its ranks are gone. A rank may be stopped, or hold the GIL
forever, and torchrun gives each rank its own session. So everything that a launch starts carries
a mark in its environment, by which it is found in /proc. Sidecars carry the mark too, but outlive
their rank on purpose (they are the black box): only `Launcher.close` ends them.

No torch.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Final

from lightkeeper.trainer.options import in_bounds, rank_options
from lightkeeper.trainer.status import StatusFile
from lightkeeper.worker_server.command import OneLineParser
from lightkeeper.worker_server.rank.admission import REFUSED_STATUS
from lightkeeper.worker_server.run_dir import stat_fields

MARK: Final = "LIGHTKEEPER_LAUNCH"
"""Environment variable that marks everything a launch started."""
_SIDECAR: Final = re.compile(rb"worker_server[./]sidecar")
_LIBC: Final = ctypes.CDLL(None)
_PR_SET_PDEATHSIG: Final = 1
_POLL_S: Final = 0.2
_QUICK_S: Final = 10.0
"""A launch that ends sooner than this doubles the back-off."""
_BACKOFF_LIMIT_S: Final = 30.0
_GRACE_S: Final = 5.0
"""From SIGTERM to SIGKILL."""


@dataclass(eq=False)
class Supervisor:
    """Launch, watch, launch again."""

    hosts: Sequence[str]
    _: KW_ONLY
    launcher: Launcher
    emit: Callable[..., None]
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    backoff_s: float = 1.0

    def run(self) -> None:
        """Returns when the training has finished; an exception (SystemExit) ends the launch."""
        hosts, refusals, quick = deque(self.hosts), 0, 0
        launch: Launch | None = None
        try:
            while True:
                began_s = self.clock()
                launch = self.launcher.start(hosts[0])
                self.emit("started", host=hosts[0], pid=launch.pid)
                while (code := launch.poll()) is None:
                    self.sleep(_POLL_S)
                launch.sweep()
                launch = None
                if code == REFUSED_STATUS:
                    self.emit("refused", host=hosts[0])
                    hosts.rotate(-1)
                    refusals += 1
                    if refusals % len(hosts) == 0:
                        self.sleep(max(self.backoff_s, 1.0))
                    continue
                refusals = 0
                self.emit("left", host=hosts[0], rc=code)
                if code == 0:
                    return
                quick = quick + 1 if self.clock() - began_s < _QUICK_S else 0
                self.sleep(min(self.backoff_s * 2.0 ** max(0, quick - 1), _BACKOFF_LIMIT_S))
        finally:
            if launch is not None:
                launch.stop()
            self.launcher.close()


# -- launches -----------------------------------------------------------------------------------


def launched(mark: str, *, sidecars: bool = True) -> Iterator[int]:
    """Processes that started with `mark` (a launch, or a prefix of several) in the environment."""
    needle = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            environ, command = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
        except OSError:  # gone in the meantime, or another user's
            continue
        if any(item.startswith(needle) for item in environ.split(b"\0")) and (
            sidecars or not _SIDECAR.search(command)
        ):
            yield int(entry.name)


def _end_all(pids: Sequence[int], number: signal.Signals) -> list[int]:
    """Send a signal; those still alive after the grace."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    until = time.monotonic() + _GRACE_S
    while left := [pid for pid in pids if (stat_fields(pid) or "X")[0] not in "ZX"]:
        if time.monotonic() >= until:
            break
        time.sleep(0.05)
    return left


def die_with_parent() -> None:
    """In the child, between fork and exec: SIGTERM when the parent dies, however it dies."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def spawn(
    command: Sequence[str], environment: Mapping[str, str], log: Path | None
) -> subprocess.Popen[bytes]:
    """A process in its own session that ends with this one; its output is added to the log.

    Only for single-threaded parents: it runs Python code after a fork.
    """
    with nullcontext() if log is None else log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - this process has one thread
        )


def end_session(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """End a process of `spawn` and its session: SIGTERM, and SIGKILL after the grace."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
            return


@dataclass
class Launch:
    """One torchrun, in its own session, and what it started."""

    process: subprocess.Popen[bytes]
    mark: str

    @property
    def pid(self) -> int:
        """Torchrun's: `lightkeeper run` becomes it."""
        return self.process.pid

    def poll(self) -> int | None:
        """Return code once torchrun has ended (negative: killed by that signal), else None."""
        return self.process.poll()

    def stop(self) -> None:
        """End torchrun, which passes SIGTERM on to its ranks; returns when all are gone."""
        end_session(self.process, _GRACE_S)
        self.sweep()

    def sweep(self) -> list[int]:
        """Kill ranks that outlived torchrun; returns those."""
        left = list(launched(self.mark + ";", sidecars=False))
        _end_all(left, signal.SIGKILL)
        return left


@dataclass
class Launcher:
    """Starts torchrun for one group, each time with a new rendezvous port."""

    group: str
    nproc: int
    arguments: Sequence[str]
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    _count: int = 0

    def command(self) -> list[str]:
        """The command: torchrun chooses a free port itself and does not restart ranks."""
        return [
            *(sys.executable, "-m", "lightkeeper.worker_server.rank.admission", "--"),
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={self.nproc}", "--max-restarts=0"),
            f"--shutdown-timeout={round(_GRACE_S / 2)}",
            *("-m", "lightkeeper.trainer.train", *self.arguments),
        ]

    def environment(self, host: str, mark: str) -> dict[str, str]:
        environ = {
            "OMP_NUM_THREADS": "1",
            "LIGHTKEEPER_ATTACH": "0",  # the trainer attaches itself
            **os.environ,
            "LIGHTKEEPER_HOST": host,
            "REPLICA_GROUP": self.group,
            MARK: mark + ";",
        }
        for stale in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
            environ.pop(stale, None)
        return environ

    def start(self, host: str) -> Launch:
        self._count += 1
        mark = f"{self.run_id}.{self._count}"
        return Launch(spawn(self.command(), self.environment(host, mark), None), mark)

    def close(self) -> list[int]:
        """End all that this supervisor's launches left, sidecars too; returns those."""
        left = list(launched(self.run_id + "."))
        _end_all(_end_all(left, signal.SIGTERM), signal.SIGKILL)
        return left


# -- command line ---------------------------------------------------------------------------

_ABOUT: Final = """\
Keep one replica group running: start torchrun on the first host that the monitor admits, and again,
after asking again, whenever it left.
"""
_EPILOG: Final = """\
example:
  python -m lightkeeper.trainer.supervisor --group rg_1 --hosts host-1,spare-1 -- --steps 1000
Everything after -- goes to `python -m lightkeeper.trainer.train` (see its --help).
Ranks inherit this environment: set TORCHFT_LIGHTHOUSE, LIGHTKEEPER_MONITOR, and on one machine
GLOO_SOCKET_IFNAME=lo.

exit status: 0 the training finished; 2 wrong use; 143 ended by SIGTERM, 130 by SIGINT.
"""


def end_on_signals() -> None:
    """SIGTERM and SIGINT unwind this process, once: a second one does not disturb the ending."""

    def end(number: int, _frame: object) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def main(arguments: Sequence[str] | None = None) -> None:
    form = argparse.RawDescriptionHelpFormatter
    top = OneLineParser(
        "lightkeeper.trainer.supervisor", "%(prog)s [OPTIONS] [-- ARGS ...]", _ABOUT, _EPILOG,
        formatter_class=form,
    )  # fmt: skip
    add = top.add_argument
    add("--group", metavar="NAME", required=True, help="stable name of the replica group: rg_1")
    add("--hosts", metavar="H,H", required=True, help="hosts in order of preference, by comma")
    add("--nproc", metavar="N", type=in_bounds(int, 1, math.inf), default=1,
        help="ranks in the group (default 1)")  # fmt: skip
    add("--status-file", metavar="FILE", type=Path, help="append events as JSON lines")
    add("arguments", nargs="*", metavar="-- ARGS", help="for python -m lightkeeper.trainer.train")
    opt = top.parse_args(arguments)
    if "TORCHFT_LIGHTHOUSE" not in os.environ:
        top.error("TORCHFT_LIGHTHOUSE=http://host:port is not set")
    rank_options(opt.arguments)  # wrong ones end the process here, not in every launch
    end_on_signals()
    Supervisor(
        opt.hosts.split(","),
        launcher=Launcher(opt.group, opt.nproc, opt.arguments),
        emit=StatusFile(opt.status_file, group=opt.group).write,
    ).run()


if __name__ == "__main__":
    main()
